//! Who of the group is there: Cicero's failure detector (row C5), which is the one that hosts have
//! ([`weir_base::detector`]). Every message of a member is progress. Who has nothing to say is asked whether it is there,
//! and only who does not answer that is taken for failed; so a group that is idle raises no alarm, and an aggregator that
//! is gone is passed over before the next batch waits for it.
//!
//! A false alarm does no harm: who is passed over is asked again as soon as it says anything.

use super::{Common, Output, PeerMessage};
use std::collections::BTreeMap;
use weir_base::detector::{Decision, Detector, Settings, State};

/// In this time a member says something, or has nothing to say, milliseconds.
pub const PERIOD_MS: u64 = 100;
/// After so many such times it is asked.
pub const PERIODS: u32 = 3;
/// An answer comes within this, milliseconds.
pub const ANSWER_MS: u64 = 300;

/// See the module. As many entries as there are other members.
#[derive(Default)]
pub struct Liveness {
    watched: BTreeMap<u32, Watched>,
}

struct Watched {
    detector: Detector,
    /// Messages that came.
    heard: u64,
    /// When one that failed was last asked, ms.
    asked_ms: u64,
}

fn ns(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

impl Liveness {
    /// A member said something.
    pub(super) fn heard_of(&mut self, member: u32) {
        if let Some(watched) = self.watched.get_mut(&member) {
            watched.heard += 1;
        }
    }

    /// A member asks whether this one is there, or answers.
    pub(super) fn asked(common: &mut Common, from: u32, ask: bool, out: &mut Vec<Output>) {
        if ask {
            common.tell(from, PeerMessage::Alive { ask: false }, out);
        }
    }

    /// Looks at each other member; returns those that have failed.
    pub(super) fn tick(&mut self, common: &mut Common, out: &mut Vec<Output>) -> Vec<u32> {
        let (now_ns, own) = (ns(common.now_ms), common.me.id);
        self.watched.retain(|member, _| common.voters.contains(member));
        let mut failed = Vec::new();
        for member in common.voters.clone().into_iter().filter(|member| *member != own) {
            let settings = Settings { period_ns: ns(PERIOD_MS), periods: PERIODS, watch_ns: ns(ANSWER_MS) };
            let watched = self.watched.entry(member).or_insert_with(|| Watched {
                detector: Detector::new(settings),
                heard: 0,
                asked_ms: 0,
            });
            let mut ask = false;
            match watched.detector.observe(now_ns, watched.heard) {
                Decision::Nothing => {}
                Decision::Stimulate => ask = true,
                Decision::Failed => {
                    tracing::warn!(member, "controller does not answer");
                    common.counters.failed += 1;
                }
                Decision::Recovered => tracing::info!(member, "controller answers again"),
            }
            if watched.detector.state() == State::Failed {
                failed.push(member);
                // It is asked on, so that it is known when it comes back.
                ask |= common.now_ms >= watched.asked_ms + ANSWER_MS;
            }
            if ask {
                watched.asked_ms = common.now_ms;
                common.tell(member, PeerMessage::Alive { ask: true }, out);
            }
        }
        failed
    }

    /// How unlikely the silence of each is, in thousandths of the accrual level: 1000 is one in ten, 2000 one in a hundred.
    pub(super) fn suspicion(&self, now_ms: u64) -> BTreeMap<u32, u64> {
        let of = |(member, watched): (&u32, &Watched)| {
            (*member, (watched.detector.level(ns(now_ms)) * 1000.0) as u64)
        };
        self.watched.iter().map(of).collect()
    }
}
