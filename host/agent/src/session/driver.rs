//! Moves the sessions' frames: a stream towards each controller, one channel towards the link.
//!
//! Nothing here waits for a controller that does not read: its queue is bounded, and when it is full
//! the stream ends and the next session reconciles. When the switch is slow, the controllers' streams
//! are not read, so that they slow down too. A frame that was read is held until the switch has room: what
//! a machine says to the switch is never lost while the connection to it lasts.
//!
//! The sessions share the switch. What it acks and reports goes to every session; its state and its answers go to the
//! one that asked: states come in the order in which they were asked for, and the number of a question says whose it is.

mod conduct;
mod keys;
mod planes;

use super::given::{Given, Place};
use super::quorum::Quorum;
use super::renewal::{self, LOOK_S, Renewal};
use super::rotation::Rotation;
use super::shares::{Combined, Shares};
use super::stream::{Stream, StreamEvent, TO_CONTROLLER_MAX};
use super::told::Told;
use super::{Counters, Input, Output, Report, Session, Settings};
use crate::config::check_controllers;
use crate::hub::Hub;
use crate::hub::driver::HubEvent;
use crate::join;
use crate::kept;
use crate::link::LinkEvent;
use crate::shared::{Shared, SwitchSender};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::MissedTickBehavior;
use weir_base::numbers::Numbers;
use weir_model::local::{FromSwitch, ToSwitch};
use weir_model::session::{ToActuator, ToController};
use weir_model::signed::BatchHeader;
use weir_model::update::Refusal;
use weir_model::{Ack, Key};

/// Events of the switch are dropped when fewer places than this are left: they are the first to go.
const EVENTS_RESERVE: usize = TO_CONTROLLER_MAX / 2;
/// Frames of controllers that wait here; each may be as long as a frame can be.
const FROM_CONTROLLERS_MAX: usize = 4;
/// Places that must be free towards the switch before another frame of a controller is taken.
const SWITCH_ROOM_MIN: usize = 8;
/// How often a change of keys that is under way is looked at.
const ROTATION_LOOK: Duration = Duration::from_millis(200);
/// How often updates are looked at that no plane takes.
const PLANES_LOOK: Duration = Duration::from_secs(1);
/// How often the switch's queue is looked at while it is full, milliseconds.
const ROOM_CHECK_MS: u64 = 10;
/// The number of a question is the number of its session, shifted by so much, and a count.
const QUESTION_SHIFT: u32 = 40;
/// Numbers of sessions begin anew after this; the highest bits of a question's number are the link's.
const NUMBERS_MAX: u64 = 1 << 20;

/// What the sessions are made with.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Settings of each, with all controllers.
    pub settings: Settings,
    /// Whether lists of controllers that sessions tell are followed. They are not where the configuration lists them.
    pub learns: bool,
    /// Where identity and trust are.
    pub state_dir: PathBuf,
}

/// The session with one controller.
struct One {
    number: u64,
    address: String,
    session: Session,
    stream: Option<Stream>,
    /// As far as it was told of planes that came and went: [`Hub::changes`].
    planes_seen: u64,
}

struct Driver {
    shared: Arc<Shared>,
    plan: Plan,
    sessions: Vec<One>,
    next_number: u64,
    shares: Shares,
    quorum: Quorum,
    /// Updates under way to the switch, and whose they are.
    given: Given,
    /// Of the frame that is being looked at.
    place: Option<Place>,
    /// The planes beside the switch.
    hub: Hub,
    /// Which list of controllers is in the state directory: the index of its batch.
    proof_kept: Option<BatchHeader>,
    /// Of updates that no plane takes.
    refusals: Vec<Ack>,
    /// Number of the list of controllers that is followed.
    list: u64,
    started: Instant,
    switch: Option<SwitchSender>,
    /// Which session each state that the switch owes is for.
    states: VecDeque<u64>,
    generation: u64,
    stream_events: mpsc::Sender<(u64, StreamEvent)>,
    renewal: Renewal,
    /// None when its file cannot be used: the log says why.
    rotation: Option<Rotation>,
    /// Sessions from this number on show the new certificate.
    anew_from: u64,
    /// Whose turn it is to be asked for something about keys.
    turn: usize,
    /// Sessions that have come about: they take the places of older ones with the same controller.
    came: Vec<u64>,
    /// What controllers said of a change of keys, with where they are.
    about_keys: Vec<(String, ToActuator)>,
    /// The controller that last took a step of a change of keys: it is asked for the next one, and others when it does not take that.
    takes_changes: Option<String>,
    /// A session has come about: look at the certificate now.
    look_soon: bool,
    /// What the others are told of controllers whose sessions ended for what came on them.
    told: Told,
    /// Under which numbers; opened when the first is needed.
    numbers: Option<Numbers>,
    /// Of sessions that ended.
    counted: Counters,
}

