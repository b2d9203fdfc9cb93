//! Operations of a COMPOUND on objects that a policy makes up: the policy answers in the words of NFSv3, and here it is said
//! in those of NFSv4.
//!
//! Invariants
//! - What stands before them is carried out first: a COMPOUND whose SEQUENCE fails changes nothing here.
//! - The sequence numbers that an OPEN or CLOSE of NFSv4.0 uses up are used up at the server too.
//! - Reading and writing needs a state that is open here, or none (as NFSv4 has it), and is judged each time besides.

use super::asked::Question4;
use super::states::{State, put_state};
use super::walk::{Given, Stop, Subject, Walk};
use super::{Cursor, Sent};
use crate::message::Reply;
use crate::metrics::Totals;
use crate::policy::OpenHandle;
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, Op, access, ftype};
use crate::wire::nfs4::arguments::{Argument, OpenAt};
use crate::wire::nfs4::made::{Object4, put_set, result};
use crate::wire::nfs4::{Op4, status};
use crate::wire::reply::{Results, results};
use crate::wire::rpc::put_success;
use crate::wire::xdr::{Reader, get_u32, put_opaque, put_u32, put_u64, set_u32};

/// NFS4ERR_TOOSMALL.
const TOO_SMALL: u32 = 10005;
/// NFS4ERR_ATTRNOTSUPP.
const NO_ATTRIBUTE: u32 = 10032;
/// Where results of a success begin in a record with its mark.
const RESULTS_AT: usize = 28;
/// Where what follows the attributes stands in results of NFSv3: behind status, boolean and attributes; and behind a `wcc_data`.
const BEHIND: usize = 4 + 4 + ATTRIBUTES_BYTES;
const BEHIND_CHANGE: usize = 4 + BEHIND;

impl Walk<'_, '_> {
    /// An operation on such an object.
    pub(super) fn on_made_up(&mut self, argument: &Argument) -> Result<(), Stop> {
        if argument.op == Op4::GetFh {
            let mut out = result(argument.op, status::OK);
            let handle = self.course.current.handle.ok_or(Stop::Cut(status::NOFILEHANDLE))?;
            let open = OpenHandle { handle, above: false };
            let sealed = self.way.chain.seal_handle(open, self.way.caller.address);
            put_opaque(&mut out, sealed.as_bytes());
            self.push(argument, Sent::Made(out));
            return Ok(());
        }
        let free = argument.rule.is_none()
            && !matches!(
                argument.op,
                Op4::Open
                    | Op4::Close
                    | Op4::Lock
                    | Op4::LockTest
                    | Op4::Unlock
                    | Op4::OpenConfirm
                    | Op4::OpenDowngrade
                    | Op4::DelegReturn
            );
        if free {
            // It is about no object: of clients, sessions and states.
            if self.course.count > 0 {
                return Err(Stop::Cut(status::RESOURCE));
            }
            self.other(argument)?;
            self.push(argument, Sent::Same);
            return Ok(());
        }
        self.flushed()?;
        if matches!(argument.op, Op4::Read | Op4::Write | Op4::SetAttr) {
            self.check_state(argument)?;
        }
        let made = match argument.op {
            Op4::Open => self.open_made_up(argument)?,
            Op4::Close => self.close(argument)?,
            Op4::Lookup => {
                let given = self.ask(argument, self.subject(argument, Op::Lookup))?;
                return self.enter_made_up(argument, &given);
            }
            Op4::Verify | Op4::NVerify => return Err(Stop::Cut(NO_ATTRIBUTE)),
            Op4::ReadLink => return Err(Stop::Cut(status::INVAL)),
            _ => {
                let rule = argument.rule.ok_or(Stop::Cut(status::NOTSUPP))?;
                let given = self.ask(argument, self.subject(argument, rule))?;
                match &given.results {
                    Some(results) => self.made(argument, &given, results)?,
                    None if argument.op == Op4::ReadDir => self.mirror(argument, &given)?,
                    None => return Err(Stop::Cut(status::ACCES)),
                }
            }
        };
        self.push(argument, Sent::Made(made));
        Ok(())
    }

