//! One event of the order: whether it may be decided on, what the apps decide, and what follows for who takes part.
//!
//! An operator's request ([`EventBody::Said`]) is decided as the event that its author made, whoever handed it on: with the author as
//! its source. One that is rejected has used up its number all the same, so that nobody who keeps a copy can have it decided later,
//! when the author has given it up. One that several must approve waits, and is decided on in the event of the last approval
//! (`approvals`). A join by a token ([`EventBody::JoinedBy`]) is decided as a join.

use super::admission::{Unauthentic, admit};
use super::dedup::{self, Seen};
use super::operators::{self, Asked, Operators};
use super::step::{Outcome, Output};
use super::{
    Core, SharedApp, UPDATE_BYTES_MAX, approvals, clock, controllers, conversion, feed, identities, since,
    tokens,
};
use std::borrow::Cow;
use std::sync::Arc;
use weir_base::codec::encoded_bytes;
use weir_model::domain::{DomainEvent, statement_of};
use weir_model::event::{Event, EventBody, SignedEvent, SourceId};
use weir_model::identity::IdentityEvent;
use weir_model::said::Said;
use weir_model::{Change, Entry, Label, Plan, PlannedUpdate, Version};
use weir_store::access::Identity;
use weir_store::name::namespace_of;
use weir_store::{Rejection, Store};
use weir_trust::said::digest;

