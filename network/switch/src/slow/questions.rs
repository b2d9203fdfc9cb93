//! Questions to the controllers, about destinations of learned networks and about turns of virtual addresses, and the
//! frames that wait for the answers (decisions 0019 and 0024; rows B10 and C8).
//!
//! Invariants
//! - One question a destination, or a turn, is open, whoever sends there: who comes later waits with the first.
//! - Open are at most [`QUESTIONS_MAX`], of them [`QUESTIONS_PER_NETWORK_MAX`] of one network and
//!   [`QUESTIONS_PER_PORT_MAX`] by one port; a port asks at most [`ASKS_PER_S`] a second, and [`ASKS_AT_ONCE`] at once.
//!   So a port that sends to everybody, and a tenant with many of them, take no more than their share of the switch, the
//!   order and the controllers.
//! - A question holds the first [`HELD_PER_QUESTION_MAX`] frames; all of a port are [`HELD_BYTES_PER_PORT_MAX`] bytes and
//!   all of the switch [`HELD_BYTES_MAX`]. Whatever is not held is dropped and counted by its reason.
//! - A question that is not answered is asked again, [`ASKS_MAX`] times in all, and then given up. Events may be lost
//!   on the way, and an endpoint may begin to live only now.
//!
//! Pure: no clock and no socket; `T` is a frame with what it needs to go on.

use crate::durations::Durations;
use crate::flow::{About, Asked, PortIndex};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;
use weir_model::entry::Vni;
use weir_model::packet_in::{PACKETS_IN_MAX, PacketIn};

/// Most open questions.
pub const QUESTIONS_MAX: usize = 1024;
/// Most open questions of one network.
pub const QUESTIONS_PER_NETWORK_MAX: usize = 256;
/// Most open questions of one port.
pub const QUESTIONS_PER_PORT_MAX: usize = 64;
/// Most frames that wait for one answer.
pub const HELD_PER_QUESTION_MAX: usize = 4;
/// Most bytes of all frames that wait.
pub const HELD_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most bytes of the frames of one port that wait: some super-frames.
pub const HELD_BYTES_PER_PORT_MAX: usize = 256 * 1024;
/// New questions of one port, a second.
pub const ASKS_PER_S: u64 = 100;
/// New questions of one port at once.
pub const ASKS_AT_ONCE: u64 = 100;
/// A question without an answer is asked again after so long, milliseconds, and then after twice as long each time.
pub const ASK_AGAIN_MS: u64 = 250;
/// How often a question is asked before it is given up: over some four seconds.
pub const ASKS_MAX: u32 = 5;
/// Packets that wait to be told. Later ones are told when they come again.
const TELL_MAX: usize = 4096;

/// Why a frame does not wait any more, or never did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Dropped {
    /// All questions of the switch are open.
    Questions,
    /// All questions of the network are open.
    NetworkQuestions,
    /// All questions of the port are open.
    PortQuestions,
    /// The port asks too often.
    Rate,
    /// The question, the port, or the switch, holds enough frames.
    Held,
    /// There was no answer.
    NoAnswer,
    /// The port it came from is gone.
    PortGone,
}

impl Dropped {
    /// All of them, in the order of their counters.
    pub const ALL: [Dropped; 7] = [
        Dropped::Questions,
        Dropped::NetworkQuestions,
        Dropped::PortQuestions,
        Dropped::Rate,
        Dropped::Held,
        Dropped::NoAnswer,
        Dropped::PortGone,
    ];

    /// The value of the label `reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Dropped::Questions => "questions",
            Dropped::NetworkQuestions => "network-questions",
            Dropped::PortQuestions => "port-questions",
            Dropped::Rate => "rate",
            Dropped::Held => "held",
            Dropped::NoAnswer => "no-answer",
            Dropped::PortGone => "port-gone",
        }
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuestionCounters {
    /// Questions asked for the first time.
    pub asked: u64,
    /// Questions asked again.
    pub repeated: u64,
    /// Questions that were answered.
    pub answered: u64,
    /// Questions that were given up.
    pub given_up: u64,
    /// Frames that went on after an answer.
    pub released: u64,
    /// Packets that were told.
    pub told: u64,
    /// Packets that could not be told because too many waited.
    pub untold: u64,
    /// Times from the first frame to its answer in force.
    pub answers: Durations,
    /// The longest of them, microseconds.
    pub answer_us_max: u64,
    /// Frames dropped, by [`Dropped`].
    pub dropped: [u64; Dropped::ALL.len()],
}

