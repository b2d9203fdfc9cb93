//! The slow thread's part of a hand-over (row A30; [`crate::handover`]): it owns what is carried.
//!
//! While another process copies, this thread goes on as ever, and answers between its turns. In the blackout it stands
//! still: the engine is paused, and nobody changes anything until the verdict has come.

use super::Slow;
use super::mind::Mind;
use crate::conntrack::Changes;
use crate::engine::{Carried, Command, Miss, Returned};
use crate::flow::{Ingress, MissReason, PortIndex};
use crate::fragments::{CarriedPlace, Fragments};
use crate::handover::asks::{Ask, FrozenState, Verdict};
use crate::handover::message::{Frozen, HeldFrame};
use crate::handover::new::Taken;
use crate::handover::{DRAIN_LIMIT, GUESTS_LIMIT, HandoverCounters, PAUSE_LIMIT};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};
use weir_model::Key;
use weir_packet::virtio::{HEADER_BYTES, VirtioNetHeader};

/// Pause between two looks at the engine in the blackout.
const LOOK: Duration = Duration::from_micros(50);

/// The slow thread's end of hand-overs.
pub struct HandoverPort {
    /// What is asked.
    pub asks: Receiver<Ask>,
    /// What is counted.
    pub counters: Arc<HandoverCounters>,
    /// Set when another process serves.
    pub left: Arc<AtomicBool>,
}

impl<M: Mind> Slow<M> {
    /// Answers what is asked. Returns whether another process serves.
    pub(super) fn take_asks(&mut self) -> io::Result<bool> {
        while let Ok(ask) = self.handover.asks.try_recv() {
            // Who asked and does not wait any more has given up.
            match ask {
                Ask::Note(answer) => {
                    self.mind.note_changes(true);
                    let _ = answer.send(());
                }
                Ask::Part { from, most, answer } => {
                    let _ = answer.send(self.mind.connections_part(from, most));
                    // One part a turn: packets come first.
                    self.shared.slow_wake.wake();
                    return Ok(false);
                }
                Ask::Changes(answer) => {
                    let _ = answer.send(self.mind.changed_connections());
                }
                Ask::Forget => self.mind.note_changes(false),
                Ask::Freeze { answer, verdict } => {
                    let leaves = self.stand_still(&answer, &verdict)?;
                    self.handover.left.store(leaves, Relaxed);
                    return Ok(leaves);
                }
            }
        }
        Ok(false)
    }

    fn stand_still(
        &mut self,
        answer: &SyncSender<Result<Box<FrozenState>, String>>,
        verdict: &Receiver<Verdict>,
    ) -> io::Result<bool> {
        self.control.paused.store(true, Relaxed);
        let state = self.freeze()?;
        let _ = answer.send(state);
        let leaves = verdict.recv() == Ok(Verdict::Leave);
        self.control.paused.store(leaves, Relaxed);
        if leaves {
            self.ports.leave();
            return Ok(true);
        }
        self.ports.thaw();
        self.mind.note_changes(false);
        if let Some(underlay) = &self.underlay {
            underlay.go_on();
        }
        self.command(Command::Resume)?;
        Ok(false)
    }

    /// Pauses the engine, ends what is under way, and says what there is.
    fn freeze(&mut self) -> io::Result<Result<Box<FrozenState>, String>> {
        self.wait_for_shadow()?;
        if let Some(underlay) = &self.underlay {
            // First: what comes from now on waits in the sockets, which go over. The engine empties the rings when it pauses.
            underlay.leave();
        }
        self.command(Command::Pause)?;
        let is_paused = |returned: &Returned| matches!(returned, Returned::Paused);
        if self.wait_returned(PAUSE_LIMIT, is_paused)?.is_none() {
            return Ok(Err("the engine does not end its turn".into()));
        }
        self.drain()?;
        self.command(Command::Carry)?;
        let is_carried = |returned: &Returned| matches!(returned, Returned::Carried(_));
        let Some(Returned::Carried(carried)) = self.wait_returned(PAUSE_LIMIT, is_carried)? else {
            return Ok(Err("the engine does not say what it has".into()));
        };
        // What is told to the journal is in it, before another process writes it.
        self.write_journal();
        let Some(changes) = self.mind.changed_connections() else {
            return Ok(Err("more connections changed than can be noted: try again".into()));
        };
        let (taps, veths) = (self.ports.carried_taps(), self.ports.carried_veths());
        let (guests, guests_left) = self.ports.carried_guests(GUESTS_LIMIT);
        let key_of = |port: PortIndex| self.ports.key(port).cloned();
        let now_ms = self.shared.now_ms();
        let fragments = carried.fragments.carried(now_ms as u32, key_of);
        let held = self.questions.held_frames().filter_map(|held| self.held_frame(held)).collect();
        let end = Frozen {
            taps: taps.len() as u32,
            guests: guests.len() as u32,
            guests_left,
            checkpoint_bytes: 0,
            journal_bytes: self.journal.length_bytes,
        };
        Ok(Ok(Box::new(FrozenState {
            changes,
            taps,
            veths,
            guests,
            fragments,
            peers: carried.peers,
            gateways: self.probes.carried(),
            held,
            end,
        })))
    }

