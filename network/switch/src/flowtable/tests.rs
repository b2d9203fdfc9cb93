use super::*;
use crate::flow::{Action, Hop, NO_CONNECTION};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use weir_model::resource::Encapsulation;
use weir_packet::{FlowKey, IpAddress};

fn key(number: u32) -> FlowKey {
    FlowKey {
        source: IpAddress::v4(number.to_be_bytes()),
        destination: IpAddress::v4([10, 0, 0, 1]),
        zone: number % 7,
        source_port: number as u16,
        destination_port: 80,
        vlan: 0xffff,
        protocol: 6,
        flags: 0,
    }
}

fn action(counter: u32) -> CompiledAction {
    let action = Action {
        hop: Hop::Drop,
        ethernet: None,
        nat: None,
        routed: false,
        mtu: 1500,
        mss_max: 0,
        counter,
        connection: NO_CONNECTION,
        idle_ms: 1000,
        hangs: Default::default(),
    };
    CompiledAction::new(&action).unwrap()
}

fn table() -> (Shadow, Box<Tables>, Arc<FlowStore>) {
    let store = Arc::new(FlowStore::new(rand_words()));
    let (shadow, tables) = Shadow::new(Arc::clone(&store));
    (shadow, tables, store)
}

fn rand_words() -> [u64; 2] {
    use std::hash::{BuildHasher, Hasher};
    let word = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    [word(), word()]
}

/// Publishes; returns the copy that the engine now has. `engine` is what it had.
fn swap(shadow: &mut Shadow, engine: Box<Tables>) -> Box<Tables> {
    let published = shadow.publish().unwrap();
    shadow.take_back(engine);
    published
}

fn counter_of(tables: &Tables, store: &FlowStore, key: &FlowKey) -> Option<u32> {
    tables.find(store, store.hash(key), key).map(|(_, action)| action.counter)
}

#[test]
fn every_inserted_flow_is_found_at_every_size() {
    let (mut shadow, mut engine, store) = table();
    let mut next = 0;
    for size in [1_000, 10_000, 200_000] {
        while next < size {
            shadow.insert(key(next), action(next), 0).unwrap();
            next += 1;
            if next.is_multiple_of(777) {
                engine = swap(&mut shadow, engine);
            }
        }
        engine = swap(&mut shadow, engine);
        engine = swap(&mut shadow, engine);
        assert_eq!(shadow.flows(), size as usize);
        let lost = (0..size).filter(|&n| counter_of(&engine, &store, &key(n)) != Some(n)).count();
        assert_eq!(lost, 0, "of {size} flows");
        assert!(counter_of(&engine, &store, &key(size + 1)).is_none());
    }
}

#[test]
fn nearly_every_flow_is_where_it_is_looked_for_first() {
    let (mut shadow, mut engine, store) = table();
    // 4096 buckets, three quarters full: one more would double them.
    for number in 0..4096 * 6 {
        shadow.insert(key(number), action(number), 0).unwrap();
    }
    engine = swap(&mut shadow, engine);
    assert_eq!(engine.index.bytes(), 4096 * 64);
    let share = engine.index.share_in_first(&store);
    assert!((0.92..0.97).contains(&share), "{share}");
    let lost = (0..4096 * 6).filter(|&n| counter_of(&engine, &store, &key(n)) != Some(n)).count();
    assert_eq!(lost, 0, "whoever made room for another is found");
}

#[test]
fn a_full_index_says_so_and_keeps_what_it_has() {
    let store = FlowStore::new([1, 2]);
    let mut index = Index::default();
    // The same hash over and over: two buckets take sixteen.
    for slot in 0..16 {
        assert_eq!(index.insert(0xabcd_0000_0000_0007, slot), Ok(()));
    }
    assert_eq!(index.insert(0xabcd_0000_0000_0007, 16), Err(index::Crowded));
    assert_eq!(index.count(), 16);
    assert!(index.remove(0xabcd_0000_0000_0007, 3));
    assert_eq!(index.insert(0xabcd_0000_0000_0007, 17), Ok(()));
    assert_eq!(store.slots(), 0);
}

#[test]
fn a_removed_slot_is_reused_only_after_the_swap() {
    let (mut shadow, engine, store) = table();
    let (first, _) = shadow.insert(key(1), action(1), 0).unwrap();
    let engine = swap(&mut shadow, engine);
    let (second, replaced) = shadow.insert(key(1), action(2), 0).unwrap();
    assert_eq!(replaced, Some(first));
    assert_ne!(first, second);
    let (third, _) = shadow.insert(key(3), action(3), 0).unwrap();
    assert_ne!(third, first, "the engine still reads it");
    assert_eq!(counter_of(&engine, &store, &key(1)), Some(1));
    let engine = swap(&mut shadow, engine);
    assert_eq!(counter_of(&engine, &store, &key(1)), Some(2));
    let (fourth, _) = shadow.insert(key(4), action(4), 0).unwrap();
    assert_eq!(fourth, first);
}

