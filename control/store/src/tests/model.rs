//! The store against a naive one, over any interleaving of operations, time, retries, snapshots and restores.

use super::*;
use crate::columns::Columns;
use proptest::prelude::*;
use std::collections::BTreeMap;

const TABLES: [&str; 3] = ["m/a", "m/b", "m/columns"];
const NAMES: [&str; 2] = ["x", "y"];

#[derive(Clone, Debug)]
enum Deed {
    Write { table: usize, key: u8, condition: u8, action: u8, value: u8, ttl_ms: u64 },
    Both { key: u8, value: u8, hold: bool },
    Drop(usize),
    Create(usize),
    Wait(u64),
    Again,
    Restore,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let write = (0..3_usize, 0..4_u8, 0..6_u8, 0..5_u8, 0..3_u8, prop_oneof![Just(0_u64), 1..20_u64])
        .prop_map(|(table, key, condition, action, value, ttl_ms)| Deed::Write {
            table,
            key,
            condition,
            action,
            value,
            ttl_ms,
        });
    let deed = prop_oneof![
        12 => write,
        2 => (0..4_u8, 0..3_u8, any::<bool>()).prop_map(|(key, value, hold)| Deed::Both { key, value, hold }),
        1 => (0..3_usize).prop_map(Deed::Drop),
        1 => (0..3_usize).prop_map(Deed::Create),
        2 => (1..15_u64).prop_map(Deed::Wait),
        2 => Just(Deed::Again),
        1 => Just(Deed::Restore),
    ];
    proptest::collection::vec(deed, 0..60)
}

/// An entry of the naive store: value, version, time of expiry.
type Entry = (Vec<u8>, u64, u64);

/// What the store must be, without any of its structures.
#[derive(Default)]
struct Naive {
    tables: BTreeMap<usize, BTreeMap<Vec<u8>, Entry>>,
    version: u64,
    now_ms: u64,
}

impl Naive {
    fn advance(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        let mut gone = false;
        for entries in self.tables.values_mut() {
            let before = entries.len();
            entries.retain(|_, (_, _, expires_ms)| *expires_ms == 0 || *expires_ms > now_ms);
            gone |= entries.len() < before;
        }
        self.version += u64::from(gone);
    }

    fn entry(&self, table: usize, key: &[u8]) -> Option<&Entry> {
        self.tables.get(&table)?.get(key)
    }

    fn holds(&self, table: usize, key: &[u8], condition: &Condition) -> bool {
        let entry = self.entry(table, key);
        match condition {
            Condition::Always => true,
            Condition::Absent => entry.is_none(),
            Condition::Present => entry.is_some(),
            Condition::Version(version) => entry.map_or(0, |entry| entry.1) == version.0,
            Condition::Value(value) => entry.is_some_and(|entry| entry.0 == *value),
            Condition::Column { column, value } => {
                let columns = entry.and_then(|entry| Columns::read(&entry.0));
                columns.and_then(|columns| columns.get(column).map(<[u8]>::to_vec)) == *value
            }
        }
    }

    fn write(&mut self, table: usize, key: &[u8], condition: &Condition, action: &Action) -> Outcome {
        if !self.tables.contains_key(&table) {
            return Outcome::Refused(Refusal::NoTable { table: TABLES[table].into() });
        }
        let found = Version(self.entry(table, key).map_or(0, |entry| entry.1));
        if !self.holds(table, key, condition) {
            return Outcome::Conflict { step: 0, found };
        }
        let old = self.entry(table, key).cloned();
        let version = self.version + 1;
        let expires = |now_ms: u64, ttl_ms: u64| if ttl_ms == 0 { 0 } else { now_ms + ttl_ms };
        let new = match (action, old) {
            (Action::Put { value, ttl_ms }, _) => (value.clone(), version, expires(self.now_ms, *ttl_ms)),
            (Action::Touch { ttl_ms }, Some(old)) => (old.0, version, expires(self.now_ms, *ttl_ms)),
            (Action::Touch { .. }, None) => return Outcome::Conflict { step: 0, found: Version(0) },
            (Action::Remove, None) => return Outcome::Written { version: Version(0) },
            (Action::Remove, Some(_)) => {
                self.tables.get_mut(&table).unwrap().remove(key);
                self.version = version;
                return Outcome::Written { version: Version(version) };
            }
            (Action::Columns { set, remove }, old) => {
                let old = old.unwrap_or_else(|| (Columns::new().to_value(), 0, 0));
                let mut columns: BTreeMap<String, Vec<u8>> =
                    Columns::read(&old.0).unwrap().iter().map(|(n, b)| (n.into(), b.into())).collect();
                columns.extend(set.iter().cloned());
                remove.iter().for_each(|name| drop(columns.remove(name)));
                let mut again = Columns::new();
                columns.iter().for_each(|(name, bytes)| again.set(name, bytes).unwrap());
                (again.to_value(), version, old.2)
            }
            (Action::Increment { .. }, _) => unreachable!("the model has no counters"),
        };
        self.tables.get_mut(&table).unwrap().insert(key.into(), new);
        self.version = version;
        Outcome::Written { version: Version(version) }
    }
}

