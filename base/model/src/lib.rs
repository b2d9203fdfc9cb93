//! The vocabulary that every plane speaks: resources (what people ask for), events (what is
//! ordered), plans and updates (what is decided), entries (what a switch holds), acks, and the
//! frames that processes exchange.
//!
//! Only data and its validation: no I/O, no cryptography (that is `weir-trust`), no decision.
//!
//! Resources travel and rest as JSON, so that a field can be added without breaking a log.
//! Everything between processes of one release is postcard, with a protocol number at the start of
//! a session.

pub mod approval;
pub mod conversion;
pub mod domain;
pub mod edges;
pub mod entry;
pub mod event;
pub mod filewall;
pub mod group;
pub mod health;
pub mod hex;
pub mod identity;
pub mod join;
pub mod local;
pub mod location;
pub mod mac;
pub mod name;
pub mod operator;
pub mod packet_in;
pub mod plane;
pub mod protocol;
pub mod request;
pub mod resource;
pub mod said;
pub mod session;
pub mod signed;
pub mod source;
pub mod statement;
pub mod update;
pub mod vni;

pub use entry::{Entry, Key};
pub use mac::MacAddr;
pub use name::Label;
pub use update::{Ack, Change, Dependency, Plan, PlannedUpdate, Update};
pub use weir_base::Version;
