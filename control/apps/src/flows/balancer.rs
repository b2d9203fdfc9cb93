//! The round-robin load balancer (Botelho §VI-C): virtual addresses, each with a pool of members that
//! take turns.
//!
//! A turn is taken once: whoever takes it moves the pool's place on, conditionally or in a procedure.
//! The fabric decides by the same code for virtual addresses of Weir's own networks (decision 0024): [`turn_of`] and
//! [`take`] on its own tables, passing over members that cannot serve.
//!
//! In [`Form::Cached`] a virtual address may be read a little old; the procedure that takes the turn
//! checks that it still has this pool, and the app begins anew when not (§VII-E.2).

use super::{
    ATTEMPTS_MAX, Beside, Data, Error, Form, Result, TableOptions, call, cell, columns_table, follow, get,
    index_table, picked, put, read_columns, read_whole, some, value, write,
};
use std::net::Ipv4Addr;
use std::sync::Arc;
use weir_model::MacAddr;
use weir_store::columns::column;
use weir_store::{Aborted, Action, Call, Condition, Operation, Procedure, Registry, Select, Write};

const INDEX: &str = "balancer/addresses";
const VIPS: &str = "balancer/vips";
const POOLS: &str = "balancer/pools";
const MEMBERS: &str = "balancer/members";
/// Most members of a pool.
pub const MEMBERS_MAX: usize = 1_024;

/// A virtual address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vip {
    /// Number.
    pub id: u64,
    /// For people.
    pub name: String,
    /// Where clients send to.
    pub address: Ipv4Addr,
    /// What answers to ARP.
    pub mac: MacAddr,
    /// Transport port.
    pub port: u16,
    /// Number of its pool.
    pub pool: u64,
}

/// A server of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number.
    pub id: u64,
    /// For people.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Its transport port.
    pub port: u16,
}

/// Who serves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Its transport port.
    pub port: u16,
}

impl Choice {
    fn reply(&self) -> Vec<u8> {
        [&self.address.octets()[..], &self.mac.0, &self.port.to_be_bytes()].concat()
    }
}

/// Its tables.
pub fn tables() -> Vec<(String, TableOptions)> {
    vec![
        (VIPS.to_owned(), columns_table(&[("pool", POOLS)])),
        (POOLS.to_owned(), columns_table(&[])),
        (MEMBERS.to_owned(), columns_table(&[])),
        (INDEX.to_owned(), index_table(VIPS)),
    ]
}

/// Its procedure.
pub fn procedures(registry: Registry) -> Registry {
    registry.with("choose", Arc::new(Choose)).with("next-member", Arc::new(NextMember))
}

fn vip_value(vip: &Vip) -> Vec<u8> {
    let (address, port, pool) = (vip.address.octets(), vip.port.to_be_bytes(), vip.pool.to_be_bytes());
    value(&[
        ("name", vip.name.as_bytes()),
        ("address", &address),
        ("mac", &vip.mac.0),
        ("port", &port),
        ("pool", &pool),
    ])
}

fn member_value(member: &Member) -> Vec<u8> {
    let (address, port) = (member.address.octets(), member.port.to_be_bytes());
    value(&[("name", member.name.as_bytes()), ("address", &address), ("mac", &member.mac.0), ("port", &port)])
}

/// The entry of a pool: the numbers of its members, eight bytes each, and the place of the one whose turn it is.
pub(crate) fn pool_value(name: &[u8], members: &[u8], turn: u32) -> Vec<u8> {
    value(&[("name", name), ("method", b"round-robin"), ("members", members), ("turn", &turn.to_be_bytes())])
}

/// Writes a virtual address with its pool, anew or over what was there; the pool's turn begins at its first
/// member.
///
/// # Errors
/// [`Error`]; also when there are no members, or more than [`MEMBERS_MAX`].
pub async fn configure<D: Data>(data: &D, vip: &Vip, members: &[Member]) -> Result<(), D::Error> {
    if members.is_empty() || members.len() > MEMBERS_MAX {
        let problem = format!("{} members, 1 to {MEMBERS_MAX} are allowed", members.len());
        return Err(Error::entry(POOLS, "pool", problem));
    }
    let ids: Vec<u8> = members.iter().flat_map(|member| member.id.to_be_bytes()).collect();
    let always = Condition::Always;
    for member in members {
        write(data, put(MEMBERS, &member.id.to_be_bytes(), always.clone(), member_value(member))).await?;
    }
    let pool = pool_value(vip.name.as_bytes(), &ids, 0);
    super::transact(
        data,
        vec![
            put(POOLS, &vip.pool.to_be_bytes(), always.clone(), pool),
            put(VIPS, &vip.id.to_be_bytes(), always.clone(), vip_value(vip)),
            put(INDEX, &vip.address.octets(), always, vip.id.to_be_bytes().to_vec()),
        ],
    )
    .await?;
    Ok(())
}

