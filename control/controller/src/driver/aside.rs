//! What a controller's disk and its links have to do with entries that are set aside ([`crate::aside`]).
//!
//! In the directory of the controller's numbers, beside [`super::carrying`]:
//! - `set-aside.wanted`: what operators want, written by their command, a line each: the entry's place and digest; `not-carried-out`; `by`
//!   with an operator, a time and a signature. It may change at any time, and binds nobody.
//! - `left-out`: promises and agreements ([`Aside`]), through whoever keeps the state's manifest ([`AsidePlace::keep`]), synced before a
//!   promise leaves.
//! - `carried`: how far the order was carried out ([`Mark`]).
//! - `set-aside`: of releases before, in which each controller was told by itself. What it names is set aside as it was then.

use super::locking::locked;
use crate::Error;
use crate::aside::{
    Admins, Aside, Carried, Case, Electorate, EntryName, KEPT_BYTES_MAX, MARK_BYTES, Mark, Tell, Waits, Wish,
    Word,
};
use crate::core::operators::Operators;
use arc_swap::ArcSwapOption;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weir_base::world::{Disk, DiskFile};
use weir_model::Label;
use weir_model::event::SourceId;
use weir_model::join::{from_hex, to_hex};
use weir_model::operator::OperatorRole;
use weir_model::signed::Signature;
use weir_trust::identity::KeyPair;

/// What operators want.
pub const WANTED_FILE: &str = "set-aside.wanted";
/// Promises and agreements.
pub const LEFT_OUT_FILE: &str = "left-out";
/// How far the order was carried out.
pub const CARRIED_FILE: &str = "carried";
/// What was set aside by releases before.
pub const SET_ASIDE_FILE: &str = "set-aside";
/// Most bytes of the files of lines.
const LINES_BYTES_MAX: usize = 64 * 1024;
/// Most messages of other members that wait to be looked at.
const HEARD_MAX: usize = 256;
/// Most of one member: who says more than is looked at takes no room from others.
const HEARD_OF_MAX: usize = 8;
/// Looks between two at what operators want, and between two times that it is told who waits.
const LOOKS_PER_TELL: u64 = 10;

/// The members, as whoever holds the group knows them.
pub trait AsideGroup: Send + Sync {
    /// This controller's number.
    fn me(&self) -> u32;
    /// Who orders the entry at a place; none: that is not known yet.
    fn electorate(&self, index: u64) -> Option<Electorate>;
    /// Says something to another member; what is lost is said again.
    fn tell(&self, to: u32, bytes: Vec<u8>);
}

/// A controller without others.
struct Alone([u8; 32]);

impl AsideGroup for Alone {
    fn me(&self) -> u32 {
        0
    }

    fn electorate(&self, _index: u64) -> Option<Electorate> {
        Some(Electorate { members: BTreeMap::from([(0, self.0)]), quorum: 1, believes: true })
    }

    fn tell(&self, _to: u32, _bytes: Vec<u8>) {}
}

/// Replaces the file of promises, so that it is durable and known to be there when it returns.
pub type Keep = Arc<dyn Fn(&[u8]) -> io::Result<()> + Send + Sync>;

/// What others say, and what is shown: clones are the same.
#[derive(Clone, Default)]
pub struct AsideInbox(Arc<Inbox>);

#[derive(Default)]
struct Inbox {
    heard: Mutex<VecDeque<(u32, Tell)>>,
    held: ArcSwapOption<String>,
    dropped: AtomicU64,
}

impl AsideInbox {
    /// Another member said this. Whether it is about entries that are set aside; what is not right is counted and forgotten.
    pub fn hear(&self, from: u64, bytes: &[u8]) -> bool {
        if !Tell::is_one(bytes) {
            return false;
        }
        let mut heard = locked(&self.0.heard);
        let has_room = |from: u32, heard: &VecDeque<(u32, Tell)>| {
            let own = heard.iter().filter(|(who, _)| *who == from).count();
            heard.len() < HEARD_MAX && own < HEARD_OF_MAX
        };
        match (u32::try_from(from), Tell::decode(bytes)) {
            (Ok(from), Some(tell)) if has_room(from, &heard) => heard.push_back((from, tell)),
            _ => {
                self.0.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        true
    }

    /// Why this controller waits before an entry, if it does.
    pub fn held(&self) -> Option<Arc<String>> {
        self.0.held.load_full()
    }

    /// Messages that were not right, or found no room.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    fn take(&self) -> Vec<(u32, Tell)> {
        locked(&self.0.heard).drain(..).collect()
    }

    pub(super) fn show(&self, held: Option<String>) {
        self.0.held.store(held.map(Arc::new));
    }
}

/// What a controller needs to set entries aside together with others.
#[derive(Clone)]
pub struct AsidePlace {
    /// The members.
    pub group: Arc<dyn AsideGroup>,
    /// By which the members know this one.
    pub key: Arc<KeyPair>,
    /// Where promises are kept.
    pub keep: Keep,
    /// What others say.
    pub inbox: AsideInbox,
}

impl std::fmt::Debug for AsidePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsidePlace").field("me", &self.group.me()).finish_non_exhaustive()
    }
}

