//! What clients of the control socket want: updates, the state in force, answers.

use super::captures::Wanted;
use super::mind::Mind;
use super::questions::Dropped;
use super::{Slow, SlowCounters};
use crate::control::clients::{Client, Request};
use crate::counters::Reason;
use crate::engine::counters::{EngineDrop, EngineEvent};
use crate::engine::wire::BySockets;
use crate::engine::{Command, EXTERNAL, Returned};
use crate::flow::{ChangeCause, Effects, Ingress};
use crate::ports::vhost::touched::All;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use weir_base::codec::encode;
use weir_base::limits::FRAME_BYTES_MAX;
use weir_model::event::EventBody;
use weir_model::local::{Answer, ENTRIES_CHUNK, FromSwitch, Question, ToSwitch, TraceFrom, TraceReport};
use weir_model::protocol::StateDigest;
use weir_model::session::STATE_CHUNK_KEYS;
use weir_model::signed::SignedUpdates;
use weir_model::update::Refusal;
use weir_model::{Ack, Change, Entry, Key, Update, Version};
use weir_packet::{FlowKey, Fragment, PacketError, Parsed};
use weir_trust::gate::{Gate, InForce};
use weir_trust::kept::{Cursor, Hands};

/// Most connections of one answer, which keeps it under the largest frame.
const CONNECTIONS_MAX: usize = 10_000;
/// Bytes of entries in one answer.
const ENTRIES_BYTES: usize = FRAME_BYTES_MAX / 2;
/// The next part of the state is sent to a client only when less than this waits for it, bytes.
const STATE_WAITING_BYTES: usize = 1024 * 1024;
/// How long the engine may take to answer a question.
const ENGINE_ANSWER_BOUND: Duration = Duration::from_secs(1);

/// How far a client has got the state in force.
pub struct StateCursor {
    client: Arc<Client>,
    got: Cursor,
}

/// Updates that lead to what is in force, in the order of the keys.
pub fn updates_in_force(gate: &Gate) -> impl Iterator<Item = Update> {
    gate.iter().filter_map(|(key, in_force)| {
        let entry = in_force.entry.clone()?;
        Some(Update {
            target: gate.actuator().clone(),
            key: key.clone(),
            version: in_force.version,
            expected: Version::ZERO,
            change: Change::Put(entry),
        })
    })
}

/// The mind, as updates of one frame are applied to it, and what is to be done outside of its tables then.
struct Applying<'m, M> {
    mind: &'m mut M,
    unapplied: &'m mut BTreeSet<Key>,
    now_ms: u64,
    effects: Vec<(Update, Effects)>,
}

impl<M: Mind> Applying<'_, M> {
    fn try_apply(&mut self, update: &Update) -> Result<(), Refusal> {
        let effects = self.mind.apply(self.now_ms, update)?;
        self.unapplied.remove(&update.key);
        self.effects.push((update.clone(), effects));
        Ok(())
    }
}

impl<M: Mind> Hands for Applying<'_, M> {
    fn apply(&mut self, _gate: &Gate, update: &Update) -> Result<(), Refusal> {
        self.try_apply(update)
    }

    /// What the tables refused when it was restored may fit meanwhile.
    fn again(&mut self, _gate: &Gate, update: &Update) -> Result<(), Refusal> {
        if self.unapplied.contains(&update.key) { self.try_apply(update) } else { Ok(()) }
    }

    /// Backwards: ports before what they need. A port that was not kept may have taken an address or a device from ports that are
    /// kept: so these are applied again, which changes nothing of those that are there.
    fn put_back(&mut self, gate: &Gate, keys: &BTreeSet<Key>) {
        let is_port = |key: &&Key| matches!(key, Key::Port { .. });
        let others =
            gate.iter().map(|(key, _)| key).filter(is_port).filter(|_| keys.iter().any(|key| is_port(&key)));
        let others: Vec<&Key> = others.filter(|key| !keys.contains(*key)).collect();
        for key in keys.iter().rev().chain(others) {
            let before = gate.get(key);
            let change = before.and_then(|before| before.entry.clone()).map_or(Change::Delete, Change::Put);
            let update = Update {
                target: gate.actuator().clone(),
                key: key.clone(),
                version: before.map_or(Version::ZERO, |before| before.version),
                expected: Version::ZERO,
                change,
            };
            if let Err(refusal) = self.try_apply(&update) {
                tracing::warn!(%key, version = %update.version, %refusal, "not put back");
                self.unapplied.insert(key.clone());
            }
        }
    }
}