impl Core {
    pub(super) fn decide(
        &mut self,
        signed: &SignedEvent,
        planned: &mut Vec<PlannedUpdate>,
        out: &mut Vec<Output>,
    ) -> Outcome {
        let wall_ms = clock::wall_of(&self.store, self.now_ms);
        if let Err(reason) = admit(&self.domain, self.registered(), wall_ms, signed) {
            return self.drop_event(signed, reason);
        }
        let event = &signed.event;
        if event.source == self.source {
            self.own_sequence = self.own_sequence.max(event.sequence);
        }
        match dedup::seen(&self.store, event) {
            Seen::Never => {}
            Seen::At(version) => {
                self.counters.duplicates += 1;
                return Outcome::Duplicate(version);
            }
            Seen::TooOld => {
                self.counters.duplicates += 1;
                return Outcome::TooOld;
            }
        }
        let mut request = None;
        let joined;
        let wanted = match &event.body {
            EventBody::Said(said) => {
                let digest = digest(&self.domain, said);
                match operators::asked(&self.store, said, &digest) {
                    Asked::Never => request = Some((&**said, digest)),
                    Asked::At(version) => {
                        self.counters.requests_again += 1;
                        return Outcome::Duplicate(version);
                    }
                    Asked::Used => return self.drop_event(signed, Unauthentic::NumberUsed),
                }
                &said.event
            }
            EventBody::JoinedBy(by) => {
                if let Err(reason) = tokens::admits(&self.store, &self.domain, by) {
                    return self.drop_event(signed, reason);
                }
                let body = EventBody::Joined(by.facts.clone());
                joined = Event { source: event.source.clone(), sequence: event.sequence, body };
                &joined
            }
            _ => event,
        };
        let version = Version(self.store.version().0 + 1);
        let mut view = self.store.view();
        let (wanted, approved) = match &request {
            None => (Some(Cow::Borrowed(wanted)), None),
            Some((said, digest)) => {
                let by = approvals::By { operators: &self.operators, wall_ms };
                match approvals::step(&mut view, &by, said, digest) {
                    Ok(approvals::Step::Do(wanted)) => (Some(wanted), None),
                    Ok(approvals::Step::DoApproved(event, of)) => (Some(Cow::Owned(event)), Some(of)),
                    Ok(approvals::Step::Noted) => (None, None),
                    Err(rejection) => {
                        self.counters.rejected += 1;
                        self.use_up(said, *digest, None);
                        return Outcome::Rejected(rejection);
                    }
                }
            }
        };
        let decided = match wanted.as_deref() {
            Some(wanted) => plan(&mut view, &self.apps, version, self.now_ms, wanted).and_then(|plan| {
                if let EventBody::JoinedBy(by) = &event.body {
                    tokens::join(&mut view, self.joined.get(&by.facts.name), self.now_ms, by)?;
                }
                let context = identities::Context {
                    domain: &self.domain,
                    believes_one: self.believes_one,
                    rules: self.rules,
                };
                let comes_back = identities::comes_back(&context, self.registered(), wanted);
                let changed = identities::decide(&mut view, self.registered(), context, self.now_ms, wanted)?;
                clock::decide(&mut view, self.now_ms, wanted)?;
                let ends = (self.may_end(), self.ended().is_some());
                conversion::decide(&mut view, ends, self.epoch, wanted)?;
                approvals::decide(&mut view, &wanted.body)?;
                since::decide(&mut view, &wanted.body)?;
                if let Some(actuator) = comes_back {
                    dedup::forget(&mut view, &SourceId::of_actuator(actuator));
                    dedup::forget_planes(&mut view, actuator);
                }
                Ok((plan, changed))
            }),
            None => Ok((Plan::default(), None)),
        };
        let decided = decided.and_then(|decided| {
            if let Some((said, digest)) = &request {
                operators::record(&mut view, said, *digest, version)?;
            }
            dedup::record(&mut view, event, version).map(|()| decided)
        });
        if let Some(EventBody::Removed { actuator }) = wanted.as_deref().map(|wanted| &wanted.body) {
            dedup::forget(&mut view, &SourceId::of_actuator(actuator));
            dedup::forget_planes(&mut view, actuator);
        }
        let (plan, changed) = match decided {
            Ok(decided) => decided,
            Err(rejection) => {
                self.counters.rejected += 1;
                if let Some((said, digest)) = request {
                    self.use_up(said, digest, approved);
                }
                return Outcome::Rejected(rejection);
            }
        };
        let writes = view.into_writes();
        // The other side of this is where operations are carried out: clients write the other kind only.
        debug_assert!(
            writes.iter().all(|write| namespace_of(&write.table).is_none()),
            "an app wrote a table of clients"
        );
        let change = feed::committed(version, self.now_ms, &writes);
        self.store.commit(version, writes);
        self.counters.committed += 1;
        self.counters.requests += u64::from(request.is_some());
        out.push(Output::Committed(Arc::new(change)));
        planned.extend(plan.updates);
        match changed {
            Some(source) if source.operator().is_some() => {
                self.operators = Arc::new(Operators::of_store(&self.store));
            }
            Some(source) => Arc::make_mut(&mut self.identities).changed(&self.store, &source),
            None => {}
        }
        if let Some(wanted) = wanted.as_deref() {
            if matches!(wanted.body, EventBody::Rule(_)) {
                self.operators = Arc::new(Operators::of_store(&self.store));
            }
            self.membership(&wanted.body, planned, out);
            if let EventBody::Converted(conversion) = &wanted.body {
                self.converted(conversion, out);
            }
        }
        Outcome::Committed(version)
    }

    fn drop_event(&mut self, signed: &SignedEvent, reason: Unauthentic) -> Outcome {
        self.counters.unauthentic.count(reason);
        tracing::warn!(source = %signed.event.source.0, %reason, "an ordered event is dropped");
        Outcome::Unauthentic(reason)
    }

    /// A request that was rejected is not decided when it comes again; nor is the one that it was the last approval of.
    fn use_up(&mut self, said: &Said, digest: [u8; 32], approved: Option<[u8; 32]>) {
        let mut view = self.store.view();
        if let Some(approved) = approved {
            approvals::end(&mut view, &approved);
        }
        // There is room for what is that small, or for nothing at all any more.
        if operators::record(&mut view, said, digest, Version::ZERO).is_ok() {
            let (version, writes) = (view.version(), view.into_writes());
            self.store.commit(version, writes);
        }
    }

