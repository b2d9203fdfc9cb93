//! FileWall between a real server (nfs-ganesha) and real clients (libnfs), each in its own namespace.
//!
//! ```text
//!  client 10.9.1.2 ──── 10.9.1.1 wall 10.9.0.1 ──── 10.9.0.2 server (ganesha, rpcbind)
//! ```
//!
//! Clients name no ports: FileWall answers PORTMAP and MOUNT itself.

mod adversaries;
mod examples;
mod peers;
mod roles;
mod service;
mod suites;
mod takeover;

use crate::namespaces::BOUND;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use weir_lab::scope::CleanOnDrop;
use weir_lab::{Daemon, Netns, Program, Scope, system};

const NEEDED: [&str; 6] = ["ganesha.nfsd", "rpcbind", "nfs-cp", "nfs-cat", "nfs-ls", "python3"];
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
    // nfs-ganesha finds the file systems of its exports by it; a root made by debootstrap has none.
    if !Path::new("/etc/mtab").exists() {
        return println!("NOT RUN {name}: there is no /etc/mtab: ln -s /proc/self/mounts /etc/mtab");
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
        let daemon = self.begin_server(name, &self.server, &self.export());
        system::wait_for("the server", BOUND, || Ok(self.list(SERVER, "").is_some())).unwrap();
        daemon
    }

    /// The same in a namespace of choice, with a folder of choice, not waited for.
    fn begin_server(&self, name: &str, netns: &Netns, export: &str) -> Daemon {
        let conf = self.folder.path().join(format!("{name}.conf"));
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 3, 4; Enable_NLM = false; Enable_RQUOTA = false; mount_path_pseudo = true; \
             MNT_Port = 20048; }}\nNFSv4 {{ Graceless = true; Only_Numeric_Owners = true; Minor_Versions = 0, 1; }}\nEXPORT {{ Export_Id = 7; Path = {}; Pseudo = /vfs; Access_Type = RW; \
             Squash = No_Root_Squash; SecType = sys; Protocols = 3, 4; FSAL {{ Name = VFS; }} }}\n",
            export
        );
        std::fs::write(&conf, text).unwrap();
        let script = format!(
            "mount -t tmpfs none /run && mkdir -p /run/ganesha /run/rpcbind /var/lib/nfs/ganesha && \
             mount -t tmpfs none /var/lib/nfs/ganesha || exit 1; rpcbind -f & \
             until [ -S /run/rpcbind.sock ]; do sleep 0.05; done; \
             exec ganesha.nfsd -F -f {} -L STDOUT -p /run/ganesha.pid",
            conf.display()
        );
        let words = ["-m", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c", script.as_str()];
        self.scope.start(name, &Program::new("unshare").args(words).netns(netns)).unwrap()
    }

    /// A second server, with a folder of its own: its export on this machine, and its URL.
    fn second_server(&self, name: &str) -> (Netns, String, String) {
        let netns = self.scope.netns("second").unwrap();
        netns.veth("t0", &self.wall, "t1").unwrap();
        netns.address("t0", "10.9.2.2/24").unwrap();
        self.wall.address("t1", "10.9.2.1/24").unwrap();
        netns.up("t0").unwrap();
        self.wall.up("t1").unwrap();
        netns.route("default", "10.9.2.1").unwrap();
        let export = self.folder.path().join("second").display().to_string();
        std::fs::create_dir(&export).unwrap();
        system::run("chmod", &["777", &export]).unwrap();
        let url = "nfs://10.9.2.2/vfs".to_string();
        self.begin_server(name, &netns, &export);
        system::wait_for("the second server", BOUND, || Ok(self.list(&url, "").is_some())).unwrap();
        (netns, export, url)
    }

    fn kill(&self, name: &str) {
        let record = self.scope.programs().into_iter().find(|(known, _)| known == name).unwrap().1;
        record.signal(weir_lab::process::Signal::KILL).unwrap();
        system::wait_for("its end", BOUND, || Ok(!record.alive())).unwrap();
    }

    fn write_policy(&self, text: &str) -> String {
        let folder = self.folder.path().join("policies");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("policy.yaml"), text).unwrap();
        folder.display().to_string()
    }

    fn start_wall(&self, name: &str, policy: &str) -> Daemon {
        self.start_wall_with(name, policy, &[])
    }

    fn start_wall_with(&self, name: &str, policy: &str, more: &[&str]) -> Daemon {
        let daemon = self.begin_wall(name, policy, more);
        system::wait_for("FileWall", BOUND, || Ok(self.status().is_some())).unwrap();
        daemon
    }

    fn begin_wall(&self, name: &str, policy: &str, more: &[&str]) -> Daemon {
        self.begin_wall_at(name, SERVER, policy, more)
    }

    fn begin_wall_at(&self, name: &str, server: &str, policy: &str, more: &[&str]) -> Daemon {
        let words = [&["filewall", "--server", server, "--policy", policy][..], more].concat();
        let program = Program::new(env!("CARGO_BIN_EXE_weir")).args(words).netns(&self.wall);
        self.scope.start(name, &program).unwrap()
    }

    fn status(&self) -> Option<serde_json::Value> {
        let mut command = self.wall.command(env!("CARGO_BIN_EXE_weir"));
        command.args(["filewall", "top", "-o", "json"]);
        let output = system::run_output(command, BOUND).unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    fn counter(&self, name: &str) -> Option<u64> {
        self.status().unwrap()["totals"]["counters"][name].as_u64()
    }

    /// Every call and every reply was sound.
    fn all_was_understood(&self) {
        let bad = ["bad_calls_total", "bad_replies_total"].map(|name| self.counter(name));
        assert_eq!(bad, [Some(0), Some(0)]);
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

    /// A command of `nfs_client.py` as a user, through FileWall: what it prints, or the name of the error.
    fn client(&self, uid: u32, arguments: &[&str]) -> Result<String, String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nfs_client.py");
        let uid = uid.to_string();
        let words = [&["60", "python3", script, "10.9.1.1", "/vfs", uid.as_str()][..], arguments].concat();
        let output = self.run("timeout", &words);
        let text = String::from_utf8_lossy(&output.stdout).trim_end().to_string();
        if output.status.success() { Ok(text) } else { Err(text) }
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
        // A link leads nowhere that the rules do not see: the server is not asked to follow it.
        std::os::unix::fs::symlink("../secret", place.path("open/link")).unwrap();
        assert!(place.read(&to("/open/link/file")).is_err(), "a way around a rule by a mount of a link");
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
        place.all_was_understood();
        assert!(place.counter("compounds_total") > Some(10));
    });
}

