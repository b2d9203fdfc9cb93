//! Requests that wait for the word of several operators (rows R4, R12). What needs how many is [`weir_model::approval`].
//!
//! A request that needs more than its author is ordered like any other; its author's signature, number and time are looked at then. It changes
//! nothing but a row of two tables: what is known of it, and the whole of it. Each approval is a request of its own, with the digest of the one that it is about,
//! so copies, late ones and forged ones are worth what they are worth for any request: nothing. The event of the last approval is
//! decided on as the request that it approves, as things are then: where that is rejected, it is gone, and is asked anew.
//!
//! Invariants
//! - What is done is what was approved: approvals name the SHA-256 of author, number, times and body.
//! - Each operator counts once, and only as long as it is one, by the keys that it had: the words of who changed or was removed are gone.
//! - The needs in force when the last one says so are what counts, not those of the beginning.
//! - Who the operators are, and the needs, change by as many admins as the kind that needs most. There are always as many operators as any
//!   kind needs.
//! - Bounded: [`WAITING_MAX`] requests, [`WAITING_OF_MAX`] of one author, each for the time that the needs say, each of at most [`WAITING_BYTES_MAX`].
//!   No controller makes one: each carries an operator's signature.

use super::operators::{Operators, rows};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use weir_base::codec::{decode, encode};
use weir_model::Version;
use weir_model::approval::{Approval, Need, Needs};
use weir_model::event::{Event, EventBody, Said, SourceId};
use weir_model::operator::OperatorRole;
use weir_store::{Rejection, Store, VALUE_BYTES_MAX, View};

/// Table of what is known of the requests that wait, by digest, and of the needs, under [`NEEDS`]; the watch feed leaves it out.
pub const APPROVALS_TABLE: &str = "approvals";
/// Table of the requests themselves, by digest: they may be long, and are read only where they are decided on or shown.
pub const WAITING_TABLE: &str = "approvals-waiting";
/// Most requests that wait.
pub const WAITING_MAX: usize = 64;
/// Most of one author.
pub const WAITING_OF_MAX: usize = 16;
/// Most bytes of one, as it was signed: a value of the store.
pub const WAITING_BYTES_MAX: usize = VALUE_BYTES_MAX;
/// Key of the needs. No digest is that short.
const NEEDS: &[u8] = b"needs";

/// What is known of a request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Who asked.
    pub author: SourceId,
    /// At which version it was ordered.
    pub version: Version,
    /// Wall time by the order at which it was ordered, milliseconds of the Unix epoch.
    pub since_ms: u64,
    /// When it waits no longer.
    pub until_ms: u64,
    /// Who approved it, besides its author.
    pub approved_by: Vec<SourceId>,
}

impl Waiting {
    /// Who of those that have said so counts for a need: the author and those who approved, who are operators of that role now.
    pub fn counted(&self, operators: &Operators, need: Need) -> Vec<SourceId> {
        let counts = |who: &&SourceId| operators.row(who).is_some_and(|row| row.role >= need.role);
        std::iter::once(&self.author).chain(&self.approved_by).filter(counts).cloned().collect()
    }

    /// Whether it waits no longer, at this wall time; 0: no time is known.
    pub fn is_over(&self, wall_ms: u64) -> bool {
        wall_ms > self.until_ms
    }
}

/// What needs approvals here.
pub fn needs(store: &Store) -> Needs {
    let cell = store.get(APPROVALS_TABLE, NEEDS);
    cell.and_then(|cell| decode(&cell.value).ok()).unwrap_or_default()
}

/// The request with a digest that waits, over or not, and all of it.
pub fn waiting(store: &Store, digest: &[u8; 32]) -> Option<(Waiting, Said)> {
    let waiting = decode(&store.get(APPROVALS_TABLE, digest)?.value).ok()?;
    Some((waiting, decode(&store.get(WAITING_TABLE, digest)?.value).ok()?))
}

/// All that wait at this wall time, by digest.
pub fn all_waiting(store: &Store, wall_ms: u64) -> impl Iterator<Item = ([u8; 32], Waiting)> + '_ {
    let all = store.range(APPROVALS_TABLE, b"");
    all.filter_map(|(key, cell)| {
        let key: &[u8] = key;
        Some((key.try_into().ok()?, decode::<Waiting>(&cell.value).ok()?))
    })
    .filter(move |(_, waiting)| !waiting.is_over(wall_ms))
}

