//! Servers that lie: no byte, length or name of theirs is believed that is not what was asked for.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use weir_userfs::backend::{Backend, ROOT};
use weir_userfs::error::Errno;
use weir_userfs::locate::{Life, Surroundings, open_in};
use weir_userfs::remote::s3::Settings;

const PIECE_BYTES: usize = 128 * 1024;

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// A server that ends with this.
struct Liar(Child);

impl Drop for Liar {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A program that says its port.
fn start(name: &str) -> (Liar, u16) {
    let mut command = Command::new(super::accelerated::PYTHON);
    let mut child = command
        .arg(program(name))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Liar(child), line.trim().parse().unwrap())
}

/// As `cp` reads a file: all of the size that it has when it is opened.
fn copy(of: &Arc<dyn Backend>, name: &str) -> Result<Vec<u8>, Errno> {
    let found = of.lookup(ROOT, OsStr::new(name))?;
    of.open(found.inode)?;
    let read = (|| {
        let size = of.attributes(found.inode)?.size as usize;
        let mut all = Vec::new();
        while all.len() < size {
            let mut piece = vec![0; PIECE_BYTES.min(size - all.len())];
            let bytes = of.read(found.inode, all.len() as u64, &mut piece)?;
            if bytes == 0 {
                break;
            }
            all.extend_from_slice(&piece[..bytes]);
        }
        Ok(all)
    })();
    of.release(found.inode);
    read
}

fn names(of: &Arc<dyn Backend>, folder: &str) -> Result<Vec<String>, Errno> {
    let inode = of.lookup(ROOT, OsStr::new(folder))?.inode;
    let mut all = Vec::new();
    of.list(inode, 0, &mut |entry| {
        all.push(entry.name.to_string_lossy().into_owned());
        true
    })?;
    Ok(all.split_off(2))
}

#[test]
fn a_store_that_lies_gives_errors() {
    let (_liar, port) = start("liar_s3.py");
    let settings = Settings { endpoint: Some(format!("http://127.0.0.1:{port}")), ..Settings::default() };
    let surroundings = Surroundings { s3: settings, ..Surroundings::from_environment() };
    let store = open_in("s3://bucket", &surroundings, Life::Alone).unwrap();
    let right: Vec<u8> = (0..65_536).flat_map(|i| format!("{i:015}\n").into_bytes()).collect();
    for name in ["honest", "busy"] {
        assert!(copy(&store, name).unwrap() == right, "{name}");
    }
    assert_eq!(copy(&store, "hollow"), Ok(Vec::new()));
    let lies = [
        "norange",
        "otherrange",
        "shorter",
        "cut",
        "closed",
        "longer",
        "nolength",
        "empty",
        "twice",
        "replaced",
        "error",
        "elsewhere",
        "endless",
    ];
    for name in lies {
        assert_eq!(copy(&store, name).map(|all| all.len()), Err(Errno::IO), "{name}");
    }
    // A key that is a file and a folder at once is the file, once; one that no file can have is none.
    let mut all = Vec::new();
    store
        .list(ROOT, 0, &mut |entry| {
            all.push((entry.name.to_string_lossy().into_owned(), entry.mode & libc::S_IFMT));
            true
        })
        .unwrap();
    let both: Vec<_> = all.iter().filter(|(name, _)| name == "both").collect();
    assert_eq!(both, [&("both".to_owned(), libc::S_IFREG)]);
    assert!(all.iter().all(|(name, _)| name.len() <= 255), "{all:?}");
    assert_eq!(copy(&store, "both").unwrap(), b"file");
    // Bytes that XML has none for.
    let odd = "bell\u{7} and\nline";
    assert!(all.iter().any(|(name, _)| name == odd), "{all:?}");
    assert_eq!(copy(&store, odd).unwrap(), b"odd");
    assert!(store.notes().join("; ").contains("1 names were left out"), "{:?}", store.notes());
    for folder in ["s3://bucket/endless", "s3://bucket/unsized"] {
        let listed = open_in(folder, &surroundings, Life::Alone).and_then(|of| {
            of.list(ROOT, 0, &mut |_| true).map_err(|error| {
                weir_userfs::Error::io("listing", std::io::Error::from_raw_os_error(error.0))
            })
        });
        assert!(listed.is_err(), "{folder}");
    }
}

#[test]
fn an_sftp_server_that_lies_gives_errors() {
    let ssh = format!("{} {}", super::accelerated::PYTHON, program("liar_sftp.py").display());
    let surroundings = Surroundings { ssh, ..Surroundings::from_environment() };
    let server = open_in("sftp:somebody@host:/srv", &surroundings, Life::Alone).unwrap();
    let right: Vec<u8> = (0..300_000u32).map(|k| (k * 7 + k / 251) as u8).collect();
    for name in ["honest", "halves"] {
        assert!(copy(&server, name).unwrap() == right, "{name}");
    }
    for name in ["toomuch", "empty", "early", "drops", "fine", "framed", "sizeless", "giant"] {
        assert_eq!(copy(&server, name).map(|all| all.len()), Err(Errno::IO), "{name}");
    }
    assert_eq!(names(&server, "odd").unwrap(), ["ok"]);
    assert_eq!(names(&server, "bare").unwrap(), ["honest"]);
    for folder in ["endless", "nothing"] {
        assert_eq!(names(&server, folder), Err(Errno(libc::EOVERFLOW)), "{folder}");
    }
    assert!(copy(&server, "honest").unwrap() == right);
}

#[test]
fn an_nfs_server_that_lies_gives_errors() {
    let (_liar, port) = start("liar_nfs.py");
    let text = format!("nfs://127.0.0.1/srv?nfsport={port}&mountport={port}");
    let server = open_in(&text, &Surroundings::from_environment(), Life::Alone).unwrap();
    let right: Vec<u8> = (0..300_000u32).map(|k| (k * 7 + k / 251) as u8).collect();
    for name in ["honest", "halves"] {
        assert!(copy(&server, name).unwrap() == right, "{name}");
    }
    for name in ["toomuch", "empty", "early", "drops", "counted", "giant"] {
        assert_eq!(copy(&server, name).map(|all| all.len()), Err(Errno::IO), "{name}");
    }
    let mut all = Vec::new();
    server
        .list(ROOT, 0, &mut |entry| {
            all.push(entry.name.to_string_lossy().into_owned());
            true
        })
        .unwrap();
    assert_eq!(all, [".", "..", "ok"]);
    // Listings that never end: the same place again, a circle, the beginning, nothing and no end, giant names, names for ever.
    for folder in ["same", "round", "back", "hollow", "names", "endless"] {
        assert_eq!(names(&server, folder), Err(Errno(libc::EOVERFLOW)), "{folder}");
    }
    assert_eq!(names(&server, "record"), Err(Errno::IO), "an answer of 2 GB");
    assert!(copy(&server, "honest").unwrap() == right);
}