fn condition(kind: u8, value: u8, table: usize, version: u64) -> Condition {
    match kind {
        0 => Condition::Absent,
        1 => Condition::Present,
        2 => Condition::Version(Version(version)),
        3 => Condition::Value(vec![value]),
        4 if table == 2 => Condition::Column { column: NAMES[0].into(), value: Some(vec![value]) },
        _ => Condition::Always,
    }
}

fn action(kind: u8, value: u8, table: usize, ttl_ms: u64) -> Action {
    match (kind, table) {
        (0, _) => Action::Remove,
        (1, _) => Action::Touch { ttl_ms },
        (2, 2) => Action::Columns { set: vec![], remove: vec![NAMES[1].into()] },
        (_, 2) => {
            Action::Columns { set: vec![(NAMES[usize::from(value % 2)].into(), vec![value])], remove: vec![] }
        }
        _ => Action::Put { value: vec![value], ttl_ms },
    }
}

/// Two replicas, of which one is taken down to its snapshot and up again whenever the deeds say so.
struct Pair {
    stores: [Store; 2],
    naive: Naive,
    client: u64,
    sequence: u64,
    last: Option<(Operation, Outcome)>,
}

impl Pair {
    fn new() -> Pair {
        let stores = [Store::new(), Store::new()];
        let mut pair = Pair { stores, naive: Naive::default(), client: 0, sequence: 0, last: None };
        let Outcome::Opened { client } = pair.ask(Operation::OpenClient, 0) else { panic!() };
        pair.client = client;
        pair.naive.version = 1;
        pair.last = None;
        pair
    }

    fn ask(&mut self, operation: Operation, sequence: u64) -> Outcome {
        let (client, now_ms) = (self.client, self.naive.now_ms);
        let settled_below = sequence.saturating_sub(2);
        let request = Request { sequence, operation };
        let batch = Batch { client, principal: 0, settled_below, requests: vec![request] };
        let [one, other] = self.stores.each_mut().map(|store| store.apply(&Registry::new(), now_ms, &batch));
        assert_eq!(one, other, "two replicas agree");
        one.outcomes.into_iter().next().unwrap()
    }

    fn request(&mut self, operation: Operation, wanted: Outcome) {
        self.sequence += 1;
        let outcome = self.ask(operation.clone(), self.sequence);
        assert_eq!(outcome, wanted);
        self.last = Some((operation, outcome));
    }

