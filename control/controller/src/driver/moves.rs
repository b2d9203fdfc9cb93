//! How often an actuator may change its address on the underlay.

use super::locking::locked;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;
use weir_model::Label;

/// An actuator may change its address on the underlay once in this time.
pub const MOVE_REST: Duration = Duration::from_secs(60);

/// Names of which it is known when they changed their address; those that may again make room.
const MOVES_MAX: usize = 4_096;

/// When actuators changed their addresses last.
#[derive(Default)]
pub(super) struct Moves(Mutex<HashMap<Label, Instant>>);

impl Moves {
    /// Whether it may now; remembers that it did.
    pub fn may(&self, name: &Label) -> bool {
        let mut moved = locked(&self.0);
        moved.retain(|_, at| at.elapsed() < MOVE_REST);
        if moved.contains_key(name) || moved.len() >= MOVES_MAX {
            return false;
        }
        moved.insert(name.clone(), Instant::now());
        true
    }
}
