//! Failure detection by progress (Bohra, 3.5.1; row O): a target that lives makes counters move; one whose counters stand
//! still for k periods is suspected.
//!
//! ```text
//!             k periods without progress            no progress within `watch_ns`
//!   Alive ───────────────────────────────► Watched ─────────────────────────────► Failed
//!     ▲          (stimulate the target)       │                                     │
//!     └──────────── progress ─────────────────┘◄──────────── progress ──────────────┘
//! ```
//!
//! Departure from the paper: there the slope of the timer's counter decides. An idle kernel of today stops its timer, so
//! silence proves nothing: the target is first stimulated (an interrupt, a packet) and must then move some counter.
//! Where nothing can be stimulated, `watch_ns` is 0 and silence decides, as in the paper.
//!
//! [`Detector::level`] is an accrual level (Hayashibara et al.'s phi for exponential intervals): who wants another trade of
//! speed against false alarms reads it and takes a threshold of its own. Flapping is damped: each recovery doubles the
//! periods that the next failure needs, up to [`DAMP_MAX`] doublings, and each quiet [`CALM_PERIODS`] undo one.
//!
//! It is a step machine: time and values come in, decisions go out; it knows no clock. Monitors of hosts use it for hosts,
//! guests and applications, controllers of a group for each other.

/// Most doublings of the periods.
pub const DAMP_MAX: u32 = 4;
/// Periods of steady progress that undo one doubling.
pub const CALM_PERIODS: u64 = 100;

/// What a detector is told beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// In this time a target that lives makes progress, ns.
    pub period_ns: u64,
    /// So many periods without progress make it suspect: the paper's k.
    pub periods: u32,
    /// After a stimulus, progress must come within this time, ns; 0: there is no stimulus.
    pub watch_ns: u64,
}

/// What a target is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It makes progress, or has not been silent for long.
    Alive,
    /// It was stimulated, at this time, and has not moved since.
    Watched {
        /// When, ns.
        since_ns: u64,
    },
    /// It failed.
    Failed,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Nothing,
    /// Stimulate the target, so that it must make progress.
    Stimulate,
    /// It failed, just now: fence it, then act. Told once.
    Failed,
    /// It was called failed and moves again.
    Recovered,
}

/// A detector of one target.
#[derive(Clone, Debug)]
pub struct Detector {
    settings: Settings,
    state: State,
    progress: Option<u64>,
    moved_ns: u64,
    /// Mean time between moves, ns.
    mean_ns: u64,
    damp: u32,
    calm_ns: u64,
    /// How often it declared a failure.
    pub failures: u64,
    /// How often that was followed by progress.
    pub recoveries: u64,
}

impl Detector {
    /// A detector that has seen nothing. Zeros are taken as the smallest values that make sense.
    pub fn new(settings: Settings) -> Detector {
        let settings =
            Settings { period_ns: settings.period_ns.max(1), periods: settings.periods.max(1), ..settings };
        Detector {
            settings,
            state: State::Alive,
            progress: None,
            moved_ns: 0,
            mean_ns: settings.period_ns,
            damp: 0,
            calm_ns: 0,
            failures: 0,
            recoveries: 0,
        }
    }

    /// What it takes the target for.
    pub fn state(&self) -> State {
        self.state
    }

    /// Time without progress that makes the target suspect now, ns.
    pub fn silence_ns_max(&self) -> u64 {
        let doubled = u64::from(self.settings.periods) << self.damp;
        self.settings.period_ns.saturating_mul(doubled)
    }

    /// Takes a look: `progress` is the sum of the counters; any change is progress.
    pub fn observe(&mut self, now_ns: u64, progress: u64) -> Decision {
        let before = self.progress.replace(progress);
        let Some(before) = before else {
            self.moved(now_ns);
            return Decision::Nothing;
        };
        if before != progress {
            return self.has_moved(now_ns);
        }
        let silent_ns = now_ns.saturating_sub(self.moved_ns);
        match self.state {
            State::Alive if silent_ns >= self.silence_ns_max() => {
                if self.settings.watch_ns == 0 {
                    return self.fail();
                }
                self.state = State::Watched { since_ns: now_ns };
                Decision::Stimulate
            }
            State::Watched { since_ns } if now_ns.saturating_sub(since_ns) >= self.settings.watch_ns => {
                self.fail()
            }
            _ => Decision::Nothing,
        }
    }

    /// The stimulus was given only now: the time in which progress must come begins anew.
    pub fn stimulated(&mut self, now_ns: u64) {
        if let State::Watched { since_ns } = &mut self.state {
            *since_ns = now_ns;
        }
    }

    /// How long there has been no progress, ns.
    pub fn silent_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.moved_ns)
    }

    fn fail(&mut self) -> Decision {
        self.state = State::Failed;
        self.failures += 1;
        Decision::Failed
    }

    fn moved(&mut self, now_ns: u64) {
        self.moved_ns = now_ns;
        self.calm_ns = now_ns;
    }

    fn has_moved(&mut self, now_ns: u64) -> Decision {
        let took = now_ns.saturating_sub(self.moved_ns);
        self.moved_ns = now_ns;
        // An eighth of the newest: a mean that follows within some tens of moves.
        self.mean_ns = (self.mean_ns - self.mean_ns / 8 + took / 8).max(1);
        let was = std::mem::replace(&mut self.state, State::Alive);
        if was == State::Failed {
            self.recoveries += 1;
            self.damp = (self.damp + 1).min(DAMP_MAX);
            self.calm_ns = now_ns;
            return Decision::Recovered;
        }
        let calm = self.settings.period_ns.saturating_mul(CALM_PERIODS);
        if self.damp > 0 && now_ns.saturating_sub(self.calm_ns) >= calm {
            self.damp -= 1;
            self.calm_ns = now_ns;
        }
        Decision::Nothing
    }

    /// How unlikely the present silence is in a target that lives: 1 is one in ten, 2 one in a hundred, and so on. The
    /// mean is taken as at least a period, because looks are no more frequent.
    pub fn level(&self, now_ns: u64) -> f64 {
        if self.progress.is_none() {
            return 0.0;
        }
        let silent = now_ns.saturating_sub(self.moved_ns) as f64;
        silent / self.mean_ns.max(self.settings.period_ns) as f64 * std::f64::consts::LOG10_E
    }
}

#[cfg(test)]
mod tests;
