//! Apps of packets (Botelho et al. §VI): a learning switch, a round-robin load balancer and a device
//! manager. Any number of controllers run them at once; all they know is in the data store, so that
//! any controller may get any packet.
//!
//! Each app comes in the forms of the paper's Table I and Table II ([`Form`]): the same decisions with
//! fewer and smaller messages to the store.
//!
//! Invariants
//! - The form makes no difference to decisions: the same packets, one after the other, lead to the
//!   same forwards, choices and devices in every form (property test).
//! - No update is lost, however controllers' requests interleave: a pool's turn is taken once, a device
//!   is made once and its addresses are all in the index.
//! - Retries are bounded by [`ATTEMPTS_MAX`]; what gives up says so.
//!
//! Departures: keys and entities are encoded as columns in every form, so that one table serves all of
//! them; the paper's were Java objects, so sizes differ (`weir bench flows` prints both). A device that
//! two controllers find at once is made once, and with its index entries or not at all: the paper's plain
//! workload writes these tables one after the other, two of them without a condition. [`Form::Procedures`] asks once
//! a packet: one procedure does what the paper's balancer and device manager ask two requests for.
//!
//! What the procedures decide is written once, over [`Beside`]: the store runs it for clients as a procedure, and the
//! fabric runs the same code on packets of Weir's own switches ([`crate::fabric`], decision 0019).
//!
//! No socket, thread or clock: requests go through [`Data`], time comes with a packet.

pub mod balancer;
pub mod beside;
pub mod devices;
pub mod learning;

pub use beside::Beside;
use std::future::Future;
use std::net::Ipv4Addr;
use weir_model::{MacAddr, Version};
use weir_store::columns::{Columns, column};
use weir_store::{
    Action, Answer, Condition, Operation, Outcome, Query, Refusal, Registry, Select, Selected, Step,
    TableOptions, Write,
};

/// Most tries of something that others change meanwhile.
pub const ATTEMPTS_MAX: u32 = 64;

/// How an app uses the store. Each form has what those before it have; [`Form::Cached`] and
/// [`Form::Procedures`] are two ways to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Reads and whole-value replaces.
    Plain,
    /// References are followed inside the store (row B5).
    References,
    /// Replaces name a version instead of the old value (row B6).
    Versions,
    /// Only the columns that matter are read and written (row B7).
    Columns,
    /// All that a packet asks of the store is one procedure beside the tables (row B8).
    Procedures,
    /// What may be a little old is read from a cache, and a procedure writes if that still holds (row B9).
    Cached,
}

impl Form {
    /// All.
    pub const ALL: [Form; 6] =
        [Form::Plain, Form::References, Form::Versions, Form::Columns, Form::Procedures, Form::Cached];

    /// The paper's word for it.
    pub fn word(self) -> &'static str {
        match self {
            Form::Plain => "init",
            Form::References => "cref",
            Form::Versions => "vers",
            Form::Columns => "cols",
            Form::Procedures => "micro",
            Form::Cached => "cache",
        }
    }
}

/// The store, as an app sees it.
pub trait Data: Sync {
    /// What goes wrong on the way.
    type Error: std::error::Error + Send;

    /// Reads what is there now.
    fn read(&self, query: Query) -> impl Future<Output = std::result::Result<Answer, Self::Error>> + Send;

    /// Has an operation done, once.
    fn submit(
        &self,
        operation: Operation,
    ) -> impl Future<Output = std::result::Result<Outcome, Self::Error>> + Send;

    /// A whole value that was there at most `staleness_ms` ago.
    fn cached(
        &self,
        table: &str,
        key: &[u8],
        staleness_ms: u64,
    ) -> impl Future<Output = std::result::Result<Option<Vec<u8>>, Self::Error>> + Send;

    /// Writes a whole value through the cache.
    fn put(
        &self,
        table: &str,
        key: &[u8],
        value: Vec<u8>,
    ) -> impl Future<Output = std::result::Result<(), Self::Error>> + Send;
}

