//! Odd archives, as the programs that made them read them.

use super::{entry, file, header, open, pattern};
use crate::archive::Archive;
use crate::backend::{Backend, ROOT};
use crate::error::Errno;
use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

const FIELD_TIME: std::ops::Range<usize> = 136..148;

fn names(archive: &Archive) -> Vec<String> {
    let mut all = Vec::new();
    archive
        .list(ROOT, 0, &mut |entry| {
            all.push(entry.name.to_string_lossy().into_owned());
            true
        })
        .unwrap();
    all.split_off(2)
}

/// What GNU tar lists, with slashes taken off; nothing where it is not installed.
fn listed(tar: &[u8]) -> Option<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    std::fs::write(&path, tar).unwrap();
    let output = Command::new("tar").arg("-tf").arg(&path).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut all: Vec<String> = text.lines().map(|line| line.trim_end_matches('/').to_owned()).collect();
    all.sort();
    Some(all)
}

/// A tar with an entry of a kind that has no bytes, whose header says that it has, and a file behind it.
fn sized(kind: u8, name: &str) -> Vec<u8> {
    let mut tar = Vec::new();
    file(&mut tar, "first", b"1");
    let mut odd = header(name.as_bytes(), kind, 512);
    odd.set_link_name_literal("first").unwrap();
    odd.set_cksum();
    entry(&mut tar, &odd, b"");
    file(&mut tar, "inside", b"2");
    tar.extend([0; 1024]);
    tar
}

#[test]
fn folders_and_links_have_no_bytes_whatever_they_say() {
    for (kind, name) in [(b'1', "h"), (b'2', "s"), (b'5', "d"), (b'6', "p")] {
        let tar = sized(kind, name);
        let found = names(&open(tar.clone()).unwrap());
        let mut right = vec!["first".to_owned(), "inside".to_owned(), name.to_owned()];
        right.sort();
        assert_eq!(found, right, "kind {}", char::from(kind));
        if matches!(kind, b'1' | b'5') {
            assert_eq!(listed(&tar).unwrap_or(right.clone()), right, "as GNU tar");
        }
    }
    for kind in [b'3', b'4'] {
        assert_eq!(names(&open(sized(kind, "device")).unwrap()), ["first", "inside"]);
    }
}

#[test]
fn times_before_1970_are_what_they_were() {
    for seconds in [-1i64, -100, -2_000_000_000, -6_000_000_000] {
        let mut old = header(b"old", b'0', 0);
        let number: Vec<u8> = [[0xff; 4].as_slice(), &seconds.to_be_bytes()].concat();
        old.as_mut_bytes()[FIELD_TIME].copy_from_slice(&number);
        old.set_cksum();
        let mut tar = Vec::new();
        entry(&mut tar, &old, b"");
        let archive = open(tar).unwrap();
        let shown = archive.lookup(ROOT, OsStr::new("old")).unwrap();
        assert_eq!(shown.modified, UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()));
    }
    // Later than octal digits can say, and what is no time.
    let mut tar = Vec::new();
    let mut late = header(b"late", b'0', 0);
    late.set_mtime(20_000_000_000);
    late.set_cksum();
    entry(&mut tar, &late, b"");
    let mut wrong = header(b"wrong", b'0', 0);
    wrong.as_mut_bytes()[FIELD_TIME].copy_from_slice(b"\xff\0\0\0\0\0\0\0\0\0\0\x01");
    wrong.set_cksum();
    entry(&mut tar, &wrong, b"");
    let archive = open(tar).unwrap();
    let modified = |name: &str| archive.lookup(ROOT, OsStr::new(name)).unwrap().modified;
    assert_eq!(modified("late"), UNIX_EPOCH + Duration::from_secs(20_000_000_000));
    assert_eq!(modified("wrong"), UNIX_EPOCH);
}

fn record(key: &str, value: &str) -> Vec<u8> {
    let length = |digits: usize| key.len() + value.len() + 3 + digits;
    let mut digits = 1;
    while length(digits).to_string().len() != digits {
        digits += 1;
    }
    format!("{} {key}={value}\n", length(digits)).into_bytes()
}

