//! Frames that the slow path gives back or makes, and what is sent before it gets old tables back.
//!
//! Invariant: when old tables go back, whatever was decided by them or by the slow path before it gave the new ones is sent or dropped
//! and counted. So the slow path's ack of an update means that nothing passes any more by what was in force before.

use super::{Engine, Inject};

/// Frames that the slow path gives back in one turn.
const INJECTS_PER_TURN: usize = 64;

impl Engine {
    /// Takes frames of the slow path; returns whether there were any.
    pub(super) fn take_injects(&mut self) -> bool {
        for count in 0..INJECTS_PER_TURN {
            if self.inject_one() {
                continue;
            }
            if self.channels.injects.peek().is_none() {
                return count > 0;
            }
            // The tables that it was put back for are in the other channel.
            self.take_commands();
        }
        true
    }

    /// Sends all that was decided by the tables before these: what is gathered, and what the slow path had given when it gave
    /// these. Whoever gets the old tables back may say that nothing passes by them any more.
    pub(super) fn settle(&mut self) {
        for _ in 0..self.channels.injects.waiting() {
            if !self.inject_one() {
                break;
            }
        }
        if self.path.end_turn() {
            self.shared.slow_wake.wake();
        }
    }

    /// Takes the oldest frame of the slow path; false if there is none, or it needs newer tables than these.
    fn inject_one(&mut self) -> bool {
        let Some((inject, _)) = self.channels.injects.peek() else { return false };
        if let Inject::Again { generation, .. } = inject
            && generation > self.path.generation()
        {
            return false;
        }
        self.contained(|engine| {
            if let Some((inject, frame)) = engine.channels.injects.peek() {
                engine.path.inject(&inject, frame, &mut engine.channels.misses);
            }
        });
        self.channels.injects.pop();
        true
    }
}

#[cfg(test)]
mod tests;