struct Question<T> {
    port: PortIndex,
    packet: PacketIn,
    held: Vec<(PortIndex, T, usize)>,
    asks: u32,
    since_us: u64,
    again_ms: u64,
}

/// What a port may still ask, in thousandths of a question.
#[derive(Clone, Copy)]
struct Budget {
    left: u64,
    at_ms: u64,
    open: usize,
}

/// See the module.
pub struct Questions<T> {
    open: HashMap<(u32, About), Question<T>>,
    budgets: BTreeMap<PortIndex, Budget>,
    of_networks: HashMap<u32, usize>,
    tell: VecDeque<(Vni, PacketIn)>,
    held_of_ports: HashMap<PortIndex, usize>,
    held_bytes: usize,
    /// Counters.
    pub counters: QuestionCounters,
}

impl<T> Default for Questions<T> {
    fn default() -> Questions<T> {
        Questions {
            open: HashMap::new(),
            budgets: BTreeMap::new(),
            of_networks: HashMap::new(),
            tell: VecDeque::new(),
            held_of_ports: HashMap::new(),
            held_bytes: 0,
            counters: QuestionCounters::default(),
        }
    }
}

impl<T> Questions<T> {
    /// Questions that are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Frames that wait, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        (self.open.values().map(|question| question.held.len()).sum(), self.held_bytes)
    }

    /// The frames that wait, in no order that means anything.
    pub fn held_frames(&self) -> impl Iterator<Item = &T> {
        self.open.values().flat_map(|question| question.held.iter().map(|(_, frame, _)| frame))
    }

    /// A frame of `bytes` bytes that waits for an answer: it is held, or dropped and counted.
    pub fn ask(&mut self, now_us: u64, asked: Asked, bytes: usize, frame: T) {
        let key = (asked.vni, asked.about);
        if let Some(question) = self.open.get(&key) {
            let full = question.held.len() >= HELD_PER_QUESTION_MAX;
            if full || !self.hold(asked.port, bytes) {
                return self.lose(Dropped::Held, 1);
            }
            if let Some(question) = self.open.get_mut(&key) {
                question.held.push((asked.port, frame, bytes));
            }
            return;
        }
        if let Err(dropped) = self.take_budget(now_us / 1000, asked.port, asked.vni) {
            return self.lose(dropped, 1);
        }
        if !self.hold(asked.port, bytes) {
            return self.lose(Dropped::Held, 1);
        }
        if let Some(budget) = self.budgets.get_mut(&asked.port) {
            budget.open += 1;
        }
        *self.of_networks.entry(key.0).or_default() += 1;
        self.counters.asked += 1;
        let Asked { port, packet, .. } = asked;
        self.tell(Vni(key.0), packet.clone());
        let held = vec![(port, frame, bytes)];
        let again_ms = now_us / 1000 + ASK_AGAIN_MS;
        self.open.insert(key, Question { port, packet, held, asks: 1, since_us: now_us, again_ms });
    }

    fn hold(&mut self, port: PortIndex, bytes: usize) -> bool {
        let of_port = self.held_of_ports.entry(port).or_default();
        let room = *of_port + bytes <= HELD_BYTES_PER_PORT_MAX && self.held_bytes + bytes <= HELD_BYTES_MAX;
        if room {
            *of_port += bytes;
            self.held_bytes += bytes;
        } else if *of_port == 0 {
            self.held_of_ports.remove(&port);
        }
        room
    }

    fn let_go(&mut self, port: PortIndex, bytes: usize) {
        self.held_bytes -= bytes;
        if let Some(of_port) = self.held_of_ports.get_mut(&port) {
            *of_port -= bytes;
            if *of_port == 0 {
                self.held_of_ports.remove(&port);
            }
        }
    }

    fn take_budget(&mut self, now_ms: u64, port: PortIndex, vni: u32) -> Result<(), Dropped> {
        if self.open.len() >= QUESTIONS_MAX {
            return Err(Dropped::Questions);
        }
        if self.of_networks.get(&vni).is_some_and(|open| *open >= QUESTIONS_PER_NETWORK_MAX) {
            return Err(Dropped::NetworkQuestions);
        }
        let full = ASKS_AT_ONCE * 1000;
        let budget = self.budgets.entry(port).or_insert(Budget { left: full, at_ms: now_ms, open: 0 });
        if budget.open >= QUESTIONS_PER_PORT_MAX {
            return Err(Dropped::PortQuestions);
        }
        let earned = now_ms.saturating_sub(budget.at_ms).saturating_mul(ASKS_PER_S);
        (budget.left, budget.at_ms) = (budget.left.saturating_add(earned).min(full), now_ms);
        if budget.left < 1000 {
            return Err(Dropped::Rate);
        }
        budget.left -= 1000;
        Ok(())
    }

    fn lose(&mut self, reason: Dropped, frames: u64) {
        self.counters.dropped[reason as usize] += frames;
    }

    /// Notes a packet to be told to the controllers.
    pub fn tell(&mut self, vni: Vni, packet: PacketIn) {
        if self.tell.len() >= TELL_MAX {
            self.counters.untold += 1;
            return;
        }
        self.tell.push_back((vni, packet));
    }

    /// What is to be told now: packets of one network.
    pub fn take_told(&mut self) -> Option<(Vni, Vec<PacketIn>)> {
        let vni = self.tell.front()?.0;
        let mut packets = Vec::new();
        while packets.len() < PACKETS_IN_MAX
            && let Some((_, packet)) = self.tell.pop_front_if(|(of, _)| *of == vni)
        {
            packets.push(packet);
        }
        self.counters.told += packets.len() as u64;
        Some((vni, packets))
    }

    /// The answer is in force: its frames go on.
    pub fn answered(&mut self, now_us: u64, vni: u32, about: About) -> Vec<T> {
        let Some(question) = self.open.remove(&(vni, about)) else { return Vec::new() };
        self.counters.answered += 1;
        self.counters.released += question.held.len() as u64;
        let took_us = now_us.saturating_sub(question.since_us);
        self.counters.answers.add(Duration::from_micros(took_us));
        self.counters.answer_us_max = self.counters.answer_us_max.max(took_us);
        self.close(vni, &question);
        question.held.into_iter().map(|(_, frame, _)| frame).collect()
    }

    fn close(&mut self, vni: u32, question: &Question<T>) {
        for (port, _, bytes) in &question.held {
            self.let_go(*port, *bytes);
        }
        if let Some(open) = self.of_networks.get_mut(&vni) {
            *open -= 1;
            if *open == 0 {
                self.of_networks.remove(&vni);
            }
        }
        if let Some(budget) = self.budgets.get_mut(&question.port) {
            budget.open -= 1;
        }
    }

    /// Asks again what is due, and gives up what was asked often enough.
    pub fn pass_time(&mut self, now_ms: u64) {
        let mut over = Vec::new();
        let mut again = Vec::new();
        for (key, question) in &mut self.open {
            if now_ms < question.again_ms {
                continue;
            }
            if question.asks >= ASKS_MAX {
                over.push(*key);
                continue;
            }
            question.again_ms = now_ms + (ASK_AGAIN_MS << question.asks);
            question.asks += 1;
            again.push((Vni(key.0), question.packet.clone()));
        }
        self.counters.repeated += again.len() as u64;
        again.sort_unstable_by_key(|(vni, packet)| (*vni, packet.destination));
        for (vni, packet) in again {
            self.tell(vni, packet);
        }
        for key in over {
            if let Some(question) = self.open.remove(&key) {
                self.counters.given_up += 1;
                self.lose(Dropped::NoAnswer, question.held.len() as u64);
                self.close(key.0, &question);
            }
        }
        let full = ASKS_AT_ONCE * 1000;
        self.budgets.retain(|_, budget| {
            let earned = now_ms.saturating_sub(budget.at_ms).saturating_mul(ASKS_PER_S);
            budget.open > 0 || budget.left.saturating_add(earned) < full
        });
    }

    /// A port is gone: so are its questions and frames.
    pub fn port_gone(&mut self, port: PortIndex) {
        let of_port: Vec<_> =
            self.open.iter().filter(|(_, question)| question.port == port).map(|(key, _)| *key).collect();
        for key in of_port {
            if let Some(question) = self.open.remove(&key) {
                self.lose(Dropped::PortGone, question.held.len() as u64);
                self.close(key.0, &question);
            }
        }
        let mut gone = Vec::new();
        for question in self.open.values_mut() {
            question.held.retain(|(of, _, bytes)| {
                if *of == port {
                    gone.push(*bytes);
                }
                *of != port
            });
        }
        self.lose(Dropped::PortGone, gone.len() as u64);
        gone.into_iter().for_each(|bytes| self.let_go(port, bytes));
        self.budgets.remove(&port);
    }
}

#[cfg(test)]
mod tests;