impl AsidePlace {
    /// Of a controller without others, with a directory that has no manifest.
    pub fn alone(disk: Arc<dyn Disk>, key: Arc<KeyPair>) -> AsidePlace {
        let keep: Keep = Arc::new(move |bytes| weir_base::file::replace_at(&*disk, LEFT_OUT_FILE, bytes));
        AsidePlace::alone_with(key, keep)
    }

    /// Of a controller without others.
    pub fn alone_with(key: Arc<KeyPair>, keep: Keep) -> AsidePlace {
        let group = Arc::new(Alone(key.public()));
        AsidePlace { group, key, keep, inbox: AsideInbox::default() }
    }
}

/// What is known of entries that are set aside, and of what was carried out. See the module.
pub struct Asides {
    disk: Arc<dyn Disk>,
    place: AsidePlace,
    domain: Label,
    aside: Aside,
    /// Of releases before.
    old: BTreeMap<u64, [u8; 32]>,
    wishes: BTreeMap<u64, Wish>,
    mark: Mark,
    mark_file: Option<Arc<dyn DiskFile>>,
    /// A promise that could not be kept, as the disk said: it may be there all the same.
    unsure: Option<EntryName>,
    looks: u64,
}

/// What is known of an entry before it is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    Nothing,
    /// It is set aside, as a release before did it.
    Before([u8; 32]),
    /// It is set aside.
    Agreed(Box<Case>),
    /// Somebody wants that, or this controller has promised: it must not be carried out before it is looked at.
    Spoken,
}

impl Asides {
    /// Reads what is there. `used`: another life of this directory was before this one.
    ///
    /// # Errors
    /// [`Error::SetAside`], [`Error::System`].
    pub fn open(disk: Arc<dyn Disk>, domain: Label, place: AsidePlace, used: bool) -> Result<Asides, Error> {
        let damaged = |what: &'static str| Error::SetAside { what, dir: disk.describe() };
        let kept = read(&*disk, LEFT_OUT_FILE, KEPT_BYTES_MAX)?;
        let aside = match kept {
            Some(bytes) => Aside::open(&bytes).ok_or_else(|| damaged(LEFT_OUT_FILE))?,
            None => Aside::default(),
        };
        let old = lines(&*disk, SET_ASIDE_FILE)?;
        let old = old.iter().map(|line| old_line(line)).collect::<Option<_>>();
        let old = old.ok_or_else(|| damaged(SET_ASIDE_FILE))?;
        let (mark, mark_file) = open_mark(&*disk, used)?;
        let mut asides = Asides {
            aside,
            old,
            wishes: BTreeMap::new(),
            mark,
            mark_file,
            unsure: None,
            looks: 0,
            domain,
            place,
            disk,
        };
        asides.wishes = asides.read_wishes()?;
        Ok(asides)
    }

    fn read_wishes(&self) -> Result<BTreeMap<u64, Wish>, Error> {
        wishes(&*self.disk)
    }

    /// What is known of an entry. Its digest is asked for only where there is something.
    pub fn known(&self, index: u64, sha256: impl Fn() -> [u8; 32]) -> Known {
        let somebody = self.aside.knows_of(index) || self.wishes.contains_key(&index);
        if !somebody && !self.old.contains_key(&index) {
            return Known::Nothing;
        }
        let entry = EntryName { index, sha256: sha256() };
        if let Some(case) = self.aside.case(&entry).filter(|case| case.agreed) {
            return Known::Agreed(Box::new(case.clone()));
        }
        if self.old.get(&index) == Some(&entry.sha256) {
            return Known::Before(entry.sha256);
        }
        if somebody { Known::Spoken } else { Known::Nothing }
    }

    /// Whether this controller has promised never to carry an entry out, or may have, or somebody wants here that one at its place is set
    /// aside.
    pub fn must_wait(&self, entry: &EntryName) -> bool {
        let me = self.place.group.me();
        let promised = self.aside.case(entry).is_some_and(|case| case.promises.contains_key(&me));
        promised || self.unsure == Some(*entry) || self.wishes.contains_key(&entry.index)
    }

    /// Before an entry is carried out.
    pub fn begin(&mut self, index: u64) {
        if self.mark.begin(index) {
            self.write_mark(true);
        }
    }

    /// An entry was carried out; `sync`: it ended the process before, so somebody may be asked about it.
    pub fn done(&mut self, index: u64, sync: bool) {
        if self.mark.done(index) || sync {
            self.write_mark(sync);
        }
    }

