//! A switch that holds entries and forwards nothing.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use weir_base::codec::{read_frame, write_frame};
use weir_model::local::{Answer, CONTROL_SOCKET, FromSwitch, Question, ToSwitch};
use weir_model::session::StateDigest;
use weir_model::signed::{BatchHeader, GroupSignature, Signature, SignedAcks, SignedHeader};
use weir_model::{Ack, Change, Entry, Key, Label, Version};

pub const SIGNATURE: Signature = Signature { r: [0; 32], s: [0; 32] };

pub fn header() -> SignedHeader {
    let header = BatchHeader {
        domain: Label::new("lab").unwrap(),
        epoch: 1,
        index: Version(1),
        count: 1,
        root: [0; 32],
    };
    SignedHeader { header, signature: GroupSignature::Single(SIGNATURE) }
}

#[derive(Default)]
pub struct State {
    pub entries: BTreeMap<Key, (Version, Entry)>,
    pub attached: Vec<Key>,
    pub connections: usize,
    /// Where its identity is.
    state_dir: PathBuf,
    streams: Vec<UnixStream>,
}

/// Its socket goes away with it.
pub struct FakeSwitch {
    pub state: Arc<Mutex<State>>,
    socket: PathBuf,
}

impl FakeSwitch {
    pub fn start(run_dir: &Path, entries: Vec<(Key, Entry)>) -> FakeSwitch {
        let socket = run_dir.join(CONTROL_SOCKET);
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        state.lock().unwrap().state_dir = run_dir.join("state");
        state.lock().unwrap().entries =
            entries.into_iter().map(|(key, entry)| (key, (Version(1), entry))).collect();
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let mut locked = shared.lock().unwrap();
                locked.connections += 1;
                locked.streams.push(stream.try_clone().unwrap());
                drop(locked);
                let shared = shared.clone();
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        FakeSwitch { state, socket }
    }

    /// Ends all connections and takes no more, as a switch that died.
    pub fn kill(&self) {
        std::fs::remove_file(&self.socket).unwrap();
        for stream in self.state.lock().unwrap().streams.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn serve(stream: UnixStream, state: &Mutex<State>) {
    let mut write = stream.try_clone().unwrap();
    let mut read = BufReader::new(stream);
    while let Ok(frame) = read_frame::<ToSwitch>(&mut read) {
        let replies = reply(frame, &mut state.lock().unwrap());
        for reply in replies {
            if write_frame(&mut write, &reply).is_err() || write.flush().is_err() {
                return;
            }
        }
    }
}

fn reply(frame: ToSwitch, state: &mut State) -> Vec<FromSwitch> {
    match frame {
        ToSwitch::Subscribe => vec![],
        ToSwitch::ReadIdentity => {
            let key = weir_agent::join::identity(&state.state_dir).map_or([0; 32], |key| key.public());
            vec![FromSwitch::Identity { key }]
        }
        ToSwitch::Attach { key } => {
            state.attached.push(key);
            vec![]
        }
        ToSwitch::SendState => {
            let entries: Vec<_> =
                state.entries.iter().map(|(key, (version, _))| (key.clone(), *version)).collect();
            vec![FromSwitch::State { digest: StateDigest(entries.len() as u128), entries, last: true }]
        }
        ToSwitch::Ask { id, question: Question::Entries { after } } => {
            // One entry a page, so that paging is exercised.
            let next = state.entries.iter().find(|(key, _)| after.as_ref().is_none_or(|after| *key > after));
            let entries: Vec<_> = next
                .map(|(key, (version, entry))| (key.clone(), *version, entry.clone(), header()))
                .into_iter()
                .collect();
            let last = entries.last().is_none_or(|(key, ..)| state.entries.keys().next_back() == Some(key));
            vec![FromSwitch::Answer { id, answer: Answer::Entries { entries, last } }]
        }
        ToSwitch::Ask { id, .. } => {
            vec![FromSwitch::Answer { id, answer: Answer::Counters(vec![("frames".into(), 1)]) }]
        }
        ToSwitch::Updates(updates) => {
            let mut replies = Vec::new();
            let mut acks = Vec::new();
            for proven in updates.updates {
                let update = proven.update;
                acks.push(Ack { key: update.key.clone(), version: update.version, result: Ok(()) });
                let entry = match update.change {
                    Change::Put(entry) => {
                        state.entries.insert(update.key.clone(), (update.version, entry.clone()));
                        Some(entry)
                    }
                    Change::Delete => {
                        state.entries.remove(&update.key);
                        None
                    }
                };
                replies.push(FromSwitch::Changed { key: update.key, version: update.version, entry });
            }
            let actuator = Label::new("host-1").unwrap();
            replies.push(FromSwitch::Acks(SignedAcks { actuator, acks, signature: SIGNATURE }));
            replies
        }
    }
}
