//! FileWall as a service of Weir: its policies come from a group of controllers.

use super::{BOUND, scenario};
use crate::lab::{group_lab, text};
use weir_api::planes::PlaneRequest;
use weir_api::types::FileWallRequest;
use weir_lab::system;
use weir_model::filewall::PolicyFile;

/// By the options and the command of releases before.
#[test]
fn ordered_policies_are_in_force_and_stay_when_control_is_gone() {
    const NAME: &str = "ordered_policies_are_in_force_and_stay_when_control_is_gone";
    let Some(lab) = group_lab(NAME) else { return };
    scenario(NAME, |place| {
        std::fs::write(place.path("file"), b"content").unwrap();
        let run_dir = lab.run_folder("h1").display().to_string();
        let source = place.folder.path().join("to-order");
        std::fs::create_dir(&source).unwrap();
        let policies = place.folder.path().join("ordered").display().to_string();
        let words = ["--orders-from", run_dir.as_str(), "--host", "h1", "--name", "old-wall"];
        let order = |policy: &str| {
            std::fs::write(source.join("policy.yaml"), policy).unwrap();
            let folder = source.display().to_string();
            lab.weir(&["filewall", "order", "h1", "old-wall", &folder, "--wait-s", "60"])
        };
        let status = |field: &str| place.status().map(|status| status[field].clone()).unwrap_or_default();

        let ends = |wait_s: &str, policy: &str| {
            std::fs::write(source.join("policy.yaml"), policy).unwrap();
            let folder = source.display().to_string();
            let output = lab.weir(&["filewall", "order", "h1", "old-wall", &folder, "--wait-s", wait_s]);
            (output.status.code(), text(&output.stdout) + &text(&output.stderr))
        };

        // A FileWall that does not run does nothing, and nobody says that it did.
        let (code, said) = ends("2", "kind: statistics\n");
        assert!(matches!(code, Some(1 | 5)), "{said}");
        assert!(
            lab.weir(&["filewall", "order", "h1", "old-wall", "--withdraw", "--wait-s", "60"])
                .status
                .success()
        );
        // Without policies nothing is served.
        let mut wall = place.begin_wall("wall", &policies, &words);
        assert!(place.list(super::WALL, "").is_none());
        assert!(order("kind: statistics\n").status.success());
        system::wait_for("FileWall", BOUND, || Ok(place.status().is_some())).unwrap();
        assert_eq!(place.client(0, &["create", "/new", "new"]), Ok(String::new()));
        let first = status("policy_order").as_u64().unwrap();

        // A later order takes the place of the one before.
        assert!(order("kind: read-only\n").status.success());
        system::wait_for("the order", BOUND, || Ok(status("policy_order").as_u64() > Some(first))).unwrap();
        let second = std::cell::Cell::new(status("policy_order").as_u64());
        let frozen = || {
            assert_eq!(place.client(0, &["read", "/file"]), Ok("content".to_string()));
            assert_eq!(place.client(0, &["create", "/late", "late"]), Err("EROFS".to_string()));
            assert_eq!(status("policy_order").as_u64(), second.get());
        };
        frozen();

        // What is wrong is refused where it is ordered; what gets past that, where it would be in force.
        let refused = order("kind: nonsense\n");
        assert!(!refused.status.success() && text(&refused.stderr).contains("nonsense"), "{refused:?}");
        let files = vec![PolicyFile { name: "policy.yaml".into(), text: "kind: nonsense\n".into() }];
        let request = FileWallRequest { files: Some(files), wait_ms: 60_000 };
        let response = lab.client().filewall("h1", "old-wall", &request).unwrap();
        assert!(!response.in_force, "in force is what is before");
        let outcome = response.outcome.expect("the FileWall says what it did");
        assert!(!outcome.done && outcome.text.contains("nonsense"), "{outcome:?}");
        assert!(status("policy_error").is_string());
        frozen();
        // So is one that touches a file of the host's owner, by the command too.
        std::fs::rename(source.join("policy.yaml"), source.join("own.yaml")).unwrap();
        std::fs::write(place.folder.path().join("ordered/own.yaml"), "kind: statistics\n").unwrap();
        std::fs::write(source.join("own.yaml"), "kind: statistics\n").unwrap();
        let (code, said) = ends("60", "kind: read-only\n");
        assert!(code == Some(1) && said.contains("own.yaml"), "{said}");
        std::fs::remove_file(source.join("own.yaml")).unwrap();
        frozen();
        std::fs::remove_file(place.folder.path().join("ordered/own.yaml")).unwrap();
        // What was refused is tried again when the FileWall begins anew; a later order takes its place.
        assert!(order("kind: read-only\n").status.success());
        system::wait_for("the later order", BOUND, || Ok(status("policy_order").as_u64() > second.get()))
            .unwrap();
        second.set(status("policy_order").as_u64());
        frozen();

        // Without controllers, and after a restart, the last good ones hold.
        for controller in ["c1", "c2", "c3"] {
            lab.kill(controller);
        }
        frozen();
        wall.kill().unwrap();
        place.start_wall_with("wall-again", &policies, &words);
        frozen();
        for controller in ["c1", "c2", "c3"] {
            lab.start(controller);
        }
        system::wait_for("the next order", BOUND, || Ok(order("kind: statistics\n").status.success()))
            .unwrap();
        system::wait_for("what was ordered", BOUND, || Ok(status("policy_order").as_u64() != second.get()))
            .unwrap();
        assert_eq!(place.client(0, &["create", "/late", "late"]), Ok(String::new()));
        assert!(lab.weir(&["filewall", "order", "h1", "old-wall", "--withdraw"]).status.success());
    });
}

