//! The process of a switch: from its settings to its threads, and back.
//!
//! A switch may end at any instruction: what is in force is in the checkpoint, connections are in their
//! journal, the devices are persistent. The next one takes all of it back before it moves
//! the first packet, with no controller and no agent (row A9). One that still runs can be taken over from without
//! that anybody notices ([`crate::handover`]; row A30).

mod assembly;
mod given;
mod metrics;

pub use metrics::metrics_text;

use crate::config::SwitchConfig;
use crate::engine::idle::Idle;
use crate::engine::sys::{self, Wakeup};
use crate::engine::{Command, Shared};
use crate::fragments::Fragments;
use crate::handover::HandoverError;
use crate::handover::Who;
use crate::handover::new::Taking;
use crate::handover::old::Keeper;
use crate::ports::{self, PortError};
use crate::slow::Slow;
use crate::slow::mind::Mind;
use assembly::{Assembly, Running, log_budget, spawn};
use given::{Given, Outside, adopt_outside, open_numbers, outside_port, wait_for_lock};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_model::join::{TrustFile, from_hex};
use weir_model::signed::GroupKey;
use weir_trust::identity::KeyPair;
use weir_trust::token::TokenKey;

/// Name of the lock in the run directory.
const LOCK_FILE: &str = "switch.lock";
/// Name of the checkpoint in the state directory.
const CHECKPOINT_FILE: &str = "switch.checkpoint";
/// Name of the journal of connections in the state directory.
const CONNECTIONS_FILE: &str = "switch.connections";
/// Name of the file in the run directory with the settings of the switch that runs.
const SETTINGS_FILE: &str = "switch.settings.json";
/// File of the numbers of the switch's events.
const NUMBERS_FILE: &str = "switch.numbers";
/// How many of them are reserved with one durable write: an hour of usage reports.
const NUMBERS_RESERVED: u64 = 4096;
/// How often the main thread looks at the others, milliseconds.
const WATCH_MS: u64 = 100;

/// Why a switch cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// A setting is wrong.
    #[error("the settings of the switch are wrong: {0}")]
    Config(String),
    /// A file cannot be used.
    #[error("{what} '{path}': {reason}")]
    File {
        /// What it is.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Another switch runs in the run directory.
    #[error("another switch runs in '{0}': stop it, or give this one a run_dir of its own")]
    Running(PathBuf),
    /// A socket of the underlay cannot be opened.
    #[error("UDP {address} cannot be opened: {source}")]
    Underlay {
        /// The address wanted.
        address: SocketAddr,
        /// What the kernel says.
        source: io::Error,
    },
    /// The device of the outside cannot be made.
    #[error("the way outside: {0}")]
    External(#[from] PortError),
    /// The kernel refused something else.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the kernel says.
        source: io::Error,
    },
    /// Another process could not be taken over from; it goes on.
    #[error("no hand-over: {0}")]
    Handover(#[from] HandoverError),
    /// A thread ended that must not.
    #[error("the {thread} thread ended: {reason}")]
    Ended {
        /// Which.
        thread: &'static str,
        /// Why.
        reason: String,
    },
}

fn system(doing: &'static str) -> impl FnOnce(io::Error) -> SwitchError {
    move |source| SwitchError::System { doing, source }
}

fn file_error(what: &'static str, path: &Path, reason: impl ToString) -> SwitchError {
    SwitchError::File { what, path: path.to_path_buf(), reason: reason.to_string() }
}

/// Writes down the settings that this process runs with, for a supervisor that finds it running.
fn write_settings(config: &SwitchConfig) {
    let path = config.run_dir.join(SETTINGS_FILE);
    let written = serde_json::to_vec_pretty(config)
        .map_err(io::Error::other)
        .and_then(|text| weir_base::file::replace(&path, &text, 0o600));
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), %error, "a supervisor cannot tell which settings this switch has");
    }
}

/// The settings that the switch of a run directory runs with, if it has written them down.
pub fn running_settings(run_dir: &Path) -> Option<SwitchConfig> {
    serde_json::from_slice(&std::fs::read(run_dir.join(SETTINGS_FILE)).ok()?).ok()
}

/// Secrets and keys of a switch.
pub struct Secrets {
    /// The group's public key.
    pub group_key: GroupKey,
    /// Key of the security tokens in packets.
    pub dataplane: [u8; 16],
    /// Key that signs acks and events.
    pub identity: KeyPair,
}

