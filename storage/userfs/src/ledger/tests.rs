//! A folder whose backend begins anew, as after a crash.

use super::*;
use crate::dir::Directory;

const NEW: New = New { mode: libc::S_IFREG | 0o644, device: 0, user: 0, group: 0 };

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

fn begin(folder: &tempfile::TempDir) -> Ledger {
    Ledger::new(Arc::new(Directory::open(folder.path()).unwrap())).unwrap()
}

fn again(folder: &tempfile::TempDir, before: Ledger) -> Ledger {
    let journal = before.journal.files().map(|file| file.try_clone_to_owned().unwrap());
    drop(before);
    Ledger::again(Arc::new(Directory::open(folder.path()).unwrap()), journal).unwrap()
}

fn contents(of: &Ledger, inode: Inode) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 100];
    let got = of.read(inode, 0, &mut bytes)?;
    bytes.truncate(got);
    Ok(bytes)
}

#[test]
fn files_are_found_again_by_the_numbers_that_they_had() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = begin(&folder);
    let above = ledger.make_directory(ROOT, name("d"), New { mode: 0o755, ..NEW }).unwrap().inode;
    let files: Vec<Inode> = (0..20)
        .map(|i| {
            let inode = ledger.make(above, name(&format!("f{i}")), NEW).unwrap().inode;
            ledger.write(inode, 0, format!("{i}").as_bytes(), false).unwrap();
            inode
        })
        .collect();
    ledger.rename((above, name("f1")), (ROOT, name("moved")), Replace::Yes).unwrap();
    ledger.rename((above, name("f2")), (above, name("f3")), Replace::Exchange).unwrap();
    ledger.rename((above, name("f4")), (above, name("f5")), Replace::Yes).unwrap();
    ledger.link(files[6], ROOT, name("linked")).unwrap();
    ledger.unlink(above, name("f6")).unwrap();
    ledger.rename((ROOT, name("d")), (ROOT, name("e")), Replace::Yes).unwrap();
    ledger.forget(files[7], 1);
    let mut ledger = ledger;
    for _ in 0..3 {
        ledger = again(&folder, ledger);
        for i in [0, 1, 2, 3, 4, 6, 8, 19] {
            assert_eq!(contents(&ledger, files[i]), Ok(format!("{i}").into_bytes()), "file {i}");
            assert_eq!(ledger.attributes(files[i]).unwrap().inode, files[i]);
        }
        assert_eq!(contents(&ledger, files[5]), Err(NO_LONGER), "it was replaced");
        assert_eq!(contents(&ledger, files[7]), Err(NO_LONGER), "it was forgotten");
        assert_eq!(
            ledger.lookup(above, name("f9")).unwrap().inode,
            files[9],
            "the number that the kernel knows"
        );
        ledger.forget(files[9], 1);
        let new = ledger.lookup(above, name("f7")).unwrap().inode;
        assert!(!files.contains(&new), "one that is given once is not given again");
        ledger.forget(new, 1);
    }
    ledger.rename((ROOT, name("e")), (ROOT, name("g")), Replace::Yes).unwrap();
    let ledger = again(&folder, ledger);
    assert_eq!(contents(&ledger, files[0]), Ok(b"0".to_vec()));
}

#[test]
fn another_file_under_the_name_is_not_taken_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = begin(&folder);
    let file = ledger.make(ROOT, name("f"), NEW).unwrap().inode;
    let ledger = again(&folder, ledger);
    std::fs::remove_file(folder.path().join("f")).unwrap();
    std::fs::create_dir(folder.path().join("f")).unwrap();
    assert_eq!(contents(&ledger, file), Err(NO_LONGER));
    assert_ne!(ledger.lookup(ROOT, name("f")).unwrap().inode, file);
    assert!(ledger.notes()[0].contains("could not be found again"), "{:?}", ledger.notes());
}

#[test]
fn a_long_ledger_is_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = begin(&folder);
    let file = ledger.make(ROOT, name("f"), NEW).unwrap().inode;
    for _ in 0..150_000 {
        assert_eq!(ledger.lookup(ROOT, name("f")).unwrap().inode, file);
    }
    let bytes: i64 = ledger.journal.files().iter().map(|file| rustix::fs::fstat(file).unwrap().st_size).sum();
    assert!(bytes < 5 << 20, "{bytes}");
    let ledger = again(&folder, ledger);
    ledger.forget(file, 150_000);
    assert!(contents(&ledger, file).is_ok(), "it was told once more");
    ledger.forget(file, 1);
    assert_eq!(contents(&ledger, file), Err(NO_LONGER));
}
