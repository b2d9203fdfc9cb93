#![allow(clippy::unwrap_used)]

use super::*;
use weir_store::meter::{self, Bounds};
use weir_store::{
    Action, Answer, Batch, Condition, Meter, Operation, Outcome, Query, Refusal, Registry, Select, Step,
    Store, TableOptions, Terms, Write,
};

const ALLOC: &str = r#"
  (memory (export "memory") 1)
  (global $top (mut i32) (i32.const 1024))
  (func $alloc (export "alloc") (param $bytes i32) (result i32)
    (global.get $top)
    (global.set $top (i32.add (global.get $top) (local.get $bytes))))
"#;

/// A module whose `call` is this; `$at` and `$bytes` are the arguments'.
fn module(imports: &str, call: &str) -> Vec<u8> {
    let head = r#"(func $call (export "call") (param $at i32) (param $bytes i32) (result i64)"#;
    wat::parse_str(format!("(module {imports} {ALLOC} {head} {call}))")).unwrap()
}

struct World {
    store: Store,
    registry: Registry,
}

impl World {
    fn new() -> World {
        let registry = Registry::new().with_loader(Arc::new(WasmLoader::new()));
        let mut world = World { store: Store::new(), registry };
        world.ask(Operation::CreateTable { table: "t/a".into(), options: TableOptions::default() });
        let columns = TableOptions { columns: true, ..TableOptions::default() };
        world.ask(Operation::CreateTable { table: "t/c".into(), options: columns });
        world
    }

    fn ask(&mut self, operation: Operation) -> Outcome {
        self.store.apply(&self.registry, 5, &Batch::once([operation])).outcomes.remove(0)
    }

    fn load(&mut self, module: Vec<u8>) -> Result<(), String> {
        let limits = ProcedureLimits { fuel_max: 1_000_000, memory_bytes_max: 1 << 20 };
        match self.ask(Operation::LoadProcedure { procedure: "t/f".into(), module, limits }) {
            Outcome::Written { .. } => Ok(()),
            Outcome::Refused(Refusal::Module { problem, .. }) => Err(problem),
            other => panic!("{other:?}"),
        }
    }

    fn call(&mut self, arguments: &[u8]) -> Result<Vec<u8>, String> {
        match self.ask(Operation::Call { procedure: "t/f".into(), arguments: arguments.into() }) {
            Outcome::Reply { reply, .. } => Ok(reply),
            Outcome::Refused(refusal) => Err(refusal.to_string()),
            other => panic!("{other:?}"),
        }
    }
}

/// Writes to the table, then does what it is told.
fn writes_then(rest: &str) -> Vec<u8> {
    let put = r#"(import "weir" "put" (func $put (param i32 i32 i32 i32 i32 i32)))"#;
    let data = format!(
        r#"(i32.store8 (i32.const 0) (i32.const 97))
           (call $put (i32.const 0) (i32.const 1) (local.get $at) (local.get $bytes) (i32.const 0) (i32.const 1))
           {rest}"#
    );
    module(put, &data)
}

const REPLY_NOTHING: &str = "(i64.const 0)";

#[test]
fn a_module_reads_and_writes_tables() {
    let mut world = World::new();
    world.load(writes_then("(i64.or (i64.shl (i64.extend_i32_u (local.get $at)) (i64.const 32)) (i64.extend_i32_u (local.get $bytes)))")).unwrap();
    assert_eq!(world.call(b"key").unwrap(), b"key");
    assert_eq!(world.store.get("t/a", b"key").unwrap().value[..], b"a"[..]);

    let imports = r#"
        (import "weir" "increment" (func $increment (param i32 i32 i32 i32 i32 i32 i64) (result i64)))
        (import "weir" "column" (func $column (param i32 i32 i32 i32 i32 i32) (result i64)))
        (import "weir" "next" (func $next (param i32 i32 i32 i32) (result i64)))"#;
    let call = r#"
        (i32.store8 (i32.const 0) (i32.const 99)) (i32.store8 (i32.const 1) (i32.const 110))
        (drop (call $increment (i32.const 0) (i32.const 1) (local.get $at) (local.get $bytes) (i32.const 1) (i32.const 1) (i64.const 7)))
        (drop (call $next (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 0)))
        (call $column (i32.const 0) (i32.const 1) (local.get $at) (local.get $bytes) (i32.const 1) (i32.const 1))"#;
    world.load(module(imports, call)).unwrap();
    assert_eq!(world.call(b"k").unwrap(), 7_i64.to_be_bytes());
    assert_eq!(world.call(b"k").unwrap(), 14_i64.to_be_bytes());
}

