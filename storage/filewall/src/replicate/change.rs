//! Fan-out of changes and fan-in of their replies; looks at any replica.
//!
//! A change is made in steps: its objects are locked ([`super::locks`]); their handles are found on all live replicas before any of them
//! hears of it; what it is about is noted for those that are behind; it goes to all live ones at once; what they say is compared
//! ([`super::said`]), and who has not done what counts is behind from then on.
//!
//! Invariants
//! - One decision at a time about who is behind. The last live one stays.
//! - A change is acknowledged with an answer of a replica that is live after the decision, and after that is written down.

use super::asked::{Asked, Lost};
use super::listing::DEPTH_MAX;
use super::missed::{self, Extent, Key};
use super::names::Number;
use super::said::{self, Said};
use super::server::{Answer, Member, State};
use super::{Group, Router};
use crate::wire::nfs3::{Handle, Op, Status};
use std::io;
use std::sync::PoisonError;
use std::time::Duration;

/// How often a way is gone down again that a change has overtaken, and how long is waited in between.
const RESOLVE_TRIES: usize = 200;
const RESOLVE_WAIT: Duration = Duration::from_millis(2);

impl Router {
    /// The handle that a server has for an object.
    pub(super) fn resolve(&self, member: &Member, number: Number) -> Result<Handle, Lost> {
        for _ in 0..RESOLVE_TRIES {
            if let Some(handle) = self.try_resolve(member, number)? {
                return Ok(handle);
            }
            std::thread::sleep(RESOLVE_WAIT);
        }
        Err(Status::Jukebox.into())
    }