/// The shipped example of the case study, in a night that never ends.
fn case_study() -> String {
    let text = include_str!("../../../docs/operate/filewall/rbac.yaml");
    text.replace("17:00", "00:00").replace("09:00", "24:00")
}

/// The same where who may be an administrator is one from the beginning: root of a guest looks at all and removes it.
fn administered() -> String {
    let text = case_study().replace("initial: [user, developer]", "initial: [user, developer, admin]");
    text.replace(
        "exclusive: [[admin, user], [admin, developer], [admin, threat]]",
        "exclusive: [[admin, threat]]",
    )
}

#[test]
fn roles_sessions_and_the_control_folder_work_for_real_clients() {
    scenario("roles_sessions_and_the_control_folder_work_for_real_clients", |place| {
        for (name, uid, mode) in [("alice", 1001, 0o644), ("bob", 1002, 0o600), ("charles", 1003, 0o600)] {
            std::fs::write(place.path(name), name).unwrap();
            std::os::unix::fs::chown(place.path(name), Some(uid), Some(uid)).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(place.path(name), mode).unwrap();
        }
        let policy = place.write_policy(&case_study());
        let mut wall = place.start_wall("wall", &policy);
        let [root, alice, bob, charles] = [0, 1001, 1002, 1003];
        let denied = || Err("EACCES".to_string());
        // libnfs does not say why a WRITE fails.
        let refused = || Err("EFAULT".to_string());
        let ok = || Ok(String::new());
        // The matrix: one's own files, those of other developers, and the owner's right to remove.
        assert_eq!(place.client(alice, &["read", "/alice"]), Ok("alice".into()));
        assert_eq!(place.client(alice, &["read", "/bob"]), denied());
        assert_eq!(
            place.client(charles, &["read", "/bob"]),
            Ok("bob".into()),
            "as bob, whose file is private"
        );
        assert_eq!(place.client(bob, &["remove", "/charles"]), denied());
        let listed = place.client(alice, &["list", "/"]).unwrap();
        assert!(listed.lines().any(|name| name == ".control"), "{listed}");
        let mut control: Vec<String> =
            place.client(alice, &["list", "/.control"]).unwrap().lines().map(str::to_string).collect();
        control.sort();
        assert_eq!(control, ["roles", "shadow", "users"]);
        // Sessions: least privilege, separation of duty, delegation.
        assert_eq!(place.client(bob, &["read", "/.control/users/bob/ctrl"]).unwrap(), "user\ndeveloper");
        assert_eq!(place.client(bob, &["read", "/alice"]), denied());
        assert_eq!(place.client(bob, &["write", "/.control/users/bob/ctrl", "admin developer"]), refused());
        assert_eq!(place.client(bob, &["create", "/.control/users/bob/ctrl", "admin"]), ok());
        assert_eq!(place.client(bob, &["read", "/alice"]), Ok("alice".into()));
        assert_eq!(place.client(bob, &["write", "/.control/users/bob/ctrl", "\n"]), ok());
        // Permissions by the shadow, and by chmod, which the shadow follows.
        let shadow = "/.control/shadow/bob";
        assert_eq!(place.client(alice, &["write", shadow, "READ user"]), denied());
        assert_eq!(place.client(bob, &["write", shadow, "READ user\nGETATTR user\nACCESS user\n"]), ok());
        assert_eq!(place.client(alice, &["read", "/bob"]), Ok("bob".into()));
        assert!(place.client(bob, &["read", shadow]).unwrap().contains("\nREAD user\n"));
        assert_eq!(place.client(bob, &["chmod", "/bob", "200"]), ok());
        let text = place.client(bob, &["read", shadow]).unwrap();
        assert!(text.contains("mode 0200") && text.contains("READ user # not by mode"), "{text}");
        assert_eq!(place.client(alice, &["read", "/bob"]), denied());
        assert_eq!(place.client(bob, &["chmod", shadow, "777"]), Err("EPERM".into()));
        assert_eq!(place.client(bob, &["chmod", "/bob", "600"]), ok());
        let mirrored = place.client(bob, &["list", "/.control/shadow"]).unwrap();
        assert!(["alice", "bob", "charles"].iter().all(|name| mirrored.lines().any(|line| line == *name)));
        // Who asks for what is out of reach is a threat; killed at once, FileWall forgets neither that nor permissions.
        assert_eq!(place.client(alice, &["write", "/.control/users/alice/ctrl", "admin"]), refused());
        wall.kill().unwrap();
        place.start_wall("wall-again", &policy);
        assert_eq!(place.client(alice, &["read", "/alice"]), denied());
        assert_eq!(place.client(root, &["write", "/.control/users/root/ctrl", "admin"]), ok());
        assert_eq!(place.client(root, &["write", "/.control/users/alice/ctrl", "enable"]), ok());
        assert_eq!(place.client(alice, &["read", "/bob"]), Ok("bob".into()), "what bob permitted has stayed");
        // LOG and ALARM.
        assert_eq!(place.client(root, &["write", "/charles", "edited"]), ok());
        let log = std::fs::read_to_string(place.folder.path().join("policies/rbac.log")).unwrap();
        assert!(
            log.lines().any(|line| line.contains("\"permission\":\"alarm\"") && line.contains("alice")),
            "{log}"
        );
        assert!(
            log.lines().any(|line| line.contains("\"op\":\"WRITE\"") && line.contains("\"role\":\"admin\"")),
            "{log}"
        );
    });
}

