//! Archives that lie, and reading at places.

mod beside;

use super::inflate::{BLOCK_BYTES, Blocks, Framing, Inflated};
use super::source::Source;
use super::{Archive, tar as tars};
use crate::backend::{Backend, ROOT};
use crate::error::Errno;
use ::tar::{EntryType, Header};
use miniz_oxide::deflate::compress_to_vec;
use std::ffi::OsStr;
use std::sync::Arc;

/// Bytes that compress, but not to nothing.
fn pattern(bytes: usize) -> Vec<u8> {
    let mut state = 12_345u32;
    let mut all = Vec::with_capacity(bytes);
    while all.len() < bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let run = (state >> 24) as usize % 40;
        all.extend(std::iter::repeat_n((state >> 16) as u8, run));
        all.extend(state.to_le_bytes());
    }
    all.truncate(bytes);
    all
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut all = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    all.extend(compress_to_vec(data, 1));
    all.extend(crc32fast::hash(data).to_le_bytes());
    all.extend((data.len() as u32).to_le_bytes());
    all
}

fn stream(compressed: Vec<u8>, points_max: usize) -> Inflated {
    let end = compressed.len() as u64;
    let blocks = Arc::new(Blocks::default());
    Inflated::new(Arc::new(compressed), (0, end), Framing::Gzip, (blocks, 0), points_max)
}

fn header(name: &[u8], kind: u8, size: u64) -> Header {
    let mut header = Header::new_gnu();
    let place = &mut header.as_mut_bytes()[..100];
    let bytes = name.len().min(100);
    place[..bytes].copy_from_slice(&name[..bytes]);
    header.set_entry_type(EntryType::new(kind));
    header.set_size(size);
    header.set_mode(0o6755);
    header.set_uid(7);
    header.set_gid(8);
    header.set_mtime(1_000_000_000);
    header.set_cksum();
    header
}

fn entry(to: &mut Vec<u8>, header: &Header, body: &[u8]) {
    to.extend_from_slice(header.as_bytes());
    to.extend_from_slice(body);
    to.resize(to.len().next_multiple_of(512), 0);
}

fn file(to: &mut Vec<u8>, name: &str, body: &[u8]) {
    entry(to, &header(name.as_bytes(), b'0', body.len() as u64), body);
}

fn open(bytes: Vec<u8>) -> std::io::Result<Archive> {
    let length = bytes.len() as u64;
    Archive::read(Arc::new(bytes), length, b"some.gz", (1, 1))
}

/// Looks at everything that can be looked at.
fn walk(archive: &Archive) {
    for inode in ROOT..=archive.tree.files() {
        let shown = archive.attributes(inode).unwrap();
        let mut names = 0;
        let _ = archive.list(inode, 0, &mut |_| {
            names += 1;
            names < 1000
        });
        let mut to = [0; 700];
        for offset in [0, 511, shown.size.saturating_sub(300), shown.size, u64::MAX] {
            if let Ok(bytes) = archive.read(inode, offset, &mut to) {
                assert_eq!(bytes as u64, shown.size.saturating_sub(offset).min(700));
            }
            for hole in [false, true] {
                if let Ok(found) = archive.seek(inode, offset, hole) {
                    assert!(found >= offset && found <= shown.size);
                }
            }
        }
    }
}

#[test]
fn every_place_of_a_stream_reads_as_it_was() {
    let data = pattern(11 * 1024 * 1024 + 77);
    let (one, rest) = data.split_at(3_000_000);
    let compressed = [gzip(one), gzip(b""), gzip(rest), vec![0; 99]].concat();
    for points_max in [3, 100] {
        let stream = stream(compressed.clone(), points_max);
        assert_eq!(stream.measure().unwrap(), data.len() as u64);
        assert!(stream.points() <= points_max, "{} restart points", stream.points());
        assert!(stream.points() > 1);
        let mut state = 1usize;
        for _ in 0..60 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (offset, bytes) = ((state >> 20) % data.len(), (state >> 10) % (3 * BLOCK_BYTES));
            let mut to = vec![0; bytes];
            let read = stream.read_at(offset as u64, &mut to).unwrap();
            assert_eq!(read, bytes.min(data.len() - offset));
            assert!(to[..read] == data[offset..offset + read], "{bytes} bytes at {offset}");
        }
        assert_eq!(stream.read_at(data.len() as u64, &mut [0; 4]).unwrap(), 0);
    }
}

#[test]
fn threads_read_one_stream() {
    let data = pattern(4 * 1024 * 1024);
    let stream = stream(gzip(&data), 100);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (stream, data) = (&stream, &data);
            scope.spawn(move || {
                for step in 0..40 {
                    let offset = (step * 97 + thread * 13) * 1000 % data.len();
                    let mut to = vec![0; 200_000.min(data.len() - offset)];
                    assert_eq!(stream.read_at(offset as u64, &mut to).unwrap(), to.len());
                    assert!(to == data[offset..offset + to.len()]);
                }
            });
        }
    });
}

