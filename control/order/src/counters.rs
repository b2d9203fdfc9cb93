//! What is counted, as plain numbers since opening.

/// Counts of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Entries appended.
    pub appends: u64,
    /// Bytes of their records.
    pub appended_bytes: u64,
    /// Syncs of the log's files.
    pub syncs: u64,
    /// Marks written when idle.
    pub marks: u64,
    /// Writes that failed, for want of room or otherwise.
    pub failed_writes: u64,
    /// Segments begun.
    pub segments_created: u64,
    /// Segments removed below the older snapshot.
    pub segments_removed: u64,
    /// Bytes of a torn tail that were cut at opening.
    pub torn_bytes_cut: u64,
    /// Record headers among them.
    pub torn_records_cut: u64,
}

/// Counts of an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Its log's counts.
    pub log: LogCounters,
    /// Batches committed.
    pub committed: u64,
    /// Batches refused because a queue was full.
    pub overloads: u64,
    /// Batches that failed after they were taken.
    pub failed: u64,
    /// Snapshots saved.
    pub snapshots_saved: u64,
    /// Bytes of state in them.
    pub snapshot_bytes: u64,
    /// Spare segments that could not be made ahead of need.
    pub spare_failures: u64,
}

/// Counts of a batcher.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatcherCounters {
    /// Operations taken.
    pub operations: u64,
    /// Batches proposed.
    pub batches: u64,
    /// Bytes proposed.
    pub bytes: u64,
    /// Operations refused because the queue was full.
    pub overloads: u64,
    /// Operations whose batch failed.
    pub failed: u64,
}
