//! Listings of folders, the same whichever replica they were read from: by name hash, so that a place in a listing means the
//! same everywhere and stays good when names come and go.

use super::Router;
use super::asked::Lost;
use super::names::{Names, Number};
use super::server::{Member, ROOT};
use crate::wire::build::Record;
use crate::wire::make::{Made, at};
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, Op};
use crate::wire::xdr::get_u32;
use std::hash::BuildHasher;

/// Deepest folder.
pub const DEPTH_MAX: usize = 256;
/// Most entries of a folder.
pub const ENTRIES_MAX: usize = 1 << 20;
const SEED: u64 = 0x7765_6972;
/// File systems of groups are these numbers and the following ones.
const FSID: u64 = 0x7765_6972_0000;

/// Puts the number of an object and of its group over those of a server's attributes.
pub(super) fn virtualize(fattr3: &mut [u8], number: Number, group: usize) {
    fattr3[at::FILEID..at::FILEID + 8].copy_from_slice(&number.to_be_bytes());
    fattr3[at::FSID..at::FSID + 8].copy_from_slice(&(FSID + group as u64).to_be_bytes());
}

/// An entry.
#[derive(Clone, Debug)]
pub struct Item {
    /// Name.
    pub name: Vec<u8>,
    /// Number of the object.
    pub number: Number,
    /// False if the number may be that of something else.
    pub sure: bool,
    /// Place in the listing.
    pub cookie: u64,
    /// Attributes, if the server gave them.
    pub attributes: Option<[u8; ATTRIBUTES_BYTES]>,
    /// The server's handle.
    pub handle: Option<Handle>,
}

/// Reads a whole folder of a server: names, attributes and handles.
///
/// # Errors
/// [`Lost`].
pub fn read_folder(member: &Member, folder: &Handle) -> Result<Vec<Item>, Lost> {
    let (mut cookie, mut verifier) = (0u64, 0u64);
    let mut items = Vec::new();
    loop {
        let call =
            Record::nfs3(0, Op::Readdirplus, &ROOT).opaque(folder.as_bytes()).u64(cookie).u64(verifier);
        let answer = member.call(Op::Readdirplus, &call.u32(32 << 10).u32(64 << 10).finish())?;
        let (record, found) = (&answer.record, &answer.results);
        if found.status != 0 {
            return Err(Lost::Status(found.status));
        }
        let Some(end) = found.entries_end_at else { break };
        let first = found.entries.first().map_or(end, |entry| entry.start);
        verifier = u64::from(get_u32(record, first - 8)) << 32 | u64::from(get_u32(record, first - 4));
        for entry in &found.entries {
            let behind = entry.name.padded_end();
            cookie = u64::from(get_u32(record, behind)) << 32 | u64::from(get_u32(record, behind + 4));
            let name = entry.name.of(record);
            if name == b"." || name == b".." {
                continue;
            }
            items.push(Item {
                name: name.to_vec(),
                number: 0,
                sure: true,
                cookie: 0,
                attributes: entry.attributes.and_then(|at| record[at..at + ATTRIBUTES_BYTES].try_into().ok()),
                handle: entry.handle.and_then(|span| Handle::new(span.of(record))),
            });
        }
        if get_u32(record, end + 4) != 0 || found.entries.is_empty() {
            break;
        }
        if items.len() > ENTRIES_MAX {
            return Err(Lost::Io(std::io::Error::other(format!(
                "a folder has more than {ENTRIES_MAX} entries"
            ))));
        }
    }
    Ok(items)
}

impl Router {
    /// The listing of a folder.
    pub(super) fn listing(&self, group: usize, folder: Number) -> Result<Vec<Item>, Lost> {
        let since = self.name_changes.now();
        let read = |member: &Member| read_folder(member, &self.resolve(member, folder)?);
        let (member, mut items) = self.on_any(&self.groups[group], folder, read)?;
        let hidden = |name: &[u8]| self.redirects.get(&(folder, Box::from(name))).copied();
        items.retain(|item| hidden(&item.name).is_none());
        for item in &mut items {
            item.number = self.names.of(folder, &item.name)?;
            let quiet = || self.name_changes.quiet(folder, &item.name, since);
            let at = (folder, &*item.name);
            // What a change has overtaken may be something else by now: the client looks it up.
            item.sure = match item.handle {
                Some(handle) => self.names.learn_at(item.number, at, member, &handle, quiet),
                None => quiet(),
            };
            item.attributes = item.attributes.filter(|_| item.sure);
            if let Some(attributes) = &mut item.attributes {
                virtualize(attributes, item.number, group);
            }
        }
        for ((_, name), group) in self.redirects.iter().filter(|((at, _), _)| *at == folder) {
            let attributes = self.attributes(*group, Self::root(*group)).ok();
            items.push(Item {
                name: name.to_vec(),
                number: Self::root(*group),
                sure: true,
                cookie: 0,
                attributes,
                handle: None,
            });
        }
        let hash = foldhash::quality::FixedState::with_seed(SEED);
        items.iter_mut().for_each(|item| item.cookie = hash.hash_one(&item.name) >> 1 | 8);
        items.sort_by(|a, b| (a.cookie, &a.name).cmp(&(b.cookie, &b.name)));
        let mut last = 0;
        for item in &mut items {
            item.cookie = item.cookie.max(last + 1);
            last = item.cookie;
        }
        Ok(items)
    }

    /// Results of a READDIR or READDIRPLUS.
    pub(super) fn list(
        &self,
        (folder, above): (Number, Number),
        items: &[Item],
        cookie: u64,
        plus: bool,
        bytes_max: usize,
    ) -> Vec<u8> {
        let mut made = Made::ok().after(None).u64(0);
        let mut ends = true;
        let own =
            [(b".".as_slice(), folder, 1), (b"..".as_slice(), above, 2)].map(|(name, number, cookie)| Item {
                name: name.to_vec(),
                number,
                sure: true,
                cookie,
                attributes: None,
                handle: None,
            });
        let begin = items.partition_point(|item| item.cookie <= cookie);
        let own = own.iter().filter(|item| item.cookie > cookie);
        for (count, item) in own.chain(&items[begin..]).enumerate() {
            let bytes = 24 + item.name.len() + 4 + if plus { 8 + ATTRIBUTES_BYTES + 24 } else { 0 };
            if count > 0 && made.0.len() + bytes + 8 > bytes_max {
                ends = false;
                break;
            }
            made = made.u32(1).u64(item.number).opaque(&item.name).u64(item.cookie);
            if plus && item.sure {
                made =
                    made.after(item.attributes.as_ref()).u32(1).opaque(Names::handle(item.number).as_bytes());
            } else if plus {
                made = made.after(None).u32(0);
            }
        }
        made.u32(0).u32(u32::from(ends)).0
    }
}
