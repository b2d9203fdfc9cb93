//! What people do with files: a mail server's files (Postmark-like), and the life of a source tree.

use super::Failure;
use super::client::Connection;
use super::place::CALLER;
use weir_filewall::wire::build::Record;
use weir_filewall::wire::nfs3::{Handle, Op};

/// Files of a mail server, and what happens to them.
const MAILS: usize = 60;
const TRANSACTIONS: usize = 240;
/// Folders of a source tree, and files in each.
const FOLDERS: usize = 12;
const SOURCES: usize = 12;

/// Numbers that are the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

fn named(op: Op, directory: &Handle, name: &str) -> Vec<u8> {
    Record::nfs3(0, op, &CALLER).opaque(directory.as_bytes()).opaque(name.as_bytes()).finish()
}

fn of(op: Op, file: &Handle) -> Vec<u8> {
    let record = Record::nfs3(0, op, &CALLER).opaque(file.as_bytes());
    match op {
        Op::Access => record.u32(63).finish(),
        Op::Commit => record.u64(0).u32(0).finish(),
        Op::Readdirplus => record.u64(0).u64(0).u32(4096).u32(32_768).finish(),
        _ => record.finish(),
    }
}

/// A READ.
pub fn read(file: &Handle, bytes: u32) -> Vec<u8> {
    Record::nfs3(0, Op::Read, &CALLER).opaque(file.as_bytes()).u64(0).u32(bytes).finish()
}

/// A WRITE that need not be durable.
pub fn write(file: &Handle, offset: u64, bytes: u32) -> Vec<u8> {
    let record = Record::nfs3(0, Op::Write, &CALLER).opaque(file.as_bytes()).u64(offset).u32(bytes).u32(0);
    record.opaque(&vec![0x5a; bytes as usize]).finish()
}

/// Small files are made, read, extended and removed.
pub fn postmark(connection: &mut Connection, root: &Handle) -> Result<(), Failure> {
    let mut draw = Draw(7);
    connection.part = "";
    let folder = connection.handle(Op::Mkdir, root, "mail")?;
    let mut mails: Vec<(String, u32)> = Vec::new();
    let make = |connection: &mut Connection, draw: &mut Draw, number: usize| {
        let (name, bytes) = (format!("m{number}"), 500 + draw.below(9_500) as u32);
        let file = connection.handle(Op::Create, &folder, &name)?;
        connection.ask(&mut write(&file, 0, bytes))?;
        connection.ask(&mut of(Op::Commit, &file))?;
        Ok::<_, Failure>((name, bytes))
    };
    for number in 0..MAILS {
        mails.push(make(connection, &mut draw, number)?);
    }
    for number in 0..TRANSACTIONS {
        let chosen = draw.below(mails.len());
        let file = connection.handle(Op::Lookup, &folder, &mails[chosen].0)?;
        if draw.below(2) == 0 {
            connection.ask(&mut read(&file, mails[chosen].1))?;
        } else {
            connection.ask(&mut write(&file, u64::from(mails[chosen].1), 2000))?;
        }
        if draw.below(2) == 0 {
            mails.push(make(connection, &mut draw, MAILS + number)?);
        } else {
            let (name, _) = mails.swap_remove(chosen);
            connection.ask(&mut named(Op::Remove, &folder, &name))?;
        }
    }
    for (name, _) in mails {
        connection.ask(&mut named(Op::Remove, &folder, &name))?;
    }
    connection.ask(&mut named(Op::Rmdir, root, "mail"))?;
    Ok(())
}

/// A source tree is unpacked, walked over, built (each source read, an object written) and removed.
pub fn tree(connection: &mut Connection, root: &Handle) -> Result<(), Failure> {
    let mut draw = Draw(11);
    connection.part = "unpack";
    let top = connection.handle(Op::Mkdir, root, "tree")?;
    let mut folders = Vec::new();
    for number in 0..FOLDERS {
        let folder = connection.handle(Op::Mkdir, &top, &format!("d{number}"))?;
        let mut files = Vec::new();
        for number in 0..SOURCES {
            let bytes = 300 + draw.below(20_000) as u32;
            let file = connection.handle(Op::Create, &folder, &format!("s{number}.c"))?;
            connection.ask(&mut write(&file, 0, bytes))?;
            connection.ask(&mut of(Op::Commit, &file))?;
            files.push((file, bytes));
        }
        folders.push((folder, files));
    }
    connection.part = "walk";
    for (folder, files) in &folders {
        connection.ask(&mut of(Op::Readdirplus, folder))?;
        for (file, _) in files {
            connection.ask(&mut of(Op::Getattr, file))?;
        }
    }
    connection.part = "build";
    for (folder, files) in &folders {
        for (number, (_, bytes)) in files.iter().enumerate() {
            let file = connection.handle(Op::Lookup, folder, &format!("s{number}.c"))?;
            connection.ask(&mut of(Op::Access, &file))?;
            connection.ask(&mut read(&file, *bytes))?;
            let object = connection.handle(Op::Create, folder, &format!("s{number}.o"))?;
            connection.ask(&mut write(&object, 0, bytes * 2))?;
            connection.ask(&mut of(Op::Commit, &object))?;
        }
    }
    connection.part = "remove";
    for (number, (folder, files)) in folders.iter().enumerate() {
        for number in 0..files.len() {
            connection.ask(&mut named(Op::Remove, folder, &format!("s{number}.c")))?;
            connection.ask(&mut named(Op::Remove, folder, &format!("s{number}.o")))?;
        }
        connection.ask(&mut named(Op::Rmdir, &top, &format!("d{number}")))?;
    }
    connection.ask(&mut named(Op::Rmdir, root, "tree"))?;
    Ok(())
}

/// Shares of a mix like that of SPECsfs 97 for NFSv3, of the operations that do not change names, in percent.
pub fn mix(file: &Handle, directory: &Handle) -> Vec<Vec<u8>> {
    let mut calls = Vec::new();
    let mut add = |count: usize, call: Vec<u8>| calls.extend(std::iter::repeat_n(call, count));
    add(31, named(Op::Lookup, directory, "file"));
    add(21, read(file, 8192));
    add(10, write(file, 0, 8192));
    add(13, of(Op::Getattr, file));
    add(8, of(Op::Access, file));
    add(4, of(Op::Commit, file));
    add(1, of(Op::Fsstat, directory));
    add(9, of(Op::Readdirplus, directory));
    // In an order that has nothing to do with the shares.
    let mut draw = Draw(3);
    for at in (1..calls.len()).rev() {
        calls.swap(at, draw.below(at + 1));
    }
    calls
}

/// The calls whose latency and throughput are measured one by one.
pub fn single(file: &Handle, directory: &Handle) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("getattr", of(Op::Getattr, file)),
        ("lookup", named(Op::Lookup, directory, "file")),
        ("read_4k", read(file, 4096)),
        ("read_64k", read(file, 65_536)),
        ("write_4k", write(file, 0, 4096)),
        ("write_64k", write(file, 0, 65_536)),
        ("readdirplus", of(Op::Readdirplus, directory)),
    ]
}
