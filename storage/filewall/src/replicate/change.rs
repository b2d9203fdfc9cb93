//! Fan-out of changes and fan-in of their replies; looks at any replica.

use super::listing::DEPTH_MAX;
use super::names::Number;
use super::server::{Answer, Member, State};
use super::{Group, Router, STRIPES};
use crate::wire::call::Arguments;
use crate::wire::nfs3::{Handle, Op, Status};
use crate::wire::rpc::mark_of;
use crate::wire::xdr::put_opaque;
use std::io;
use std::sync::{MutexGuard, PoisonError};

/// Why there is no answer.
#[derive(Debug)]
pub enum Lost {
    /// The server cannot be reached.
    Io(io::Error),
    /// It says this on the way to the object.
    Status(u32),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Lost {
        Lost::Io(error)
    }
}

impl From<Status> for Lost {
    fn from(status: Status) -> Lost {
        Lost::Status(status.number())
    }
}

/// A call as it came: the record with its mark, and what it is about.
#[derive(Debug)]
pub struct Asked {
    /// The record, with its mark.
    pub record: Vec<u8>,
    /// Where its fields are, from behind the mark.
    pub arguments: Arguments,
    /// Objects of its handles.
    pub numbers: Vec<Number>,
}

impl Asked {
    /// Operation.
    pub fn op(&self) -> Op {
        self.arguments.op
    }

    /// The `number`th name.
    pub fn name(&self, number: usize) -> &[u8] {
        self.arguments.names[number].of(&self.record[4..])
    }

    /// The record with a server's handles.
    fn with_handles(&self, handles: &[Handle]) -> Vec<u8> {
        let record = &self.record[4..];
        let mut out = vec![0; 4];
        let mut from = 0;
        for (span, handle) in self.arguments.handles.iter().zip(handles) {
            out.extend_from_slice(&record[from..span.start - 4]);
            put_opaque(&mut out, handle.as_bytes());
            from = span.padded_end();
        }
        out.extend_from_slice(&record[from..]);
        let mark = mark_of(out.len() - 4);
        out[..4].copy_from_slice(&mark.to_be_bytes());
        out
    }
}

impl Router {
    /// The handle that a server has for an object.
    pub(super) fn resolve(&self, member: &Member, number: Number) -> Result<Handle, Lost> {
        let mut way = Vec::new();
        let mut at = number;
        let mut handle = loop {
            if let Some(handle) = self.names.known(at, member.number) {
                break handle;
            }
            if self.names.is_root(at) {
                let root = member.mount()?;
                self.names.learn(at, member.number, root.as_bytes());
                break root;
            }
            let Some((folder, name)) = self.names.at(at) else { return Err(Status::Stale.into()) };
            way.push((at, name));
            if way.len() > DEPTH_MAX {
                return Err(Status::Stale.into());
            }
            at = folder;
        };
        while let Some((number, name)) = way.pop() {
            let answer = member.look(&handle, Some(&name))?;
            let found = answer.handle().and_then(Handle::new).filter(|_| answer.results.status == 0);
            handle = found.ok_or_else(|| match answer.results.status {
                // What was found once by this name is gone.
                2 => Lost::Status(Status::Stale.number()),
                status => Lost::Status(status),
            })?;
            self.names.learn(number, member.number, handle.as_bytes());
        }
        Ok(handle)
    }

    /// Makes a call on one server. A handle that was remembered and is stale is looked up once more.
    fn call_on(&self, member: &Member, asked: &Asked) -> Result<Answer, Lost> {
        for again in [true, false] {
            let handles = asked
                .numbers
                .iter()
                .map(|number| self.resolve(member, *number))
                .collect::<Result<Vec<_>, _>>()?;
            let answer = member.call(asked.op(), &asked.with_handles(&handles))?;
            if answer.results.status != Status::Stale.number() || !again {
                return Ok(answer);
            }
            asked.numbers.iter().for_each(|number| self.names.forget(Some(*number), member.number));
        }
        Err(Status::Stale.into())
    }

    /// A server cannot be reached: another one is asked from now on, if there is one.
    fn give_up(&self, group: &Group, member: &Member) {
        let members = group.members();
        let others =
            members.iter().any(|other| other.number != member.number && other.state() == State::Live);
        if others {
            self.mark(member, State::Behind);
        }
    }

