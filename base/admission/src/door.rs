//! Places, by address and by name.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};
use weir_base::exposition::{Exposition, Kind};

/// Limits of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections of strangers.
    pub strangers_max: usize,
    /// Most of them from one address (of IPv6, from one /64).
    pub strangers_per_address_max: usize,
    /// Most connections of those who are known.
    pub known_max: usize,
    /// Most of them of one name.
    pub known_per_name_max: usize,
    /// A stranger's first byte comes within this.
    pub first_byte: Duration,
    /// Its handshake is over within this, from its beginning.
    pub handshake: Duration,
    /// Whoever is still a stranger after this goes, whatever it is doing: it covers head and body of what it asks.
    pub stranger_life: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            strangers_max: 256,
            strangers_per_address_max: 64,
            known_max: 4_096,
            known_per_name_max: 512,
            first_byte: Duration::from_secs(3),
            handshake: Duration::from_secs(10),
            stranger_life: Duration::from_secs(20),
        }
    }
}

impl Limits {
    /// Most descriptors that connections through this door hold at a time.
    pub fn connections_max(&self) -> usize {
        self.known_max.saturating_add(self.strangers_max.saturating_mul(2))
    }

    /// The same door with no more connections than there are descriptors for; every kind of place stays.
    #[must_use]
    pub fn within(self, descriptors: usize) -> Limits {
        if self.connections_max() <= descriptors {
            return self;
        }
        let strangers_max = self.strangers_max.min(descriptors / 8).max(4);
        Limits {
            strangers_max,
            strangers_per_address_max: self.strangers_per_address_max.min(strangers_max.div_ceil(2)),
            known_max: self.known_max.min(descriptors.saturating_sub(2 * strangers_max)).max(4),
            ..self
        }
    }
}

/// What a door counted since it opened.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that came.
    pub entered: AtomicU64,
    /// Those that became known.
    pub known: AtomicU64,
    /// Strangers whose place a newcomer got.
    pub displaced: AtomicU64,
    /// Newcomers refused: as many as there are places were about to end.
    pub refused: AtomicU64,
    /// Refused because the name, or all names, have connections enough.
    pub full: AtomicU64,
    /// Strangers that said nothing in time.
    pub silent: AtomicU64,
    /// Strangers whose handshake took too long.
    pub unshaken: AtomicU64,
    /// Strangers that never said who they are.
    pub unknown: AtomicU64,
    /// Connections of known ones that were ended, because they are not taken any more.
    pub ended: AtomicU64,
    /// Accepting failed, for want of descriptors or otherwise.
    pub accept_failed: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Why somebody who is known gets no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// The name has enough.
    #[error("'{name}' has {limit} connections, the most of one name: close some, or use one for more")]
    Name {
        /// Who it is.
        name: String,
        /// The limit.
        limit: usize,
    },
    /// All have enough.
    #[error(
        "{limit} connections are open, the most that are taken here: try again, or ask another controller"
    )]
    All {
        /// The limit.
        limit: usize,
    },
    /// Its place went to a newcomer.
    #[error("this connection is about to be closed")]
    Displaced,
}

/// What is told a connection from outside its task.
#[derive(Debug)]
pub(crate) struct Signal {
    ends: AtomicBool,
    spoke: AtomicBool,
    shaken: AtomicBool,
    known: AtomicBool,
    /// When whoever is known is not known any more: its certificate is over.
    until: Mutex<Option<Instant>>,
    entered: Instant,
    /// Of who reads and of who writes: they may be two tasks.
    wakers: Mutex<[Option<Waker>; 2]>,
}

impl Signal {
    fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut *locked(&self.wakers));
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

#[derive(Debug)]
struct Stranger {
    from: Group,
    signal: Arc<Signal>,
}

#[derive(Debug)]
struct Known {
    name: Arc<str>,
    signal: Arc<Signal>,
}

/// Addresses that count as one: whoever has one of a /64 has them all.
type Group = [u8; 16];

fn group_of(from: IpAddr) -> Group {
    match from.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => {
            let mut octets = v6.octets();
            octets[8..].fill(0);
            octets
        }
    }
}

#[derive(Debug, Default)]
struct Inside {
    next: u64,
    /// Oldest first.
    strangers: BTreeMap<u64, Stranger>,
    groups: HashMap<Group, usize>,
    /// Displaced, and not gone yet.
    leaving: usize,
    known: HashMap<u64, Known>,
    names: HashMap<Arc<str>, usize>,
}

fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Inside {
    /// Takes the place of the stranger that has it longest, of one group or of the group with the most; who said nothing goes first.
    fn displace(&mut self, of: Option<Group>) {
        let largest =
            || self.groups.iter().max_by_key(|(group, count)| (**count, **group)).map(|(group, _)| *group);
        let Some(group) = of.or_else(largest) else { return };
        let of_group = || self.strangers.iter().filter(|(_, stranger)| stranger.from == group);
        let silent = of_group().find(|(_, stranger)| !stranger.signal.spoke.load(Ordering::Relaxed));
        let Some(id) = silent.or_else(|| of_group().next()).map(|(id, _)| *id) else { return };
        if let Some(stranger) = self.strangers.remove(&id) {
            less(&mut self.groups, &stranger.from);
            self.leaving += 1;
            stranger.signal.end();
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves maps that are each whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The door of a listener.
#[derive(Debug)]
pub struct Door {
    name: &'static str,
    limits: Limits,
    inside: Mutex<Inside>,
    /// What was counted.
    pub counters: Counters,
}

impl Door {
    /// A door; `name` says whose in metrics and logs.
    pub fn new(name: &'static str, limits: Limits) -> Arc<Door> {
        Arc::new(Door { name, limits, inside: Mutex::default(), counters: Counters::default() })
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A place for a newcomer; nothing when so many are about to end that it must be refused.
    pub fn enter(self: &Arc<Self>, from: IpAddr) -> Option<Place> {
        count(&self.counters.entered);
        let group = group_of(from);
        let mut inside = locked(&self.inside);
        let of_group = inside.groups.get(&group).copied().unwrap_or_default();
        let crowded = of_group >= self.limits.strangers_per_address_max;
        if crowded || inside.strangers.len() >= self.limits.strangers_max {
            if inside.leaving >= self.limits.strangers_max {
                count(&self.counters.refused);
                return None;
            }
            count(&self.counters.displaced);
            inside.displace(crowded.then_some(group));
        }
        let id = inside.next;
        inside.next += 1;
        let signal = Arc::new(Signal {
            ends: AtomicBool::new(false),
            spoke: AtomicBool::new(false),
            shaken: AtomicBool::new(false),
            known: AtomicBool::new(false),
            until: Mutex::default(),
            entered: Instant::now(),
            wakers: Mutex::default(),
        });
        inside.strangers.insert(id, Stranger { from: group, signal: signal.clone() });
        *inside.groups.entry(group).or_default() += 1;
        drop(inside);
        Some(Place(Arc::new(Held { door: self.clone(), id, signal })))
    }

    /// Ends every connection of known ones for which `goes` says so of their name; how many.
    pub fn end(&self, mut goes: impl FnMut(&str) -> bool) -> usize {
        let inside = locked(&self.inside);
        let mut verdicts: HashMap<&str, bool> = HashMap::new();
        let mut ended = 0;
        for known in inside.known.values() {
            if *verdicts.entry(&known.name).or_insert_with(|| goes(&known.name))
                && !known.signal.ends.load(Ordering::Relaxed)
            {
                known.signal.end();
                ended += 1;
            }
        }
        self.counters.ended.fetch_add(ended as u64, Ordering::Relaxed);
        ended
    }

    /// Connections of strangers and of known ones now.
    pub fn occupied(&self) -> (usize, usize) {
        let inside = locked(&self.inside);
        (inside.strangers.len() + inside.leaving, inside.known.len())
    }

    /// What was counted, with the names of the metrics: kind and value.
    fn counted(&self) -> [(&'static str, u64); 10] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        [
            ("entered", get(&counters.entered)),
            ("known", get(&counters.known)),
            ("displaced", get(&counters.displaced)),
            ("refused", get(&counters.refused)),
            ("full", get(&counters.full)),
            ("silent", get(&counters.silent)),
            ("no-handshake", get(&counters.unshaken)),
            ("never-known", get(&counters.unknown)),
            ("ended", get(&counters.ended)),
            ("accept-failed", get(&counters.accept_failed)),
        ]
    }

    fn leave(&self, id: u64) {
        let mut inside = locked(&self.inside);
        if let Some(stranger) = inside.strangers.remove(&id) {
            less(&mut inside.groups, &stranger.from);
        } else if let Some(known) = inside.known.remove(&id) {
            less(&mut inside.names, &known.name);
        } else {
            inside.leaving = inside.leaving.saturating_sub(1);
        }
    }
}

/// What several doors counted, as Prometheus text.
pub(crate) fn metrics_text<'a>(doors: impl Iterator<Item = &'a Arc<Door>>) -> String {
    let mut text = Exposition::new();
    for door in doors {
        let help = "Connections at a listener, by what became of them.";
        for (event, value) in door.counted() {
            let labels = [("door", door.name), ("event", event)];
            text.put("weir_door_connections_total", Kind::Counter, help, &labels, value as f64);
        }
        let (strangers, known) = door.occupied();
        let help = "Connections that are open at a listener.";
        for (who, value) in [("stranger", strangers), ("known", known)] {
            let labels = [("door", door.name), ("who", who)];
            text.put("weir_door_connections", Kind::Gauge, help, &labels, value as f64);
        }
    }
    text.text()
}

impl Door {
    /// What these doors counted, as Prometheus text.
    pub fn metrics_text(doors: &[Arc<Door>]) -> String {
        metrics_text(doors.iter())
    }
}

#[derive(Debug)]
struct Held {
    door: Arc<Door>,
    id: u64,
    signal: Arc<Signal>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.door.leave(self.id);
    }
}

/// A connection's place; it is free when the last clone is gone.
#[derive(Clone, Debug)]
pub struct Place(Arc<Held>);

/// Until when a connection may be, and what it is then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Silent(Instant),
    Unshaken(Instant),
    Unknown(Instant),
    Over(Instant),
    None,
}

impl Bound {
    pub(crate) fn at(self) -> Option<Instant> {
        match self {
            Bound::Silent(at) | Bound::Unshaken(at) | Bound::Unknown(at) | Bound::Over(at) => Some(at),
            Bound::None => None,
        }
    }
}

impl Place {
    /// Whoever has this place is known by a name from now on. Said again, it changes nothing.
    ///
    /// # Errors
    /// [`Full`]: it stays a stranger.
    pub fn admit(&self, name: &str) -> Result<(), Full> {
        let Held { door, id, signal } = &*self.0;
        if signal.known.load(Ordering::SeqCst) {
            return Ok(());
        }
        let limits = door.limits;
        let mut inside = locked(&door.inside);
        if inside.known.contains_key(id) {
            return Ok(());
        }
        if !inside.strangers.contains_key(id) {
            return Err(Full::Displaced);
        }
        let full = if inside.known.len() >= limits.known_max {
            Some(Full::All { limit: limits.known_max })
        } else if inside.names.get(name).is_some_and(|count| *count >= limits.known_per_name_max) {
            Some(Full::Name { name: name.to_owned(), limit: limits.known_per_name_max })
        } else {
            None
        };
        if let Some(full) = full {
            count(&door.counters.full);
            return Err(full);
        }
        if let Some(stranger) = inside.strangers.remove(id) {
            less(&mut inside.groups, &stranger.from);
        }
        let name: Arc<str> = name.into();
        *inside.names.entry(name.clone()).or_default() += 1;
        inside.known.insert(*id, Known { name, signal: signal.clone() });
        signal.known.store(true, Ordering::SeqCst);
        count(&door.counters.known);
        Ok(())
    }

    /// Whoever is known is so until then.
    pub fn until(&self, at: Instant) {
        *locked(&self.0.signal.until) = Some(at);
        self.0.signal.wake();
    }

    /// Its handshake is over.
    pub fn shaken(&self) {
        self.0.signal.shaken.store(true, Ordering::Relaxed);
    }

    /// It said something.
    pub fn spoke(&self) {
        self.0.signal.spoke.store(true, Ordering::Relaxed);
    }

    /// Whether it is known.
    pub fn is_known(&self) -> bool {
        self.0.signal.known.load(Ordering::SeqCst)
    }

    /// Whether the connection is to end.
    pub fn ends(&self) -> bool {
        self.0.signal.ends.load(Ordering::SeqCst)
    }

    /// Wakes this task, which reads (0) or writes (1), when something changes for the connection.
    pub(crate) fn watch(&self, side: usize, waker: &Waker) {
        let kept = &mut locked(&self.0.signal.wakers)[side];
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }

    pub(crate) fn bound(&self) -> Bound {
        let (limits, signal) = (&self.0.door.limits, &self.0.signal);
        if self.is_known() {
            return locked(&signal.until).map_or(Bound::None, Bound::Over);
        }
        let life = signal.entered + limits.stranger_life;
        if !signal.spoke.load(Ordering::Relaxed) {
            Bound::Silent((signal.entered + limits.first_byte).min(life))
        } else if !signal.shaken.load(Ordering::Relaxed) {
            Bound::Unshaken((signal.entered + limits.handshake).min(life))
        } else {
            Bound::Unknown(life)
        }
    }

    /// Counts that a bound was reached.
    pub(crate) fn late(&self, bound: Bound) -> &'static str {
        let counters = &self.0.door.counters;
        let (counter, why) = match bound {
            Bound::Silent(_) => (&counters.silent, "it said nothing in time"),
            Bound::Unshaken(_) => (&counters.unshaken, "its handshake took too long"),
            Bound::Unknown(_) => (&counters.unknown, "it did not say in time who it is"),
            Bound::Over(_) | Bound::None => (&counters.ended, "its certificate is over"),
        };
        if !self.0.signal.ends.swap(true, Ordering::SeqCst) {
            count(counter);
        }
        why
    }
}
