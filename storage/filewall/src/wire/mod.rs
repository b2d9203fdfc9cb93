//! The bytes of ONC RPC, NFSv3, MOUNT v3 and PORTMAP, read where they lie (row F: "handled in place").
//!
//! Nothing here owns a record. [`call`] and [`reply`] walk over the bytes of one record and note *where* the
//! fields are that a policy may look at or change; the payload of a READ or WRITE is only a [`Span`].
//!
//! - [`name`]: what a name is. - [`xdr`]: the strict reader. - [`rpc`]: record marks, call and reply headers, answers without a server.
//! - [`nfs3`]: operations and status codes. - [`call`], [`reply`]: arguments and results. - [`answer`]: a proper
//!   answer to every call that is not forwarded. - [`mount`], [`portmap`]: the two helper protocols.
//! - [`make`]: results for objects that no server has.
//! - [`build`]: small calls, for requests that FileWall itself makes, and for tests and benches.
//!
//! Invariants
//! - A decoder accepts only what the RFC (1813, 5531, 1833) allows: booleans are 0 or 1, padding is zero, lengths fit
//!   their limits and the record, and no byte is left over.
//! - A decoder may be given the beginning of a record with the record's full length. It then says
//!   [`Wrong::Incomplete`] where the bytes end too early, and never reads what is not there.

pub mod answer;
pub mod build;
pub mod call;
pub mod make;
pub mod mount;
pub mod name;
pub mod nfs3;
pub mod nfs4;
pub mod portmap;
pub mod reply;
pub mod rpc;
pub mod xdr;

pub use xdr::{Span, Wrong};

#[cfg(test)]
pub(crate) mod tests;