/// To another switch, for a network.
fn action_to(vni: u32) -> CompiledAction {
    let tunnel = tunnel::Tunnel::new([192, 0, 2, 1].into(), vni, Encapsulation::Geneve, Some(3)).unwrap();
    CompiledAction { hop: CompiledHop::Underlay(tunnel), ..action(0) }
}

fn way_of(tables: &Tables, store: &FlowStore, key: &FlowKey) -> Option<(u16, CompiledHop)> {
    let near = tables.prefetch_flow(store, store.hash(key), true);
    let way = tables.brief_near(store, near, key)?.1.way()?;
    Some((way, CompiledHop::Underlay(store.way(way).tunnel)))
}

#[test]
fn flows_of_one_way_share_it_and_it_is_free_after_the_last_of_them() {
    let (mut shadow, engine, store) = table();
    let (one, _) = shadow.insert(key(1), action_to(7), 0).unwrap();
    shadow.insert(key(2), action_to(7), 0).unwrap();
    shadow.insert(key(3), action_to(8), 0).unwrap();
    let engine = swap(&mut shadow, engine);
    let ways = [1, 2, 3].map(|number| way_of(&engine, &store, &key(number)).unwrap());
    assert_eq!(ways[0], ways[1]);
    assert_ne!(ways[0].0, ways[2].0);
    assert_eq!([ways[0].1, ways[2].1], [7, 8].map(|vni| action_to(vni).hop));
    shadow.remove(one);
    // Of the other way now: of the first nothing is left when the engine has been told.
    shadow.insert(key(2), action_to(8), 0).unwrap();
    shadow.insert(key(4), action_to(9), 0).unwrap();
    assert_eq!(way_of(&engine, &store, &key(2)), Some(ways[0]), "the engine still reads it");
    let engine = swap(&mut shadow, engine);
    assert_eq!(way_of(&engine, &store, &key(2)), Some(ways[2]));
    let other = way_of(&engine, &store, &key(4)).unwrap();
    assert!(![ways[0].0, ways[2].0].contains(&other.0));
    shadow.insert(key(5), action_to(10), 0).unwrap();
    let engine = swap(&mut shadow, engine);
    let again = way_of(&engine, &store, &key(5)).unwrap();
    assert_eq!(again, (ways[0].0, action_to(10).hop), "the number is used again");
}

#[test]
fn flows_of_more_ways_than_there_may_be_go_the_long_way() {
    let (mut shadow, _, store) = table();
    let count = ways::WAYS_MAX as u32;
    for number in 0..count + 2 {
        shadow.insert(key(number), action_to(number), 0).unwrap();
    }
    let tables = shadow.publish().unwrap();
    let find = |number: u32| tables.find(&store, store.hash(&key(number)), &key(number)).unwrap().0;
    for number in [0, count - 1, count, count + 1] {
        let slot = Some(find(number));
        let (_, brief) = tables.brief_near(&store, slot, &key(number)).unwrap();
        let has_way = number < count;
        assert_eq!((brief.way().is_some(), brief.is_all(64, 0)), (has_way, has_way), "{number}");
    }
}

#[test]
fn zones_follow_the_swap() {
    let (mut shadow, engine, _) = table();
    let zone = ZoneKey {
        sender: IpAddress::v4([192, 0, 2, 1]),
        vni: 5,
        format: Encapsulation::Geneve,
        half: weir_packet::encap::Half::Unsaid,
    };
    shadow.set_zone(zone, 9);
    let engine = swap(&mut shadow, engine);
    assert_eq!(engine.zones.get(&zone), Some(&9));
    shadow.remove_zone(zone);
    assert_eq!(engine.zones.get(&zone), Some(&9));
    let engine = swap(&mut shadow, engine);
    assert_eq!(engine.zones.get(&zone), None);
}

#[derive(Clone, Debug)]
enum Step {
    Put(u32, u32),
    Remove(u32),
    Swap,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u32..400, any::<u32>()).prop_map(|(k, v)| Step::Put(k, v)),
        3 => (0_u32..400).prop_map(Step::Remove),
        1 => Just(Step::Swap),
    ]
}

