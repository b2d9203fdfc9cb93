//! What is ordered: operations, in batches of one client, and what each led to (rows B2, B5 to B8).
//!
//! The encoding is postcard (`docs/protocol/store.md`); fixtures by hash hold it.

use crate::{Answer, Query};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use weir_model::Version;

/// Most requests of a batch.
pub const BATCH_REQUESTS_MAX: usize = 4_096;
/// Most steps of a transaction.
pub const TRANSACTION_STEPS_MAX: usize = 256;

/// The number under which the store knows somebody, by the name that its server authenticated. It tells them apart; it is no secret
/// and proves nothing.
pub fn principal_of(name: &str) -> u64 {
    let hash: [u8; 32] = Sha256::digest(name).into();
    hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Requests of one client, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Who asks: what [`Outcome::Opened`] gave, or 0 for somebody whose requests are never repeated.
    pub client: u64,
    /// Who that is, as the server knows it: a hash of the authenticated name. Only who opened a client
    /// may use its number.
    pub principal: u64,
    /// The client has the outcomes of all its requests below this number.
    pub settled_below: u64,
    /// The requests.
    pub requests: Vec<Request>,
}

impl Batch {
    /// A batch of somebody who never repeats a request.
    pub fn once(operations: impl IntoIterator<Item = Operation>) -> Batch {
        let request = |operation| Request { sequence: 0, operation };
        Batch {
            client: 0,
            principal: 0,
            settled_below: 0,
            requests: operations.into_iter().map(request).collect(),
        }
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The client's number of it. Asked again under its number, it gets the same outcome and is not done again.
    pub sequence: u64,
    /// What to do.
    pub operation: Operation,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Write one entry.
    Write(Write),
    /// All steps or none; each sees the writes of those before it.
    Transaction(Vec<Step>),
    /// Run a procedure beside the tables (row B8).
    Call {
        /// Its name, `namespace/word`. It reads and writes tables of this namespace.
        procedure: String,
        /// What it is given.
        #[serde(with = "serde_bytes_vec")]
        arguments: Vec<u8>,
    },
    /// Make a table.
    CreateTable {
        /// Its name, `namespace/word`.
        table: String,
        /// Its options.
        options: TableOptions,
    },
    /// Change the options of a table. Whether it has columns stays as it is.
    AlterTable {
        /// Its name.
        table: String,
        /// The new options.
        options: TableOptions,
    },
    /// Delete a table with all that is in it.
    DropTable {
        /// Its name.
        table: String,
    },
    /// Load a procedure, or replace it.
    LoadProcedure {
        /// Its name, `namespace/word`.
        procedure: String,
        /// A WebAssembly module.
        #[serde(with = "serde_bytes_vec")]
        module: Vec<u8>,
        /// What one call may use.
        limits: ProcedureLimits,
    },
    /// Forget a loaded procedure.
    RemoveProcedure {
        /// Its name.
        procedure: String,
    },
    /// Limit a namespace.
    SetQuota {
        /// The namespace.
        namespace: String,
        /// Its limits.
        quota: Quota,
    },
    /// Become a client whose requests may be repeated.
    OpenClient,
    /// Forget a client and its outcomes.
    CloseClient {
        /// Which.
        client: u64,
    },
}

/// A write of one entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The table, `namespace/word`.
    pub table: String,
    /// The key.
    #[serde(with = "serde_bytes_vec")]
    pub key: Vec<u8>,
    /// What must hold before.
    pub condition: Condition,
    /// What to do with the entry.
    pub action: Action,
}

/// What must hold for an entry (row B6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// Nothing.
    Always,
    /// It is not there.
    Absent,
    /// It is there.
    Present,
    /// It is at this version; zero means that it is not there.
    Version(Version),
    /// Its value is this.
    Value(#[serde(with = "serde_bytes_vec")] Vec<u8>),
    /// A column is this; `None`: it has no such column, or is not there.
    Column {
        /// The column.
        column: String,
        /// Its bytes.
        value: Option<Vec<u8>>,
    },
}

