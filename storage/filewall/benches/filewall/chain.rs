//! What policies cost: processor time of a decision that is remembered, and of chains of 1 to 20 policies.

use super::place::CALLER;
use super::{Failure, failed, median};
use std::net::{IpAddr, Ipv4Addr};
use weir_filewall::message::{Call, Now, PROBES_MAX, ProbeAnswer};
use weir_filewall::policy::{self, Outcome};
use weir_filewall::wire::build::Record;
use weir_filewall::wire::call::arguments;
use weir_filewall::wire::make::Attributes;
use weir_filewall::wire::nfs3::Op;
use weir_filewall::wire::rpc::call_head;
use weir_filewall::wire::xdr::Reader;

const CALLS: usize = 20_000;
const WINDOWS: usize = 9;

/// So many policies, each of which decides by rules of its own.
pub fn policies(count: usize) -> String {
    let mut text =
        "kind: identities\nusers: {dev: {uid: 1001, roles: [developer]}}\nroles: {developer: {}}\n"
            .to_string();
    for number in 0..count {
        text.push_str(&format!(
            "---\nkind: access\nname: rules-{number}\ndefault: deny\nrules:\n\
             - {{deny: [all], clients: [10.{number}.0.0/16]}}\n- {{allow: [all], roles: [developer]}}\n"
        ));
    }
    text
}

/// Time that a thread has run, ns.
pub fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Processor time a call of a chain, µs.
fn one(text: &str) -> Result<f64, Failure> {
    let wrong = |what: &str| Failure(format!("{what} of the bench's own call"));
    let folder = tempfile::tempdir().map_err(failed("make a folder"))?;
    std::fs::write(folder.path().join("policy.yaml"), text).map_err(failed("write a file"))?;
    let chain = policy::load(folder.path(), None).map_err(|error| Failure(error.to_string()))?;
    let call = Record::nfs3(1, Op::Getattr, &CALLER).opaque(&[7; 32]).finish();
    let address = IpAddr::from(Ipv4Addr::new(192, 0, 2, 1));
    let caller = chain.principals().get(chain.identities(), address, CALLER.uid, CALLER.gid, &[]);
    let now = Now { unix_ms: 1_800_000_000_000, steady_us: 1 };
    let mut record = call[4..].to_vec();
    let bytes = record.len();
    let mut windows = Vec::new();
    // What a policy must be told once is told before.
    let mut told = Vec::new();
    loop {
        let mut reader = Reader::whole(&record);
        let head = call_head(&mut reader).map_err(|_| wrong("the head"))?;
        let found = arguments(&mut reader, Op::Getattr).map_err(|_| wrong("the arguments"))?;
        let mut call = Call::new(&mut record, bytes, head, found, &caller, now);
        call.told.clone_from(&told);
        if !matches!(chain.request(&mut call, 0, 0), Outcome::Ask { .. }) || told.len() > PROBES_MAX {
            break;
        }
        let probe = *call.probe.take().ok_or_else(|| wrong("the question"))?;
        told.push(ProbeAnswer { probe, status: 0, handle: None, attributes: Some(FILE.bytes()) });
    }
    for _ in 0..WINDOWS {
        let before = thread_ns();
        for _ in 0..CALLS {
            let mut reader = Reader::whole(&record);
            let head = call_head(&mut reader).map_err(|_| wrong("the head"))?;
            let found = arguments(&mut reader, Op::Getattr).map_err(|_| wrong("the arguments"))?;
            let mut call = Call::new(&mut record, bytes, head, found, &caller, now);
            if !matches!(chain.request(&mut call, 0, 0), Outcome::Forward { .. }) {
                return Err(Failure("the chain does not let the bench's call go on".to_string()));
            }
        }
        windows.push((thread_ns() - before) as f64 / CALLS as f64 / 1000.0);
    }
    Ok(median(&windows))
}

/// Roles with sessions, and rules in Cedar.
const RBAC: &str = "
kind: identities
users: {dev: {uid: 1001, roles: [developer]}, ann: {uid: 1002, roles: [admin]}}
roles: {employee: {}, developer: {inherits: [employee]}, admin: {inherits: [employee]}}
---
kind: rbac
state-file: rbac.state
control: .control
initial: [employee, developer]
rules: |
  permit (principal in Role::\"employee\", action in Action::\"looks\", resource);
  permit (principal in Role::\"developer\", action, resource)
  when { context.hour < 24 && resource.owner == principal.name };
";
/// The caller's own.
const FILE: Attributes = Attributes {
    folder: false,
    mode: 0o644,
    uid: CALLER.uid,
    gid: CALLER.gid,
    size: 3,
    fsid: 7,
    fileid: 5,
    time: (1, 1),
};

/// Prints what chains cost.
pub fn cost() -> Result<(), Failure> {
    let none = one(&policies(0))?;
    let rbac = one(RBAC)?;
    println!(
        "RESULT filewall cached_decision_rbac weir={:.3}us decode_alone={none:.3}us ratio={:.2}",
        rbac - none,
        (rbac - none) / none
    );
    for count in [1, 5, 10, 20] {
        let cost = one(&policies(count))?;
        println!(
            "RESULT filewall cached_decisions_{count} weir={:.3}us decode_alone={none:.3}us ratio={:.2}",
            cost - none,
            (cost - none) / none
        );
    }
    Ok(())
}
