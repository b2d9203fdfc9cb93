//! How often, and for how long, a store is asked that has a weak moment, or to which the way has one.
//!
//! Invariants
//! - A call is tried again until [`PATIENCE`] after it began, and no try begins later; each hears how much of that is left.
//! - After a call that was given up, others are tried once, until the store answers or nobody has asked it for [`PATIENCE`]: an operation of a program is
//!   several calls, and they do not wait one after the other.
//! - Pauses are doubled, from [`PAUSE`] to [`PAUSE_MAX`].

use crate::error::{Errno, Result};
use crate::remote::runtime::PATIENCE;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Before the second try.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// At most, between two.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A time that goes on, and waiting.
pub(super) trait Clock: Send + Sync {
    /// Since some beginning.
    fn now(&self) -> Duration;
    fn sleep(&self, time: Duration);
}

/// The machine's.
pub(super) struct Real(Instant);

impl Real {
    pub(super) fn begin() -> Real {
        Real(Instant::now())
    }
}

impl Clock for Real {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// How a try ended.
pub(super) enum Tried<T> {
    Done(T),
    /// The store has answered, and will not answer otherwise.
    Refused(Errno),
    /// It may be otherwise the next time.
    Weak(Errno),
}

pub(super) struct Tries {
    clock: Box<dyn Clock>,
    /// When a call was last given up.
    weak: Mutex<Option<Duration>>,
    repeated: AtomicU64,
    given_up: AtomicU64,
}

impl Tries {
    pub(super) fn new(clock: Box<dyn Clock>) -> Tries {
        let (repeated, given_up) = (AtomicU64::new(0), AtomicU64::new(0));
        Tries { clock, weak: Mutex::default(), repeated, given_up }
    }

    fn is_weak(&self) -> bool {
        let weak = *self.weak.lock().unwrap_or_else(PoisonError::into_inner);
        weak.is_some_and(|since| self.clock.now().saturating_sub(since) < PATIENCE)
    }

    fn set_weak(&self, since: Option<Duration>) {
        *self.weak.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Makes a call, which hears how long it may take.
    pub(super) fn run<T>(&self, mut call: impl FnMut(Duration) -> Tried<T>) -> Result<T> {
        let end = self.clock.now() + PATIENCE;
        let mut left = PATIENCE;
        let mut pause = PAUSE;
        loop {
            let error = match call(left) {
                Tried::Done(answer) => {
                    self.set_weak(None);
                    return Ok(answer);
                }
                Tried::Refused(error) => {
                    self.set_weak(None);
                    return Err(error);
                }
                Tried::Weak(error) => error,
            };
            if self.clock.now() + pause >= end || self.is_weak() {
                return Err(self.give_up(error));
            }
            self.clock.sleep(pause);
            left = end.saturating_sub(self.clock.now());
            if left.is_zero() {
                // It slept longer than it was asked to.
                return Err(self.give_up(error));
            }
            self.repeated.fetch_add(1, Ordering::Relaxed);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn give_up(&self, error: Errno) -> Errno {
        self.given_up.fetch_add(1, Ordering::Relaxed);
        self.set_weak(Some(self.clock.now()));
        error
    }

    /// What a person should know.
    pub(super) fn notes(&self) -> Option<String> {
        let (repeated, given_up) =
            (self.repeated.load(Ordering::Relaxed), self.given_up.load(Ordering::Relaxed));
        let told =
            || format!("calls to the store were repeated {repeated} times, and {given_up} were given up");
        (repeated + given_up > 0).then(told)
    }
}