/// The call is refused with these words, and the write before it did not happen.
fn ended(module: Vec<u8>, words: &str) {
    let mut world = World::new();
    world.load(module).unwrap();
    let digest = world.store.digest();
    let error = world.call(b"key").unwrap_err();
    assert!(error.contains(words), "'{error}' does not say '{words}'");
    assert_eq!((world.store.digest(), world.store.get("t/a", b"key")), (digest, None));
    assert_eq!(world.call(b"key").unwrap_err(), error, "the same each time");
}

#[test]
fn an_endless_loop_is_ended_without_effect() {
    ended(writes_then("(loop $again (br $again)) (i64.const 0)"), "fuel");
}

#[test]
fn endless_asking_is_ended_without_effect() {
    let rest = "(loop $again (call $put (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1)) (br $again)) (i64.const 0)";
    ended(writes_then(rest), "fuel");
}

#[test]
fn a_memory_bomb_is_ended_without_effect() {
    ended(writes_then("(loop $again (drop (memory.grow (i32.const 1))) (br $again)) (i64.const 0)"), "limit");
}

#[test]
fn a_trap_is_ended_without_effect() {
    ended(writes_then("unreachable"), "unreachable");
    ended(writes_then("(drop (i32.div_u (i32.const 1) (i32.const 0))) (i64.const 0)"), "zero");
    ended(writes_then("(drop (i32.load (i32.const -4))) (i64.const 0)"), "bounds");
}

#[test]
fn a_stack_overflow_is_ended_without_effect() {
    ended(writes_then("(call $call (local.get $at) (local.get $bytes))"), "stack");
}

#[test]
fn a_reply_that_is_not_there_is_ended_without_effect() {
    ended(writes_then("(i64.const -1)"), "reply");
    ended(writes_then("(i64.const 0x7fffffff00000010)"), "bounds");
}

#[test]
fn a_module_fails_with_its_own_words_and_stays_in_its_namespace() {
    let fail = r#"(import "weir" "fail" (func $fail (param i32 i32)))"#;
    ended(module(fail, "(call $fail (local.get $at) (local.get $bytes)) (i64.const 0)"), "it failed: key");
    let get = r#"(import "weir" "get" (func $get (param i32 i32 i32 i32) (result i64)))"#;
    let elsewhere = r#"(i32.store (i32.const 0) (i32.const 0x2f2e2e75)) (call $get (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 0))"#;
    ended(module(get, elsewhere), "no table 't/u../'");
}

