//! Policies in order (paper 4.3.1, figure 4.3): requests pass them from first to last, replies from last to first.
//!
//! Invariants
//! - A reply is seen by exactly those policies whose bit its call carries: those that let the call go on
//!   (paper 4.3.2, figure 4.4).
//! - A call that waits is not shown again to the policies that it has passed.

use super::{Context, Mount, OpenHandle, Policy, Targets, Verdict};
use crate::identity::{Identities, Principal, Principals};
use crate::message::{Asked, Call, Reply, Seen};
use crate::metrics::{PolicyCounters, PolicyRow};
use crate::places::{Batch, Directory, Listing, Node, Place, Places, ROOT, Zones};
use crate::replicate::Servers;
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, Op, Status};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most policies in a chain: one bit each.
pub const POLICIES_MAX: usize = 64;

/// A policy with its name and counters.
#[derive(Debug)]
pub struct Entry {
    /// Name, unique in its chain.
    pub name: String,
    /// The policy.
    pub policy: Box<dyn Policy>,
    /// What it has done; goes on counting after a reload.
    pub counters: Arc<PolicyCounters>,
    ops: u32,
}

impl Entry {
    /// A policy under a name, with the counters of the one that it replaces.
    pub fn new(name: String, policy: Box<dyn Policy>, counters: Option<Arc<PolicyCounters>>) -> Entry {
        let ops = policy.ops();
        Entry { name, policy, counters: counters.unwrap_or_default(), ops }
    }
}

/// A chain in force.
#[derive(Debug)]
pub struct Chain {
    entries: Vec<Entry>,
    epoch: u64,
    identities: Identities,
    principals: Principals,
    zones: Zones,
    places: Arc<Places>,
    names: bool,
    files: bool,
    judges: bool,
    reorders: bool,
    removals: bool,
    hides: bool,
    servers: Option<Servers>,
}

/// What a listing tells of its entries besides their names: attributes and handles.
const LISTED: u32 = Op::Getattr.bit() | Op::Lookup.bit();

/// Whether attributes and handles of entries of a listing are hidden from its caller: asked of the policies once for places that are alike.
pub struct Hidden<'c> {
    chain: &'c Chain,
    caller: &'c Principal,
    unix_ms: u64,
    last: Option<(Node, bool)>,
}

impl<'c> Hidden<'c> {
    /// Of a listing that a caller gets now.
    pub fn new(chain: &'c Chain, caller: &'c Principal) -> Hidden<'c> {
        Hidden { chain, caller, unix_ms: unix_ms(), last: None }
    }

    /// True if what is at a place is hidden.
    pub fn is(&mut self, place: Place) -> bool {
        if let Some((node, hidden)) = self.last
            && node == place.node
        {
            return hidden;
        }
        let hidden = self.chain.hides(self.caller, place, LISTED, self.unix_ms);
        self.last = Some((place.node, hidden));
        hidden
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It goes to the server; these policies, as bits, will see the reply.
    Forward {
        /// Policies that let it go on.
        handled: u64,
    },
    /// It is answered.
    Answer {
        /// With this.
        status: Status,
        /// By the policy of this number; `None` for the core.
        by: Option<usize>,
    },
    /// The server must be asked what the call's probe says.
    Ask {
        /// The policy that it is shown to then.
        from: usize,
        /// Policies that let it go on so far.
        handled: u64,
    },
    /// It is answered with the results that the policy has put into the call.
    Reply {
        /// Policies that let it go on so far.
        handled: u64,
    },
    /// It waits.
    Wait {
        /// How long, µs.
        wait_us: u64,
        /// The policy that it is shown to then.
        from: usize,
        /// Policies that let it go on so far.
        handled: u64,
    },
}