/// Why an app could not decide.
#[derive(Debug, thiserror::Error)]
pub enum Error<E: std::error::Error> {
    /// The store cannot be reached or does not answer.
    #[error("the store: {0}")]
    Data(E),
    /// The store does not do it.
    #[error("the store refused: {0}")]
    Refused(Refusal),
    /// An entry is not what this app writes.
    #[error("table '{table}' has an entry that is no {what}: {problem}")]
    Entry {
        /// The table.
        table: String,
        /// What it should be.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Others changed the same entry at each try.
    #[error("'{table}' was changed by others at each of {attempts} tries: try again later")]
    Contended {
        /// The table.
        table: String,
        /// How many tries.
        attempts: u32,
    },
}

impl<E: std::error::Error> Error<E> {
    fn entry(table: &str, what: &'static str, problem: impl Into<String>) -> Error<E> {
        Error::Entry { table: table.to_owned(), what, problem: problem.into() }
    }
}

type Result<T, E> = std::result::Result<T, Error<E>>;

/// A packet that a switch had no flow for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketIn {
    /// The switch that it came to.
    pub switch: u64,
    /// And the port.
    pub port: u32,
    /// Its Ethernet source.
    pub source: MacAddr,
    /// Its Ethernet destination.
    pub target: MacAddr,
    /// Addresses, of IPv4 or of the ARP message: of who sends and of who is asked or sent to.
    pub addresses: Option<(Ipv4Addr, Ipv4Addr)>,
    /// When it came, milliseconds of the Unix epoch.
    pub now_ms: u64,
}

/// A value that was read whole, and its version.
struct Read {
    version: Version,
    value: Vec<u8>,
}

async fn read<D: Data>(data: &D, query: Query) -> Result<Option<(Version, Selected)>, D::Error> {
    match data.read(query).await.map_err(Error::Data)? {
        Answer::Found(found) => Ok(Some((found.version, found.value))),
        Answer::Absent { .. } => Ok(None),
        Answer::Refused(refusal) => Err(Error::Refused(refusal)),
        other => Err(Error::entry("?", "answer to a read of one entry", format!("{other:?}"))),
    }
}

async fn read_whole<D: Data>(data: &D, query: Query, table: &str) -> Result<Option<Read>, D::Error> {
    match read(data, query).await? {
        Some((version, Selected::Whole(value))) => Ok(Some(Read { version, value })),
        Some(_) => Err(Error::entry(table, "whole value", "the store left it out")),
        None => Ok(None),
    }
}

/// The columns asked for, one after the other; those that are missing are empty.
async fn read_columns<D: Data>(data: &D, query: Query) -> Result<Option<Vec<(String, Vec<u8>)>>, D::Error> {
    Ok(read(data, query).await?.map(|(_, selected)| match selected {
        Selected::Columns(columns) => columns,
        Selected::Whole(_) | Selected::Nothing => Vec::new(),
    }))
}

fn get(table: &str, key: &[u8], select: Select) -> Query {
    Query::Get { table: table.to_owned(), key: key.to_vec(), select }
}

fn follow(table: &str, key: &[u8], select: Select) -> Query {
    Query::Follow { table: table.to_owned(), key: key.to_vec(), via: Vec::new(), select }
}

fn some(columns: &[&str]) -> Select {
    Select::Columns(columns.iter().map(|&column| column.to_owned()).collect())
}

fn put(table: &str, key: &[u8], condition: Condition, value: Vec<u8>) -> Operation {
    let action = Action::Put { value, ttl_ms: 0 };
    Operation::Write(Write { table: table.to_owned(), key: key.to_vec(), condition, action })
}

/// Writes; says whether the condition held.
async fn write<D: Data>(data: &D, operation: Operation) -> Result<bool, D::Error> {
    match data.submit(operation).await.map_err(Error::Data)? {
        Outcome::Written { .. } => Ok(true),
        Outcome::Conflict { .. } => Ok(false),
        Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
        other => Err(Error::entry("?", "outcome of a write", format!("{other:?}"))),
    }
}

