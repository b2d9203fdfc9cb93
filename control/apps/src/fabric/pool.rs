//! Free addresses of a subnet: bitmaps of 4096 addresses a chunk, and the lowest chunk that may have
//! room, so that the lowest free address is found without looking at the taken ones one by one.
//!
//! Invariants: every chunk below the hint is full; an empty chunk is not stored.

use super::tables::{POOLS, read, vni_name0};
use super::work::Work;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_base::codec::encode;
use weir_model::Label;
use weir_model::entry::Vni;
use weir_store::Rejection;

const CHUNK_BITS: u128 = 4096;
const CHUNK_BYTES: usize = 512;

/// The addresses of one family of a subnet.
pub(super) struct Pool {
    prefix: IpNet,
    /// What its keys begin with; also the key of the hint.
    key: Vec<u8>,
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

impl Pool {
    pub(super) fn new(vni: Vni, subnet: &Label, prefix: IpNet) -> Pool {
        let mut key = vni_name0(vni, subnet);
        key.push(if prefix.addr().is_ipv4() { 4 } else { 6 });
        Pool { prefix, key }
    }

    /// What an address that no endpoint may have is for.
    pub(super) fn reserved(&self, address: IpAddr) -> Option<&'static str> {
        match (self.offset(address), address.is_ipv4()) {
            (0, true) => Some("the network's own address"),
            (0, false) => Some("the routers' anycast address"),
            (1, _) => Some("the router's address"),
            (offset, true) if offset == self.last() => Some("the broadcast address"),
            _ => None,
        }
    }

    pub(super) fn take(&self, work: &mut Work<'_, '_, '_>, address: IpAddr) -> Result<(), Rejection> {
        let (key, byte, bit) = self.place(self.offset(address));
        let mut chunk = self.chunk(work, &key);
        assert!(chunk[byte] & bit == 0, "{address} is taken twice");
        chunk[byte] |= bit;
        work.view.put(POOLS, &key, chunk)
    }

    pub(super) fn free(&self, work: &mut Work<'_, '_, '_>, address: IpAddr) -> Result<(), Rejection> {
        let offset = self.offset(address);
        let (key, byte, bit) = self.place(offset);
        let mut chunk = self.chunk(work, &key);
        assert!(chunk[byte] & bit != 0, "{address} is freed twice");
        chunk[byte] &= !bit;
        if chunk.iter().all(|&byte| byte == 0) {
            work.view.delete(POOLS, &key);
        } else {
            work.view.put(POOLS, &key, chunk)?;
        }
        let hint = self.hint(work).min(offset / CHUNK_BITS);
        self.put_hint(work, hint)
    }

    /// The lowest free address, not yet taken; `None` when there is none.
    pub(super) fn lowest(&self, work: &mut Work<'_, '_, '_>) -> Result<Option<IpAddr>, Rejection> {
        let hint = self.hint(work);
        let mut at = hint;
        let found = loop {
            let base = at * CHUNK_BITS;
            if base > self.last() {
                break None;
            }
            let (key, ..) = self.place(base);
            let chunk = self.chunk(work, &key);
            if let Some(address) = self.lowest_in(base, &chunk) {
                break Some(address);
            }
            at += 1;
        };
        if at != hint {
            self.put_hint(work, at)?;
        }
        Ok(found)
    }

    fn lowest_in(&self, base: u128, chunk: &[u8]) -> Option<IpAddr> {
        let free = chunk.iter().enumerate().filter(|(_, byte)| **byte != 0xff);
        free.flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte & (1 << bit) == 0).map(move |bit| at * 8 + bit)
        })
        .map(|bit| base + bit as u128)
        .take_while(|offset| *offset <= self.last())
        .map(|offset| self.address(offset))
        .find(|address| self.reserved(*address).is_none())
    }

    fn chunk(&self, work: &Work<'_, '_, '_>, key: &[u8]) -> Vec<u8> {
        work.view.get(POOLS, key).map_or_else(|| vec![0; CHUNK_BYTES], |bytes| bytes.to_vec())
    }

    fn hint(&self, work: &Work<'_, '_, '_>) -> u128 {
        work.view.get(POOLS, &self.key).map_or(0, |bytes| read(POOLS, &bytes))
    }

    fn put_hint(&self, work: &mut Work<'_, '_, '_>, hint: u128) -> Result<(), Rejection> {
        if hint == 0 {
            work.view.delete(POOLS, &self.key);
            return Ok(());
        }
        work.view.put(POOLS, &self.key, encode(&hint))
    }

    /// Key of a chunk, byte in it, bit in that.
    fn place(&self, offset: u128) -> (Vec<u8>, usize, u8) {
        let mut key = self.key.clone();
        key.extend_from_slice(&(offset / CHUNK_BITS).to_be_bytes());
        let within = (offset % CHUNK_BITS) as usize;
        (key, within / 8, 1 << (within % 8))
    }

    fn offset(&self, address: IpAddr) -> u128 {
        assert!(self.prefix.contains(&address), "{address} is outside {}", self.prefix);
        number(address) - number(self.prefix.network())
    }

    fn address(&self, offset: u128) -> IpAddr {
        let number = number(self.prefix.network()) + offset;
        match self.prefix {
            IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from(number as u32)),
            IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from(number)),
        }
    }

    fn last(&self) -> u128 {
        let host_bits = self.prefix.max_prefix_len() - self.prefix.prefix_len();
        (1 << host_bits) - 1
    }
}
