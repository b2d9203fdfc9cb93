//! Who may send encapsulated packets here, and what of the underlay no tenant reaches, as the controllers tell it.
//!
//! The domain's own switches come in buckets, other domains' places in one entry behind them. Until that entry is in force there is no
//! list, and everybody is taken as before: controllers of an older release tell none.

use super::Tables;
use super::apply::{failed, full, is_unicast};
use crate::flow::{Effects, Invalidate};
use crate::tables::Role;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use weir_model::entry::{MEMBER_BUCKETS, UNDERLAY_PREFIXES_MAX, UnderlaysEntry, member_bucket};
use weir_model::update::Refusal;

/// Most switches of a domain that one of them knows.
pub const SWITCHES_MAX: usize = 65_536;

/// See the module.
#[derive(Debug, Default)]
pub struct Switches {
    buckets: BTreeMap<u8, Vec<IpAddr>>,
    underlays: Option<UnderlaysEntry>,
}

fn within(list: &[IpNet], address: IpAddr) -> bool {
    list.iter().any(|net| net.contains(&address))
}

impl Switches {
    /// Whether the controllers told a list.
    pub fn is_told(&self) -> bool {
        self.underlays.is_some()
    }

    /// How many switches of the own domain are in the list.
    pub fn len(&self) -> usize {
        self.buckets.values().map(Vec::len).sum()
    }

    /// Whether it has none of them.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    fn is_own(&self, address: IpAddr) -> bool {
        let bucket = self.buckets.get(&member_bucket(address));
        bucket.is_some_and(|addresses| addresses.binary_search(&address).is_ok())
    }

    /// Whether what comes encapsulated from an address may be a switch's.
    pub fn takes(&self, sender: IpAddr) -> bool {
        let Some(underlays) = &self.underlays else { return true };
        self.is_own(sender) || within(&underlays.switches, sender)
    }

    /// Whether an address is a switch's or a controller's of any domain that is known.
    pub fn guards(&self, address: IpAddr) -> bool {
        let places = self.underlays.as_ref();
        self.is_own(address)
            || places
                .is_some_and(|places| within(&places.switches, address) || within(&places.guarded, address))
    }
}

impl Tables {
    /// Who may send encapsulated packets here.
    pub fn switches(&self) -> &Switches {
        &self.switches
    }

    pub(super) fn put_switches(&mut self, bucket: u8, addresses: &[IpAddr]) -> Result<Effects, Refusal> {
        if bucket >= MEMBER_BUCKETS || addresses.iter().any(|address| member_bucket(*address) != bucket) {
            return failed(format!("bucket {bucket} of the list of switches has an address of another one"));
        }
        if addresses.windows(2).any(|pair| pair[0] >= pair[1]) {
            return failed(format!("bucket {bucket} of the list of switches is not in ascending order"));
        }
        if let Some(wrong) = addresses.iter().find(|address| !is_unicast(**address)) {
            return failed(format!("the list of switches has {wrong}, which is no host's address"));
        }
        let old = self.switches.buckets.get(&bucket).map_or(&[][..], Vec::as_slice);
        if self.switches.len() - old.len() + addresses.len() > SWITCHES_MAX {
            return full(SWITCHES_MAX);
        }
        let gone: Vec<IpAddr> =
            old.iter().filter(|address| addresses.binary_search(address).is_err()).copied().collect();
        let come = addresses.iter().filter(|address| old.binary_search(address).is_err());
        let mut invalidate: Vec<Invalidate> =
            gone.iter().map(|switch| Invalidate::Sender(None, *switch)).collect();
        if self.role == Role::Gateway {
            // No tenant reaches a switch from outside.
            invalidate.extend(gone.iter().chain(come).map(|switch| Invalidate::Outside(*switch)));
        }
        match addresses {
            [] => self.switches.buckets.remove(&bucket),
            _ => self.switches.buckets.insert(bucket, addresses.to_vec()),
        };
        Ok(Effects { invalidate, ports: Vec::new() })
    }

    pub(super) fn put_underlays(&mut self, entry: Option<&UnderlaysEntry>) -> Result<Effects, Refusal> {
        let most = entry.map_or(0, |entry| entry.switches.len().max(entry.guarded.len()));
        if most > UNDERLAY_PREFIXES_MAX {
            return full(UNDERLAY_PREFIXES_MAX);
        }
        if self.switches.underlays.as_ref() == entry {
            return Ok(Effects::default());
        }
        self.switches.underlays = entry.cloned();
        // Prefixes of other domains, which seldom change: any flow may be from within one, or to it.
        Ok(Effects { invalidate: vec![Invalidate::All], ports: Vec::new() })
    }
}