/// Reads the trust and identity files.
///
/// # Errors
/// [`SwitchError::File`], with what would be right.
pub fn read_secrets(config: &SwitchConfig) -> Result<Secrets, SwitchError> {
    let path = &config.trust_file;
    let bad = |reason: String| file_error("the trust file", path, reason);
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let trust: TrustFile = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    if trust.domain != config.domain {
        return Err(bad(format!("it is of domain '{}', the settings say '{}'", trust.domain, config.domain)));
    }
    let group_key = GroupKey::from_hex(&trust.group_key)
        .ok_or_else(|| bad("group_key is not 64 hex digits, or 192 of a threshold key".into()))?;
    let dataplane = from_hex(&trust.dataplane_secret)
        .ok_or_else(|| bad("dataplane_secret is not 32 hex digits".into()))?;
    Ok(Secrets { group_key, dataplane, identity: read_identity(&config.identity_file)? })
}

/// Reads the identity file.
///
/// # Errors
/// [`SwitchError::File`], with what would be right.
pub fn read_identity(path: &Path) -> Result<KeyPair, SwitchError> {
    let bad = |reason: String| file_error("the identity file", path, reason);
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let seed = from_hex(text.trim()).ok_or_else(|| bad("it does not hold 64 hex digits".into()))?;
    Ok(KeyPair::from_seed(&seed))
}

/// A running switch.
#[derive(Debug)]
pub struct Switch {
    shared: Arc<Shared>,
    control_wake: Arc<Wakeup>,
    keeper_wake: Arc<Wakeup>,
    underlay: Option<Arc<crate::underlay::Control>>,
    threads: Vec<(&'static str, JoinHandle<io::Result<()>>)>,
    /// Waits for a process that takes over, when it is told to.
    waiting: Option<Keeper>,
    keeper: Option<JoinHandle<io::Result<()>>>,
    /// Set when another process serves.
    left: Arc<AtomicBool>,
    /// Kept for as long as the switch runs.
    _lock: OwnedFd,
}

impl Switch {
    /// Starts a switch with a mind of the caller's making.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn start<M: Mind + 'static>(
        config: &SwitchConfig,
        make_mind: impl FnOnce(&SwitchConfig, TokenKey) -> M,
    ) -> Result<Switch, SwitchError> {
        Switch::start_with_idle(config, make_mind, || None)
    }

