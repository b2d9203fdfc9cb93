//! A controller that was revoked does not come back under its number, nor with its key under another one: whatever an operator does with
//! its machine, the group refuses it, says what would be right, and deals it no share. A host's keys change in the meantime, in a group of five.

use crate::byzantine::{add, addition, change, members_at, wait_ended};
use crate::extra::Extra;
use crate::group::wait_whole;
use crate::identities::{counter, key};
use crate::lab::{Lab, byzantine_lab, text};
use crate::members::Stranger;
use crate::namespaces::wait;
use std::path::Path;
use weir_api::types::GroupSigning;
use weir_lab::Program;

/// Where a controller is reached by a port, in the underlay of the ninth instance of these labs.
fn address(id: u64, port: u16) -> String {
    format!("198.18.106.{id}:{port}")
}

/// How the group signs, when no dealing is under way.
fn signing(lab: &Lab) -> Option<GroupSigning> {
    lab.client().group().ok()?.signing.filter(|signing| signing.dealing.is_none())
}

/// The machine of a controller as an operator sets it up again: with the settings that it had, and nothing else. It says why it does not start.
fn begins_again_in_vain(lab: &Lab, extra: &Extra, id: u64) {
    let folder = lab.folder().join(format!("c{id}"));
    std::fs::remove_dir_all(folder.join("state")).unwrap();
    let program = Program::new(env!("CARGO_BIN_EXE_weir"))
        .args(["controller", "--domain", "lab", "--join-group", "--state"])
        .arg(folder.join("state"))
        .arg("--config")
        .arg(folder.join("controller.yaml"))
        .args(["--api".to_owned(), address(id, 7443), "--session".to_owned(), address(id, 7444)])
        .netns(&lab.netns(&format!("c{id}")));
    let _ends = extra.start("again", &program);
    let why = format!("the key of controller {id} is not that of");
    wait("one with another key than the founders' list has to say so", || {
        let said = std::fs::read_to_string(extra.file("again.log")).unwrap_or_default();
        said.contains(&why) && said.contains("give this controller another number (group.id)")
    });
}

/// A command of an operator is refused in these words, and the members are the same.
fn refused(lab: &Lab, arguments: &[String], words: &[&str], members: &[u64]) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = lab.weir(&arguments);
    let said = text(&output.stderr);
    assert!(!output.status.success() && words.iter().all(|word| said.contains(word)), "{said}");
    for one in ["c1", "c2", "c3", "c5"] {
        assert_eq!(members_at(lab, one), members, "{one}");
    }
}

/// A host changes its keys, and no controller that it asks has to send it to another one.
fn changes_keys(lab: &Lab, host: &str) {
    let refusals = || {
        let all = ["c1", "c2", "c3", "c4", "c5"];
        all.map(|one| counter(lab, one, "rotation_refused")).iter().sum::<u64>()
    };
    let (before, refused) = (key(lab, host), refusals());
    lab.ok(&["identity", "rotate", host]);
    assert_ne!(key(lab, host), before);
    assert_eq!(refusals(), refused, "each step is asked of one that takes it");
}

#[test]
fn a_revoked_controller_comes_back_neither_under_its_number_nor_with_its_key() {
    let Some(lab) = byzantine_lab("revoked_number") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();

    // One that waits to be added knows where those are who answer, before the first change of members too.
    lab.start("c5");
    let stranger = Stranger::of(&lab, Path::new(&extra.file("unknown")));
    let mut said = String::new();
    let founders = (1..=4).map(|id| address(id, 7444)).collect::<Vec<_>>().join(", ");
    wait("one that waits to be added to know the founders", || {
        said = stranger.hears(&address(5, 7444));
        said.contains(&format!("the controllers of the group are at {founders}"))
    });
    assert!(said.contains("it is new in the group") && said.contains("Keep membership.json"), "{said}");

    let all = ["c1", "c2", "c3", "c4", "c5"];
    add(&lab, 5, &[1, 2, 3, 4, 5], &all, || {});
    wait("the shares of five", || signing(&lab).is_some_and(|now| now.members == [1, 2, 3, 4, 5]));
    changes_keys(&lab, "h1");
    changes_keys(&lab, "h2");

    let old = addition(&lab, 4).pop().unwrap();
    lab.ok(&["identity", "revoke", "controller-4", "--reason", "its disk was stolen", "--yes"]);
    let rest = ["c1", "c2", "c3", "c5"];
    change(&lab, &["group", "remove", "4", "--yes"], &[1, 2, 3, 5], &rest, || {});
    wait_ended(&lab, "c4", "no member of the group any more");
    wait("the shares of four", || signing(&lab).is_some_and(|now| now.members == [1, 2, 3, 5]));
    let before = signing(&lab).unwrap();

    begins_again_in_vain(&lab, &extra, 4);
    let again = addition(&lab, 4);
    assert_ne!(again.last(), Some(&old), "it has another key");
    let words =
        ["id: controller 4 was revoked", "does not come back under its number", "give the new one another"];
    refused(&lab, &again, &words, &[1, 2, 3, 5]);
    // Nor does another one with its key.
    let mut stolen = again;
    (stolen[2], *stolen.last_mut().unwrap()) = ("6".to_owned(), old);
    let words = ["key: this key was revoked", "controller/controller-4", "weir group identity"];
    refused(&lab, &stolen, &words, &[1, 2, 3, 5]);

    // Shares are dealt again: it has none of these either.
    lab.ok(&["group", "refresh"]);
    let mut after = before.clone();
    wait("shares dealt anew", || {
        after = signing(&lab).unwrap_or_else(|| before.clone());
        after.phase > before.phase
    });
    assert_eq!(after.members, [1, 2, 3, 5]);
    assert_eq!((after.key, after.threshold), (before.key, before.threshold));
    for (one, has) in [("c1", true), ("c2", true), ("c3", true), ("c5", true), ("c4", false)] {
        let share = lab.folder().join(one).join("state/quorum/share");
        wait(&format!("the share of {one}: {has}"), || share.exists() == has);
    }
    let listed = lab.ok(&["identity", "list", "-o", "json"]);
    let listed: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
    let row = listed.iter().find(|one| one["source"] == "controller/controller-4").unwrap();
    assert!(row["revoked"]["reason"] == "its disk was stolen" && row["key"].is_null(), "{row}");
    // Its number is gone for good, and so is this lab.
    lab.spent();
}