#[test]
fn a_replica_that_is_lost_is_not_noticed_and_comes_back_whole() {
    scenario("a_replica_that_is_lost_is_not_noticed_and_comes_back_whole", |place| {
        let (netns, other, url) = place.second_server("second-server");
        let context = place.folder.path().join("context").display().to_string();
        let policy = place.write_policy("kind: handles\nkey-file: key\n");
        let mut wall = place.start_wall_with("wall", &policy, &["--replica", &url, "--context", &context]);
        let run = |arguments: &[&str]| place.client(0, arguments);
        let both = |name: &str| {
            [place.path(name), format!("{other}/{name}")].map(|path| std::fs::read_to_string(path).ok())
        };
        let live = || {
            let status = place.status().unwrap();
            let all = status["replicas"].as_array().unwrap().clone();
            all.iter().map(|replica| replica[1].as_bool().unwrap()).collect::<Vec<_>>()
        };
        // At the first start the second one is compared with the first.
        system::wait_for("the comparison", BOUND, || Ok(live() == [true, true])).unwrap();
        assert_eq!(run(&["mkdir", "/folder"]), Ok(String::new()));
        assert_eq!(run(&["create", "/folder/one", "first"]), Ok(String::new()));
        assert_eq!(both("folder/one"), [Some("first".to_string()), Some("first".to_string())]);
        assert_eq!(live(), [true, true]);
        // The first one dies: reading and writing go on.
        place.kill("server");
        assert_eq!(run(&["read", "/folder/one"]), Ok("first".to_string()));
        assert_eq!(run(&["create", "/folder/two", "second"]), Ok(String::new()));
        assert_eq!(run(&["rename", "/folder/one", "/folder/renamed"]), Ok(String::new()));
        assert_eq!(run(&["list", "/folder"]).unwrap().lines().count(), 2);
        assert_eq!(live(), [false, true]);
        assert_eq!(both("folder/two"), [None, Some("second".to_string())]);
        // It comes back, and gets what it has missed; then the other one dies.
        place.begin_server("server-again", &place.server, &place.export());
        system::wait_for("the rebuild", BOUND, || Ok(live() == [true, true])).unwrap();
        assert_eq!(both("folder/two"), [Some("second".to_string()), Some("second".to_string())]);
        assert_eq!(both("folder/one"), [None, None]);
        place.kill("second-server");
        assert_eq!(run(&["read", "/folder/renamed"]), Ok("first".to_string()));
        // Handles are numbers that outlive FileWall.
        wall.kill().unwrap();
        place.start_wall_with("wall-again", &policy, &["--replica", &url, "--context", &context]);
        assert_eq!(run(&["read", "/folder/two"]), Ok("second".to_string()));
        drop(netns);
    });
}