impl Chain {
    /// A chain of these policies. `before` is the chain that it replaces: places, and principals where identities did not
    /// change, go on.
    pub fn new(entries: Vec<Entry>, identities: Identities, zones: Zones, before: Option<&Chain>) -> Chain {
        let (epoch, principals, places) = match before {
            Some(before) => {
                (before.epoch + 1, Principals::after(&before.principals), before.places_for(&zones))
            }
            None => (1, Principals::default(), Arc::default()),
        };
        let names = entries.iter().any(|entry| entry.policy.needs_names());
        let files = entries.iter().any(|entry| entry.policy.knows_files());
        let reorders = entries.iter().any(|entry| entry.policy.reorders());
        let judges = entries.iter().any(|entry| entry.policy.judges_objects());
        let removals = entries.iter().any(|entry| entry.policy.tells_removals());
        let hides = entries.iter().any(|entry| entry.policy.may_hide());
        let servers = None;
        Chain {
            entries,
            epoch,
            identities,
            principals,
            zones,
            places,
            names,
            files,
            judges,
            reorders,
            removals,
            hides,
            servers,
        }
    }

    /// The same with further servers behind it.
    pub fn with_servers(self, servers: Option<Servers>) -> Chain {
        Chain { servers, ..self }
    }

    /// The servers that the policies name besides the first one.
    pub fn servers(&self) -> Option<&Servers> {
        self.servers.as_ref()
    }

    /// Places are good for another chain only if the paths are the same, for nodes are numbered by them.
    fn places_for(&self, zones: &Zones) -> Arc<Places> {
        if self.zones == *zones { self.places.clone() } else { Arc::new(self.places.under(zones)) }
    }

    /// Counted up with each chain since the start.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Policies in the order of requests.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Identities.
    pub fn identities(&self) -> &Identities {
        &self.identities
    }

    /// Who has called.
    pub fn principals(&self) -> &Principals {
        &self.principals
    }