impl<M: Mind> Slow<M> {
    pub(super) fn take_requests(&mut self) -> io::Result<()> {
        for _ in 0..super::REQUESTS_PER_TURN {
            let Ok(request) = self.requests.try_recv() else { return Ok(()) };
            self.take_request(request)?;
        }
        // More may wait: look again without sleeping.
        self.shared.slow_wake.wake();
        Ok(())
    }

    /// Does what a client wants.
    ///
    /// # Errors
    /// The engine is gone.
    pub(crate) fn take_request(&mut self, request: Request) -> io::Result<()> {
        let client = request.client;
        match request.body {
            ToSwitch::Updates(frame) => self.take_updates(&client, &frame, request.received)?,
            ToSwitch::SendState => {
                self.states.push(StateCursor { client, got: Cursor::default() });
                self.continue_states();
            }
            ToSwitch::Subscribe => {
                if !self.subscribers.iter().any(|known| Arc::ptr_eq(known, &client)) {
                    client.send(&FromSwitch::Ports(self.port_statuses()));
                    self.subscribers.push(client);
                }
            }
            ToSwitch::Attach { key } => self.attach_again(&key),
            ToSwitch::Ask { id, question } => self.take_question(&client, id, question),
            ToSwitch::ReadIdentity => self.read_identity(&client),
        }
        Ok(())
    }

    /// Takes a frame of updates through the gate, and acks it when the engine works with what it led to.
    fn take_updates(
        &mut self,
        client: &Arc<Client>,
        frame: &SignedUpdates,
        received: Instant,
    ) -> io::Result<()> {
        if frame.updates.is_empty() {
            // The proof of a batch of which updates may come; what it is worth is seen then.
            self.counters.proofs_ahead += u64::from(self.kept.gate_mut().proves(&frame.header));
            return Ok(());
        }
        // The misses of this turn may have sent the shadow away, and updates take flows out.
        self.wait_for_shadow()?;
        let now_ms = self.shared.now_ms();
        let mut applying =
            Applying { mind: &mut self.mind, unapplied: &mut self.unapplied, now_ms, effects: Vec::new() };
        if let Err(error) = self.kept.mend(&mut applying) {
            self.counters.checkpoint_errors += 1;
            tracing::error!(%error, "the checkpoint cannot be opened: nothing is acked until it can");
            return Ok(());
        }
        let taken = self.kept.take(frame, usize::MAX, &mut applying);
        let mut changed = Vec::new();
        let mut changes = Vec::new();
        for (update, effect) in applying.effects {
            changes.append(&mut self.take_effects(&update, effect));
            changed.push(update);
        }
        self.decide_again(&changes)?;
        self.publish_and_wait()?;
        self.release_held(&changed)?;
        let took = received.elapsed();
        self.counters.update.add(took);
        self.counters.update_us_max = self.counters.update_us_max.max(took.as_micros() as u64);
        if let Some(error) = taken.failure {
            // Without an ack the controller sends it again.
            self.counters.checkpoint_errors += 1;
            tracing::error!(%error, "the checkpoint cannot be written: nothing is acked until it can");
            let gate = self.kept.gate();
            changed
                .retain(|update| gate.get(&update.key).is_some_and(|known| known.version == update.version));
        }
        // Whose forgeries these are is looked up by who asks: what else was in the frame is for all.
        let (forged, acks): (Vec<Ack>, Vec<Ack>) =
            taken.acks.into_iter().partition(|ack| ack.result == Err(Refusal::Forged));
        for acks in [acks, forged].into_iter().filter(|acks| !acks.is_empty()) {
            match self.identity.signer.acks(acks) {
                Ok(acks) => client.send(&FromSwitch::Acks(acks)),
                Err(error) => tracing::error!(%error, "nothing is acked until it can"),
            }
        }
        if changed.iter().any(|update| matches!(update.key, Key::Sought { .. })) {
            self.tell_found();
            self.tell_packets();
        }
        self.tell_changes(changed);
        Ok(())
    }

    fn tell_changes(&mut self, changed: Vec<Update>) {
        if self.subscribers.is_empty() {
            return;
        }
        for update in changed {
            let entry: Option<Entry> = match update.change {
                Change::Put(entry) => Some(entry),
                Change::Delete => None,
            };
            self.tell(&FromSwitch::Changed { key: update.key, version: update.version, entry });
        }
    }

    /// Signs with the key that the file of the identity holds now.
    fn read_identity(&mut self, client: &Arc<Client>) {
        if let Err(error) = self.identity.signer.read_again() {
            tracing::error!(%error, "the key stays the one before");
        }
        match self.identity.signer.public_key() {
            Ok(key) => client.send(&FromSwitch::Identity { key }),
            Err(error) => tracing::error!(%error, "which key signs is not said"),
        }
    }

