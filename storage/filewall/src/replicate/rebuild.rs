//! A replica that has missed something gets what the others have.
//!
//! First the whole tree is compared while changes go on ([`super::same`]); what changes meanwhile is noted by name, and those names are compared
//! then, again and again until they are few; the last ones while changes wait. So changes stand still for as long as a few
//! names take, however large the tree and its folders are.
//!
//! What cannot be made the same keeps the replica behind, and the reason is shown. So does what it may still carry out ([`super::doubt`]): one
//! that has left changes unanswered is compared, waits, and is compared again.

use super::asked::{Asked, Lost};
use super::doubt::CLOSED;
use super::missed::{Extent, Key, Missed};
use super::names::{Names, Number};
use super::same::{Compare, Stuck};
use super::server::{Member, ROOT, State};
use super::{Group, Router};
use crate::wire::build::Record;
use crate::wire::call::arguments;
use crate::wire::nfs3::{Op, Status};
use crate::wire::rpc::call_head;
use crate::wire::xdr::Reader;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often replicas that are behind are tried.
const EVERY: Duration = Duration::from_millis(500);
/// Names that are compared while changes wait, unless they do not become fewer.
const LAST_MAX: usize = 64;
/// Objects that are made durable at one look where clients have left them.
const SETTLED_MAX: usize = 64;
/// Rounds after which changes wait however many names there are.
const ROUNDS_MAX: usize = 16;

/// Looks for replicas that are behind until the router is stopped.
pub(super) fn watch(router: &Router) {
    let mut changes = 0;
    while !router.stop.load(Ordering::Relaxed) {
        let before = changes;
        changes = router.rests(changes);
        if changes == before {
            router.settle_all();
        }
        for group in &router.groups {
            for member in group.members().iter().filter(|member| member.state() == State::Behind) {
                match router.rebuild(group, member) {
                    Ok(Healed::Live) => tracing::info!(server = %member.server.nfs(), "a replica was rebuilt"),
                    Ok(Healed::InDoubt { left, whose }) => member.set_why(format!(
                        "it is compared again in {} s: {whose} has left changes unanswered, and may carry them out still",
                        left.as_secs_f64().ceil()
                    )),
                    Err(stuck) => {
                        tracing::debug!(server = %member.server.nfs(), %stuck, "a replica stays behind");
                        member.set_why(stuck.to_string());
                    }
                }
            }
        }
        std::thread::sleep(EVERY);
    }
}

/// What became of a replica that was behind.
enum Healed {
    /// It is live.
    Live,
    /// Somebody may still carry out what nobody waits for any more.
    InDoubt { left: Duration, whose: String },
}

/// Who is in doubt for how long yet, the longest first.
fn in_doubt(members: [&Member; 2]) -> Option<Healed> {
    let now = Instant::now();
    let each = members.into_iter().filter_map(|member| Some((member.doubt().left(now)?, member)));
    let (left, member) = each.max_by_key(|(left, _)| *left)?;
    Some(Healed::InDoubt { left, whose: member.name() })
}

impl Router {
    /// A live server has begun anew and may have lost what others have: it is behind, or, if it is the only one, clients write again
    /// what they have not committed.
    pub(super) fn begun_anew(&self, member: &Member, verifier: u64) -> std::io::Result<()> {
        let _one = self.decision.lock().unwrap_or_else(PoisonError::into_inner);
        if member.state() == State::Behind {
            return Ok(());
        }
        let members = self
            .groups
            .iter()
            .map(Group::members)
            .find(|members| members.iter().any(|other| other.number == member.number));
        let others = members.is_some_and(|members| {
            members.iter().any(|other| other.number != member.number && other.state() == State::Live)
        });
        if others {
            self.falls_behind(member, "it has begun anew since it was written to", &[], false);
            return self.note_states();
        }
        *member.verifier() = Some(verifier);
        self.new_verifier();
        Ok(())
    }

    fn rebuild(&self, group: &Group, member: &Member) -> Result<Healed, Stuck> {
        // What was compared waits for the end of the doubt; one that is short is waited for first, and costs no comparison.
        let compared = member.doubt().is_compared();
        if let Some(source) = group.members().iter().find(|other| other.state() == State::Live)
            && let Some(waits) = in_doubt([member, source])
            && (compared || matches!(waits, Healed::InDoubt { left, .. } if left <= CLOSED))
        {
            return Ok(waits);
        }
        // Its handles may be others after it was away.
        self.names.forget(None, member.number);
        let taken = member.missed().take();
        let done = self.make_same(group, member, &taken);
        if done.is_err() {
            member.missed().put_back(taken);
        }
        done
    }