/// Keeps the sessions for ever; returns when the link's end of `events` is dropped.
pub async fn run(
    shared: Arc<Shared>,
    plan: Plan,
    mut events: mpsc::Receiver<LinkEvent>,
    mut planes: mpsc::Receiver<HubEvent>,
) {
    let (stream_events, mut from_streams) = mpsc::channel(FROM_CONTROLLERS_MAX);
    let mut held: Option<(u64, StreamEvent)> = None;
    let mut driver = Driver::new(shared, plan, stream_events);
    driver.publish_certificate();
    let mut looks = tokio::time::interval(Duration::from_secs(LOOK_S));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut key_looks = tokio::time::interval(ROTATION_LOOK);
    key_looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut plane_looks = tokio::time::interval(PLANES_LOOK);
    plane_looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let room = driver.switch.as_ref().is_none_or(|switch| switch.capacity() >= SWITCH_ROOM_MIN);
        if room && let Some((generation, event)) = held.take() {
            driver.stream_event(generation, event);
            continue;
        }
        driver.settle_sessions();
        if std::mem::take(&mut driver.look_soon) {
            driver.renew();
        }
        let tick = driver.next_tick();
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => driver.link_event(event),
                None => return,
            },
            Some(event) = planes.recv() => driver.plane_event(event),
            _ = plane_looks.tick() => {
                driver.refuse();
                driver.tell_conduct();
            }
            // Others fill the switch's queue too, so whether there is room is looked at once more.
            event = from_streams.recv(), if held.is_none() => held = event,
            () = tokio::time::sleep(Duration::from_millis(ROOM_CHECK_MS)), if held.is_some() => {}
            _ = looks.tick() => {
                driver.renew();
                // What came since, such as the switch's numbers, must stay.
                kept::record(&driver.plan.state_dir);
            }
            _ = key_looks.tick(), if driver.changes_keys() => driver.rotate(),
            () = tokio::time::sleep_until(tick.unwrap_or(driver.started).into()), if tick.is_some() => {
                driver.given.tick(driver.started.elapsed().as_millis() as u64);
                driver.step_all(&Input::Tick);
            }
        }
    }
}

impl Driver {
    fn new(shared: Arc<Shared>, plan: Plan, stream_events: mpsc::Sender<(u64, StreamEvent)>) -> Driver {
        let renewal = Renewal::new(plan.state_dir.clone(), shared.actuator.clone());
        let rotation = Rotation::open(&plan.state_dir, &shared.actuator)
            .inspect_err(|error| tracing::error!(%error, "keys cannot be changed"))
            .ok();
        let controllers = plan.settings.controllers.clone();
        let shares = Shares::new(join::group_key(&plan.state_dir).as_ref());
        let proof = planes::read_proof(&plan.state_dir);
        let proof_kept = proof.as_ref().map(|proof| proof.header.header.clone());
        let mut driver = Driver {
            shared,
            plan,
            sessions: Vec::new(),
            next_number: 0,
            shares,
            quorum: Quorum::default(),
            given: Given::default(),
            place: None,
            hub: Hub::with_proof(proof),
            proof_kept,
            refusals: Vec::new(),
            list: 0,
            started: Instant::now(),
            switch: None,
            states: VecDeque::new(),
            generation: 0,
            stream_events,
            renewal,
            rotation,
            anew_from: 0,
            turn: 0,
            came: Vec::new(),
            about_keys: Vec::new(),
            takes_changes: None,
            look_soon: false,
            told: Told::default(),
            numbers: None,
            counted: Counters::default(),
        };
        controllers.into_iter().for_each(|address| driver.add(address));
        driver
    }

