use super::machine::{host_key, identity, key, label, put};
use crate::suite::echo::Echo;
use crate::{Folders, Made, Runner, Service, Serving};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_base::codec::{CodecError, read_frame, write_frame};
use weir_model::Version;
use weir_model::event::EventBody;
use weir_model::local::{Answer, FromSwitch, Question, ToSwitch};
use weir_trust::gate::content_digest;
use weir_trust::identity::verify_acks;

fn start(folder: &Path) -> Serving<Echo> {
    let folders = Folders { state: folder.join("state"), run: folder.join("run") };
    Runner::new(identity(), &folders, None, Echo::default()).unwrap().start().unwrap()
}

fn connect(folder: &Path) -> UnixStream {
    let stream = UnixStream::connect(folder.join("run/planes/echo.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

fn ask(stream: &mut UnixStream, frame: &ToSwitch) -> FromSwitch {
    write_frame(stream, frame).unwrap();
    read_frame(stream).unwrap()
}

#[test]
fn an_agent_finds_it_tells_it_and_hears_it() {
    let folder = tempfile::tempdir().unwrap();
    let serving = start(folder.path());
    let mut agent = connect(folder.path());
    let hello = ask(&mut agent, &ToSwitch::Subscribe);
    assert_eq!(hello, FromSwitch::Plane { plane: label("echo"), names: None });
    let nothing = FromSwitch::Contents { entries: vec![], last: true };
    assert_eq!(ask(&mut agent, &ToSwitch::SendState), nothing);
    let update = put(1, "n", "x");
    let content = content_digest(&key("n"), Version(1), &update.updates[0].update.change);
    let state = FromSwitch::Contents { entries: vec![(key("n"), Version(1), content)], last: true };
    assert_eq!(ask(&mut agent, &ToSwitch::Updates(update)), state, "before its acks");
    let FromSwitch::Acks(acks) = read_frame(&mut agent).unwrap() else { panic!() };
    assert_eq!(verify_acks(&host_key().public(), &acks), Ok(()));
    assert_eq!(acks.acks[0].result, Ok(()));
    let FromSwitch::Event(event) = read_frame(&mut agent).unwrap() else { panic!() };
    assert!(matches!(&event.event.body, EventBody::Report(report) if report.bytes == b"\"x\""), "{event:?}");
    assert_eq!(ask(&mut agent, &ToSwitch::SendState), state);
    let question = |question| ToSwitch::Ask { id: 7, question };
    let FromSwitch::Answer { id: 7, answer: Answer::Entries { entries, last: true } } =
        ask(&mut agent, &question(Question::Entries { after: None }))
    else {
        panic!()
    };
    assert_eq!(entries.len(), 1);
    let none = ask(&mut agent, &question(Question::Entries { after: Some(key("n")) }));
    assert!(
        matches!(none, FromSwitch::Answer { answer: Answer::Entries { entries, .. }, .. } if entries.is_empty())
    );
    assert!(matches!(ask(&mut agent, &question(Question::Counters)),
        FromSwitch::Answer { answer: Answer::Counters(counters), .. } if !counters.is_empty()));
    assert!(matches!(ask(&mut agent, &question(Question::Ports)),
        FromSwitch::Answer { answer: Answer::Error(why), .. } if why.contains("echo")));
    assert_eq!(ask(&mut agent, &ToSwitch::ReadIdentity), FromSwitch::Identity { key: host_key().public() });
    assert_eq!(serving.with(|machine| machine.counters().applied), 1);
    drop(serving);
    assert!(matches!(read_frame::<FromSwitch>(&mut agent), Err(CodecError::Closed)));
    assert!(!folder.path().join("run/planes/echo.sock").exists());
    // What it had is there when it is back.
    let _serving = start(folder.path());
    assert_eq!(ask(&mut connect(folder.path()), &ToSwitch::SendState), state);
}

#[test]
fn nonsense_and_too_many_clients_cost_the_others_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let serving = start(folder.path());
    let mut bad = connect(folder.path());
    std::io::Write::write_all(&mut bad, &[255; 64]).unwrap();
    assert!(read_frame::<FromSwitch>(&mut bad).is_err());
    drop(bad);
    let mut clients: Vec<UnixStream> = Vec::new();
    while clients.len() < crate::driver::CLIENTS_MAX {
        let mut client = connect(folder.path());
        // The place of the bad one may not be free yet.
        if write_frame(&mut client, &ToSwitch::Subscribe).is_ok()
            && read_frame::<FromSwitch>(&mut client).is_ok()
        {
            clients.push(client);
        }
    }
    let refused = serving.clients_refused();
    let mut more = connect(folder.path());
    assert!(read_frame::<FromSwitch>(&mut more).is_err());
    assert!(serving.clients_refused() > refused);
    for client in &mut clients {
        assert!(matches!(ask(client, &ToSwitch::SendState), FromSwitch::Contents { last: true, .. }));
    }
}

/// A process that is there before its host is one serves when that has joined, and ends when it is let go, also while it waits.
#[test]
fn a_process_serves_as_soon_as_its_host_has_joined() {
    let folder = tempfile::tempdir().unwrap();
    let joined = Arc::new(AtomicBool::new(false));
    let (is_joined, at) = (Arc::clone(&joined), folder.path().to_path_buf());
    let make = move || match is_joined.load(Ordering::SeqCst) {
        true => Ok(Made {
            identity: identity(),
            folders: Folders { state: at.join("state"), run: at.join("run") },
            instance: None,
            actuator: Echo::default(),
        }),
        false => Err("this host has not joined".to_string()),
    };
    let service = Service::start(Box::new(make.clone())).unwrap();
    while service.tries() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(service.with(|_| ()), None);
    assert_eq!(service.weak().metrics_text(), "");
    joined.store(true, Ordering::SeqCst);
    service.wait();
    let hello = FromSwitch::Plane { plane: label("echo"), names: None };
    assert_eq!(ask(&mut connect(folder.path()), &ToSwitch::Subscribe), hello);
    let weak = service.weak();
    assert!(weak.metrics_text().contains("weir_plane_entries{plane=\"echo\"} 0"));
    drop(service);
    assert!(!folder.path().join("run/planes/echo.sock").exists() && weak.with(|_| ()).is_none());
    joined.store(false, Ordering::SeqCst);
    let waits = Service::start(Box::new(make)).unwrap();
    let weak = waits.weak();
    let waiting = std::thread::spawn(move || weak.wait());
    drop(waits);
    waiting.join().unwrap();
}
