//! FileWall between a real server (nfs-ganesha) and real clients (libnfs), each in its own namespace.
//!
//! ```text
//!  client 10.9.1.2 ──── 10.9.1.1 wall 10.9.0.1 ──── 10.9.0.2 server (ganesha, rpcbind)
//! ```
//!
//! Clients name no ports: FileWall answers PORTMAP and MOUNT itself.

use crate::namespaces::BOUND;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use weir_lab::scope::CleanOnDrop;
use weir_lab::{Daemon, Netns, Program, Scope, system};

const NEEDED: [&str; 5] = ["ganesha.nfsd", "rpcbind", "nfs-cp", "nfs-cat", "nfs-ls"];
const SERVER: &str = "nfs://10.9.0.2/vfs";
const WALL: &str = "nfs://10.9.1.1/vfs";
/// One scenario at a time: their namespaces have the same names.
static TURN: Mutex<()> = Mutex::new(());

struct Place {
    client: Netns,
    wall: Netns,
    server: Netns,
    folder: tempfile::TempDir,
    // Last, so that what runs ends before its files go.
    scope: CleanOnDrop,
}

/// Runs a scenario, or says why it does not.
fn scenario(name: &str, work: impl FnOnce(&Place)) {
    if !system::is_root() {
        return println!("NOT RUN {name}: it needs root");
    }
    if let Err(error) = system::require_installed(&NEEDED) {
        return println!("NOT RUN {name}: {error}");
    }
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    work(&Place::new());
}

impl Place {
    fn new() -> Place {
        let scope = Scope::begin("filewall-test", "wxfilewall-t-").unwrap().clean_on_drop();
        let (client, wall, server) =
            (scope.netns("client").unwrap(), scope.netns("wall").unwrap(), scope.netns("server").unwrap());
        for (netns, inside, outside, own, other) in [
            (&client, "c0", "c1", "10.9.1.2/24", "10.9.1.1/24"),
            (&server, "s0", "s1", "10.9.0.2/24", "10.9.0.1/24"),
        ] {
            netns.veth(inside, &wall, outside).unwrap();
            netns.address(inside, own).unwrap();
            wall.address(outside, other).unwrap();
            netns.up(inside).unwrap();
            wall.up(outside).unwrap();
            netns.route("default", other.trim_end_matches("/24")).unwrap();
        }
        wall.sysctl("net.ipv4.ip_forward", "1").unwrap();
        let place = Place { client, wall, server, folder: tempfile::tempdir().unwrap(), scope };
        std::fs::create_dir(place.export()).unwrap();
        // Everybody may write on the server, so that what is refused is refused by FileWall.
        system::run("chmod", &["777", &place.folder.path().display().to_string(), &place.export()]).unwrap();
        place.start_server("server");
        place
    }

    fn export(&self) -> String {
        self.folder.path().join("export").display().to_string()
    }

    fn path(&self, name: &str) -> String {
        Path::new(&self.export()).join(name).display().to_string()
    }

    /// A process and all its children in a process namespace: they end with it.
    fn start_server(&self, name: &str) -> Daemon {
        let conf = self.folder.path().join("ganesha.conf");
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 3, 4; Enable_NLM = false; Enable_RQUOTA = false; mount_path_pseudo = true; \
             MNT_Port = 20048; }}\nNFSv4 {{ Graceless = true; Only_Numeric_Owners = true; Minor_Versions = 0, 1; }}\nEXPORT {{ Export_Id = 7; Path = {}; Pseudo = /vfs; Access_Type = RW; \
             Squash = No_Root_Squash; SecType = sys; Protocols = 3, 4; FSAL {{ Name = VFS; }} }}\n",
            self.export()
        );
        std::fs::write(&conf, text).unwrap();
        let script = format!(
            "mount -t tmpfs none /run && mkdir -p /run/ganesha /run/rpcbind /var/lib/nfs/ganesha && \
             mount -t tmpfs none /var/lib/nfs/ganesha && rpcbind -f & sleep 0.2; \
             exec ganesha.nfsd -F -f {} -L STDOUT -p /run/ganesha.pid",
            conf.display()
        );
        let words = ["-m", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c", script.as_str()];
        let daemon =
            self.scope.start(name, &Program::new("unshare").args(words).netns(&self.server)).unwrap();
        system::wait_for("the server", BOUND, || Ok(self.list(SERVER, "").is_some())).unwrap();
        daemon
    }

    fn write_policy(&self, text: &str) -> String {
        let folder = self.folder.path().join("policies");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("policy.yaml"), text).unwrap();
        folder.display().to_string()
    }

    fn start_wall(&self, name: &str, policy: &str) -> Daemon {
        let words = ["filewall", "--server", SERVER, "--policy", policy];
        let program = Program::new(env!("CARGO_BIN_EXE_weir")).args(words).netns(&self.wall);
        let daemon = self.scope.start(name, &program).unwrap();
        system::wait_for("FileWall", BOUND, || Ok(self.status().is_some())).unwrap();
        daemon
    }

    fn status(&self) -> Option<serde_json::Value> {
        let mut command = self.wall.command(env!("CARGO_BIN_EXE_weir"));
        command.args(["filewall", "top", "-o", "json"]);
        let output = system::run_output(command, BOUND).unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command: Command = self.client.command(program);
        command.args(arguments);
        system::run_output(command, BOUND).unwrap()
    }

    /// Names in a folder; `None` if it cannot be listed.
    fn list(&self, server: &str, folder: &str) -> Option<Vec<String>> {
        let output = self.run("timeout", &["20", "nfs-ls", &format!("{server}{folder}")]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let failed = !output.status.success() || String::from_utf8_lossy(&output.stderr).contains("Failed");
        let name = |line: &str| line.split_whitespace().last().unwrap_or_default().to_string();
        (!failed).then(|| text.lines().map(name).collect())
    }

    /// Copies a file to the server; what the client says when it fails.
    fn copy(&self, from: &str, to: &str) -> Result<(), String> {
        let output = self.run("nfs-cp", &[from, to]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(text) }
    }

    fn read(&self, url: &str) -> Result<Vec<u8>, String> {
        let output = self.run("nfs-cat", &[url]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(output.stdout) } else { Err(text) }
    }
}

