//! The case study (paper 4.5.1) against a file system of a few names, played at the level of policies.

use super::enforce::GUARDED;
use super::*;
use crate::message::{Now, ProbeAnswer};
use crate::policy::{Chain, Outcome, load};
use crate::wire::build::{Caller, Record as CallRecord};
use crate::wire::call::arguments;
use crate::wire::make::Attributes;
use crate::wire::reply::{Results, results};
use crate::wire::rpc::call_head;
use crate::wire::xdr::{Reader, get_u32};

const EXAMPLE: &str = include_str!("../../../../../docs/operate/filewall/rbac.yaml");
const ROOT_HANDLE: &[u8] = b"root";
const ALICE: u32 = 1001;
const BOB: u32 = 1002;
const CHARLES: u32 = 1003;
const ADMIN: u32 = 0;
/// A Monday, in the time zone of the tests.
const NOON_MS: u64 = 1_767_614_400_000;
const EVENING_MS: u64 = NOON_MS + 6 * 3_600_000;

/// A folder of policies, their chain, and the names that the server has.
struct Stage {
    folder: tempfile::TempDir,
    chain: Chain,
    now_ms: u64,
    machine: [u8; 4],
}

/// Folder, name, handle, owner, mode, folder or not.
type File = (&'static [u8], &'static str, &'static [u8], u32, u32, bool);
const FILES: [File; 6] = [
    (b"-", "-", ROOT_HANDLE, 0, 0o1777, true),
    (ROOT_HANDLE, "alice", b"alice's", ALICE, 0o644, false),
    (ROOT_HANDLE, "bob", b"bob's", BOB, 0o600, false),
    (ROOT_HANDLE, "work", b"work", BOB, 0o755, true),
    (b"work", "plan", b"plan", CHARLES, 0o644, false),
    (ROOT_HANDLE, "etc", b"etc", 0, 0o755, true),
];

fn fattr3(file: &File) -> [u8; 84] {
    let (_, _, _, uid, mode, folder) = *file;
    Attributes { folder, mode, uid, gid: 100, size: 3, fsid: 77, fileid: 5, time: (1, 1) }.bytes()
}

impl Stage {
    fn new() -> Stage {
        Stage::with(|text| text.to_string())
    }

    fn with(change: impl FnOnce(&str) -> String) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let text = change(EXAMPLE).replace("control: .control", "control: .control\ntimezone: UTC");
        std::fs::write(
            folder.path().join("policy.yaml"),
            text.replace("kind: handles\nkey-file: key\n---\n", ""),
        )
        .unwrap();
        let chain = load(folder.path(), None).unwrap();
        let caller = chain.principals().get(chain.identities(), [10, 0, 0, 1].into(), 0, 0, &[]);
        let now = Now { unix_ms: NOON_MS, steady_us: 0 };
        let mount = Mount { caller, path: b"/".to_vec(), place: ROOT, now };
        chain.mounted(&mount, &mut Handle::new(ROOT_HANDLE).unwrap());
        Stage { folder, chain, now_ms: NOON_MS, machine: [10, 0, 0, 1] }
    }

    /// Everything that is in memory is lost.
    fn killed(self) -> Stage {
        let Stage { folder, chain, now_ms, machine } = self;
        drop(chain);
        let chain = load(folder.path(), None).unwrap();
        Stage { folder, chain, now_ms, machine }
    }

    /// What the server says to a probe.
    fn told(probe: Probe) -> ProbeAnswer {
        let found = FILES.iter().find(|(folder, name, handle, ..)| match &probe.name {
            Some(wanted) => *folder == probe.handle.as_bytes() && name.as_bytes() == &**wanted,
            None => *handle == probe.handle.as_bytes(),
        });
        match found {
            Some(file) => {
                ProbeAnswer { probe, status: 0, handle: Handle::new(file.2), attributes: Some(fattr3(file)) }
            }
            None => ProbeAnswer { probe, status: 2, handle: None, attributes: None },
        }
    }

    /// Shows a call to the chain until it is decided, and returns what `look` sees of it then.
    fn call<T>(
        &self,
        uid: u32,
        op: Op,
        write: impl FnOnce(CallRecord) -> CallRecord,
        look: impl FnOnce(&Call<'_>) -> T,
    ) -> (Outcome, T) {
        let caller = Caller { uid, gid: 100, groups: &[] };
        let mut record = write(CallRecord::nfs3(1, op, &caller)).datagram();
        let bytes = record.len();
        let mut reader = Reader::whole(&record);
        let head = call_head(&mut reader).unwrap();
        let found = arguments(&mut reader, op).unwrap();
        let caller = self.chain.principals().get(self.chain.identities(), self.machine.into(), uid, 100, &[]);
        let now = Now { unix_ms: self.now_ms, steady_us: 0 };
        let mut call = Call::new(&mut record, bytes, head, found, &caller, now);
        let mut outcome = self.chain.request(&mut call, 0, 0);
        for _ in 0..crate::message::PROBES_MAX {
            let Outcome::Ask { from, handled } = outcome else { break };
            let probe = *call.probe.take().unwrap();
            call.told.push(Stage::told(probe));
            outcome = self.chain.request(&mut call, from, handled);
        }
        let seen = look(&call);
        (outcome, seen)
    }

    /// Status of an operation on a handle, and perhaps a name: 0 if it goes to the server.
    fn on(&self, uid: u32, op: Op, handle: &[u8], name: Option<&str>) -> u32 {
        let write = |record: CallRecord| {
            let record = record.opaque(handle);
            let record = match name {
                Some(name) => record.opaque(name.as_bytes()),
                None => record,
            };
            match op {
                Op::Read => record.u64(0).u32(100),
                Op::Write => record.u64(0).u32(4).u32(2).opaque(b"data"),
                Op::Create => record.u32(0).u32(0).u32(0).u32(0).u32(0).u32(0).u32(0),
                Op::Setattr => record.u32(1).u32(0o600).u32(0).u32(0).u32(0).u32(0).u32(0).u32(0),
                Op::Access => record.u32(0x3f),
                _ => record,
            }
        };
        match self.call(uid, op, write, |_| ()).0 {
            Outcome::Answer { status, .. } => status.number(),
            Outcome::Forward { .. } => 0,
            other => panic!("{other:?}"),
        }
    }

    /// The user that the server sees.
    fn sent_as(&self, uid: u32, op: Op, handle: &[u8]) -> u32 {
        let write = |record: CallRecord| record.opaque(handle).u64(0).u32(100);
        self.call(uid, op, write, |call| {
            let crate::wire::rpc::Credential::Sys(sys) = &call.head.credential else { panic!() };
            call.word(sys.uid_at)
        })
        .1
    }

    /// Results that a policy makes, or the status that it answers with.
    fn made(
        &self,
        uid: u32,
        op: Op,
        write: impl FnOnce(CallRecord) -> CallRecord,
    ) -> Result<(Vec<u8>, Results), u32> {
        let (outcome, bytes) = self.call(uid, op, write, |call| call.results.clone());
        match outcome {
            Outcome::Reply { .. } => {
                let mut found = Results::default();
                results(&mut Reader::whole(&bytes), op, &mut found).expect("sound results");
                Ok((bytes, found))
            }
            Outcome::Answer { status, .. } => Err(status.number()),
            other => panic!("{other:?}"),
        }
    }

    /// The handle of a path below the root.
    fn handle(&self, uid: u32, path: &str) -> Result<Vec<u8>, u32> {
        path.split('/').try_fold(ROOT_HANDLE.to_vec(), |folder, name| {
            let (bytes, found) =
                self.made(uid, Op::Lookup, |record| record.opaque(&folder).opaque(name.as_bytes()))?;
            Ok(found.handle.unwrap().of(&bytes).to_vec())
        })
    }

    fn read(&self, uid: u32, path: &str) -> Result<String, u32> {
        let handle = self.handle(uid, path)?;
        let (bytes, found) = self.made(uid, Op::Read, |record| record.opaque(&handle).u64(0).u32(9999))?;
        Ok(String::from_utf8(found.payload.unwrap().of(&bytes).to_vec()).unwrap())
    }

    fn write(&self, uid: u32, path: &str, text: &str) -> Result<(), u32> {
        let handle = self.handle(uid, path)?;
        let write = |record: CallRecord| {
            record.opaque(&handle).u64(0).u32(text.len() as u32).u32(2).opaque(text.as_bytes())
        };
        self.made(uid, Op::Write, write).map(|_| ())
    }

    fn list(&self, uid: u32, path: &str) -> Vec<String> {
        let handle = self.handle(uid, path).unwrap();
        let write = |record: CallRecord| record.opaque(&handle).u64(0).u64(0).u32(4096).u32(8192);
        let (bytes, found) = self.made(uid, Op::Readdirplus, write).unwrap();
        let names =
            found.entries.iter().map(|entry| String::from_utf8(entry.name.of(&bytes).to_vec()).unwrap());
        names.filter(|name| !name.starts_with('.')).collect()
    }

    fn detail(&self, name: &str) -> u64 {
        self.chain.rows()[0].details[name]
    }
}

#[test]
fn users_have_their_own_files_and_developers_each_others() {
    let stage = Stage::new();
    assert_eq!(stage.on(ALICE, Op::Read, b"alice's", None), 0);
    assert_eq!(stage.on(ALICE, Op::Read, b"bob's", None), 13);
    assert_eq!(stage.on(BOB, Op::Read, b"alice's", None), 13);
    assert_eq!(
        (stage.on(BOB, Op::Write, b"plan", None), stage.on(CHARLES, Op::Write, b"bob's", None)),
        (0, 0)
    );
    // Removing is the owner's, and is judged by the file that is named, not by its folder.
    assert_eq!(stage.on(BOB, Op::Remove, b"work", Some("plan")), 13);
    assert_eq!(stage.on(CHARLES, Op::Remove, b"work", Some("plan")), 0);
    assert_eq!(stage.on(CHARLES, Op::Remove, b"work", Some("nothing")), 2);
    // Somebody whom the policy does not know has no role.
    assert_eq!(stage.on(4711, Op::Getattr, ROOT_HANDLE, None), 13);
    // Calls go on as the owner.
    assert_eq!(stage.sent_as(BOB, Op::Read, b"plan"), CHARLES);
    assert_eq!(stage.sent_as(CHARLES, Op::Read, b"plan"), CHARLES);
}

#[test]
fn an_administrator_must_ask_for_the_role_and_has_no_other_then() {
    let stage = Stage::new();
    assert_eq!(stage.read(ADMIN, ".control/users/root/ctrl").unwrap(), "user\ndeveloper\n");
    assert_eq!(stage.on(ADMIN, Op::Read, b"alice's", None), 13, "least privilege");
    assert_eq!(
        stage.write(ADMIN, ".control/users/root/ctrl", "admin user"),
        Err(13),
        "dynamic separation of duty"
    );
    stage.write(ADMIN, ".control/users/root/ctrl", "admin\n").unwrap();
    assert_eq!(stage.read(ADMIN, ".control/users/root/ctrl").unwrap(), "admin\n");
    assert_eq!(stage.on(ADMIN, Op::Read, b"alice's", None), 0);
    assert_eq!((stage.detail("logged"), stage.on(ADMIN, Op::Write, b"alice's", None)), (0, 0));
    assert_eq!(stage.detail("logged"), 1, "what an administrator changes is logged");
    let log = std::fs::read_to_string(stage.folder.path().join("rbac.log")).unwrap();
    assert!(
        log.contains("\"user\":\"root\"")
            && log.contains("\"role\":\"admin\"")
            && log.contains("\"op\":\"WRITE\"")
    );
    // A session is a user on a machine: elsewhere nothing has changed.
    let elsewhere = Stage { machine: [10, 0, 0, 2], ..stage };
    assert_eq!(elsewhere.on(ADMIN, Op::Read, b"alice's", None), 13);
    assert!(elsewhere.read(ADMIN, ".control/users/root/ctrl").unwrap().contains("developer"));
}

#[test]
fn developers_act_as_administrators_at_night_only() {
    let mut stage = Stage::new();
    assert_eq!(stage.write(BOB, ".control/users/bob/ctrl", "admin"), Err(13));
    assert_eq!(stage.list(BOB, ".control/users/bob"), ["ctrl", "user", "developer"]);
    stage.now_ms = EVENING_MS;
    assert_eq!(stage.list(BOB, ".control/users/bob"), ["ctrl", "user", "developer", "admin"]);
    assert_eq!(stage.read(BOB, ".control/users/bob/admin").unwrap(), "available\n");
    stage.write(BOB, ".control/users/bob/ctrl", "admin").unwrap();
    assert_eq!(stage.read(BOB, ".control/users/bob/admin").unwrap(), "active\n");
    assert_eq!(stage.on(BOB, Op::Read, b"alice's", None), 0);
    stage.now_ms = NOON_MS + 24 * 3_600_000;
    assert_eq!(
        stage.on(BOB, Op::Read, b"alice's", None),
        13,
        "the delegation has ended, and the session with it"
    );
    assert_eq!(stage.read(BOB, ".control/users/bob/ctrl").unwrap(), "user\ndeveloper\n");
}

#[test]
fn who_asks_for_a_role_that_is_out_of_reach_is_a_threat_until_an_administrator_says_otherwise() {
    let stage = Stage::new();
    assert_eq!(stage.write(ALICE, ".control/users/alice/ctrl", "developer"), Err(13));
    assert_eq!(stage.on(ALICE, Op::Read, b"alice's", None), 0, "developer is no role of the rule");
    assert_eq!(stage.write(ALICE, ".control/users/alice/ctrl", "admin"), Err(13));
    assert_eq!(stage.on(ALICE, Op::Read, b"alice's", None), 13);
    assert_eq!(stage.detail("alarms"), 1);
    assert_eq!(stage.read(ALICE, ".control/users/alice/ctrl"), Err(13), "no role updates either");
    let stage = stage.killed();
    assert_eq!(stage.on(ALICE, Op::Read, b"alice's", None), 13, "a threat outlives a kill");
    assert_eq!(stage.write(BOB, ".control/users/alice/ctrl", "enable"), Err(13));
    stage.write(ADMIN, ".control/users/root/ctrl", "admin").unwrap();
    stage.write(ADMIN, ".control/users/alice/ctrl", "enable").unwrap();
    assert_eq!(stage.on(ALICE, Op::Read, b"alice's", None), 0);
}

#[test]
fn denials_make_a_threat_too_where_the_policy_says_so() {
    let stage = Stage::with(|text| text.replace("escalation: [admin]", "escalation: [admin], denials: 3"));
    for _ in 0..3 {
        assert_eq!(stage.on(ALICE, Op::Read, b"bob's", None), 13);
    }
    assert_eq!((stage.on(ALICE, Op::Read, b"alice's", None), stage.detail("threats")), (13, 1));
}

#[test]
fn owners_change_permissions_in_the_shadow_and_they_outlive_a_kill() {
    let stage = Stage::new();
    let shadow = ".control/shadow/bob";
    let text = stage.read(BOB, shadow).unwrap();
    assert!(text.starts_with("owner bob\nmode 0600\n"), "{text}");
    assert!(
        text.contains("\nREAD policy # OWNER developer\n")
            && text.contains("\nREMOVE policy # OWNER admin\n"),
        "{text}"
    );
    assert_eq!(stage.on(ALICE, Op::Read, b"bob's", None), 13);
    assert_eq!(stage.write(CHARLES, shadow, "READ user"), Err(13), "owners only");
    assert_eq!(stage.write(BOB, shadow, "READ nonsense"), Err(22));
    assert_eq!(stage.write(BOB, shadow, "READ user\nTWIRL user\n"), Err(22));
    assert_eq!(stage.on(ALICE, Op::Read, b"bob's", None), 13, "all of a write, or nothing");
    let before = stage.handle(BOB, shadow).unwrap();
    stage.write(BOB, shadow, "READ user\nWRITE OWNER\nREMOVE=developer\n").unwrap();
    let stale = stage.made(BOB, Op::Getattr, |record| record.opaque(&before));
    assert_eq!(stale.unwrap_err(), 70, "the handle has changed with the content");
    let stage = stage.killed();
    assert_eq!(
        (stage.on(ALICE, Op::Read, b"bob's", None), stage.on(ALICE, Op::Write, b"bob's", None)),
        (0, 13)
    );
    assert_eq!(
        (stage.on(CHARLES, Op::Write, b"bob's", None), stage.on(BOB, Op::Write, b"bob's", None)),
        (13, 0)
    );
    assert_eq!(stage.on(CHARLES, Op::Remove, ROOT_HANDLE, Some("bob")), 0);
    // What the file shows can be written back; `policy` takes everything away.
    let text = stage.read(BOB, shadow).unwrap();
    stage.write(BOB, shadow, &text).unwrap();
    assert_eq!(stage.read(BOB, shadow).unwrap(), text);
    stage.write(BOB, shadow, "all policy").unwrap();
    assert_eq!((stage.on(ALICE, Op::Read, b"bob's", None), stage.detail("files_with_permissions")), (13, 0));
}

#[test]
fn roles_are_assigned_and_revoked_by_administrators_within_static_separation() {
    let stage = Stage::new();
    assert_eq!(stage.write(BOB, ".control/roles/developer/ctrl", "assign alice"), Err(13));
    stage.write(ADMIN, ".control/users/root/ctrl", "admin").unwrap();
    stage.write(ADMIN, ".control/roles/developer/ctrl", "assign alice\nrevoke charles\n").unwrap();
    assert_eq!(stage.read(ALICE, ".control/roles/developer/members").unwrap(), "alice\nbob\nroot\n");
    assert_eq!(stage.read(ALICE, ".control/roles/developer/inherits").unwrap(), "user\n");
    assert_eq!(
        stage.write(ADMIN, ".control/roles/threat/ctrl", "assign root"),
        Err(1),
        "static separation of duty"
    );
    let stage = stage.killed();
    assert_eq!(
        (stage.on(ALICE, Op::Read, b"bob's", None), stage.on(CHARLES, Op::Read, b"bob's", None)),
        (0, 13)
    );
}

#[test]
fn virtual_objects_have_no_attributes_to_change_and_no_names_to_make() {
    let stage = Stage::new();
    assert_eq!(stage.list(ALICE, ".control"), ["users", "roles", "shadow"]);
    assert_eq!(stage.list(ALICE, ".control/users"), ["alice", "bob", "charles", "root"]);
    let control = stage.handle(ALICE, ".control/users/alice/ctrl").unwrap();
    assert_eq!(stage.on(ALICE, Op::Setattr, &control, None), 1);
    let users = stage.handle(ALICE, ".control/users").unwrap();
    for (op, name) in [(Op::Create, "x"), (Op::Remove, "alice"), (Op::Rmdir, "alice")] {
        assert_eq!(stage.on(ALICE, op, &users, Some(name)), 13, "{op}");
    }
    for op in [Op::Remove, Op::Rmdir, Op::Create] {
        assert_eq!(stage.on(BOB, op, ROOT_HANDLE, Some(".control")), 13, "{op}");
    }
    assert_eq!(stage.handle(ALICE, ".control/nothing"), Err(2));
    assert_eq!(stage.read(BOB, ".control/users/alice/ctrl"), Err(13), "another user's");
    // A handle that was made up, and one of another process.
    let mut forged = control.clone();
    forged[8] = 99;
    assert_eq!(stage.made(ALICE, Op::Getattr, |record| record.opaque(&forged)).unwrap_err(), 10001);
    let stage = stage.killed();
    assert_eq!(stage.made(ALICE, Op::Getattr, |record| record.opaque(&control)).unwrap_err(), 70);
}

#[test]
fn users_are_bound_to_their_machines() {
    let text = |text: &str| text.replace("threat: {role", "machines: {alice: [10.0.0.0/30]}\nthreat: {role");
    let stage = Stage::with(text);
    assert_eq!(stage.on(ALICE, Op::Read, b"alice's", None), 0);
    let elsewhere = Stage { machine: [10, 0, 0, 9], ..stage };
    assert_eq!(elsewhere.on(ALICE, Op::Read, b"alice's", None), 13, "somebody who says to be alice");
    assert_eq!(elsewhere.detail("alarms"), 1);
    assert_eq!(elsewhere.on(BOB, Op::Read, b"bob's", None), 0);
}

#[test]
fn access_is_told_as_it_is() {
    let stage = Stage::new();
    let bits = |uid: u32, handle: &[u8]| {
        let write = |record: CallRecord| record.opaque(handle).u32(0x3f);
        stage
            .call(uid, Op::Access, write, |call| {
                get_u32(&[call.word(call.arguments.access_at.unwrap())].map(u32::to_be_bytes).concat(), 0)
            })
            .1
    };
    assert_eq!(bits(BOB, b"plan") & (crate::wire::nfs3::access::READ | crate::wire::nfs3::access::MODIFY), 5);
    assert_eq!(stage.on(ALICE, Op::Access, b"plan", None), 13);
}

#[test]
fn a_wrong_file_is_refused_with_its_reason() {
    for (from, to, reason) in [
        ("initial: [user, developer]", "initial: [user, nobody]", "'nobody' is none of the roles"),
        ("Role::\"admin\"", "Role::\"root\"", "Role::\"root\" is none of the roles"),
        ("Action::\"changes\"", "Action::\"chnages\"", "is no operation and no group"),
        ("@permission(\"log\")", "@permission(\"lag\")", "@permission is one of"),
        ("control: .control", "control: a/b", "no name of a folder"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("policy.yaml"), EXAMPLE.replace(from, to)).unwrap();
        let error = load(folder.path(), None).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// Attributes that a call sets: mode, uid, gid, size, times.
fn attributes(record: CallRecord, uid: Option<u32>, size: Option<u64>) -> CallRecord {
    let record = record.u32(0);
    let record = match uid {
        Some(uid) => record.u32(1).u32(uid),
        None => record.u32(0),
    };
    let record = match size {
        Some(size) => record.u32(0).u32(1).u64(size),
        None => record.u32(0).u32(0),
    };
    record.u32(0).u32(0)
}

#[test]
fn a_create_takes_nobody_elses_file_and_makes_one_only_where_there_is_none() {
    let stage = Stage::new();
    let ask = |uid: u32, name: &str, size: Option<u64>| {
        // UNCHECKED.
        let write = |record: CallRecord| {
            attributes(record.opaque(ROOT_HANDLE).opaque(name.as_bytes()).u32(0), None, size)
        };
        stage.call(uid, Op::Create, write, |call| call.word(call.arguments.names[0].padded_end()))
    };
    let status = |outcome: &Outcome| match outcome {
        Outcome::Answer { status, .. } => status.number(),
        Outcome::Forward { .. } => 0,
        other => panic!("{other:?}"),
    };
    // Another's file would be emptied; one's own may be.
    let (outcome, _) = ask(ALICE, "bob", Some(0));
    assert_eq!(status(&outcome), 13);
    let (outcome, how) = ask(BOB, "bob", Some(0));
    assert_eq!((status(&outcome), how), (0, 0));
    // There is none: what comes to be meanwhile is not taken.
    let (outcome, how) = ask(ALICE, "new", Some(0));
    assert_eq!((status(&outcome), how), (0, GUARDED));
    // What changes nothing of a file that is there need not be asked.
    let (outcome, how) = ask(ALICE, "new", None);
    assert_eq!((status(&outcome), how), (0, 0));
}

#[test]
fn what_is_made_is_given_to_nobody_else() {
    let stage = Stage::new();
    let made = |stage: &Stage, uid: u32, op: Op, owner: u32| {
        let write = |record: CallRecord| {
            let record = record.opaque(b"work").opaque(b"made");
            match op {
                Op::Create => attributes(record.u32(0), Some(owner), None),
                Op::Symlink => attributes(record, Some(owner), None).opaque(b"to"),
                // A FIFO.
                Op::Mknod => attributes(record.u32(7), Some(owner), None),
                _ => attributes(record, Some(owner), None),
            }
        };
        match stage.call(uid, op, write, |_| ()).0 {
            Outcome::Answer { status, .. } => status.number(),
            Outcome::Forward { .. } => 0,
            other => panic!("{other:?}"),
        }
    };
    let all = [Op::Create, Op::Mkdir, Op::Symlink, Op::Mknod];
    for op in all {
        assert_eq!(made(&stage, BOB, op, ALICE), 1, "{op} for another");
        assert_eq!(made(&stage, BOB, op, 0), 1, "{op} for root");
        assert_eq!(made(&stage, BOB, op, BOB), 0, "{op} for oneself");
        assert_eq!(made(&stage, ADMIN, op, ALICE), 1, "{op}: who may be an administrator is none yet");
    }
    stage.write(ADMIN, ".control/users/root/ctrl", "admin\n").unwrap();
    for op in all {
        assert_eq!(made(&stage, ADMIN, op, ALICE), 0, "{op} by an administrator");
    }
}
