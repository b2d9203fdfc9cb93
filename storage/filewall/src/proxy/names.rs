//! By what sessions are named.

/// A seat, given when a client connects. A later one has a higher number.
pub type Ticket = u64;

/// Name of a session in its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey {
    /// Place.
    pub slot: u32,
    /// How often the place was used.
    pub uses: u32,
}