    /// The state after this entry was taken over.
    pub fn installed(&mut self, index: u64) {
        self.mark.done(index);
        self.write_mark(true);
    }

    /// What was proposed in this life was carried out: all of lives before was, too.
    pub fn settle(&mut self) {
        if self.mark.settle() {
            self.write_mark(true);
        }
    }

    /// The process ends in good order.
    pub fn end(&mut self) {
        self.mark.end();
        self.write_mark(true);
    }

    fn write_mark(&mut self, sync: bool) {
        let Some(file) = &self.mark_file else { return };
        let written = file.write_at(0, &self.mark.encode());
        let written = written.and_then(|()| if sync { file.sync_data() } else { Ok(()) });
        if let Err(error) = written {
            tracing::warn!(%error, file = CARRIED_FILE, "how far the order was carried out was not written down: nothing is promised");
            // What is on the disk says less than is so. Nothing can be promised by it any more.
            self.mark_file = None;
            let _gone = self.disk.remove(CARRIED_FILE);
        }
    }

    /// Looks at what others said; answers.
    pub fn hear(&mut self) {
        for (from, tell) in self.place.inbox.take() {
            if let Some(answer) = self.aside.hear(from, tell) {
                self.place.group.tell(from, answer.encode());
            }
        }
    }

    /// Looks at an entry before which this controller waits. Done when it is agreed; else why it waits.
    ///
    /// # Errors
    /// Why it still waits.
    pub fn look(&mut self, entry: &EntryName, operators: &Operators) -> Result<Box<Case>, String> {
        self.hear();
        let tells = self.looks.is_multiple_of(LOOKS_PER_TELL);
        self.looks += 1;
        if tells {
            self.wishes = self.read_wishes().map_err(|error| error.to_string())?;
        }
        let group = self.place.group.clone();
        let Some(who) = group.electorate(entry.index) else {
            return Err("it is not known yet who orders it".to_owned());
        };
        let carried = match self.mark_file {
            Some(_) => self.mark.carried(entry.index),
            None => Carried::Unknown,
        };
        let (me, key) = (group.me(), self.place.key.clone());
        let wish = self.wishes.get(&entry.index);
        let wants = (&self.domain, *entry);
        let admins = operators.in_force().then(|| admins(operators));
        let considered = self.aside.consider((me, &key), wants, &who, wish, (carried, admins.as_ref()));
        if considered.changed {
            self.unsure = Some(*entry);
            let kept = (self.place.keep)(&self.aside.with(&considered.case));
            kept.map_err(|error| format!("what this controller promises cannot be kept: {error}"))?;
            self.unsure = None;
            self.aside.keep(considered.case.clone());
        }
        if tells || considered.changed {
            let asks = considered.waits.is_some();
            let bytes = Tell { case: considered.case.clone(), asks }.encode();
            for member in who.members.keys().filter(|member| **member != me) {
                group.tell(*member, bytes.clone());
            }
        }
        match considered.waits {
            None => Ok(Box::new(considered.case)),
            Some(waits) => Err(self.words(&considered.case, &who, &waits)),
        }
    }

    fn words(&self, case: &Case, who: &Electorate, waits: &Waits) -> String {
        let have: Vec<String> = case.promises.keys().map(u32::to_string).collect();
        match waits {
            Waits::Few { .. } => format!("{waits}: {}", have.join(", ")),
            _ if have.is_empty() => waits.to_string(),
            _ => format!(
                "{waits}; {} of {} controllers have promised: {}",
                have.len(),
                who.quorum,
                have.join(", ")
            ),
        }
    }

    /// Keys of those who promised, for the audit.
    pub fn keys(&self, index: u64) -> BTreeMap<u32, [u8; 32]> {
        self.place.group.electorate(index).map(|who| who.members).unwrap_or_default()
    }
}

fn admins(operators: &Operators) -> Admins {
    let admins = operators.rows().filter(|(_, row)| row.role == OperatorRole::Admin);
    admins.map(|(source, row)| (source.clone(), row.keys.clone())).collect()
}

fn read(disk: &dyn Disk, name: &str, bytes_max: usize) -> Result<Option<Vec<u8>>, Error> {
    let failed = || Error::system("reading what is set aside");
    let file = match disk.open(name) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed()(error)),
    };
    let length = usize::try_from(file.len().map_err(failed())?).unwrap_or(usize::MAX);
    if length > bytes_max {
        return Err(failed()(io::Error::other(format!("'{name}' has more than {bytes_max} bytes"))));
    }
    let mut bytes = vec![0; length];
    let read = file.read_at(0, &mut bytes).map_err(failed())?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