#[test]
fn records_for_all_entries_are_shared_and_a_map_is_no_ones() {
    let mut tar = Vec::new();
    // More pieces than a sparse file may have, and a name that is longer than any, in front of many files.
    let pieces = record("GNU.sparse.offset", "0").repeat(45_000);
    for _ in 0..30 {
        entry(&mut tar, &header(b"pax", b'g', pieces.len() as u64), &pieces);
    }
    let long = record("linkpath", &"x".repeat(1_000_000));
    entry(&mut tar, &header(b"pax", b'g', long.len() as u64), &long);
    for number in 0..3000 {
        file(&mut tar, &format!("f{number}"), b"bytes");
    }
    let archive = open(tar).unwrap();
    assert_eq!(names(&archive).len(), 3000);
    let found = archive.lookup(ROOT, OsStr::new("f2999")).unwrap();
    let mut to = [0; 5];
    assert_eq!((archive.read(found.inode, 0, &mut to), &to), (Ok(5), b"bytes"));
}

/// A zip of one stored member.
fn stored(name: &[u8], extra: &[u8], data: &[u8], checksum: u32, flags: u16) -> Vec<u8> {
    let common = |extra_bytes: usize| {
        let mut all = vec![20, 0];
        all.extend(flags.to_le_bytes());
        all.extend([0, 0, 0, 0, 0x21, 0x50]);
        all.extend(checksum.to_le_bytes());
        all.extend((data.len() as u32).to_le_bytes().repeat(2));
        all.extend((name.len() as u16).to_le_bytes());
        all.extend((extra_bytes as u16).to_le_bytes());
        all
    };
    let mut all = b"PK\x03\x04".to_vec();
    all.extend(common(0));
    all.extend(name);
    all.extend(data);
    let directory = all.len() as u32;
    all.extend(b"PK\x01\x02\x14\x03");
    all.extend(common(extra.len()));
    all.extend([0; 2 + 2 + 2]);
    all.extend((0o100_644u32 << 16).to_le_bytes());
    all.extend([0; 4]);
    all.extend(name);
    all.extend(extra);
    let length = all.len() as u32 - directory;
    all.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    all.extend(length.to_le_bytes());
    all.extend(directory.to_le_bytes());
    all.extend([0, 0]);
    all
}

fn read(archive: &Archive, name: &str, offset: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
    let found = archive.lookup(ROOT, OsStr::new(name))?;
    let mut to = vec![0; bytes];
    archive.read(found.inode, offset, &mut to).map(|bytes| to[..bytes].to_vec())
}

#[test]
fn a_stored_member_has_its_checksum_or_is_not_read() {
    let data = pattern(700_000);
    let sum = crc32fast::hash(&data);
    let good = stored(b"f", b"", &data, sum, 0);
    let archive = open(good.clone()).unwrap();
    assert_eq!(read(&archive, "f", 300_000, 9).unwrap(), data[300_000..300_009]);
    assert_eq!(read(&archive, "f", 0, data.len()).unwrap(), data);
    // Any one bit, wherever it is read, and as often as it is.
    let begin = 30 + 1;
    for at in [0, 5, 699_999, 262_144] {
        let mut bytes = good.clone();
        bytes[begin + at] ^= 4;
        let archive = open(bytes).unwrap();
        for _ in 0..2 {
            assert_eq!(read(&archive, "f", 300_000, 9), Err(Errno::IO), "byte {at}");
        }
    }
}

#[test]
fn something_may_be_in_front_of_a_zip() {
    let data = pattern(3000);
    let zip = stored(b"f", b"", &data, crc32fast::hash(&data), 0);
    let program = [b"#!/bin/sh\nexec unzip \"$0\"\n".as_slice(), &pattern(5000), &zip].concat();
    assert_eq!(read(&open(program).unwrap(), "f", 0, 3000).unwrap(), data);
    assert!(open(pattern(5000)).unwrap_err().to_string().contains("it is no tar"));
}

#[test]
fn a_name_in_another_encoding_has_one_in_unicode_beside_it() {
    let (old, new) = (b"\x81.txt".as_slice(), "ü.txt");
    let field = |sum: u32, text: &[u8]| {
        let body = [[1].as_slice(), &sum.to_le_bytes(), text].concat();
        [0x7075u16.to_le_bytes().as_slice(), &(body.len() as u16).to_le_bytes(), &body].concat()
    };
    let found = |extra: &[u8]| names(&open(stored(old, extra, b"x", crc32fast::hash(b"x"), 0)).unwrap());
    assert_eq!(found(&field(crc32fast::hash(old), new.as_bytes())), [new]);
    let own = [String::from_utf8_lossy(old).into_owned()];
    assert_eq!(found(&field(crc32fast::hash(b"renamed"), new.as_bytes())), own, "of another name");
    assert_eq!(found(&field(crc32fast::hash(old), b"\xff\xfe")), own, "which is none");
    assert_eq!(found(b""), own);
}
