//! What can go wrong with a box.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a box cannot be made, exported or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refuses something.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// A name is wrong.
    #[error(
        "'{name}' is no name of a {of}: use 1 to {limit} letters, digits, '.', '_' or '-', the first a letter"
    )]
    Name {
        /// What it should name.
        of: &'static str,
        /// What was given.
        name: String,
        /// Longest name, bytes.
        limit: usize,
    },
    /// A shape is outside the limits of the layout.
    #[error(
        "a box of {sensors} sensors and {records} records: allowed are 1 to {} sensors, and a power of two of records from {} to {}",
        crate::limits::SENSORS_MAX,
        crate::limits::RECORDS_MIN,
        crate::limits::RECORDS_MAX
    )]
    Shape {
        /// Slots for sensors.
        sensors: u64,
        /// Records of the ring.
        records: u64,
    },
    /// There is no free slot.
    #[error("box '{name}' has all of its {sensors} sensors in use: remove one, or create it with more")]
    Full {
        /// The box.
        name: String,
        /// Its slots.
        sensors: u64,
    },
    /// The memory is no box that this reader can read.
    #[error("{name}: {reason}")]
    NotABox {
        /// What was to be read.
        name: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// No box of this name is exported.
    #[error("no box named '{name}' is registered in {folder}")]
    Unknown {
        /// The name.
        name: String,
        /// Where it was looked for.
        folder: String,
    },
}

impl Error {
    /// An I/O error with what was tried.
    pub(crate) fn io(what: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        Error::Io { what: what.into(), error: error.into() }
    }
}
