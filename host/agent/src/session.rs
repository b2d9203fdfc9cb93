//! The session with the controller (rows A1, A6, A9): a pure step machine, and `driver`, which moves
//! its frames over mutual TLS.
//!
//! The machine stands between two streams that come and go: to the switch, which holds what is in
//! force, and to a controller. It says `Hello` with the switch's digest, and then passes frames on. It holds nothing
//! that a restart would lose. The controllers of a group have a machine each, side by side: all of them hear what the
//! switch acks, so whichever leads knows what is in force (row B1). Where they are is configured or was learnt by
//! joining, and a session tells when it changes.
//!
//! Invariants
//! - There is a session only while the switch is there: without it nothing could be applied, and a
//!   switch that was away may have another state than the one greeted with.
//! - A switch that owes its state for too long is connected to anew, so that no lost request or reply
//!   can keep the next session from coming about.
//! - Answers of the switch go only to the session that asked: what a former session asked is dropped.
//! - When control is gone nothing is sent to the switch: it keeps what it has (fail static).
//! - What a controller can make this host do for nothing is bounded: `conduct`. Who is left alone for it is told to the others: [`told`].

mod conduct;
mod counters;
pub mod driver;
pub mod given;
pub mod quorum;
pub mod renewal;
pub mod rotation;
pub mod shares;
mod step;
mod stream;
pub mod tls;
pub mod told;

pub use counters::Counters;
pub use step::{Input, Output, Report};

use conduct::Conduct;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use told::Ended;
use weir_model::Label;
use weir_model::event::Role;
use weir_model::group::BadConduct;
use weir_model::local::{Answer, FromSwitch, Question, ToSwitch};
use weir_model::session::{PROTOCOL, STATE_CHUNK_KEYS, StateDigest, ToActuator, ToController};
use weir_model::signed::SignedAcks;

/// Most questions of the controller that are open at the switch.
pub const QUESTIONS_MAX: usize = 64;
/// A question is given up after so long without an answer, milliseconds; longer than any capture.
pub const QUESTION_TIMEOUT_MS: u64 = 15 * 60 * 1000;
/// The stream to the controller must be there after so long, milliseconds.
pub const CONNECT_TIMEOUT_MS: u64 = 10_000;
/// The switch must tell its digest, and the controller welcome us, within so long, milliseconds.
pub const GREETING_TIMEOUT_MS: u64 = 30_000;
/// A controller that has pinged once must not be silent for longer than this, milliseconds.
pub const SILENCE_MAX_MS: u64 = 60_000;
/// Most frames of acks that wait for the controller's welcome.
const HELD_ACKS_MAX: usize = 256;
/// Most state requests that are open at the switch.
const STATE_REQUESTS_MAX: usize = 8;

/// What the machine must know beforehand.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the actuator, as in its certificate.
    pub actuator: Label,
    /// What it is.
    pub role: Role,
    /// Release of the software.
    pub software: String,
    /// Public key that signs its acks.
    pub identity: [u8; 32],
    /// Address on the underlay.
    pub underlay: IpAddr,
    /// Session addresses of the controllers, `host:port`; at least one.
    pub controllers: Vec<String>,
    /// First wait after a failure, milliseconds.
    pub backoff_min_ms: u64,
    /// Longest wait after failures, milliseconds.
    pub backoff_max_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No switch, so no session.
    NoSwitch,
    /// Waiting before the next attempt.
    Waiting { until_ms: u64 },
    /// The stream is being made.
    Connecting { since_ms: u64 },
    /// Waiting for the switch's digest.
    Digest { since_ms: u64 },
    /// `Hello` is sent.
    Greeting { since_ms: u64 },
    /// Welcomed.
    Established,
}

/// What an open state request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatePurpose {
    Hello,
    Controller,
    /// The session that wanted it is over.
    Nobody,
}

#[derive(Clone, Copy, Debug)]
struct OpenQuestion {
    theirs: u64,
    since_ms: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    settings: Settings,
    phase: Phase,
    /// Which controller is tried or in use.
    turn: usize,
    failures: u32,
    random: u64,
    states: VecDeque<StatePurpose>,
    questions: BTreeMap<u64, OpenQuestion>,
    next_question: u64,
    /// Acks of the switch since the digest was asked for, until the controller welcomes us.
    held_acks: Vec<SignedAcks>,
    /// When the controller last spoke, once it has pinged.
    heard_ms: Option<u64>,
    conduct: Conduct,
    /// The controller wants the whole state, and gets it later.
    state_wanted: bool,
    /// Counters.
    pub counters: Counters,
}

