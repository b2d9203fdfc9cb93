//! Health from outside (Orion: Bohra, chapter 3; row O): watches a host and what runs on it by the traces that they leave
//! in memory, notices what goes wrong, and repairs it by policy while the host itself could not start a shell.
//!
//! ```text
//!  kernel's programs ──► box ─┐                    ┌─ fork-bomb ─┐
//!  /proc (at the start, after loss) ─► fork tree ──┤ memory-hog  ├─► repair: freeze, kill, thaw ─► audit log, metrics
//!  applications ──► boxes ────────────────────────►└─ stalled ───┘
//! ```
//!
//! - [`kernel`]: events of processes, by programs in the kernel or, degraded, by a socket.
//! - [`tree`]: who forked whom; counts by scope; the culprit.
//! - [`pace`]: how often it looks. [`policy`]: the files. [`engine`]: one step of the loop. [`controls`]: freezing and killing cgroups; `hurry`: what is killed ends soon.
//! - [`restart`]: when a service that crashed is started again; [`runner`]: by whom.
//! - [`detector`]: failure by missing progress. [`ring`], [`remote`]: hosts that watch each other. [`local`]: the thread that nothing starves; [`resident`]: its memory. [`service`]: all together.
//! - [`guest`]: a virtual machine, read through its memory.
//! - [`summary`], [`query`]: what is kept of the events, and what may be asked of it.
//! - [`plane`], [`ordered`]: what the controllers order, and what they are told.
//! - [`audit`]: the chained log. [`explain`]: an entry in words. [`status`], [`webhook`]: what is shown and sent.

pub mod audit;
pub mod controls;
pub mod crash;
pub mod dataplane;
pub mod engine;
pub mod error;
pub mod explain;
pub mod guest;
mod hurry;
pub mod incident;
pub mod kernel;
pub mod local;
pub mod ordered;
pub mod otlp;
pub mod pace;
pub mod plane;
pub mod policy;
pub mod query;
pub mod remote;
pub mod resident;
pub mod restart;
pub mod ring;
pub mod runner;
pub mod service;
pub mod status;
pub mod summary;
mod sys;
pub mod tree;
pub mod webhook;

pub use error::{Error, Result};
pub use weir_base::detector;
