//! Applications that make no progress: a counter of their box stands still.

use super::Engine;
use crate::detector::{Decision, Detector, Settings};
use crate::incident::{Note, Reason};
use crate::policy::Stalled;
use weir_sensor::View;

/// A box that is watched, once it is there.
#[derive(Debug)]
pub(super) struct Stall {
    sensor: String,
    periods: u32,
    period_ms: Option<u64>,
    attached: Option<(View, u32, Detector)>,
}

impl Stall {
    pub(super) fn new(policy: &Stalled) -> Stall {
        let Stalled { sensor, periods, period_ms, .. } = policy.clone();
        Stall { sensor, periods, period_ms, attached: None }
    }

    /// Takes a box if it has the sensor. The period of the policy wins over that of the box.
    pub(super) fn attach(&mut self, view: View) {
        let Some(slot) = view.find(&self.sensor) else { return };
        let period_ns =
            self.period_ms.map_or(view.period_ns(), |period_ms| period_ms.saturating_mul(1_000_000));
        let detector = Detector::new(Settings { period_ns, periods: self.periods, watch_ns: 0 });
        self.attached = Some((view, slot, detector));
    }
}

impl Engine {
    pub(super) fn judge_stall(&mut self, at: usize, now: u64) {
        let Some((view, slot, detector)) =
            self.armed[at].stall.as_mut().and_then(|stall| stall.attached.as_mut())
        else {
            return;
        };
        // Who has closed a box has stopped of its own will.
        if view.closed() {
            return;
        }
        let limit = detector.silence_ns_max();
        match detector.observe(now, view.value(*slot).unwrap_or(0)) {
            Decision::Failed => {
                let process = u32::try_from(view.process()).unwrap_or(0);
                let place = self.tree.find(process);
                self.strike(at, now, Reason::Silent { found: limit, limit }, place);
            }
            Decision::Recovered => self.tell(Note::Recovered { policy: at }),
            Decision::Nothing | Decision::Stimulate => {}
        }
    }
}
