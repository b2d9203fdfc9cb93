#![allow(clippy::unwrap_used)]

use super::*;
use weir_store::{Batch, Operation, Outcome, Refusal, Registry, Store, TableOptions};

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
    let small = WasmLoader::new().load(&large, limits).err().unwrap();
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
