//! What a local user plants in the folder of boxes, which is everybody's: links, pipes, claims about others.

use rustix::fs::{CWD, Mode};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use weir_sensor::{Directory, Kind, SensorBox, Shape};

const PATIENCE: Duration = Duration::from_secs(60);
/// Some user that is not root.
const USER: u32 = 64_000;

fn made(name: &str) -> SensorBox {
    let made = SensorBox::create(name, Shape { sensors: 2, records: 16 }, 1).unwrap();
    made.set(made.add("value", Kind::Gauge).unwrap(), 7);
    made
}

fn root(name: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("NOT RUN {name}: needs root");
    }
    is_root
}

#[test]
fn nothing_that_is_planted_is_written_through_or_replaced_by_its_target() {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "root's own").unwrap();
    let boxes = folder.path().join("boxes");
    std::fs::create_dir(&boxes).unwrap();
    // The place itself, and what a name aside could be that is made of what everybody knows.
    symlink(&victim, boxes.join("web.box")).unwrap();
    symlink(&victim, boxes.join(format!(".web.{}", std::process::id()))).unwrap();
    symlink(&victim, boxes.join(".web")).unwrap();
    let (directory, web) = (Directory::new(&boxes), made("web"));
    assert!(directory.discover("web").is_err(), "a link is no registration");
    web.export(&directory).unwrap();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "root's own");
    assert!(
        std::fs::symlink_metadata(boxes.join("web.box")).unwrap().is_file(),
        "the link is replaced itself"
    );
    assert_eq!(directory.discover("web").unwrap().value_of("value"), Some(7));
    // No name aside stays, nor is one used twice.
    let names = || std::fs::read_dir(&boxes).unwrap().count();
    let before = names();
    (0..20).for_each(|_| web.export(&directory).unwrap());
    assert_eq!(names(), before);
    let mode = std::fs::metadata(boxes.join("web.box")).unwrap().permissions().mode();
    assert_eq!(mode & 0o133, 0, "nobody else writes it: {mode:o}");
}

#[test]
fn pipes_and_what_turns_into_them_keep_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let boxes = folder.path().to_path_buf();
    rustix::fs::mkfifoat(CWD, boxes.join("pipe.box"), Mode::from_raw_mode(0o666)).unwrap();
    let (done, is_done) = channel();
    let looks = boxes.clone();
    // Apart, so that one who waits for ever is seen.
    std::thread::spawn(move || {
        let (directory, ends) = (Directory::new(&looks), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let [a, b, both] = [".a", ".b", "evil.box"].map(|name| looks.join(name));
                while !ends.load(Ordering::Relaxed) {
                    std::fs::write(&a, "1 1\n").unwrap();
                    let _ = rustix::fs::mkfifoat(CWD, &b, Mode::from_raw_mode(0o666));
                    std::fs::rename(&a, &both).unwrap();
                    std::fs::rename(&b, &both).unwrap();
                }
            });
            for _ in 0..3000 {
                assert!(directory.discover("pipe").is_err() && directory.discover("evil").is_err());
                assert!(directory.list().unwrap().iter().all(|registration| registration.name != "pipe"));
            }
            // Its own place became a pipe: the end of the box must not wait either.
            let web = made("web");
            web.export(&directory).unwrap();
            std::fs::remove_file(looks.join("web.box")).unwrap();
            rustix::fs::mkfifoat(CWD, looks.join("web.box"), Mode::from_raw_mode(0o666)).unwrap();
            web.destroy();
            ends.store(true, Ordering::Relaxed);
        });
        done.send(()).unwrap();
    });
    is_done.recv_timeout(PATIENCE).expect("nobody waits");
}

#[test]
fn the_publisher_is_whom_the_kernel_says() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::new(folder.path());
    let web = made("web");
    web.export(&directory).unwrap();
    let own = u64::from(std::process::id());
    // The box itself says that another process publishes it.
    let memory = std::fs::File::from(web.memory().try_clone_to_owned().unwrap());
    let said = weir_sensor::layout::header::PROCESS as u64 * 8;
    std::os::unix::fs::FileExt::write_all_at(&memory, &1_u64.to_ne_bytes(), said).unwrap();
    assert_eq!(directory.discover("web").unwrap().process(), own);
}

/// Rewrites a registration as another user's.
fn claim(path: &Path, process: u32, descriptor: u32, user: u32) {
    std::fs::write(path, format!("{process} {descriptor}\n")).unwrap();
    chown(path, Some(user), Some(user)).unwrap();
}

#[test]
fn nobody_registers_anothers_process_or_memory() {
    if !root("nobody_registers_anothers_process_or_memory") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::new(folder.path());
    let web = made("web");
    web.export(&directory).unwrap();
    let path = folder.path().join("web.box");
    let registration = directory.list().unwrap().remove(0);
    assert_eq!(registration.user, std::fs::metadata(&path).unwrap().uid());
    // A user's file that names a process of root's, and its box.
    claim(&path, registration.process, registration.descriptor, USER);
    let error = directory.discover("web").unwrap_err().to_string();
    assert!(error.contains("nobody can publish for another"), "{error}");
    // A file of root's that names a process of root's whose memory is a user's.
    claim(&path, registration.process, registration.descriptor, 0);
    assert!(directory.discover("web").is_ok());
    rustix::fs::fchown(web.memory(), Some(rustix::fs::Uid::from_raw(USER)), None).unwrap();
    let error = directory.discover("web").unwrap_err().to_string();
    assert!(error.contains("its memory was made by user 64000"), "{error}");
    // A user's process that holds nothing of that kind.
    let mut sleeper = Command::new("sleep").arg("600").stdin(Stdio::null()).uid(USER).spawn().unwrap();
    claim(&path, sleeper.id(), 0, USER);
    let error = directory.discover("web").unwrap_err().to_string();
    assert!(error.contains("is no memory"), "{error}");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}