    /// Starts one with something to do in its engine's idle slots.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn start_with_idle<M: Mind + 'static>(
        config: &SwitchConfig,
        make_mind: impl FnOnce(&SwitchConfig, TokenKey) -> M,
        idle: impl FnOnce() -> Option<Box<dyn Idle>>,
    ) -> Result<Switch, SwitchError> {
        check(config)?;
        let secrets = read_secrets(config)?;
        let mind = make_mind(config, TokenKey::new(secrets.dataplane));
        let given = Given::fresh(config, &secrets)?;
        let outside = given.outside.clone();
        let mut assembly = Assembly::new(config, secrets, mind, given)?;
        let found = std::mem::take(&mut assembly.found);
        if let Some(outside) = &outside {
            assembly
                .slow
                .tell_engine(outside_port(outside))
                .map_err(system("giving the outside to the engine"))?;
        }
        if let Some(work) = idle() {
            assembly
                .slow
                .tell_engine(Command::Idle(work))
                .map_err(system("giving the idle slots to the engine"))?;
        }
        // Whoever spoke through the one before goes on, and none of their flows is known.
        assembly.slow.tell_engine(Command::Resume).map_err(system("starting the engine"))?;
        log_budget(config);
        let (running, mut slow) = assembly.run_engine(config)?;
        slow.go_on_with(
            found,
            outside.as_ref().map(|outside| (outside.name.clone(), Arc::clone(&outside.device))),
        );
        let switch = running.run(slow, outside)?.keep()?;
        write_settings(config);
        Ok(switch)
    }

    /// Takes over from the process that serves, or starts when none does (row A30). `serving` is called when this one
    /// serves.
    ///
    /// # Errors
    /// [`SwitchError`]: the other process serves on, unless it has died. Then this one starts as after a crash.
    pub fn take_over<M: Mind + 'static>(
        config: &SwitchConfig,
        make_mind: impl Fn(&SwitchConfig, TokenKey) -> M,
        idle: impl FnOnce() -> Option<Box<dyn Idle>>,
    ) -> Result<Switch, SwitchError> {
        check(config)?;
        let began = Instant::now();
        let taking = match Taking::begin(&config.run_dir, &who(config)) {
            Ok(Some(taking)) => taking,
            Ok(None) => {
                tracing::info!("no process serves that could be taken over from");
                // One that was killed just now may hold the lock still.
                wait_for_lock(&config.run_dir);
                return Switch::start_with_idle(config, make_mind, idle);
            }
            Err(HandoverError::Gone) => return Switch::after_death(config, make_mind, idle),
            Err(error) => return Err(error.into()),
        };
        let (mut taking, fixed) = taking;
        match Switch::take(config, &make_mind, &mut taking, fixed, began) {
            Ok((switch, engine)) => {
                // Only now: who watches the other process sees it until here.
                if let Some(work) = idle()
                    && engine.send(Command::Idle(work)).is_ok()
                {
                    switch.shared.engine_wake.wake();
                }
                Ok(switch)
            }
            Err(SwitchError::Handover(HandoverError::Gone)) => {
                taking.wait_for_end();
                Switch::after_death(config, make_mind, idle)
            }
            Err(error) => {
                taking.refuse(&error.to_string());
                Err(error)
            }
        }
    }

    /// Starts from the checkpoint when the process died that was to be taken over from.
    fn after_death<M: Mind + 'static>(
        config: &SwitchConfig,
        make_mind: impl Fn(&SwitchConfig, TokenKey) -> M,
        idle: impl FnOnce() -> Option<Box<dyn Idle>>,
    ) -> Result<Switch, SwitchError> {
        tracing::warn!("the other process died before all was handed over: starting from the checkpoint");
        wait_for_lock(&config.run_dir);
        Switch::start_with_idle(config, make_mind, idle)
    }

    /// The brownout: builds a switch of what the checkpoint and the other process say, while that one serves.
    fn take<M: Mind + 'static>(
        config: &SwitchConfig,
        make_mind: &impl Fn(&SwitchConfig, TokenKey) -> M,
        taking: &mut Taking,
        fixed: crate::handover::Fixed,
        began: Instant,
    ) -> Result<(Switch, SyncSender<Command>), SwitchError> {
        let secrets = read_secrets(config)?;
        let mind = make_mind(config, TokenKey::new(secrets.dataplane));
        let given = Given::taken(config, &secrets, fixed, taking.welcome.now_ms)?;
        let mut assembly = Assembly::new(config, secrets, mind, given)?;
        log_budget(config);
        let counters = Arc::clone(&assembly.counters);
        let slow = &mut assembly.slow;
        let copied = taking.copy(|changes| slow.carry_connections(changes))?;
        slow.follow().map_err(|error| HandoverError::Own(error.to_string()))?;
        counters.connections.store(copied, Relaxed);
        let fragments = Fragments::default();
        let (running, mut slow) = assembly.run_engine(config)?;
        counters.brownout_us.store(began.elapsed().as_micros() as u64, Relaxed);
        let frozen = Instant::now();
        let outside = match Switch::take_rest(config, taking, &running, &mut slow, fragments) {
            Ok(outside) => outside,
            Err(error) => {
                drop(slow);
                running.give_up();
                return Err(error);
            }
        };
        let engine = slow.engine();
        let switch = running.run(slow, outside)?;
        taking.serving();
        let blackout_us = frozen.elapsed().as_micros() as u64;
        counters.taken_over.store(1, Relaxed);
        counters.blackout_us.store(blackout_us, Relaxed);
        tracing::info!(brownout_us = counters.brownout_us.load(Relaxed), blackout_us, copied, "taken over");
        if let Some(external) = &config.external
            && let Err(error) = ports::settle_external(&external.device, external.mtu, &external.addresses)
        {
            tracing::error!(%error, "the outside is as the other process left it");
        }
        let switch = switch.keep()?;
        write_settings(config);
        Ok((switch, engine))
    }

    /// The blackout: the other process serves no more. After an error it goes on.
    fn take_rest<M: Mind + 'static>(
        config: &SwitchConfig,
        taking: &mut Taking,
        running: &Running,
        slow: &mut Slow<M>,
        fragments: Fragments,
    ) -> Result<Option<Outside>, SwitchError> {
        let mut taken = taking.freeze()?;
        running.counters().guests_left.store(taken.end.guests_left.into(), Relaxed);
        let outside = adopt_outside(config, &mut taken)?;
        slow.set_numbers(open_numbers(config)?);
        if let Some(outside) = &outside {
            slow.tell_engine(outside_port(outside)).map_err(system("giving the outside to the engine"))?;
        }
        running.sign()?;
        if let Some(outside) = &outside {
            slow.keep_outside(outside.name.clone(), Arc::clone(&outside.device));
        }
        slow.take_over(taken, fragments).map_err(|error| HandoverError::Own(error.to_string()))?;
        Ok(outside)
    }

    /// Waits from now on for a process that takes over.
    fn keep(mut self) -> Result<Switch, SwitchError> {
        if let Some(keeper) = self.waiting.take() {
            self.keeper = Some(spawn("upgrade", move || keeper.run())?.1);
        }
        Ok(self)
    }

    /// The name of a thread that has ended, if one has.
    pub fn ended(&self) -> Option<&'static str> {
        self.threads.iter().find(|(_, thread)| thread.is_finished()).map(|(name, _)| *name)
    }

    /// Whether another process serves in place of this one.
    pub fn has_left(&self) -> bool {
        self.left.load(Relaxed)
    }

    /// Ends the switch. Devices and state stay.
    ///
    /// # Errors
    /// [`SwitchError::Ended`] when a thread had ended by itself.
    pub fn stop(self) -> Result<(), SwitchError> {
        let early = self.ended().filter(|_| !self.has_left());
        self.shared.stop.store(true, Relaxed);
        self.shared.slow_wake.wake();
        // The slow path tells the engine to end, unless it has ended itself.
        self.shared.engine_wake.wake();
        self.control_wake.wake();
        self.keeper_wake.wake();
        if let Some(underlay) = &self.underlay {
            underlay.wake();
        }
        let mut result = Ok(());
        let keeper = self.keeper.into_iter().map(|thread| ("upgrade", thread));
        for (name, thread) in self.threads.into_iter().chain(keeper) {
            let reason = match thread.join() {
                Ok(Ok(())) if early == Some(name) => "for no reason".to_string(),
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it panicked".to_string(),
            };
            if result.is_ok() {
                result = Err(SwitchError::Ended { thread: name, reason });
            }
        }
        result
    }
}

