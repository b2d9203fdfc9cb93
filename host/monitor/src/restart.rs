//! When a service that crashed is started again: after a back-off that doubles, not more often than a limit, and not at all
//! after that until somebody else has started it.
//!
//! ```text
//!        crashed                  due: run the command          seen up
//!  Idle ────────► Waiting ───────────────────────────► Starting ───────► Idle
//!                    ▲   not up in time, command failed    │
//!                    └─────────────────────────────────────┘      over the limit: GivenUp, until it is seen up
//! ```
//!
//! A step machine: it knows no clock and starts no process. A service that was up for a whole window begins anew with the
//! shortest back-off. One that ended cleanly, or that somebody else started meanwhile, is left alone.

/// Most restarts that a limit may allow within its window.
pub const LIMIT_MAX: usize = 64;
/// Most doublings of the back-off.
const DOUBLINGS_MAX: u32 = 20;

/// How a service is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartSettings {
    /// From the first crash to the command, ns; doubled by each crash after it.
    pub backoff_ns: u64,
    /// Longest back-off, ns.
    pub backoff_ns_max: u64,
    /// So many restarts are tried in a window.
    pub limit: u32,
    /// The window, ns.
    pub window_ns: u64,
    /// After the command is run, the service must be up within this time, ns.
    pub start_ns: u64,
}

/// What comes after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: nobody asked for restarts.
    Nothing,
    /// It is started again after so many ns.
    In(u64),
    /// It would be, but for the dry run.
    WouldIn(u64),
    /// It is not started any more: that was tried so often within the window.
    GivenUp(u32),
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Do {
    /// Nothing.
    Nothing,
    /// Run the command: the attempt of this number.
    Run(u32),
    /// The attempt of this number did not bring it up in time.
    Late(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Waiting { due_ns: u64 },
    Starting { since_ns: u64 },
    GivenUp,
}

/// The restarts of one service.
#[derive(Clone, Debug)]
pub struct Restarts {
    settings: RestartSettings,
    state: State,
    doublings: u32,
    up_since_ns: Option<u64>,
    attempts: u32,
    /// Times of the newest restarts, of which `tried` are filled; the oldest is overwritten.
    times: [u64; LIMIT_MAX],
    tried: usize,
}

impl Restarts {
    /// Restarts of a service that is left alone until it crashes.
    pub fn new(settings: RestartSettings) -> Restarts {
        Restarts {
            settings,
            state: State::Idle,
            doublings: 0,
            up_since_ns: None,
            attempts: 0,
            times: [0; LIMIT_MAX],
            tried: 0,
        }
    }

    /// The service is seen up. If it was started again, the number of the attempt and the time since the command, ns.
    pub fn up(&mut self, now_ns: u64) -> Option<(u32, u64)> {
        self.up_since_ns = Some(now_ns);
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Starting { since_ns } => Some((self.attempts, now_ns.saturating_sub(since_ns))),
            State::GivenUp => {
                // Somebody else has looked after it.
                (self.tried, self.doublings) = (0, 0);
                None
            }
            State::Idle | State::Waiting { .. } => None,
        }
    }

    /// The service ended of its own will, or somebody ended it.
    pub fn stopped(&mut self) {
        self.up_since_ns = None;
        if self.state != State::GivenUp {
            self.state = State::Idle;
        }
    }

    /// The service crashed.
    pub fn crashed(&mut self, now_ns: u64) -> Next {
        let up_ns = self.up_since_ns.take().map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        if up_ns >= self.settings.window_ns {
            self.doublings = 0;
        }
        let newest = self.times[..self.tried.min(LIMIT_MAX)].iter();
        let recent =
            newest.filter(|time_ns| now_ns.saturating_sub(**time_ns) < self.settings.window_ns).count();
        if recent >= self.settings.limit as usize {
            self.state = State::GivenUp;
            return Next::GivenUp(self.settings.limit);
        }
        let doubled = self.settings.backoff_ns.saturating_mul(1 << self.doublings);
        let wait_ns = doubled.min(self.settings.backoff_ns_max);
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        self.state = State::Waiting { due_ns: now_ns.saturating_add(wait_ns) };
        Next::In(wait_ns)
    }

    /// Whether the attempt of this number is still waited for.
    pub fn is_starting(&self, attempt: u32) -> bool {
        attempt == self.attempts && matches!(self.state, State::Starting { .. })
    }

    /// What is to be done now. After [`Do::Late`] the caller says [`Restarts::crashed`].
    pub fn tick(&mut self, now_ns: u64) -> Do {
        match self.state {
            State::Waiting { due_ns } if now_ns >= due_ns => {
                self.attempts = self.attempts.wrapping_add(1);
                self.times[self.tried % LIMIT_MAX] = now_ns;
                self.tried += 1;
                self.state = State::Starting { since_ns: now_ns };
                Do::Run(self.attempts)
            }
            State::Starting { since_ns } if now_ns.saturating_sub(since_ns) >= self.settings.start_ns => {
                Do::Late(self.attempts)
            }
            _ => Do::Nothing,
        }
    }
}

#[cfg(test)]
mod tests;
