//! A second FileWall takes over.

use super::{BOUND, case_study, scenario};
use std::process::Stdio;
use weir_lab::system;

#[test]
fn a_second_filewall_takes_over_and_nothing_happens_twice() {
    scenario("a_second_filewall_takes_over_and_nothing_happens_twice", |place| {
        let context = place.folder.path().join("context").display().to_string();
        let policy = place.write_policy(&case_study());
        let mut first = place.start_wall_with("wall", &policy, &["--context", &context]);
        let second = place.begin_wall("second-wall", &policy, &["--context", &context, "--standby"]);
        assert_eq!(place.client(0, &["write", "/.control/users/root/ctrl", "admin"]), Ok(String::new()));
        assert_eq!(
            place.client(0, &["write", "/.control/roles/developer/ctrl", "assign alice"]),
            Ok(String::new())
        );
        // Clients in the middle of their work: they make, rename and remove folders until all are through.
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nfs_client.py");
        let works = ["work-0", "work-1", "work-2"];
        let churns: Vec<_> = works
            .iter()
            .map(|work| {
                std::fs::create_dir(place.path(work)).unwrap();
                std::os::unix::fs::chown(place.path(work), Some(1002), Some(1002)).unwrap();
                let folder = format!("/{work}");
                let words = ["-u", script, "10.9.1.1", "/vfs", "1002", "churn", &folder, "900"];
                let mut churn = place.client.command("python3");
                churn.args(words).stdout(Stdio::piped());
                churn.spawn().unwrap()
            })
            .collect();
        let names = |work: &str| std::fs::read_dir(place.path(work)).unwrap().count();
        let busy = || Ok(works.iter().all(|work| names(work) > 20));
        system::wait_for("work in progress", BOUND, busy).unwrap();
        first.kill().unwrap();
        // Each operation has happened exactly once: a second execution would have failed, or left something behind.
        for (churn, work) in churns.into_iter().zip(works) {
            let output = churn.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "done", "{work}");
            assert_eq!(names(work), 300, "{work}");
        }
        assert!(second.alive());
        let members = place.client(1001, &["read", "/.control/roles/developer/members"]).unwrap();
        assert!(members.lines().any(|name| name == "alice"), "{members}");
    });
}
