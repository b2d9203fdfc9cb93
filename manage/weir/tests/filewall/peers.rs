//! Another server and other clients than the ones that the rest of these tests use.

use super::{BOUND, Place, SERVER, WALL, scenario};
use std::path::Path;
use weir_lab::{Program, system};

/// What `scripts/nfs-peer` has built: a server of NFSv3 in Go.
const PEER: &str = "/var/cache/weir/nfs-peer/osnfs";

impl Place {
    /// Runs a program on the client; what it printed.
    fn told(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments);
        let (said, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{program} {arguments:?}: {said}{error}");
        said.into_owned()
    }
}

#[test]
fn another_server_is_behind_the_same_policies() {
    let name = "another_server_is_behind_the_same_policies";
    if !Path::new(PEER).exists() {
        return println!("NOT RUN {name}: there is no second server: run scripts/nfs-peer");
    }
    scenario(name, |place| {
        let export = place.folder.path().join("peer");
        for folder in ["frozen", "secret", "open"] {
            std::fs::create_dir_all(export.join(folder)).unwrap();
            std::fs::write(export.join(folder).join("file"), folder).unwrap();
        }
        let words = [export.display().to_string(), "12049".to_string()];
        place.scope.start("peer", &Program::new(PEER).args(words).netns(&place.server)).unwrap();
        let policy = place.write_policy(super::RULES);
        let url = "nfs://10.9.0.2/vfs?nfsport=12049&mountport=12049";
        place.begin_wall_at("wall", url, &policy, &[]);
        system::wait_for("FileWall and the server", BOUND, || Ok(place.list(WALL, "").is_some())).unwrap();
        let data: Vec<u8> =
            (0..2_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let source = place.folder.path().join("source").display().to_string();
        std::fs::write(&source, &data).unwrap();
        // This server gives the root of its export whatever is mounted; FileWall goes down to the folder that was meant.
        let copy = format!("{WALL}/open/copy");
        place.copy(&source, &copy).unwrap();
        assert!(std::fs::read(export.join("open/copy")).unwrap() == data, "written through FileWall");
        assert!(place.read(&copy).unwrap() == data, "read through FileWall");
        assert!(place.copy(&source, &format!("{WALL}/frozen/copy")).unwrap_err().contains("NFS3ERR_ROFS"));
        assert!(place.read(&format!("{WALL}/secret/file")).is_err());
        let (root, alice) =
            (|words: &[&str]| place.client(0, words), |words: &[&str]| place.client(1001, words));
        let done = || Ok(String::new());
        assert_eq!(root(&["create", "/frozen/new", "new"]), Err("EROFS".to_string()));
        assert_eq!(root(&["read", "/frozen/file"]), Ok("frozen".to_string()));
        assert_eq!(root(&["read", "/secret/file"]), Err("EACCES".to_string()));
        assert_eq!(alice(&["read", "/open/file"]), Ok("open".to_string()));
        assert_eq!(alice(&["create", "/open/alice", "alice"]), Err("EACCES".to_string()));
        assert_eq!(root(&["mkdir", "/open/folder"]), done());
        assert_eq!(root(&["create", "/open/one", "one"]), done());
        assert_eq!(root(&["rename", "/open/one", "/open/folder/two"]), done());
        assert_eq!(root(&["list", "/open/folder"]), Ok("two".to_string()));
        assert_eq!(root(&["read", "/open/folder/two"]), Ok("one".to_string()));
        assert_eq!(root(&["remove", "/open/folder/two"]), done());
        place.all_was_understood();
    });
}

#[test]
fn qemus_own_client_keeps_a_disk_behind_filewall() {
    let name = "qemus_own_client_keeps_a_disk_behind_filewall";
    if let Err(error) = system::require_installed(&["qemu-img", "qemu-io"]) {
        return println!("NOT RUN {name}: {error}");
    }
    scenario(name, |place| {
        let policy = place.write_policy("kind: handles\nkey-file: key\n---\nkind: statistics\n");
        place.start_wall("wall", &policy);
        let disk = |server: &str| format!("{server}/disk.qcow2");
        place.told("qemu-img", &["create", "-q", "-f", "qcow2", &disk(WALL), "64M"]);
        place.told(
            "qemu-io",
            &["-c", "write -P 7 1M 3M", "-c", "write -P 9 60M 64k", "-c", "flush", &disk(WALL)],
        );
        place.told(
            "qemu-io",
            &["-r", "-c", "read -P 7 1M 3M", "-c", "read -P 0 4M 1M", "-c", "read -P 9 60M 64k", &disk(WALL)],
        );
        place.told("qemu-img", &["check", "-q", &disk(WALL)]);
        // What is behind FileWall is what the server has.
        let copy = place.folder.path().join("copy.raw").display().to_string();
        place.told("qemu-img", &["convert", "-O", "raw", &disk(WALL), &copy]);
        place.told("qemu-img", &["compare", "-q", &copy, &place.path("disk.qcow2")]);
        place.told("qemu-img", &["compare", "-q", &disk(SERVER), &disk(WALL)]);
        assert_eq!(place.status().unwrap()["totals"]["counters"]["bad_calls_total"], 0);
    });
}

/// A folder for each of two users, in which nobody else may do anything.
fn own_folders(place: &Place) {
    for (user, uid) in [("alice", 1001), ("bob", 1002)] {
        std::fs::create_dir(place.path(user)).unwrap();
        std::os::unix::fs::chown(place.path(user), Some(uid), Some(uid)).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(place.path(user), mode).unwrap();
    }
}

/// `mv` of a kernel's client: what cannot be renamed between servers is copied and removed.
const MOVE: &str = "
echo moved > /mnt/here
mv /mnt/here /mnt/projects/there
check mv $? 0
check there \"$(cat /mnt/projects/there)\" moved
check listed \"$(ls /mnt | tr '\\n' ' ')\" 'projects '
";

#[test]
fn a_move_to_a_folder_of_another_server_copies() {
    let name = "a_move_to_a_folder_of_another_server_copies";
    if let Some(reason) = crate::nfs_guest::missing() {
        return println!("NOT RUN {name}: {reason}");
    }
    scenario(name, |place| {
        let (_netns, other, url) = place.second_server("second-server");
        let context = place.folder.path().join("context").display().to_string();
        let policy = place.write_policy("kind: handles\nkey-file: key\n");
        let redirect = format!("/projects={url}");
        place.start_wall_with("wall", &policy, &["--redirect", &redirect, "--context", &context]);
        let script = crate::nfs_guest::mount("3") + MOVE;
        let said = crate::nfs_guest::run(&place.client, place.folder.path(), &script);
        assert_eq!(said, ["mount-3 ok", "mv ok", "there ok", "listed ok"]);
        assert_eq!(std::fs::read_to_string(format!("{other}/there")).unwrap(), "moved\n");
        assert!(!Path::new(&place.path("here")).exists());
    });
}

/// Connectathon's tests of clients of NFS, which no registry has: their tree, built as their README says.
const CTHON: &str = "/var/cache/weir/cthon04";
/// Those of its special tests that end by themselves, with what they are told. `freesp` tells what Linux does not have, `fstat`
/// what is no fault, and what is written at 2 and 4 GB is read by `bigfile2`.
const SPECIAL: [&str; 14] = [
    "op_unlk",
    "op_ren",
    "op_chmod",
    "dupreq 100 file",
    "excltest",
    "negseek file",
    "rename 100",
    "truncate",
    "holey",
    "nfsidem 50 folder",
    "rewind",
    "telldir",
    "bigfile -s 4 large",
    "bigfile2 larger",
];
/// What a test says last goes to the console where it fails.
const RUN: &str = "
ran() {
  as alice \"mkdir -p /mnt/alice/$2; cd /mnt/alice/$2; umask 0; NFSTESTDIR=/mnt/alice/$2/test TMPDIR= timeout 300 CTHON/$2/$3\" > /tmp/log
  status=$?
  [ $status = 0 ] || tail -n 5 /tmp/log
  check VERSION-$1 $status 0
}
";

/// A script that runs them on what is mounted.
fn cthon(version: &str) -> String {
    let mut script = RUN.to_string();
    for number in 1..=9 {
        script.push_str(&format!("ran basic-{number} basic 'test{number} -f'\n"));
    }
    for words in SPECIAL {
        let name = words.split(' ').next().unwrap_or_default();
        script.push_str(&format!("ran special-{name} special '{words}'\n"));
    }
    // There is no lock manager for NFSv3.
    for name in ["tlocklfs", "tlock64"].into_iter().filter(|_| version != "3") {
        script.push_str(&format!("ran {name} lock '{name} /mnt/alice/lock'\n"));
    }
    script.push_str("rm -r /mnt/alice/*\ncheck VERSION-removed $? 0\numount /mnt\n");
    script.replace("VERSION", version).replace("CTHON", CTHON)
}

#[test]
fn connectathons_tests_pass_on_the_kernels_own_client_under_handles_and_roles() {
    let name = "connectathons_tests_pass_on_the_kernels_own_client_under_handles_and_roles";
    let built = |path: &str| Path::new(CTHON).join(path).exists();
    let lacking = crate::nfs_guest::missing().or_else(|| {
        (!built("basic/test9") || !built("lock/tlock64"))
            .then(|| format!("Connectathon's tests are not built in {CTHON}"))
    });
    if let Some(reason) = lacking {
        return println!("NOT RUN {name}: {reason}");
    }
    scenario(name, |place| {
        own_folders(place);
        place.start_wall("wall", &place.write_policy(&super::administered()));
        let script: String =
            ["3", "4.0", "4.1"].map(|version| crate::nfs_guest::mount(version) + &cthon(version)).concat();
        let programs = (1..=9)
            .map(|number| format!("basic/test{number}"))
            .chain(SPECIAL.map(|words| format!("special/{}", words.split(' ').next().unwrap_or_default())))
            .chain(["lock/tlocklfs", "lock/tlock64"].map(str::to_string));
        let files = programs.flat_map(|path| crate::nfs_guest::program(&format!("{CTHON}/{path}"))).collect();
        let checks = script.matches("\nran ").count() + 2 * 3;
        let said = crate::nfs_guest::run_with(&place.client, place.folder.path(), &script, files);
        assert!(said.iter().all(|line| line.ends_with(" ok")), "{said:#?}");
        assert_eq!(said.len(), checks, "{said:#?}");
        place.all_was_understood();
    });
}

/// FileWall is another process, under other paths, between the two looks.
const RESTART: &str = "
check VERSION-before \"$(cat /mnt/open/file)\" open
touch /mnt/open/ready-VERSION
while [ ! -e /mnt/open/go-VERSION ]; do sleep 1; done
check VERSION-after \"$(cat /mnt/open/file)\" open
check VERSION-made \"$(echo made > /mnt/open/made; cat /mnt/open/made)\" made
check VERSION-closed \"$(cat /mnt/closed/file 2>&1 | grep -c denied)\" 1
rm /mnt/open/made
umount /mnt
";

#[test]
fn what_the_kernels_own_client_has_mounted_stays_good_when_filewall_begins_anew_under_other_paths() {
    let name =
        "what_the_kernels_own_client_has_mounted_stays_good_when_filewall_begins_anew_under_other_paths";
    if let Some(reason) = crate::nfs_guest::missing() {
        return println!("NOT RUN {name}: {reason}");
    }
    scenario(name, |place| {
        for folder in ["open", "closed"] {
            std::fs::create_dir(place.path(folder)).unwrap();
            std::fs::write(place.path(&format!("{folder}/file")), folder).unwrap();
        }
        system::run("chmod", &["-R", "777", &place.export()]).unwrap();
        let policy = |paths: &str| {
            let rules = format!("kind: access\ndefault: allow\nrules: [{{deny: [all], paths: [{paths}]}}]\n");
            place.write_policy(&format!("kind: handles\nkey-file: key\n---\n{rules}"))
        };
        let mut wall = place.start_wall("wall", &policy("/elsewhere"));
        let versions = ["3", "4.0", "4.1"];
        let script =
            versions.map(|version| crate::nfs_guest::mount(version) + &RESTART.replace("VERSION", version));
        let said = std::thread::scope(|scope| {
            let script = script.concat();
            let guest =
                scope.spawn(move || crate::nfs_guest::run(&place.client, place.folder.path(), &script));
            for version in versions {
                let ready = place.path(&format!("open/ready-{version}"));
                let comes = || Ok(Path::new(&ready).exists() || guest.is_finished());
                system::wait_for("the guest", crate::nfs_guest::BOUND, comes).unwrap();
                wall.kill().unwrap();
                wall = place.start_wall(&format!("wall-{version}"), &policy("/closed"));
                std::fs::write(place.path(&format!("open/go-{version}")), "").unwrap();
            }
            guest.join().unwrap()
        });
        assert!(said.iter().all(|line| line.ends_with(" ok")), "{said:#?}");
        assert_eq!(said.len(), versions.len() * 5, "{said:#?}");
    });
}

/// What two users do, each in a folder of their own, one of them as two clients at once, as often as there is time. dbench ends with an
/// error where anything is answered otherwise than it should be.
const DBENCH: &str = "
load() { as \"$1\" \"/usr/bin/dbench -c /load -D /mnt/$1 -t 5 $2 > /tmp/$1.log 2>&1; echo exit \\$? >> /tmp/$1.log\"; }
chmod 1777 /tmp
for user in 'alice 1' 'bob 2'; do
  set -- $user
  load $1 $2
  check VERSION-$1 \"$(grep -o -e '^Throughput' -e '^exit [0-9]*' /tmp/$1.log | tr '\\n' ' ')\" 'Throughput exit 0 '
  rm -r /mnt/$1/*
  check VERSION-$1-removed $? 0
done
umount /mnt
";
/// Lines of dbench's load that are played; all of them are 25 MB.
const LOAD_LINES: usize = 6000;

#[test]
fn dbench_of_the_kernels_own_client_runs_under_handles_and_roles() {
    let name = "dbench_of_the_kernels_own_client_runs_under_handles_and_roles";
    let load = "/usr/share/dbench/client.txt";
    let lacking = crate::nfs_guest::missing()
        .or_else(|| system::require_installed(&["dbench", "ldd"]).err().map(|error| error.to_string()));
    if let Some(reason) = lacking {
        return println!("NOT RUN {name}: {reason}");
    }
    scenario(name, |place| {
        own_folders(place);
        place.start_wall("wall", &place.write_policy(&super::administered()));
        let script: String = ["3", "4.0", "4.1"]
            .map(|version| crate::nfs_guest::mount(version) + &DBENCH.replace("VERSION", version))
            .concat();
        let mut files = crate::nfs_guest::program("/usr/bin/dbench");
        let text = std::fs::read_to_string(load).unwrap();
        let lines: Vec<&str> = text.lines().take(LOAD_LINES).collect();
        files.push(weir_lab::guest::File::data("load", lines.join("\n")));
        let said = crate::nfs_guest::run_with(&place.client, place.folder.path(), &script, files);
        assert!(said.iter().all(|line| line.ends_with(" ok")), "{said:#?}");
        assert_eq!(said.len(), 3 * (1 + 2 * 2), "{said:#?}");
        place.all_was_understood();
        let status = place.status().unwrap();
        assert!(status["totals"]["ops"]["WRITE"]["row"]["calls"].as_u64() > Some(0), "{status}");
        assert!(status["totals"]["counters"]["compounds_total"].as_u64() > Some(0), "{status}");
        let handles =
            status["policies"].as_array().unwrap().iter().find(|policy| policy["kind"] == "handles");
        assert_eq!(handles.unwrap()["details"]["forged"], 0);
    });
}
