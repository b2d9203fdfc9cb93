//! How busy the machine is, and with whose work.
//!
//! A window is measured only between two looks at the machine while everything of ours rests. If somebody else's
//! work is seen before or after, the window is taken again; if that does not help it is kept and marked.

use crate::{Error, Result};
use std::time::Duration;

/// Processor time since boot, in clock ticks, over all cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    /// All time.
    pub total: u64,
    /// Time with nothing to run, or waiting for disks.
    pub idle: u64,
    /// Time that the hypervisor gave to others.
    pub stolen: u64,
}

/// Clock ticks a second in `/proc/stat`: fixed by the kernel's interface.
const TICKS_PER_S: f64 = 100.0;

impl Ticks {
    /// Reads `/proc/stat`.
    pub fn now() -> Result<Self> {
        let text =
            std::fs::read_to_string("/proc/stat").map_err(|error| Error::io("read /proc/stat", error))?;
        Self::parse(&text)
    }

    /// Reads the first line of `/proc/stat`.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::Output { program: "/proc/stat", reason: "no line of all cores".to_string() };
        let line = text.lines().find(|line| line.starts_with("cpu ")).ok_or_else(wrong)?;
        let fields: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .map(|word| word.parse().map_err(|_| wrong()))
            .collect::<Result<_>>()?;
        if fields.len() < 8 {
            return Err(wrong());
        }
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is inside user already.
        Ok(Self { total: fields[..8].iter().sum(), idle: fields[3] + fields[4], stolen: fields[7] })
    }

    /// Seconds of processor time that were neither idle nor stolen since `earlier`.
    pub fn busy_s_since(&self, earlier: &Self) -> f64 {
        let total = self.total.saturating_sub(earlier.total);
        let rest = self.idle.saturating_sub(earlier.idle) + self.stolen.saturating_sub(earlier.stolen);
        total.saturating_sub(rest) as f64 / TICKS_PER_S
    }

    /// Share of processor time that was not idle since `earlier`, stolen time included, 0 to 1.
    pub fn busy_share_since(&self, earlier: &Self) -> f64 {
        let total = self.total.saturating_sub(earlier.total);
        if total == 0 {
            return 0.0;
        }
        let idle = self.idle.saturating_sub(earlier.idle);
        total.saturating_sub(idle) as f64 / total as f64
    }
}

/// Looks at the machine for `duration`; the share of processor time that was not idle.
pub fn busy_share(duration: Duration) -> Result<f64> {
    let before = Ticks::now()?;
    std::thread::sleep(duration);
    Ok(Ticks::now()?.busy_share_since(&before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_out_idle_waiting_and_stolen_time() {
        let a = Ticks::parse("cpu  100 0 100 1000 50 0 50 10 7 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n").unwrap();
        let b = Ticks::parse("cpu  180 10 200 1100 60 5 75 30 9 0\n").unwrap();
        // 80 user + 10 nice + 100 system + 5 irq + 25 softirq.
        assert_eq!(b.busy_s_since(&a), 2.2);
        // 350 in all, of which 110 idle.
        assert!((b.busy_share_since(&a) - 240.0 / 350.0).abs() < 1e-9);
        assert_eq!(a.busy_share_since(&a), 0.0);
    }

    #[test]
    fn text_without_the_line_is_an_error() {
        assert!(Ticks::parse("cpu0 1 2 3").is_err());
        assert!(Ticks::parse("cpu  1 2 3").is_err());
        assert!(Ticks::parse("cpu  1 2 x 4 5 6 7 8").is_err());
    }
}