#[test]
fn damage_is_told_and_not_served() {
    let compressed = gzip(&pattern(300_000));
    let said = |bytes: Vec<u8>| open(bytes).map(|_| ()).unwrap_err().to_string();
    for end in [0, 3, 11, 5000, compressed.len() - 9, compressed.len() - 1] {
        let _ = said(compressed[..end].to_vec());
    }
    assert!(said(compressed[..5000].to_vec()).contains("ends in the middle"));
    let mut flipped = compressed.clone();
    let trailer = flipped.len() - 6;
    flipped[trailer] ^= 1;
    assert!(said(flipped).contains("checksum"), "the checksum is compared");
    let mut tar = Vec::new();
    file(&mut tar, "one", &[1; 600]);
    assert!(said(tar[..900].to_vec()).contains("ends in the middle"));
    let mut broken = tar.clone();
    file(&mut broken, "two", b"2");
    broken[1600] ^= 0xff;
    assert!(said(broken).contains("no tar header at byte 1536"));
    assert!(said(b"just some text, no archive".to_vec()).contains("no tar, tar.gz, zip or gz"));
    assert!(open(tar).is_ok(), "an end without the two blocks of zeros is one");
}

#[test]
fn a_hostile_tar_shows_only_what_is_harmless() {
    let mut tar = Vec::new();
    file(&mut tar, "../../etc/passwd", b"x");
    file(&mut tar, "/absolute", b"from the root");
    file(&mut tar, "twice", b"first");
    file(&mut tar, "./twice", b"second");
    let mut link = header(b"out", b'2', 0);
    link.set_link_name_literal("/etc").unwrap();
    link.set_cksum();
    entry(&mut tar, &link, b"");
    file(&mut tar, "out/passwd", b"through the link");
    entry(&mut tar, &header(b"disk", b'4', 0), b"");
    file(&mut tar, &"d/".repeat(40), b"");
    let mut hard = header(b"hard", b'1', 1234);
    hard.set_link_name_literal("twice").unwrap();
    hard.set_cksum();
    entry(&mut tar, &hard, b"");
    let mut lost = header(b"lost", b'1', 0);
    lost.set_link_name_literal("nowhere").unwrap();
    lost.set_cksum();
    entry(&mut tar, &lost, b"");
    let deep = "x/".repeat(1000);
    entry(&mut tar, &header(b"././@LongLink", b'L', deep.len() as u64 + 1), format!("{deep}\0").as_bytes());
    file(&mut tar, "deep", b"");
    let archive = open(tar).unwrap();
    walk(&archive);
    let read = |name: &str| {
        let found = archive.lookup(ROOT, OsStr::new(name)).map_err(|error| error.0)?;
        let mut to = [0; 64];
        archive
            .read(found.inode, 0, &mut to)
            .map(|bytes| String::from_utf8_lossy(&to[..bytes]).into_owned())
            .map_err(|error| error.0)
    };
    assert_eq!(read("absolute").unwrap(), "from the root");
    assert_eq!(read("twice").unwrap(), "second");
    assert_eq!(
        read("hard").unwrap(),
        "second",
        "a hard link has the bytes of the other name, whatever it says"
    );
    assert_eq!(read("etc").unwrap_err(), libc::ENOENT);
    let shown = archive.lookup(ROOT, OsStr::new("twice")).unwrap();
    assert_eq!((shown.mode, shown.links, shown.user), (libc::S_IFREG | 0o755, 2, 7), "no set-user-id");
    let out = archive.lookup(ROOT, OsStr::new("out")).unwrap();
    assert_eq!(archive.read_link(out.inode).unwrap(), b"/etc");
    let notes = archive.notes().join("; ");
    let mut here = ROOT;
    for _ in 0..1000 {
        here = archive.lookup(here, OsStr::new("x")).unwrap().inode;
    }
    for reason in ["'..'", "no directory", "device", "not there"] {
        assert!(notes.contains(reason), "{reason}: {notes}");
    }
}

#[test]
fn long_headers_are_refused_before_they_are_read() {
    let mut tar = Vec::new();
    let body = vec![b'x'; 2 << 20];
    entry(&mut tar, &header(b"././@LongLink", b'L', body.len() as u64), &body);
    assert!(open(tar).unwrap_err().to_string().contains("at most 1048576"));
    let mut tar = Vec::new();
    entry(&mut tar, &header(b"pax", b'x', 12), b"99999 path=a");
    assert!(open(tar).unwrap_err().to_string().contains("length is wrong"));
}

