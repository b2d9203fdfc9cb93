//! A guest under QEMU whose kernel mounts FileWall: Debian's kernel as `scripts/guest-kernel` fetches it, busybox, and a script.
//!
//! Its network is QEMU's own: what the guest connects to, QEMU connects to from the namespace that it runs in.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_lab::Netns;
use weir_lab::guest::{self, File};

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
    if !guest::has_module("nfsv4") || guest::kernel().is_none() {
        return Some("no kernel with an NFS client for guests: run scripts/guest-kernel".into());
    }
    let programs = ["qemu-system-x86_64", "busybox"];
    weir_lab::system::require_installed(&programs).err().map(|error| error.to_string())
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

/// A program of this machine for a guest, with what it needs.
pub fn program(path: &str) -> Vec<File> {
    guest::program(path).unwrap()
}

/// Boots a guest in a namespace, and returns what its script says of each check; `script` mounts for itself ([`mount`]).
pub fn run(netns: &Netns, folder: &Path, script: &str) -> Vec<String> {
    run_with(netns, folder, script, Vec::new())
}

/// The same with more files.
pub fn run_with(netns: &Netns, folder: &Path, script: &str, more: Vec<File>) -> Vec<String> {
    let folders = ["bin", "dev", "proc", "sys", "mnt", "modules", "etc", "tmp"];
    let mut files: Vec<File> = folders.into_iter().map(File::folder).collect();
    more.into_iter().for_each(|file| guest::add(&mut files, file));
    files.push(guest::program_at("/bin/busybox", "bin/busybox").unwrap());
    let passwd = "root:x:0:0::/:/bin/sh\nalice:x:1001:1001::/:/bin/sh\nbob:x:1002:1002::/:/bin/sh\n";
    files.push(File::data("etc/passwd", passwd));
    for module in MODULES {
        files.push(guest::module(module).unwrap());
    }
    let init = INIT.replace("MODULES", &MODULES.join(" ")).replace("SCRIPT", script);
    files.push(File::program("init", init));
    let root = folder.join("guest-root");
    std::fs::write(&root, guest::archive(&files)).unwrap();
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
        .arg(guest::kernel().unwrap())
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
