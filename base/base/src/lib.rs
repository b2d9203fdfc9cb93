//! The ground floor: identifiers, limits, the wire codec, the journal of actuators, the failure detector, contained faults, files
//! that are replaced whole, what a directory must hold, metrics as text, and the world (disk, clock) that protocols see only through
//! traits.
//!
//! Nothing here knows what a network, a controller or a packet is.

pub mod codec;
pub mod contain;
pub mod detector;
pub mod exposition;
pub mod file;
pub mod journal;
pub mod limits;
pub mod manifest;
pub mod numbers;
pub mod ordered_time;
pub mod reconnect;
pub mod seeds;
pub mod version;
pub mod world;

pub use version::Version;
