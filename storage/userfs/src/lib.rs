//! User-space file systems: one [`backend::Backend`], mounted for every program through FUSE ([`mount`]).
//!
//! Lembke, chapter 4 (DEFUSE): a backend in user space, ordinary descriptors of the kernel's, and a way past
//! the kernel for programs that can take it. Departures: no kernel module, so the shadow inode of the paper is the
//! inode of a FUSE mount that is served by the same backend (4.4.3); only positions are stashed at exec (4.4.4), because
//! descriptors carry all else that is needed; maps are the page cache's (4.4.5), kept true by the rules in `segment/segment.h`.
//!
//! - [`backend`]: what a backend offers; [`dir`], [`mem`], [`archive`], [`remote`]: backends; [`locate`]: from text to a backend.
//! - `server`, `passthrough`, [`mount`]: the FUSE side. [`segment`]: shared memory that holds the bytes of files.
//! - [`accelerate`]: processes that use the segment themselves; what runs in them is `segment/client.c`.
//! - [`daemon`], [`control`]: the process that serves a mount, and how it is asked; [`doctor`]: what is wrong with all of it.
//! - [`keeper`]: the process that keeps a mount when the one that serves it dies; [`journal`], [`ledger`]: what the next one must know.

pub mod accelerate;
pub mod archive;
pub mod backend;
pub mod control;
pub mod daemon;
pub mod dir;
pub mod doctor;
pub mod error;
pub mod journal;
pub mod keeper;
pub mod ledger;
pub mod life;
pub mod locate;
pub mod mem;
pub mod mount;
mod passthrough;
pub mod remote;
pub mod segment;
mod server;
pub mod stats;

pub use error::{Errno, Error};

/// What a daemon, and the library that it puts into programs, are of.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// The version of Weir.
    pub program: String,
    /// A digest of the library: two of the same version may differ while Weir is developed.
    pub library: String,
}

/// This program's.
pub fn version() -> Version {
    let library = format!("{:08x}", crc32fast::hash(accelerate::LIBRARY));
    Version { program: env!("CARGO_PKG_VERSION").to_owned(), library }
}