    /// What policies may ask of the core.
    pub fn context(&self) -> Context<'_> {
        Context { zones: &self.zones, places: &self.places }
    }

    /// True if names of calls must be remembered until their replies come.
    pub fn needs_names(&self) -> bool {
        self.names || self.files || !self.zones.trivial()
    }

    /// Shows a call to the policies, beginning with number `from`; `handled` are the ones that it has passed.
    pub fn request(&self, call: &mut Call<'_>, from: usize, mut handled: u64) -> Outcome {
        let context = self.context();
        let does = call.does();
        for (number, entry) in self.entries.iter().enumerate().skip(from) {
            let counted = call.passed & 1 << number != 0 && entry.policy.counts_operations();
            if entry.ops & does == 0 || counted {
                continue;
            }
            entry.counters.seen.fetch_add(1, Ordering::Relaxed);
            match entry.policy.request(call, &context) {
                Verdict::Forward => handled |= 1 << number,
                Verdict::Wait(wait_us) => {
                    entry.counters.delayed.fetch_add(1, Ordering::Relaxed);
                    return Outcome::Wait { wait_us, from: number, handled };
                }
                Verdict::Ask => return Outcome::Ask { from: number, handled },
                Verdict::Reply => return Outcome::Reply { handled },
                Verdict::Answer(status) => {
                    entry.counters.answered.fetch_add(1, Ordering::Relaxed);
                    self.tell_answered(call, &entry.name, status, handled);
                    return Outcome::Answer { status, by: Some(number) };
                }
            }
        }
        if let Some(status) = self.crosses(call, &context).or_else(|| self.leaves(call)) {
            self.tell_answered(call, "zones", status, handled);
            return Outcome::Answer { status, by: None };
        }
        // A call that is settled comes by once more.
        if from < POLICIES_MAX {
            for (number, entry) in self.entries.iter().enumerate() {
                if handled & 1 << number != 0 {
                    entry.policy.forwarded(call);
                }
            }
        }
        Outcome::Forward { handled }
    }

    /// A call, or an operation of a COMPOUND, that these policies let go on was not carried out.
    pub fn undone(&self, asked: &Asked, handled: u64) {
        for (number, entry) in self.entries.iter().enumerate() {
            if handled & 1 << number != 0 {
                entry.policy.undone(asked);
            }
        }
    }

    fn tell_answered(&self, call: &Call<'_>, by: &str, status: Status, handled: u64) {
        call.caller.usage.denied(call.op());
        let context = self.context();
        for (number, entry) in self.entries.iter().enumerate() {
            if entry.ops & call.does() != 0 {
                entry.policy.answered(call, by, status, handled & 1 << number != 0, &context);
            }
        }
    }

    /// A name may not move from one zone to another: see [`crate::places`].
    fn crosses(&self, call: &Call<'_>, context: &Context<'_>) -> Option<Status> {
        if self.zones.trivial() || !matches!(call.op(), Op::Rename | Op::Link) {
            return None;
        }
        match context.targets(call) {
            None => Some(self.places.unknown()),
            Some(Targets { first, second: Some(second) }) if first.node != second.node => Some(Status::Xdev),
            Some(_) => None,
        }
    }

    /// Above the root of the export there is nothing, whatever the server says.
    fn leaves(&self, call: &Call<'_>) -> Option<Status> {
        let up = call.op() == Op::Lookup && call.name(0) == b"..";
        (up && self.places.get(call.handle(0)) == Some(ROOT)).then_some(Status::Noent)
    }

    /// Shows a reply to the policies that have seen its call, last one first. What it says of handles is learnt before
    /// anybody replaces them.
    pub fn reply(&self, asked: &Asked, reply: &mut Reply<'_>, handled: u64, latency_us: u64) {
        if reply.results.status == 0 {
            self.learn(asked, reply);
        }
        self.hide(asked, reply);
        self.show(asked, reply, handled, latency_us);
    }

    /// Takes out of a reply the attributes that its caller may not see, and what is above the root of the export.
    fn hide(&self, asked: &Asked, reply: &mut Reply<'_>) {
        if self.hides && asked.op != Op::Getattr && reply.has_attributes() && self.hides_from(asked) {
            reply.hide_attributes();
        }
        self.hide_entries(asked, reply);
    }

    /// True if the caller may not see the attributes of something that a call is about: its objects, or what has its names.
    fn hides_from(&self, asked: &Asked) -> bool {
        let unix_ms = unix_ms();
        let hidden = |place| self.hides(&asked.caller, place, Op::Getattr.bit(), unix_ms);
        if self.zones.trivial() {
            return hidden(ROOT);
        }
        let folders = [Some(&asked.handle), asked.handle_to.as_ref()];
        let folders = folders.map(|handle| handle.and_then(|handle| self.places.get(handle.as_bytes())));
        let second = if asked.op == Op::Link { &asked.name } else { &asked.name_to };
        let names = [if asked.op == Op::Link { None } else { asked.name.as_deref() }, second.as_deref()];
        let named = folders.into_iter().zip(names);
        let named = named.filter_map(|(folder, name)| Some(self.entry_place(folder?, name?)));
        folders.into_iter().flatten().chain(named).any(hidden)
    }

    fn hide_entries(&self, asked: &Asked, reply: &mut Reply<'_>) {
        if asked.op != Op::Readdirplus || reply.results.entries.is_empty() {
            return;
        }
        let known = self.places.get(asked.handle.as_bytes());
        if known == Some(ROOT) {
            for number in 0..reply.results.entries.len() {
                if reply.entry_name(number) == b".." {
                    reply.hide_entry(number);
                }
            }
        }
        if !self.hides {
            return;
        }
        let trivial = self.zones.trivial().then_some(ROOT);
        let Some(folder) = trivial.or(known) else { return };
        let mut seen = Hidden::new(self, &asked.caller);
        for number in 0..reply.results.entries.len() {
            if seen.is(self.entry_place(folder, reply.entry_name(number))) {
                reply.hide_entry(number);
            }
        }
    }

    /// The place of an entry of a folder, as far as rules tell places apart.
    pub fn entry_place(&self, folder: Place, name: &[u8]) -> Place {
        let place = if name == b".." { self.zones.above(folder) } else { self.zones.step(folder, name) };
        place.unwrap_or(folder)
    }

    fn hides(&self, caller: &Principal, place: Place, ops: u32, unix_ms: u64) -> bool {
        let context = self.context();
        self.hides
            && self.entries.iter().any(|entry| entry.policy.hides(caller, place, ops, unix_ms, &context))
    }

    /// Shows a reply that a policy has made to those before it.
    pub fn show(&self, asked: &Asked, reply: &mut Reply<'_>, handled: u64, latency_us: u64) {
        let context = self.context();
        for (number, entry) in self.entries.iter().enumerate().rev() {
            if handled & 1 << number != 0 {
                entry.policy.reply(asked, reply, latency_us, &context);
            }
        }
    }

    fn learn(&self, asked: &Asked, reply: &mut Reply<'_>) {
        let directory = asked.handle.as_bytes();
        let listing = reply.results.plus.then(|| self.places.listing(self.epoch, directory, reply.entries()));
        reply.learnt = listing.is_some_and(Listing::is_learnt);
        if !reply.learnt
            && self.learn_places(asked, reply)
            && let Some(listing) = listing
        {
            listing.learnt();
        }
    }

    /// Learns where handles are; false if the folder's own place is not known.
    fn learn_places(&self, asked: &Asked, reply: &Reply<'_>) -> bool {
        let made = matches!(asked.op, Op::Lookup | Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod);
        if !self.needs_names() || !made && reply.results.entries.is_empty() {
            return true;
        }
        let directory = asked.handle.as_bytes();
        let Some(place) = self.places.get(directory) else { return false };
        let (directory, mut batch) = (self.places.directory(directory), Batch::default());
        if let (true, Some(handle), Some(name)) = (made, reply.handle(), asked.name.as_deref()) {
            self.learn_one(handle, place, directory, name, &mut batch);
        }
        for number in 0..reply.results.entries.len() {
            if let Some(handle) = reply.entry_handle(number) {
                self.learn_one(handle, place, directory, reply.entry_name(number), &mut batch);
            }
        }
        self.places.write_down(batch, &self.zones);
        true
    }

    fn learn_one(
        &self,
        handle: &[u8],
        directory_place: Place,
        directory: Directory,
        name: &[u8],
        batch: &mut Batch,
    ) {
        if name == b"." || name == b".." {
            return;
        }
        if let Some(place) = self.zones.step(directory_place, name) {
            self.places.learn_in(directory, handle, place, self.names.then_some(name), batch);
        }
    }

    /// Asks the policies whether a client may mount.
    ///
    /// # Errors
    /// The status to refuse with.
    pub fn mount(&self, mount: &Mount) -> Result<(), Status> {
        let context = self.context();
        for entry in &self.entries {
            entry.policy.mount(mount, &context).inspect_err(|_| {
                entry.counters.answered.fetch_add(1, Ordering::Relaxed);
            })?;
        }
        Ok(())
    }

    /// Takes note of the handle of a mount, and shows it to the policies, last one first; true if it was not known.
    pub fn mounted(&self, mount: &Mount, handle: &mut Handle) -> bool {
        let new = self.knows_mount(handle, &mount.path);
        for entry in self.entries.iter().rev() {
            entry.policy.mounted(mount, handle);
        }
        new
    }

    /// Takes note of what a handle is that clients may have mounted; true if it was not known.
    pub fn knows_mount(&self, handle: &Handle, path: &[u8]) -> bool {
        self.places.learn_mount(handle, &self.zones, path)
    }

    /// True if COMPOUNDs of NFSv4 may pass.
    pub fn serves_nfs4(&self) -> bool {
        self.entries.iter().all(|entry| entry.policy.serves_nfs4())
    }

    /// Why they may not, for people.
    pub fn refuses_nfs4(&self) -> Option<String> {
        let names: Vec<String> = self
            .entries
            .iter()
            .filter(|entry| !entry.policy.serves_nfs4())
            .map(|entry| format!("'{}' (kind: {})", entry.name, entry.policy.kind()))
            .collect();
        (!names.is_empty()).then(|| {
            format!("NFSv4 is refused, clients fall back to NFSv3: {} cannot do it there", names.join(", "))
        })
    }

    /// True if WRITEs may be set aside.
    pub fn reorders(&self) -> bool {
        self.reorders
    }

    /// True if a policy must know whether it is a file or a folder that is removed.
    pub fn tells_removals(&self) -> bool {
        self.removals
    }

    /// True if the objects of COMPOUNDs must be known.
    pub fn judges_objects(&self) -> bool {
        self.judges
    }

    /// True if a policy must know which file a call is about.
    pub fn knows_files(&self) -> bool {
        self.files
    }

    /// Tells the policies the handle of the export's root in NFSv4.
    pub fn entered(&self, root: &Handle) {
        self.learn_name(root.as_bytes(), None, crate::places::ROOT, b"");
        self.entries.iter().for_each(|entry| entry.policy.entered(root));
    }

    /// True if a policy has made up the object of a handle.
    pub fn makes_up(&self, handle: &[u8]) -> bool {
        self.judges && self.entries.iter().any(|entry| entry.policy.makes_up(handle))
    }

    /// Tells the policies the attributes of an object of NFSv4.
    pub fn object_seen(&self, handle: &[u8], attributes: Option<&[u8; ATTRIBUTES_BYTES]>, seen: &Seen) {
        self.entries.iter().for_each(|entry| entry.policy.object_seen(handle, attributes, seen));
    }

    fn judge(&self) -> Option<&dyn Policy> {
        let judge = self.entries.iter().find(|entry| entry.policy.judges_objects());
        judge.map(|entry| &*entry.policy)
    }

    /// What is to be noted before the server is asked for a name in NFSv4.
    pub fn seen(&self, folder: &Handle, name: &[u8], now_us: u64) -> Seen {
        self.judge().map_or_else(Seen::default, |judge| judge.seen(folder.as_bytes(), name, now_us))
    }

    /// Tells the policies what a name of NFSv4 leads to.
    pub fn name_seen(&self, seen: &Seen, handle: &Handle) {
        if let Some(judge) = self.judge() {
            judge.name_seen(seen, handle);
        }
    }

    /// A call of NFSv4 may make a name that policies were not shown.
    pub fn makes_unseen(&self, now_us: u64) {
        self.entries.iter().for_each(|entry| entry.policy.makes_unseen(now_us));
    }

    /// What a name of NFSv4 leads to, and whether that is a folder, where it is known for sure.
    pub fn name_known(&self, folder: &Handle, name: &[u8]) -> Option<(Handle, bool)> {
        self.judge()?.name_known(folder.as_bytes(), name)
    }

    /// The server's handle for one that a client of NFSv4 uses.
    ///
    /// # Errors
    /// The status to refuse with.
    pub fn open_handle(&self, handle: Handle, client: IpAddr) -> Result<OpenHandle, Status> {
        let open = OpenHandle { handle, above: false };
        self.entries.iter().try_fold(open, |open, entry| entry.policy.open_handle(open, client))
    }

    /// The handle that a client of NFSv4 gets for the server's.
    pub fn seal_handle(&self, open: OpenHandle, client: IpAddr) -> Handle {
        let seal = |open: OpenHandle, entry: &Entry| OpenHandle {
            handle: entry.policy.seal_handle(open, client),
            ..open
        };
        self.entries.iter().rev().fold(open, seal).handle
    }

    /// Takes note of where a handle of NFSv4 was found: `name` in `directory`, whose place is known.
    pub fn learn_name(&self, handle: &[u8], directory: Option<&Handle>, place: Place, name: &[u8]) {
        if self.needs_names() {
            let directory = directory.map_or(handle, Handle::as_bytes);
            let batch = self.places.learn(handle, place, directory, self.names.then_some(name));
            self.places.write_down(batch, &self.zones);
        }
    }

    /// Takes note of a folder above the export.
    pub fn learn_above(&self, handle: &[u8], level: usize) {
        self.places.write_down(self.places.learn_above(handle, level), &self.zones);
    }

    /// Lets what is known of places outlive the process, in a file; what it holds is known from now on.
    ///
    /// # Errors
    /// What the system says.
    pub fn keep_places(&mut self, path: &Path) -> std::io::Result<()> {
        self.places = Arc::new(Places::open(path, &self.zones)?);
        Ok(())
    }

    /// What the policies have done.
    pub fn rows(&self) -> Vec<PolicyRow> {
        let row = |entry: &Entry| PolicyRow {
            name: entry.name.clone(),
            kind: entry.policy.kind().to_string(),
            seen: entry.counters.seen.load(Ordering::Relaxed),
            answered: entry.counters.answered.load(Ordering::Relaxed),
            delayed: entry.counters.delayed.load(Ordering::Relaxed),
            details: entry.policy.details(),
        };
        self.entries.iter().map(row).collect()
    }

    /// Number of handles whose place is known.
    pub fn places_known(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests;
