//! `weir store` against a real controller on loopback. Needs no root and no lab.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Kills and reaps the controller also when an assertion fails.
pub struct Controller {
    process: Child,
    context: PathBuf,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _gone = (self.process.kill(), self.process.wait());
    }
}

pub fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

impl Controller {
    /// One that begins in a folder.
    pub fn begin(state: &Path) -> Controller {
        Controller::start(state, free_address())
    }

    /// The context that it wrote.
    pub fn context(&self) -> &Path {
        &self.context
    }

    fn start(state: &Path, api: SocketAddr) -> Controller {
        let context = state.join("admin.json");
        let session = free_address();
        let mut command = Command::new(WEIR);
        command.args(["controller", "--domain", "store", "--state"]).arg(state);
        command.args(["--api", &api.to_string(), "--session", &session.to_string()]);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut controller = Controller { process, context };
        let begun = Instant::now();
        while controller.weir(&["store", "digest"]).status.code() != Some(0) {
            assert!(controller.process.try_wait().unwrap().is_none(), "the controller ended");
            assert!(begun.elapsed() < Duration::from_secs(60), "the controller does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        controller
    }

    fn weir(&self, arguments: &[&str]) -> Output {
        Command::new(WEIR).args(arguments).arg("--context").arg(&self.context).output().unwrap()
    }

    /// Runs `weir store …`, which must end with this code; gives what it printed.
    fn store(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.weir(&[&["store"], arguments].concat());
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "weir store {arguments:?}: {out}{err}");
        format!("{out}{err}")
    }
}

#[test]
fn the_commands_of_the_store_do_what_they_say_and_outlive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let api = free_address();
    let controller = Controller::start(dir.path(), api);
    let store = |code, arguments: &[&str]| controller.store(code, arguments);
    store(0, &["create", "t/devices", "--columns"]);
    store(0, &["create", "t/ips", "--reference", "t/devices"]);
    store(0, &["put", "t/ips", "10.0.0.1", "mac"]);
    store(0, &["put", "t/devices", "mac", "7", "--column", "port"]);
    assert!(store(0, &["get", "t/ips", "10.0.0.1"]).ends_with("  mac\n"));
    let port = store(0, &["get", "t/ips", "10.0.0.1", "--follow", "--column", "port", "--raw"]);
    assert_eq!(port, "7");
    store(4, &["get", "t/ips", "10.0.0.2"]);
    store(4, &["cas", "t/ips", "10.0.0.1", "other", "--expect-version", "0"]);
    store(0, &["cas", "t/ips", "10.0.0.1", "mac2", "--expect", "mac"]);
    assert_eq!(store(0, &["increment", "t/ips", "n", "5"]), "0\n");
    assert_eq!(store(0, &["increment", "t/ips", "n", "-2"]), "5\n");
    let list = store(0, &["scan", "t/ips", "10."]);
    assert!(
        list.starts_with("10.0.0.1  v") && list.ends_with("  mac2\n") && list.lines().count() == 1,
        "{list}"
    );
    assert!(store(1, &["put", "t/none", "k", "v"]).contains("create it first"));
    assert!(store(1, &["put", "resource", "k", "v"]).contains("belongs to the system"));
    let bad = dir.path().join("bad.wasm");
    std::fs::write(&bad, b"bad").unwrap();
    assert!(store(1, &["load-procedure", "t/f", bad.to_str().unwrap()]).contains("is not taken"));
    let seen = store(0, &["watch", "t/ips", "--from", "1", "--count", "2"]);
    assert!(seen.lines().next().is_some_and(|line| line.ends_with("t/ips  10.0.0.1  mac")), "{seen}");
    store(0, &["put", "t/ips", "short", "v", "--ttl-ms", "1"]);
    let begun = Instant::now();
    while controller.weir(&["store", "get", "t/ips", "short"]).status.code() != Some(4) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the entry stays");
    }

    let digest = |text: String| text.lines().find(|line| line.starts_with("digest")).unwrap().to_owned();
    let before = digest(store(0, &["digest"]));
    drop(controller);
    let controller = Controller::start(dir.path(), api);
    assert_eq!(digest(controller.store(0, &["digest"])), before);
    assert!(controller.store(0, &["tables", "t"]).contains("t/devices"));
}
