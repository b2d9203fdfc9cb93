use super::*;
use std::sync::Arc;

/// The paper's example (§IV-D): takes what was forwarded off what is allowed.
struct Subtract;

impl Procedure for Subtract {
    fn call(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> Result<Vec<u8>, Aborted> {
        let forwarded = call.increment("forwarded", arguments, "", 0)?;
        let allowed = call.increment("allowed", arguments, "", -forwarded)? - forwarded;
        if allowed < 0 {
            return Err(Aborted::new(format!("{} bytes too many", -allowed)));
        }
        Ok(allowed.to_be_bytes().to_vec())
    }
}

/// Reads for ever.
struct Endless;

impl Procedure for Endless {
    fn call(&self, call: &mut Call<'_, '_>, _: &[u8]) -> Result<Vec<u8>, Aborted> {
        loop {
            call.put("allowed", b"k", b"x")?;
            call.first_from("allowed", b"")?;
        }
    }
}

/// Takes a module for the sum that its call answers.
struct Sums;

impl Loader for Sums {
    fn load(&self, module: &[u8], _: ProcedureLimits) -> Result<Arc<dyn Procedure>, BadModule> {
        struct Sum(u64);
        impl Procedure for Sum {
            fn call(&self, _: &mut Call<'_, '_>, _: &[u8]) -> Result<Vec<u8>, Aborted> {
                Ok(self.0.to_be_bytes().to_vec())
            }
        }
        if module.is_empty() {
            Err(BadModule::new("it is empty"))
        } else {
            Ok(Arc::new(Sum(module.iter().map(|b| u64::from(*b)).sum())))
        }
    }
}

fn registry() -> Registry {
    let registry = Registry::new().with("subtract", Arc::new(Subtract)).with("endless", Arc::new(Endless));
    registry.with_loader(Arc::new(Sums))
}

fn run(store: &mut Store, operation: Operation) -> Outcome {
    store.apply(&registry(), 0, &Batch::once([operation])).outcomes.remove(0)
}

fn call(procedure: &str, arguments: &[u8]) -> Operation {
    Operation::Call { procedure: procedure.into(), arguments: arguments.into() }
}

#[test]
fn a_procedure_is_one_transaction_in_its_namespace() {
    let mut store = with_tables(&["t/allowed", "t/forwarded", "u/allowed"]);
    one(&mut store, put("t/allowed", b"k", &100_i64.to_be_bytes()));
    one(&mut store, put("t/forwarded", b"k", &60_i64.to_be_bytes()));
    let Outcome::Reply { version, reply } = run(&mut store, call("t/subtract", b"k")) else { panic!() };
    assert_eq!((version, &reply[..]), (store.version(), &40_i64.to_be_bytes()[..]));
    let (digest, version) = (store.digest(), store.version());
    let failed = refusal(run(&mut store, call("t/subtract", b"k")));
    assert_eq!(failed.to_string(), "procedure 't/subtract' was ended: 20 bytes too many");
    assert!(matches!(refusal(run(&mut store, call("t/endless", b""))), Refusal::Procedure { .. }));
    let elsewhere = refusal(run(&mut store, call("u/subtract", b"k")));
    assert!(elsewhere.to_string().contains("no table 'u/forwarded'"), "{elsewhere}");
    assert!(matches!(refusal(run(&mut store, call("t/none", b""))), Refusal::NoProcedure { .. }));
    assert!(matches!(refusal(run(&mut store, call("subtract", b"k"))), Refusal::Name { .. }));
    assert_eq!((store.digest(), store.version()), (digest, version), "what failed has done nothing");
}

#[test]
fn loaded_procedures_are_state() {
    let mut store = Store::new();
    let empty = store.digest();
    let load = |name: &str, module: &[u8]| Operation::LoadProcedure {
        procedure: name.into(),
        module: module.into(),
        limits: ProcedureLimits::default(),
    };
    assert!(matches!(refusal(run(&mut store, load("t/f", b""))), Refusal::Module { .. }));
    written(&run(&mut store, load("t/f", &[1, 2])));
    written(&run(&mut store, load("t/f", &[3, 4])));
    let mut store = Store::from_snapshot(&store.to_snapshot()).unwrap();
    let Outcome::Reply { version, reply } = run(&mut store, call("t/f", b"")) else { panic!() };
    assert_eq!((version, reply), (Version(0), 7_u64.to_be_bytes().to_vec()));
    let Answer::Procedures(list) =
        store.query(&Registry::new(), &Query::Procedures { namespace: "t".into() })
    else {
        panic!()
    };
    assert_eq!(list.iter().map(|info| (&info.procedure[..], info.bytes)).collect::<Vec<_>>(), [("t/f", 2)]);
    written(&run(&mut store, Operation::RemoveProcedure { procedure: "t/f".into() }));
    assert!(matches!(refusal(run(&mut store, call("t/f", b""))), Refusal::NoProcedure { .. }));
    assert_eq!(store.digest(), empty);
    let limits = ProcedureLimits { fuel_max: apply::FUEL_MAX + 1, ..ProcedureLimits::default() };
    let greedy = Operation::LoadProcedure { procedure: "t/f".into(), module: vec![1], limits };
    assert!(matches!(refusal(run(&mut store, greedy)), Refusal::TooLarge { .. }));
    assert!(matches!(refusal(one(&mut store, load("t/f", b"1"))), Refusal::Module { .. }), "no loader");
}

#[test]
fn a_procedure_that_writes_nothing_is_a_read() {
    /// Takes note of a key, unless it is known.
    struct Note;
    impl Procedure for Note {
        fn call(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> Result<Vec<u8>, Aborted> {
            let known = call.get("seen", arguments)?.is_some();
            if !known {
                call.put("seen", arguments, b"1")?;
            }
            Ok(vec![u8::from(known)])
        }
    }
    let registry = registry().with("note", Arc::new(Note));
    let mut store = with_tables(&["t/seen", "t/allowed"]);
    let ask = |store: &Store, procedure: &str, arguments: &[u8]| {
        let (procedure, arguments) = (procedure.to_owned(), arguments.to_vec());
        store.query(&registry, &Query::Call { procedure, arguments })
    };
    let (digest, version) = (store.digest(), store.version());
    assert_eq!(ask(&store, "t/note", b"k"), Answer::Writes);
    assert_eq!((store.digest(), store.version()), (digest, version));
    let noted = store.apply(&registry, 0, &Batch::once([call("t/note", b"k")])).outcomes.remove(0);
    assert!(matches!(noted, Outcome::Reply { reply, .. } if reply == [0]));
    let version = store.version();
    assert_eq!(ask(&store, "t/note", b"k"), Answer::Reply(vec![1]));
    assert_eq!(store.version(), version);
    let refused = |answer| match answer {
        Answer::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(ask(&store, "t/endless", b"")), Refusal::Procedure { .. }));
    assert!(matches!(refused(ask(&store, "t/none", b"")), Refusal::NoProcedure { .. }));
    assert!(matches!(refused(ask(&store, "note", b"")), Refusal::Name { .. }));
    let within = Query::Call { procedure: "t/note".into(), arguments: b"k".to_vec() };
    let transaction = Operation::Transaction(vec![Step::Read(within)]);
    assert!(matches!(refusal(run(&mut store, transaction)), Refusal::Invalid { .. }));
}
