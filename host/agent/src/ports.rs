//! The devices of this host's ports (row A15, pains 8, 11, 13): a persistent TAP for each, made,
//! kept right and removed as the switch's entries say.
//!
//! The switch attaches to a device after it is told; it alone lets traffic through, once the
//! policy is in force. A device outlives agent and switch, so that its endpoint never notices.
//!
//! Invariants
//! - Nothing is made or removed before the mirror is whole.
//! - Before a device is made, its place is written to a file: whatever is removed while the agent is
//!   down is collected when it starts, by its mark, in the namespaces of that file, of present ports,
//!   and the host's own.
//! - What another agent made is never taken or removed ([`owner`]).
//! - A device that is lost is seen when the kernel tells of it ([`links`]), and by a look from time to time; it is made anew at once.
//! - What cannot be done now is tried again, and the reason is visible: in the log once, in
//!   [`Shared::problems`], and as a gauge.

pub mod devices;
mod link_socket;
pub mod links;
pub mod owner;

use crate::AgentError;
use crate::link;
use crate::mirror::PortContext;
use crate::shared::Shared;
use devices::{DeviceSpec, Ensured, Namespaces, mark};
use links::Links;
use owner::{Owner, Whose};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_model::Key;

/// Name of the file of devices in the state directory.
pub const DEVICES_FILE: &str = "devices.json";
/// How often ports that wait are tried again, and namespaces looked at, milliseconds.
const RETRY_MS: u64 = 1000;
/// Every so many retries all devices are looked at, for what the kernel did not tell.
const AUDIT_RETRIES: u64 = 3;
/// Between two looks for which the kernel told the reason, milliseconds: whoever renames devices all the time costs so many looks.
const NEWS_GAP_MS: u64 = 50;

/// Where a device of ours is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Place {
    netns: Option<String>,
    device: String,
    mark: String,
}

/// What the file holds.
#[derive(Debug, Default, Serialize, Deserialize)]
struct DevicesFile {
    places: BTreeSet<Place>,
    /// Those of them where a device is signed if it is this agent's. A release that does not sign writes none.
    #[serde(default)]
    signed: BTreeSet<Place>,
}

/// A device that is as it should be.
struct Ready {
    spec: DeviceSpec,
    identity: Option<(u64, u64)>,
}

/// Keeps the devices.
pub struct Keeper {
    shared: Arc<Shared>,
    namespaces: Namespaces,
    file: PathBuf,
    list: DevicesFile,
    ready: BTreeMap<Key, Ready>,
    links: Links,
    started: bool,
}

fn spec_of(port: &PortContext) -> DeviceSpec {
    DeviceSpec {
        netns: port.port.netns.clone(),
        name: port.port.device.clone(),
        mac: port.port.mac,
        mtu: port.network.mtu,
        mark: mark(port.vni, &port.endpoint),
        kind: port.port.kind,
    }
}

impl DevicesFile {
    /// Whether a device there that nobody has signed is this agent's.
    fn is_unsigned(&self, place: &Place) -> bool {
        self.places.contains(place) && !self.signed.contains(place)
    }

    /// The same of a device with this mark, whatever it is called now.
    fn has_unsigned(&self, netns: Option<&str>, mark: &str) -> bool {
        let is_it = |place: &&Place| place.netns.as_deref() == netns && place.mark == mark;
        self.places.iter().filter(is_it).any(|place| !self.signed.contains(place))
    }

    fn remove(&mut self, place: &Place) {
        self.places.remove(place);
        self.signed.remove(place);
    }
}

fn place_of(spec: &DeviceSpec) -> Place {
    Place { netns: spec.netns.clone(), device: spec.name.clone(), mark: spec.mark.clone() }
}

impl Keeper {
    /// Reads what a former agent made.
    ///
    /// # Errors
    /// A file is there and cannot be read, or the signature cannot be written. One that is not ours is an error too: guessing
    /// would leave devices behind.
    pub fn new(shared: Arc<Shared>, netns_dir: PathBuf, state_dir: &Path) -> Result<Keeper, AgentError> {
        let file = state_dir.join(DEVICES_FILE);
        let list = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| AgentError::Material {
                what: file.display().to_string(),
                reason: error.to_string(),
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => DevicesFile::default(),
            Err(error) => return Err(AgentError::file(file, error)),
        };
        let owner = Owner::open(state_dir, &shared.actuator)?;
        let namespaces = Namespaces::new(netns_dir, owner);
        let links = Links::new(Arc::clone(&shared));
        Ok(Keeper { shared, namespaces, file, list, ready: BTreeMap::new(), links, started: false })
    }