fn refused(digest: &[u8; 32], problem: impl Into<String>) -> Rejection {
    let resource = format!("request {}", weir_model::join::to_hex(&digest[..8]));
    Rejection::Reference { resource, problem: problem.into() }
}

fn needs_of(view: &View<'_>) -> Needs {
    view.get(APPROVALS_TABLE, NEEDS).and_then(|cell| decode(&cell).ok()).unwrap_or_default()
}

fn of_view(view: &View<'_>, digest: &[u8; 32]) -> Option<(Waiting, Said)> {
    let waiting = decode(&view.get(APPROVALS_TABLE, digest)?).ok()?;
    Some((waiting, decode(&view.get(WAITING_TABLE, digest)?).ok()?))
}

fn all_of(view: &View<'_>) -> Vec<(Vec<u8>, Waiting)> {
    let cells = view.scan(APPROVALS_TABLE, b"").into_iter().filter(|(key, _)| key != NEEDS);
    cells.filter_map(|(key, value)| Some((key, decode(&value).ok()?))).collect()
}

/// It waits no longer.
fn forget(view: &mut View<'_>, digest: &[u8]) {
    view.delete(APPROVALS_TABLE, digest);
    view.delete(WAITING_TABLE, digest);
}

/// What becomes of an operator's request.
pub(super) enum Step<'a> {
    /// It is decided on as this.
    Do(Cow<'a, Event>),
    /// It is the last word that another one needed, with this digest, which is decided on now.
    DoApproved(Event, [u8; 32]),
    /// What it says is noted, and nothing else happens.
    Noted,
}

/// What everything here depends on.
pub(super) struct By<'a> {
    pub operators: &'a Operators,
    /// Wall time by the order, milliseconds of the Unix epoch.
    pub wall_ms: u64,
}

/// Takes in an operator's request that was admitted.
pub(super) fn step<'a>(
    view: &mut View<'_>,
    by: &By<'_>,
    said: &'a Said,
    digest: &[u8; 32],
) -> Result<Step<'a>, Rejection> {
    if let EventBody::Approval(about) = said.body() {
        match &**about {
            Approval::Given(of) => return given(view, by, said.author(), of),
            Approval::Refused(of) => return taken_back(view, by, said.author(), of),
            Approval::Needed(_) => {}
        }
    }
    match needs_of(view).of(said.body()) {
        Some(need) if need.approvals > 1 => wait(view, by, said, digest),
        _ => Ok(Step::Do(Cow::Borrowed(&said.event))),
    }
}

fn wait<'a>(view: &mut View<'_>, by: &By<'_>, said: &Said, digest: &[u8; 32]) -> Result<Step<'a>, Rejection> {
    let (mut count, mut own) = (0, 0);
    for (key, waiting) in all_of(view) {
        if waiting.is_over(by.wall_ms) {
            forget(view, &key);
            continue;
        }
        count += 1;
        own += usize::from(waiting.author == *said.author());
    }
    if own >= WAITING_OF_MAX {
        return Err(Rejection::limit(
            "requests of one operator that wait for approval",
            own + 1,
            WAITING_OF_MAX,
        ));
    }
    if count >= WAITING_MAX {
        return Err(Rejection::limit("requests that wait for approval", count + 1, WAITING_MAX));
    }
    let request = encode(said);
    if request.len() > WAITING_BYTES_MAX {
        let what = "bytes of a request that waits for approval";
        return Err(Rejection::limit(what, request.len(), WAITING_BYTES_MAX));
    }
    let wait_ms = u64::from(needs_of(view).wait_s) * 1_000;
    let waiting = Waiting {
        author: said.author().clone(),
        version: view.version(),
        since_ms: by.wall_ms,
        until_ms: by.wall_ms.saturating_add(wait_ms),
        approved_by: Vec::new(),
    };
    view.put(APPROVALS_TABLE, digest, encode(&waiting))?;
    view.put(WAITING_TABLE, digest, request)?;
    Ok(Step::Noted)
}

/// The request that a word is about, and of whom it needs the word.
fn found(view: &View<'_>, by: &By<'_>, of: &[u8; 32]) -> Result<(Waiting, Said, Need), Rejection> {
    let there = of_view(view, of).filter(|(waiting, _)| !waiting.is_over(by.wall_ms));
    let (waiting, said) = there.ok_or_else(|| {
        refused(
            of,
            "no such request waits: it is done, refused or over ('weir approvals list' shows what waits)",
        )
    })?;
    let alone = Need { approvals: 1, role: OperatorRole::Operator };
    let need = needs_of(view).of(said.body()).unwrap_or(alone);
    Ok((waiting, said, need))
}