proptest! {
    #[test]
    fn it_is_a_map_that_changes_at_swaps(steps in proptest::collection::vec(step(), 1..3000)) {
        let (mut shadow, mut engine, store) = table();
        let (mut wanted, mut published) = (HashMap::new(), HashMap::new());
        for step in steps {
            match step {
                Step::Put(k, v) => {
                    let (_, replaced) = shadow.insert(key(k), action(v), 0).unwrap();
                    prop_assert_eq!(replaced.is_some(), wanted.insert(k, v).is_some());
                }
                Step::Remove(k) => {
                    let slot = shadow.find(&key(k));
                    prop_assert_eq!(slot.is_some(), wanted.remove(&k).is_some());
                    if let Some(slot) = slot {
                        shadow.remove(slot);
                    }
                }
                Step::Swap => {
                    engine = swap(&mut shadow, engine);
                    published = wanted.clone();
                }
            }
            prop_assert_eq!(shadow.flows(), wanted.len());
        }
        for k in 0..400 {
            prop_assert_eq!(counter_of(&engine, &store, &key(k)), published.get(&k).copied());
        }
    }
}

/// A thread reads all the time while the table is changed under it: a flow that stays is always found with
/// its own action, whatever the others do.
#[test]
fn swaps_under_a_reader() {
    let (mut shadow, tables, store) = table();
    let (to_engine, from_slow) = sync_channel::<Box<Tables>>(4);
    let (to_slow, from_engine) = sync_channel::<Box<Tables>>(4);
    let stop = Arc::new(AtomicBool::new(false));
    for n in 0..100 {
        shadow.insert(key(n), action(n), 0).unwrap();
    }
    let mut engine = tables;
    engine = swap(&mut shadow, engine);
    let reader = {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        std::thread::spawn(move || {
            let (mut reads, mut wrong) = (0_u64, 0_u64);
            while !stop.load(Ordering::Relaxed) {
                if let Ok(new) = from_slow.try_recv() {
                    let old = std::mem::replace(&mut engine, new);
                    to_slow.send(old).unwrap();
                }
                for n in 0..100 {
                    let found = counter_of(&engine, &store, &key(n));
                    wrong += u64::from(found.is_none_or(|c| c % 1000 != n));
                    reads += 1;
                }
                for n in 1000..1100 {
                    let found = counter_of(&engine, &store, &key(n));
                    wrong += u64::from(found.is_some_and(|c| c != n));
                }
            }
            (reads, wrong)
        })
    };
    for round in 0..2000_u32 {
        for n in 0..100 {
            let other = 1000 + (round * 100 + n) % 5000;
            match shadow.find(&key(other)) {
                Some(slot) => shadow.remove(slot),
                None => drop(shadow.insert(key(other), action(other), 0).unwrap()),
            }
        }
        shadow.insert(key(round % 100), action(round % 100 + 1000 * (round % 50)), 0).unwrap();
        to_engine.send(shadow.publish().unwrap()).unwrap();
        shadow.take_back(from_engine.recv().unwrap());
    }
    stop.store(true, Ordering::Relaxed);
    let (reads, wrong) = reader.join().unwrap();
    assert!(reads > 0);
    assert_eq!(wrong, 0);
}

#[test]
fn one_slot_is_small() {
    assert!(FlowStore::slot_bytes() <= 256, "{} bytes", FlowStore::slot_bytes());
}

#[test]
fn what_was_asked_for_ahead_is_found_and_what_was_wrong_is_looked_for_again() {
    let (mut shadow, _, store) = table();
    let count = 20_000;
    for number in 0..count {
        shadow.insert(key(number), action(number), 0).unwrap();
    }
    let tables = shadow.publish().unwrap();
    for number in 0..count + 100 {
        let (key, wrong) = (key(number), Some(number % 7));
        let hash = store.hash(&key);
        tables.prefetch_bucket(hash);
        let near = tables.prefetch_flow(&store, hash, true);
        let wanted = (number < count).then_some(number);
        for near in [near, wrong, None] {
            let found = tables.find_near(&store, near, hash, &key).map(|(_, action)| action.counter);
            assert_eq!(found, wanted, "with {near:?}");
        }
    }
}

#[test]
fn a_store_takes_as_many_flows_as_it_was_made_for() {
    let store = Arc::new(FlowStore::with_flows_max(rand_words(), 500));
    let (mut shadow, _) = Shadow::new(Arc::clone(&store));
    for number in 0..500 {
        shadow.insert(key(number), action(number), 0).unwrap();
    }
    assert_eq!(shadow.insert(key(500), action(500), 0), Err(TableFull));
    assert!(shadow.insert(key(499), action(7), 0).is_ok(), "one that is there may be replaced");
    let least = store.slots() * FlowStore::slot_bytes();
    assert!(shadow.bytes() > least && shadow.bytes() < 2 * least + 500 * 256, "{}", shadow.bytes());
}

/// A number that an array may consist of.
#[repr(align(32))]
struct Number(u64);

// SAFETY: zero is a number.
#[allow(unsafe_code)]
unsafe impl zeroed::Zeroable for Number {}