/// What to do with an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Write the whole value.
    Put {
        /// The value. In a column table: an encoding of columns.
        #[serde(with = "serde_bytes_vec")]
        value: Vec<u8>,
        /// The entry goes after so many milliseconds of ordered time; 0: it stays.
        ttl_ms: u64,
    },
    /// Delete the entry.
    Remove,
    /// Write and delete columns (row B7), and leave the others. An entry that is not there is made.
    Columns {
        /// Names and bytes.
        set: Vec<(String, Vec<u8>)>,
        /// Names.
        remove: Vec<String>,
    },
    /// Add to a counter and give what it was before. A counter is a value, or a column, of eight
    /// bytes, big-endian two's complement; what is not there counts as 0.
    Increment {
        /// The column; empty for the whole value.
        column: String,
        /// What to add.
        by: i64,
    },
    /// Leave the value and begin its time to live anew.
    Touch {
        /// As in [`Action::Put`].
        ttl_ms: u64,
    },
}

/// A step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Something must hold, else nothing of the transaction is done.
    Check {
        /// The table.
        table: String,
        /// The key.
        #[serde(with = "serde_bytes_vec")]
        key: Vec<u8>,
        /// What must hold.
        condition: Condition,
    },
    /// Read, the writes before it included.
    Read(Query),
    /// Write; its condition must hold, else nothing of the transaction is done.
    Write(Write),
}

/// Options of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableOptions {
    /// Whether values have columns (row B7).
    pub columns: bool,
    /// Which column holds a key of which table (row B5), ascending by column; an empty column means
    /// the whole value.
    pub references: Vec<(String, String)>,
    /// Most entries; 0: only the namespace's quota limits them.
    pub entries_max: u64,
    /// Most bytes of keys and values; 0: only the namespace's quota limits them.
    pub bytes_max: u64,
}

/// Limits of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Most tables.
    pub tables_max: u64,
    /// Most entries of all its tables.
    pub entries_max: u64,
    /// Most bytes of keys and values of all its tables.
    pub bytes_max: u64,
    /// Most loaded procedures.
    pub procedures_max: u64,
}

impl Default for Quota {
    fn default() -> Quota {
        Quota { tables_max: 256, entries_max: 4_000_000, bytes_max: 1 << 30, procedures_max: 64 }
    }
}

/// What one call of a loaded procedure may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcedureLimits {
    /// Fuel: about one unit an instruction, more for what it asks of the store.
    pub fuel_max: u64,
    /// Memory, bytes.
    pub memory_bytes_max: u64,
}

impl Default for ProcedureLimits {
    fn default() -> ProcedureLimits {
        ProcedureLimits { fuel_max: 1_000_000, memory_bytes_max: 4 << 20 }
    }
}

/// What a request led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is done, at this version. Zero: it was so already (a key to delete that was not there).
    Written {
        /// The version.
        version: Version,
    },
    /// A counter was added to.
    Counted {
        /// The version.
        version: Version,
        /// What it was before.
        before: i64,
    },
    /// The condition does not hold; nothing is done.
    Conflict {
        /// The step of the transaction; 0 for a single write.
        step: u32,
        /// The version found; zero: it is not there.
        found: Version,
    },
    /// The transaction is done, at this version; zero: it wrote nothing.
    Done {
        /// The version.
        version: Version,
        /// What each step led to, in order.
        steps: Vec<StepOutcome>,
    },
    /// The procedure ended well; its writes are done at this version; zero: it wrote nothing.
    Reply {
        /// The version.
        version: Version,
        /// What it answers.
        #[serde(with = "serde_bytes_vec")]
        reply: Vec<u8>,
    },
    /// The client is known under this number.
    Opened {
        /// The number.
        client: u64,
    },
    /// It is not done, and why.
    Refused(Refusal),
}

