//! Hosts find a gateway that does not forward by themselves, without a controller (row A11; pain 9).
//!
//! A host sends each gateway a small packet every [`INTERVAL_MS`], encapsulated as any other, of the identifier [`PROBE_VNI`] that no network has.
//! A gateway that knows the sender for a switch, by its token too, has a flow that sends it back ([`crate::resolve`]): so what is asked is the very way that
//! packets of endpoints take, and a gateway's slow path is asked once. At the host the answers meet a flow that only counts; the count is what is looked at here.
//!
//! - A gateway is *silent* after [`UNANSWERED_MAX`] probes in a row without an answer: two seconds after its last packet at most ([`DETECTED_MS`]).
//!   Its conversations go to the others, by the same hash that would give them theirs if it were not in the list.
//! - One that never answered since this host knows of it (of a release before, or not up yet) is silent only after [`UNPROVEN_MAX`] probes.
//! - It becomes silent only while another one that is not answers: when none does it is this host or the underlay, and nobody is silent for it. So
//!   never are all of them.
//! - A silent one is asked less and less often, up to [`PAUSE_MS_MAX`]; from its first answer on at the old pace, and it is back after so many answers in a row
//!   as it needs: [`ANSWERS_MIN`], twice as many each time that it was silent again within [`STEADY_MS`], at most [`ANSWERS_MAX`].
//!
//! Departure: the paper does not say how a dead hoverboard is found; here no controller is needed for it.
//!
//! What is known goes over with a hand-over, so that an upgrade finds a dead gateway no later and gives a silent one nothing. A switch that starts
//! anew knows nothing.
//!
//! Pure: no clock and no socket.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use weir_model::Label;
use weir_model::entry::GatewayEntry;
use weir_packet::checksum;

/// Identifier of the packets, which no network may have.
pub const PROBE_VNI: u32 = 0;
/// Between two probes of a gateway that answers, milliseconds.
pub const INTERVAL_MS: u64 = 300;
/// A gateway is silent after so many probes in a row without an answer.
pub const UNANSWERED_MAX: u32 = 5;
/// And one that never answered after so many.
pub const UNPROVEN_MAX: u32 = 40;
/// A silent gateway is known for it at most so long after the last packet that it sent back, if that was a probe's.
pub const DETECTED_MS: u64 = (UNANSWERED_MAX as u64 + 1) * INTERVAL_MS;
/// A silent gateway is asked once in so long at least, milliseconds.
pub const PAUSE_MS_MAX: u64 = 4_800;
/// Answers in a row after which a silent gateway is back.
pub const ANSWERS_MIN: u32 = 3;
/// And after which one is that comes and goes.
pub const ANSWERS_MAX: u32 = 96;
/// One that was not silent for so long is as good as any.
pub const STEADY_MS: u64 = 120_000;

/// What is known of a gateway.
#[derive(Clone, Debug)]
struct Probe {
    name: Label,
    is_silent: bool,
    has_answered: bool,
    /// One is on its way.
    is_asked: bool,
    next_ms: u64,
    pause_ms: u64,
    /// Probes in a row without an answer.
    unanswered: u32,
    /// Answers in a row.
    answers: u32,
    /// Answers in a row that it needs to be back.
    needs: u32,
    back_ms: Option<u64>,
    counters: ProbeCounters,
}

/// What was counted of a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounters {
    /// Probes sent.
    pub sent: u64,
    /// Probes without an answer.
    pub unanswered: u64,
    /// Times that it was found silent.
    pub silent: u64,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Gateways to send a probe.
    pub send: Vec<IpAddr>,
    /// Gateways that are silent now and were not.
    pub lost: Vec<Label>,
    /// Gateways that are back.
    pub back: Vec<Label>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Probes {
    gateways: BTreeMap<IpAddr, Probe>,
}

impl Probes {
    /// The gateways in force.
    pub fn set(&mut self, now_ms: u64, gateways: &[GatewayEntry]) {
        let is_same = self.gateways.len() == gateways.len()
            && gateways.iter().all(|gateway| {
                self.gateways.get(&gateway.underlay).is_some_and(|probe| probe.name == gateway.name)
            });
        if is_same {
            return;
        }
        let wanted: BTreeSet<IpAddr> = gateways.iter().map(|gateway| gateway.underlay).collect();
        self.gateways.retain(|underlay, _| wanted.contains(underlay));
        for GatewayEntry { name, underlay } in gateways {
            let new = || Probe {
                name: name.clone(),
                is_silent: false,
                has_answered: false,
                is_asked: false,
                next_ms: now_ms,
                pause_ms: INTERVAL_MS,
                unanswered: 0,
                answers: 0,
                needs: ANSWERS_MIN,
                back_ms: None,
                counters: ProbeCounters::default(),
            };
            self.gateways.entry(*underlay).or_insert_with(new).name = name.clone();
        }
    }

