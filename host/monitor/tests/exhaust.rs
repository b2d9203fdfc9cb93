//! A whole machine that is taken up by a fork bomb which nothing bounds: in a guest, in which a monitor runs by a policy that names no
//! cgroup. The guest's monitor is this very program, started there for the same test.

use crate::vm::{RootFile, Vm};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use weir_monitor::audit::{Alarm, What};
use weir_monitor::local::Settings;
use weir_monitor::service::{Config, Monitor};
use weir_sensor::Directory;

const NAME: &str = "exhaust::a_fork_bomb_of_a_whole_machine_is_ended_from_inside_it";
/// Set in the guest.
const GUARD: &str = "WEIR_TEST_GUARD";
const POLICY: &str = "\
kind: fork-bomb
name: host
dry-run: false
when: { living: 200, window-ms: 2000 }
";
/// `bomb` is one in a cgroup of its own; `root` one in the root of all cgroups, which cannot be frozen.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t tmpfs tmp /tmp
/bin/busybox mount -t cgroup2 cgroup /sys/fs/cgroup
/bin/busybox mkdir /sys/fs/cgroup/guard /sys/fs/cgroup/bomb
(echo 0 > /sys/fs/cgroup/guard/cgroup.procs; exec /guard --exact NAME --nocapture --test-threads 1 < /dev/null) &
/bin/busybox sleep 100000 < /dev/null &
innocent=$!
echo READY
while read line; do
  case $line in
    bomb) (echo 0 > /sys/fs/cgroup/bomb/cgroup.procs; exec /bin/busybox sh -c 'b() { b | b & }; b; /bin/busybox sleep 1000') < /dev/null & ;;
    root) /bin/busybox sh -c 'b() { b | b & }; b; /bin/busybox sleep 1000' < /dev/null & ;;
    count)
      living=0
      for stat in /proc/[0-9]*/stat; do
        read -r number name state rest < $stat && [ \"$state\" != Z ] && living=$((living + 1))
      done 2> /dev/null
      [ -d /proc/$innocent ] && echo COUNT $living $(/bin/busybox cat /sys/fs/cgroup/bomb/cgroup.freeze) END
      ;;
  esac
done
";

/// In the guest: a monitor of the whole machine, which says what it does.
fn guard() {
    let (tell, entries) = channel();
    let _monitor = Monitor::start(Config {
        policies: crate::cage::policies(POLICY),
        queries: Vec::new(),
        settings: Settings { cpu: Some(1), ..Settings::default() },
        audit: "/tmp/audit.log".into(),
        sensors: Directory::new("/tmp/sensors"),
        ring: None,
        without_bpf: false,
        on_entry: Box::new(move |entry| drop(tell.send(entry.clone()))),
        webhook: None,
    })
    .unwrap();
    println!("GUARD up");
    for entry in entries {
        println!("GUARD {}", serde_json::to_string(&entry).unwrap());
    }
}

/// This program with the libraries that it needs, for a guest that has none.
fn program() -> Result<Vec<RootFile>, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let stripped = folder.path().join("guard");
    let done = Command::new("strip").arg("-o").arg(&stripped).arg(&own).status();
    if !done.is_ok_and(|status| status.success()) {
        return Err("strip cannot be run: install binutils".into());
    }
    let listed = Command::new("ldd").arg(&own).output().map_err(|error| format!("ldd: {error}"))?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
    let content = |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let mut files = vec![("guard".to_string(), 0o100_755, content(&stripped)?)];
    let mut folders = BTreeSet::new();
    for library in libraries {
        let path = library.trim_start_matches('/');
        let above: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
        for folder in above.into_iter().rev().filter(|folder| !folder.as_os_str().is_empty()) {
            if folders.insert(folder.to_path_buf()) {
                files.push((folder.display().to_string(), 0o40755, Vec::new()));
            }
        }
        files.push((path.to_string(), 0o100_755, content(Path::new(library))?));
    }
    Ok(files)
}

/// Waits until the console has said `wanted` after its first `from` bytes; gives what it said.
fn wait(vm: &Vm, from: usize, what: &str, wanted: impl Fn(&str) -> bool) -> String {
    let mut said = String::new();
    crate::cage::until(what, || {
        said = vm.console.lock().unwrap().get(from..).unwrap_or_default().to_string();
        wanted(&said)
    });
    said
}

/// The guard's entries among what the console said.
fn entries(said: &str) -> Vec<What> {
    let lines = said.lines().filter_map(|line| line.split_once("GUARD {"));
    let parse = |(_, rest): (&str, &str)| serde_json::from_str(&format!("{{{rest}")).ok();
    lines.filter_map(parse).map(|entry: weir_monitor::audit::Entry| entry.what).collect()
}

fn acted(said: &str) -> Option<Alarm> {
    entries(said).into_iter().find_map(|what| match what {
        What::Alarm(alarm) if alarm.outcome == "acted" => Some(*alarm),
        _ => None,
    })
}

/// Processes that live in the guest, and whether the bomb's cgroup is frozen.
fn count(vm: &mut Vm) -> (usize, usize) {
    let from = vm.console.lock().unwrap().len();
    vm.say("count");
    let said = wait(vm, from, "a count", |said| said.contains(" END"));
    let numbers = said.split("COUNT ").nth(1).unwrap().split(' ');
    let mut numbers = numbers.map(|number| number.trim().parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn a_fork_bomb_of_a_whole_machine_is_ended_from_inside_it() {
    if std::env::var_os(GUARD).is_some() {
        return guard();
    }
    let init = INIT.replace("/guard --exact", &format!("/bin/busybox env {GUARD}=1 /guard --exact"));
    let vm = program().and_then(|files| Vm::boot_with(&init.replace("NAME", NAME), files, 2));
    let mut vm = match vm {
        Ok(vm) => vm,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    wait(&vm, 0, "the guard", |said| said.contains("GUARD up"));
    let (before, _) = count(&mut vm);
    for (bomb, freezes) in [("bomb", true), ("root", false)] {
        let from = vm.console.lock().unwrap().len();
        vm.say(bomb);
        let said = wait(&vm, from, "the end of the bomb", |said| {
            acted(said).is_some() && entries(said).iter().any(|what| matches!(what, What::Settled { .. }))
        });
        let alarm = acted(&said).unwrap();
        assert_eq!((alarm.measure.as_str(), alarm.frozen), ("living", freezes), "{alarm:?}");
        println!("{bomb}: {alarm:?}");
        // The innocent lives (else nothing is counted), the machine starts programs, and nothing stays frozen.
        crate::cage::until("few processes", || count(&mut vm) <= (before + 30, 0));
    }
}