/// The virtual address's entry, whole.
async fn vip_whole<D: Data>(data: &D, form: Form, address: Ipv4Addr) -> Result<Option<Vec<u8>>, D::Error> {
    if form >= Form::References {
        let found = read_whole(data, follow(INDEX, &address.octets(), Select::Whole), VIPS).await?;
        return Ok(found.map(|found| found.value));
    }
    let Some(id) = read_whole(data, get(INDEX, &address.octets(), Select::Whole), INDEX).await? else {
        return Ok(None);
    };
    Ok(read_whole(data, get(VIPS, &id.value, Select::Whole), VIPS).await?.map(|found| found.value))
}

/// One column of the virtual address's entry.
async fn vip_column<D: Data, const N: usize>(
    data: &D,
    form: Form,
    staleness_ms: u64,
    address: Ipv4Addr,
    name: &str,
) -> Result<Option<[u8; N]>, D::Error> {
    let found = if form == Form::Cached {
        let id = data.cached(INDEX, &address.octets(), staleness_ms).await.map_err(Error::Data)?;
        let Some(id) = id else { return Ok(None) };
        let value = data.cached(VIPS, &id, staleness_ms).await.map_err(Error::Data)?;
        value.map(|value| cell(&value, name))
    } else if form >= Form::Columns {
        let columns = read_columns(data, follow(INDEX, &address.octets(), some(&[name]))).await?;
        columns.map(|columns| picked(&columns, name))
    } else {
        vip_whole(data, form, address).await?.map(|value| cell(&value, name))
    };
    match found {
        None => Ok(None),
        Some(Some(bytes)) => Ok(Some(bytes)),
        Some(None) => Err(Error::entry(VIPS, "virtual address", format!("column '{name}' is missing"))),
    }
}

/// Who answers an ARP request for an address; `None`: it is no virtual one.
///
/// # Errors
/// [`Error`].
pub async fn resolve<D: Data>(
    data: &D,
    form: Form,
    staleness_ms: u64,
    address: Ipv4Addr,
) -> Result<Option<MacAddr>, D::Error> {
    Ok(vip_column(data, form, staleness_ms, address, "mac").await?.map(MacAddr))
}

/// Who serves the next connection to an address; `None`: it is no virtual one.
///
/// # Errors
/// [`Error`].
pub async fn choose<D: Data>(
    data: &D,
    form: Form,
    staleness_ms: u64,
    address: Ipv4Addr,
) -> Result<Option<Choice>, D::Error> {
    if form == Form::Procedures {
        // One request: the procedure finds the pool and takes the turn.
        let reply = call(data, "balancer/choose", address.octets().to_vec()).await?;
        return if reply.is_empty() { Ok(None) } else { choice_of_reply(&reply).map(Some) };
    }
    let mut staleness_ms = staleness_ms;
    for _ in 0..ATTEMPTS_MAX {
        let Some(pool) = vip_column::<D, 8>(data, form, staleness_ms, address, "pool").await? else {
            return Ok(None);
        };
        let choice = if form == Form::Cached {
            let arguments = [&address.octets()[..], &pool].concat();
            let reply = call(data, "balancer/next-member", arguments).await?;
            if reply.is_empty() { None } else { Some(choice_of_reply(&reply)?) }
        } else {
            take_turn(data, form, &pool).await?
        };
        if choice.is_some() {
            return Ok(choice);
        }
        staleness_ms = 0;
    }
    Err(Error::Contended { table: POOLS.to_owned(), attempts: ATTEMPTS_MAX })
}

fn choice_of_reply<E: std::error::Error>(reply: &[u8]) -> Result<Choice, E> {
    let wrong = || Error::entry(MEMBERS, "choice", format!("{} bytes", reply.len()));
    let reply: [u8; 12] = reply.try_into().map_err(|_| wrong())?;
    let [a, b, c, d, m @ .., p, q] = reply;
    Ok(Choice { address: Ipv4Addr::new(a, b, c, d), mac: MacAddr(m), port: u16::from_be_bytes([p, q]) })
}