    /// Keeps devices for ever.
    pub async fn run(mut self) {
        let shared = self.shared.clone();
        let mut switch = shared.switch.subscribe();
        let (news, mut retries) = (self.links.news(), 0);
        loop {
            tokio::select! {
                () = news.wait() => {
                    self.take_news().await;
                    tokio::time::sleep(Duration::from_millis(NEWS_GAP_MS)).await;
                    continue;
                }
                () = shared.ports_changed.notified() => {}
                Ok(()) = switch.changed() => {
                    if switch.borrow_and_update().is_some() {
                        self.attach_all().await;
                    }
                }
                () = tokio::time::sleep(Duration::from_millis(RETRY_MS)) => {
                    retries += 1;
                    self.forget_lost();
                    if retries % AUDIT_RETRIES == 0 {
                        let all = self.ready.values().map(|ready| ready.spec.netns.clone()).collect();
                        self.audit(&all).await;
                    }
                }
            }
            self.settle().await;
        }
    }

    /// A switch that is new, or was away, is told of all devices.
    async fn attach_all(&self) {
        for key in self.ready.keys() {
            link::attach(&self.shared, key.clone()).await;
        }
    }

    /// Devices whose namespace was made anew, or is gone, are gone too.
    fn forget_lost(&mut self) {
        let namespaces = &self.namespaces;
        self.ready.retain(|_, ready| {
            let identity = ready.spec.netns.as_deref().and_then(|netns| namespaces.identity(netns));
            identity == ready.identity
        });
    }

    /// Does what is to be done about what the kernel told.
    async fn take_news(&mut self) {
        let (namespaces, is_of_folder) = self.links.news().take();
        if is_of_folder {
            self.forget_lost();
        }
        self.audit(&namespaces).await;
        self.settle().await;
    }

    /// Forgets devices of these namespaces that somebody removed, renamed or moved, so that they are made again or told.
    async fn audit(&mut self, namespaces: &BTreeSet<Option<String>>) {
        for netns in namespaces {
            if !self.ready.values().any(|ready| ready.spec.netns == *netns) {
                continue;
            }
            let Ok(found) = self.namespaces.marked(netns.as_deref()).await else { continue };
            let ours = found.into_iter().filter(|device| device.whose == Whose::Ours);
            let found: BTreeSet<(String, String)> = ours.map(|device| (device.name, device.mark)).collect();
            let is_lost = |(_, ready): &(&Key, &Ready)| {
                let spec = &ready.spec;
                spec.netns == *netns && !found.contains(&(spec.name.clone(), spec.mark.clone()))
            };
            let lost: Vec<Key> = self.ready.iter().filter(is_lost).map(|(key, _)| key.clone()).collect();
            for key in lost {
                if let Some(ready) = self.ready.remove(&key) {
                    let device = &ready.spec.name;
                    self.problem(
                        &key,
                        format!("device '{device}' was deleted, renamed or moved: it is made anew"),
                    );
                }
            }
        }
    }

    /// Makes the devices what the mirror says, as far as that is possible now.
    pub async fn settle(&mut self) {
        if !self.shared.synced() {
            return;
        }
        let wanted: BTreeMap<Key, DeviceSpec> = self
            .shared
            .mirror()
            .ports()
            // A virtual machine has no device here: the switch meets it at its socket.
            .filter(|port| port.port.kind.is_device())
            .map(|port| (Key::Port { vni: port.vni, endpoint: port.endpoint.clone() }, spec_of(&port)))
            .collect();
        if !self.started {
            self.collect(&wanted).await;
            self.started = true;
        }
        self.remove_unwanted(&wanted).await;
        for (key, spec) in &wanted {
            if self.ready.get(key).is_none_or(|ready| ready.spec != *spec) {
                self.ensure(key, spec).await;
            }
        }
        self.shared.problems().retain(|key, _| wanted.contains_key(key));
        let namespaces = wanted.values().map(|spec| spec.netns.clone()).collect();
        self.links.listen_in(&self.namespaces, &namespaces).await;
        let ready = self.ready.len() as u64;
        self.shared.metrics.ports_ready.set(ready);
        self.shared.metrics.ports_waiting.set(wanted.len() as u64 - ready);
    }

