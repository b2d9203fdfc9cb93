//! The flow table alone: what finding the flows of a batch costs, with as many flows as wanted in random order.

use crate::flows::{self, Random};
use crate::machine::thread_cpu;
use hashbrown::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use weir_packet::{FlowKey, IpAddress};
use weir_switch::flow::FLOWS_LIMIT;
use weir_switch::flowtable::{FlowStore, Shadow, Tables};

const BATCH: usize = 32;
const BATCHES: usize = 20_000;

/// A table, and the same keys in a hash map.
pub struct Table {
    store: Arc<FlowStore>,
    tables: Box<Tables>,
    map: HashMap<FlowKey, u32, foldhash::fast::RandomState>,
    count: u32,
    first: FlowKey,
}

/// Nanoseconds a look-up.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// In batches whose lines are asked for ahead.
    pub batched: f64,
    /// One by one.
    pub single: f64,
    /// In a hash map, whose values are numbers.
    pub map: f64,
}

impl Table {
    /// With so many flows.
    pub fn new(count: u32) -> Table {
        let store = Arc::new(FlowStore::with_flows_max([3, 4], FLOWS_LIMIT));
        let (mut shadow, _) = Shadow::new(Arc::clone(&store));
        let mut map = HashMap::default();
        let first = flows::key(0, 0);
        for flow in 0..count {
            let key = key_of(&first, flow);
            shadow.insert(key, flows::action(1), 0).expect("room");
            map.insert(key, flow);
        }
        let tables = shadow.publish().expect("tables");
        Table { store, tables, map, count, first }
    }

    /// One window of each.
    pub fn cost(&self) -> Cost {
        let nothing = self.time(|_| 0);
        Cost {
            batched: self.time(|keys| self.find_batch(keys)) - nothing,
            single: self.time(|keys| self.find_singly(keys)) - nothing,
            map: self.time(|keys| keys.iter().map(|key| self.map[key]).sum()) - nothing,
        }
    }

    /// Nanoseconds a key of what is done with batches of random keys, the making of the keys with it.
    fn time(&self, mut done: impl FnMut(&[FlowKey; BATCH]) -> u32) -> f64 {
        let (mut random, mut keys) = (Random(17), [self.first; BATCH]);
        let mut run = |batches: usize| {
            for _ in 0..batches {
                for key in &mut keys {
                    *key =
                        key_of(&self.first, (((random.next() >> 32) * u64::from(self.count)) >> 32) as u32);
                }
                black_box(done(black_box(&keys)));
            }
        };
        run(BATCHES / 10);
        let before = thread_cpu();
        run(BATCHES);
        (thread_cpu() - before).as_nanos() as f64 / (BATCHES * BATCH) as f64
    }

    /// As the engine does for plain packets: what it needs of a flow that is where it was looked for, and shares with no other, is one line.
    fn find_batch(&self, keys: &[FlowKey; BATCH]) -> u32 {
        let mut hashes = [0; BATCH];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.store.hash(key);
            self.tables.prefetch_bucket(*hash);
        }
        let near = hashes.map(|hash| self.tables.prefetch_flow(&self.store, hash, true));
        let find = |at: usize| match self.tables.brief_near(&self.store, near[at], &keys[at]) {
            Some((flow, brief)) => flow.counters.packets() + u32::from(brief.mtu),
            None => self.find(hashes[at], &keys[at]),
        };
        (0..BATCH).map(find).sum()
    }

    fn find_singly(&self, keys: &[FlowKey; BATCH]) -> u32 {
        keys.iter().map(|key| self.find(self.store.hash(key), key)).sum()
    }

    fn find(&self, hash: u64, key: &FlowKey) -> u32 {
        let (slot, action) = self.tables.find(&self.store, hash, key).expect("a flow");
        slot + u32::from(action.mtu)
    }
}

fn key_of(first: &FlowKey, flow: u32) -> FlowKey {
    let (address, source_port) = flows::source(flow);
    FlowKey { source: IpAddress::v4(address), source_port, ..*first }
}