#[test]
fn files_go_both_ways_through_filewall() {
    scenario("files_go_both_ways_through_filewall", |place| {
        let policy = place.write_policy("kind: handles\nkey-file: key\n---\nkind: statistics\n");
        place.start_wall("wall", &policy);
        let data: Vec<u8> =
            (0..5_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let source = place.folder.path().join("source").display().to_string();
        std::fs::write(&source, &data).unwrap();
        place.copy(&source, &format!("{WALL}/copy")).unwrap();
        assert!(std::fs::read(place.path("copy")).unwrap() == data, "written through FileWall");
        assert!(place.read(&format!("{WALL}/copy")).unwrap() == data, "read through FileWall");
        // A folder whose listing takes many calls, with handles that are longer than the server's.
        std::fs::create_dir(place.path("many")).unwrap();
        for number in 0..1500 {
            std::fs::write(place.path(&format!("many/file-{number}")), b"").unwrap();
        }
        let (mut direct, mut through) =
            (place.list(SERVER, "/many").unwrap(), place.list(WALL, "/many").unwrap());
        direct.sort();
        through.sort();
        assert_eq!(direct.len(), 1500);
        assert_eq!(direct, through);
        let status = place.status().unwrap();
        let row = &status["principals"][0];
        assert_eq!(
            (row["client"].as_str(), row["usage"]["written_bytes"].as_u64()),
            (Some("10.9.1.2"), Some(5_000_000))
        );
        assert_eq!(status["totals"]["counters"]["bad_replies_total"], 0);
        assert_eq!(status["policies"][0]["details"]["forged"], 0);
    });
}

const RULES: &str = "
kind: identities
users: {alice: {uid: 1001, roles: [user]}, root: {uid: 0, roles: [admin]}}
roles: {user: {}, admin: {inherits: [user]}}
---
kind: handles
key-file: key
---
kind: access
default: deny
rules:
- {deny: [changes], paths: [/frozen], answer: rofs}
- {deny: [all], paths: [/secret]}
- {allow: [all], roles: [admin]}
- {allow: [looks, reads], roles: [user]}
---
kind: audit
file: audit.log
ops: [changes]
";

#[test]
fn rules_hold_for_real_clients_and_change_without_a_restart() {
    scenario("rules_hold_for_real_clients_and_change_without_a_restart", |place| {
        for folder in ["frozen", "secret", "open"] {
            std::fs::create_dir(place.path(folder)).unwrap();
            std::fs::write(place.path(&format!("{folder}/file")), folder).unwrap();
        }
        system::run("chmod", &["-R", "777", &place.export()]).unwrap();
        let policy = place.write_policy(RULES);
        let wall = place.start_wall("wall", &policy);
        let source = place.folder.path().join("source").display().to_string();
        std::fs::write(&source, b"new").unwrap();
        let to = |path: &str| format!("{WALL}{path}");
        place.copy(&source, &to("/open/root")).unwrap();
        assert_eq!(place.read(&to("/frozen/file")), Ok(b"frozen".to_vec()));
        assert!(place.copy(&source, &to("/frozen/new")).unwrap_err().contains("NFS3ERR_ROFS"));
        assert!(place.read(&to("/secret/file")).unwrap_err().contains("MNT3ERR_ACCES"));
        assert_eq!(place.read(&to("/open/file?uid=1001")), Ok(b"open".to_vec()));
        assert!(place.copy(&source, &to("/open/alice?uid=1001")).unwrap_err().contains("NFS3ERR_ACCES"));
        assert!(place.read(&to("/open/file?uid=1002")).is_err(), "a user that the rules do not know");
        assert!(place.list(WALL, "/../../etc").is_none(), "a path outside the export");
        let log = std::fs::read_to_string(place.folder.path().join("policies/audit.log")).unwrap();
        let frozen = log.lines().find(|line| line.contains("/frozen/new")).unwrap();
        assert!(frozen.contains("\"denied_by\":\"access\"") && frozen.contains("\"status\":30"), "{frozen}");
        // `explain` says of the same files what has just happened.
        let explain = |user: &str, path: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
            command
                .args(["filewall", "explain", "--policy", &policy, "--user", user, "--op", "CREATE", path]);
            let output = system::run_output(command, BOUND).unwrap();
            (output.status.code(), String::from_utf8_lossy(&output.stdout).contains("rule 1"))
        };
        assert_eq!(explain("root", "/frozen/new"), (Some(4), true));
        assert_eq!(explain("alice", "/open/alice"), (Some(4), false));
        assert_eq!(explain("root", "/open/root"), (Some(0), false));
        // A wrong file changes nothing; a right one does.
        let epoch = || place.status().unwrap()["policy_epoch"].as_u64();
        place.write_policy(&RULES.replace("default: deny", "default: perhaps"));
        let refused = || Ok(place.status().unwrap()["policy_error"].is_string());
        system::wait_for("the refusal of a wrong file", BOUND, refused).unwrap();
        assert!(place.copy(&source, &to("/open/alice?uid=1001")).is_err());
        assert_eq!(epoch(), Some(1));
        place.write_policy(&RULES.replace("allow: [looks, reads]", "allow: [all]"));
        system::wait_for("the new rules", BOUND, || Ok(epoch() == Some(2))).unwrap();
        place.copy(&source, &to("/open/alice?uid=1001")).unwrap();
        assert!(wall.alive());
    });
}

