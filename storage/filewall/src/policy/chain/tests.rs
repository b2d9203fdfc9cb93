//! Tests of the chain: who sees what, in which order, and how often.

use super::*;
use crate::message::{EntryHandles, Now};
use crate::policy::Verdict;
use crate::policy::tests::{ask, made};
use crate::wire::nfs3::ALL_OPS;
use crate::wire::reply::Results;
use std::sync::Mutex;

/// Writes down what it sees.
#[derive(Debug)]
struct Witness {
    name: &'static str,
    verdict: Verdict,
    ops: u32,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Policy for Witness {
    fn kind(&self) -> &'static str {
        "witness"
    }

    fn ops(&self) -> u32 {
        self.ops
    }

    fn request(&self, _call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        self.seen.lock().unwrap().push(format!("request {}", self.name));
        self.verdict
    }

    fn reply(&self, _asked: &Asked, _reply: &mut Reply<'_>, _latency_us: u64, _context: &Context<'_>) {
        self.seen.lock().unwrap().push(format!("reply {}", self.name));
    }
}

fn chain_of(policies: &[(&'static str, Verdict, u32)]) -> (Chain, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let entry = |(name, verdict, ops): &(&'static str, Verdict, u32)| {
        let witness = Witness { name, verdict: *verdict, ops: *ops, seen: seen.clone() };
        Entry::new((*name).to_string(), Box::new(witness), None)
    };
    let entries = policies.iter().map(entry).collect();
    (Chain::new(entries, Identities::default(), Zones::default(), None), seen)
}

fn reply_through(chain: &Chain, handled: u64) {
    let caller = chain.principals().get(chain.identities(), [10, 0, 0, 1].into(), 1, 1, &[]);
    let asked = Asked::getattr(caller);
    let (mut record, mut results, mut scratch) = (vec![0; 8], Results::default(), EntryHandles::default());
    chain.reply(&asked, &mut Reply::new(&mut record, 8, &mut results, &mut scratch), handled, 1);
}

fn getattr() -> crate::policy::tests::Made {
    made(1, Op::Getattr, |record| record.opaque(b"file"))
}

#[test]
fn replies_pass_in_the_opposite_order_and_only_those_who_saw_the_call() {
    let (chain, seen) = chain_of(&[
        ("a", Verdict::Forward, ALL_OPS),
        ("b", Verdict::Forward, Op::Read.bit()),
        ("c", Verdict::Forward, ALL_OPS),
    ]);
    let (Outcome::Forward { handled }, ()) = ask(&chain, &getattr(), |_| ()) else { panic!() };
    assert_eq!(handled, 0b101);
    reply_through(&chain, handled);
    assert_eq!(*seen.lock().unwrap(), ["request a", "request c", "reply c", "reply a"]);
}

#[test]
fn an_answer_ends_the_way() {
    let (chain, seen) = chain_of(&[
        ("a", Verdict::Forward, ALL_OPS),
        ("b", Verdict::Answer(Status::Perm), ALL_OPS),
        ("c", Verdict::Forward, ALL_OPS),
    ]);
    assert_eq!(ask(&chain, &getattr(), |_| ()).0, Outcome::Answer { status: Status::Perm, by: Some(1) });
    assert_eq!(*seen.lock().unwrap(), ["request a", "request b"]);
    let rows = chain.rows();
    assert_eq!((rows[0].answered, rows[1].answered, rows[2].seen), (0, 1, 0));
}

#[test]
fn a_call_that_waits_is_not_shown_again_to_those_it_has_passed() {
    let (chain, seen) = chain_of(&[("a", Verdict::Forward, ALL_OPS), ("b", Verdict::Wait(5), ALL_OPS)]);
    let (Outcome::Wait { wait_us: 5, from: 1, handled: 1 }, again) = ask(&chain, &getattr(), |call| call.now)
    else {
        panic!()
    };
    assert_eq!(again, Now::default());
    let mut record = getattr().record;
    let bytes = record.len();
    let mut reader = crate::wire::xdr::Reader::whole(&record);
    let head = crate::wire::rpc::call_head(&mut reader).unwrap();
    let found = crate::wire::call::arguments(&mut reader, Op::Getattr).unwrap();
    let caller = chain.principals().get(chain.identities(), [10, 0, 0, 1].into(), 1, 1, &[]);
    let mut call = Call::new(&mut record, bytes, head, found, &caller, again);
    chain.request(&mut call, 1, 1);
    assert_eq!(*seen.lock().unwrap(), ["request a", "request b", "request b"]);
}