    /// Who joined and who is gone, as far as sending is concerned.
    fn membership(&mut self, body: &EventBody, planned: &mut Vec<PlannedUpdate>, out: &mut Vec<Output>) {
        match body {
            EventBody::Joined(facts) => {
                self.scheduler.add_target(&facts.name);
                // Who was there before has it.
                if let Some(now) =
                    self.group_keys.controllers().filter(|_| !self.joined.contains_key(&facts.name))
                {
                    let change = Change::Put(Entry::Controllers(now));
                    planned.push(controllers(&facts.name, self.store.version(), change));
                }
                let principal = Identity::actuator(facts.name.as_str()).principal();
                self.principals.insert(principal, facts.name.clone());
                Arc::make_mut(&mut self.joined).insert(facts.name.clone(), facts.clone());
            }
            EventBody::Removed { actuator } => {
                planned.retain(|planned| {
                    planned.update.target != *actuator || statement_of(&planned.update).is_some()
                });
                self.principals.remove(&Identity::actuator(actuator.as_str()).principal());
                Arc::make_mut(&mut self.joined).remove(actuator);
                self.forged.remove(actuator);
                self.scheduler.remove_target(actuator, out);
            }
            EventBody::Identity(about) => self.identity(about, out),
            EventBody::Domain(about) => match &**about {
                DomainEvent::Heard { domain, through, .. } => self.outbox.taken(domain, *through),
                DomainEvent::Forgotten { domain } => {
                    planned
                        .retain(|planned| statement_of(&planned.update).is_none_or(|(to, ..)| to != domain));
                    self.outbox.forget(domain);
                }
                DomainEvent::Known(_) | DomainEvent::Controllers(_) | DomainEvent::Forwarded { .. } => {}
            },
            // Whatever else is said is the apps' alone; requests come as what they carry.
            _ => {}
        }
    }

    /// What a change of keys, which was decided, means for sessions.
    fn identity(&mut self, about: &IdentityEvent, out: &mut Vec<Output>) {
        let name = about.whose().actuator().and_then(|name| Label::new(name).ok());
        let Some(name) = name else { return };
        match about {
            IdentityEvent::Rotated(rotation) => {
                if let Some(facts) = Arc::make_mut(&mut self.joined).get_mut(&name) {
                    facts.identity = rotation.new;
                }
            }
            IdentityEvent::Revoked { reason, .. } => {
                self.scheduler.close(&name, &format!("it was revoked: {reason}"), out);
            }
            IdentityEvent::Certified { .. }
            | IdentityEvent::Settled { .. }
            | IdentityEvent::Introduced { .. }
            | IdentityEvent::Token { .. }
            | IdentityEvent::Operator { .. } => {}
        }
    }
}

/// Whether an event would change nothing, as far as the apps are concerned: no entry, no update. Also one that they would reject.
pub(crate) fn changes_nothing(store: &Store, apps: &[SharedApp], now_ms: u64, event: &Event) -> bool {
    let mut view = store.view();
    let version = view.version();
    let planned = plan(&mut view, apps, version, now_ms, event);
    planned.map_or(true, |plan| plan.updates.is_empty() && view.into_writes().is_empty())
}

/// Lets every app decide on an event; the first rejection stands for all.
fn plan(
    view: &mut weir_store::View<'_>,
    apps: &[SharedApp],
    version: Version,
    now_ms: u64,
    event: &Event,
) -> Result<Plan, Rejection> {
    let mut plan = Plan::default();
    for app in apps {
        let decided = app.decide(view, version, now_ms, event)?;
        for planned in &decided.plan.updates {
            let update = &planned.update;
            let bytes = encoded_bytes(update);
            if bytes > UPDATE_BYTES_MAX {
                let what = format!("update of {} for {}, bytes,", update.key, update.target);
                return Err(Rejection::limit(&what, bytes, UPDATE_BYTES_MAX));
            }
            if update.version != version {
                let problem = format!(
                    "app '{}' planned it at {}, but the event is ordered at {version}",
                    app.name(),
                    update.version
                );
                return Err(Rejection::Reference { resource: update.key.to_string(), problem });
            }
        }
        plan.updates.extend(decided.plan.updates);
    }
    Ok(plan)
}

/// What deciding on an event over a store would plan; the store stays as it is.
///
/// # Errors
/// The [`Rejection`] that the event would get.
pub fn dry_run(store: &Store, apps: &[SharedApp], now_ms: u64, event: &Event) -> Result<Plan, Rejection> {
    plan(&mut store.view(), apps, Version(store.version().0 + 1), now_ms, event)
}
