//! Limits that more than one plane must agree on. A limit of one module lives in that module.

/// Largest frame on a stream between two processes, bytes.
pub const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Most updates that one decided batch may release to one actuator in one frame.
pub const UPDATES_PER_FRAME_MAX: usize = 1024;

/// Longest DNS label, and so the longest name of a resource, bytes (RFC 1035).
pub const LABEL_BYTES_MAX: usize = 63;