    fn add(&mut self, address: String) {
        let number = self.next_number;
        self.next_number = (number + 1) % NUMBERS_MAX;
        let settings = Settings { controllers: vec![address.clone()], ..self.plan.settings.clone() };
        let session = Session::new(settings, rand::random(), (number << QUESTION_SHIFT) | 1);
        self.sessions.push(One { number, address, session, stream: None, planes_seen: 0 });
        if self.switch.is_some() {
            self.step(number, Input::SwitchUp);
        }
    }

    fn next_tick(&self) -> Option<Instant> {
        let sessions = self.sessions.iter().filter_map(|one| one.session.next_tick_ms());
        let at_ms = sessions.chain(self.given.next_tick_ms()).min()?;
        Some(self.started + Duration::from_millis(at_ms))
    }

    fn link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Up(sender) => {
                self.states.clear();
                self.switch = Some(sender);
                if let Some(rotation) = &mut self.rotation {
                    rotation.switch_is_new();
                }
                self.step_all(&Input::SwitchUp);
            }
            LinkEvent::Down => {
                self.states.clear();
                self.given.clear();
                self.switch = None;
                self.step_all(&Input::SwitchDown);
            }
            LinkEvent::Frame(frame) => self.switch_says(frame),
        }
    }

    fn switch_says(&mut self, mut frame: FromSwitch) {
        let to = match &mut frame {
            FromSwitch::State { digest, entries, last } => {
                let asked = self.states.front().copied();
                if *last {
                    self.states.pop_front();
                    *digest = self.hub.digest(*digest);
                    entries.extend(self.hub.entries());
                    let changes = self.hub.changes;
                    let asker = self.sessions.iter_mut().find(|one| Some(one.number) == asked);
                    asker.into_iter().for_each(|one| one.planes_seen = changes);
                }
                asked
            }
            FromSwitch::Answer { id, .. } => Some(*id >> QUESTION_SHIFT),
            FromSwitch::Identity { key } => {
                if let Some(rotation) = &mut self.rotation {
                    rotation.switch_signs(key, Instant::now());
                }
                return;
            }
            FromSwitch::Acks(acks) => {
                match self.shares.acked(&acks.acks, self.shared.controllers().as_deref()) {
                    Some(combined) => self.combined(combined),
                    None => {
                        let whose = self.given.acked(&acks.acks);
                        let forged = acks.acks.iter().all(|ack| ack.result == Err(Refusal::Forged));
                        match forged && !whose.is_empty() {
                            true => self.forged(&whose, &frame),
                            false => self.tell_all(&frame, Session::wants_acks),
                        }
                    }
                }
                return;
            }
            _ => return self.tell_all(&frame, Session::established),
        };
        if let Some(number) = to {
            self.step(number, Input::FromSwitch(frame));
        }
    }

    /// These sessions sent frames that the switch calls forged. The others are not told: what they sent may have the same names.
    fn forged(&mut self, whose: &[u64], acks: &FromSwitch) {
        for number in whose {
            let wants = |one: &One| one.number == *number && one.session.wants_acks();
            if self.sessions.iter().any(wants) {
                self.step(*number, Input::FromSwitch(acks.clone()));
            }
            self.step(*number, Input::Forged);
        }
    }

    /// Gives a frame to every session that wants it; to the first one, which counts it as dropped, when none does.
    fn tell_all(&mut self, frame: &FromSwitch, wants: fn(&Session) -> bool) {
        let mut to: Vec<u64> =
            self.sessions.iter().filter(|one| wants(&one.session)).map(|one| one.number).collect();
        if to.is_empty() {
            to.extend(self.sessions.first().map(|one| one.number));
        }
        for number in to {
            self.step(number, Input::FromSwitch(frame.clone()));
        }
    }

    fn stream_event(&mut self, generation: u64, event: StreamEvent) {
        let of = |one: &&mut One| one.stream.as_ref().is_some_and(|stream| stream.generation == generation);
        let Some(one) = self.sessions.iter_mut().find(of) else { return };
        let number = one.number;
        match event {
            StreamEvent::Connected => self.step(number, Input::Connected),
            StreamEvent::Closed(reason) => {
                one.stream = None;
                self.renewal.ended(number, SystemTime::now());
                self.step(number, Input::Closed(reason));
            }
            StreamEvent::Garbage(reason) => {
                one.stream = None;
                self.renewal.ended(number, SystemTime::now());
                self.step(number, Input::Garbage(reason));
            }
            StreamEvent::Frame(frame, place) => {
                self.shared.metrics.session_frames_in.count();
                self.place = place;
                self.step(number, Input::FromController(frame));
                self.place = None;
            }
        }
    }

    fn step_all(&mut self, input: &Input) {
        let all: Vec<u64> = self.sessions.iter().map(|one| one.number).collect();
        all.into_iter().for_each(|number| self.step(number, input.clone()));
    }

    /// Gives an input to a session, and does what it wants. One that is gone is not asked.
    fn step(&mut self, number: u64, input: Input) {
        let mut inputs = vec![input];
        let mut learnt = None;
        let mut combined = Vec::new();
        while let Some(input) = inputs.pop() {
            let now_ms = self.started.elapsed().as_millis() as u64;
            let mut out = Vec::new();
            let Some(at) = self.sessions.iter().position(|one| one.number == number) else { return };
            self.sessions[at].session.step(now_ms, input, &mut out);
            for output in out {
                let output = match output {
                    Output::Controllers { number, sessions } => {
                        learnt = Some((number, sessions));
                        continue;
                    }
                    Output::Unsigned(updates) => {
                        self.quorum.began(&updates.header, Instant::now());
                        combined.push(self.shares.unsigned(number, updates));
                        continue;
                    }
                    Output::Share(share) => {
                        combined.push(self.shares.share(number, share));
                        continue;
                    }
                    Output::Endorsement(endorsement) => {
                        let known = self.shared.controllers();
                        combined.push(self.shares.endorsement(number, endorsement, known.as_deref()));
                        continue;
                    }
                    other => other,
                };
                if let Some(reason) = self.act(at, output) {
                    self.sessions[at].stream = None;
                    inputs = vec![Input::Closed(reason)];
                }
            }
        }
        combined.into_iter().for_each(|combined| self.combined(combined));
        self.keep_proof();
        self.publish();
        if let Some((number, controllers)) = learnt {
            self.learn(number, controllers);
        }
    }

    /// Enough controllers vouch for a batch.
    fn has_quorum(&mut self, header: &BatchHeader) {
        if let Some(waited) = self.quorum.whole(header, Instant::now()) {
            self.shared.metrics.quorum.took(waited);
        }
    }

    /// What shares led to. A frame that the switch does not take now is sent again by the controller that leads.
    fn combined(&mut self, combined: Combined) {
        for updates in combined.updates {
            if !updates.updates.is_empty() {
                self.has_quorum(&updates.header.header);
            }
            let frame = ToSwitch::Updates(updates);
            let Some(frame) = planes::part_of_switch(&mut self.hub, &mut self.refusals, frame) else {
                continue;
            };
            if self.switch.as_ref().is_none_or(|switch| switch.try_send(frame).is_err()) {
                self.shares.counters.dropped += 1;
            }
        }
        for session in combined.costly {
            self.step(session, Input::Forged);
        }
        for session in combined.bad {
            let one = self.sessions.iter().find(|one| one.number == session);
            let controller = one.map_or("one that is gone", |one| &one.address);
            tracing::warn!(controller, "its share of a signature, or its endorsement, is bad");
            self.step(session, Input::Forged);
        }
    }

    /// Does what a machine wants; a text means that its stream is over.
    fn act(&mut self, at: usize, output: Output) -> Option<String> {
        let one = &mut self.sessions[at];
        match output {
            Output::Connect(controller) => {
                self.generation += 1;
                let events = self.stream_events.clone();
                let state_dir = self.plan.state_dir.clone();
                one.stream =
                    Some(Stream::begin(self.generation, controller, state_dir, events, self.shared.clone()));
            }
            Output::Close => one.stream = None,
            Output::ToController(frame) => {
                let stream = one.stream.as_ref()?;
                if matches!(frame, ToController::Event(_)) && stream.sender.capacity() < EVENTS_RESERVE {
                    one.session.counters.dropped_events += 1;
                    return None;
                }
                match stream.sender.try_send(frame) {
                    Ok(()) => self.shared.metrics.session_frames_out.count(),
                    Err(TrySendError::Full(_)) => {
                        self.shared.metrics.session_queue_full.count();
                        return Some(format!("it has left {TO_CONTROLLER_MAX} frames unread"));
                    }
                    // The stream has ended, and why is on its way here.
                    Err(TrySendError::Closed(_)) => {}
                }
            }
            Output::ToSwitch(frame) => {
                if let ToSwitch::Updates(updates) = &frame {
                    // A field of its own, since the session is borrowed.
                    if let Some(waited) = self.quorum.whole(&updates.header.header, Instant::now()) {
                        self.shared.metrics.quorum.took(waited);
                    }
                    // Only what the switch answers at once has a place: others would wait for a plane that is not there.
                    let for_switch =
                        updates.updates.iter().any(|proven| !matches!(proven.update.key, Key::Plane { .. }));
                    let place = self.place.take().filter(|_| for_switch);
                    let now_ms = self.started.elapsed().as_millis() as u64;
                    self.given.gives(now_ms, one.number, updates, place);
                }
                let frame = planes::part_of_switch(&mut self.hub, &mut self.refusals, frame)?;
                let asks = matches!(frame, ToSwitch::SendState);
                let taken = self.switch.as_ref().is_some_and(|switch| switch.try_send(frame).is_ok());
                if !taken {
                    return Some("the switch does not take frames".into());
                }
                if asks {
                    self.states.push_back(one.number);
                }
            }
            Output::BadConduct(ended) => self.told.ended(&self.sessions[at].address, ended),
            Output::ResetSwitch => self.shared.reset_switch.notify_one(),
            Output::Report(report @ Report::Established { .. }) => {
                tracing::info!("{report}");
                self.look_soon = true;
                self.came.push(self.sessions[at].number);
            }
            Output::Keys(frame) => {
                let from = one.address.clone();
                self.about_keys.push((from, frame));
            }
            Output::Certificate(pem) => {
                let number = self.sessions[at].number;
                self.keep_certificate(number, &pem);
            }
            Output::Report(report @ Report::NotRenewed { .. }) => {
                let number = self.sessions[at].number;
                if !self.renewal.answered(number) {
                    tracing::debug!("{report}; nobody waits for it any more");
                    return None;
                }
                self.shared.metrics.renewals_failed.count();
                tracing::warn!("{report}");
            }
            Output::Report(report @ Report::Lost { .. }) => tracing::warn!("{report}"),
            Output::Controllers { .. } | Output::Unsigned(_) | Output::Share(_) | Output::Endorsement(_) => {}
        }
        None
    }

    /// The controllers of the group are here now.
    fn learn(&mut self, number: u64, controllers: Vec<String>) {
        if !self.plan.learns || number <= self.list || controllers.is_empty() {
            return;
        }
        if let Err(error) = check_controllers("controllers", &controllers) {
            tracing::warn!(%error, "a controller tells a list of controllers that cannot be used");
            return;
        }
        self.list = number;
        if let Err(error) = join::keep_controllers(&self.plan.state_dir, &controllers) {
            tracing::warn!(%error, "where the controllers are could not be kept for the next start");
        }
        for gone in self.sessions.extract_if(.., |one| !controllers.contains(&one.address)) {
            tracing::info!(controller = gone.address, "it is no controller of the group any more");
            self.counted += gone.session.counters;
        }
        let known: Vec<String> = self.sessions.iter().map(|one| one.address.clone()).collect();
        for address in controllers.into_iter().filter(|address| !known.contains(address)) {
            tracing::info!(controller = address, "it is a controller of the group now");
            self.add(address);
        }
        self.publish();
    }

    /// Asks for a new certificate when it is time.
    fn renew(&mut self) {
        if self.changes_keys() {
            return;
        }
        let established = self.sessions.iter().filter(|one| one.session.established());
        let established: Vec<u64> = established.map(|one| one.number).collect();
        let Some(number) = self.renewal.whom(&established) else { return };
        match self.renewal.request(SystemTime::now()) {
            Ok(None) => {}
            Ok(Some(csr_pem)) => {
                self.renewal.was_asked(number);
                self.step(number, Input::Say(Box::new(ToController::Renew { csr_pem })));
            }
            Err(error) => tracing::warn!(%error, "the certificate cannot be renewed"),
        }
    }

    /// What controllers said of a change of keys, and sessions that take the places of others.
    fn settle_sessions(&mut self) {
        for (from, frame) in std::mem::take(&mut self.about_keys) {
            if !matches!(frame, ToActuator::NotRotated(_)) {
                self.takes_changes = Some(from);
            }
            if let Err(error) = self.hear_of_keys(frame) {
                tracing::warn!(%error, "the keys cannot be changed");
            }
        }
        for number in std::mem::take(&mut self.came) {
            let Some(came) = self.sessions.iter().find(|one| one.number == number) else { continue };
            let address = came.address.clone();
            self.planes_since(number);
            for old in self.sessions.extract_if(.., |one| one.address == address && one.number < number) {
                self.counted += old.session.counters;
            }
        }
    }

    fn keep_certificate(&mut self, number: u64, pem: &str) {
        let waited = self.renewal.answered(number);
        match self.renewal.keep(pem, SystemTime::now()) {
            Ok(life) => {
                self.shared.metrics.renewals_done.count();
                tracing::info!(until_s = life.until_s, "the certificate is renewed");
            }
            // Another controller was quicker.
            Err(error) if !waited => tracing::debug!(%error, "a certificate that nobody waits for any more"),
            Err(error) => {
                self.shared.metrics.renewals_failed.count();
                tracing::warn!(%error, "the certificate is not renewed: the present one stays");
            }
        }
        self.publish_certificate();
    }

    fn publish_certificate(&self) {
        if let Ok(life) = renewal::life(&self.plan.state_dir) {
            self.shared.metrics.certificate_until_s.set(life.until_s.max(0) as u64);
        }
    }

    fn publish(&self) {
        let metrics = &self.shared.metrics;
        let mut counters = self.counted;
        self.sessions.iter().for_each(|one| counters += one.session.counters);
        let established = self.sessions.iter().filter(|one| one.session.established()).count();
        metrics.session_up.set(u64::from(established > 0));
        metrics.sessions_established.set(established as u64);
        metrics.session_connects.set(counters.connects);
        metrics.session_closes.set(counters.closes);
        metrics.session_protocol_errors.set(counters.protocol_errors);
        metrics.session_dropped_acks.set(counters.dropped_acks);
        metrics.session_dropped_events.set(counters.dropped_events);
        metrics.session_dropped_answers.set(counters.dropped_answers);
        metrics.session_questions_refused.set(counters.questions_refused);
        metrics.session_questions_expired.set(counters.questions_expired);
        metrics.session_switch_resets.set(counters.switch_resets);
        metrics.session_forgeries.set(counters.forgeries);
        metrics.session_bad_conduct.set(counters.bad_conduct);
        metrics.session_states_delayed.set(counters.states_delayed);
        metrics.planes_up.set(self.hub.up() as u64);
        metrics.planes_waiting.set(self.hub.held() as u64);
        metrics.planes_came.set(self.hub.counters.came);
        metrics.planes_went.set(self.hub.counters.went);
        metrics.planes_given.set(self.hub.counters.given);
        metrics.planes_refused.set(self.hub.counters.refused);
        metrics.planes_dropped.set(self.hub.counters.dropped);
        metrics.shares_combined.set(self.shares.counters.combined);
        metrics.shares_bad.set(self.shares.counters.bad);
        metrics.shares_dropped.set(self.shares.counters.dropped);
    }
}
