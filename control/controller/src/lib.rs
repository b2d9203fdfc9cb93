//! The controller: the runtime of the loop (DESIGN §1). It orders events, lets apps decide on them,
//! signs what they decide, and brings it to the actuators in an order in which no intermediate state is
//! wrong.
//!
//! Papers: RoSCo (rows R1, R2, R5, R8, R9), Cicero (C1, C2), Andromeda (A3, A6, A7, A9).
//!
//! - [`core`]: the step machine; no socket, thread or wall clock.
//! - [`core::scheduler`]: what is desired and acked of each actuator, and when each update may go.
//! - [`quorum`]: a member's part in the group's signatures: shares, and how the members get them.
//! - [`aside`]: how the members agree to set an entry of the order aside that ends their processes.
//! - [`watch`]: what a member says of the others, and which changes of members it agrees to.
//! - [`audit`]: what was said, decided, signed and acknowledged, as a chain of hashes.
//! - [`driver`]: threads, the order engine, TLS sessions with actuators, and the handle for the API.

pub mod aside;
pub mod audit;
pub mod core;
pub mod domains;
pub mod driver;
mod error;
#[cfg(test)]
mod fixtures;
pub mod quorum;
pub mod watch;

pub use error::{Error, Poisoned};