/// How a switch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// From its checkpoint; another process in its run directory is an error.
    Start,
    /// From the process that serves, if one does.
    TakeOver,
}

/// Runs a switch with the tables for a mind: see [`run_as`].
///
/// # Errors
/// [`SwitchError`].
pub fn run(config: &SwitchConfig) -> Result<(), SwitchError> {
    run_as(config, Begin::Start, || None, || ())
}

/// Runs a switch until the process is told to end (SIGTERM or SIGINT), another one has taken over, or a thread ends. To be called
/// before the process has other threads: the signals are blocked for this one and those that it starts. `idle` makes what is to do in
/// idle slots, and `serving` is called, when it serves.
///
/// # Errors
/// [`SwitchError`].
pub fn run_as(
    config: &SwitchConfig,
    begin: Begin,
    idle: impl FnOnce() -> Option<Box<dyn Idle>>,
    serving: impl FnOnce(),
) -> Result<(), SwitchError> {
    let signals = sys::Signals::block().map_err(system("blocking signals"))?;
    let started = Instant::now();
    let make_mind = crate::slow::tables_mind::make;
    let switch = match begin {
        Begin::Start => Switch::start_with_idle(config, make_mind, idle)?,
        Begin::TakeOver => Switch::take_over(config, make_mind, idle)?,
    };
    serving();
    tracing::info!(
        name = %config.name,
        underlay = %config.underlay,
        started_ms = started.elapsed().as_millis() as u64,
        "the switch runs"
    );
    while switch.ended().is_none() {
        if signals.wait(Duration::from_millis(WATCH_MS)) {
            break;
        }
    }
    switch.stop()
}

fn check(config: &SwitchConfig) -> Result<(), SwitchError> {
    if let Some(problem) = config.problem() {
        return Err(SwitchError::Config(problem));
    }
    for dir in [&config.run_dir, &config.state_dir] {
        std::fs::create_dir_all(dir).map_err(|error| file_error("the directory", dir, error))?;
    }
    Ok(())
}

fn who(config: &SwitchConfig) -> Who {
    Who {
        name: config.name.clone(),
        domain: config.domain.clone(),
        underlay: (config.underlay, config.geneve_port, config.vxlan_port),
    }
}

#[cfg(test)]
mod tests;