    fn check_state(&self, argument: &Argument) -> Result<(), Stop> {
        let state = argument.state.map_or(State::Special, |span| State::of(span.of(self.record)));
        match state {
            State::Special => Ok(()),
            State::Open { number, .. } if self.env.shared.four.owner(number).is_some() => Ok(()),
            _ => Err(Stop::Cut(status::BAD_STATEID)),
        }
    }

    /// Results of NFSv3 as the policies that have seen the operation let them through; handles are the client's then.
    fn shown(&self, given: &Given, made: &[u8], learns: bool) -> Result<Vec<u8>, Stop> {
        let (asked, handled) = &given.asked;
        let mut record = Vec::with_capacity(RESULTS_AT + made.len());
        put_success(&mut record, 0, made.len());
        record.extend_from_slice(made);
        let record = &mut record[4..];
        let bytes = record.len();
        let mut found = Results { long_handles: true, ..Results::default() };
        let mut reader = Reader::whole(record);
        let read = reader.take(RESULTS_AT - 4).and_then(|_| results(&mut reader, asked.op, &mut found));
        if read.is_err() {
            tracing::error!(op = %asked.op, "a policy has made results that are none");
            return Err(Stop::Cut(status::SERVERFAULT));
        }
        let mut handles = crate::message::EntryHandles::default();
        let mut reply = Reply::new(record, bytes, &mut found, &mut handles);
        if learns {
            self.way.chain.reply(asked, &mut reply, *handled, 0);
        } else {
            self.way.chain.show(asked, &mut reply, *handled, 0);
        }
        let mut out = Vec::with_capacity(bytes);
        reply.put(0, RESULTS_AT - 4, usize::MAX, &mut out);
        let head_end = reply.head_end();
        out.extend_from_slice(&record[head_end..]);
        Ok(out.split_off(RESULTS_AT.min(out.len())))
    }

    fn fsid(&self) -> (u64, u64) {
        self.env.shared.four.root().map_or((0, 0), |root| root.fsid)
    }

    /// A result of NFSv4 in place of one of NFSv3 that went well.
    pub(super) fn made(&self, argument: &Argument, given: &Given, results: &[u8]) -> Result<Vec<u8>, Stop> {
        let bytes = self.shown(given, results, false)?;
        self.said(argument, &bytes)
    }

    fn said(&self, argument: &Argument, bytes: &[u8]) -> Result<Vec<u8>, Stop> {
        let fault = || Stop::Cut(status::SERVERFAULT);
        let mut out = result(argument.op, status::OK);
        match argument.op {
            Op4::GetAttr => {
                let attributes = bytes.get(4..4 + ATTRIBUTES_BYTES).ok_or_else(fault)?;
                let attributes = attributes.try_into().map_err(|_| fault())?;
                let handle = self.course.current.handle.unwrap_or(Handle::EMPTY);
                let open = OpenHandle { handle, above: false };
                let sealed = self.way.chain.seal_handle(open, self.way.caller.address);
                let object =
                    Object4 { attributes: Some(attributes), handle: sealed.as_bytes(), fsid: self.fsid() };
                object.put(argument.wanted.unwrap_or_default().of(self.record), &mut out);
            }
            Op4::Access => {
                let asked = argument.access_at.map_or(0, |at| get_u32(self.record, at));
                let granted =
                    bytes.get(BEHIND..BEHIND + 4).map(|bytes| get_u32(bytes, 0)).ok_or_else(fault)?;
                [asked, granted].into_iter().for_each(|word| put_u32(&mut out, word));
            }
            Op4::Read => {
                let found = parsed(Op::Read, bytes)?;
                let data = found.payload.ok_or_else(fault)?.of(bytes);
                put_u32(&mut out, get_u32(bytes, BEHIND + 4));
                put_opaque(&mut out, data);
            }
            // Bytes, how durable they are, verifier.
            Op4::Write => {
                out.extend_from_slice(bytes.get(BEHIND_CHANGE..BEHIND_CHANGE + 16).ok_or_else(fault)?)
            }
            Op4::Commit => {
                out.extend_from_slice(bytes.get(BEHIND_CHANGE..BEHIND_CHANGE + 8).ok_or_else(fault)?)
            }
            Op4::SetAttr => put_set(&mut out, argument.set.unwrap_or_default().of(self.record)),
            Op4::ReadDir => self.listed(argument, bytes, &mut out)?,
            // AUTH_SYS.
            Op4::SecInfo => [1, 1].into_iter().for_each(|word| put_u32(&mut out, word)),
            _ => return Err(Stop::Cut(status::NOTSUPP)),
        }
        Ok(out)
    }