#[test]
fn a_folder_that_another_server_serves_looks_like_any_other() {
    scenario("a_folder_that_another_server_serves_looks_like_any_other", |place| {
        let (_netns, other, url) = place.second_server("second-server");
        let context = place.folder.path().join("context").display().to_string();
        let policy = place.write_policy("kind: handles\nkey-file: key\n");
        let redirect = format!("/projects={url}");
        place.start_wall_with("wall", &policy, &["--redirect", &redirect, "--context", &context]);
        let run = |arguments: &[&str]| place.client(0, arguments);
        assert_eq!(run(&["create", "/here", "here"]), Ok(String::new()));
        assert_eq!(run(&["create", "/projects/there", "there"]), Ok(String::new()));
        assert_eq!(std::fs::read_to_string(format!("{other}/there")).unwrap(), "there");
        assert!(!Path::new(&place.path("projects")).exists());
        let mut listed: Vec<String> = run(&["list", "/"]).unwrap().lines().map(str::to_string).collect();
        listed.sort();
        assert_eq!(listed, ["here", "projects"]);
        assert_eq!(run(&["read", "/projects/there"]), Ok("there".to_string()));
        assert_eq!(run(&["rename", "/here", "/projects/here"]), Err("EXDEV".to_string()));
        assert!(Path::new(&place.path("here")).exists() && !Path::new(&format!("{other}/here")).exists());
        assert_eq!(run(&["rename", "/projects", "/elsewhere"]), Err("EACCES".to_string()));
    });
}

