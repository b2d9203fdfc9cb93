//! What a module may ask of the store. Names, keys and values lie in its memory as (address, bytes).
//!
//! | function | gives |
//! |---|---|
//! | `get(table, key) -> i64` | the value as address and bytes (high and low half), where `alloc` said; -1: not there |
//! | `version(table, key) -> i64` | its version; 0: not there |
//! | `put(table, key, value)` | |
//! | `remove(table, key) -> i32` | 1 when it was there |
//! | `column(table, key, name) -> i64` | as `get` |
//! | `set_column(table, key, name, value)` | |
//! | `increment(table, key, name, by: i64) -> i64` | what the counter was before; an empty name means the whole value |
//! | `follow(table, key, name) -> i64` | as `get`, of the entry that this one refers to |
//! | `next(table, key) -> i64` | the first key behind `key`, as `get` |
//! | `now_ms() -> i64` | ordered time |
//! | `fail(text)` | ends the call; nothing of it is done |
//!
//! Whatever the store refuses ends the call as well. Each costs fuel: [`FUEL_PER_CALL`] and one for each byte moved.

use wasmi::{Caller, Error, Linker, Memory, StoreLimits, TypedFunc};
use weir_store::{Aborted, Call, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// What asking the store costs at least.
pub const FUEL_PER_CALL: u64 = 200;
/// Longest name of a table or column, or reason to fail, bytes.
const TEXT_BYTES_MAX: usize = 256;

/// What can be imported.
pub const NAMES: [&str; 11] = [
    "get",
    "version",
    "put",
    "remove",
    "column",
    "set_column",
    "increment",
    "follow",
    "next",
    "now_ms",
    "fail",
];

/// A call that a module makes.
pub struct Session<'c, 'v, 'a> {
    call: Option<&'c mut Call<'v, 'a>>,
    pub limits: StoreLimits,
    pub memory: Option<Memory>,
    pub alloc: Option<TypedFunc<i32, i32>>,
}

impl<'c, 'v, 'a> Session<'c, 'v, 'a> {
    pub fn new(call: Option<&'c mut Call<'v, 'a>>, limits: StoreLimits) -> Session<'c, 'v, 'a> {
        Session { call, limits, memory: None, alloc: None }
    }

    /// Fuel that the entry has left, where there is one.
    pub fn fuel_left(&self) -> u64 {
        self.call.as_ref().map_or(u64::MAX, |call| call.fuel_left())
    }
}

type Host<'x, 'c, 'v, 'a> = Caller<'x, Session<'c, 'v, 'a>>;

pub fn aborted(aborted: Aborted) -> Error {
    Error::new(aborted.reason)
}

fn call<'h, 'v, 'a>(host: &'h mut Host<'_, '_, 'v, 'a>) -> Result<&'h mut Call<'v, 'a>, Error> {
    let call = host.data_mut().call.as_deref_mut();
    call.ok_or_else(|| Error::new("the store is not there yet: a module must not ask for it at its start"))
}

fn spend(host: &mut Host<'_, '_, '_, '_>, fuel: u64) -> Result<(), Error> {
    match host.get_fuel()?.checked_sub(fuel) {
        Some(left) => host.set_fuel(left),
        None => {
            host.set_fuel(0)?;
            Err(Error::new("all fuel consumed by WebAssembly"))
        }
    }
}

fn read(host: &mut Host<'_, '_, '_, '_>, at: i32, bytes: i32, limit: usize) -> Result<Vec<u8>, Error> {
    let length = bytes as u32 as usize;
    if length > limit {
        return Err(Error::new(format!("{length} bytes are over the limit of {limit}")));
    }
    spend(host, length as u64)?;
    let memory = host.data().memory.ok_or_else(|| Error::new("no memory"))?;
    let mut value = vec![0; length];
    memory.read(&*host, at as u32 as usize, &mut value)?;
    Ok(value)
}

fn text(host: &mut Host<'_, '_, '_, '_>, at: i32, bytes: i32) -> Result<String, Error> {
    String::from_utf8(read(host, at, bytes, TEXT_BYTES_MAX)?).map_err(|_| Error::new("a name is no text"))
}

/// Table and key.
fn place(
    host: &mut Host<'_, '_, '_, '_>,
    table: (i32, i32),
    key: (i32, i32),
) -> Result<(String, Vec<u8>), Error> {
    spend(host, FUEL_PER_CALL)?;
    Ok((text(host, table.0, table.1)?, read(host, key.0, key.1, KEY_BYTES_MAX)?))
}

/// Gives bytes to the module, or says that there are none.
fn give(host: &mut Host<'_, '_, '_, '_>, value: Option<&[u8]>) -> Result<i64, Error> {
    let Some(value) = value else { return Ok(-1) };
    spend(host, value.len() as u64)?;
    let (Some(memory), Some(alloc)) = (host.data().memory, host.data().alloc) else {
        return Err(Error::new("no memory"));
    };
    call(host)?.enter().map_err(aborted)?;
    let placed = alloc.call(&mut *host, value.len() as i32);
    call(host)?.leave();
    let at = placed?;
    memory.write(&mut *host, at as u32 as usize, value)?;
    Ok((i64::from(at) << 32) | value.len() as i64)
}

