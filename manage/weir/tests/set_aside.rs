//! An entry that ends the process of every controller is set aside: an operator says so at one controller, the others hear of it and promise, too, and all go
//! on without it; one that was told of another entry does not, until it is told which. Their audits say the same.

use crate::group::{same_state, wait_whole};
use crate::lab::{Lab, byzantine_lab, group_lab, text};
use crate::namespaces::wait;
use std::collections::BTreeMap;
use std::process::Stdio;
use weir_api::client::{Client, Context};

/// What one waits for: the place of an entry, its digest, and all that it says.
type Waits = (u64, String, String);

/// Why a controller waits before an entry, if it does.
fn waits(lab: &Lab, controller: &str) -> Option<Waits> {
    let client = Client::new(Context { others: vec![], ..lab.context_of(controller) }).unwrap();
    let said = client.group().ok()?.failure?;
    let after = |mark: &str| {
        let (_, rest) = said.split_once(mark)?;
        rest.split(|one: char| !one.is_ascii_alphanumeric()).next().map(str::to_owned)
    };
    Some((after("--entry ")?.parse().ok()?, after("--digest ")?, said.clone()))
}

fn is_alive(lab: &Lab, controller: &str) -> bool {
    lab.program(controller).is_some_and(|program| program.alive())
}

/// Starts what ended, until every controller waits; gives the entry. Each ends at it a few times, as often as enough of the others run to let it
/// come so far.
fn all_wait(lab: &Lab) -> (u64, String) {
    let mut found: BTreeMap<&str, (u64, String)> = BTreeMap::new();
    wait("every controller to wait before the entry", || {
        for one in lab.controllers() {
            if !is_alive(lab, one) {
                lab.try_start(one);
            }
            match waits(lab, one) {
                Some((index, digest, _)) => found.insert(one, (index, digest)),
                None => found.remove(one),
            };
        }
        found.len() == lab.controllers().len() && found.values().all(|entry| *entry == found["c1"])
    });
    found.remove("c1").unwrap()
}

fn set_aside(lab: &Lab, controller: &str, (index, digest): (u64, &str)) {
    let state = lab.folder().join(controller).join("state").display().to_string();
    let entry = index.to_string();
    lab.ok(&["group", "set-aside", "--state", &state, "--entry", &entry, "--digest", digest, "--yes"]);
}

/// What a controller's audit has of entries that were left out.
fn left_out(lab: &Lab, controller: &str) -> String {
    let context = lab.folder().join(controller).join("state/admin.json").display().to_string();
    let api = lab.context_of(controller).server;
    let api = api.trim_start_matches("https://");
    let listed =
        lab.weir(&["audit", "list", "--kind", "left-out", "--controller", api, "--context", &context]);
    text(&listed.stdout)
}

fn scenario(lab: &Lab, name: &str, told: &'static str) {
    if !cfg!(debug_assertions) {
        println!("NOT RUN {name}: this build has no way for an entry to end a controller");
        return;
    }
    wait_whole(lab);
    let table = format!("test/ends-{name}");
    lab.ok(&["store", "create", &table]);
    // Not the table: it is made before, and the entry that makes it is carried out.
    let value = format!("ends-here-{name}");
    let ends_at = |one: &str| lab.folder().join(one).join("state/numbers/ends-at");
    lab.controllers().iter().for_each(|one| std::fs::write(ends_at(one), &value).unwrap());
    let mut put = lab.command();
    put.args(["store", "put", &table, "k", &value]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut put = put.spawn().unwrap();
    // The last ones may not have heard that it is ordered.
    let enough = lab.controllers().len() / 2;
    wait("too many to end for the others to go on", || {
        lab.controllers().iter().filter(|one| is_alive(lab, one)).count() <= enough
    });
    let _ends = put.kill();
    put.wait().unwrap();

    // The client may have asked more than one: each of these entries is one that ends them.
    let mut all = Vec::new();
    loop {
        let (index, digest) = all_wait(lab);
        let refused = lab.weir(&["store", "get", &table, "k"]);
        assert!(!refused.status.success(), "nothing is served");
        // The first is told of another entry, by a mistake; one other is told, and nobody else.
        set_aside(lab, "c1", (index, &"00".repeat(32)));
        wait("c1 to say that it was told of another", || {
            waits(lab, "c1").is_some_and(|(.., said)| said.contains("another entry at this place"))
        });
        set_aside(lab, told, (index, &digest));
        wait("the others to go on", || {
            let mut others = lab.controllers().iter().filter(|one| **one != "c1");
            // Past it, or before the next.
            others.all(|one| {
                is_alive(lab, one) && waits(lab, one).is_none_or(|(at, ..)| at > index) || !is_alive(lab, one)
            })
        });
        let (at, _, said) = waits(lab, "c1").unwrap();
        assert!(at == index && said.contains("another entry at this place"), "{said}");
        set_aside(lab, "c1", (index, &digest));
        wait("c1 to go on", || waits(lab, "c1").is_none_or(|(at, ..)| at > index));
        all.push((index, digest));
        let more = |one: &&&str| !is_alive(lab, one) || waits(lab, one).is_some();
        std::thread::sleep(std::time::Duration::from_secs(2));
        if lab.controllers().iter().filter(more).count() == 0 {
            break;
        }
        assert!(all.len() < 8, "too many entries end them: {all:?}");
    }
    lab.controllers().iter().for_each(|one| std::fs::remove_file(ends_at(one)).unwrap());
    wait_whole(lab);
    let found = lab.weir(&["store", "get", &table, "k"]);
    assert!(!found.status.success(), "nothing of it was done");
    lab.ok(&["store", "put", &table, "k", "later"]);
    assert_eq!(lab.ok(&["store", "get", &table, "k", "--raw"]), "later");
    same_state(lab);
    for one in lab.controllers() {
        wait(&format!("the audit of {one} to have it"), || {
            let has = left_out(lab, one);
            all.iter().all(|(index, digest)| has.contains(&index.to_string()) && has.contains(digest))
        });
    }
    let compared = lab.ok(&["audit", "compare"]);
    assert!(compared.contains("say the same"), "{compared}");
    // After a restart it is passed over again, without anybody's help.
    lab.kill("c1");
    lab.start("c1");
    wait_whole(lab);
    same_state(lab);
}

#[test]
fn an_entry_that_ends_every_controller_is_set_aside_where_some_may_crash() {
    let Some(lab) = group_lab("set_aside_raft") else { return };
    scenario(&lab, "raft", "c2");
}

#[test]
fn an_entry_that_ends_every_controller_is_set_aside_where_some_may_lie() {
    let Some(lab) = byzantine_lab("set_aside_bft") else { return };
    scenario(&lab, "bft", "c3");
}
