//! A real guest under QEMU's emulator: its tasks are read from its memory, with address randomisation on; its own `/proc` is
//! the oracle; an idle guest lives and a stopped one does not.

use crate::cage::{Watched, until};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_monitor::detector::{Decision, Detector, Settings, State};
use weir_monitor::audit::{GuestAlarm, What};
use weir_monitor::guest::Guest;
use weir_monitor::guest::qmp::Qmp;
use weir_monitor::kernel::comm_text;
use weir_sensor::now_ns;

/// Where `scripts/guest-kernel` puts a kernel.
const KERNELS: [&str; 2] = ["/var/cache/weir/guest/boot", "/boot"];
const MEMORY: &str = "384M";
/// It lists the processes for each line that it is given.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
for n in 1 2 3; do /bin/busybox sleep 100000 & done
# Whoever opens the second port has the kernel listen to its interrupts.
/bin/busybox sleep 100000 < /dev/ttyS1 &
echo READY
while read line; do
  case $line in
    panic) echo c > /proc/sysrq-trigger ;;
    multiply) for n in $(/bin/busybox seq 150); do /bin/busybox sleep 100000 & done ;;
  esac
  echo \"LIST $(/bin/busybox ls /proc | /bin/busybox grep -E '^[0-9]+$' | /bin/busybox tr '\\n' ' ') END\"
done
";

/// An archive in the format `newc`, which Linux unpacks as its first root.
fn archive(files: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    let end: (&str, u32, &[u8]) = ("TRAILER!!!", 0, &[]);
    for (number, (name, mode, content)) in files.iter().chain([&end]).enumerate() {
        let fields = [
            number as u32 + 1,
            *mode,
            0,
            0,
            1,
            0,
            content.len() as u32,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        archive.extend(b"070701");
        for field in fields {
            archive.extend(format!("{field:08x}").bytes());
        }
        archive.extend(name.bytes().chain([0]));
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(*content);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    archive
}

fn kernel() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("WEIR_GUEST_KERNEL") {
        return Some(PathBuf::from(path));
    }
    let kernels = KERNELS.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    kernels.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("vmlinuz-"))
}

struct Vm {
    qemu: Child,
    memory: PathBuf,
    console: Arc<Mutex<String>>,
    folder: tempfile::TempDir,
}

