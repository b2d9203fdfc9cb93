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
    /// Whether it told a failure and no recovery since.
    failed: bool,
}

impl Reader {
    /// What is to be done: what the reader says while there is one, else what this loop found.
    fn decide(&mut self, now: u64, own: Decision) -> Decision {
        if !dataplane::fresh(&self.view, self.slots, now) {
            self.failed = false;
            return own;
        }
        let failed = self.view.value(self.told).unwrap_or(0) % 2 == 1;
        match (std::mem::replace(&mut self.failed, failed), failed) {
            (false, true) => Decision::Failed,
            (true, false) => Decision::Recovered,
            _ => Decision::Nothing,
        }
    }
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
            self.reader = Some(Reader { view, slots, told, failed: false });
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
    /// How unlikely the present silence of what a policy of the kind `stalled` watches is ([`Detector::level`]); nothing for other
    /// policies, and while there is no box, or one that was closed.
    pub fn level(&self, policy: usize, now: u64) -> Option<f64> {
        let (view, _, detector) = self.armed.get(policy)?.stall.as_ref()?.attached.as_ref()?;
        (!view.closed()).then(|| detector.level(now))
    }

    pub(super) fn judge_stall(&mut self, at: usize, now: u64) {
        let Some(stall) = self.armed[at].stall.as_mut() else { return };
        let Some((view, slot, detector)) = stall.attached.as_mut() else { return };
        // Who has closed a box has stopped of its own will.
        if view.closed() {
            return;
        }
        let limit = detector.silence_ns_max();
        let mut decision = detector.observe(now, view.follow(*slot).unwrap_or(0));
        // A packet core follows no references.
        if let Some(reader) = stall.reader.as_mut().filter(|_| !view.is_reference(*slot)) {
            decision = reader.decide(now, decision);
        }
        match decision {
            Decision::Failed => {
                let process = u32::try_from(view.process()).unwrap_or(0);
                let place = self.tree.find(process);
                self.repair(at, now, Reason::Silent { found: limit, limit }, place);
            }
            Decision::Recovered => self.tell(Note::Recovered { policy: at }),
            Decision::Nothing | Decision::Stimulate => {}
        }
    }
}