    fn play(&mut self, deed: &Deed) {
        match *deed {
            Deed::Write { table, key, condition: holds, action: does, value, ttl_ms } => {
                let key = [key];
                let version =
                    self.naive.entry(table, &key).map_or(0, |entry| entry.1) + u64::from(value == 0);
                let (condition, action) =
                    (condition(holds, value, table, version), action(does, value, table, ttl_ms));
                let wanted = self.naive.write(table, &key, &condition, &action);
                self.request(write(TABLES[table], &key, condition, action), wanted);
            }
            Deed::Both { key, value, hold } => self.both(key, value, hold),
            Deed::Drop(table) => {
                let there = self.naive.tables.remove(&table).is_some();
                let refused = Refusal::NoTable { table: TABLES[table].into() };
                let wanted = self.administered(there, refused);
                self.request(Operation::DropTable { table: TABLES[table].into() }, wanted);
            }
            Deed::Create(number) => {
                let absent = !self.naive.tables.contains_key(&number);
                self.naive.tables.entry(number).or_default();
                let refused = Refusal::TableExists { table: TABLES[number].into() };
                let wanted = self.administered(absent, refused);
                let options = TableOptions { columns: number == 2, ..TableOptions::default() };
                self.request(table(TABLES[number], options), wanted);
            }
            Deed::Wait(ms) => {
                self.naive.advance(self.naive.now_ms + ms);
                let now_ms = self.naive.now_ms;
                self.stores.iter_mut().for_each(|store| drop(store.advance(now_ms)));
            }
            Deed::Again => {
                if let Some((operation, outcome)) = self.last.clone() {
                    assert_eq!(self.ask(operation, self.sequence), outcome, "asked again");
                }
            }
            Deed::Restore => self.stores[1] = Store::from_snapshot(&self.stores[1].to_snapshot()).unwrap(),
        }
    }

    fn administered(&mut self, done: bool, refused: Refusal) -> Outcome {
        if !done {
            return Outcome::Refused(refused);
        }
        self.naive.version += 1;
        Outcome::Written { version: Version(self.naive.version) }
    }

    /// Writes two tables or none.
    fn both(&mut self, key: u8, value: u8, hold: bool) {
        let key = [key];
        let condition = if hold { Condition::Always } else { Condition::Present };
        let steps = [0, 1].map(|table| {
            let action = Action::Put { value: vec![value], ttl_ms: 0 };
            Step::Write(step_write(TABLES[table], &key, condition.clone(), action))
        });
        let version = self.naive.version + 1;
        let mut wanted = Outcome::Done { version: Version(version), steps: vec![StepOutcome::Done; 2] };
        for (step, name) in TABLES.iter().enumerate().take(2) {
            if !self.naive.tables.contains_key(&step) {
                wanted = Outcome::Refused(Refusal::NoTable { table: (*name).into() });
                break;
            }
            if !self.naive.holds(step, &key, &condition) {
                wanted = Outcome::Conflict { step: step as u32, found: Version(0) };
                break;
            }
        }
        if matches!(wanted, Outcome::Done { .. }) {
            for table in 0..2 {
                self.naive.tables.get_mut(&table).unwrap().insert(key.into(), (vec![value], version, 0));
            }
            self.naive.version = version;
        }
        self.request(Operation::Transaction(steps.into()), wanted);
    }

    fn compare(&self) {
        let [one, other] = &self.stores;
        assert_eq!(
            (one.digest(), one.version(), one.bytes()),
            (other.digest(), other.version(), other.bytes())
        );
        assert_eq!(one.version().0, self.naive.version);
        for (number, table) in TABLES.iter().enumerate() {
            let found: BTreeMap<Vec<u8>, Entry> = one
                .range(table, b"")
                .map(|(key, cell)| (key.to_vec(), (cell.value.to_vec(), cell.version.0, cell.expires_ms)))
                .collect();
            assert_eq!(found, self.naive.tables.get(&number).cloned().unwrap_or_default());
        }
        let bytes: usize =
            self.naive.tables.values().flatten().map(|(key, entry)| key.len() + entry.0.len()).sum();
        let entries = self.naive.tables.values().map(BTreeMap::len).sum::<usize>();
        for store in &self.stores {
            let Answer::Usage { used, .. } =
                store.query(&Registry::new(), &Query::Usage { namespace: "m".into() })
            else {
                panic!()
            };
            assert_eq!((used.bytes_max, used.entries_max), (bytes as u64, entries as u64));
            assert_eq!(used.tables_max, self.naive.tables.len() as u64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_is_the_naive_store_and_replicas_agree(deeds in deeds()) {
        let mut pair = Pair::new();
        for deed in &deeds {
            pair.play(deed);
            pair.compare();
        }
    }
}
