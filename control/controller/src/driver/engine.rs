//! What the driver wants of an order beside [`Engine`]: barriers for reads, digests, and counters to show.

use weir_model::event::SourceId;
use weir_order::{Completion, Engine, Error, LocalEngine, Position, Waiting};

/// An order below a controller. One of a single process needs nothing of this but the counters.
pub trait Order: Engine {
    /// Calls `done` when the sink has seen all that was acknowledged before this call, by any replica.
    ///
    /// # Errors
    /// `done` is not called then.
    fn barrier(&self, done: Completion) -> Result<(), Error>;

    /// After how many batches the digest of the state is told; 0: never.
    fn digest_every(&self) -> u64;

    /// The digest of the state after the batch at `at`.
    fn report_digest(&self, at: Position, digest: [u8; 32]);

    /// Whether every replica takes proposals, and none is believed: then states of replicas must be equal byte for byte, and are taken after
    /// the same batches.
    fn is_everywhere(&self) -> bool {
        false
    }

    /// The replicas whose turns come before this one's, for what has this number.
    fn before(&self, number: u64) -> Vec<u64> {
        let _none = number;
        Vec::new()
    }

    /// Under which name a replica is a source of events.
    fn source_of(&self, replica: u64) -> Option<SourceId> {
        let _unknown = replica;
        None
    }

    /// Who leads and waits for something to order: what is proposed there need not travel to a leader first.
    fn waiting(&self) -> Waiting {
        Waiting::Nobody
    }

    /// Who hears when this replica begins to wait so, after all that was committed before. It must not wait for anything.
    fn on_waiting(&self, hears: Box<dyn Fn() + Send + Sync>) {
        let _never = hears;
    }

    /// How many come before.
    fn turn(&self, number: u64) -> u64 {
        self.before(number).len() as u64
    }

    /// Whether another replica needs the state after the batch at `index`, as long as it is the last one here.
    fn wants_state(&self, index: u64) -> bool {
        let _never = index;
        false
    }

    /// Why this replica serves nothing, when its state differs from that of the others.
    fn fenced(&self) -> Option<String> {
        None
    }

    /// Why this replica takes nothing new, when its disk is full. It goes on by itself when there is room.
    fn full(&self) -> Option<String> {
        None
    }

    /// Counters by name, for the metrics.
    fn counts(&self) -> Vec<(&'static str, u64)>;
}

impl Order for LocalEngine {
    fn barrier(&self, done: Completion) -> Result<(), Error> {
        // What is acknowledged is applied here, or nobody was told.
        done.finish(Ok(self.status().committed));
        Ok(())
    }

    fn digest_every(&self) -> u64 {
        0
    }

    fn report_digest(&self, _at: Position, _digest: [u8; 32]) {}

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let counters = self.counters();
        vec![
            ("batches", counters.committed),
            ("appended_bytes", counters.log.appended_bytes),
            ("syncs", counters.log.syncs),
            ("failed_writes", counters.log.failed_writes),
            ("overloads", counters.overloads),
            ("snapshots_saved", counters.snapshots_saved),
        ]
    }
}