    /// Entries of READDIRPLUS as those of READDIR.
    fn listed(&self, argument: &Argument, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        let found = parsed(Op::Readdirplus, bytes)?;
        let wanted = argument.wanted.unwrap_or_default().of(self.record);
        let begin = out.len();
        put_u64(out, 0);
        let mut shown = 0;
        let mut ends = found.entries_end_at.is_some_and(|at| get_u32(bytes, at + 4) != 0);
        for entry in &found.entries {
            let name = entry.name.of(bytes);
            if matches!(name, b"." | b"..") {
                continue;
            }
            let before = out.len();
            put_u32(out, 1);
            let cookie = entry.name.padded_end();
            out.extend_from_slice(&bytes[cookie..cookie + 8]);
            put_opaque(out, name);
            let attributes =
                entry.attributes.and_then(|at| bytes.get(at..at + ATTRIBUTES_BYTES)?.try_into().ok());
            let handle = entry.handle.map_or(&[][..], |span| span.of(bytes));
            Object4 { attributes, handle, fsid: self.fsid() }.put(wanted, out);
            // Behind the entries two booleans must fit.
            if out.len() - begin + 8 > argument.count as usize {
                out.truncate(before);
                ends = false;
                if shown == 0 {
                    return Err(Stop::Cut(TOO_SMALL));
                }
                break;
            }
            shown += 1;
        }
        put_u32(out, 0);
        put_u32(out, u32::from(ends));
        Ok(())
    }

    /// A folder of the mirror: the real one is listed, and the policy changes its entries. Who may not list it sees no mirror.
    fn mirror(&mut self, argument: &Argument, given: &Given) -> Result<Vec<u8>, Stop> {
        let handle = given.asked.0.handle;
        let real = Subject::of(Op::Readdirplus, Some(handle), self.course.current.position.place());
        self.ask(argument, real)?;
        let Some((status, listed)) = &self.course.listed else {
            let list = Question4::List { handle, cookie: argument.cookie, bytes: argument.count };
            return Err(Stop::Ask(Box::new(list)));
        };
        if *status != status::OK {
            return Err(Stop::Cut(*status));
        }
        let bytes = self.shown(given, listed, true)?;
        self.said(argument, &bytes)
    }

    /// Uses up the sequence number of an owner at the server (NFSv4.0).
    fn use_up_first(&self, argument: &Argument, owner: &[u8]) -> Result<(), Stop> {
        if self.way.compound.minor > 0 {
            return Ok(());
        }
        match self.course.used_up {
            Some(status::OK) => Ok(()),
            Some(status) => Err(Stop::Cut(status)),
            None => {
                let root = self.env.shared.four.root().ok_or(Stop::Cut(status::STALE))?;
                let seqid = get_u32(self.record, argument.start + 4);
                let handle = root.handle;
                Err(Stop::Ask(Box::new(Question4::UseUp { handle, owner: owner.to_vec(), seqid })))
            }
        }
    }

