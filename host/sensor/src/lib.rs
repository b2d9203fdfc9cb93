//! Sensor boxes: shared memory in which a program publishes counters and events for a monitor that stands outside it
//! (Orion: Bohra, section 3.4.1; row O).
//!
//! ```text
//!  publisher                         memory                       monitor
//!  SensorBox::add / update  ──►  header │ sensors │ ring  ──►  View::fetch, View::sensors
//!  (tens of ns, no system call)   layout.rs says each byte        (no system call, no help of the publisher)
//! ```
//!
//! | paper | here | | paper | here |
//! |---|---|---|---|---|
//! | `sbcreate` | [`SensorBox::create`] | | `sbdiscover` | [`Directory::discover`] |
//! | `sbdestroy` | [`SensorBox::destroy`], or drop | | `sbassociate` | [`Handlers::associate`] |
//! | `sbexport` | [`SensorBox::export`] | | `sbfetch` | [`View::fetch`] |
//! | `addsensor`, `rmsensor` | [`SensorBox::add`], [`SensorBox::remove`] | | `sbflush` | [`View::flush`] |
//! | `updatesensor` | [`SensorBox::count`], [`set`](SensorBox::set), [`record`](SensorBox::record) | | | |
//!
//! `include/weir_sensor.h` is the same for C, and gives the layout to eBPF programs: what the kernel publishes is a box too.
//!
//! Invariants
//! - A reader trusts nothing that the publisher can write. Sizes are read once, checked against the real size of the
//!   memory, and kept; the memory of a publisher is taken only when it is sealed against shrinking, so a read cannot
//!   fault; every word is read by an atomic load.
//! - Loss is visible: each record has a number, and a reader counts those that it did not see.
//! - A record that is being written, or was overwritten while it was read, is never handed out.
//!
//! Departures from the paper
//! - The monitor never writes into a box, so any number of monitors read one, and `sbflush` moves the reader's mark only.
//! - Names are registered as files in a folder, not with a daemon: a box can be exported before any monitor runs.

mod directory;
mod error;
pub mod layout;
mod limits;
mod memory;
mod publisher;
mod view;

pub use directory::{Directory, FOLDER, Registration};
pub use error::{Error, Result};
pub use layout::{Kind, Shape};
pub use publisher::{SensorBox, SensorId};
pub use view::{Fetched, Handlers, Record, Sensor, View};

/// Nanoseconds of the monotonic clock: the time base of all boxes of a host, and of the kernel's programs.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
