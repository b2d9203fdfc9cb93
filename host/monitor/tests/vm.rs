//! A guest under QEMU's emulator with a shell on its console, a second serial port that listens, a third behind which its hook is, and
//! two QMP sockets: one for a monitor, one for the test.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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
/bin/busybox sh /hook < /dev/ttyS2 > /dev/ttyS2 2> /dev/null &
# Keys may make the kernel kill, and an interrupt that nobody expects makes it crash, as for a dump.
echo 1 > /proc/sys/kernel/sysrq
echo 1 > /proc/sys/kernel/unknown_nmi_panic
echo \"TEXT $(/bin/busybox grep -w _text /proc/kallsyms)\"
echo READY
while read line; do
  case $line in
    panic) echo c > /proc/sysrq-trigger ;;
    busy) while true; do true; done & ;;
    multiply) (for n in $(/bin/busybox seq 150); do /bin/busybox sleep 100000 & done; wait) & ;;
    fat) /bin/busybox mkfifo /pipe; /bin/busybox sleep 100000 < /pipe & /bin/dd if=/dev/zero of=/pipe bs=64M count=1 & ;;
  esac
  echo LIST
  /bin/busybox cat /proc/[0-9]*/stat
  echo END
done
";
/// What the guest exports for repairs from outside: the example for people.
const HOOK: &str = include_str!("../../../docs/operate/monitor/guest-hook.sh");

/// A file of a guest's first root: path, mode, content.
pub type RootFile = (String, u32, Vec<u8>);

/// An archive in the format `newc`, which Linux unpacks as its first root.
fn archive(files: &[RootFile]) -> Vec<u8> {
    let mut archive = Vec::new();
    let end: RootFile = ("TRAILER!!!".into(), 0, Vec::new());
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
        archive.extend(content);
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

/// A guest that runs.
pub struct Vm {
    pub qemu: Child,
    /// The file of its memory.
    pub memory: PathBuf,
    pub console: Arc<Mutex<String>>,
    /// Its sockets: `qmp`, `qmp-of-test`, `console`, `hook`.
    pub folder: tempfile::TempDir,
}

impl Vm {
    /// Boots one, or says why that is not possible here.
    pub fn boot() -> Result<Vm, String> {
        let hook = ("hook".into(), 0o100_644, HOOK.into());
        Vm::boot_with(INIT, vec![hook], 1)
    }

    /// Boots one of another program, which says `READY`, with more files and processors.
    pub fn boot_with(init: &str, more: Vec<RootFile>, processors: u32) -> Result<Vm, String> {
        let kernel = kernel().ok_or("no kernel for guests: run scripts/guest-kernel")?;
        let busybox = std::fs::read("/bin/busybox").map_err(|error| format!("/bin/busybox: {error}"))?;
        if !Path::new("/dev/shm").is_dir() {
            return Err("there is no /dev/shm".into());
        }
        let folder = tempfile::tempdir_in("/dev/shm").map_err(|error| error.to_string())?;
        let memory = folder.path().join("memory");
        let root = folder.path().join("root");
        let file = |path: &str, mode: u32, content: &[u8]| (path.to_string(), mode, content.to_vec());
        let mut files = vec![
            file("bin", 0o40755, &[]),
            file("dev", 0o40755, &[]),
            file("proc", 0o40755, &[]),
            file("sys", 0o40755, &[]),
            file("tmp", 0o40755, &[]),
            file("bin/busybox", 0o100_755, &busybox),
            file("bin/dd", 0o120_777, b"busybox"),
            file("init", 0o100_755, init.as_bytes()),
        ];
        files.extend(more);
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
                "-smp",
                &processors.to_string(),
            ])
            .args(["-object", &backend, "-nodefaults", "-no-user-config", "-display", "none"])
            .args([
                "-append",
                "console=ttyS0 quiet panic=0 tsc=reliable no_timer_check mitigations=off rdinit=/init",
            ])
            .args(["-serial", "stdio", "-serial", &socket("console"), "-serial", &socket("hook")])
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
                let text = String::from_utf8_lossy(&buffer[..length]).replace('\r', "");
                shared.lock().unwrap().push_str(&text);
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

    /// A line on its console.
    pub fn say(&mut self, line: &str) {
        self.qemu.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// A signal to its QEMU.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.qemu), signal).unwrap();
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        drop(self.qemu.kill());
        drop(self.qemu.wait());
    }
}