    fn open_made_up(&mut self, argument: &Argument) -> Result<Vec<u8>, Stop> {
        let open = argument.open.ok_or(Stop::Cut(status::BADXDR))?;
        let owner = open.owner.of(self.record).to_vec();
        self.use_up_first(argument, &owner)?;
        match (open.claim, argument.name_count) {
            (0, 1) => self.open_name(argument, &open)?,
            (1 | 4, 0) => {}
            _ => return Err(Stop::Cut(status::NOTSUPP)),
        }
        let handle = self.course.current.handle.ok_or(Stop::Cut(status::NOFILEHANDLE))?;
        self.check_access(argument, &open, handle)?;
        let (number, full) = self.env.shared.four.open(handle, &owner);
        if full {
            Totals::count(&self.env.shared.totals.control_opens_forgotten_total);
        }
        let mut out = result(argument.op, status::OK);
        put_state(&mut out, 1, number);
        put_u32(&mut out, 1);
        [1, 1].into_iter().for_each(|change| put_u64(&mut out, change));
        put_u32(&mut out, 0);
        let set = if open.how_at.is_some() { argument.set } else { None };
        put_set(&mut out, set.unwrap_or_default().of(self.record));
        put_u32(&mut out, 0);
        Ok(out)
    }

    /// The name of an OPEN in a folder that is made up: only what is there can be opened.
    fn open_name(&mut self, argument: &Argument, open: &OpenAt) -> Result<(), Stop> {
        let given = match self.ask(argument, self.subject(argument, Op::Lookup)) {
            Err(Stop::Cut(status::NOENT)) if open.how_at.is_some() => return Err(Stop::Cut(status::ACCES)),
            other => other?,
        };
        if open.how_at.is_some() && open.how > 0 {
            return Err(Stop::Cut(status::EXIST));
        }
        let bytes = given.results.as_deref().unwrap_or_default();
        let found = parsed(Op::Lookup, bytes)?;
        let handle = found.handle.and_then(|span| Handle::new(span.of(bytes)));
        let handle = handle.ok_or(Stop::Cut(status::SERVERFAULT))?;
        if found.object.is_none_or(|at| get_u32(bytes, at) == ftype::DIRECTORY) {
            return Err(Stop::Cut(status::ISDIR));
        }
        let below = self.below(argument);
        self.course.current = Cursor { handle: Some(handle), made_up: true, ..below };
        Ok(())
    }

    /// Whether the file may be used as an OPEN wants, which the policy says as it says it to ACCESS.
    fn check_access(&mut self, argument: &Argument, open: &OpenAt, handle: Handle) -> Result<(), Stop> {
        let subject = Subject::of(Op::Access, Some(handle), self.course.current.position.place());
        // The bits of ACCESS stand where those of the OPEN are, as long as the question takes.
        let asks = Argument { access_at: Some(open.access_at), ..*argument };
        set_u32(self.record, open.access_at, access::READ | access::MODIFY | access::EXTEND);
        let given = self.ask(&asks, subject);
        set_u32(self.record, open.access_at, open.access);
        let given = given?;
        let bytes = given.results.as_deref().unwrap_or_default();
        let granted = bytes.get(BEHIND..BEHIND + 4).map_or(0, |bytes| get_u32(bytes, 0));
        let reads = open.access & 1 == 0 || granted & access::READ != 0;
        let writes = open.access & 2 == 0 || granted & access::MODIFY != 0;
        if reads && writes { Ok(()) } else { Err(Stop::Cut(status::ACCES)) }
    }

    fn close(&mut self, argument: &Argument) -> Result<Vec<u8>, Stop> {
        let state = argument.state.map_or(State::Foreign, |span| State::of(span.of(self.record)));
        let State::Open { seqid, number } = state else { return Err(Stop::Cut(status::BAD_STATEID)) };
        let four = &self.env.shared.four;
        let owner = four.owner(number).ok_or(Stop::Cut(status::BAD_STATEID))?;
        self.use_up_first(argument, &owner)?;
        four.close(number);
        let mut out = result(argument.op, status::OK);
        put_state(&mut out, seqid.wrapping_add(1), number);
        Ok(out)
    }
}

fn parsed(op: Op, bytes: &[u8]) -> Result<Results, Stop> {
    let mut found = Results { long_handles: true, ..Results::default() };
    match results(&mut Reader::whole(bytes), op, &mut found) {
        Ok(()) => Ok(found),
        Err(_) => Err(Stop::Cut(status::SERVERFAULT)),
    }
}
