//! How many ports, senders and counters an engine has.

/// Most ports.
pub const PORTS_MAX: usize = 4096;
/// Number of the outside, at a gateway, among the ports.
pub const EXTERNAL: usize = PORTS_MAX;
/// Classes that senders on the underlay are hashed into, to share the slow path.
pub const SENDER_CLASSES: usize = 256;
/// Who shares the slow path: each port, the outside, each class of senders.
pub const MISS_CLASSES: usize = PORTS_MAX + 1 + SENDER_CLASSES;
/// Most rule counters; a flow whose counter is above is counted under the last.
pub const RULE_COUNTERS_MAX: usize = 1 << 20;
