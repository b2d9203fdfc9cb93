//! Applications that make no progress: a counter of their box stands still.

use super::Engine;
use crate::dataplane;
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
    reader: Option<Reader>,
}

/// What the reader in the packet core tells of this policy.
#[derive(Debug)]
struct Reader {
    view: View,
    slots: u32,
    told: u32,
    /// Failures told up to now.
    seen: u64,
}

impl Stall {
    pub(super) fn new(policy: &Stalled) -> Stall {
        let Stalled { sensor, periods, period_ms, .. } = policy.clone();
        Stall { sensor, periods, period_ms, attached: None, reader: None }
    }

    /// Takes the box of the reader in the packet core.
    pub(super) fn attach_reader(&mut self, policy: usize, view: View) {
        let (slots, told) = (view.find(dataplane::SLOTS), view.find(&dataplane::sensor(policy)));
        if let (Some(slots), Some(told)) = (slots, told) {
            let seen = view.value(told).unwrap_or(0);
            self.reader = Some(Reader { view, slots, told, seen });
        }
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
        let Some(stall) = self.armed[at].stall.as_mut() else { return };
        let Some((view, slot, detector)) = stall.attached.as_mut() else { return };
        // Who has closed a box has stopped of its own will.
        if view.closed() {
            return;
        }
        let limit = detector.silence_ns_max();
        let mut decision = detector.observe(now, view.value(*slot).unwrap_or(0));
        if let Some(reader) = stall.reader.as_mut().filter(|reader| dataplane::fresh(&reader.view, reader.slots, now))
        {
            let told = reader.view.value(reader.told).unwrap_or(0);
            let more = told > std::mem::replace(&mut reader.seen, told);
            decision = match decision {
                _ if more => Decision::Failed,
                // It is the reader's to say.
                Decision::Failed => Decision::Nothing,
                other => other,
            };
        }
        match decision {
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
