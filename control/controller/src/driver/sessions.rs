//! The sessions that are open: one for each actuator, with its outbound queue and open questions.

use super::SessionSettings;
use super::locking::locked;
use crate::Error;
use crate::core::identities::Certified;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use weir_model::Label;
use weir_model::identity::KeyHash;
use weir_model::local::{Answer, Question};
use weir_model::session::ToActuator;
use weir_model::signed::{SignedUpdates, UnsignedUpdates};

/// Parts of one answer that may wait for whoever asked.
const ANSWER_PARTS_MAX: usize = 64;

struct Open {
    session: u64,
    software: String,
    protocol: u32,
    shown: Certified,
    outbound: mpsc::Sender<ToActuator>,
    questions: HashMap<u64, mpsc::Sender<Answer>>,
    next_question: u64,
}

/// See the module.
pub(super) struct Sessions {
    settings: SessionSettings,
    open: Mutex<HashMap<Label, Open>>,
    next: AtomicU64,
    /// Where the controllers of the group are, and the number of this list: 0 is that of the founders, whom every
    /// actuator knows by joining.
    controllers: Mutex<(u64, Vec<String>)>,
    /// Sessions opened.
    pub opened: AtomicU64,
    /// Sessions ended by a newer one of the same actuator.
    pub replaced: AtomicU64,
    /// Sessions closed because their peer did not read.
    pub overflowed: AtomicU64,
    /// Frames of updates that were kept from a peer of an older protocol, which cannot read them.
    pub unreadable: AtomicU64,
    /// Answers that nobody waits for, or faster than they are read.
    pub answers_dropped: AtomicU64,
}

/// What of a frame a peer can read that speaks this protocol. Updates that it cannot read stay unacked: it has an older release than the one
/// that was told of these keys.
fn readable(mut frame: ToActuator, protocol: u32) -> Option<ToActuator> {
    let (ToActuator::Updates(SignedUpdates { updates, .. })
    | ToActuator::Unsigned(UnsignedUpdates { updates, .. })) = &mut frame
    else {
        return Some(frame);
    };
    updates.retain(|proven| proven.update.key.since_protocol() <= protocol);
    if updates.is_empty() { None } else { Some(frame) }
}

impl Sessions {
    pub fn new(settings: SessionSettings) -> Sessions {
        Sessions {
            settings,
            open: Mutex::new(HashMap::new()),
            next: AtomicU64::new(1),
            controllers: Mutex::default(),
            opened: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            answers_dropped: AtomicU64::new(0),
        }
    }