    /// Lets time pass. `answered` tells whether anything came back from a gateway since it was asked the last time.
    pub fn pass_time(&mut self, now_ms: u64, mut answered: impl FnMut(IpAddr) -> bool) -> Step {
        let mut step = Step::default();
        for (underlay, probe) in &mut self.gateways {
            if now_ms < probe.next_ms {
                continue;
            }
            // Also of one that is asked for the first time: what is there is from before.
            let answer = answered(*underlay);
            if std::mem::replace(&mut probe.is_asked, true) {
                probe.hear(answer);
                if probe.is_silent && probe.answers >= probe.needs {
                    (probe.is_silent, probe.back_ms) = (false, Some(now_ms));
                    step.back.push(probe.name.clone());
                }
            }
            probe.counters.sent += 1;
            probe.next_ms = now_ms + probe.pause_ms;
            step.send.push(*underlay);
        }
        let is_well = |probe: &Probe| !probe.is_silent && probe.has_answered && probe.unanswered == 0;
        let somebody_answers = self.gateways.values().any(is_well);
        for probe in self.gateways.values_mut().filter(|probe| somebody_answers && probe.is_lost()) {
            let was_steady = probe.back_ms.is_none_or(|back_ms| now_ms - back_ms >= STEADY_MS);
            probe.needs = if was_steady { ANSWERS_MIN } else { (2 * probe.needs).min(ANSWERS_MAX) };
            probe.is_silent = true;
            probe.counters.silent += 1;
            step.lost.push(probe.name.clone());
        }
        step
    }

    /// The gateways that are silent.
    pub fn silent(&self) -> BTreeSet<IpAddr> {
        let silent = self.gateways.iter().filter(|(_, probe)| probe.is_silent);
        silent.map(|(underlay, _)| *underlay).collect()
    }

    /// The gateways that have answered, and whether they are silent: what a process that takes over goes on with.
    pub fn carried(&self) -> Vec<(IpAddr, bool)> {
        let known = self.gateways.iter().filter(|(_, probe)| probe.has_answered);
        known.map(|(underlay, probe)| (*underlay, probe.is_silent)).collect()
    }

    /// Goes on with what another process knew, of the gateways that are in force.
    pub fn carry(&mut self, known: &[(IpAddr, bool)]) {
        for (underlay, is_silent) in known {
            if let Some(probe) = self.gateways.get_mut(underlay) {
                (probe.has_answered, probe.is_silent) = (true, *is_silent);
            }
        }
    }

    /// Of each gateway its name, whether it is silent, and what was counted.
    pub fn all(&self) -> impl Iterator<Item = (&Label, bool, ProbeCounters)> {
        self.gateways.values().map(|probe| (&probe.name, probe.is_silent, probe.counters))
    }
}

impl Probe {
    fn hear(&mut self, answer: bool) {
        if answer {
            (self.has_answered, self.unanswered, self.pause_ms) = (true, 0, INTERVAL_MS);
            self.answers = self.answers.saturating_add(1);
            return;
        }
        self.counters.unanswered += 1;
        (self.unanswered, self.answers) = (self.unanswered.saturating_add(1), 0);
        if self.is_silent {
            self.pause_ms = (2 * self.pause_ms).min(PAUSE_MS_MAX);
        }
    }

    fn is_lost(&self) -> bool {
        let most = if self.has_answered { UNANSWERED_MAX } else { UNPROVEN_MAX };
        !self.is_silent && self.unanswered >= most
    }
}

/// A probe: UDP between two link-local addresses that no endpoint has, which is forwarded once and no more.
pub fn frame() -> Vec<u8> {
    const TTL: u8 = 2;
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, TTL, 17, 0, 0]);
    frame.extend([169, 254, 0, 1, 169, 254, 0, 2]);
    // The ports say what it is for people who see it.
    frame.extend([0x17, 0xc1, 0x17, 0xc1, 0, 8, 0, 0]);
    if let Ok(parsed) = weir_packet::parse(&frame) {
        let filled = checksum::fill_network(&mut frame, &parsed);
        debug_assert!(filled.is_ok(), "a header of a constant");
    }
    frame
}

#[cfg(test)]
mod tests;
