//! One decision in the making, as all deciders share it: the view, who joined, the marks, how full actuators are.

use super::tables::{
    ACTUATORS, COUNTERS, DESIRED, LOADS, Load, Member, counter_key, decode_key, desired_key, joined, name0,
    read, split_desired,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::codec::encode;
use weir_model::event::Role;
use weir_model::resource::FieldError;
use weir_model::{Key, Label, Version};
use weir_store::{Rejection, TableName, View};

/// Limits of the engine. Part of the program, as those of every decider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Most actuators.
    pub actuators_max: usize,
    /// Most entries of a host that count.
    pub entries_per_host_max: usize,
    /// Most entries of a gateway that count.
    pub entries_per_gateway_max: usize,
}

impl Bounds {
    pub(super) fn entries_max(&self, role: Role) -> usize {
        match role {
            Role::Host | Role::Planes => self.entries_per_host_max,
            Role::Gateway => self.entries_per_gateway_max,
        }
    }
}

/// Which keys a decision may concern, and at which actuators. A mark costs a comparison, no update: only what differs from
/// [`DESIRED`] is issued.
#[derive(Debug, Default)]
pub(crate) struct Marks(BTreeMap<Key, BTreeSet<Label>>);

impl Marks {
    /// A key may be concerned at an actuator.
    pub(crate) fn key(&mut self, actuator: &Label, key: Key) {
        self.at(key).insert(actuator.clone());
    }

    /// Where a key may be concerned. It is made anew though it be nowhere: so its bounds are held.
    pub(crate) fn at(&mut self, key: Key) -> &mut BTreeSet<Label> {
        self.0.entry(key).or_default()
    }
}

/// See the module.
pub(crate) struct Desk<'v, 's> {
    pub view: &'v mut View<'s>,
    /// Where the event is ordered.
    pub version: Version,
    pub marks: Marks,
    /// Marked keys are issued again though the actuator shall have just that.
    pub again: bool,
    pub(super) bounds: Bounds,
    members: BTreeMap<Label, Option<Rc<Member>>>,
    loads: BTreeMap<Label, Load>,
}

impl<'v, 's> Desk<'v, 's> {
    pub(crate) fn new(view: &'v mut View<'s>, version: Version, bounds: Bounds) -> Desk<'v, 's> {
        Desk {
            view,
            version,
            marks: Marks::default(),
            again: false,
            bounds,
            members: BTreeMap::new(),
            loads: BTreeMap::new(),
        }
    }

    /// An actuator that joined.
    pub(crate) fn member(&mut self, name: &Label) -> Option<Rc<Member>> {
        if let Some(found) = self.members.get(name) {
            return found.clone();
        }
        let bytes = self.view.get(ACTUATORS, name.as_str().as_bytes());
        let found = bytes.map(|bytes| Rc::new(read(ACTUATORS, &bytes)));
        self.members.insert(name.clone(), found.clone());
        found
    }

    pub(crate) fn member_as(&mut self, name: &Label, role: Role) -> Option<Rc<Member>> {
        self.member(name).filter(|member| member.facts.role == role)
    }

    pub(super) fn put_member(&mut self, member: Member) -> Result<(), Rejection> {
        let name = member.facts.name.clone();
        self.view.put(ACTUATORS, name.as_str().as_bytes(), encode(&member))?;
        self.members.insert(name, Some(Rc::new(member)));
        Ok(())
    }

    pub(super) fn delete_member(&mut self, name: &Label) {
        self.view.delete(ACTUATORS, name.as_str().as_bytes());
        self.members.insert(name.clone(), None);
    }

    pub(crate) fn flag(&mut self, table: TableName, key: &[u8]) -> Result<(), Rejection> {
        self.view.put(table, key, Vec::new())
    }

    pub(crate) fn has(&self, table: TableName, key: &[u8]) -> bool {
        self.view.get(table, key).is_some()
    }

    /// At which version an actuator shall have a key, or shall have deleted it.
    pub(crate) fn desired_version(&self, actuator: &Label, key: &Key) -> Option<Version> {
        self.view.get(DESIRED, &desired_key(actuator, key)).map(|value| split_desired(&value).0)
    }

    /// The keys at an actuator whose encoding begins so, tombstones included, with their values.
    pub(crate) fn desired_under(&self, actuator: &Label, prefix: &[u8]) -> Vec<(Key, Arc<[u8]>)> {
        let own = name0(actuator.as_str());
        let skip = own.len();
        let cells = self.view.scan(DESIRED, &joined(own, prefix));
        cells.into_iter().map(|(key, value)| (decode_key(&key[skip..]), value)).collect()
    }

    pub(crate) fn count(&self, what: impl Into<u8>, of: &[u8]) -> u64 {
        let bytes = self.view.get(COUNTERS, &counter_key(what, of));
        bytes.map_or(0, |bytes| read(COUNTERS, &bytes))
    }

    /// Counts one more.
    ///
    /// # Errors
    /// When it would pass the limit; `whose` says of what, such as ` of network red`.
    pub(crate) fn count_up(
        &mut self,
        what: impl Into<u8> + Copy,
        of: &[u8],
        limit: usize,
        whose: impl FnOnce() -> String,
    ) -> Result<(), Rejection> {
        let count = self.count(what, of) + 1;
        if count > limit as u64 {
            return Err(Rejection::limit(&whose(), count as usize, limit));
        }
        self.set_count(what, of, count)
    }

    pub(crate) fn count_down(
        &mut self,
        what: impl Into<u8> + Copy + Debug,
        of: &[u8],
    ) -> Result<(), Rejection> {
        let count = self.count(what, of);
        assert!(count > 0, "{what:?} is counted below zero");
        if count == 1 {
            self.view.delete(COUNTERS, &counter_key(what, of));
            return Ok(());
        }
        self.set_count(what, of, count - 1)
    }

    pub(crate) fn set_count(&mut self, what: impl Into<u8>, of: &[u8], count: u64) -> Result<(), Rejection> {
        self.view.put(COUNTERS, &counter_key(what, of), encode(&count))
    }

    pub(super) fn load(&mut self, actuator: &Label) -> &mut Load {
        let view = &*self.view;
        self.loads.entry(actuator.clone()).or_insert_with(|| {
            let bytes = view.get(LOADS, actuator.as_str().as_bytes());
            bytes.map_or_else(Load::default, |bytes| read(LOADS, &bytes))
        })
    }

    /// Takes the loads that were looked at, to be checked and written.
    pub(super) fn take_loads(&mut self) -> BTreeMap<Label, Load> {
        std::mem::take(&mut self.loads)
    }

    /// Takes the marks, to be compared.
    pub(super) fn take_marks(&mut self) -> BTreeMap<Key, BTreeSet<Label>> {
        std::mem::take(&mut self.marks).0
    }
}

pub(crate) fn reference(resource: impl ToString, problem: impl Into<String>) -> Rejection {
    Rejection::Reference { resource: resource.to_string(), problem: problem.into() }
}

pub(crate) fn wrong_field(resource: impl ToString, error: FieldError) -> Rejection {
    Rejection::Field { resource: resource.to_string(), error }
}
