use super::*;
use crate::conntrack::tests::key;
use crate::conntrack::{ConnectionId, Limits, Owner, Sides, Way};
use proptest::prelude::*;
use weir_packet::headers::tcp_flags::{ACK, FIN, RST, SYN};

fn connection(protocol: u8, port: u16) -> Connection {
    let sides = Sides { egress: Some(true), ingress: None };
    Connection::new(key(protocol, port), 1, sides, 0, Owner::Port(3))
}

fn all(table: &Connections) -> Vec<CarriedConnection> {
    let (mut all, rest) = table.part(0, usize::MAX);
    assert_eq!(rest, None);
    all.sort_by_key(|carried| (carried.key.protocol, carried.key.source.1));
    all
}

/// What is carried, without the time: a packet alone is no change to be told of.
fn timeless(mut all: Vec<CarriedConnection>) -> Vec<CarriedConnection> {
    all.iter_mut().for_each(|carried| carried.last_ms = 0);
    all
}

fn take(table: &mut Connections, changes: &Changes) {
    for gone in &changes.gone {
        table.end_carried(&gone.into());
    }
    for carried in &changes.put {
        let at = FlowKey::from(&carried.key);
        let connection = connection(at.protocol, at.source_port);
        assert!(table.carry(connection, carried));
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Open(u8, u16),
    See(usize, bool, u8),
    Revoke(usize),
    Remove(usize),
    /// Another part, or what changed, goes over.
    Carry,
}

fn step() -> impl Strategy<Value = Step> {
    let flags = prop::sample::select(vec![SYN, SYN | ACK, ACK, ACK | FIN, RST]);
    prop_oneof![
        4 => (prop::sample::select(vec![6_u8, 17]), 0..30_u16).prop_map(|(protocol, port)| Step::Open(protocol, port)),
        8 => (any::<usize>(), any::<bool>(), flags).prop_map(|(at, back, flags)| Step::See(at, back, flags)),
        1 => any::<usize>().prop_map(Step::Revoke),
        3 => any::<usize>().prop_map(Step::Remove),
        4 => Just(Step::Carry),
    ]
}

proptest! {
    #[test]
    fn what_is_carried_over_while_all_of_it_changes_is_the_same_in_the_end(
        before in prop::collection::vec(step(), 0..60),
        during in prop::collection::vec(step(), 0..120),
    ) {
        let mut old = Connections::new(Limits::default());
        let mut new = Connections::new(Limits::default());
        let mut now_ms = 0;
        let mut cursor = None;
        let mut act = |old: &mut Connections, new: &mut Connections, step: Step, cursor: &mut Option<Option<usize>>| {
            now_ms += 1;
            let ids: Vec<ConnectionId> = old.iter().map(|(id, _)| id).collect();
            let id = |at: usize| ids.get(at % ids.len().max(1)).copied();
            match step {
                Step::Open(protocol, port) if old.find(&key(protocol, port)).is_none() => {
                    old.open(now_ms, connection(protocol, port));
                }
                Step::See(at, back, flags) => {
                    let way = if back { Way::Reply } else { Way::Opener };
                    id(at).into_iter().for_each(|id| old.touch(now_ms, id, way, flags));
                }
                Step::Revoke(at) => id(at).into_iter().for_each(|id| old.revoke(now_ms, id, 2, 0)),
                Step::Remove(at) => id(at).into_iter().for_each(|id| old.remove(id)),
                Step::Carry => match cursor {
                    Some(Some(from)) => {
                        let (put, next) = old.part(*from, 3);
                        take(new, &Changes { put, gone: Vec::new() });
                        *cursor = Some(next);
                    }
                    Some(None) => take(new, &old.take_changed().unwrap()),
                    None => {}
                },
                Step::Open(..) => {}
            }
        };
        for one in before {
            act(&mut old, &mut new, one, &mut cursor);
        }
        old.note_changes(true);
        cursor = Some(Some(0));
        for one in during {
            act(&mut old, &mut new, one, &mut cursor);
        }
        while matches!(cursor, Some(Some(_))) {
            act(&mut old, &mut new, Step::Carry, &mut cursor);
        }
        act(&mut old, &mut new, Step::Carry, &mut cursor);
        prop_assert_eq!(timeless(all(&old)), timeless(all(&new)));
        prop_assert!(new.take_changes().is_empty(), "the journal has it already");
    }
}

#[test]
fn too_many_changes_are_told_and_a_new_beginning_is_clean() {
    let mut table = Connections::new(Limits::default());
    assert_eq!(table.take_changed(), None, "nobody asked to note them");
    table.note_changes(true);
    let mut changed = Changed::default();
    for port in 0..=u16::MAX {
        for protocol in [1, 2, 3, 4, 5] {
            changed.note(&key(protocol, port));
        }
    }
    table.changed = Some(changed);
    assert_eq!(table.take_changed(), None);
    table.note_changes(true);
    table.open(5, connection(6, 1)).unwrap();
    let changes = table.take_changed().unwrap();
    assert_eq!((changes.put.len(), changes.gone.len(), changes.put[0].last_ms), (1, 0, 5));
    assert_eq!(table.take_changed(), Some(Changes::default()));
}