impl Session {
    /// A session that waits for the switch. `seed` makes the waits of many hosts differ. Its questions to the switch have
    /// numbers from `questions_from` on.
    pub fn new(settings: Settings, seed: u64, questions_from: u64) -> Session {
        assert!(!settings.controllers.is_empty(), "the configuration is checked for a controller");
        Session {
            settings,
            phase: Phase::NoSwitch,
            turn: 0,
            failures: 0,
            random: seed,
            states: VecDeque::new(),
            questions: BTreeMap::new(),
            next_question: questions_from,
            held_acks: Vec::new(),
            heard_ms: None,
            conduct: Conduct::new(),
            state_wanted: false,
            counters: Counters::default(),
        }
    }

    /// Whether there is a session.
    pub fn established(&self) -> bool {
        self.phase == Phase::Established
    }

    /// Whether acks of the switch are for this session: from when the digest for its greeting is asked for.
    pub fn wants_acks(&self) -> bool {
        matches!(self.phase, Phase::Digest { .. } | Phase::Greeting { .. } | Phase::Established)
    }

    /// The controller that is tried or in use.
    pub fn controller(&self) -> &str {
        &self.settings.controllers[self.turn % self.settings.controllers.len()]
    }

    /// When [`Input::Tick`] is due at the latest, milliseconds.
    pub fn next_tick_ms(&self) -> Option<u64> {
        let phase = match self.phase {
            Phase::NoSwitch => None,
            Phase::Waiting { until_ms } => Some(until_ms),
            Phase::Connecting { since_ms } => Some(since_ms + CONNECT_TIMEOUT_MS),
            Phase::Digest { since_ms } | Phase::Greeting { since_ms } => Some(since_ms + GREETING_TIMEOUT_MS),
            Phase::Established => self.heard_ms.map(|heard_ms| heard_ms + SILENCE_MAX_MS),
        };
        let question = self.questions.values().map(|question| question.since_ms + QUESTION_TIMEOUT_MS).min();
        let state = self.state_wanted.then(|| self.conduct.state_at_ms());
        phase.into_iter().chain(question).chain(state).min()
    }

