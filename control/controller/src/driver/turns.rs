//! Intake by turns (row R4): where every replica takes proposals, every one hears of an event and one proposes it at once.
//! The others hold it, and each proposes it after its share of a wait, if it was not decided by then. So an event is ordered
//! as long as one replica that works has it, and mostly it is proposed once.
//!
//! Whose turn it is depends on the event, so all replicas share the work. But where nothing is being ordered, the one that leads just now waits for
//! something to order, and takes the event: what it proposes itself need not travel to it first. The others then hold it for
//! [`REST_MS`] more, and whoever leads next takes what it holds ([`Held::resting`]). When they are wrong about who leads, the event
//! waits for that moment, or is proposed twice and decided once.
//!
//! **Signatures.** Who proposes an event has checked it. One that is only held was not checked when its source itself has told it, for mostly it is
//! decided elsewhere before its turn comes, and checked then: nobody can fill the room of another source ([`HELD_OF_ONE_MAX`]).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use weir_model::event::{SignedEvent, SourceId};

/// How long the next replica waits for an event to be decided.
pub const TURN_MS: u64 = 300;
/// How much longer it waits where one that leads waits for something to order.
pub const REST_MS: u64 = 20;
/// Events that may be held.
pub const HELD_MAX: usize = 16_384;
/// Events of one source that may be held.
pub const HELD_OF_ONE_MAX: usize = 1_024;

/// Which replicas' turn comes first for an event; the same everywhere.
pub fn turn_of(source: &SourceId, sequence: u64) -> u64 {
    // Not seeded, so the same in every process.
    let mut hasher = DefaultHasher::new();
    (&source.0, sequence).hash(&mut hasher);
    hasher.finish()
}

/// An event whose turn here has not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The event.
    pub event: SignedEvent,
    /// The replicas whose turn comes before.
    pub before: Vec<u64>,
    /// Whether another replica, which leads, is expected to take it without a turn.
    pub rests: bool,
}

/// Events whose turn here has not come.
#[derive(Debug, Default)]
pub struct Held {
    events: BTreeMap<(u64, u64), Waits>,
    of_source: BTreeMap<SourceId, usize>,
    resting: usize,
    next: u64,
}

impl Held {
    /// Holds an event until `due_ms`; false when there is no room for it.
    pub fn hold(&mut self, waits: Waits, due_ms: u64) -> bool {
        let source = &waits.event.event.source;
        let of_one = self.of_source.get(source).copied().unwrap_or(0);
        if self.events.len() >= HELD_MAX || of_one >= HELD_OF_ONE_MAX {
            return false;
        }
        self.of_source.insert(source.clone(), of_one + 1);
        self.next += 1;
        self.resting += usize::from(waits.rests);
        self.events.insert((due_ms, self.next), waits);
        true
    }

    /// Those whose turn has come.
    pub fn due(&mut self, now_ms: u64) -> Vec<Waits> {
        let later = self.events.split_off(&(now_ms + 1, 0));
        let due = std::mem::replace(&mut self.events, later);
        self.let_go(due.into_values())
    }

    /// Whether there are some of [`Held::resting`].
    pub fn has_resting(&self) -> bool {
        self.resting > 0
    }

    /// Those that were held because another replica led: this one leads now.
    pub fn resting(&mut self) -> Vec<Waits> {
        if !self.has_resting() {
            return Vec::new();
        }
        let taken: Vec<Waits> =
            self.events.extract_if(.., |_, waits| waits.rests).map(|(_, waits)| waits).collect();
        self.let_go(taken.into_iter())
    }

    fn let_go(&mut self, gone: impl Iterator<Item = Waits>) -> Vec<Waits> {
        let forget = |waits: &Waits| {
            let source = &waits.event.event.source;
            self.resting -= usize::from(waits.rests);
            match self.of_source.get_mut(source) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(self.of_source.remove(source)),
            }
        };
        gone.inspect(forget).collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.events.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Label;
    use weir_model::event::{Event, EventBody};
    use weir_trust::identity::{KeyPair, sign_event};

    fn event(source: &str, sequence: u64) -> Waits {
        let body = EventBody::Removed { actuator: Label::new("h1").unwrap() };
        let event = Event { source: SourceId(source.into()), sequence, body };
        let event = sign_event(&KeyPair::from_seed(&[1; 32]), &Label::new("lab").unwrap(), event, None);
        Waits { event, before: vec![1], rests: source == "b" }
    }

    #[test]
    fn an_event_waits_for_its_turn_and_one_source_cannot_fill_the_room() {
        let mut held = Held::default();
        for sequence in 0..HELD_OF_ONE_MAX as u64 {
            assert!(held.hold(event("a", sequence), 300));
        }
        assert!(!held.hold(event("a", 5000), 300));
        assert!(held.hold(event("b", 1), 600));
        assert!(held.due(299).is_empty());
        assert_eq!(held.due(300).len(), HELD_OF_ONE_MAX);
        assert!(held.hold(event("a", 5000), 900), "there is room again");
        assert_eq!((held.due(600).len(), held.len()), (1, 1));
        assert!(held.hold(event("b", 2), 900));
        let taken = held.resting();
        assert_eq!(taken.iter().map(|waits| waits.event.event.sequence).collect::<Vec<_>>(), [2]);
        assert_eq!((held.resting().len(), held.len(), held.of_source.len()), (0, 1, 1));
    }

    #[test]
    fn turns_are_the_same_everywhere_and_go_round() {
        let source = SourceId("actuator/h1".into());
        assert_eq!(turn_of(&source, 7), turn_of(&source.clone(), 7));
        let first: std::collections::BTreeSet<u64> =
            (0..64).map(|sequence| turn_of(&source, sequence) % 4).collect();
        assert_eq!(first.len(), 4);
    }
}