#[test]
fn what_is_not_deterministic_or_not_ours_is_not_loaded() {
    let mut world = World::new();
    let mut refused = |module: Vec<u8>| world.load(module).unwrap_err();
    assert!(
        refused(module("", "(drop (f32.add (f32.const 1) (f32.const 2))) (i64.const 0)")).contains("float")
    );
    let clock =
        r#"(import "wasi_snapshot_preview1" "clock_time_get" (func (param i32 i64 i32) (result i32)))"#;
    assert!(refused(module(clock, REPLY_NOTHING)).contains("clock_time_get"));
    let shared = wat::parse_str(r#"(module (memory (export "memory") 1 1 shared))"#).unwrap();
    assert!(!refused(shared).is_empty());
    assert!(!refused(module("", "(drop (v128.const i32x4 0 0 0 0)) (i64.const 0)")).is_empty(), "vectors");
    let misfit = r#"(import "weir" "get" (func (param i64) (result i64)))"#;
    assert!(!refused(module(misfit, REPLY_NOTHING)).is_empty(), "an import of another type");
    let bare = wat::parse_str(r#"(module (memory (export "memory") 1))"#).unwrap();
    assert!(refused(bare).contains("alloc"));
    assert!(!refused(b"no module".to_vec()).is_empty());
    let large = module("", REPLY_NOTHING);
    let limits = ProcedureLimits { fuel_max: 1_000, memory_bytes_max: 1_000 };
    let small = WasmLoader::new().load(&large, limits).err().unwrap().to_string();
    assert!(small.contains("limit"), "a page of memory is more than allowed: {small}");
    let start = wat::parse_str(format!("(module {ALLOC} (func $s (loop $l (br $l))) (start $s) (func (export \"call\") (param i32 i32) (result i64) (i64.const 0)))")).unwrap();
    assert!(refused(start).contains("fuel"), "an endless start");
}

#[test]
fn two_replicas_agree_on_every_end() {
    let run = || {
        let mut world = World::new();
        for rest in ["unreachable", REPLY_NOTHING, "(loop $again (br $again)) (i64.const 0)"] {
            world.load(writes_then(rest)).unwrap();
            let _ = (world.call(b"x"), world.call(b"y"));
        }
        (world.store.digest(), world.store.version())
    };
    assert_eq!(run(), run());
}

/// `alloc` asks the store for a value that is there, which is placed by `alloc`, which asks again: so many times, then no more.
fn nesting(rounds: i32) -> Vec<u8> {
    let text = format!(
        r#"(module (import "weir" "get" (func $get (param i32 i32 i32 i32) (result i64)))
          (memory (export "memory") 1) (data (i32.const 0) "a") (data (i32.const 8) "k")
          (global $left (mut i32) (i32.const {rounds}))
          (func (export "alloc") (param i32) (result i32)
            (if (global.get $left) (then
              (global.set $left (i32.sub (global.get $left) (i32.const 1)))
              (drop (call $get (i32.const 0) (i32.const 1) (i32.const 8) (i32.const 1)))))
            (i32.const 1024))
          (func (export "call") (param i32 i32) (result i64) (i64.const 0)))"#
    );
    wat::parse_str(text).unwrap()
}

impl World {
    /// Asks in an entry of its own, bounded.
    fn bounded(&mut self, meter: &mut Meter, operations: Vec<Operation>) -> Vec<Outcome> {
        let terms = Terms { meter, who: None };
        self.store.apply_on(&self.registry, terms, 5, &Batch::once(operations)).outcomes
    }

    fn with(module: Vec<u8>) -> World {
        let mut world = World::new();
        let action = Action::Put { value: b"v".to_vec(), ttl_ms: 0 };
        let (table, key, condition) = ("t/a".into(), b"k".to_vec(), Condition::Always);
        world.ask(Operation::Write(Write { table, key, condition, action }));
        world.load(module).unwrap();
        world
    }
}

fn call_f() -> Operation {
    Operation::Call { procedure: "t/f".into(), arguments: b"key".to_vec() }
}

fn too_large(outcome: &Outcome, words: &str) -> bool {
    matches!(outcome, Outcome::Refused(Refusal::TooLarge { what, .. }) if what.contains(words))
}

#[test]
fn calls_within_each_other_are_bounded() {
    let within = i32::try_from(meter::DEPTH_MAX).unwrap();
    for (rounds, is_done) in [(0, true), (within, true), (within + 1, false), (i32::MAX, false)] {
        let mut world = World::with(nesting(rounds));
        let digest = world.store.digest();
        let outcome = world.bounded(&mut Meter::new(), vec![call_f()]).remove(0);
        let ended = too_large(&outcome, "depth");
        assert_eq!((matches!(outcome, Outcome::Reply { .. }), ended), (is_done, !is_done), "{outcome:?}");
        assert_eq!(world.store.digest(), digest);
        let query = Query::Call { procedure: "t/f".into(), arguments: vec![] };
        let answer = world.store.query(&world.registry, &query);
        assert_eq!(matches!(answer, Answer::Reply(_)), is_done, "read: {answer:?}");
    }
}

/// Entries from before there were bounds end with a reason as well, on the stack that they are carried out with.
#[test]
fn calls_within_each_other_without_bounds_end_with_a_reason() {
    let run = || World::with(nesting(i32::MAX)).call(b"key").unwrap_err();
    let thread = std::thread::Builder::new().stack_size(meter::STACK_BYTES).spawn(run).unwrap();
    let error = thread.join().unwrap();
    assert!(error.contains("depth") || error.contains("fuel"), "{error}");
    let run = || World::with(nesting(100)).call(b"key").unwrap();
    let thread = std::thread::Builder::new().stack_size(meter::STACK_BYTES).spawn(run).unwrap();
    assert_eq!(thread.join().unwrap(), b"", "what they could do, they can");
}

/// Bounds that are used up soon.
const SMALL: Bounds = Bounds { fuel: 400_000, bytes: 200_000, answered: 100_000, entries: 4_000 };

#[test]
fn the_fuel_of_all_calls_of_an_entry_is_bounded() {
    let fill =
        r#"(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br $l)) (i64.const 0)"#;
    for endless in ["(loop $again (br $again)) (i64.const 0)", fill] {
        let mut world = World::with(module("", endless));
        let mut meter = Meter::of(SMALL, SMALL);
        let outcomes = world.bounded(&mut meter, vec![call_f(); 200]);
        assert!(outcomes.iter().all(|outcome| too_large(outcome, "fuel")), "{:?}", outcomes[0]);
        assert_eq!(meter.used().fuel, SMALL.fuel);
    }
    // Its own limit is the procedure's, and said to be.
    let mut world = World::with(module("", "(loop $again (br $again)) (i64.const 0)"));
    let outcomes = world.bounded(&mut Meter::new(), vec![call_f()]);
    assert!(matches!(&outcomes[0], Outcome::Refused(Refusal::Procedure { .. })), "{outcomes:?}");
    // Bytes that bulk operations move cost fuel.
    let used = |count: usize| {
        let fill = format!(
            "{} (i64.const 0)",
            "(memory.fill (i32.const 0) (i32.const 1) (i32.const 65536))".repeat(count)
        );
        let mut meter = Meter::new();
        World::with(module("", &fill)).bounded(&mut meter, vec![call_f()]);
        meter.used().fuel
    };
    assert!(used(20) - used(10) >= 10 * 65_536 / 64);
}

#[test]
fn modules_that_must_be_compiled_are_bounded() {
    let mut world = World::new();
    let limits = ProcedureLimits { fuel_max: 1_000, memory_bytes_max: 1 << 20 };
    let quota = weir_store::Quota { procedures_max: 200, ..Default::default() };
    world.ask(Operation::SetQuota { namespace: "t".into(), quota });
    let mut calls = Vec::new();
    for n in 0..=meter::MODULES_MAX {
        let procedure = format!("t/f{n}");
        let module = module("", &format!("(i64.const {n}) (drop) (i64.const 0)"));
        world.ask(Operation::LoadProcedure { procedure: procedure.clone(), module, limits });
        calls.push(Operation::Call { procedure, arguments: vec![] });
    }
    let outcomes = world.bounded(&mut Meter::new(), calls);
    let (last, first) = outcomes.split_last().unwrap();
    assert!(first.iter().all(|outcome| matches!(outcome, Outcome::Reply { .. })));
    assert!(too_large(last, "modules"), "{last:?}");
}

fn scan() -> Step {
    let (from, to) = (Vec::new(), Vec::new());
    Step::Read(Query::Scan { table: "t/a".into(), from, to, limit: 0, select: Select::Whole })
}

/// A request of some kind, whose size is `n`.
fn some(kind: u8, n: u16) -> Operation {
    let write =
        |key: Vec<u8>, action| Write { table: "t/a".into(), key, condition: Condition::Always, action };
    let put = |value: Vec<u8>| Action::Put { value, ttl_ms: 0 };
    let count = usize::from(n % 256);
    match kind % 8 {
        0 => Operation::Write(write(n.to_le_bytes().to_vec(), put(vec![1; usize::from(n)]))),
        1 => Operation::Transaction((0..count).map(|_| scan()).collect()),
        2 | 3 => call_f(),
        4 => Operation::Transaction(
            (0..count).map(|n| Step::Write(write(vec![n as u8], put(vec![2; 1_000])))).collect(),
        ),
        5 => Operation::OpenClient,
        6 => {
            let limits = ProcedureLimits { fuel_max: 1 << 20, memory_bytes_max: 1 << 20 };
            let module =
                if n.is_multiple_of(2) { nesting(i32::from(n % 32)) } else { vec![0; usize::from(n)] };
            Operation::LoadProcedure { procedure: "t/f".into(), module, limits }
        }
        _ => Operation::Write(write(b"k".to_vec(), Action::Touch { ttl_ms: u64::from(n) })),
    }
}

/// Whatever is in an entry, what it costs and what it answers stays below the bounds, and replicas agree on it.
#[test]
fn random_and_hostile_entries_cost_at_most_their_bounds() {
    const BATCHES: u64 = 16;
    let entry =
        Bounds { fuel: 2 * SMALL.fuel, bytes: 2 * SMALL.bytes, answered: 2 * SMALL.answered, entries: 8_000 };
    let endless = module(
        "",
        "(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br $l)) (i64.const 0)",
    );
    bolero::check!().with_iterations(60).with_type::<Vec<Vec<(u8, u16)>>>().for_each(|batches| {
        let mut worlds = [World::with(endless.clone()), World::with(endless.clone())];
        let before = worlds[0].store.bytes();
        let mut costs = worlds.each_mut().map(|world| {
            let mut meter = Meter::of(SMALL, entry);
            let mut answered = 0;
            for batch in batches.iter().take(BATCHES as usize) {
                let operations = batch.iter().take(64).map(|(kind, n)| some(*kind, *n)).collect();
                let outcomes = world.bounded(&mut meter, operations);
                answered += outcomes.iter().map(weir_base::codec::encoded_bytes).sum::<usize>() as u64;
            }
            (meter.used(), answered)
        });
        let (used, answered) = costs[0];
        // Each outcome has a few bytes besides what is answered, and each batch its floor.
        assert!(answered <= entry.answered + BATCHES * (meter::FLOOR.answered + 64 * 512), "{answered}");
        assert!(used.fuel <= entry.fuel && used.entries <= entry.entries && used.bytes <= entry.bytes);
        let grown = worlds[0].store.bytes().saturating_sub(before);
        assert!(grown <= entry.bytes + BATCHES * meter::FLOOR.bytes, "{grown}");
        costs.reverse();
        assert_eq!(costs[0], (used, answered));
        assert_eq!(worlds[0].store.digest(), worlds[1].store.digest());
    });
}

#[test]
fn fuzz_loading_and_calling() {
    let good = writes_then(REPLY_NOTHING);
    let limits = ProcedureLimits { fuel_max: 10_000, memory_bytes_max: 1 << 20 };
    bolero::check!().with_iterations(3_000).with_type::<(usize, u8, Vec<u8>)>().for_each(
        |(at, flip, noise)| {
            let mut bytes = good.clone();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            for module in [&bytes, noise] {
                if WasmLoader::new().load(module, limits).is_ok() {
                    let mut world = World::new();
                    let _ = (world.load(module.clone()), world.call(b"key"));
                }
            }
        },
    );
}