async fn call<D: Data>(data: &D, procedure: &str, arguments: Vec<u8>) -> Result<Vec<u8>, D::Error> {
    let procedure = procedure.to_owned();
    match data.submit(Operation::Call { procedure, arguments }).await.map_err(Error::Data)? {
        Outcome::Reply { reply, .. } => Ok(reply),
        Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
        other => Err(Error::entry("?", "outcome of a call", format!("{other:?}"))),
    }
}

/// A procedure that seldom writes: its reply without a place in the order when it writes nothing, else as [`call`].
async fn ask_or_call<D: Data>(data: &D, procedure: &str, arguments: Vec<u8>) -> Result<Vec<u8>, D::Error> {
    let query = Query::Call { procedure: procedure.to_owned(), arguments: arguments.clone() };
    match data.read(query).await.map_err(Error::Data)? {
        Answer::Reply(reply) => Ok(reply),
        Answer::Writes => call(data, procedure, arguments).await,
        Answer::Refused(refusal) => Err(Error::Refused(refusal)),
        other => Err(Error::entry("?", "answer to a read by a procedure", format!("{other:?}"))),
    }
}

/// What the apps need once: tables, for `Operation::CreateTable`.
pub fn tables() -> Vec<(String, TableOptions)> {
    [learning::tables(), balancer::tables(), devices::tables()].concat()
}

/// A registry with the apps' procedures added.
pub fn procedures(registry: Registry) -> Registry {
    devices::procedures(balancer::procedures(learning::procedures(registry)))
}

/// Makes what is not there yet of the apps' tables.
///
/// # Errors
/// When the store does not answer or refuses for another reason.
pub async fn create_tables<D: Data>(data: &D) -> Result<(), D::Error> {
    for (table, options) in tables() {
        match data.submit(Operation::CreateTable { table, options }).await.map_err(Error::Data)? {
            Outcome::Refused(Refusal::TableExists { .. }) | Outcome::Written { .. } => {}
            Outcome::Refused(refusal) => return Err(Error::Refused(refusal)),
            other => return Err(Error::entry("?", "outcome of a new table", format!("{other:?}"))),
        }
    }
    Ok(())
}

/// All of several writes, or none.
async fn transact<D: Data>(data: &D, writes: Vec<Operation>) -> Result<bool, D::Error> {
    let steps = writes.into_iter().filter_map(|operation| match operation {
        Operation::Write(write) => Some(Step::Write(write)),
        _ => None,
    });
    match data.submit(Operation::Transaction(steps.collect())).await.map_err(Error::Data)? {
        Outcome::Done { .. } => Ok(true),
        Outcome::Conflict { .. } => Ok(false),
        Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
        other => Err(Error::entry("?", "outcome of a transaction", format!("{other:?}"))),
    }
}

fn columns_table(references: &[(&str, &str)]) -> TableOptions {
    let references = references.iter().map(|&(column, to)| (column.to_owned(), to.to_owned())).collect();
    TableOptions { columns: true, references, ..TableOptions::default() }
}

fn index_table(to: &str) -> TableOptions {
    TableOptions { references: vec![(String::new(), to.to_owned())], ..TableOptions::default() }
}

/// The value with these columns, whose names are the apps' own.
pub(crate) fn value(cells: &[(&str, &[u8])]) -> Vec<u8> {
    let mut columns = Columns::new();
    for (name, bytes) in cells {
        let set = columns.set(name, bytes);
        assert!(set.is_ok(), "'{name}' is no name of a column");
    }
    columns.to_value()
}

fn fixed<const N: usize>(bytes: Option<&[u8]>) -> Option<[u8; N]> {
    bytes.and_then(|bytes| bytes.try_into().ok())
}

/// A column of exactly so many bytes.
fn cell<const N: usize>(value: &[u8], name: &str) -> Option<[u8; N]> {
    fixed(column(value, name))
}

fn picked<const N: usize>(columns: &[(String, Vec<u8>)], name: &str) -> Option<[u8; N]> {
    fixed(columns.iter().find(|(column, _)| column == name).map(|(_, bytes)| &bytes[..]))
}

#[cfg(test)]
pub(crate) mod tests;
