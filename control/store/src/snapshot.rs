//! A store as bytes: what a snapshot on disk and a state transfer carry.
//!
//! Format 2: a postcard header (format, version, ordered time, a check of these and the digest, and how many of each part
//! follow), then namespaces whose quota is set, tables of clients with their options, procedures, clients each
//! with its outcomes, and the cells as (table, key, version, time of expiry, value); each part
//! ascending. It is compared on load.

use crate::digest::{Part, of_part};
use crate::module::Module;
use crate::{Cell, Outcome, Quota, Store, TableOptions};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use weir_base::codec::encode;
use weir_model::Version;

const FORMAT: u32 = 2;

#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    version: Version,
    now_ms: u64,
    /// Of the digest, the version and the time.
    check: u128,
    quotas: u64,
    tables: u64,
    procedures: u64,
    clients: u64,
    cells: u64,
}

/// Why bytes are no snapshot of a store.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Written by another release.
    #[error("snapshot format {0} is not known here: this release reads format {FORMAT}")]
    Format(u32),
    /// Cut or damaged.
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
}

fn damaged(error: impl std::fmt::Display) -> SnapshotError {
    SnapshotError::Damaged(error.to_string())
}

fn take<T: for<'a> Deserialize<'a>>(rest: &mut &[u8]) -> Result<T, SnapshotError> {
    let (value, after) = postcard::take_from_bytes::<T>(rest).map_err(damaged)?;
    *rest = after;
    Ok(value)
}

impl Store {
    fn check(&self) -> u128 {
        self.digest().wrapping_add(of_part(Part::Head, &encode(&(self.version, self.now_ms))))
    }

    /// The store as bytes.
    pub fn to_snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Only the sink fails, and a vector does not.
        let _ = self.write_snapshot(&mut |part| {
            bytes.extend_from_slice(part);
            Ok(())
        });
        bytes
    }

    /// Gives the store as bytes, part by part.
    ///
    /// # Errors
    /// What `sink` answers.
    pub fn write_snapshot(&self, sink: &mut dyn FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
        let quotas = || self.namespaces.iter().filter(|(_, namespace)| namespace.quota_set);
        let declared =
            || self.tables.iter().filter_map(|(name, table)| Some((name, table.options.as_ref()?)));
        let cells = self.tables.values().map(|table| table.cells.len() as u64).sum();
        sink(&encode(&Head {
            format: FORMAT,
            version: self.version,
            now_ms: self.now_ms,
            check: self.check(),
            quotas: quotas().count() as u64,
            tables: declared().count() as u64,
            procedures: self.procedures.len() as u64,
            clients: self.clients.by_id.len() as u64,
            cells,
        }))?;
        for (name, namespace) in quotas() {
            sink(&encode(&(&**name, namespace.quota)))?;
        }
        for (name, options) in declared() {
            sink(&encode(&(&**name, &**options)))?;
        }
        for (name, module) in &self.procedures {
            sink(&encode(&(&**name, &**module)))?;
        }
        for (id, client) in &self.clients.by_id {
            let count = client.outcomes.len() as u64;
            sink(&encode(&(id, client.principal, client.settled_below, client.last_ms, count)))?;
            for (sequence, kept) in &client.outcomes {
                sink(&encode(&(sequence, &*kept.outcome)))?;
            }
        }
        for (name, table) in &self.tables {
            for (key, stored) in &table.cells {
                let cell = &stored.cell;
                // Whoever reads it refuses anything else.
                debug_assert!(cell.version <= self.version, "a cell of {name} is from {}", cell.version);
                sink(&encode(&(&**name, &key[..], cell.version, cell.expires_ms, &cell.value[..])))?;
            }
        }
        Ok(())
    }

    /// The store that [`Store::to_snapshot`] wrote.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn from_snapshot(bytes: &[u8]) -> Result<Store, SnapshotError> {
        let mut rest = bytes;
        let format = postcard::take_from_bytes::<u32>(rest).map_err(damaged)?.0;
        if format != FORMAT {
            return Err(SnapshotError::Format(format));
        }
        let head: Head = take(&mut rest)?;
        let mut store = Store { version: head.version, now_ms: head.now_ms, ..Store::default() };
        for _ in 0..head.quotas {
            let (namespace, quota): (String, Quota) = take(&mut rest)?;
            store.set_quota(&namespace, quota);
        }
        for _ in 0..head.tables {
            let (name, options): (String, TableOptions) = take(&mut rest)?;
            if !name.contains('/') || store.tables.contains_key(name.as_str()) {
                return Err(damaged(format!("table '{name}' is out of place")));
            }
            store.add_table(&name.into(), options);
        }
        for _ in 0..head.procedures {
            let (name, module): (String, Module) = take(&mut rest)?;
            store.set_procedure(&name, Some(Arc::new(module)));
        }
        for _ in 0..head.clients {
            store.take_client(&mut rest)?;
        }
        for _ in 0..head.cells {
            store.take_cell(&mut rest)?;
        }
        if !rest.is_empty() {
            return Err(damaged(format!("{} bytes are left over", rest.len())));
        }
        if store.check() != head.check {
            return Err(damaged("the digest does not match"));
        }
        Ok(store)
    }

    fn take_client(&mut self, rest: &mut &[u8]) -> Result<(), SnapshotError> {
        let (id, principal, settled_below, last_ms, count): (u64, u64, u64, u64, u64) = take(rest)?;
        let mut outcomes: Vec<(u64, Outcome)> = Vec::new();
        for _ in 0..count {
            outcomes.push(take(rest)?);
        }
        if self.clients.by_id.contains_key(&id) {
            return Err(damaged(format!("client {id} is there twice")));
        }
        self.clients.restore(id, principal, settled_below, last_ms, outcomes);
        Ok(())
    }

    fn take_cell(&mut self, rest: &mut &[u8]) -> Result<(), SnapshotError> {
        let (table, key, version, expires_ms, value): (&str, &[u8], Version, u64, &[u8]);
        ((table, key, version, expires_ms, value), *rest) =
            postcard::take_from_bytes(rest).map_err(damaged)?;
        if version > self.version || self.get(table, key).is_some() {
            return Err(damaged(format!("a cell of table '{table}' is out of place")));
        }
        let name = match self.tables.get_key_value(table) {
            Some((name, _)) => name.clone(),
            None => table.into(),
        };
        self.restore(&name, key.into(), Cell { version, expires_ms, value: value.into() });
        Ok(())
    }
}