/// With the host's settings a FileWall is an actuator of its own: what is in force is what it says, and what it says is at the command.
#[test]
fn a_filewall_that_acks_for_itself_says_what_it_did_with_what_was_pushed() {
    const NAME: &str = "a_filewall_that_acks_for_itself_says_what_it_did_with_what_was_pushed";
    let Some(lab) = group_lab(NAME) else { return };
    scenario(NAME, |place| {
        std::fs::write(place.path("file"), b"content").unwrap();
        let settings = lab.folder().join("h1/state/node.json").display().to_string();
        let source = place.folder.path().join("to-push");
        std::fs::create_dir(&source).unwrap();
        let policies = place.folder.path().join("pushed").display().to_string();
        let words = ["--host-config", settings.as_str(), "--name", "wall"];
        let push = |wall: &str, policy: &str| {
            std::fs::write(source.join("policy.yaml"), policy).unwrap();
            let folder = source.display().to_string();
            let output = lab.weir(&["filewall", "push", "h1", wall, &folder, "--wait-s", "60"]);
            (output.status.code(), text(&output.stdout) + &text(&output.stderr))
        };
        let (code, said) = push("wall", "kind: statistics\n");
        assert!(code == Some(1) && said.contains("no process of plane filewall is on this host"), "{said}");
        // It comes, is given what waits for it, and only then serves.
        let mut wall = place.begin_wall("wall", &policies, &words);
        system::wait_for("FileWall", BOUND, || Ok(place.status().is_some())).unwrap();
        assert_eq!(place.client(0, &["create", "/new", "new"]), Ok(String::new()));
        let (code, said) = push("wall", "kind: read-only\n");
        assert!(code == Some(0) && said.contains("it is in force"), "{said}");
        let frozen = || {
            assert_eq!(place.client(0, &["read", "/file"]), Ok("content".to_string()));
            assert_eq!(place.client(0, &["create", "/late", "late"]), Err("EROFS".to_string()));
        };
        frozen();
        let (code, said) = push("typo", "kind: statistics\n");
        assert!(code == Some(1) && said.contains("takes 'typo', there are: wall"), "{said}");
        // What gets past the command is refused by the FileWall, in its words.
        let spec = serde_json::json!({"files": [{"name": "policy.yaml", "text": "kind: nonsense\n"}]});
        let request = PlaneRequest { spec, wait_ms: 60_000 };
        let response = lab.client().put_plane("h1", "filewall", "wall", &request).unwrap();
        assert!(!response.in_force && response.refusal.unwrap().contains("nonsense"));
        frozen();
        for name in ["wall", "typo"] {
            let _told = lab.weir(&["filewall", "withdraw", "h1", name, "--wait-s", "10"]);
        }
        frozen();
        wall.kill().unwrap();
        place.start_wall_with("wall-again", &policies, &words);
        frozen();
        let shown = lab.ok(&["plane", "show", "h1"]);
        assert!(shown.contains("filewall 'wall' reports"), "{shown}");
    });
}