/// What a kernel's client sees that libnfs does not: its caches, its own checks, many calls at once.
const GUEST: &str = "
mkdir /mnt/tree
for number in 1 2 3 4 5 6 7 8 9; do mkdir /mnt/tree/$number; echo $number > /mnt/tree/$number/file; done
check listed \"$(ls /mnt/tree | wc -l)\" 9
check read \"$(cat /mnt/tree/*/file | tr -d '\\n')\" 123456789
dd if=/dev/urandom of=/tmp/data bs=64k count=8 2>/dev/null
cp /tmp/data /mnt/tree/data
echo 3 > /proc/sys/vm/drop_caches
check same \"$(md5sum < /mnt/tree/data)\" \"$(md5sum < /tmp/data)\"
mv /mnt/tree/data /mnt/tree/moved
rm -r /mnt/tree
check removed \"$(ls /mnt | grep -c tree)\" 0
check own \"$(as alice 'cat /mnt/alice')\" alice
check foreign \"$(as alice 'cat /mnt/bob' | grep -c denied)\" 1
check control \"$(ls /mnt/.control | tr '\\n' ' ')\" 'roles shadow users '
check roles \"$(as bob 'cat /mnt/.control/users/bob/ctrl' | tr '\\n' ' ')\" 'user developer '
as bob 'echo admin > /mnt/.control/users/bob/ctrl'
check administrator \"$(as bob 'cat /mnt/.control/users/bob/ctrl')\" admin
check as-administrator \"$(as bob 'cat /mnt/alice')\" alice
as bob 'echo user developer > /mnt/.control/users/bob/ctrl'
as bob 'echo looks user > /mnt/.control/shadow/bob'
as bob 'echo READ user >> /mnt/.control/shadow/bob'
check granted \"$(as alice 'cat /mnt/bob')\" bob
as bob 'chmod 640 /mnt/bob'
check shadow \"$(as bob 'cat /mnt/.control/shadow/bob' | grep -c -e 'mode 0640' -e 'READ user')\" 2
as bob 'echo all policy > /mnt/.control/shadow/bob; chmod 600 /mnt/bob'
check taken-back \"$(as alice 'cat /mnt/bob' | grep -c denied)\" 1
umount /mnt
check unmounted $? 0
";

#[test]
fn the_kernels_own_client_works_with_roles_and_the_control_folder() {
    kernel_client("the_kernels_own_client_works_with_roles_and_the_control_folder", &["3"]);
}

#[test]
fn the_kernels_own_client_of_nfsv4_works_with_roles_and_the_control_folder() {
    let name = "the_kernels_own_client_of_nfsv4_works_with_roles_and_the_control_folder";
    kernel_client(name, &["4.0", "4.1"]);
}

/// Mounts with each version in turn, in one guest.
fn kernel_client(name: &str, versions: &[&str]) {
    if let Some(reason) = crate::nfs_guest::missing() {
        return println!("NOT RUN {name}: {reason}");
    }
    scenario(name, |place| {
        for (name, uid) in [("alice", 1001), ("bob", 1002)] {
            std::fs::write(place.path(name), name).unwrap();
            std::os::unix::fs::chown(place.path(name), Some(uid), Some(uid)).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(place.path(name), mode).unwrap();
        }
        let policy = place.write_policy(&administered());
        place.start_wall("wall", &policy);
        let script: String =
            versions.iter().map(|version| crate::nfs_guest::mount(version) + GUEST).collect();
        let said = crate::nfs_guest::run(&place.client, place.folder.path(), &script);
        assert!(said.iter().all(|line| line.ends_with(" ok")), "{said:#?}");
        assert_eq!(said.len(), versions.len() * (GUEST.matches("\ncheck ").count() + 1), "{said:#?}");
        place.all_was_understood();
    });
}