    /// Opens a session, and ends the one that the actuator had. `first` is its first frame.
    pub fn open(
        &self,
        actuator: &Label,
        (software, protocol, shown): (String, u32, Certified),
        first: ToActuator,
    ) -> (u64, mpsc::Receiver<ToActuator>) {
        let (outbound, queue) = mpsc::channel(self.settings.outbound_frames_max.max(2));
        // The queue is empty, so there is room for both.
        let _ = outbound.try_send(first);
        let mut open = locked(&self.open);
        if let Some(frame) = self.controllers() {
            let _ = outbound.try_send(frame);
        }
        let session = self.next.fetch_add(1, Ordering::SeqCst);
        let new = Open {
            session,
            software,
            protocol,
            shown,
            outbound,
            questions: HashMap::new(),
            next_question: 1,
        };
        if open.insert(actuator.clone(), new).is_some() {
            self.replaced.fetch_add(1, Ordering::Relaxed);
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        (session, queue)
    }

    fn controllers(&self) -> Option<ToActuator> {
        let (number, sessions) = locked(&self.controllers).clone();
        (number > 0 && !sessions.is_empty()).then_some(ToActuator::Controllers { number, sessions })
    }

    /// Where the controllers are, as far as this one knows.
    pub fn known_controllers(&self) -> Vec<String> {
        locked(&self.controllers).1.clone()
    }

    /// Takes over where the controllers are, and tells everybody when that is new.
    pub fn set_controllers(&self, number: u64, sessions: Vec<String>) {
        {
            let mut known = locked(&self.controllers);
            let is_first = known.1.is_empty();
            if known.0 >= number && !is_first || known.1 == sessions {
                known.0 = known.0.max(number);
                return;
            }
            *known = (number.max(known.0), sessions);
        }
        let Some(frame) = self.controllers() else { return };
        for open in locked(&self.open).values() {
            // One whose queue is full is about to be closed, and hears it in its next session.
            let _ = open.outbound.try_send(frame.clone());
        }
    }

    /// Forgets a session that ended.
    pub fn ended(&self, actuator: &Label, session: u64) {
        let mut open = locked(&self.open);
        if open.get(actuator).is_some_and(|open| open.session == session) {
            open.remove(actuator);
        }
    }

    /// Sends a frame, or closes the session when its queue is full.
    pub fn send(&self, actuator: &Label, session: u64, frame: ToActuator) {
        let mut open = locked(&self.open);
        let Some(entry) = open.get(actuator).filter(|open| open.session == session) else { return };
        let Some(frame) = readable(frame, entry.protocol) else {
            self.unreadable.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if entry.outbound.try_send(frame).is_err() {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%actuator, session, "closed session: the peer does not read");
            open.remove(actuator);
        }
    }

    /// Sends a frame over whichever session an actuator has. It is lost when there is none.
    pub fn tell(&self, actuator: &Label, frame: ToActuator) {
        let session = locked(&self.open).get(actuator).map(|open| open.session);
        if let Some(session) = session {
            self.send(actuator, session, frame);
        }
    }

    /// Tells the peer why, and closes.
    pub fn close(&self, actuator: &Label, session: u64, reason: String) {
        self.send(actuator, session, ToActuator::Refused(reason));
        self.ended(actuator, session);
    }

    pub fn close_all(&self) {
        locked(&self.open).clear();
    }

    pub fn count(&self) -> usize {
        locked(&self.open).len()
    }

    /// Whether an actuator has a session.
    pub fn is_open(&self, actuator: &Label) -> bool {
        locked(&self.open).contains_key(actuator)
    }

    /// Release of the software at an actuator.
    pub fn software(&self, actuator: &Label) -> Option<String> {
        locked(&self.open).get(actuator).map(|open| open.software.clone())
    }

    /// The certificate that an actuator shows: its key, and when it is over.
    pub fn shown(&self, actuator: &Label) -> Option<(KeyHash, u64)> {
        locked(&self.open).get(actuator).map(|open| (open.shown.key, open.shown.until_s))
    }

    /// Asks a question; its answers come by the receiver.
    pub fn ask(&self, actuator: &Label, question: Question) -> Result<mpsc::Receiver<Answer>, Error> {
        let mut open = locked(&self.open);
        let entry = open.get_mut(actuator).ok_or_else(|| Error::NotConnected(actuator.clone()))?;
        entry.questions.retain(|_, asker| !asker.is_closed());
        let limit = self.settings.questions_max;
        if entry.questions.len() >= limit {
            return Err(Error::Overloaded { what: "questions to the actuator", limit });
        }
        let id = entry.next_question;
        if entry.outbound.try_send(ToActuator::Ask { id, question }).is_err() {
            return Err(Error::Overloaded {
                what: "frames to the actuator",
                limit: self.settings.outbound_frames_max,
            });
        }
        entry.next_question += 1;
        let (asker, answers) = mpsc::channel(ANSWER_PARTS_MAX);
        entry.questions.insert(id, asker);
        Ok(answers)
    }

    /// Brings an answer to who asked.
    pub fn answered(&self, actuator: &Label, session: u64, id: u64, answer: Answer) {
        let mut open = locked(&self.open);
        let entry = open.get_mut(actuator).filter(|open| open.session == session);
        let more = matches!(answer, Answer::Captured { last: false, .. });
        let delivered = entry.is_some_and(|entry| {
            let asker = if more { entry.questions.get(&id).cloned() } else { entry.questions.remove(&id) };
            asker.is_some_and(|asker| asker.try_send(answer).is_ok())
        });
        if !delivered {
            self.answers_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets questions whose asker gave up.
    pub fn forget_closed_questions(&self) {
        for open in locked(&self.open).values_mut() {
            open.questions.retain(|_, asker| !asker.is_closed());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