    async fn ensure(&mut self, key: &Key, spec: &DeviceSpec) {
        let place = place_of(spec);
        let is_new = self.list.places.insert(place.clone());
        if is_new {
            self.list.signed.insert(place.clone());
            if let Err(error) = self.save() {
                self.list.remove(&place);
                self.problem(key, error.to_string());
                return;
            }
        }
        let unsigned_is_ours = self.list.is_unsigned(&place);
        // Read before the device is made: if the namespace is made anew meanwhile, it differs.
        let identity = spec.netns.as_deref().and_then(|netns| self.namespaces.identity(netns));
        match self.namespaces.ensure(spec, unsigned_is_ours).await {
            Ok(ensured) => {
                if unsigned_is_ours {
                    self.list.signed.insert(place);
                    self.save_or_tell();
                }
                let metrics = &self.shared.metrics;
                match ensured {
                    Ensured::Created => metrics.devices_created.count(),
                    Ensured::Adopted => metrics.devices_adopted.count(),
                }
                if ensured == Ensured::Created || self.shared.problems().contains_key(key) {
                    tracing::info!(port = %key, device = spec.name, ?ensured, "the port's device is ready");
                }
                self.shared.problems().remove(key);
                self.ready.insert(key.clone(), Ready { spec: spec.clone(), identity });
                link::attach(&self.shared, key.clone()).await;
            }
            Err(error) => {
                self.ready.remove(key);
                self.problem(key, error.to_string());
            }
        }
    }

    fn problem(&self, key: &Key, reason: String) {
        let old = self.shared.problems().insert(key.clone(), reason.clone());
        if old.as_ref() != Some(&reason) {
            self.shared.metrics.devices_failed.count();
            tracing::warn!(port = %key, reason, "the port's device is not ready; trying again");
        }
    }

    /// Removes devices that we know of and nobody wants where they are.
    async fn remove_unwanted(&mut self, wanted: &BTreeMap<Key, DeviceSpec>) {
        let keep: BTreeSet<Place> = wanted.values().map(place_of).collect();
        let mut changed = false;
        for place in self.list.places.difference(&keep).cloned().collect::<Vec<_>>() {
            let unsigned = self.list.is_unsigned(&place);
            let (netns, device) = (place.netns.as_deref(), &place.device);
            match self.namespaces.remove(netns, device, &place.mark, unsigned).await {
                Ok(there) => {
                    if there {
                        self.shared.metrics.devices_removed.count();
                        tracing::info!(device = place.device, mark = place.mark, "removed");
                    }
                    self.list.remove(&place);
                    changed = true;
                }
                Err(error) => tracing::warn!(%error, "a device cannot be removed; trying again"),
            }
        }
        self.ready.retain(|key, _| wanted.contains_key(key));
        if changed {
            self.save_or_tell();
        }
    }

    fn save_or_tell(&self) {
        if let Err(error) = self.save() {
            tracing::warn!(%error, "the list of devices is not written; it is written with the next change");
        }
    }

    /// At start: removes marked devices that nobody wants, wherever we know to look (pain 13).
    async fn collect(&mut self, wanted: &BTreeMap<Key, DeviceSpec>) {
        let keep: BTreeSet<(Option<&str>, &str)> =
            wanted.values().map(|spec| (spec.netns.as_deref(), spec.mark.as_str())).collect();
        let known = self.list.places.iter().map(|place| place.netns.clone());
        let namespaces: BTreeSet<Option<String>> =
            known.chain(wanted.values().map(|spec| spec.netns.clone())).chain([None]).collect();
        for netns in namespaces {
            let marked = match self.namespaces.marked(netns.as_deref()).await {
                Ok(marked) => marked,
                Err(error) => {
                    tracing::warn!(%error, "left devices cannot be looked for");
                    continue;
                }
            };
            for devices::Marked { name: device, mark, whose } in marked {
                let unsigned = self.list.has_unsigned(netns.as_deref(), &mark);
                let is_ours = whose == Whose::Ours || (whose == Whose::Unsigned && unsigned);
                if !is_ours || keep.contains(&(netns.as_deref(), mark.as_str())) {
                    continue;
                }
                match self.namespaces.remove(netns.as_deref(), &device, &mark, unsigned).await {
                    Ok(true) => {
                        self.shared.metrics.devices_collected.count();
                        tracing::info!(device, mark, "a left device is removed");
                    }
                    Ok(false) => {}
                    Err(error) => tracing::warn!(%error, "a left device cannot be removed"),
                }
            }
        }
    }

    fn save(&self) -> Result<(), AgentError> {
        let bytes = serde_json::to_vec_pretty(&self.list).map_err(|error| AgentError::Material {
            what: self.file.display().to_string(),
            reason: error.to_string(),
        })?;
        weir_base::file::replace(&self.file, &bytes, 0o644)
            .map_err(|error| AgentError::file(&self.file, error))
    }
}

#[cfg(test)]
mod tests;