    /// Takes one input and appends what it causes.
    pub fn step(&mut self, now_ms: u64, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::SwitchUp => {
                self.states.clear();
                if self.phase == Phase::NoSwitch {
                    self.phase = Phase::Waiting { until_ms: now_ms };
                    self.tick(now_ms, out);
                }
            }
            Input::SwitchDown => self.switch_down(out),
            Input::FromSwitch(frame) => self.switch_says(now_ms, frame, out),
            Input::Connected => {
                if matches!(self.phase, Phase::Connecting { .. }) {
                    self.phase = Phase::Digest { since_ms: now_ms };
                    self.ask_state(StatePurpose::Hello, out);
                }
            }
            Input::Closed(reason) => {
                if !matches!(self.phase, Phase::NoSwitch | Phase::Waiting { .. }) {
                    self.lose(now_ms, reason, out);
                }
            }
            Input::Garbage(reason) => {
                if !matches!(self.phase, Phase::NoSwitch | Phase::Waiting { .. }) {
                    self.lose_for_conduct(now_ms, BadConduct::Garbage, reason, out);
                }
            }
            Input::FromController(frame) => self.controller_says(now_ms, frame, out),
            Input::Forged => self.forged(now_ms, out),
            Input::Say(frame) if self.established() => out.push(Output::ToController(*frame)),
            // The next session asks.
            Input::Say(_) => {}
            Input::Tick => self.tick(now_ms, out),
        }
    }

    fn tick(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        self.expire_questions(now_ms, out);
        if self.state_wanted && now_ms >= self.conduct.state_at_ms() {
            self.state_wanted = false;
            self.want_state(now_ms, out);
        }
        let late = |since_ms: u64, limit_ms: u64| now_ms >= since_ms + limit_ms;
        match self.phase {
            Phase::Waiting { until_ms } if now_ms >= until_ms => {
                self.counters.connects += 1;
                self.phase = Phase::Connecting { since_ms: now_ms };
                out.push(Output::Connect(self.controller().to_string()));
            }
            Phase::Connecting { since_ms } if late(since_ms, CONNECT_TIMEOUT_MS) => {
                self.end(now_ms, "it does not answer".into(), out);
            }
            Phase::Digest { since_ms } if late(since_ms, GREETING_TIMEOUT_MS) => {
                self.counters.switch_resets += 1;
                self.end(now_ms, "the switch does not tell its state".into(), out);
                out.push(Output::ResetSwitch);
            }
            Phase::Greeting { since_ms } if late(since_ms, GREETING_TIMEOUT_MS) => {
                self.end(now_ms, "it does not answer our greeting".into(), out);
            }
            Phase::Established if self.heard_ms.is_some_and(|heard_ms| late(heard_ms, SILENCE_MAX_MS)) => {
                self.end(now_ms, "it has fallen silent".into(), out);
            }
            _ => {}
        }
    }

    fn expire_questions(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let mut expired = Vec::new();
        self.questions.retain(|_, question| {
            let over = now_ms >= question.since_ms + QUESTION_TIMEOUT_MS;
            if over {
                expired.push(question.theirs);
            }
            !over
        });
        for id in expired {
            self.counters.questions_expired += 1;
            let answer = Answer::Error("the switch did not answer in time".into());
            out.push(Output::ToController(ToController::Answer { id, answer }));
        }
    }

    fn switch_down(&mut self, out: &mut Vec<Output>) {
        if !matches!(self.phase, Phase::NoSwitch | Phase::Waiting { .. }) {
            self.counters.closes += 1;
            out.push(Output::Close);
            out.push(Output::Report(Report::Lost {
                controller: self.controller().to_string(),
                reason: "the switch is gone, and the session waits for it".into(),
                wait_ms: 0,
            }));
        }
        self.phase = Phase::NoSwitch;
        self.states.clear();
        self.forget_session();
    }

    fn forget_session(&mut self) {
        self.questions.clear();
        self.held_acks.clear();
        self.heard_ms = None;
        self.state_wanted = false;
        for state in &mut self.states {
            *state = StatePurpose::Nobody;
        }
    }

    /// Ends the stream ourselves.
    fn end(&mut self, now_ms: u64, reason: String, out: &mut Vec<Output>) {
        out.push(Output::Close);
        self.lose(now_ms, reason, out);
    }

    fn breach(&mut self, now_ms: u64, reason: String, out: &mut Vec<Output>) {
        self.counters.protocol_errors += 1;
        self.end(now_ms, reason, out);
    }

    /// Something forged came. The switch's verdicts come later than what they are about, so some may be of a session that is over.
    fn forged(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        self.counters.forgeries += 1;
        if !self.conduct.forgives(now_ms) && self.established() {
            out.push(Output::Close);
            let reason =
                "it sends forged updates, or forged shares of signatures, again and again".to_owned();
            self.lose_for_conduct(now_ms, BadConduct::Forgeries, reason, out);
        }
    }

    fn lose_for_conduct(&mut self, now_ms: u64, what: BadConduct, reason: String, out: &mut Vec<Output>) {
        self.counters.bad_conduct += 1;
        let Counters { bad_conduct: ended, forgeries, .. } = self.counters;
        out.push(Output::BadConduct(Ended { what, ended, forgeries }));
        let wait_ms = self.conduct.ends(now_ms);
        self.lose_for(now_ms, wait_ms, reason, out);
    }

    /// The stream is over: wait, then try the next controller.
    fn lose(&mut self, now_ms: u64, reason: String, out: &mut Vec<Output>) {
        self.lose_for(now_ms, 0, reason, out);
    }

    fn lose_for(&mut self, now_ms: u64, at_least_ms: u64, reason: String, out: &mut Vec<Output>) {
        let controller = self.controller().to_string();
        self.counters.closes += 1;
        self.forget_session();
        self.failures = self.failures.saturating_add(1);
        self.turn = (self.turn + 1) % self.settings.controllers.len();
        let wait_ms = self.backoff_ms().max(at_least_ms);
        self.phase = Phase::Waiting { until_ms: now_ms + wait_ms };
        out.push(Output::Report(Report::Lost { controller, reason, wait_ms }));
    }

    /// Doubles after each round through all controllers, at most the limit, and takes a random half
    /// off, so that the hosts of a cloud do not come back together.
    fn backoff_ms(&mut self) -> u64 {
        let rounds = (self.failures - 1) / self.settings.controllers.len() as u32;
        let full = self
            .settings
            .backoff_min_ms
            .saturating_mul(1_u64.checked_shl(rounds).unwrap_or(u64::MAX))
            .min(self.settings.backoff_max_ms)
            .max(1);
        // splitmix64
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        full - mixed % (full / 2 + 1)
    }

    fn ask_state(&mut self, purpose: StatePurpose, out: &mut Vec<Output>) {
        if self.states.len() < STATE_REQUESTS_MAX {
            self.states.push_back(purpose);
            out.push(Output::ToSwitch(ToSwitch::SendState));
        }
    }

    fn switch_says(&mut self, now_ms: u64, frame: FromSwitch, out: &mut Vec<Output>) {
        let established = self.established();
        match frame {
            FromSwitch::State { digest, entries, last } => self.state(now_ms, digest, entries, last, out),
            FromSwitch::Acks(acks) if established => {
                out.push(Output::ToController(ToController::Acks(acks)));
            }
            // The digest that it is greeted with does not have them.
            FromSwitch::Acks(acks) if self.wants_acks() => match self.held_acks.len() < HELD_ACKS_MAX {
                true => self.held_acks.push(acks),
                false => self.end(now_ms, format!("{HELD_ACKS_MAX} acks came before it welcomed us"), out),
            },
            FromSwitch::Acks(_) => self.counters.dropped_acks += 1,
            FromSwitch::Event(event) if established => {
                out.push(Output::ToController(ToController::Event(event)));
            }
            FromSwitch::Event(_) => self.counters.dropped_events += 1,
            FromSwitch::Answer { id, answer } => {
                let Some(open) = self.questions.get(&id).copied() else {
                    self.counters.dropped_answers += 1;
                    return;
                };
                if !matches!(answer, Answer::Captured { last: false, .. }) {
                    self.questions.remove(&id);
                }
                out.push(Output::ToController(ToController::Answer { id: open.theirs, answer }));
            }
            // For the mirror, the ports, and who changes the keys; no switch is a plane.
            FromSwitch::Changed { .. }
            | FromSwitch::Ports(_)
            | FromSwitch::Identity { .. }
            | FromSwitch::Plane { .. }
            | FromSwitch::Contents { .. } => {}
        }
    }

    fn state(
        &mut self,
        now_ms: u64,
        digest: StateDigest,
        entries: Vec<(weir_model::Key, weir_model::Version)>,
        last: bool,
        out: &mut Vec<Output>,
    ) {
        let Some(&purpose) = self.states.front() else { return };
        if last {
            self.states.pop_front();
        }
        match purpose {
            StatePurpose::Hello if last => {
                if matches!(self.phase, Phase::Digest { .. }) {
                    self.phase = Phase::Greeting { since_ms: now_ms };
                    out.push(Output::ToController(self.hello(digest)));
                }
            }
            StatePurpose::Controller => {
                let mut rest = entries;
                loop {
                    let more =
                        if rest.len() > STATE_CHUNK_KEYS { rest.split_off(STATE_CHUNK_KEYS) } else { vec![] };
                    let last = last && more.is_empty();
                    out.push(Output::ToController(ToController::State { entries: rest, last }));
                    if more.is_empty() {
                        break;
                    }
                    rest = more;
                }
            }
            StatePurpose::Hello | StatePurpose::Nobody => {}
        }
    }

    fn hello(&self, digest: StateDigest) -> ToController {
        ToController::Hello {
            protocol: PROTOCOL,
            actuator: self.settings.actuator.clone(),
            role: self.settings.role,
            software: self.settings.software.clone(),
            identity: self.settings.identity,
            underlay: self.settings.underlay,
            digest,
        }
    }

    fn controller_says(&mut self, now_ms: u64, frame: ToActuator, out: &mut Vec<Output>) {
        if self.heard_ms.is_some() {
            self.heard_ms = Some(now_ms);
        }
        match (self.phase, frame) {
            (Phase::Digest { .. } | Phase::Greeting { .. }, ToActuator::Refused(reason)) => {
                self.end(now_ms, format!("it refuses us: {reason}"), out);
            }
            (Phase::Greeting { .. }, ToActuator::Welcome { protocol, epoch }) if protocol == PROTOCOL => {
                self.phase = Phase::Established;
                let held = std::mem::take(&mut self.held_acks);
                out.extend(held.into_iter().map(|acks| Output::ToController(ToController::Acks(acks))));
                self.failures = 0;
                let controller = self.controller().to_string();
                out.push(Output::Report(Report::Established { controller, epoch }));
            }
            (Phase::Greeting { .. }, ToActuator::Welcome { protocol, .. }) => {
                let older = if protocol < PROTOCOL { "controller" } else { "agent" };
                let reason = format!(
                    "it speaks protocol {protocol} and this agent speaks {PROTOCOL}: upgrade the {older}"
                );
                self.breach(now_ms, reason, out);
            }
            (Phase::Established, frame) => self.in_session(now_ms, frame, out),
            // It is alive, and slow to welcome us: no reason to end the session.
            (Phase::Greeting { .. }, ToActuator::Ping { id }) => {
                out.push(Output::ToController(ToController::Pong { id }));
            }
            (Phase::Digest { .. } | Phase::Greeting { .. }, frame) => {
                let kind = kind_of(&frame);
                self.breach(now_ms, format!("it sends {kind} before it has welcomed us"), out);
            }
            // A frame that was under way when the stream was ended.
            (Phase::NoSwitch | Phase::Waiting { .. } | Phase::Connecting { .. }, _) => {}
        }
    }

    fn in_session(&mut self, now_ms: u64, frame: ToActuator, out: &mut Vec<Output>) {
        match frame {
            ToActuator::SendState => self.want_state(now_ms, out),
            // The proof of a batch alone is what this host makes itself, of shares and endorsements.
            ToActuator::Updates(updates) if updates.updates.is_empty() => self.forged(now_ms, out),
            ToActuator::Updates(updates) => out.push(Output::ToSwitch(ToSwitch::Updates(updates))),
            ToActuator::Unsigned(updates) => out.push(Output::Unsigned(updates)),
            ToActuator::Share(share) => out.push(Output::Share(share)),
            ToActuator::Endorsement(endorsement) => out.push(Output::Endorsement(endorsement)),
            ToActuator::Ask { id, question } => self.ask(now_ms, id, question, out),
            ToActuator::Ping { id } => {
                self.heard_ms = Some(now_ms);
                out.push(Output::ToController(ToController::Pong { id }));
            }
            ToActuator::Renewed { certificate_pem } => out.push(Output::Certificate(certificate_pem)),
            ToActuator::NotRenewed(reason) => out.push(Output::Report(Report::NotRenewed { reason })),
            ToActuator::Controllers { number, sessions } => {
                out.push(Output::Controllers { number, sessions });
            }
            frame @ (ToActuator::RotateKeys
            | ToActuator::Rotated { .. }
            | ToActuator::Settled { .. }
            | ToActuator::NotRotated(_)) => out.push(Output::Keys(frame)),
            ToActuator::Refused(reason) => self.end(now_ms, format!("it ends the session: {reason}"), out),
            ToActuator::Welcome { .. } => {
                self.breach(now_ms, "it welcomes us twice".into(), out);
            }
        }
    }

    /// The controller wants the whole state. One more reply cannot say anything that the one not yet begun will not.
    fn want_state(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        if self.state_wanted || self.states.iter().skip(1).any(|&open| open == StatePurpose::Controller) {
            return;
        }
        if self.conduct.serves_state(now_ms) {
            self.ask_state(StatePurpose::Controller, out);
        } else {
            self.counters.states_delayed += 1;
            self.state_wanted = true;
        }
    }

    fn ask(&mut self, now_ms: u64, theirs: u64, question: Question, out: &mut Vec<Output>) {
        if self.questions.len() >= QUESTIONS_MAX || !self.conduct.takes_question(now_ms) {
            self.counters.questions_refused += 1;
            let answer = match self.questions.len() {
                QUESTIONS_MAX.. => format!("{QUESTIONS_MAX} questions are open already; ask again later"),
                _ => "questions come too fast; ask again later".to_owned(),
            };
            let answer = Answer::Error(answer);
            out.push(Output::ToController(ToController::Answer { id: theirs, answer }));
            return;
        }
        let id = self.next_question;
        self.next_question += 1;
        self.questions.insert(id, OpenQuestion { theirs, since_ms: now_ms });
        out.push(Output::ToSwitch(ToSwitch::Ask { id, question }));
    }
}

fn kind_of(frame: &ToActuator) -> &'static str {
    match frame {
        ToActuator::Welcome { .. } => "a welcome",
        ToActuator::Refused(_) => "a refusal",
        ToActuator::SendState => "a state request",
        ToActuator::Updates(_) | ToActuator::Unsigned(_) => "updates",
        ToActuator::Share(_) => "a share of a signature",
        ToActuator::Endorsement(_) => "an endorsement",
        ToActuator::Ask { .. } => "a question",
        ToActuator::Ping { .. } => "a ping",
        ToActuator::Renewed { .. } | ToActuator::NotRenewed(_) => "an answer about our certificate",
        ToActuator::Controllers { .. } => "a list of controllers",
        ToActuator::RotateKeys
        | ToActuator::Rotated { .. }
        | ToActuator::Settled { .. }
        | ToActuator::NotRotated(_) => "something about our keys",
    }
}

#[cfg(test)]
mod tests;