#[test]
fn large_arrays_are_zero_and_begin_a_huge_page() {
    use zeroed::Zeroed;
    let mut array: Zeroed<Number> = Zeroed::new(200_000);
    assert!((array.as_ptr() as usize).is_multiple_of(2 << 20));
    assert!(array.iter().all(|number| number.0 == 0));
    array[199_999].0 = 7;
    assert_eq!(array[199_999].0, 7);
    let small: Zeroed<Number> = Zeroed::new(1);
    assert_eq!((small.len(), small[0].0), (1, 0));
}

/// Number and hop of the brief that a key's flow names.
fn brief_of(tables: &Tables, store: &FlowStore, key: &FlowKey) -> (u32, u16) {
    let slot = tables.find(store, store.hash(key), key).unwrap().0;
    let (flow, brief) = tables.brief_near(store, Some(slot), key).unwrap();
    (flow.brief_number(), brief.mtu)
}

#[test]
fn flows_of_equal_actions_share_a_brief_which_lives_as_long_as_a_slot_that_the_engine_may_read() {
    let (mut shadow, engine, store) = table();
    let of = |mtu| CompiledAction { mtu, ..action(0) };
    let (one, _) = shadow.insert(key(1), of(1500), 0).unwrap();
    let (two, _) = shadow.insert(key(2), of(1500), 0).unwrap();
    shadow.insert(key(3), of(1400), 0).unwrap();
    let engine = swap(&mut shadow, engine);
    let before = [1, 2, 3].map(|number| brief_of(&engine, &store, &key(number)));
    assert_eq!(before.map(|(_, mtu)| mtu), [1500, 1500, 1400]);
    assert!(before[0].0 == before[1].0 && before[0].0 != before[2].0);
    shadow.remove(one);
    shadow.remove(two);
    shadow.insert(key(4), of(1300), 0).unwrap();
    assert_eq!(brief_of(&engine, &store, &key(1)), before[0], "the engine still reads it");
    let engine = swap(&mut shadow, engine);
    let other = brief_of(&engine, &store, &key(4));
    assert!(before.iter().all(|(number, _)| *number != other.0));
    shadow.insert(key(5), of(1200), 0).unwrap();
    let engine = swap(&mut shadow, engine);
    assert_eq!(brief_of(&engine, &store, &key(5)), (before[0].0, 1200), "the number is used again");
    assert_eq!(brief_of(&engine, &store, &key(3)), before[2]);
}

#[test]
fn as_many_briefs_as_flows_fit() {
    let store = Arc::new(FlowStore::with_flows_max(rand_words(), 3000));
    let (mut shadow, engine) = Shadow::new(Arc::clone(&store));
    for number in 0..3000 {
        shadow.insert(key(number), action(number), 0).unwrap();
    }
    let mut engine = swap(&mut shadow, engine);
    // Every flow replaced by one of another brief, again and again: what was is free after a swap.
    for round in 1..5 {
        for number in 0..3000 {
            shadow.insert(key(number), action(round * 3000 + number), 0).unwrap();
        }
        engine = swap(&mut shadow, engine);
    }
    for number in 0..3000 {
        let (slot, _) = engine.find(&store, store.hash(&key(number)), &key(number)).unwrap();
        let (_, brief) = engine.brief_near(&store, Some(slot), &key(number)).unwrap();
        assert_eq!(brief.counter(), 12_000 + number);
    }
}

#[test]
fn counters_of_a_flow_say_when_it_was_seen_before_and_behind_the_turn_of_their_time() {
    let (mut shadow, _, store) = table();
    // The times have 24 bits; `now` is that of another thread, a little behind or long after.
    for seen in [0, 5, (1 << 24) - 1, 1 << 24, (1 << 24) + 7, u32::MAX - 3] {
        let (slot, _) = shadow.insert(key(1), action(0), seen).unwrap();
        let counters = store.counters(slot);
        assert_eq!(counters.last_seen_ms(seen), seen);
        for step in [0_i32, -40, 1, 999, 7_200_000] {
            let now = seen.wrapping_add_signed(step);
            assert_eq!(counters.last_seen_ms(now), seen, "{seen} seen from {now}");
        }
        let later = seen.wrapping_add(1000);
        counters.count(u32::MAX, 1 << 40, seen, 0x12);
        counters.count(3, 1, later, 0x01);
        assert_eq!((counters.packets(), counters.bytes()), (2, (1 << 40) + 1));
        assert_eq!(counters.last_seen_ms(later), later);
        assert_eq!((counters.take_tcp_flags(), counters.take_tcp_flags()), (0x13, 0));
        assert_eq!(counters.last_seen_ms(later), later, "taking the flags leaves the time");
    }
}