    /// Sends an event to all subscribers, numbered and signed: whoever carries it cannot change it.
    pub(super) fn tell_event(&mut self, body: EventBody) {
        if self.subscribers.is_empty() {
            return;
        }
        match self.identity.signer.event(body) {
            Ok(signed) => self.tell(&FromSwitch::Event(signed)),
            Err(error) => {
                self.counters.events_unnumbered += 1;
                tracing::warn!(%error, "an event is not told");
            }
        }
    }

    /// Sends a frame to all subscribers.
    pub(super) fn tell(&mut self, frame: &FromSwitch) {
        self.subscribers.retain(|client| client.is_alive());
        for client in &self.subscribers {
            client.send(frame);
        }
    }

    /// Sends further parts of the state to those who wait for it and have taken the earlier ones.
    pub(super) fn continue_states(&mut self) {
        let mut states = std::mem::take(&mut self.states);
        states.retain_mut(|cursor| {
            while cursor.client.is_alive() && cursor.client.waiting_bytes() < STATE_WAITING_BYTES {
                if self.send_state(cursor) {
                    return false;
                }
            }
            cursor.client.is_alive()
        });
        self.states = states;
    }

    /// Digest of what is in force.
    fn digest(&self) -> StateDigest {
        let gate = self.kept.gate();
        let refused = self.unapplied.iter().filter_map(|key| gate.get(key)).map(InForce::content);
        StateDigest(refused.fold(gate.digest().0, u128::wrapping_sub))
    }

    /// Sends one part; returns whether it was the last.
    fn send_state(&self, cursor: &mut StateCursor) -> bool {
        let told = |key: &Key, known: &InForce| {
            (!self.unapplied.contains(key)).then(|| (key.clone(), known.version))
        };
        let (entries, last) = cursor.got.part(self.kept.gate(), STATE_CHUNK_KEYS, told);
        cursor.client.send(&FromSwitch::State { digest: self.digest(), entries, last });
        last
    }

    fn take_question(&mut self, client: &Arc<Client>, id: u64, question: Question) {
        let now_ms = self.shared.now_ms();
        let answer = match question {
            Question::Entries { after } => self.entries(after.as_ref()),
            Question::Ports => Answer::Ports(self.port_statuses()),
            Question::Counters => Answer::Counters(self.all_counters()),
            Question::Connections { limit } => {
                Answer::Connections(self.mind.connections(now_ms, (limit as usize).min(CONNECTIONS_MAX)))
            }
            Question::Trace { from, frame } => match self.trace(now_ms, &from, &frame) {
                Ok(report) => Answer::Trace(report),
                Err(error) => Answer::Error(error),
            },
            Question::Capture { port, frames_max, duration_ms, snap_bytes } => {
                let wanted = Wanted { port, frames_max, duration_ms, snap_bytes };
                match self.start_capture(client, id, &wanted) {
                    Ok(()) => return,
                    Err(error) => Answer::Error(error),
                }
            }
        };
        client.send(&FromSwitch::Answer { id, answer });
    }

    fn trace(&mut self, now_ms: u64, from: &TraceFrom, frame: &[u8]) -> Result<TraceReport, String> {
        let fragment = match weir_packet::parse(frame) {
            Ok(parsed) if parsed.fragment != Fragment::Whole => {
                Some(self.look_fragment(self.mind.ingress_of(from)?, parsed)?)
            }
            _ => None,
        };
        // A trace walks as a packet does, and fails as one does.
        let traced =
            weir_base::contain::contain(|| self.mind.trace(now_ms, from, frame, fragment, self.kept.gate()));
        traced
            .unwrap_or_else(|fault| Err(format!("a fault of the program at this packet: {}", fault.message)))
    }

    /// Asks the engine what would become of a fragment.
    fn look_fragment(&mut self, ingress: Ingress, parsed: Parsed) -> Result<Result<FlowKey, Reason>, String> {
        let asked = self.command(Command::LookFragment(Box::new((ingress, parsed))));
        asked.map_err(|error| error.to_string())?;
        loop {
            match self.link.returned.recv_timeout(ENGINE_ANSWER_BOUND) {
                Ok(Returned::Fragment(answer)) => return Ok(answer),
                Ok(other) => self.take_one(other),
                Err(_) => {
                    return Err("the engine did not say where the datagram of this fragment is".to_string());
                }
            }
        }
    }