/// A zip of one deflated member whose directory says `size` and `checksum`.
fn zip(data: &[u8], size: u32, checksum: u32) -> Vec<u8> {
    let body = compress_to_vec(data, 6);
    let common = |all: &mut Vec<u8>| {
        all.extend([20, 0, 0, 0, 8, 0, 0, 0, 0x21, 0x50]);
        all.extend(checksum.to_le_bytes());
        all.extend((body.len() as u32).to_le_bytes());
        all.extend(size.to_le_bytes());
        all.extend([1, 0, 0, 0]);
    };
    let mut all = b"PK\x03\x04".to_vec();
    common(&mut all);
    all.push(b'f');
    all.extend(&body);
    let directory = all.len() as u32;
    all.extend(b"PK\x01\x02\x14\x03");
    common(&mut all);
    all.extend([0; 2 + 2 + 2]);
    all.extend((0o100_644u32 << 16).to_le_bytes());
    all.extend([0; 4]);
    all.push(b'f');
    let length = all.len() as u32 - directory;
    all.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    all.extend(length.to_le_bytes());
    all.extend(directory.to_le_bytes());
    all.extend([0, 0]);
    all
}

#[test]
fn a_zip_that_lies_about_sizes_or_sums_gives_errors() {
    let data = pattern(400_000);
    let sum = crc32fast::hash(&data);
    let read = |size: usize, sum: u32| {
        let archive = open(zip(&data, size as u32, sum)).unwrap();
        walk(&archive);
        let file = archive.lookup(ROOT, OsStr::new("f")).unwrap();
        assert_eq!(file.size, size as u64);
        let mut to = vec![0; size];
        archive.read(file.inode, 0, &mut to).map(|bytes| to[..bytes].to_vec())
    };
    assert_eq!(read(data.len(), sum).unwrap(), data);
    assert_eq!(read(data.len() + 1, sum).unwrap_err(), Errno::IO, "longer than it is");
    assert_eq!(read(data.len() - 1, sum).unwrap_err(), Errno::IO, "shorter than it is");
    assert_eq!(read(data.len(), sum ^ 1).unwrap_err(), Errno::IO, "a wrong checksum");
    let exact = pattern(2 * BLOCK_BYTES);
    let archive = open(zip(&exact, exact.len() as u32, 1)).unwrap();
    let file = archive.lookup(ROOT, OsStr::new("f")).unwrap();
    let last = archive.read(file.inode, BLOCK_BYTES as u64, &mut vec![0; BLOCK_BYTES]);
    assert_eq!(
        last.unwrap_err(),
        Errno::IO,
        "the checksum is compared although no byte is asked for behind the end"
    );
}

#[test]
fn any_bytes_as_zip_or_gzip_end_well() {
    let good = zip(&pattern(5000), 5000, crc32fast::hash(&pattern(5000)));
    bolero::check!().with_type::<(bool, Vec<(u16, u8)>)>().with_iterations(2000).for_each(
        |(kind, changes)| {
            let mut bytes = if *kind { good.clone() } else { gzip(&good) };
            let length = bytes.len();
            for (at, value) in changes.iter().take(8) {
                bytes[usize::from(*at) % length] = *value;
            }
            if let Ok(archive) = open(bytes) {
                walk(&archive);
            }
        },
    );
}

#[test]
fn any_bytes_as_tar_end_well() {
    type Piece = (u8, u16, Vec<u8>, Vec<u8>);
    bolero::check!().with_type::<Vec<Piece>>().with_iterations(2000).for_each(|pieces| {
        let mut bytes = Vec::new();
        for (kind, size, name, body) in pieces.iter().take(12) {
            const KINDS: &[u8] = b"0123456xgLKSDV7";
            let mut header = header(name, KINDS[usize::from(*kind) % KINDS.len()], u64::from(*size % 2048));
            // Fields that only some kinds have, sparse maps among them.
            for (place, byte) in header.as_mut_bytes()[157..].iter_mut().zip(body.iter().skip(3)) {
                *place = *byte;
            }
            header.set_cksum();
            entry(&mut bytes, &header, body);
            bytes.resize(bytes.len() + usize::from(*size % 2048).next_multiple_of(512), b'7');
        }
        if let Ok(archive) = open(bytes) {
            walk(&archive);
        }
    });
    bolero::check!().with_iterations(1000).for_each(|bytes: &[u8]| {
        let mut block = [0; 512];
        let length = bytes.len().min(512);
        block[..length].copy_from_slice(&bytes[..length]);
        let _ = tars::is_header(&block);
        let _ = open(bytes.to_vec()).map(|archive| walk(&archive));
    });
}