    /// Waits for something of the engine, and takes what else comes.
    fn wait_returned(
        &mut self,
        limit: Duration,
        wanted: impl Fn(&Returned) -> bool,
    ) -> io::Result<Option<Returned>> {
        use std::sync::mpsc::RecvTimeoutError;
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.link.returned.recv_timeout(left) {
                Ok(returned) if wanted(&returned) => return Ok(Some(returned)),
                Ok(returned) => self.take_one(returned),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the engine has ended")),
            }
        }
    }

    /// Resolves what has missed, and waits until the engine has sent it on.
    fn drain(&mut self) -> io::Result<()> {
        let until = Instant::now() + DRAIN_LIMIT;
        loop {
            self.take_returned();
            if self.flows.is_ready() {
                self.take_misses()?;
                self.publish()?;
            }
            if self.flows.is_ready() && self.link.misses.peek().is_none() && self.link.injects.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                let left = self.link.misses.waiting() + self.link.injects.waiting();
                self.handover.counters.frames_left.fetch_add(left as u64, Relaxed);
                tracing::warn!(left, "frames that the slow path had no time for are lost at the hand-over");
                return Ok(());
            }
            self.shared.engine_wake.wake();
            std::thread::sleep(LOOK);
        }
    }

    fn held_frame(&self, (miss, frame): &(Miss, Vec<u8>)) -> Option<HeldFrame> {
        let Ingress::Port(port) = miss.ingress else { return None };
        let mut header = [0; HEADER_BYTES];
        // There is room for it.
        let _ = miss.virtio.encode(&mut header, HEADER_BYTES);
        Some(HeldFrame {
            place: CarriedPlace::Port(self.ports.key(port)?.clone()),
            header,
            frame: frame.clone(),
        })
    }

    /// Takes connections over.
    pub(crate) fn carry_connections(&mut self, changes: &Changes) {
        self.mind.carry_connections(changes);
    }

    /// Takes in what came into force since the checkpoint was read, while the other process still writes it.
    pub(crate) fn follow(&mut self) -> io::Result<()> {
        let now_ms = self.shared.now_ms();
        for update in self.kept.gate_mut().more()? {
            match self.mind.apply(now_ms, &update) {
                Ok(effects) => {
                    self.unapplied.remove(&update.key);
                    // Nothing is forwarded here yet, so there are no flows to decide again.
                    drop(self.take_effects(&update, effects));
                }
                Err(refusal) => {
                    tracing::warn!(key = %update.key, %refusal, "not taken over");
                    self.unapplied.insert(update.key);
                }
            }
        }
        Ok(())
    }

    /// Makes all that the other process had this one's own. It stands still; the engine of this one runs, or will soon.
    pub(crate) fn take_over(&mut self, mut taken: Taken, fragments: Fragments) -> io::Result<()> {
        self.follow()?;
        self.kept.gate_mut().own()?;
        // The state of the connections has come by itself; the journal was read before.
        if self.journal.more().is_err() {
            self.journal.follow_anew()?;
        }
        self.journal.own()?;
        for changes in &taken.changes {
            self.mind.carry_connections(changes);
        }
        let mut carried = Carried { fragments, peers: std::mem::take(&mut taken.peers) };
        if !taken.fragments.is_empty() || !carried.peers.is_empty() {
            let number_of = |key: &Key| self.ports.number(key);
            carried.fragments.carry(&taken.fragments, self.shared.now_ms() as u32, number_of);
            self.command(Command::Take(Box::new(carried)))?;
        }
        self.carry_gateways(&taken.gateways);
        self.adopt(&mut taken);
        self.take_attached();
        for held in &taken.held {
            self.take_held(held);
        }
        self.publish()?;
        self.command(Command::Resume)
    }

    /// A frame that waited in the other process: it is asked about anew.
    fn take_held(&mut self, held: &HeldFrame) {
        let CarriedPlace::Port(key) = &held.place else { return };
        let Some(port) = self.ports.number(key) else { return };
        let Ok(parsed) = weir_packet::parse(&held.frame) else { return };
        let Ok(virtio) = VirtioNetHeader::decode(&held.header, HEADER_BYTES) else { return };
        let miss = Miss {
            ingress: Ingress::Port(port),
            key: weir_packet::FlowKey::new(0, &parsed),
            reason: MissReason::NoFlow,
            virtio,
            class: usize::from(port),
        };
        self.resolve(&miss, &held.frame);
    }
}