    fn make_same(&self, group: &Group, member: &Member, taken: &Missed) -> Result<Healed, Stuck> {
        let begun = Instant::now();
        let members = group.members();
        let live = || {
            let found = members.iter().find(|other| other.state() == State::Live);
            found.ok_or_else(|| Stuck::at("no replica is live", Lost::Status(0)))
        };
        let source = live()?;
        let mut compare = Compare::new(self, source, member)?;
        compare.everything(taken)?;
        for _ in 0..ROUNDS_MAX {
            let round = member.missed().take();
            if let Err(stuck) = self.go_on(&mut compare, &round) {
                member.missed().put_back(round);
                return Err(stuck);
            }
            if round.names.len() <= LAST_MAX && !round.all && !round.tree {
                break;
            }
        }
        // While anything is in doubt changes need not wait: this was not the last comparison.
        let sure = member.doubt().compared(begun, Instant::now(), compare.late());
        let sure = sure && source.doubt().left(begun).is_none();
        if !sure && let Some(waits) = in_doubt([member, source]) {
            return Ok(waits);
        }
        if !sure {
            return Err(Stuck::at(
                "the time in which changes may be carried out late is over just now",
                Lost::Status(0),
            ));
        }
        let _alone = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        if source.state() != State::Live {
            return Err(Stuck::at("the one that it is compared with is behind itself", Lost::Status(0)));
        }
        let last = member.missed().take();
        compare.alone = true;
        if let Err(stuck) = self.go_on(&mut compare, &last) {
            member.missed().put_back(last);
            return Err(stuck);
        }
        // What was made anew has other handles than what was there.
        self.names.forget(None, member.number);
        // Another change was given up since, by the last look at this one or with the one that it is compared with.
        if let Some(waits) = in_doubt([member, source]) {
            return Ok(waits);
        }
        let _one = self.decision.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have been dropped meanwhile.
        if member.set_live()
            && let Err(error) = self.note_states()
        {
            member.set_behind("which replicas have everything cannot be written down");
            *member.missed() = Missed::everything();
            return Err(Stuck::at("the journal of replicas", Lost::Io(error)));
        }
        Ok(Healed::Live)
    }

    /// Where nothing is changed any more, what was written is made durable though no client asks for it: a server that has begun anew
    /// and lost some of it is found out.
    fn settle_all(&self) {
        let written: Vec<Number> = {
            let unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
            unsettled.objects().map(|(number, _)| number).take(SETTLED_MAX).collect()
        };
        for number in written {
            let done = self.commit(number);
            if self.stop.load(Ordering::Relaxed) || matches!(done, Err(Lost::Io(_))) {
                return;
            }
            if done.is_err() {
                // It is gone, and with it what was written, unless it has another name: then nobody knows where that is.
                let mut unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
                unsettled.overflown |= !self.locks.is_single(number);
                unsettled.settled(number, Extent::ALL);
            }
        }
    }

    fn commit(&self, number: Number) -> Result<(), Lost> {
        let group = self.group_of(number).ok_or(Lost::Status(Status::Stale.number()))?;
        let handle = Names::handle(number);
        let record = Record::nfs3(0, Op::Commit, &ROOT).opaque(handle.as_bytes()).u64(0).u32(0).finish();
        let mut reader = Reader::whole(&record[4..]);
        let read = call_head(&mut reader).and_then(|_| arguments(&mut reader, Op::Commit));
        let arguments = read.map_err(|_| Lost::Status(Status::ServerFault.number()))?;
        let asked = Asked { record, arguments, numbers: vec![number] };
        self.change(&self.groups[group], &asked, |_| Ok(()))
    }

    /// Compares what has changed since the last look, folders before what is in them.
    fn go_on(&self, compare: &mut Compare<'_>, missed: &Missed) -> Result<(), Stuck> {
        if missed.all || missed.tree {
            return compare.everything(missed);
        }
        let mut keys: Vec<(usize, &Key)> = missed.names.keys().map(|key| (self.depth(key.0), key)).collect();
        keys.sort();
        keys.into_iter()
            .try_for_each(|(_, key)| compare.one(key, missed.names[key], missed.doubtful.contains_key(key)))
    }

    fn depth(&self, folder: Number) -> usize {
        let mut at = folder;
        (0..super::listing::DEPTH_MAX)
            .find(|_| match self.names.at(at) {
                Some((above, _)) => {
                    at = above;
                    false
                }
                None => true,
            })
            .unwrap_or(super::listing::DEPTH_MAX)
    }
}
