use super::*;
use std::io::{Read, Seek, Write};

/// A switch's end of the socket.
struct Switch(OwnedFd);

impl Switch {
    fn connect(path: &Path) -> Switch {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Switch(socket)
    }

    fn say(&self, message: &ToStore, descriptors: &[BorrowedFd<'_>]) {
        let bytes = encode(message);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STORE_FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    fn keep(&self, name: &str, text: &str) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let message = ToStore::Keep { name: name.into(), bytes: text.as_bytes().to_vec() };
        self.say(&message, &[file.as_fd()]);
    }

    fn hear(&self) -> (FromStore, Vec<OwnedFd>) {
        let mut bytes = vec![0; STORE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STORE_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty()).unwrap();
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        (decode(&bytes[..received.bytes]).unwrap(), descriptors)
    }

    /// Names and what is in the files, which the words beside them must say too.
    fn given(&self) -> Vec<(String, String)> {
        self.say(&ToStore::Give, &[]);
        let mut given = Vec::new();
        loop {
            match self.hear() {
                (FromStore::Done, _) => return given,
                (FromStore::Kept { name, bytes }, descriptors) => {
                    let [file] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
                    let (mut file, mut text) = (std::fs::File::from(file), String::new());
                    file.rewind().unwrap();
                    file.read_to_string(&mut text).unwrap();
                    assert_eq!(text.as_bytes(), bytes);
                    given.push((name, text));
                }
            }
        }
    }

    fn sync(&self) {
        self.say(&ToStore::Sync, &[]);
        assert_eq!(self.hear().0, FromStore::Done);
    }
}

fn store() -> (tempfile::TempDir, std::path::PathBuf, Store) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.sock");
    let store = Store::listen(&path);
    (directory, path, store)
}

fn pairs(given: &[(&str, &str)]) -> Vec<(String, String)> {
    given.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect()
}

#[test]
fn the_next_one_gets_what_a_dead_one_kept() {
    let (_directory, path, store) = store();
    let first = Switch::connect(&path);
    first.keep("a", "one");
    first.keep("b", "two");
    first.keep("a", "three");
    first.keep("c", "four");
    first.say(&ToStore::Drop { name: "c".into() }, &[]);
    // Nothing was waited for: what it said last counts.
    drop(first);
    let second = Switch::connect(&path);
    assert_eq!(second.given(), pairs(&[("a", "three"), ("b", "two")]));
    // It goes on with one of them and says so.
    second.keep("a", "five");
    second.say(&ToStore::Settle, &[]);
    drop(second);
    store.ended(Some(std::process::id()));
    assert_eq!(Switch::connect(&path).given(), pairs(&[("a", "five")]));
}

#[test]
fn one_that_dies_before_it_has_settled_costs_nothing() {
    let (_directory, path, _store) = store();
    let first = Switch::connect(&path);
    first.keep("a", "one");
    drop(first);
    for _ in 0..3 {
        assert_eq!(Switch::connect(&path).given(), pairs(&[("a", "one")]));
    }
}

#[test]
fn what_is_kept_is_let_go_after_a_process_that_was_never_here() {
    let (_directory, path, store) = store();
    let first = Switch::connect(&path);
    first.keep("a", "one");
    first.sync();
    store.ended(Some(std::process::id()));
    assert_eq!(store.count(), 1, "it was here");
    store.ended(Some(0));
    assert_eq!(store.count(), 0, "an older release opens its devices by itself");
}

#[test]
fn there_is_a_limit_of_descriptors() {
    let (_directory, path, store) = store();
    let first = Switch::connect(&path);
    for number in 0..DESCRIPTORS_MAX + 10 {
        first.keep(&format!("{number:04}"), "x");
    }
    first.sync();
    assert_eq!(store.count(), DESCRIPTORS_MAX);
    first.say(&ToStore::Drop { name: "0000".into() }, &[]);
    first.keep("again", "x");
    first.sync();
    assert_eq!(store.count(), DESCRIPTORS_MAX);
    assert!(store.shelf().kept.contains_key("again"), "room that was made is used");
}

#[test]
fn nonsense_ends_its_own_connection_only() {
    let (_directory, path, _store) = store();
    let (good, bad) = (Switch::connect(&path), Switch::connect(&path));
    good.keep("a", "one");
    rustix::net::send(&bad.0, &[0xff; 9], SendFlags::NOSIGNAL).unwrap();
    let mut byte = [0; 1];
    assert_eq!(rustix::net::recv(&bad.0, &mut byte, RecvFlags::empty()).unwrap().0, 0, "closed");
    assert_eq!(good.given(), pairs(&[("a", "one")]));
}
