//! What a person would type to see whether a network works, with the answers as values.
//!
//! Each probe runs the ordinary program inside a namespace (so it proves what an unmodified program sees) with a
//! bound on time. A network that does not answer is a result, not an error; an error means that the probe itself
//! could not be made.

pub mod datagram;
pub mod http;
pub mod latency;
pub mod ping;
pub mod stream;

#[cfg(test)]
mod tests;