    /// The same; `None` if a change has overtaken it.
    fn try_resolve(&self, member: &Member, number: Number) -> Result<Option<Handle>, Lost> {
        let since = self.name_changes.now();
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
            way.push((at, folder, name));
            if way.len() > DEPTH_MAX {
                return Err(Status::Stale.into());
            }
            at = folder;
        };
        while let Some((number, folder, name)) = way.pop() {
            let answer = member.look(&handle, Some(&name))?;
            let found = answer.handle().and_then(Handle::new).filter(|_| answer.results.status == 0);
            let quiet = || self.name_changes.quiet(folder, &name, since);
            let Some(found) = found else {
                if !quiet() {
                    return Ok(None);
                }
                return Err(match answer.results.status {
                    // What was found once by this name is gone.
                    2 => Lost::Status(Status::Stale.number()),
                    status => Lost::Status(status),
                });
            };
            if !self.names.learn_at(number, (folder, &name), member.number, &found, quiet) {
                return Ok(None);
            }
            handle = found;
        }
        Ok(Some(handle))
    }

    fn handles(&self, member: &Member, asked: &Asked) -> Result<Vec<Handle>, Lost> {
        asked.numbers.iter().map(|number| self.resolve(member, *number)).collect()
    }

    /// Makes a call on one server. A handle that was remembered and is stale is looked up once more.
    fn call_on(&self, member: &Member, asked: &Asked, handles: &[Handle]) -> Result<Answer, Lost> {
        let answer = member.call(asked.op(), &asked.with_handles(handles))?;
        if answer.results.status != Status::Stale.number() {
            return Ok(answer);
        }
        asked.numbers.iter().for_each(|number| self.names.forget(Some(*number), member.number));
        Ok(member.call(asked.op(), &asked.with_handles(&self.handles(member, asked)?))?)
    }

    /// A server cannot be reached: another one is asked from now on, if there is one.
    fn give_up(&self, group: &Group, member: &Member, error: &io::Error) {
        let _one = self.decision.lock().unwrap_or_else(PoisonError::into_inner);
        let members = group.members();
        let others =
            members.iter().any(|other| other.number != member.number && other.state() == State::Live);
        if others && member.state() == State::Live {
            self.falls_behind(member, &format!("it does not answer: {error}"), &[], false);
            if let Err(error) = self.note_states() {
                tracing::error!(%error, "which replicas have everything cannot be written down");
            }
        }
    }

    /// A replica is behind from now on; what may be lost with it is noted. Under the decision's lock.
    pub(super) fn falls_behind(&self, member: &Member, why: &str, keys: &[(Key, Extent)], doubtful: bool) {
        let mut missed = member.missed();
        {
            let unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
            missed.all |= unsettled.overflown;
            for (number, extent) in unsettled.objects() {
                // The name by which it was written may lead to it no more, while another one does.
                match self.key_of(number).filter(|_| self.locks.is_single(number)) {
                    Some(key) => missed.add(&[(key, extent)], false),
                    None => missed.all = true,
                }
            }
        }
        missed.add(keys, doubtful);
        drop(missed);
        member.set_behind(why);
    }

    /// Asks any live replica.
    ///
    /// # Errors
    /// [`Lost`]: none answers, or the object is not there.
    pub(super) fn look(&self, group: &Group, asked: &Asked) -> Result<(usize, Answer), Lost> {
        let work = |member: &Member| self.call_on(member, asked, &self.handles(member, asked)?);
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
                // What it has said after it fell behind may be old.
                Ok(_) if member.state() != State::Live => {}
                Ok(found) => return Ok((member.number, found)),
                Err(Lost::Io(error)) => {
                    tracing::warn!(server = %member.server.nfs(), %error, "a replica does not answer");
                    self.give_up(group, member, &error);
                    last = Lost::Io(error);
                }
                Err(status) => return Err(status),
            }
        }
        Err(last)
    }

    /// The folder and name of an object, for what was missed; `None` for one that is gone.
    fn key_of(&self, number: Number) -> Option<Key> {
        if self.names.is_root(number) { Some(missed::root()) } else { self.names.at(number) }
    }

    /// What a change may make different.
    fn keys(&self, asked: &Asked) -> Vec<(Key, Extent)> {
        let names = asked.changed_names().map(|(folder, name)| ((folder, Box::from(name)), Extent::ALL));
        let object = asked.changed_object();
        let object = object.and_then(|(number, extent)| Some((self.key_of(number)?, extent)));
        names.chain(object).collect()
    }

    /// Objects that have the names which a change is about.
    fn named(&self, asked: &Asked) -> Vec<Number> {
        asked.changed_names().filter_map(|(folder, name)| self.names.peek(folder, name)).collect()
    }

    /// Makes a change on all live replicas; the answers that count, the first one's first.
    ///
    /// # Errors
    /// [`Lost`]: none has answered.
    pub(super) fn change<T>(
        &self,
        group: &Group,
        asked: &Asked,
        noted: impl FnOnce(&mut Vec<(usize, Answer)>) -> Result<T, Lost>,
    ) -> Result<T, Lost> {
        let _together = self.changes.read().unwrap_or_else(PoisonError::into_inner);
        let own = asked.changed_object().map(|(number, _)| number);
        // What is changed itself may be a folder in which names are changed.
        let folders: Vec<Number> = asked.changed_names().map(|(folder, _)| folder).chain(own).collect();
        // What has the names now is locked too; they may lead elsewhere when the locks are there.
        let _locks = loop {
            let mut objects = self.named(asked);
            objects.extend(own);
            let single: Vec<bool> = objects.iter().map(|number| self.locks.is_single(*number)).collect();
            let locks = self.locks.lock(&folders, &objects);
            let mut now = self.named(asked);
            now.extend(own);
            if now == objects && now.iter().map(|number| self.locks.is_single(*number)).eq(single) {
                break locks;
            }
        };
        if asked.op() == Op::Link {
            own.iter().for_each(|number| self.locks.has_names(*number, false));
        }
        self.begins()?;
        let members = group.members();
        let live: Vec<&Member> =
            members.iter().map(|member| &**member).filter(|member| member.state() == State::Live).collect();
        let ready: Vec<Result<Vec<Handle>, Lost>> =
            live.iter().map(|member| self.handles(member, asked)).collect();
        let keys = self.keys(asked);
        for member in members.iter().filter(|member| member.state() == State::Behind) {
            member.missed().add(&keys, false);
        }
        let _change = self.name_changes.begin(asked.changed_names());
        let outcomes = self.send(&live, ready, asked);
        let decided = self.decide(asked, &keys, outcomes);
        // Of its other names nobody has spoken: who has missed it finds it only by looking at all there are.
        let contents = matches!(asked.op(), Op::Write | Op::Setattr);
        let unnamed = contents && own.is_some_and(|number| !self.locks.is_single(number));
        for member in members.iter().filter(|member| member.state() == State::Behind) {
            let mut missed = member.missed();
            // It may have been compared between the note before and what was done then.
            missed.add(&keys, false);
            missed.tree |= unnamed;
        }
        noted(&mut decided?)
    }

    fn send<'m>(
        &self,
        live: &[&'m Member],
        ready: Vec<Result<Vec<Handle>, Lost>>,
        asked: &Asked,
    ) -> Vec<(&'m Member, Result<Answer, Lost>)> {
        let calls = live.iter().copied().zip(ready);
        if live.len() == 1 {
            let call = |(member, ready): (&'m Member, Result<Vec<Handle>, Lost>)| {
                (member, ready.and_then(|handles| self.call_on(member, asked, &handles)))
            };
            return calls.map(call).collect();
        }
        std::thread::scope(|scope| {
            let calls: Vec<_> = calls
                .map(|(member, ready)| {
                    let call = move || ready.and_then(|handles| self.call_on(member, asked, &handles));
                    (member, scope.spawn(call))
                })
                .collect();
            let ended = |call: std::thread::ScopedJoinHandle<'_, _>| {
                call.join().unwrap_or_else(|_| Err(Lost::Io(io::ErrorKind::Other.into())))
            };
            calls.into_iter().map(|(member, call)| (member, ended(call))).collect()
        })
    }

    /// Says who has done the change and who is behind, and writes it down.
    fn decide(
        &self,
        asked: &Asked,
        keys: &[(Key, Extent)],
        mut outcomes: Vec<(&Member, Result<Answer, Lost>)>,
    ) -> Result<Vec<(usize, Answer)>, Lost> {
        let _one = self.decision.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have fallen behind meanwhile have no say, and this change is one more that they may have missed.
        for (member, _) in outcomes.iter().filter(|(member, _)| member.state() == State::Behind) {
            member.missed().add(keys, true);
        }
        outcomes.retain(|(member, _)| member.state() == State::Live);
        let said: Vec<Option<Said>> = outcomes
            .iter()
            .map(|(member, outcome)| Said::of(asked.op(), outcome, *member.verifier()))
            .collect();
        let mut counts = said::agreed(&said);
        let answered = !counts.is_empty();
        if !answered && !outcomes.is_empty() {
            // Nobody knows which of them have done it: the first one counts, the others are compared with it.
            counts.push(0);
        }
        let fell = outcomes.len() > counts.len();
        for (at, (member, outcome)) in outcomes.iter().enumerate().filter(|(at, _)| !counts.contains(at)) {
            let why = match (outcome, &said[at]) {
                (Err(Lost::Io(error)), _) => format!("it has not answered a {}: {error}", asked.op()),
                (_, Some(said)) => {
                    why(asked.op(), said, counts.first().and_then(|first| said_of(&outcomes, *first)))
                }
                _ => format!("it has not answered a {}", asked.op()),
            };
            self.falls_behind(member, &why, keys, matches!(outcome, Err(Lost::Io(_))));
        }
        if fell {
            self.note_states().map_err(Lost::Io)?;
        }
        self.settle(asked, &outcomes, &said, &counts);
        let mut agreed = Vec::new();
        let mut last = Lost::Io(io::ErrorKind::NotConnected.into());
        for (at, (member, outcome)) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(answer) if counts.contains(&at) => agreed.push((member.number, answer)),
                Err(lost) if counts.contains(&at) && agreed.is_empty() => last = lost,
                _ => {}
            }
        }
        if agreed.is_empty() { Err(last) } else { Ok(agreed) }
    }

    /// Notes what is durable, and which verifiers those have that count.
    fn settle(
        &self,
        asked: &Asked,
        outcomes: &[(&Member, Result<Answer, Lost>)],
        said: &[Option<Said>],
        counts: &[usize],
    ) {
        for at in counts {
            let (member, outcome) = &outcomes[*at];
            let Ok(answer) = outcome else { continue };
            if let Some(verifier) = said::verifier(asked.op(), answer) {
                *member.verifier() = Some(verifier);
            }
            if said[*at].as_ref().is_some_and(|said| said.anew) {
                // What clients have written and not committed, they write again.
                self.new_verifier();
            }
            let own = asked.changed_object().map(|(number, _)| number);
            if let (Some(number), Some(attributes)) = (own, answer.attributes())
                && asked.op() != Op::Link
            {
                self.locks.has_names(number, said::one_name(attributes));
            }
        }
        let done = counts.iter().all(|at| said[*at].as_ref().is_some_and(|said| said.status == 0));
        let Some((number, extent)) = asked.changed_object().filter(|_| done && !counts.is_empty()) else {
            return;
        };
        if !self.replicated(number) {
            return;
        }
        let mut unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
        let answers = || counts.iter().filter_map(|at| outcomes[*at].1.as_ref().ok());
        match asked.op() {
            Op::Write if answers().any(|answer| committed(answer) == 0) => unsettled.written(number, extent),
            Op::Commit => unsettled.settled(number, extent),
            _ => {}
        }
    }
}

/// How durable a WRITE is: 0 is not yet.
pub(super) fn committed(answer: &Answer) -> u32 {
    answer.record.len().checked_sub(12).map_or(0, |at| crate::wire::xdr::get_u32(&answer.record, at))
}

fn said_of<'o>(outcomes: &'o [(&Member, Result<Answer, Lost>)], at: usize) -> Option<&'o Answer> {
    outcomes.get(at).and_then(|(_, outcome)| outcome.as_ref().ok())
}

/// What one has done otherwise than those who count.
fn why(op: Op, said: &Said, counts: Option<&Answer>) -> String {
    let results = counts.map(|answer| (answer.results.status, answer.results.count));
    match results {
        _ if said.anew => format!("it has begun anew since it was written to: a {op} had another verifier"),
        Some((status, _)) if status != said.status => {
            let [own, others] = [said.status, status].map(Status::of);
            format!("it has answered a {op} with {own:?}, the others with {others:?}")
        }
        Some((_, count)) if count != said.count => {
            format!("it has written {} of the {count} bytes of a {op}", said.count)
        }
        _ => format!("after a {op} it has other attributes than the others"),
    }
}
