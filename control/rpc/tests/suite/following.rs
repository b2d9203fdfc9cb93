//! A store over an order that others order too: the state comes from the order, barriers come before reads, and who does
//! not lead says who does.

use super::server::{anybody, table};
use bytes::Bytes;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use weir_base::world::RealClock;
use weir_order::{Completion, Engine, Entry, Position, Sink, SnapshotInfo, Status};
use weir_rpc::client::{Client, ClientSettings};
use weir_rpc::local::{LocalSettings, LocalStore};
use weir_rpc::server::serve;
use weir_rpc::service::{Barrier, Boxed, Consistency, ServiceError, StoreService};
use weir_store::{Answer, Query, Registry, Select, Selected, TableOptions};

/// An order of two replicas in this process: what one orders both have at once.
#[derive(Default)]
struct Order {
    sinks: Mutex<Vec<Box<dyn Sink>>>,
    index: Mutex<u64>,
    barriers: Mutex<u64>,
    addresses: Mutex<Vec<String>>,
}

/// One replica's side of it. The second leads.
#[derive(Clone)]
struct Side(Arc<Order>, u64);

const LEADER: u64 = 2;

impl Engine for Side {
    fn propose(&self, batch: Bytes, done: Completion) -> Result<(), weir_order::Error> {
        if self.1 != LEADER {
            done.disarm();
            return Err(weir_order::Error::NotLeader { leader: Some(LEADER) });
        }
        let order = self.0.clone();
        std::thread::spawn(move || {
            let mut index = order.index.lock().unwrap();
            *index += 1;
            let position = Position { term: 1, index: *index };
            for sink in order.sinks.lock().unwrap().iter_mut() {
                sink.committed(&Entry { position, batch: batch.clone() });
            }
            done.finish(Ok(position));
        });
        Ok(())
    }

    fn status(&self) -> Status {
        Status { committed: Position::default(), leader: Some(LEADER), healthy: true }
    }

    fn save_snapshot(&self, at: Position, _: &mut dyn Read) -> Result<SnapshotInfo, weir_order::Error> {
        Err(weir_order::Error::Index { index: at.index, right: "none is wanted here".into() })
    }
}

impl Barrier for Side {
    fn barrier(&self) -> Boxed<Result<(), ServiceError>> {
        *self.0.barriers.lock().unwrap() += 1;
        let refused = weir_order::Error::NotLeader { leader: Some(LEADER) };
        let answer =
            if self.1 == LEADER { Ok(()) } else { Err(weir_rpc::local::refused(&refused, Some(self))) };
        Box::pin(async move { answer })
    }

    fn address_of(&self, replica: u64) -> Option<String> {
        self.0.addresses.lock().unwrap().get(replica as usize - 1).cloned()
    }
}

fn follow(order: &Arc<Order>, number: u64) -> Arc<LocalStore> {
    let side = Side(order.clone(), number);
    let start = |sink: Box<dyn Sink>| {
        order.sinks.lock().unwrap().push(sink);
        Ok((Arc::new(side.clone()) as Arc<dyn Engine>, Arc::new(side.clone()) as Arc<dyn Barrier>))
    };
    let (clock, registry) = (Arc::new(RealClock::new()), Arc::new(Registry::new()));
    Arc::new(LocalStore::follow(clock, registry, LocalSettings::default(), start).unwrap())
}

async fn listen(store: Arc<LocalStore>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, None, store, anybody(), std::future::pending()));
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_led_to_the_leader_and_each_request_is_done_once() {
    let order = Arc::new(Order::default());
    let (one, two) = (follow(&order, 1), follow(&order, 2));
    let addresses = [listen(one.clone()).await, listen(two.clone()).await];
    *order.addresses.lock().unwrap() = addresses.iter().map(SocketAddr::to_string).collect();
    // It knows only the one that does not lead.
    let client = Client::new(ClientSettings::new([addresses[0].to_string()])).unwrap();
    table(&client, "t/a", TableOptions::default()).await;
    for _ in 0..10 {
        client.increment("t/a", b"n", "", 1).await.unwrap();
    }
    client.put("t/a", b"k", *b"v").await.unwrap();
    assert_eq!(client.increment("t/a", b"n", "", 0).await.unwrap(), 10);
    assert!(client.get("t/a", b"k").await.unwrap().is_some());

    let get = || vec![Query::Get { table: "t/a".into(), key: b"k".to_vec(), select: Select::Whole }];
    let refused = one.read(get(), Consistency::Linearizable).await.unwrap_err();
    assert_eq!(refused, ServiceError::NotLeader { leader: Some(addresses[1].to_string()) });
    // Reads that may be stale share a barrier.
    let before = *order.barriers.lock().unwrap();
    for _ in 0..5 {
        two.read(get(), Consistency::Stale { staleness_ms: 3_600_000 }).await.unwrap();
    }
    assert_eq!(*order.barriers.lock().unwrap(), before);
    two.read(get(), Consistency::Linearizable).await.unwrap();
    assert_eq!(*order.barriers.lock().unwrap(), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_is_sent_takes_the_place_of_the_one_there() {
    let order = Arc::new(Order::default());
    let leader = follow(&order, 2);
    let address = listen(leader.clone()).await;
    *order.addresses.lock().unwrap() = vec![String::new(), address.to_string()];
    let client = Client::new(ClientSettings::new([address.to_string()])).unwrap();
    table(&client, "t/a", TableOptions::default()).await;
    client.put("t/a", b"k", *b"old").await.unwrap();

    let mut other = weir_store::Store::new();
    let create = weir_store::Operation::CreateTable { table: "t/a".into(), options: TableOptions::default() };
    let action = weir_store::Action::Put { value: b"new".to_vec(), ttl_ms: 0 };
    let condition = weir_store::Condition::Always;
    let put = weir_store::Write { table: "t/a".into(), key: b"k".to_vec(), condition, action };
    let requests = [create, weir_store::Operation::Write(put)];
    other.apply(&Registry::new(), 1, &weir_store::Batch::once(requests));
    let snapshot = other.to_snapshot();
    order.sinks.lock().unwrap()[0].install(Position { term: 1, index: 9 }, &mut &snapshot[..]).unwrap();
    let found = client.get("t/a", b"k").await.unwrap().unwrap();
    assert_eq!(found.value, Selected::Whole(b"new".to_vec()));
    let digest = leader.read(vec![Query::Digest], Consistency::Linearizable).await.unwrap();
    let Answer::Digest { digest, .. } = digest.answers[0] else { panic!("no digest") };
    assert_eq!(digest, other.digest());
    let damaged = order.sinks.lock().unwrap()[0].install(Position { term: 1, index: 10 }, &mut &b"x"[..]);
    assert!(damaged.is_err(), "what is no state is not taken over");
}
