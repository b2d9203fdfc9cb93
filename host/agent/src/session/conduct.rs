//! What a controller may do on its session that leads to nothing, and how long it is left alone after more of it.
//!
//! One of several controllers may lie (DESIGN §6), and it has a session with every host. What it can make a host do at line rate is
//! what these bounds are for (attack ii of the paper's 2.7.6): signature checks of forged updates and shares, walks through the whole
//! state, questions. The host bounds it, for whoever floods bounds nothing.
//!
//! Invariants
//! - An honest controller meets none of these bounds but the one on state, and then only waits: forgeries are what it never
//!   sends, and the few that a change of keys can make are forgiven.
//! - Who ends sessions by bad conduct waits twice as long each time, at most [`DISTRUST_MAX_MS`], and is trusted anew only
//!   after [`DISTRUST_LIFE_MS`] without.

use std::time::{Duration, Instant};

/// Forged frames, shares and endorsements that are forgiven at once.
const FORGERIES_MAX: u32 = 16;
/// One more is forgiven after so long, milliseconds.
const FORGERY_EACH_MS: u64 = 10_000;
/// Requests for the whole state that are served at once.
const STATES_MAX: u32 = 4;
/// One more is served after so long, milliseconds.
const STATE_EACH_MS: u64 = 5_000;
/// Questions that are taken at once.
const QUESTIONS_MAX: u32 = 256;
/// One more is taken after so long, milliseconds.
const QUESTION_EACH_MS: u64 = 20;
/// Frames that are read of one stream in a [`WINDOW`].
const FRAMES_MAX: u32 = 2_048;
/// Bytes that are read of one stream in a [`WINDOW`]; a frame that begins in it is read whole.
const BYTES_MAX: usize = 8 << 20;
/// What a stream may bring is counted over so long.
const WINDOW: Duration = Duration::from_millis(100);
/// The wait after the first session that ended by bad conduct, milliseconds.
const DISTRUST_MIN_MS: u64 = 1_000;
/// The longest such wait, milliseconds. What a liar costs by then is some 20 ms of a processor each time; and one that was mended may
/// lead its group, and is the only one that sends to switches then.
pub const DISTRUST_MAX_MS: u64 = 10_000;
/// Bad conduct is forgotten when there was none for so long, milliseconds.
pub const DISTRUST_LIFE_MS: u64 = 120_000;

/// A number of things that may be done at once, and one more after each interval.
#[derive(Debug)]
struct Bucket {
    most: u32,
    each_ms: u64,
    used: u32,
    /// From when on what is given back is counted.
    since_ms: u64,
}

impl Bucket {
    fn new(most: u32, each_ms: u64) -> Bucket {
        Bucket { most, each_ms, used: 0, since_ms: 0 }
    }

    /// Takes one; false when none is there.
    fn take(&mut self, now_ms: u64) -> bool {
        let back = now_ms.saturating_sub(self.since_ms) / self.each_ms;
        match u32::try_from(back).ok().and_then(|back| self.used.checked_sub(back)).filter(|used| *used > 0) {
            Some(used) => {
                self.used = used;
                self.since_ms += back * self.each_ms;
            }
            None => (self.used, self.since_ms) = (0, now_ms),
        }
        let is_there = self.used < self.most;
        self.used += u32::from(is_there);
        is_there
    }

    /// When the next one is there at the latest.
    fn next_ms(&self) -> u64 {
        self.since_ms + self.each_ms
    }
}

/// How fast a stream is read: what nobody is charged for costs time too.
#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    frames: u32,
    bytes: usize,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Pace {
        Pace { since: now, frames: 0, bytes: 0 }
    }

    /// A frame was read; until when the next one is not.
    pub(super) fn read(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        if now.saturating_duration_since(self.since) >= WINDOW {
            *self = Pace::new(now);
        }
        self.frames += 1;
        self.bytes += bytes;
        (self.frames >= FRAMES_MAX || self.bytes >= BYTES_MAX).then(|| self.since + WINDOW)
    }
}

