//! What others can cause as often as they like, and is to be told, or done, seldom.

use std::time::{Duration, Instant};

/// So much in one span.
#[derive(Debug)]
pub struct Seldom {
    most: u32,
    span: Duration,
    since: Option<Instant>,
    done: u32,
    /// Times since the span began that were too many.
    kept: u64,
}

impl Seldom {
    /// At most `most` times in each `span`.
    pub fn new(most: u32, span: Duration) -> Seldom {
        Seldom { most, span, since: None, done: 0, kept: 0 }
    }

    /// It happens once more. `Some`: it is not too often, and so many times were since it last was not.
    pub fn again(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= self.span) {
            (self.since, self.done) = (Some(now), 0);
        }
        if self.done >= self.most {
            self.kept += 1;
            return None;
        }
        self.done += 1;
        Some(std::mem::take(&mut self.kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_often_is_counted_and_told_with_the_next() {
        let span = Duration::from_secs(60);
        let (start, mut seldom) = (Instant::now(), Seldom::new(2, span));
        assert_eq!([seldom.again(start), seldom.again(start)], [Some(0), Some(0)]);
        for _ in 0..1000 {
            assert_eq!(seldom.again(start + span / 2), None);
        }
        assert_eq!([seldom.again(start + span), seldom.again(start + span)], [Some(1000), Some(0)]);
        assert_eq!(seldom.again(start + span), None);
    }
}