/// What a step of a transaction led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepOutcome {
    /// A check held, or an entry was written.
    Done,
    /// A counter's value before.
    Counted {
        /// It.
        before: i64,
    },
    /// What was read.
    Read(Answer),
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// There is no such table.
    #[error("there is no table '{table}': create it first")]
    NoTable {
        /// Its name.
        table: String,
    },
    /// There is such a table.
    #[error("there is a table '{table}' already")]
    TableExists {
        /// Its name.
        table: String,
    },
    /// The table belongs to the apps.
    #[error("table '{table}' belongs to the system; a client's tables have names such as 'tenant/{table}'")]
    ReadOnly {
        /// Its name.
        table: String,
    },
    /// A name is wrong.
    #[error("name '{name}': {problem}")]
    Name {
        /// It.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Something is too large.
    #[error("{what} is {value}, the limit is {limit}")]
    TooLarge {
        /// What.
        what: String,
        /// How large.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A quota would be passed.
    #[error("{scope} would have {value} {what}, its quota is {limit}: delete something or raise the quota")]
    Quota {
        /// Of what: `table x/y` or `namespace x`.
        scope: String,
        /// What is counted.
        what: String,
        /// How many there would be.
        value: u64,
        /// The quota.
        limit: u64,
    },
    /// The table has no columns, or the value is no encoding of them.
    #[error("table '{table}': {problem}")]
    Columns {
        /// Its name.
        table: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A value is no counter, or would overflow.
    #[error("the entry of table '{table}' {problem}")]
    Counter {
        /// The table.
        table: String,
        /// What is wrong.
        problem: String,
    },
    /// A reference is not declared, or leads nowhere.
    #[error("table '{table}' has no reference by {}", if column.is_empty() { "its whole value".to_owned() } else { format!("column '{column}'") })]
    NoReference {
        /// The table.
        table: String,
        /// The column; empty for the whole value.
        column: String,
    },
    /// There is no such procedure.
    #[error("there is no procedure '{procedure}': load it first")]
    NoProcedure {
        /// Its name.
        procedure: String,
    },
    /// A procedure ended early; nothing of it is done.
    #[error("procedure '{procedure}' was ended: {reason}")]
    Procedure {
        /// Its name.
        procedure: String,
        /// Why.
        reason: String,
    },
    /// A module cannot be loaded.
    #[error("the module of '{procedure}' is not taken: {problem}")]
    Module {
        /// The procedure.
        procedure: String,
        /// What is wrong.
        problem: String,
    },
    /// The client is not known, any more or at all.
    #[error(
        "client {client} is not known: it was closed, or idle for too long; requests without an outcome may or may not be done"
    )]
    UnknownClient {
        /// Its number.
        client: u64,
    },
    /// The client said before that it has this outcome.
    #[error(
        "request {sequence} is below {settled_below}, and the client said that it has all outcomes below"
    )]
    Settled {
        /// The request.
        sequence: u64,
        /// What the client said.
        settled_below: u64,
    },
    /// The client has too many outcomes that it did not settle.
    #[error(
        "the client has {outcomes} outcomes of {bytes} bytes that it did not settle: it must raise settled_below"
    )]
    Unsettled {
        /// How many.
        outcomes: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// Something in a request makes no sense.
    #[error("{problem}")]
    Invalid {
        /// What, and what would be right.
        problem: String,
    },
}

impl Refusal {
    pub(crate) fn too_large(what: &str, value: usize, limit: usize) -> Refusal {
        Refusal::TooLarge { what: what.to_owned(), value: value as u64, limit: limit as u64 }
    }

    pub(crate) fn invalid(problem: impl Into<String>) -> Refusal {
        Refusal::Invalid { problem: problem.into() }
    }
}

/// Bytes as a run instead of a sequence of numbers: the same encoding in postcard, one copy instead of a loop.
mod serde_bytes_vec {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}
