//! What is ordered as it is: specifications of planes beside the switch, which stand until they are withdrawn, and what planes report.
//!
//! One decider for all planes. It knows none of them: [`planes`]. Beside these stand the two kinds that had events and keys of their
//! own before there were planes, because logs have them: repairs by monitors ([`health`]) and policies of FileWalls ([`filewall`]). And what hosts report of controllers ([`conduct`]).

mod conduct;
mod filewall;
mod health;
mod planes;
pub mod tables;

pub use conduct::{CONDUCT_MAX, Conduct, conduct_of};
pub use filewall::policies_of;
pub use health::{Health, health, repairs_of};
pub use planes::{
    Ordered, PLANES_MAX, Reported, all_orders, has_orders, order_id, order_of, ordered, orders_of, reports_of,
};

use crate::delta::tables::Member;
use crate::delta::{Decider, Desk, Held};
use weir_model::event::{Event, EventBody};
use weir_model::{Entry, Key, Label};
use weir_store::Rejection;

/// The decider. See the module.
pub(crate) struct Orders;

impl Decider for Orders {
    fn owns(&self, key: &Key) -> bool {
        matches!(key, Key::Plane { .. } | Key::Repair { .. } | Key::FileWall { .. })
    }

    fn note(&mut self, desk: &mut Desk<'_, '_>, event: &Event, now_ms: u64) -> Result<(), Rejection> {
        match &event.body {
            EventBody::Order(order) => planes::order(desk, order),
            EventBody::Apply(apply) => planes::change(desk, apply),
            EventBody::Report(report) => planes::note(desk, report, now_ms),
            EventBody::Health(report) => health::note(desk, report, now_ms),
            EventBody::Conduct(report) => conduct::note(desk, report, now_ms),
            EventBody::Repair(order) => health::order(desk, order),
            EventBody::FileWall(order) => filewall::order(desk, order),
            _ => Ok(()),
        }
    }

    fn left(&mut self, desk: &mut Desk<'_, '_>, member: &Member) -> Result<(), Rejection> {
        let name = &member.facts.name;
        conduct::forget(desk, name);
        health::forget(desk, name);
        filewall::forget(desk, name);
        planes::forget(desk, name);
        Ok(())
    }

    fn speaks(&mut self, desk: &mut Desk<'_, '_>, name: &Label) {
        planes::mark_all(desk, name);
    }

    fn entry(&mut self, desk: &mut Desk<'_, '_>, key: &Key) -> Result<Option<Entry>, Rejection> {
        Ok(match key {
            Key::Repair { host, cgroup } => health::entry(desk, host, cgroup).map(Entry::Repair),
            Key::FileWall { host, wall } => filewall::entry(desk, host, wall).map(Entry::FileWall),
            // Each actuator has its own.
            Key::Plane { .. } => Some(Entry::Plane(Vec::new())),
            _ => None,
        })
    }

    fn held(
        &mut self,
        desk: &mut Desk<'_, '_>,
        target: &Label,
        key: &Key,
        _entry: &Entry,
        _before: Option<&[u8]>,
    ) -> Held {
        if desk.member(target).is_none() {
            return Held::Not;
        }
        match key {
            Key::Plane { plane, name } => {
                planes::entry(desk, target, plane, name).map_or(Held::Not, Held::Own)
            }
            Key::Repair { host, .. } | Key::FileWall { host, .. } if host == target => Held::Same,
            _ => Held::Not,
        }
    }
}
