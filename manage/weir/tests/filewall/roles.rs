//! Rules of the case study (paper 4.5.1) with real clients that the scenario of roles and sessions leaves out: delegation outside
//! its hours, static separation of duty where roles are assigned, and users who become threats by being denied too often.

use super::examples::{put, window};
use super::{BOUND, Place, scenario};
use std::os::unix::fs::{PermissionsExt, chown};
use weir_lab::system;

const ROOT: u32 = 0;
const ALICE: u32 = 1001;
const BOB: u32 = 1002;

/// The shipped example with delegation open or closed now, and denials that make a threat.
fn policy(open: bool) -> String {
    let text = include_str!("../../../../docs/operate/filewall/rbac.yaml");
    let hours = "[{from: \"17:00\", to: \"09:00\"}]";
    let escalation = "escalation: [admin]";
    assert!(text.contains(hours) && text.contains(escalation));
    text.replace(hours, &window(open)).replace(escalation, "escalation: [admin], denials: 3, window-s: 3600")
}

/// Roles that a user may activate now, as the control folder lists them.
fn available(place: &Place, uid: u32, name: &str) -> Vec<String> {
    let listed = place.client(uid, &["list", &format!("/.control/users/{name}")]).unwrap_or_default();
    let mut roles: Vec<String> = listed.lines().filter(|name| *name != "ctrl").map(str::to_string).collect();
    roles.sort();
    roles
}

#[test]
fn delegation_separation_and_denials_are_enforced_for_real_clients() {
    scenario("delegation_separation_and_denials_are_enforced_for_real_clients", |place| {
        for (name, uid) in [("alice", ALICE), ("bob", BOB)] {
            std::fs::write(place.path(name), name).unwrap();
            chown(place.path(name), Some(uid), Some(uid)).unwrap();
            std::fs::set_permissions(place.path(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let folder = place.write_policy(&policy(false));
        place.start_wall("wall", &folder);
        let denied = || Err("EACCES".to_string());
        // libnfs does not say why a WRITE fails.
        let refused = || Err("EFAULT".to_string());
        let ok = || Ok(String::new());
        let threats =
            || place.status().and_then(|status| status["policies"][1]["details"]["threats"].as_u64());

        // Outside the hours of a delegation its role can be neither seen nor had; who may have it later is no threat.
        assert_eq!(available(place, BOB, "bob"), ["developer", "user"]);
        assert_eq!(place.client(BOB, &["write", "/.control/users/bob/ctrl", "admin"]), refused());
        assert_eq!(place.client(BOB, &["read", "/alice"]), denied());
        assert_eq!(place.client(BOB, &["read", "/bob"]), Ok("bob".into()));
        put(place, &policy(true));
        assert_eq!(available(place, BOB, "bob"), ["admin", "developer", "user"]);
        assert_eq!(place.client(BOB, &["write", "/.control/users/bob/ctrl", "admin"]), ok());
        assert_eq!(place.client(BOB, &["read", "/alice"]), Ok("alice".into()));
        put(place, &policy(false));
        assert_eq!(place.client(BOB, &["read", "/alice"]), denied(), "the session has ended with the window");

        // Static separation of duty: nobody is assigned two roles that exclude each other, and the rest of the write
        // is not done either.
        assert_eq!(place.client(ROOT, &["write", "/.control/users/root/ctrl", "admin"]), ok());
        let threat = "/.control/roles/threat/ctrl";
        assert_eq!(place.client(ROOT, &["write", threat, "assign bob\nassign root\n"]), refused());
        let members = place.client(ROOT, &["read", "/.control/roles/threat/members"]);
        assert_eq!(members, ok(), "no member");
        assert_eq!(place.client(ROOT, &["write", "/.control/roles/developer/ctrl", "assign alice"]), ok());
        let members = place.client(ROOT, &["read", "/.control/roles/developer/members"]).unwrap_or_default();
        assert!(members.lines().any(|name| name == "alice"), "{members}");
        assert_eq!(place.client(ALICE, &["read", "/bob"]), Ok("bob".into()), "a developer from now on");
        assert_eq!(place.client(ROOT, &["write", "/.control/roles/developer/ctrl", "revoke alice"]), ok());

        // Denied too often: whatever else it may do, a threat has one role, over kills too, until it is enabled.
        assert_eq!(place.client(ALICE, &["read", "/alice"]), Ok("alice".into()));
        let before = threats();
        let grown = || {
            assert_eq!(place.client(ALICE, &["read", "/bob"]), denied());
            Ok(threats() > before)
        };
        system::wait_for("a threat after denials", BOUND, grown).unwrap();
        assert_eq!(place.client(ALICE, &["read", "/alice"]), denied());
        place.kill("wall");
        place.start_wall("wall-again", &folder);
        assert_eq!(place.client(ALICE, &["read", "/alice"]), denied());
        assert_eq!(place.client(ROOT, &["write", "/.control/users/root/ctrl", "admin"]), ok());
        assert_eq!(place.client(ROOT, &["write", "/.control/users/alice/ctrl", "enable"]), ok());
        assert_eq!(place.client(ALICE, &["read", "/alice"]), Ok("alice".into()));
    });
}
