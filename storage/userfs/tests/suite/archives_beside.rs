//! Archives beside GNU tar, bsdtar, unzip and gzip: healthy and odd ones show what their programs unpack; of broken ones no byte is shown that was not put
//! in, and nothing goes missing without a word where these programs have one; those of other kinds are refused.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_userfs::archive::Archive;
use weir_userfs::backend::{Backend, Inode, ROOT};
use weir_userfs::error::Errno;

const PIECE_BYTES: usize = 100_000;

/// What is in a file: its bytes, or what reading it says.
type Bytes = Result<Vec<u8>, Errno>;

#[derive(Debug, PartialEq, Eq)]
enum Found {
    Folder,
    Link(Vec<u8>),
    /// Bytes, permissions, and time in seconds.
    File(Bytes, u32, i64),
    Other(u32),
}

type All = BTreeMap<String, Found>;

fn bytes_of(archive: &Archive, inode: Inode, size: u64) -> Bytes {
    let mut all = Vec::new();
    while (all.len() as u64) < size {
        let mut piece = vec![0; PIECE_BYTES.min((size - all.len() as u64) as usize)];
        match archive.read(inode, all.len() as u64, &mut piece)? {
            0 => return Err(Errno::IO),
            bytes => all.extend_from_slice(&piece[..bytes]),
        }
    }
    Ok(all)
}

fn seconds(time: std::time::SystemTime) -> i64 {
    match time.duration_since(std::time::UNIX_EPOCH) {
        Ok(since) => since.as_secs() as i64,
        Err(before) => -(before.duration().as_secs_f64().ceil() as i64),
    }
}

fn shown_in(archive: &Archive, folder: Inode, above: &str, all: &mut All) {
    let mut names = Vec::new();
    archive
        .list(folder, 0, &mut |entry| {
            names.push(entry.name.to_os_string());
            true
        })
        .unwrap();
    for name in names.split_off(2) {
        let found = archive.lookup(folder, &name).unwrap();
        let path = format!("{above}{}", name.to_string_lossy());
        let shown = match found.mode & libc::S_IFMT {
            libc::S_IFDIR => {
                shown_in(archive, found.inode, &format!("{path}/"), all);
                Found::Folder
            }
            libc::S_IFLNK => Found::Link(archive.read_link(found.inode).unwrap_or_default()),
            libc::S_IFREG => Found::File(
                bytes_of(archive, found.inode, found.size),
                found.mode & 0o777,
                seconds(found.modified),
            ),
            other => Found::Other(other),
        };
        all.insert(path, shown);
    }
}

/// All that an archive shows.
fn shown(archive: &Archive) -> All {
    let mut all = All::new();
    shown_in(archive, ROOT, "", &mut all);
    all
}

/// The same of a folder.
fn unpacked(folder: &Path, above: &str, all: &mut All) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{above}{}", path.file_name().unwrap().to_string_lossy());
        let metadata = fs::symlink_metadata(&path).unwrap();
        let found = if metadata.is_dir() {
            unpacked(&path, &format!("{name}/"), all);
            Found::Folder
        } else if metadata.is_symlink() {
            Found::Link(fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
        } else if metadata.is_file() {
            let mode = metadata.permissions().mode() & 0o777;
            Found::File(Ok(fs::read(&path).unwrap()), mode, metadata.mtime())
        } else {
            Found::Other(metadata.mode() & libc::S_IFMT)
        };
        all.insert(name, found);
    }
}

/// The programs that unpack such a file into the folder they are in, as a line of shell each.
fn programs(path: &Path) -> Vec<(&'static str, &'static str)> {
    let all = match path.extension().and_then(OsStr::to_str) {
        Some("tar" | "tgz") => vec![
            ("tar", "tar --extract --no-same-owner --preserve-permissions --file \"$0\""),
            ("bsdtar", "bsdtar -x -p --no-same-owner -f \"$0\""),
        ],
        Some("zip") => {
            vec![("unzip", "unzip -q -o \"$0\""), ("bsdtar", "bsdtar -x -p --no-same-owner -f \"$0\"")]
        }
        Some("gz") => vec![("gzip", "gzip -d -c -q \"$0\" > out")],
        other => panic!("{other:?}"),
    };
    let name = path.file_name().unwrap().to_string_lossy();
    all.into_iter()
        .filter(|(program, _)| !name.contains(&format!("not-{program}")))
        .filter(|(program, _)| Command::new(program).arg("--version").output().is_ok())
        .collect()
}

/// What the program says and leaves.
fn by_program(line: &str, path: &Path) -> (bool, All) {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask 022; {line}")]).arg(path).current_dir(folder.path());
    let ran = shell.env("LC_ALL", "C.UTF-8").output().unwrap();
    let mut all = All::new();
    unpacked(folder.path(), "", &mut all);
    (ran.status.success(), all)
}

fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

fn made(kinds: &[&str]) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/archives.py");
    let Ok(ran) =
        Command::new(super::accelerated::PYTHON).arg(source).arg(folder.path()).args(kinds).output()
    else {
        println!("NOT RUN archives_beside: python3 is not installed");
        return None;
    };
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Some(folder)
}

/// Times of gz are not the file's, and its name is not the program's.
fn alike(mine: &All, theirs: &All, path: &Path) -> Result<(), String> {
    if path.extension() == Some(OsStr::new("gz")) {
        let bytes = |all: &All| match all.values().next() {
            Some(Found::File(bytes, _, _)) if all.len() == 1 => Some(bytes.clone()),
            _ => None,
        };
        return if bytes(mine).is_some() && bytes(mine) == bytes(theirs) {
            Ok(())
        } else {
            Err("other bytes".into())
        };
    }
    for name in mine.keys().chain(theirs.keys()) {
        if mine.get(name) != theirs.get(name) {
            let brief = |all: &All| match all.get(name) {
                Some(Found::File(Ok(bytes), mode, time)) => {
                    format!("{} bytes, {mode:o}, {time}", bytes.len())
                }
                other => format!("{other:?}"),
            };
            return Err(format!("{name}: {} here, {} there", brief(mine), brief(theirs)));
        }
    }
    Ok(())
}

#[test]
fn healthy_and_odd_archives_are_what_their_programs_unpack() {
    let Some(folder) = made(&["healthy", "odd"]) else { return };
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for kind in ["healthy", "odd"] {
        for path in in_folder(&folder.path().join(kind)) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let archive = match Archive::open(&path) {
                Ok(archive) => archive,
                Err(error) => {
                    wrong.push(format!("{kind} {name}: {error}"));
                    continue;
                }
            };
            let mine = shown(&archive);
            for (program, line) in programs(&path) {
                compared += 1;
                if let Err(what) = alike(&mine, &by_program(line, &path).1, &path) {
                    wrong.push(format!("{kind} {name}, by {program}: {what}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 30, "{compared} were compared");
}

#[test]
fn broken_archives_show_nothing_that_was_not_put_in() {
    let Some(folder) = made(&["broken"]) else { return };
    let mut right = All::new();
    unpacked(&folder.path().join("tree"), "", &mut right);
    let bytes = |all: &All, name: &str| match all.get(name) {
        Some(Found::File(bytes, ..)) => Some(bytes.clone()),
        _ => None,
    };
    let whole = Some(bytes(&right, "d/large").unwrap());
    let (mut wrong, mut refused, mut errors, mut unharmed) = (Vec::new(), 0, 0, 0);
    let all = in_folder(&folder.path().join("broken"));
    for path in &all {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Ok(archive) = Archive::open(path) else {
            refused += 1;
            continue;
        };
        let (mut mine, single) = (shown(&archive), name.ends_with(".gz"));
        let said = mine.values().any(|found| matches!(found, Found::File(Err(_), ..)));
        errors += usize::from(said);
        let mut complete = !single || mine.len() == 1;
        if single {
            mine = mine.into_values().map(|found| ("d/large".to_owned(), found)).collect();
            complete = bytes(&mine, "d/large") == whole;
        }
        for (known, found) in &right {
            if let Found::File(Ok(good), ..) = found {
                let seen = bytes(&mine, known);
                // What the archive says of its kind may be what is broken.
                if seen.as_ref().is_some_and(|seen| seen.as_ref().is_ok_and(|seen| seen != good)) {
                    wrong.push(format!("{name}: other bytes in {known}"));
                }
                complete &= single || seen.is_some_and(|seen| seen.is_ok());
            }
        }
        unharmed += usize::from(complete);
        // All that read it say so: then it is not for us to be silent.
        if !complete && !said && archive.notes().is_empty() {
            let others: Vec<_> = programs(path);
            if !others.is_empty() && others.iter().all(|(_, line)| !by_program(line, path).0) {
                wrong.push(format!("{name}: something is missing, and nothing says so"));
            }
        }
    }
    println!("{} broken: {refused} refused, {errors} with errors, {unharmed} unharmed", all.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    assert!(refused > 50 && errors > 50, "{refused} were refused, {errors} gave errors");
}

#[test]
fn archives_of_other_kinds_are_refused_with_what_is_read() {
    let Some(folder) = made(&["refused"]) else { return };
    for path in in_folder(&folder.path().join("refused")) {
        let error = Archive::open(&path).expect_err(&path.display().to_string()).to_string();
        assert!(error.contains("tar") && error.contains("zip") && error.contains("gz"), "{path:?}: {error}");
    }
}