    /// Asks any live replica.
    ///
    /// # Errors
    /// [`Lost`]: none answers, or the object is not there.
    pub(super) fn look(&self, group: &Group, asked: &Asked) -> Result<(usize, Answer), Lost> {
        let work = |member: &Member| self.call_on(member, asked);
        self.on_any(group, asked.numbers.first().copied().unwrap_or(0), work)
    }

    /// Does something on any live replica; which one is tried first depends on the object.
    pub(super) fn on_any<T>(
        &self,
        group: &Group,
        number: Number,
        work: impl Fn(&Member) -> Result<T, Lost>,
    ) -> Result<(usize, T), Lost> {
        let members = group.members();
        let count = members.len();
        let mut last = Lost::Io(io::ErrorKind::NotConnected.into());
        for at in 0..count {
            let member = &members[(number as usize + at) % count];
            if member.state() != State::Live {
                continue;
            }
            match work(member) {
                Ok(found) => return Ok((member.number, found)),
                Err(Lost::Io(error)) => {
                    tracing::warn!(server = %member.server.nfs(), %error, "a replica does not answer");
                    self.give_up(group, member);
                    last = Lost::Io(error);
                }
                Err(status) => return Err(status),
            }
        }
        Err(last)
    }

    /// Locks the objects of a call, in an order that is the same for all calls.
    fn lock(&self, asked: &Asked) -> Vec<MutexGuard<'_, ()>> {
        let mut stripes: Vec<usize> = asked.numbers.iter().map(|number| *number as usize % STRIPES).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes
            .into_iter()
            .map(|at| self.stripes[at].lock().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    /// Makes a change on all live replicas; the answers of those that agree, the first one's first.
    ///
    /// # Errors
    /// [`Lost`]: none has answered.
    pub(super) fn change<T>(
        &self,
        group: &Group,
        asked: &Asked,
        noted: impl FnOnce(&[(usize, Answer)]) -> Result<T, Lost>,
    ) -> Result<T, Lost> {
        let _together = self.changes.read().unwrap_or_else(PoisonError::into_inner);
        let _locks = self.lock(asked);
        self.begins()?;
        let members = group.members();
        let live: Vec<&Member> =
            members.iter().map(|member| &**member).filter(|member| member.state() == State::Live).collect();
        let outcomes: Vec<(&Member, Result<Answer, Lost>)> = if let [only] = live[..] {
            vec![(only, self.call_on(only, asked))]
        } else {
            std::thread::scope(|scope| {
                let calls: Vec<_> = live
                    .iter()
                    .map(|member| (*member, scope.spawn(|| self.call_on(member, asked))))
                    .collect();
                let ended = |call: std::thread::ScopedJoinHandle<'_, _>| {
                    call.join().unwrap_or_else(|_| Err(Lost::Io(io::ErrorKind::Other.into())))
                };
                calls.into_iter().map(|(member, call)| (member, ended(call))).collect()
            })
        };
        let mut agreed: Vec<(usize, Answer)> = Vec::new();
        let mut said: Option<u32> = None;
        let mut last = Lost::Io(io::ErrorKind::NotConnected.into());
        let answered = outcomes.iter().any(|(_, outcome)| !matches!(outcome, Err(Lost::Io(_))));
        for (at, (member, outcome)) in outcomes.into_iter().enumerate() {
            let status = match &outcome {
                Ok(answer) => Some(answer.results.status),
                Err(Lost::Status(status)) => Some(*status),
                Err(Lost::Io(error)) => {
                    tracing::warn!(server = %member.server.nfs(), %error, "a replica has missed a change");
                    None
                }
            };
            match (status, said) {
                // Nobody knows which of them have done it: the first one is right, the others are rebuilt from it.
                (None, _) if !answered && at == 0 => {}
                (None, _) => self.mark(member, State::Behind),
                (Some(status), None) => said = Some(status),
                (Some(status), Some(said)) if status != said => {
                    tracing::warn!(server = %member.server.nfs(), op = %asked.op(), status, said, "a replica differs");
                    self.mark(member, State::Behind);
                    continue;
                }
                _ => {}
            }
            match outcome {
                Ok(answer) => agreed.push((member.number, answer)),
                Err(lost) if agreed.is_empty() => last = lost,
                Err(_) => {}
            }
        }
        if agreed.is_empty() { Err(last) } else { noted(&agreed) }
    }
}