#[test]
fn a_server_and_a_filewall_that_were_killed_come_back() {
    scenario("a_server_and_a_filewall_that_were_killed_come_back", |place| {
        let policy = place.write_policy("kind: handles\nkey-file: key\n");
        let mut wall = place.start_wall("wall", &policy);
        std::fs::write(place.path("file"), b"content").unwrap();
        let url = format!("{WALL}/file");
        assert_eq!(place.read(&url), Ok(b"content".to_vec()));
        let record = place.scope.programs().into_iter().find(|(name, _)| name == "server").unwrap().1;
        record.signal(weir_lab::process::Signal::KILL).unwrap();
        system::wait_for("the end of the server", BOUND, || Ok(!record.alive())).unwrap();
        place.start_server("server-again");
        assert_eq!(place.read(&url), Ok(b"content".to_vec()));
        wall.kill().unwrap();
        assert!(place.list(WALL, "").is_none());
        place.start_wall("wall-again", &policy);
        assert_eq!(place.read(&url), Ok(b"content".to_vec()));
    });
}

#[test]
fn clients_of_nfsv4_are_under_the_same_rules() {
    scenario("clients_of_nfsv4_are_under_the_same_rules", |place| {
        for folder in ["frozen", "secret", "open"] {
            std::fs::create_dir(place.path(folder)).unwrap();
            std::fs::write(place.path(&format!("{folder}/file")), folder).unwrap();
        }
        system::run("chmod", &["-R", "777", &place.export()]).unwrap();
        let policy = place.write_policy(RULES);
        place.start_wall("wall", &policy);
        let data: Vec<u8> =
            (0..3_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let source = place.folder.path().join("source").display().to_string();
        std::fs::write(&source, &data).unwrap();
        // libnfs 4.0 cannot write over NFSv4, with or without FileWall, so what it reads there is written over NFSv3.
        place.copy(&source, &format!("{WALL}/open/copy")).unwrap();
        let to = |path: &str| format!("{WALL}{path}?version=4");
        assert!(place.read(&to("/open/copy")).unwrap() == data, "read through FileWall");
        assert_eq!(place.list(&format!("{WALL}/open"), "?version=4").unwrap().len(), 2);
        assert!(place.copy(&source, &to("/frozen/new")).is_err());
        assert!(!Path::new(&place.path("frozen/new")).exists());
        assert_eq!(place.read(&to("/frozen/file")), Ok(b"frozen".to_vec()));
        assert!(place.read(&to("/secret/file")).is_err());
        let alice = |path: &str| format!("{WALL}{path}?version=4&uid=1001");
        assert_eq!(place.read(&alice("/open/file")), Ok(b"open".to_vec()));
        assert!(place.copy(&source, &alice("/open/alice")).is_err());
        assert!(!Path::new(&place.path("open/alice")).exists());
        let log = std::fs::read_to_string(place.folder.path().join("policies/audit.log")).unwrap();
        assert!(log.contains("\"op\":\"CREATE\"") && log.contains("\"status\":30"), "{log}");
        let counters = place.status().unwrap()["totals"]["counters"].clone();
        assert_eq!(
            (counters["bad_replies_total"].as_u64(), counters["bad_calls_total"].as_u64()),
            (Some(0), Some(0))
        );
        assert!(counters["compounds_total"].as_u64() > Some(10));
    });
}
