//! Whom a host hears, and whether it is fit to judge others.
//!
//! A host that hears nobody sees the same as one whose neighbours have all failed; one that was late itself sees others silent that spoke
//! all the while. So a host judges only while it is *steady*: for some periods it has been on time, and has heard a majority of those
//! that it watches and is watched by. Until then it forgets what it suspected and counts nothing. Of another that it should hear it
//! counts an opinion only when it has heard it without a gap for as long: who comes back from behind a cut speaks of what it saw there.
//!
//! Pure: times come in.

use super::Host;
use crate::detector::Settings;
use std::collections::BTreeMap;

/// For at least so many periods a host is heard, and is on time itself, before what it says counts.
const TRUST_PERIODS: u64 = 10;

/// How a host stands, at a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may judge.
    Steady,
    /// It has not been on time and among others for long enough.
    Unsteady,
    /// It hears no majority of its neighbours.
    Alone,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Hearing {
    /// Who is silent for so long is not heard.
    silence_ns: u64,
    /// A tick that comes so much after the one before was late.
    late_ns: u64,
    trust_ns: u64,
    /// Since when each is heard without a gap, and when it was last.
    heard: BTreeMap<Host, (u64, u64)>,
    ticked: Option<u64>,
    /// Since when this host is on time, and hears a majority.
    fit_since: u64,
    standing: Standing,
    /// Whether lateness counts, and being alone.
    #[cfg(test)]
    pub(super) without: [bool; 2],
}

impl Hearing {
    /// Nobody was heard yet.
    pub fn new(settings: Settings) -> Hearing {
        let (period, periods) = (settings.period_ns.max(1), u64::from(settings.periods.max(1)));
        Hearing {
            // Below what a detector waits for: who is alone knows it before it suspects.
            silence_ns: period.saturating_mul(periods.saturating_sub(1).max(1)),
            // Half of that silence: the other half is the others' own.
            late_ns: (period.saturating_mul(periods) / 2).max(period.saturating_mul(3) / 2),
            trust_ns: period.saturating_mul(TRUST_PERIODS.max(2 * periods)),
            heard: BTreeMap::new(),
            ticked: None,
            fit_since: 0,
            standing: Standing::Alone,
            #[cfg(test)]
            without: [false; 2],
        }
    }

    /// Something of a host came that it said just now.
    pub fn hears(&mut self, now_ns: u64, host: Host) {
        let (since, last) = self.heard.entry(host).or_insert((now_ns, now_ns));
        if now_ns.saturating_sub(*last) > self.silence_ns {
            *since = now_ns;
        }
        *last = now_ns;
    }

    /// Whether it was heard of late.
    pub fn is_heard(&self, now_ns: u64, host: Host) -> bool {
        self.heard.get(&host).is_some_and(|(_, last)| now_ns.saturating_sub(*last) <= self.silence_ns)
    }

    /// Whether it has been heard for so long that what it says counts.
    pub fn counts(&self, now_ns: u64, host: Host) -> bool {
        let long = |(since, _): &(u64, u64)| now_ns.saturating_sub(*since) >= self.trust_ns;
        self.is_heard(now_ns, host) && self.heard.get(&host).is_some_and(long)
    }

    /// How this host stood at the last tick.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// A tick: how this host stands among its neighbours.
    pub fn tick(&mut self, now_ns: u64, neighbours: impl ExactSizeIterator<Item = Host>) -> Standing {
        let late = self.ticked.replace(now_ns).is_none_or(|last| now_ns.saturating_sub(last) > self.late_ns);
        let all = neighbours.len() + 1;
        let heard = 1 + neighbours.filter(|host| self.is_heard(now_ns, *host)).count();
        let alone = heard * 2 <= all;
        #[cfg(test)]
        let (late, alone) = (late && !self.without[0], alone && !self.without[1]);
        if late || alone {
            self.fit_since = now_ns;
        }
        self.standing = match now_ns.saturating_sub(self.fit_since) >= self.trust_ns {
            _ if alone => Standing::Alone,
            true => Standing::Steady,
            false => Standing::Unsteady,
        };
        self.standing
    }
}
