//! Tags of a network and the addresses that carry them.
//!
//! A tag gets a small number while somebody holds it: a rule, a port or a bucket of members. What
//! nobody holds is forgotten, so that names that come and go leave nothing behind (pain 13).

use hashbrown::{HashMap, HashSet};
use std::net::IpAddr;
use weir_model::Label;

/// Number of a tag in its network, as long as it is held.
pub type TagId = u32;

type Hasher = foldhash::quality::RandomState;

#[derive(Debug, Default)]
struct Tag {
    name: Option<Label>,
    holders: u32,
    addresses: HashSet<IpAddr, Hasher>,
}

/// The tags of one network.
#[derive(Debug, Default)]
pub struct Tags {
    tags: Vec<Tag>,
    free: Vec<TagId>,
    by_name: HashMap<Label, TagId, Hasher>,
    /// Addresses of each bucket, in ascending order.
    buckets: HashMap<(TagId, u8), Vec<IpAddr>, Hasher>,
    members: usize,
}

impl Tags {
    /// The number of a tag, held once more.
    pub fn hold(&mut self, name: &Label) -> TagId {
        let id = match self.by_name.get(name) {
            Some(&id) => id,
            None => {
                let id = self.free.pop().unwrap_or_else(|| {
                    self.tags.push(Tag::default());
                    (self.tags.len() - 1) as TagId
                });
                self.tags[id as usize].name = Some(name.clone());
                self.by_name.insert(name.clone(), id);
                id
            }
        };
        self.tags[id as usize].holders += 1;
        id
    }

    /// Holds a tag once less.
    pub fn release(&mut self, id: TagId) {
        let tag = &mut self.tags[id as usize];
        debug_assert!(tag.holders > 0);
        tag.holders -= 1;
        if tag.holders == 0 {
            debug_assert!(tag.addresses.is_empty());
            if let Some(name) = std::mem::take(tag).name {
                self.by_name.remove(&name);
            }
            self.free.push(id);
        }
    }

    /// The number of a tag that is held.
    pub fn find(&self, name: &Label) -> Option<TagId> {
        self.by_name.get(name).copied()
    }

    /// Whether an address carries the tag.
    pub fn has(&self, id: TagId, address: IpAddr) -> bool {
        self.tags[id as usize].addresses.contains(&address)
    }

    /// Makes `addresses` (ascending) the members of a bucket; returns those that came or went.
    pub fn set_bucket(&mut self, name: &Label, bucket: u8, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let id = self.hold(name);
        let old = self.buckets.remove(&(id, bucket)).unwrap_or_default();
        let held = !old.is_empty();
        let gone = old.iter().filter(|address| addresses.binary_search(address).is_err());
        let come = addresses.iter().filter(|address| old.binary_search(address).is_err());
        let set = &mut self.tags[id as usize].addresses;
        self.members = self.members - old.len() + addresses.len();
        let mut changed = Vec::new();
        for address in gone {
            set.remove(address);
            changed.push(*address);
        }
        for address in come {
            set.insert(*address);
            changed.push(*address);
        }
        if !addresses.is_empty() {
            self.buckets.insert((id, bucket), addresses.to_vec());
            self.hold(name);
        }
        if held {
            self.release(id);
        }
        self.release(id);
        changed
    }

    /// Addresses of all buckets together.
    pub fn members(&self) -> usize {
        self.members
    }

    /// Addresses of one bucket.
    pub fn bucket_len(&self, name: &Label, bucket: u8) -> usize {
        self.find(name).and_then(|id| self.buckets.get(&(id, bucket))).map_or(0, Vec::len)
    }

    /// How many tags are held.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether no tag is held.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}
