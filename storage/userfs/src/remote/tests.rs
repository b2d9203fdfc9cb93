//! What is kept of open files, when others open and close them at the worst moment.

use super::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

type Between = Box<dyn Fn() + Send + Sync>;

/// A server with one file, which lets something happen in the middle of an operation.
#[derive(Default)]
struct Fake {
    in_change: OnceLock<Between>,
    in_finish: OnceLock<Between>,
    closed: AtomicU32,
    dropped: AtomicU32,
    removed: AtomicU32,
}

fn attributes(mode: u32) -> Attributes {
    let then = SystemTime::UNIX_EPOCH;
    Attributes {
        inode: 0,
        mode,
        links: 1,
        user: 0,
        group: 0,
        device: 0,
        size: 0,
        blocks: 0,
        accessed: then,
        modified: then,
        changed: then,
    }
}

const NOT_HERE: Errno = Errno::UNSUPPORTED;

impl Protocol for Arc<Fake> {
    const EXACT_TIMES: bool = false;
    const KEEPS_WRITES: bool = false;
    fn root(&self) -> Result<Found> {
        Ok(Found { attributes: attributes(libc::S_IFDIR | 0o755), key: vec![] })
    }
    fn lookup(&self, _parent: &Place, _name: &OsStr) -> Result<Found> {
        Ok(Found { attributes: attributes(libc::S_IFREG | 0o644), key: vec![] })
    }
    fn attributes(&self, _of: &Place) -> Result<Attributes> {
        Ok(attributes(libc::S_IFREG | 0o644))
    }
    fn change(&self, _of: &Place, _change: &Change, _now: &Attributes) -> Result<()> {
        self.in_change.get().iter().for_each(|between| between());
        Ok(())
    }
    fn read_link(&self, _of: &Place) -> Result<Vec<u8>> {
        Err(NOT_HERE)
    }
    fn make(&self, _parent: &Place, _name: &OsStr, _new: New) -> Result<()> {
        Err(NOT_HERE)
    }
    fn make_directory(&self, _parent: &Place, _name: &OsStr, _new: New) -> Result<()> {
        Err(NOT_HERE)
    }
    fn make_link(&self, _parent: &Place, _name: &OsStr, _target: &OsStr, _new: New) -> Result<()> {
        Err(NOT_HERE)
    }
    fn link(&self, _of: &Place, _parent: &Place, _name: &OsStr) -> Result<()> {
        Err(NOT_HERE)
    }
    fn remove(&self, _parent: &Place, _name: &OsStr) -> Result<()> {
        self.removed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn remove_directory(&self, _parent: &Place, _name: &OsStr) -> Result<()> {
        Err(NOT_HERE)
    }
    fn rename(&self, _from: (&Place, &OsStr), _to: (&Place, &OsStr), _replace: Replace) -> Result<()> {
        Err(NOT_HERE)
    }
    fn list(&self, _of: &Place) -> Result<Vec<(OsString, Found)>> {
        Err(NOT_HERE)
    }
    fn read(&self, _of: &Place, _offset: u64, _to: &mut [u8]) -> Result<usize> {
        Ok(0)
    }
    fn write(&self, _of: &Place, _offset: u64, _from: &[u8]) -> Result<()> {
        Ok(())
    }
    fn sync(&self, _of: &Place) -> Result<()> {
        Ok(())
    }
    fn close(&self, _of: &Place) -> Result<()> {
        self.closed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn finish(&self, _of: &Place) -> Result<()> {
        self.in_finish.get().iter().for_each(|between| between());
        Ok(())
    }
    fn released(&self, _of: &Place) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
    fn space(&self) -> Result<Space> {
        Err(NOT_HERE)
    }
    fn notes(&self) -> Vec<String> {
        vec![]
    }
}

/// A file that is open once.
fn opened() -> (Arc<Fake>, Arc<Remote<Arc<Fake>>>, Inode) {
    let fake = Arc::new(Fake::default());
    let remote = Arc::new(Remote::new(fake.clone()).unwrap());
    let inode = remote.lookup(crate::backend::ROOT, OsStr::new("file")).unwrap().inode;
    remote.open(inode).unwrap();
    (fake, remote, inode)
}

#[test]
fn what_is_kept_stays_when_it_is_opened_while_it_is_closed() {
    let (fake, remote, inode) = opened();
    let (again, first) = (Arc::downgrade(&remote), OnceLock::new());
    let between: Between = Box::new(move || {
        if first.set(()).is_ok() {
            again.upgrade().unwrap().open(inode).unwrap();
        }
    });
    assert!(fake.in_finish.set(between).is_ok());
    remote.release(inode);
    assert_eq!(fake.dropped.load(Ordering::Relaxed), 0, "who opened it meanwhile may have written");
    remote.release(inode);
    assert_eq!(fake.dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn a_size_that_is_set_while_the_file_is_closed_is_put_up() {
    let (fake, remote, inode) = opened();
    let last = Arc::downgrade(&remote);
    assert!(fake.in_change.set(Box::new(move || last.upgrade().unwrap().release(inode))).is_ok());
    remote.change(inode, &Change { size: Some(0), ..Change::default() }).unwrap();
    assert_eq!(fake.closed.load(Ordering::Relaxed), 1);
}

#[test]
fn what_is_put_up_last_brings_no_removed_file_back() {
    const NAME: &str = "file";
    let (fake, remote, inode) = opened();
    let (removes, seen, remover) =
        (Arc::downgrade(&remote), Arc::downgrade(&fake), Arc::new(Mutex::new(None)));
    let (begun, removed_meanwhile) = (remover.clone(), Arc::new(AtomicU32::new(0)));
    let meanwhile = removed_meanwhile.clone();
    let between: Between = Box::new(move || {
        let remote = removes.upgrade().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let remove = move || {
            tell.send(()).unwrap();
            remote.unlink(crate::backend::ROOT, OsStr::new(NAME)).unwrap();
        };
        *begun.lock().unwrap() = Some(std::thread::spawn(remove));
        told.recv().unwrap();
        // It is in the removal now, or about to be; without a wait for us it would be through.
        std::thread::sleep(Duration::from_millis(100));
        meanwhile.store(seen.upgrade().unwrap().removed.load(Ordering::SeqCst), Ordering::SeqCst);
    });
    assert!(fake.in_finish.set(between).is_ok());
    remote.release(inode);
    remover.lock().unwrap().take().unwrap().join().unwrap();
    assert_eq!(removed_meanwhile.load(Ordering::SeqCst), 0, "it was removed while it was put up");
    assert_eq!(fake.removed.load(Ordering::SeqCst), 1);
}