fn may_say(by: &By<'_>, of: &[u8; 32], author: &SourceId, need: Need) -> Result<(), Rejection> {
    match by.operators.row(author).is_some_and(|row| row.role >= need.role) {
        true => Ok(()),
        false => {
            Err(refused(of, "the word of an admin is wanted: this operator's role does not count for it"))
        }
    }
}

fn given<'a>(
    view: &mut View<'_>,
    by: &By<'_>,
    author: &SourceId,
    of: &[u8; 32],
) -> Result<Step<'a>, Rejection> {
    let (mut waiting, said, need) = found(view, by, of)?;
    may_say(by, of, author, need)?;
    if waiting.author == *author || waiting.approved_by.contains(author) {
        return Err(refused(of, "this operator has said so already, and counts once"));
    }
    // Who asked must still be one who may ask for it.
    let may_ask = by.operators.row(&waiting.author);
    if !may_ask.is_some_and(|row| row.role.may_order(said.body())) {
        return Err(refused(of, "its author may not order it any more"));
    }
    waiting.approved_by.push(author.clone());
    if waiting.counted(by.operators, need).len() < usize::from(need.approvals) {
        view.put(APPROVALS_TABLE, of, encode(&waiting))?;
        return Ok(Step::Noted);
    }
    forget(view, of);
    Ok(Step::DoApproved(said.event, *of))
}

/// One who may approve a request, or who made it, ends it.
fn taken_back<'a>(
    view: &mut View<'_>,
    by: &By<'_>,
    author: &SourceId,
    of: &[u8; 32],
) -> Result<Step<'a>, Rejection> {
    let (waiting, _, need) = found(view, by, of)?;
    if waiting.author != *author {
        may_say(by, of, author, need)?;
    }
    forget(view, of);
    Ok(Step::Noted)
}

/// Decides on new needs.
pub(super) fn decide(view: &mut View<'_>, body: &EventBody) -> Result<(), Rejection> {
    let EventBody::Approval(about) = body else { return Ok(()) };
    let Approval::Needed(needs) = &**about else { return Ok(()) };
    let wrong = |problem| Rejection::Reference { resource: "approvals".into(), problem };
    if let Some(problem) = needs.problem() {
        return Err(wrong(problem));
    }
    can_be_met(view, needs).map_err(wrong)?;
    match *needs == Needs::default() {
        true => view.delete(APPROVALS_TABLE, NEEDS),
        false => view.put(APPROVALS_TABLE, NEEDS, encode(needs))?,
    }
    Ok(())
}

/// Whether there are as many operators as the needs say.
fn can_be_met(view: &View<'_>, needs: &Needs) -> Result<(), String> {
    let operators = rows(view);
    for (kind, need) in needs.all() {
        let there = operators.values().filter(|row| !row.removed && row.role >= need.role).count();
        if there < usize::from(need.approvals) {
            let role = if need.role == OperatorRole::Admin { "admins" } else { "operators" };
            return Err(format!(
                "{kind} needs the word of {} {role}, and there would be {there}: add one first, or change what is needed ('weir approvals require')",
                need.approvals
            ));
        }
    }
    Ok(())
}

/// An operator has changed or is gone, as the view has it: its words count no longer, and there must be enough without it.
pub(super) fn operator_changed(view: &mut View<'_>, whose: &SourceId) -> Result<(), Rejection> {
    can_be_met(view, &needs_of(view))
        .map_err(|problem| Rejection::Reference { resource: whose.0.clone(), problem })?;
    for (key, mut waiting) in all_of(view) {
        if waiting.author == *whose {
            forget(view, &key);
        } else if waiting.approved_by.contains(whose) {
            waiting.approved_by.retain(|who| who != whose);
            view.put(APPROVALS_TABLE, &key, encode(&waiting))?;
        }
    }
    Ok(())
}

/// A request that was approved and then rejected waits no longer.
pub(super) fn end(view: &mut View<'_>, digest: &[u8; 32]) {
    if view.get(APPROVALS_TABLE, digest).is_some() {
        forget(view, digest);
    }
}
