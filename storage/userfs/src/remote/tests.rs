//! What is kept of open files, when others open and close them at the worst moment.

use super::*;
use crate::backend::ROOT;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

type Between = Box<dyn Fn() + Send + Sync>;

/// A server with one file, which lets something happen in the middle of an operation.
#[derive(Default)]
struct Fake {
    in_change: OnceLock<Between>,
    in_finish: OnceLock<Between>,
    in_rename: OnceLock<Between>,
    closed: AtomicU32,
    dropped: AtomicU32,
    removed: AtomicU32,
    renamed: AtomicU32,
    /// Paths by which something was put up or made.
    used: Mutex<Vec<String>>,
}

impl Fake {
    fn uses(&self, path: &[u8]) {
        self.used.lock().unwrap().push(String::from_utf8(path.to_vec()).unwrap());
    }
}

/// Names that are folders.
const FOLDERS: [&str; 2] = ["folder", "moved"];

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
    fn lookup(&self, _parent: &Place, name: &OsStr) -> Result<Found> {
        let is_folder = FOLDERS.iter().any(|folder| *folder == name);
        let mode = if is_folder { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
        Ok(Found { attributes: attributes(mode), key: vec![] })
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
    fn make(&self, parent: &Place, name: &OsStr, _new: New) -> Result<()> {
        self.uses(&parent.join(name)?);
        Ok(())
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
        self.in_rename.get().iter().for_each(|between| between());
        self.renamed.fetch_add(1, Ordering::SeqCst);
        Ok(())
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
    fn finish(&self, of: &Place) -> Result<()> {
        self.uses(of.path()?);
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
    let inode = remote.lookup(ROOT, OsStr::new("file")).unwrap().inode;
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
            remote.unlink(ROOT, OsStr::new(NAME)).unwrap();
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

/// The same file, in a folder.
fn opened_in_folder() -> (Arc<Fake>, Arc<Remote<Arc<Fake>>>, Inode, Inode) {
    let fake = Arc::new(Fake::default());
    let remote = Arc::new(Remote::new(fake.clone()).unwrap());
    let folder = remote.lookup(ROOT, OsStr::new(FOLDERS[0])).unwrap().inode;
    let inode = remote.lookup(folder, OsStr::new("file")).unwrap().inode;
    remote.open(inode).unwrap();
    (fake, remote, folder, inode)
}

fn move_folder(remote: &Remote<Arc<Fake>>) {
    remote.rename((ROOT, OsStr::new(FOLDERS[0])), (ROOT, OsStr::new(FOLDERS[1])), Replace::No).unwrap();
}

/// What begins now, and is told when it did. It may have to wait for whoever begins it.
fn begun(work: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        tell.send(()).unwrap();
        work();
    });
    told.recv().unwrap();
    // It is in the middle of it now, or about to be; without a wait for us it would be through.
    std::thread::sleep(Duration::from_millis(100));
    thread
}

type Threads = Arc<Mutex<Vec<std::thread::JoinHandle<()>>>>;

fn all_end(threads: &Threads) {
    let all = std::mem::take(&mut *threads.lock().unwrap());
    assert!(!all.is_empty());
    all.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn what_is_put_up_last_does_not_stay_in_a_folder_that_was_renamed() {
    let (fake, remote, _, inode) = opened_in_folder();
    let (renames, seen, threads) = (Arc::downgrade(&remote), Arc::downgrade(&fake), Threads::default());
    let (mover, meanwhile) = (threads.clone(), Arc::new(AtomicU32::new(u32::MAX)));
    let renamed = meanwhile.clone();
    let between: Between = Box::new(move || {
        let remote = renames.upgrade().unwrap();
        mover.lock().unwrap().push(begun(move || move_folder(&remote)));
        renamed.store(seen.upgrade().unwrap().renamed.load(Ordering::SeqCst), Ordering::SeqCst);
    });
    assert!(fake.in_finish.set(between).is_ok());
    remote.release(inode);
    all_end(&threads);
    assert_eq!(meanwhile.load(Ordering::SeqCst), 0, "the folder was renamed while a file of it was put up");
    assert_eq!(fake.renamed.load(Ordering::SeqCst), 1);
    assert_eq!(*fake.used.lock().unwrap(), ["folder/file"]);
}

#[test]
fn what_is_put_up_and_made_while_its_folder_is_renamed_is_in_the_new_one() {
    let (fake, remote, folder, inode) = opened_in_folder();
    let (again, threads) = (Arc::downgrade(&remote), Threads::default());
    let others = threads.clone();
    let between: Between = Box::new(move || {
        let (puts, makes) = (again.upgrade().unwrap(), again.upgrade().unwrap());
        let new = New { mode: libc::S_IFREG | 0o644, device: 0, user: 0, group: 0 };
        let mut all = others.lock().unwrap();
        all.push(begun(move || puts.release(inode)));
        all.push(begun(move || {
            makes.make(folder, OsStr::new("new"), new).unwrap();
        }));
    });
    assert!(fake.in_rename.set(between).is_ok());
    move_folder(&remote);
    all_end(&threads);
    let mut used = fake.used.lock().unwrap().clone();
    used.sort();
    assert_eq!(used, ["moved/file", "moved/new"]);
}

#[test]
fn folders_that_move_into_each_other_wait_in_no_circle() {
    let (fake, remote, folder, inode) = opened_in_folder();
    let other = remote.lookup(ROOT, OsStr::new(FOLDERS[1])).unwrap().inode;
    std::thread::scope(|scope| {
        for turn in 0..4 {
            let remote = &remote;
            scope.spawn(move || {
                for _ in 0..500 {
                    let (from, to) = if turn % 2 == 0 { (folder, other) } else { (other, folder) };
                    let (one, two) = (OsStr::new("one"), OsStr::new("two"));
                    remote.lookup(from, one).unwrap();
                    remote.rename((from, one), (to, two), Replace::Yes).unwrap();
                    remote.sync(inode, false).unwrap();
                }
            });
        }
    });
    assert_eq!(fake.renamed.load(Ordering::SeqCst), 2000);
}
