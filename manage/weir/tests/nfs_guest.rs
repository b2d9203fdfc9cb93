//! A guest under QEMU whose kernel mounts FileWall: Debian's kernel as `scripts/guest-kernel` fetches it, busybox, and a script.
//!
//! Its network is QEMU's own: what the guest connects to, QEMU connects to from the namespace that it runs in.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_lab::Netns;

const CACHE: &str = "/var/cache/weir/guest";
/// In the order in which they need each other.
const MODULES: [&str; 18] = [
    "failover",
    "net_failover",
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_net",
    "sunrpc",
    "grace",
    "lockd",
    "netfs",
    "fscache",
    "nfs_acl",
    "nfs",
    "nfsv3",
    "dns_resolver",
    "nfsv4",
];
/// An emulated processor on a loaded machine is slow.
pub const BOUND: Duration = Duration::from_secs(400);

const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in MODULES; do insmod /modules/$module.ko; done
ip link set lo up
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
as() { su -s /bin/sh \"$1\" -c \"$2\" 2>&1; }
check() { if [ \"$2\" = \"$3\" ]; then echo \"CHECK $1 ok\"; else echo \"CHECK $1 wrong: '$2' is not '$3'\"; fi; }
SCRIPT
echo THE-END
while true; do sleep 1000; done
";

/// What is missing here for a guest, if anything is.
pub fn missing() -> Option<String> {
    if !Path::new(CACHE).join("modules/nfsv4.ko").exists() || kernel().is_none() {
        return Some("no kernel with an NFS client for guests: run scripts/guest-kernel".into());
    }
    let programs = ["qemu-system-x86_64", "busybox"];
    weir_lab::system::require_installed(&programs).err().map(|error| error.to_string())
}

fn kernel() -> Option<std::path::PathBuf> {
    let entries = std::fs::read_dir(Path::new(CACHE).join("boot")).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("vmlinuz-"))
}

/// An archive in the format `newc`, which Linux unpacks as its first root.
fn archive(files: &[(String, u32, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    let end = ("TRAILER!!!".to_string(), 0, Vec::new());
    for (number, (name, mode, content)) in files.iter().chain([&end]).enumerate() {
        let (bytes, length) = (content.len() as u32, name.len() as u32 + 1);
        let fields = [number as u32 + 1, *mode, 0, 0, 1, 0, bytes, 0, 0, 0, 0, length, 0];
        archive.extend(b"070701");
        fields.iter().for_each(|field| archive.extend(format!("{field:08x}").bytes()));
        archive.extend(name.bytes().chain([0]));
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    archive
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Mounts FileWall at `/mnt`, over NFSv3 or a minor version of NFSv4.
pub fn mount(version: &str) -> String {
    let (kind, more) = match version {
        "3" => ("nfs", "nolock,mountproto=tcp,mountaddr=10.9.1.1,mountport=2049"),
        _ => ("nfs4", "clientaddr=10.0.2.15"),
    };
    format!(
        "mount -i -t {kind} -o vers={version},sync,proto=tcp,addr=10.9.1.1,port=2049,{more} 10.9.1.1:/vfs /mnt\n\
         check mount-{version} $? 0\n"
    )
}

/// A file of the guest: its path without the first slash, its kind and mode, its content.
pub type File = (String, u32, Vec<u8>);

/// A program of this machine for a guest, with the libraries that it is linked to, under the same paths; their folders first.
pub fn program(path: &str) -> Vec<File> {
    let output = Command::new("ldd").arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/'));
    let mut files: Vec<File> = Vec::new();
    for path in std::iter::once(path).chain(libraries) {
        let inner = Path::new(path.trim_start_matches('/'));
        for folder in inner.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            let name = folder.display().to_string();
            if !name.is_empty() && !files.iter().any(|(known, _, _)| *known == name) {
                files.push((name, 0o40755, Vec::new()));
            }
        }
        files.push((inner.display().to_string(), 0o100_755, std::fs::read(path).unwrap()));
    }
    files
}

/// Boots a guest in a namespace, and returns what its script says of each check; `script` mounts for itself ([`mount`]).
pub fn run(netns: &Netns, folder: &Path, script: &str) -> Vec<String> {
    run_with(netns, folder, script, Vec::new())
}

/// The same with more files.
pub fn run_with(netns: &Netns, folder: &Path, script: &str, more: Vec<File>) -> Vec<String> {
    let folders = ["bin", "dev", "proc", "sys", "mnt", "modules", "etc", "tmp"];
    let mut files: Vec<File> = folders.iter().map(|name| (name.to_string(), 0o40755, Vec::new())).collect();
    for file in more {
        // Programs share libraries.
        if !files.iter().any(|(name, ..)| *name == file.0) {
            files.push(file);
        }
    }
    files.push(("bin/busybox".into(), 0o100_755, std::fs::read("/bin/busybox").unwrap()));
    let passwd = "root:x:0:0::/:/bin/sh\nalice:x:1001:1001::/:/bin/sh\nbob:x:1002:1002::/:/bin/sh\n";
    files.push(("etc/passwd".into(), 0o100_644, passwd.into()));
    for module in MODULES {
        let path = Path::new(CACHE).join("modules").join(format!("{module}.ko"));
        files.push((format!("modules/{module}.ko"), 0o100_644, std::fs::read(path).unwrap()));
    }
    let init = INIT.replace("MODULES", &MODULES.join(" ")).replace("SCRIPT", script);
    files.push(("init".into(), 0o100_755, init.into_bytes()));
    let root = folder.join("guest-root");
    std::fs::write(&root, archive(&files)).unwrap();
    let mut command: Command = netns.command("qemu-system-x86_64");
    command
        .args(["-accel", "tcg,tb-size=128", "-cpu", "max", "-M", "q35,usb=off", "-m", "384M"])
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .args(["-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,romfile="])
        .args([
            "-append",
            "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check mitigations=off rdinit=/init",
        ])
        .args(["-serial", "stdio", "-kernel"])
        .arg(kernel().unwrap())
        .arg("-initrd")
        .arg(&root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut guest = Ended(command.spawn().unwrap());
    let console = Arc::new(Mutex::new(String::new()));
    let (mut output, shared) = (guest.0.stdout.take().unwrap(), console.clone());
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = output.read(&mut buffer) {
            shared.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    });
    let limit = Instant::now() + BOUND;
    while !console.lock().unwrap().contains("THE-END") {
        assert!(Instant::now() < limit, "the guest does not come to its end: {}", console.lock().unwrap());
        std::thread::sleep(Duration::from_millis(100));
    }
    let text = console.lock().unwrap().replace('\r', "");
    text.lines().filter_map(|line| line.split("CHECK ").nth(1)).map(str::to_string).collect()
}