    fn port_statuses(&self) -> Vec<weir_model::local::PortStatus> {
        self.ports.statuses(self.kept.gate(), &self.shared.counters)
    }

    fn entries(&self, after: Option<&Key>) -> Answer {
        let gate = self.kept.gate();
        let behind: Box<dyn Iterator<Item = (&Key, &InForce)>> = match after {
            Some(after) => Box::new(gate.iter_after(after)),
            None => Box::new(gate.iter()),
        };
        let (mut entries, mut bytes, mut last) = (Vec::new(), 0, true);
        for (key, in_force) in behind.filter(|(key, _)| !self.unapplied.contains(*key)) {
            let Some(entry) = &in_force.entry else { continue };
            if entries.len() == ENTRIES_CHUNK || bytes > ENTRIES_BYTES {
                last = false;
                break;
            }
            let item = (key.clone(), in_force.version, entry.clone(), in_force.header.clone());
            bytes += encode(&item).len();
            entries.push(item);
        }
        Answer::Entries { entries, last }
    }

    /// All counters by name with labels.
    pub(super) fn all_counters(&self) -> Vec<(String, u64)> {
        let engine = &self.shared.counters;
        let mut all = Vec::new();
        let mut put = |name: String, value: u64| all.push((name, value));
        for (index, name, own) in self.mind.counters() {
            let counted = engine.rule(index).map(|pair| (pair.packets.get(), pair.bytes.get()));
            let (packets, bytes) = counted.unwrap_or_default();
            if bytes > 0 {
                put(with_suffix(&name, "_bytes"), bytes);
            }
            put(name, own + packets);
        }
        for (name, value) in self.mind.gauges() {
            put(name.to_string(), value);
        }
        for reason in EngineDrop::ALL {
            put(format!("drops{{reason=\"{}\"}}", reason.as_str()), engine.dropped(*reason).packets.get());
        }
        for error in PacketError::ALL {
            let counted = engine.parse_error(*error).packets.get();
            put(format!("parse_errors{{error=\"{}\"}}", error.as_str()), counted);
        }
        for event in EngineEvent::ALL {
            put(format!("engine_{}", event.as_str()), engine.event(*event).get());
        }
        for reason in BySockets::ALL {
            let counted = engine.by_sockets(*reason).get();
            put(format!("underlay_by_sockets{{reason=\"{}\"}}", reason.as_str()), counted);
        }
        for status in self.port_statuses() {
            let name = &status.name;
            for (metric, value) in [
                ("port_rx_frames", status.rx_frames),
                ("port_rx_bytes", status.rx_bytes),
                ("port_tx_frames", status.tx_frames),
                ("port_tx_bytes", status.tx_bytes),
                ("port_up", u64::from(status.up)),
            ] {
                put(
                    format!("{metric}{{network=\"{}\",endpoint=\"{}\"}}", name.network, name.endpoint),
                    value,
                );
            }
        }
        for (name, lost) in self.ports.lost(self.kept.gate()) {
            put(format!("port_rx_lost{{network=\"{}\",endpoint=\"{}\"}}", name.network, name.endpoint), lost);
        }
        for (name, (lent, touched)) in self.ports.memory(self.kept.gate()) {
            for (metric, bytes) in [("lent", lent), ("touched", touched)] {
                let labels = format!("network=\"{}\",endpoint=\"{}\"", name.network, name.endpoint);
                put(format!("port_memory_{metric}_bytes{{{labels}}}"), bytes);
            }
        }
        put("guest_memory_touched_bytes".into(), All::process().bytes());
        put("guest_memory_refused".into(), All::process().refused());
        let outside = engine.port(EXTERNAL);
        put("external_rx_frames".into(), outside.rx.packets.get());
        put("external_tx_frames".into(), outside.tx.packets.get());
        self.own_counters(&mut put);
        merged(all)
    }