/// See the module. One for each controller; it outlives its sessions.
#[derive(Debug)]
pub(super) struct Conduct {
    forgeries: Bucket,
    states: Bucket,
    questions: Bucket,
    /// Sessions that ended by bad conduct.
    ends: u32,
    ended_ms: u64,
}

impl Conduct {
    pub(super) fn new() -> Conduct {
        Conduct {
            forgeries: Bucket::new(FORGERIES_MAX, FORGERY_EACH_MS),
            states: Bucket::new(STATES_MAX, STATE_EACH_MS),
            questions: Bucket::new(QUESTIONS_MAX, QUESTION_EACH_MS),
            ends: 0,
            ended_ms: 0,
        }
    }

    /// It sent something forged; whether that is forgiven.
    pub(super) fn forgives(&mut self, now_ms: u64) -> bool {
        self.forgeries.take(now_ms)
    }

    /// Whether a request for the whole state is served now.
    pub(super) fn serves_state(&mut self, now_ms: u64) -> bool {
        self.states.take(now_ms)
    }

    /// When the next one is.
    pub(super) fn state_at_ms(&self) -> u64 {
        self.states.next_ms()
    }

    /// Whether a question is taken now.
    pub(super) fn takes_question(&mut self, now_ms: u64) -> bool {
        self.questions.take(now_ms)
    }

    /// Its session ends by bad conduct: how long it is left alone, milliseconds.
    pub(super) fn ends(&mut self, now_ms: u64) -> u64 {
        if now_ms.saturating_sub(self.ended_ms) > DISTRUST_LIFE_MS {
            self.ends = 0;
        }
        let wait_ms = DISTRUST_MIN_MS.saturating_mul(1 << self.ends.min(16)).min(DISTRUST_MAX_MS);
        self.ends += 1;
        self.ended_ms = now_ms + wait_ms;
        wait_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_number_at_once_and_then_one_an_interval() {
        let mut bucket = Bucket::new(3, 100);
        let taken = |bucket: &mut Bucket, now_ms: u64| (0..10).filter(|_| bucket.take(now_ms)).count();
        assert_eq!(taken(&mut bucket, 1_000), 3);
        assert_eq!(taken(&mut bucket, 1_099), 0);
        assert_eq!(bucket.next_ms(), 1_100);
        assert_eq!(taken(&mut bucket, 1_100), 1);
        assert_eq!(taken(&mut bucket, 1_350), 2, "the rest of an interval is not lost");
        assert_eq!(taken(&mut bucket, 1_399), 0);
        assert_eq!(taken(&mut bucket, 1_400), 1);
        assert_eq!(taken(&mut bucket, u64::MAX), 3, "never more than its number");
    }

    #[test]
    fn a_stream_is_read_no_faster_than_its_pace_by_frames_and_by_bytes() {
        let begun = Instant::now();
        for bytes in [1, 1_000, BYTES_MAX / 3, 4 << 20] {
            let (mut pace, mut now, mut total, mut frames) = (Pace::new(begun), begun, 0, 0);
            while now < begun + 10 * WINDOW {
                total += bytes;
                frames += 1;
                now = pace.read(now, bytes).unwrap_or(now + Duration::from_micros(1));
            }
            assert!(
                frames <= 10 * FRAMES_MAX && total <= 10 * (BYTES_MAX + bytes),
                "{bytes}: {frames}, {total}"
            );
            assert!(frames >= 9 * FRAMES_MAX || total >= 9 * BYTES_MAX, "{bytes}: {frames}, {total}");
        }
    }

    #[test]
    fn who_does_it_again_waits_twice_as_long_and_is_trusted_anew_after_good_conduct() {
        let mut conduct = Conduct::new();
        let mut now_ms = 5_000;
        let mut waits = Vec::new();
        for _ in 0..12 {
            let wait_ms = conduct.ends(now_ms);
            waits.push(wait_ms);
            now_ms += wait_ms + 10;
        }
        assert_eq!(waits[..4], [1_000, 2_000, 4_000, 8_000]);
        assert_eq!(waits[9..], [DISTRUST_MAX_MS; 3]);
        now_ms += DISTRUST_LIFE_MS + 1;
        assert_eq!(conduct.ends(now_ms), DISTRUST_MIN_MS);
    }
}
