//! Calls of NFSv3 and MOUNT, one connection a thread.

use super::asked::{Asked, Lost};
use super::change::committed;
use super::listing::{Item, virtualize};
use super::names::{Names, Number};
use super::server::{Answer, Member};
use super::{CONNECTIONS_MAX, Router};
use crate::wire::answer;
use crate::wire::call::arguments;
use crate::wire::make::Made;
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, Op, PAYLOAD_BYTES_MAX, Status, VERSION};
use crate::wire::rpc::{CallHead, Refusal, call_head, program, put_refusal, put_success, record_mark};
use crate::wire::xdr::{Reader, get_u32, put_opaque, set_u32};
use crate::wire::{mount, name};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Longest record, bytes.
const RECORD_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + (64 << 10);

/// Accepts connections until the router is stopped.
pub(super) fn accept(router: &Arc<Router>, listener: &TcpListener) {
    for stream in listener.incoming() {
        if router.stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        if router.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            router.connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let own = router.clone();
        let spawned = std::thread::Builder::new().name("filewall-routed".to_string()).spawn(move || {
            // However it ends, the client connects again and sends again what it has no answer to.
            if let Err(error) = serve(&own, stream) {
                tracing::debug!(%error, "a connection has ended");
            }
            own.connections.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            router.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What a connection remembers: the folder that it lists.
#[derive(Default)]
struct Listed {
    folder: Option<Number>,
    items: Vec<Item>,
}

fn serve(router: &Router, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut listed = Listed::default();
    let mut out = Vec::new();
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let (bytes, last) = record_mark(u32::from_be_bytes(mark));
        // FileWall itself sends each record in one piece.
        if bytes > RECORD_BYTES_MAX || !last {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let mut record = vec![0; 4 + bytes];
        record[..4].copy_from_slice(&mark);
        stream.read_exact(&mut record[4..])?;
        out.clear();
        router.answer(record, &mut listed, &mut out)?;
        stream.write_all(&out)?;
    }
}

impl Router {
    fn answer(&self, record: Vec<u8>, listed: &mut Listed, out: &mut Vec<u8>) -> std::io::Result<()> {
        let mut reader = Reader::whole(&record[4..]);
        let invalid = |_| std::io::Error::from(std::io::ErrorKind::InvalidData);
        let head = call_head(&mut reader).map_err(invalid)?;
        match (head.program, head.version) {
            (program::NFS, VERSION) => {
                let Some(op) = Op::from_number(head.procedure) else {
                    put_refusal(out, head.xid, Refusal::ProcedureUnavailable);
                    return Ok(());
                };
                let mut reader = Reader::whole(&record[4..]);
                let read = reader.take(head.arguments_at).and_then(|_| arguments(&mut reader, op));
                let Ok(found) = read else {
                    put_refusal(out, head.xid, Refusal::GarbageArguments);
                    return Ok(());
                };
                if let Some(misnamed) = found.misnamed {
                    answer::put(out, head.xid, op, misnamed.status());
                    return Ok(());
                }
                let handles = found.handles.iter().take(found.handle_count);
                let numbers: Option<Vec<Number>> =
                    handles.map(|span| Names::number(span.of(&record[4..]))).collect();
                let Some(numbers) = numbers else {
                    answer::put(out, head.xid, op, Status::BadHandle);
                    return Ok(());
                };
                let asked = Asked { record, arguments: found, numbers };
                match self.nfs(&head, &asked, listed, out) {
                    Ok(()) => Ok(()),
                    // Nothing has happened: the client asks again, and what it does with other servers goes on.
                    Err(Lost::Io(error)) if !op.changes() || unsent(&error) => {
                        out.clear();
                        answer::put(out, head.xid, op, Status::Jukebox);
                        Ok(())
                    }
                    Err(Lost::Io(error)) => Err(error),
                    Err(Lost::Status(status)) => {
                        out.clear();
                        answer::put(out, head.xid, op, Status::of(status));
                        Ok(())
                    }
                }
            }
            (program::MOUNT, mount::VERSION) => {
                self.mount(&head, &record[4..], out);
                Ok(())
            }
            _ => {
                put_refusal(out, head.xid, Refusal::ProgramUnavailable);
                Ok(())
            }
        }
    }

    fn mount(&self, head: &CallHead, record: &[u8], out: &mut Vec<u8>) {
        let mut reader = Reader::whole(record);
        let call = reader.take(head.arguments_at).and_then(|_| mount::call(&mut reader, head.procedure));
        let Ok(Some(mount::Call::Mount(path))) = call else {
            return mount::put_void(out, head.xid);
        };
        let path = path.of(record);
        let below = path.strip_prefix(self.first.path.as_bytes()).unwrap_or(path);
        let Ok(parts) = name::of_path(below) else {
            return mount::put_refused(out, head.xid, mount::DENIED);
        };
        let mut number = Self::root(0);
        for part in parts {
            match self.step(number, part) {
                Ok(next) => number = next,
                Err(Lost::Status(status)) => return mount::put_refused(out, head.xid, status),
                Err(Lost::Io(_)) => return mount::put_refused(out, head.xid, mount::FAULT),
            }
        }
        mount::put_mounted(out, head.xid, Names::handle(number).as_bytes());
    }

    /// The number of a name that is there.
    fn step(&self, folder: Number, name: &[u8]) -> Result<Number, Lost> {
        if let Some(group) = self.redirects.get(&(folder, Box::from(name))) {
            return Ok(Self::root(*group));
        }
        let group = self.group_of(folder).ok_or(Status::Stale)?;
        let look = |member: &Member| {
            let answer = member.look(&self.resolve(member, folder)?, Some(name))?;
            if answer.results.status == 0 { Ok(()) } else { Err(Lost::Status(answer.results.status)) }
        };
        self.on_any(&self.groups[group], folder, look)?;
        Ok(self.names.of(folder, name)?)
    }

    /// Attributes of an object, with our numbers.
    pub(super) fn attributes(&self, group: usize, number: Number) -> Result<[u8; ATTRIBUTES_BYTES], Lost> {
        let look = |member: &Member| {
            let answer = member.look(&self.resolve(member, number)?, None)?;
            let found = answer.attributes().and_then(|bytes| <[u8; ATTRIBUTES_BYTES]>::try_from(bytes).ok());
            found.ok_or(Lost::Status(answer.results.status))
        };
        let (_, mut attributes) = self.on_any(&self.groups[group], number, look)?;
        virtualize(&mut attributes, number, group);
        Ok(attributes)
    }

    /// The folder above one.
    fn above(&self, number: Number) -> Number {
        if self.names.is_root(number) {
            let mut redirects = self.redirects.iter();
            let found = redirects.find(|(_, group)| Self::root(**group) == number);
            return found.map_or(number, |((folder, _), _)| *folder);
        }
        self.names.at(number).map_or(number, |(folder, _)| folder)
    }

    fn nfs(
        &self,
        head: &CallHead,
        asked: &Asked,
        listed: &mut Listed,
        out: &mut Vec<u8>,
    ) -> Result<(), Lost> {
        let op = asked.op();
        let Some(first) = asked.numbers.first().copied() else {
            put_success(out, head.xid, 0);
            return Ok(());
        };
        let group = self.group_of(first).ok_or(Status::Stale)?;
        if let Some(second) = asked.numbers.get(1)
            && self.group_of(*second) != Some(group)
        {
            return Err(Status::Xdev.into());
        }
        let redirected = |folder: usize, name: usize| {
            self.redirects.get(&(asked.numbers[folder], Box::from(asked.name(name)))).copied()
        };
        let mut put = |results: &[u8]| {
            put_success(out, head.xid, results.len());
            out.extend_from_slice(results);
        };
        match op {
            Op::Lookup => {
                let to = match (asked.name(0), redirected(0, 0)) {
                    (_, Some(group)) => Self::root(group),
                    (b".", _) => first,
                    (b"..", _) => self.above(first),
                    _ => return self.forward(head, group, asked, out),
                };
                let at = self.group_of(to).ok_or(Status::Stale)?;
                let attributes = self.attributes(at, to)?;
                let handle = Names::handle(to);
                put(&Made::ok().opaque(handle.as_bytes()).after(Some(&attributes)).after(None).0);
                Ok(())
            }
            Op::Readdir | Op::Readdirplus => {
                let at = asked.arguments.handles[0].padded_end() + 4;
                let word = |at: usize| get_u32(&asked.record, at);
                let cookie = u64::from(word(at)) << 32 | u64::from(word(at + 4));
                if cookie == 0 || listed.folder != Some(first) {
                    *listed = Listed { folder: Some(first), items: self.listing(group, first)? };
                }
                let limit = (word(asked.record.len() - 4) as usize).clamp(1024, 256 << 10);
                let plus = op == Op::Readdirplus;
                put(&self.list((first, self.above(first)), &listed.items, cookie, plus, limit - 128));
                Ok(())
            }
            Op::Remove | Op::Rmdir | Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod
                if redirected(0, 0).is_some() =>
            {
                Err(Status::Acces.into())
            }
            Op::Rename if redirected(0, 0).is_some() || redirected(1, 1).is_some() => {
                Err(Status::Acces.into())
            }
            _ => self.forward(head, group, asked, out),
        }
    }

    /// Calls that servers answer.
    fn forward(&self, head: &CallHead, group: usize, asked: &Asked, out: &mut Vec<u8>) -> Result<(), Lost> {
        if asked.op().changes() {
            return self.change(&self.groups[group], asked, |answers| {
                let object = self.note(asked, answers)?;
                let least = answers.iter().map(|(_, answer)| committed(answer)).min().unwrap_or(0);
                put_answer(head.xid, group, asked, &mut answers[0].1, object, out);
                let end = out.len();
                match asked.op() {
                    // As durable as where it is least so, and lost where the verifier is another one.
                    Op::Write if answers[0].1.results.status == 0 => {
                        set_u32(out, end - 12, least);
                        out[end - 8..].copy_from_slice(&self.verifier().to_be_bytes());
                    }
                    Op::Commit if answers[0].1.results.status == 0 => {
                        out[end - 8..].copy_from_slice(&self.verifier().to_be_bytes());
                    }
                    _ => {}
                }
                Ok(())
            });
        }
        if asked.op() == Op::Lookup {
            return self.look_up(head, group, asked, out);
        }
        let (_, mut answer) = self.look(&self.groups[group], asked)?;
        put_answer(head.xid, group, asked, &mut answer, asked.numbers[0], out);
        Ok(())
    }

    /// A name, with what it leads to: where changes of it go on, they wait for the second look.
    fn look_up(&self, head: &CallHead, group: usize, asked: &Asked, out: &mut Vec<u8>) -> Result<(), Lost> {
        let (folder, name) = (asked.numbers[0], asked.name(0));
        let mut locks = Vec::new();
        loop {
            let since = self.name_changes.now();
            let (member, mut answer) = self.look(&self.groups[group], asked)?;
            let found = answer.handle().and_then(Handle::new).filter(|_| answer.results.status == 0);
            let Some(found) = found else {
                put_answer(head.xid, group, asked, &mut answer, folder, out);
                return Ok(());
            };
            let number = self.names.of(folder, name)?;
            let quiet = || self.name_changes.quiet(folder, name, since);
            if self.names.learn_at(number, (folder, name), member, &found, quiet) || !locks.is_empty() {
                put_answer(head.xid, group, asked, &mut answer, number, out);
                return Ok(());
            }
            locks = self.locks.lock(&[folder], &[]);
        }
    }

    /// Notes which numbers objects have after a call; returns that of the object that it was about.
    fn note(&self, asked: &Asked, answers: &[(usize, Answer)]) -> Result<Number, Lost> {
        let first = asked.numbers[0];
        if answers[0].1.results.status != 0 {
            return Ok(first);
        }
        Ok(match asked.op() {
            Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod => {
                let number = self.names.of(first, asked.name(0))?;
                for (member, answer) in answers {
                    match answer.handle() {
                        Some(handle) => self.names.learn(number, *member, handle),
                        None => self.names.forget(Some(number), *member),
                    }
                }
                number
            }
            Op::Remove | Op::Rmdir => {
                self.names.moved((first, asked.name(0)), None)?;
                first
            }
            Op::Rename => {
                self.names.moved((first, asked.name(0)), Some((asked.numbers[1], asked.name(1))))?;
                first
            }
            _ => first,
        })
    }
}

/// True for an error with which a connection does not begin.
fn unsent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
    )
}

/// Appends a server's answer, with our handle and our numbers of files.
fn put_answer(xid: u32, group: usize, asked: &Asked, answer: &mut Answer, object: Number, out: &mut Vec<u8>) {
    let mut record = std::mem::take(&mut answer.record);
    let found = &answer.results;
    let mut folders = asked.numbers.iter();
    if asked.op() == Op::Link {
        folders.next();
    }
    for at in &found.attributes {
        let number = match found.object == Some(*at) {
            true => object,
            false => folders.next().copied().unwrap_or(asked.numbers[0]),
        };
        virtualize(&mut record[*at..*at + ATTRIBUTES_BYTES], number, group);
    }
    set_u32(&mut record, 0, xid);
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    match found.handle {
        Some(span) => {
            out.extend_from_slice(&record[..span.start - 4]);
            put_opaque(out, Names::handle(object).as_bytes());
            out.extend_from_slice(&record[span.padded_end()..]);
        }
        None => out.extend_from_slice(&record),
    }
    let mark = crate::wire::rpc::mark_of(out.len() - begin - 4);
    out[begin..begin + 4].copy_from_slice(&mark.to_be_bytes());
}
