//! What the tasks of an agent share.

use crate::metrics::Metrics;
use crate::mirror::Mirror;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use tokio::sync::{Notify, mpsc, watch};
use weir_model::entry::ControllersEntry;
use weir_model::local::ToSwitch;
use weir_model::{Key, Label};

/// Most frames waiting to be sent to the switch.
pub const TO_SWITCH_MAX: usize = 256;

/// A way to send to the switch, as long as one connection lasts.
pub type SwitchSender = mpsc::Sender<ToSwitch>;

/// See the module.
#[derive(Debug)]
pub struct Shared {
    /// Name of the actuator.
    pub actuator: Label,
    /// Counters.
    pub metrics: Metrics,
    /// The switch's entries; locks are held for one look-up or one change.
    mirror: RwLock<Mirror>,
    synced: AtomicBool,
    /// Wakes the keeper of devices.
    pub ports_changed: Notify,
    /// The present connection to the switch.
    pub switch: watch::Sender<Option<SwitchSender>>,
    /// Ends the present connection to the switch, for a new one.
    pub reset_switch: Notify,
    problems: Mutex<BTreeMap<Key, String>>,
}

impl Shared {
    /// Nothing known yet.
    pub fn new(actuator: Label) -> Shared {
        Shared {
            actuator,
            metrics: Metrics::default(),
            mirror: RwLock::default(),
            synced: AtomicBool::new(false),
            ports_changed: Notify::new(),
            switch: watch::Sender::new(None),
            reset_switch: Notify::new(),
            problems: Mutex::default(),
        }
    }

    /// The mirror, to read.
    pub fn mirror(&self) -> RwLockReadGuard<'_, Mirror> {
        self.mirror.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The controllers whose endorsements the switch takes.
    pub fn controllers(&self) -> Option<Arc<ControllersEntry>> {
        self.mirror().controllers().cloned()
    }

    /// Changes the mirror.
    pub(crate) fn change_mirror<R>(&self, change: impl FnOnce(&mut Mirror) -> R) -> R {
        let mut mirror = self.mirror.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut mirror);
        self.metrics.mirror_entries.set(mirror.len() as u64);
        result
    }

    /// Whether the mirror has been whole once: before that it is not to be acted on.
    pub fn synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    pub(crate) fn set_synced(&self) {
        self.synced.store(true, Ordering::Release);
        self.metrics.mirror_synced.set(1);
    }

    /// Ports whose device is not as it should be, and why.
    pub fn problems(&self) -> MutexGuard<'_, BTreeMap<Key, String>> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