impl Vm {
    fn boot() -> Result<Vm, String> {
        let kernel = kernel().ok_or("no kernel for guests: run scripts/guest-kernel")?;
        let busybox = std::fs::read("/bin/busybox").map_err(|error| format!("/bin/busybox: {error}"))?;
        if !Path::new("/dev/shm").is_dir() {
            return Err("there is no /dev/shm".into());
        }
        let folder = tempfile::tempdir_in("/dev/shm").map_err(|error| error.to_string())?;
        let memory = folder.path().join("memory");
        let root = folder.path().join("root");
        let files: [(&str, u32, &[u8]); 5] = [
            ("bin", 0o40755, &[]),
            ("dev", 0o40755, &[]),
            ("proc", 0o40755, &[]),
            ("bin/busybox", 0o100_755, &busybox),
            ("init", 0o100_755, INIT.as_bytes()),
        ];
        std::fs::write(&root, archive(&files)).map_err(|error| error.to_string())?;
        let backend =
            format!("memory-backend-file,id=ram,size={MEMORY},mem-path={},share=on", memory.display());
        let socket = |name: &str| format!("unix:{},server=on,wait=off", folder.path().join(name).display());
        let mut qemu = Command::new("qemu-system-x86_64")
            .args([
                "-accel",
                "tcg,tb-size=128",
                "-cpu",
                "max",
                "-M",
                "q35,usb=off,memory-backend=ram",
                "-m",
                MEMORY,
            ])
            .args(["-object", &backend, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args([
                "-append",
                "console=ttyS0 quiet panic=0 tsc=reliable no_timer_check mitigations=off rdinit=/init",
            ])
            .args(["-serial", "stdio", "-serial", &socket("console")])
            .args(["-qmp", &socket("qmp"), "-qmp", &socket("qmp-of-test"), "-kernel"])
            .arg(&kernel)
            .arg("-initrd")
            .arg(&root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("qemu-system-x86_64: {error}"))?;
        let console = Arc::new(Mutex::new(String::new()));
        let (mut output, shared) = (qemu.stdout.take().unwrap(), console.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                shared.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        let vm = Vm { qemu, memory, console, folder };
        let limit = Instant::now() + Duration::from_secs(180);
        while !vm.console.lock().unwrap().contains("READY") {
            if Instant::now() > limit {
                return Err(format!("the guest did not boot: {}", vm.console.lock().unwrap()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(vm)
    }

    fn type_line(&mut self) {
        self.say("");
    }

    fn say(&mut self, line: &str) {
        self.qemu.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// The processes as the guest itself sees them.
    fn processes(&mut self) -> BTreeSet<u32> {
        self.console.lock().unwrap().clear();
        self.type_line();
        let mut listed = None;
        until("the guest's own list", || {
            let console = self.console.lock().unwrap();
            let list = console.split("LIST ").nth(1).and_then(|rest| rest.split_once(" END"));
            listed = list.map(|(list, _)| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect());
            listed.is_some()
        });
        listed.unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.qemu), signal).unwrap();
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        drop(self.qemu.kill());
        drop(self.qemu.wait());
    }
}

fn tgids(guest: &Guest) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let whole = guest.tasks(|task| {
        found.insert(task.tgid);
    });
    assert!(whole, "the list has an end");
    found
}

#[test]
fn a_guest_is_read_from_outside_and_its_end_is_noticed() {
    let mut vm = match Vm::boot() {
        Ok(vm) => vm,
        Err(reason) => {
            return println!("NOT RUN a_guest_is_read_from_outside_and_its_end_is_noticed: {reason}");
        }
    };
    let guest = Guest::find(&vm.memory).unwrap();
    assert!(!guest.release.is_empty());

    // The guest's own list also has the programs that make it, which are gone afterwards; the idle task is 0.
    let own = vm.processes();
    let mut outside = BTreeSet::new();
    until("both lists to agree", || {
        outside = tgids(&guest);
        outside.remove(&0);
        outside.is_subset(&own)
    });
    assert!(own.len() - outside.len() <= 5, "{own:?} {outside:?}");
    let mut names = Vec::new();
    guest.tasks(|task| names.push((task.pid, task.parent, comm_text(&task.comm))));
    assert!(names[0].2.starts_with("swapper"), "{names:?}");
    assert!(
        names.iter().any(|(pid, _, name)| *pid == 1 && (name == "init" || name == "busybox")),
        "{names:?}"
    );
    let sleepers =
        names.iter().filter(|(_, parent, name)| *parent == 1 && (name == "sleep" || name == "busybox"));
    assert_eq!(sleepers.count(), 3, "{names:?}");

    // Idle: its ticks may stand still; whenever that looks like an end, a key is pressed, and it moves.
    let settings = Settings { period_ns: 50_000_000, periods: 3, watch_ns: 20_000_000_000 };
    let mut detector = Detector::new(settings);
    for _ in 0..60 {
        match detector.observe(now_ns(), guest.progress().unwrap()) {
            Decision::Stimulate => vm.type_line(),
            Decision::Failed => panic!("an idle guest was declared failed"),
            Decision::Nothing | Decision::Recovered => {}
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    until("the answer to the last stimulus", || {
        detector.observe(now_ns(), guest.progress().unwrap());
        detector.state() == State::Alive
    });

    // Stopped: no stimulus helps. Its memory can be read all the same.
    vm.signal(Signal::STOP);
    let settings = Settings { watch_ns: 150_000_000, ..settings };
    let mut detector = Detector::new(settings);
    until("the failure", || {
        let decision = detector.observe(now_ns(), guest.progress().unwrap());
        if decision == Decision::Stimulate {
            vm.type_line();
        }
        decision == Decision::Failed
    });
    assert!(tgids(&guest).contains(&1));
    vm.signal(Signal::CONT);
    until("the recovery", || {
        vm.type_line();
        detector.observe(now_ns(), guest.progress().unwrap()) == Decision::Recovered
    });
}

/// The alarms about guests, in order.
fn alarms(watched: &Watched) -> Vec<GuestAlarm> {
    let recent = watched.monitor.recent().into_iter();
    recent
        .filter_map(|entry| match entry.what {
            What::Guest(alarm) => Some(alarm),
            _ => None,
        })
        .collect()
}

#[test]
fn a_guest_under_a_policy_is_stimulated_fenced_and_failed_over() {
    const NAME: &str = "a_guest_under_a_policy_is_stimulated_fenced_and_failed_over";
    let mut vm = match Vm::boot() {
        Ok(vm) => vm,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let at = |name: &str| vm.folder.path().join(name).display().to_string();
    let fail_over = vm.folder.path().join("fail-over");
    std::fs::write(&fail_over, format!("#!/bin/sh\necho \"$1\" >> {}\n", at("failed-over"))).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&fail_over, executable).unwrap();
    // Generous times: other tests may have both processors.
    let text = format!(
        "kind: guest\nname: vm\nmemory-file: {}\nqmp: {}\nstimulus: console:{}\nperiod-ms: 50\nperiods: 3\n\
         watch-ms: 20000\naction: pause\ndry-run: false\nfail-over: {}\n---\n\
         kind: guest\nname: many\nmemory-file: {}\nstimulus: none\nperiod-ms: 50\nperiods: 100000\n\
         cooldown-ms: 3600000\nwhen: {{ tasks: 200 }}\n",
        vm.memory.display(),
        at("qmp"),
        at("console"),
        fail_over.display(),
        vm.memory.display(),
    );
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let row = || watched.monitor.status().guests[0].clone();
    until("its kernel", || !row().release.is_empty());
    // An idle guest lives: it is stimulated again and again, and each time it moves.
    until("some stimuli", || row().stimuli >= 5);
    assert_eq!(alarms(&watched), [], "an idle guest is no failure");

    // One that a person stops is no failure either, however long that takes.
    let mut qmp = Qmp::connect(&vm.folder.path().join("qmp-of-test")).unwrap();
    qmp.command("stop", serde_json::Value::Null).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let stimuli = row().stimuli;
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(row().stimuli, stimuli, "a stopped guest is not stimulated");
    qmp.command("cont", serde_json::Value::Null).unwrap();
    until("stimuli again", || row().stimuli > stimuli);
    assert_eq!(alarms(&watched), []);

    // Too many tasks are counted from outside.
    vm.say("multiply");
    until("the alarm about tasks", || alarms(&watched).len() == 1);
    let alarm = alarms(&watched).remove(0);
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str(), alarm.fenced), ("tasks", "reported", None));
    assert!(alarm.found >= 200 && (alarm.program == "busybox" || alarm.program == "sleep"), "{alarm:?}");

    // A panic: it is fenced, and only then failed over.
    vm.say("panic");
    until("the alarm about the panic", || alarms(&watched).len() == 2);
    let alarm = alarms(&watched).remove(1);
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("panic", "acted"), "{alarm:?}");
    assert_eq!((alarm.fenced, alarm.failed_over), (Some(true), Some(true)), "{alarm:?}");
    assert!(!qmp.running().unwrap(), "it is stopped");
    assert_eq!(std::fs::read_to_string(at("failed-over")).unwrap(), "vm\n");
    assert!(row().failed);
}

#[test]
fn a_guest_whose_emulator_hangs_is_fenced_by_its_process_and_ended() {
    const NAME: &str = "a_guest_whose_emulator_hangs_is_fenced_by_its_process_and_ended";
    let mut vm = match Vm::boot() {
        Ok(vm) => vm,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let at = |name: &str| vm.folder.path().join(name).display().to_string();
    let text = format!(
        "kind: guest\nname: vm\nmemory-file: {}\nqmp: {}\nstimulus: console:{}\nperiod-ms: 50\nwatch-ms: 2000\n\
         action: quit\ndry-run: false\n",
        vm.memory.display(),
        at("qmp"),
        at("console"),
    );
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let row = || watched.monitor.status().guests[0].clone();
    until("its kernel and a stimulus", || row().stimuli > 0);
    vm.signal(Signal::STOP);
    until("the alarm", || !alarms(&watched).is_empty());
    let alarm = alarms(&watched).remove(0);
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("silent-ns", "acted"), "{alarm:?}");
    assert_eq!((alarm.fenced, alarm.failed_over), (Some(true), None), "{alarm:?}");
    until("the end of its process", || vm.qemu.try_wait().unwrap().is_some());
}
