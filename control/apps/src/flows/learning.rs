//! The learning switch (Botelho §VI-B): which port of a switch leads to an address.
//!
//! Each switch has one controller at a time, so a cached port is as the store has it (§VII-E.1): who
//! takes a switch over begins with an empty cache.

use super::{
    Beside, Data, Error, Form, PacketIn, Result, TableOptions, ask_or_call, fixed, get, put, read_whole,
    write,
};
use std::sync::Arc;
use weir_model::MacAddr;
use weir_store::{Aborted, Call, Condition, Procedure, Registry, Select};

const TABLE: &str = "learning/ports";

/// What a switch does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// To every port but the one that it came from.
    Flood,
    /// To one port.
    Port(u32),
}

/// Its table.
pub fn tables() -> Vec<(String, TableOptions)> {
    vec![(TABLE.to_owned(), TableOptions::default())]
}

/// Its procedure.
pub fn procedures(registry: Registry) -> Registry {
    registry.with("learn", Arc::new(Learn))
}

/// Key of an address at a switch.
fn key(switch: u64, address: MacAddr) -> [u8; 14] {
    let mut key = [0; 14];
    key[..8].copy_from_slice(&switch.to_be_bytes());
    key[8..].copy_from_slice(&address.0);
    key
}

fn port<E: std::error::Error>(value: Option<&[u8]>) -> Result<Forward, E> {
    let Some(value) = value else { return Ok(Forward::Flood) };
    let port: [u8; 4] =
        fixed(Some(value)).ok_or_else(|| Error::entry(TABLE, "port", format!("{} bytes", value.len())))?;
    Ok(Forward::Port(u32::from_be_bytes(port)))
}

/// Learns where a packet comes from, and says where it goes.
///
/// # Errors
/// [`Error`].
pub async fn forward<D: Data>(
    data: &D,
    form: Form,
    staleness_ms: u64,
    packet: &PacketIn,
) -> Result<Forward, D::Error> {
    let source = key(packet.switch, packet.source);
    let here = packet.port.to_be_bytes().to_vec();
    if form == Form::Cached {
        let known = data.cached(TABLE, &source, staleness_ms).await.map_err(Error::Data)?;
        if known.as_deref() != Some(&here[..]) {
            data.put(TABLE, &source, here).await.map_err(Error::Data)?;
        }
        if !packet.target.is_unicast() {
            return Ok(Forward::Flood);
        }
        let target = key(packet.switch, packet.target);
        return port(data.cached(TABLE, &target, staleness_ms).await.map_err(Error::Data)?.as_deref());
    }
    if !packet.target.is_unicast() {
        write(data, put(TABLE, &source, Condition::Always, here)).await?;
        return Ok(Forward::Flood);
    }
    let target = key(packet.switch, packet.target);
    if form >= Form::Procedures {
        let arguments = [&source[..], &here, &packet.target.0].concat();
        // Nearly all packets come from where their source was before: nothing to write.
        let reply = ask_or_call(data, "learning/learn", arguments).await?;
        return port(Some(&reply[..]).filter(|reply| !reply.is_empty()));
    }
    write(data, put(TABLE, &source, Condition::Always, here)).await?;
    let found = read_whole(data, get(TABLE, &target, Select::Whole), TABLE).await?;
    port(found.as_ref().map(|found| &found.value[..]))
}

/// Learns that an address is behind a port of a switch, and says which port leads to another one; `None`: it was
/// never heard. The procedure of [`Form::Procedures`].
///
/// # Errors
/// What the tables refuse.
pub fn learn(
    tables: &mut impl Beside,
    switch: u64,
    (source, port): (MacAddr, u32),
    target: MacAddr,
) -> std::result::Result<Option<u32>, Aborted> {
    let reply = learn_keys(tables, &key(switch, source), &port.to_be_bytes(), &key(switch, target))?;
    Ok(fixed(Some(&reply)).map(u32::from_be_bytes))
}

/// Which port of a switch leads to an address.
///
/// # Errors
/// What the tables refuse.
pub fn known(
    tables: &mut impl Beside,
    switch: u64,
    address: MacAddr,
) -> std::result::Result<Option<u32>, Aborted> {
    let found = tables.get("ports", &key(switch, address))?;
    Ok(fixed(found.as_deref()).map(u32::from_be_bytes))
}

/// Forgets where an address is.
///
/// # Errors
/// What the tables refuse.
pub fn forget(tables: &mut impl Beside, switch: u64, address: MacAddr) -> std::result::Result<(), Aborted> {
    tables.remove("ports", &key(switch, address))
}

fn learn_keys(
    tables: &mut impl Beside,
    source: &[u8],
    port: &[u8],
    target: &[u8],
) -> std::result::Result<Vec<u8>, Aborted> {
    if tables.get("ports", source)?.is_none_or(|known| &known[..] != port) {
        tables.put("ports", source, port)?;
    }
    Ok(tables.get("ports", target)?.map(|value| value.to_vec()).unwrap_or_default())
}

/// Both in one: arguments are the source's key, its port and the target's address.
struct Learn;

impl Procedure for Learn {
    fn call(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> std::result::Result<Vec<u8>, Aborted> {
        let wrong =
            || Aborted::new("arguments are a switch (8), an address (6), a port (4) and an address (6)");
        let (source, rest) = arguments.split_at_checked(14).ok_or_else(wrong)?;
        let (port, target) =
            rest.split_at_checked(4).filter(|(_, target)| target.len() == 6).ok_or_else(wrong)?;
        learn_keys(call, source, port, &[&source[..8], target].concat())
    }
}
