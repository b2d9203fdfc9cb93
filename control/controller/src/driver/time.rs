//! This controller's idea of ordered time: [`OrderedTime`] on the machine's clocks.
//!
//! One controller has one of them. Whoever stamps a proposal or judges one asks it; what tells the members of a group each other's
//! clocks is elsewhere, and feeds it by [`TimeKeeper::heard`].

use super::ControllerHandle;
use super::locking::locked;
use crate::Error;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_base::ordered_time::{OrderedTime, Reading, State, View};
use weir_base::world::Clock;
use weir_model::Version;
use weir_model::event::EventBody;

/// See the module.
pub struct TimeKeeper {
    clock: Arc<dyn Clock>,
    time: Mutex<OrderedTime>,
}

impl fmt::Debug for TimeKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeKeeper").field("time", &locked(&self.time)).finish_non_exhaustive()
    }
}

impl TimeKeeper {
    /// The time of a controller with this number, which is alone until it is told otherwise; 0 where it always is.
    pub fn new(clock: Arc<dyn Clock>, own: u64) -> TimeKeeper {
        let time = OrderedTime::new(own, 0, clock.now_ns() / 1_000_000);
        TimeKeeper { clock, time: Mutex::new(time) }
    }

    fn steady_ms(&self) -> u64 {
        self.clock.now_ns() / 1_000_000
    }

    fn with<T>(&self, look: impl FnOnce(&mut OrderedTime, u64) -> T) -> T {
        let mut time = locked(&self.time);
        let steady_ms = self.steady_ms();
        look(&mut time, steady_ms)
    }

    /// Who is in the group, and how many clocks must be known to correct by them.
    pub fn set_members(&self, members: BTreeSet<u64>, quorum: usize) {
        self.with(|time, _| time.set_members(members, quorum));
    }

    /// Another member told its clock.
    pub fn heard(&self, from: u64, reading: Reading) {
        self.with(|time, steady_ms| time.heard(from, reading, steady_ms));
    }

    /// What the others are told.
    pub fn reading(&self) -> Reading {
        let wall_ms = self.clock.wall_ms();
        self.with(|time, steady_ms| time.reading(wall_ms, steady_ms))
    }

    /// What the state says after a batch: ordered time, and by how much wall time is ahead of it.
    pub fn decided(&self, last_ms: u64, difference_ms: i64) {
        self.with(|time, steady_ms| {
            time.decided(last_ms, steady_ms);
            time.set_difference(difference_ms);
        });
    }

    /// Time passed.
    pub fn tick(&self) {
        let wall_ms = self.clock.wall_ms();
        self.with(|time, steady_ms| time.tick(wall_ms, steady_ms));
    }

    /// Time for a proposal; 0: as little is known of the clocks, no time passes by it.
    pub fn ordered_ms(&self) -> u64 {
        self.with(|time, steady_ms| time.ordered_ms(steady_ms))
    }

    /// Wall time, as the group has it.
    pub fn wall_ms(&self) -> u64 {
        self.with(|time, steady_ms| time.wall_ms(steady_ms))
    }

    /// What the clocks of a majority say, and this machine's own while too few are known: what judges and makes certificates, so that a
    /// member whose clock is wrong takes what the others take. Not ordered time, which goes on without the clocks where they are far from it.
    pub fn by_clocks(&self) -> SystemTime {
        let clocks_ms = self.clocks_ms().filter(|clocks_ms| *clocks_ms > 0);
        let since = Duration::from_millis(clocks_ms.unwrap_or_else(|| self.clock.wall_ms()));
        UNIX_EPOCH.checked_add(since).unwrap_or_else(SystemTime::now)
    }

    /// The latest time that a proposal may have.
    pub fn latest_ms(&self) -> u64 {
        self.with(|time, steady_ms| time.latest_ms(steady_ms))
    }

    /// Whether a correction is what the clocks say.
    pub fn is_right(&self, wall_ms: u64, ordered_ms: u64) -> bool {
        self.with(|time, steady_ms| time.is_right(wall_ms, ordered_ms, steady_ms))
    }

    /// What is known of the clocks, and how often a difference was followed at once.
    pub fn view(&self) -> (View, u64) {
        self.with(|time, steady_ms| (time.view(steady_ms), time.steps()))
    }

    fn clocks_ms(&self) -> Option<u64> {
        self.with(|time, steady_ms| time.clocks_ms(steady_ms))
    }
}

impl ControllerHandle {
    /// This controller's idea of ordered time.
    pub fn time(&self) -> &Arc<TimeKeeper> {
        &self.shared.time
    }

    /// Orders that wall time is what the clocks of a majority say, for somebody whom the API authenticated. What has a life keeps what
    /// is left of it.
    ///
    /// # Errors
    /// [`Error::Clocks`]: the clocks of too few members are known. Else as [`ControllerHandle::propose`].
    pub async fn set_clock(&self, subject: Option<String>) -> Result<Version, Error> {
        let wall_ms = self.shared.time.clocks_ms().ok_or(Error::Clocks)?;
        self.submit_own(EventBody::Clock { wall_ms }, subject).await
    }
}

/// What a person is told when the clocks and ordered time are too far from each other.
pub(super) fn warn(before: State, view: &View) {
    if before == view.state {
        return;
    }
    match (view.state, view.majority_ms) {
        (State::Asks, Some(ahead_ms)) => tracing::warn!(
            ahead_s = ahead_ms / 1_000,
            "the clocks are days away from ordered time, which goes on without them: set them right, or accept them with 'weir clock --set'"
        ),
        (State::Corrects, Some(ahead_ms)) => {
            tracing::info!(ahead_ms, "ordered time is being led to the clocks")
        }
        _ => {}
    }
}