type P = i32;

/// Makes the functions known.
pub fn link(linker: &mut Linker<Session<'_, '_, '_>>) -> Result<(), Error> {
    let module = super::IMPORTS;
    linker.func_wrap(module, "get", |mut host: Host<'_, '_, '_, '_>, t: P, tn: P, k: P, kn: P| {
        let (table, key) = place(&mut host, (t, tn), (k, kn))?;
        let found = call(&mut host)?.get(&table, &key).map_err(aborted)?;
        give(&mut host, found.as_ref().map(|entry| &entry.value[..]))
    })?;
    linker.func_wrap(module, "version", |mut host: Host<'_, '_, '_, '_>, t: P, tn: P, k: P, kn: P| {
        let (table, key) = place(&mut host, (t, tn), (k, kn))?;
        let found = call(&mut host)?.get(&table, &key).map_err(aborted)?;
        Ok::<i64, Error>(found.map_or(0, |entry| entry.version.0 as i64))
    })?;
    linker.func_wrap(
        module,
        "put",
        |mut host: Host<'_, '_, '_, '_>, t: P, tn: P, k: P, kn: P, v: P, vn: P| {
            let (table, key) = place(&mut host, (t, tn), (k, kn))?;
            let value = read(&mut host, v, vn, VALUE_BYTES_MAX)?;
            call(&mut host)?.put(&table, &key, &value).map_err(aborted)
        },
    )?;
    linker.func_wrap(module, "remove", |mut host: Host<'_, '_, '_, '_>, t: P, tn: P, k: P, kn: P| {
        let (table, key) = place(&mut host, (t, tn), (k, kn))?;
        call(&mut host)?.remove(&table, &key).map(i32::from).map_err(aborted)
    })?;
    linker.func_wrap(
        module,
        "column",
        |mut host: Host<'_, '_, '_, '_>, t: P, tn: P, k: P, kn: P, n: P, nn: P| {
            let (table, key) = place(&mut host, (t, tn), (k, kn))?;
            let name = text(&mut host, n, nn)?;
            let found = call(&mut host)?.column(&table, &key, &name).map_err(aborted)?;
            give(&mut host, found.as_deref())
        },
    )?;
    linker.func_wrap(
        module,
        "set_column",
        |mut host: Host<'_, '_, '_, '_>, t: P, tn: P, k: P, kn: P, n: P, nn: P, v: P, vn: P| {
            let (table, key) = place(&mut host, (t, tn), (k, kn))?;
            let name = text(&mut host, n, nn)?;
            let value = read(&mut host, v, vn, VALUE_BYTES_MAX)?;
            call(&mut host)?.set_column(&table, &key, &name, &value).map_err(aborted)
        },
    )?;
    linker.func_wrap(
        module,
        "increment",
        |mut host: Host<'_, '_, '_, '_>, t: P, tn: P, k: P, kn: P, n: P, nn: P, by: i64| {
            let (table, key) = place(&mut host, (t, tn), (k, kn))?;
            let name = text(&mut host, n, nn)?;
            call(&mut host)?.increment(&table, &key, &name, by).map_err(aborted)
        },
    )?;
    linker.func_wrap(
        module,
        "follow",
        |mut host: Host<'_, '_, '_, '_>, t: P, tn: P, k: P, kn: P, n: P, nn: P| {
            let (table, key) = place(&mut host, (t, tn), (k, kn))?;
            let name = text(&mut host, n, nn)?;
            let found = call(&mut host)?.follow(&table, &key, &name).map_err(aborted)?;
            give(&mut host, found.as_ref().map(|entry| &entry.value[..]))
        },
    )?;
    linker.func_wrap(module, "next", |mut host: Host<'_, '_, '_, '_>, t: P, tn: P, k: P, kn: P| {
        let (table, mut key) = place(&mut host, (t, tn), (k, kn))?;
        // The least key behind it.
        key.push(0);
        let found = call(&mut host)?.first_from(&table, &key).map_err(aborted)?;
        give(&mut host, found.as_ref().map(|entry| &entry.key[..]))
    })?;
    linker.func_wrap(module, "now_ms", |mut host: Host<'_, '_, '_, '_>| {
        spend(&mut host, FUEL_PER_CALL)?;
        Ok::<i64, Error>(call(&mut host)?.now_ms() as i64)
    })?;
    linker.func_wrap(module, "fail", |mut host: Host<'_, '_, '_, '_>, at: P, bytes: P| {
        let reason = text(&mut host, at, bytes)?;
        Err::<(), Error>(Error::new(format!("it failed: {reason}")))
    })?;
    Ok(())
}