/// Moves the pool on and gives who it was at; `None`: others moved it meanwhile.
async fn take_turn<D: Data>(data: &D, form: Form, pool: &[u8; 8]) -> Result<Option<Choice>, D::Error> {
    let Some(found) = read_whole(data, get(POOLS, pool, Select::Whole), POOLS).await? else {
        return Ok(None);
    };
    let (member, next) =
        turn_of(&found.value, 0).ok_or_else(|| Error::entry(POOLS, "pool", "members or turn are missing"))?;
    let condition = match form {
        Form::Plain | Form::References => Condition::Value(found.value.clone()),
        _ => Condition::Version(found.version),
    };
    let operation = if form >= Form::Columns {
        let set = vec![("turn".to_owned(), next.to_be_bytes().to_vec())];
        let action = Action::Columns { set, remove: Vec::new() };
        Operation::Write(Write { table: POOLS.to_owned(), key: pool.to_vec(), condition, action })
    } else {
        let part = |name| column(&found.value, name).unwrap_or_default();
        put(POOLS, pool, condition, pool_value(part("name"), part("members"), next))
    };
    if !write(data, operation).await? {
        return Ok(None);
    }
    let gone = || Error::entry(MEMBERS, "member", "a pool names one that is not there");
    let choice = if form >= Form::Columns {
        let columns = read_columns(data, get(MEMBERS, &member, some(&["address", "mac", "port"]))).await?;
        let columns = columns.ok_or_else(gone)?;
        choice_of(|name| columns.iter().find(|(column, _)| column == name).map(|(_, bytes)| &bytes[..]))
    } else {
        let found =
            read_whole(data, get(MEMBERS, &member, Select::Whole), MEMBERS).await?.ok_or_else(gone)?;
        choice_of(|name| column(&found.value, name))
    };
    choice.map(Some).ok_or_else(|| Error::entry(MEMBERS, "member", "a column is missing"))
}

/// The member whose turn it is when as many are passed over, and the turn after it; none when all are.
pub(crate) fn turn_of(pool: &[u8], passed: usize) -> Option<([u8; 8], u32)> {
    let (members, _) = column(pool, "members")?.as_chunks::<8>();
    if passed >= members.len() {
        return None;
    }
    let turn = u32::from_be_bytes(cell(pool, "turn")?) as usize;
    let first = if turn < members.len() { turn } else { 0 };
    let at = (first + passed) % members.len();
    Some((members[at], u32::try_from((at + 1) % members.len()).ok()?))
}

/// Takes a turn: the pool goes on behind it. Gives the member's entry.
pub(crate) fn take(
    tables: &mut impl Beside,
    pool: &[u8],
    (member, next): ([u8; 8], u32),
) -> std::result::Result<Arc<[u8]>, Aborted> {
    tables.set_column("pools", pool, "turn", &next.to_be_bytes())?;
    tables.get("members", &member)?.ok_or_else(|| Aborted::new("the pool's member is not there"))
}

fn choice_of<'a>(column: impl Fn(&str) -> Option<&'a [u8]>) -> Option<Choice> {
    let address: [u8; 4] = super::fixed(column("address"))?;
    let port: [u8; 2] = super::fixed(column("port"))?;
    let mac = MacAddr(super::fixed(column("mac"))?);
    Some(Choice { address: address.into(), mac, port: u16::from_be_bytes(port) })
}

/// Takes the turn of an address: the argument is the virtual address. Replies with address, Ethernet address and port of the
/// member; nothing when it is no virtual address.
struct Choose;

impl Procedure for Choose {
    fn call(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> std::result::Result<Vec<u8>, Aborted> {
        if arguments.len() != 4 {
            return Err(Aborted::new("the argument is an address (4)"));
        }
        let Some(vip) = Beside::follow(call, "addresses", "vips", arguments)? else { return Ok(Vec::new()) };
        let pool = column(&vip, "pool").ok_or_else(|| Aborted::new("the virtual address has no pool"))?;
        let choice = turn(call, pool)?.ok_or_else(|| Aborted::new("the pool is not there"))?;
        Ok(choice.reply())
    }
}

/// Takes a turn: arguments are the virtual address and the pool that the caller knows it by. Replies with
/// address, Ethernet address and port of the member; nothing when the address has another pool.
struct NextMember;

impl Procedure for NextMember {
    fn call(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> std::result::Result<Vec<u8>, Aborted> {
        let Some((address, pool)) = arguments.split_at_checked(4).filter(|(_, pool)| pool.len() == 8) else {
            return Err(Aborted::new("arguments are an address (4) and the number of a pool (8)"));
        };
        let Some(choice) = next_member(call, address, pool)? else { return Ok(Vec::new()) };
        Ok(choice.reply())
    }
}

/// Takes the turn of a virtual address's pool; `None` when the address has another pool, or none.
fn next_member(
    tables: &mut impl Beside,
    address: &[u8],
    pool: &[u8],
) -> std::result::Result<Option<Choice>, Aborted> {
    let vip = tables.follow("addresses", "vips", address)?;
    if vip.as_deref().and_then(|vip| column(vip, "pool")) != Some(pool) {
        return Ok(None);
    }
    turn(tables, pool)
}

/// Takes a pool's turn; `None` when it is not there.
fn turn(tables: &mut impl Beside, pool: &[u8]) -> std::result::Result<Option<Choice>, Aborted> {
    let Some(found) = tables.get("pools", pool)? else { return Ok(None) };
    let turn = turn_of(&found, 0).ok_or_else(|| Aborted::new("the pool has no members or no turn"))?;
    let entry = take(tables, pool, turn)?;
    let choice = choice_of(|name| column(&entry, name));
    choice.map(Some).ok_or_else(|| Aborted::new("the member has no address, mac or port"))
}
