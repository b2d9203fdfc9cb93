//! The shipped examples, which are the paper's templates (4.4) and the policies of the box, with real clients: each is put in
//! force in turn, without a restart.

use super::adversaries::{BAD, GOOD, adversary, second_client};
use super::{BOUND, Place, scenario};
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_lab::system;

const REMAP: &str = include_str!("../../../../docs/operate/filewall/remap.yaml");
const CLOSED: &str = include_str!("../../../../docs/operate/filewall/closed-at-night.yaml");
const FREEZE: &str = include_str!("../../../../docs/operate/filewall/freeze.yaml");
const QUOTA: &str = include_str!("../../../../docs/operate/filewall/quota.yaml");
const MODULES: [(&str, &str); 3] = [
    ("remap.wat", include_str!("../../../../docs/operate/filewall/modules/remap.wat")),
    ("closed.wat", include_str!("../../../../docs/operate/filewall/modules/closed.wat")),
    ("statistics.wat", include_str!("../../../../docs/operate/filewall/modules/statistics.wat")),
];

/// A window of a whole day, or one that is hours away.
pub(super) fn window(open: bool) -> String {
    let hours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3600;
    let away = (hours + 6) % 24;
    match open {
        true => "[{from: \"00:00\", to: \"24:00\"}]".to_string(),
        false => format!("[{{from: \"{away:02}:00\", to: \"{away:02}:30\"}}]"),
    }
}

pub(super) fn put(place: &Place, policy: &str) {
    let epoch = || place.status().and_then(|status| status["policy_epoch"].as_u64());
    system::wait_for("an answer of FileWall", BOUND, || Ok(epoch().is_some())).unwrap();
    let before = epoch();
    place.write_policy(policy);
    system::wait_for("the policy", BOUND, || Ok(epoch() > before)).unwrap();
}

#[test]
fn the_shipped_examples_hold_for_real_clients() {
    scenario("the_shipped_examples_hold_for_real_clients", |place| {
        second_client(place);
        std::fs::create_dir(place.path("archive")).unwrap();
        system::run("chmod", &["777", &place.path("archive")]).unwrap();
        std::fs::write(place.path("file"), b"content").unwrap();
        let folder = place.write_policy("kind: statistics\n");
        for (name, text) in MODULES {
            // From midnight to midnight, in place of by night.
            let text = text.replace("(i64.const 22)", "(i64.const 0)");
            std::fs::write(format!("{folder}/{name}"), text).unwrap();
        }
        place.start_wall("wall", &folder);
        let done = || Ok(String::new());
        let content = || Ok("content".to_string());
        let owner = |name: &str| std::fs::metadata(place.path(name)).unwrap().uid();

        // Attribute remapping: as the server sees users, and as clients see owners.
        put(place, REMAP);
        assert_eq!(place.client(1001, &["create", "/mapped", "x"]), done());
        assert_eq!(place.client(0, &["create", "/nobodys", "x"]), done());
        assert_eq!((owner("mapped"), owner("nobodys")), (20001, 65534));

        // Time windows.
        let closed = |open: bool| {
            let text = CLOSED.replace("[{from: \"22:00\", to: \"05:00\"}]", &window(open));
            assert!(text != CLOSED);
            text.replace("answer: jukebox", "answer: acces")
        };
        put(place, &closed(true));
        assert!(place.client(0, &["read", "/file"]).is_err(), "in the window");
        put(place, &closed(false));
        assert_eq!(place.client(0, &["read", "/file"]), content(), "outside the window");
        let freeze = |open: bool| FREEZE.replace("[{from: \"02:00\", to: \"03:00\"}]", &window(open));
        put(place, &freeze(false));
        assert_eq!(place.client(0, &["create", "/archive/late", "x"]), Err("EROFS".to_string()));
        assert_eq!(place.client(0, &["create", "/elsewhere", "x"]), done());
        put(place, &freeze(true));
        assert_eq!(place.client(0, &["create", "/frozen-too", "x"]), Err("EROFS".to_string()));

        // Quotas, machines, rates.
        put(place, &QUOTA.replace("names: 50000", "names: 2"));
        assert_eq!(place.client(1001, &["mkdir", "/one"]), done());
        assert_eq!(place.client(1001, &["mkdir", "/two"]), done());
        // What libnfs makes of DQUOT.
        assert_eq!(place.client(1001, &["mkdir", "/three"]), Err("ERANGE".to_string()));
        assert_eq!(place.client(1002, &["mkdir", "/three"]), done());
        put(place, "kind: machines\nlimit: 1\nidle-s: 900\n");
        let comes = |address: &str| {
            let command = adversary(place, address, 1001, &["handle", "file"]);
            system::run_output(command, BOUND).unwrap().status.success()
        };
        assert_eq!((comes(GOOD), comes(BAD), comes(GOOD)), (true, false, true));
        put(place, "kind: rate\nper: user\ncalls-per-s: 20\nburst-ms: 100\n");
        assert_eq!(place.client(0, &["read", "/file"]), content());
        assert_eq!(place.client(0, &["read", "/file"]), content());
        assert!(place.status().unwrap()["policies"][0]["delayed"].as_u64() > Some(0));

        // The paper's templates as modules.
        put(place, "kind: module\nfile: remap.wat\nops: [all]\n");
        assert_eq!(place.client(5000, &["create", "/by-module", "x"]), done());
        assert_eq!(owner("by-module"), 1001);
        put(place, "kind: module\nfile: closed.wat\nops: [all]\n");
        assert_eq!(place.client(0, &["read", "/file"]), Err("EACCES".to_string()));
        put(place, "kind: module\nfile: statistics.wat\nops: [all]\n");
        assert_eq!(place.client(0, &["read", "/file"]), content());
        assert!(place.status().unwrap()["policies"][0]["details"]["keys"].as_u64() > Some(0));
    });
}