    fn own_counters(&self, put: &mut dyn FnMut(String, u64)) {
        let SlowCounters {
            resolved,
            late,
            not_installed,
            idle,
            inject_overflow,
            punted,
            punt_lost,
            punt_refused,
            journal_errors,
            checkpoint_errors,
            events_unnumbered,
            proofs_ahead,
            attach_failures,
            update_us_max,
            update,
        } = self.counters;
        let gate = &self.kept.gate().counters;
        let asked = &self.questions.counters;
        for reason in Dropped::ALL {
            let count = asked.dropped[reason as usize];
            put(format!("question_drops{{reason=\"{}\"}}", reason.as_str()), count);
        }
        for (name, value) in [
            ("misses_resolved", resolved),
            ("misses_late", late),
            ("flows_not_installed", not_installed),
            ("flows_idle", idle),
            ("flows_replaced", self.flows.changes.replaced),
            ("flows_invalidated", self.flows.changes.taken_out),
            ("flows", self.flows.count() as u64),
            ("flow_table_bytes", self.flows.bytes() as u64),
            ("flow_dependents_bytes", self.flows.dependents_bytes() as u64),
            ("sender_zones", self.flows.zone_count() as u64),
            ("inject_overflow", inject_overflow),
            ("punted", punted),
            ("punt_lost", punt_lost),
            ("punt_refused", punt_refused),
            ("journal_errors", journal_errors),
            ("journal_bytes", self.journal.length_bytes),
            ("journal_cut_bytes", self.journal.cut_bytes),
            ("checkpoint_errors", checkpoint_errors),
            ("events_unnumbered", events_unnumbered),
            ("proofs_ahead", proofs_ahead),
            ("attach_failures", attach_failures),
            ("faults", self.faults.count),
            ("faults_of_slow_path", self.faults.own),
            ("fault_write_errors", self.faults.write_errors),
            ("update_us_max", update_us_max),
            ("usage_left_out", self.usage.left_out),
            ("questions_open", self.questions.open() as u64),
            ("questions_held_frames", self.questions.held().0 as u64),
            ("questions_held_bytes", self.questions.held().1 as u64),
            ("questions_asked", asked.asked),
            ("questions_repeated", asked.repeated),
            ("questions_answered", asked.answered),
            ("questions_given_up", asked.given_up),
            ("questions_released", asked.released),
            ("question_us_max", asked.answer_us_max),
            ("packets_in_told", asked.told),
            ("packets_in_untold", asked.untold),
            ("updates_applied", gate.applied),
            ("updates_repeated", gate.repeated),
            ("updates_forged", gate.forged),
            ("updates_endorsed", gate.endorsed),
            ("updates_endorsed_badly", gate.endorsed_badly),
            ("updates_refused", gate.refused),
            ("updates_not_restored", self.unapplied.len() as u64),
            ("checkpoint_cut_bytes", gate.journal_cut_bytes),
            ("checkpoint_compactions", gate.compactions),
            ("clients_dropped", self.control.clients_dropped.load(Relaxed)),
            ("clients_malformed", self.control.clients_malformed.load(Relaxed)),
            ("clients_refused", self.control.clients_refused.load(Relaxed)),
        ] {
            put(name.to_string(), value);
        }
        for (name, is_silent, counters) in self.probes.all() {
            put(format!("gateway_silent{{gateway=\"{name}\"}}"), is_silent.into());
            put(format!("gateway_silences{{gateway=\"{name}\"}}"), counters.silent);
            put(format!("gateway_probes{{gateway=\"{name}\"}}"), counters.sent);
            put(format!("gateway_probes_unanswered{{gateway=\"{name}\"}}"), counters.unanswered);
        }
        for cause in ChangeCause::ALL {
            let (label, changes) = (cause.as_str(), &self.flows.changes);
            put(format!("flows_looked_at{{cause=\"{label}\"}}"), changes.looked_at[cause as usize]);
            put(format!("flows_decided_again{{cause=\"{label}\"}}"), changes.again[cause as usize]);
        }
        for (name, value) in
            update.counters("update_us").into_iter().chain(asked.answers.counters("question_us"))
        {
            put(name, value);
        }
        for (name, value) in self.handover.counters.all() {
            put(name.to_string(), value);
        }
        for (name, value) in self.underlay.iter().flat_map(|underlay| underlay.counters()) {
            put(name, value);
        }
    }
}

/// Counts under one name are one count: the engine and the resolver may drop for the same reason.
pub fn merged(counters: Vec<(String, u64)>) -> Vec<(String, u64)> {
    let mut places = std::collections::HashMap::new();
    let mut merged: Vec<(String, u64)> = Vec::with_capacity(counters.len());
    for (name, value) in counters {
        match places.get(&name) {
            Some(&place) => {
                let (_, sum): &mut (String, u64) = &mut merged[place];
                *sum += value;
            }
            None => {
                places.insert(name.clone(), merged.len());
                merged.push((name, value));
            }
        }
    }
    merged
}

/// A metric's name with something between the name and the labels.
pub fn with_suffix(name: &str, suffix: &str) -> String {
    match name.find('{') {
        Some(labels) => format!("{}{suffix}{}", &name[..labels], &name[labels..]),
        None => format!("{name}{suffix}"),
    }
}
