//! Who may hold a connection: the one door in front of every listener that strangers reach.
//!
//! Before somebody has said who it is, and that was believed, it is a *stranger*. Strangers share few places, by address, and
//! every one of their connections has short times: for the first byte, for the handshake, and for all it does. When the places
//! are taken, a newcomer gets the place of a stranger that holds it longest, of the address with the most of them, silent ones
//! first; so whoever can say at once who it is gets in, however many are silent. Who is *known* has places of its own, by name,
//! which no stranger can take.
//!
//! [`Door`] counts and decides (no socket, no clock of its own but the deadlines that it gives); [`Guarded`] holds a stream to it;
//! [`listen`] accepts; [`descriptors`] sees to it that the process has descriptors for all places, and some for its files.
//!
//! Invariants
//! - Connections that a door lets live are at most [`Limits::connections_max`]: twice the strangers' places (a displaced one may take a
//!   moment to end) and the places of those who are known.
//! - A stranger never displaces one that is known, and never is a newcomer refused for silent strangers, unless as many as there are
//!   places are about to end.
//! - Every refusal has a counter.

pub mod descriptors;
mod door;
mod guard;
mod listen;

pub use door::{Counters, Door, Full, Limits, Place};
pub use guard::Guarded;
pub use listen::{ACCEPT_REST, accept};

#[cfg(test)]
mod tests;