fn lines(disk: &dyn Disk, name: &'static str) -> Result<Vec<String>, Error> {
    let Some(bytes) = read(disk, name, LINES_BYTES_MAX)? else { return Ok(Vec::new()) };
    let damaged = |_| Error::SetAside { what: name, dir: disk.describe() };
    let text = String::from_utf8(bytes).map_err(damaged)?;
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

fn old_line(line: &str) -> Option<(u64, [u8; 32])> {
    let (index, digest) = line.split_once(' ')?;
    Some((index.parse().ok()?, from_hex::<32>(digest.trim())?))
}

/// What operators want, in a controller's directory, by the places of entries.
///
/// # Errors
/// [`Error::SetAside`]: the file is damaged.
pub fn wishes(disk: &dyn Disk) -> Result<BTreeMap<u64, Wish>, Error> {
    let read = lines(disk, WANTED_FILE)?;
    let read = read.iter().map(|line| wish_of(line).map(|wish| (wish.entry.index, wish)));
    read.collect::<Option<_>>().ok_or_else(|| Error::SetAside { what: WANTED_FILE, dir: disk.describe() })
}

/// Writes what operators want.
///
/// # Errors
/// The disk's.
pub fn write_wishes(disk: &dyn Disk, wishes: &BTreeMap<u64, Wish>) -> io::Result<()> {
    let text: String = wishes.values().map(|wish| wish_line(wish) + "\n").collect();
    weir_base::file::replace_at(disk, WANTED_FILE, text.as_bytes())
}

fn wish_line(wish: &Wish) -> String {
    let mut line = format!("{} {}", wish.entry.index, to_hex(&wish.entry.sha256));
    if wish.not_carried_out {
        line.push_str(" not-carried-out");
    }
    if let Some(word) = &wish.word {
        let signature = [word.signature.r, word.signature.s].concat();
        line.push_str(&format!(" by {} {} {}", word.operator.0, word.made_ms, to_hex(&signature)));
    }
    line
}

fn wish_of(line: &str) -> Option<Wish> {
    let mut words = line.split_whitespace();
    let (index, sha256) = (words.next()?.parse().ok()?, from_hex::<32>(words.next()?)?);
    let mut wish = Wish { entry: EntryName { index, sha256 }, word: None, not_carried_out: false };
    while let Some(word) = words.next() {
        match word {
            "not-carried-out" => wish.not_carried_out = true,
            "by" => {
                let (operator, made_ms) = (SourceId(words.next()?.to_owned()), words.next()?.parse().ok()?);
                let bytes = from_hex::<64>(words.next()?)?;
                let mut signature = Signature { r: [0; 32], s: [0; 32] };
                signature.r.copy_from_slice(&bytes[..32]);
                signature.s.copy_from_slice(&bytes[32..]);
                wish.word = Some(Word { operator, made_ms, signature });
            }
            _ => return None,
        }
    }
    Some(wish)
}

/// Whether the controller of a directory has carried an entry out, as far as its mark says.
///
/// # Errors
/// The disk's.
pub fn carried(disk: &dyn Disk, index: u64) -> Result<Carried, Error> {
    Ok(read_mark(disk)?.flatten().map_or(Carried::Unknown, |mark| mark.next(boot()).carried(index)))
}

fn read_mark(disk: &dyn Disk) -> Result<Option<Option<Mark>>, Error> {
    let Some(bytes) = read(disk, CARRIED_FILE, MARK_BYTES)? else { return Ok(None) };
    let bytes: Option<&[u8; MARK_BYTES]> = bytes.as_slice().try_into().ok();
    Ok(Some(bytes.and_then(Mark::decode)))
}

fn open_mark(disk: &dyn Disk, used: bool) -> Result<(Mark, Option<Arc<dyn DiskFile>>), Error> {
    let boot = boot();
    let (mark, file) = match read_mark(disk)? {
        Some(found) => {
            if found.is_none() {
                tracing::warn!(
                    file = CARRIED_FILE,
                    "how far the order was carried out cannot be read: nothing is promised of what was before"
                );
            }
            (found.map_or(Mark::unknown(boot), |mark| mark.next(boot)), disk.open(CARRIED_FILE))
        }
        None if used => (Mark::unknown(boot), disk.create(CARRIED_FILE)),
        None => (Mark::new(boot), disk.create(CARRIED_FILE)),
    };
    let written = file.and_then(|file| {
        file.write_at(0, &mark.encode())?;
        file.sync_data()?;
        disk.sync_dir()?;
        Ok(file)
    });
    let file = written.inspect_err(|error| {
        tracing::warn!(%error, file = CARRIED_FILE, "how far the order is carried out cannot be written down: nothing is promised");
    });
    Ok((mark, file.ok()))
}

/// This life of the machine; all zeros where the system does not say.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    from_hex::<16>(&text.trim().replace('-', "")).unwrap_or_default()
}

#[cfg(test)]
mod tests;
