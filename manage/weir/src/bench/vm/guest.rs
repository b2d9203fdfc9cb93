//! A stock QEMU guest under emulation: Debian's kernel as `scripts/guest-kernel` fetches it, busybox, `iperf3`, and a script.

use crate::failure::Failure;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

const CACHE: &str = "/var/cache/weir/guest";
/// In the order in which they need each other.
const MODULES: [&str; 8] = [
    "failover",
    "net_failover",
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_net",
];
const MEMORY: &str = "256M";
const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /tmp
for module in MODULES; do insmod /modules/$module.ko; done
ip link set lo up
ip address add ADDRESS/24 dev eth0
ip link set eth0 up
SCRIPT
echo THE-END
while true; do sleep 1000; done
";

fn kernel() -> Option<PathBuf> {
    let entries = std::fs::read_dir(Path::new(CACHE).join("boot")).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("vmlinuz-"))
}

/// What is missing here for a guest, if anything is.
pub fn missing() -> Option<String> {
    if kernel().is_none() || !Path::new(CACHE).join("modules/virtio_net.ko").exists() {
        return Some("there is no kernel for guests: run scripts/guest-kernel".into());
    }
    let programs = ["qemu-system-x86_64", "busybox", "iperf3", "ldd"];
    weir_lab::system::require_installed(&programs).err().map(|error| error.to_string())
}

/// Path without the first slash, kind and mode, content.
type File = (String, u32, Vec<u8>);

/// An archive in the format `newc`, which Linux unpacks as its first root.
fn archive(files: &[File]) -> Vec<u8> {
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

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(Failure::io(path.display().to_string()))
}

/// A program of this machine with the libraries that it is linked to, under the same paths; their folders first.
fn program(path: &str, files: &mut Vec<File>) -> Result<(), Failure> {
    let output = Command::new("ldd").arg(path).output().map_err(Failure::io("ldd"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/'));
    for path in std::iter::once(path).chain(libraries) {
        let inner = Path::new(path.trim_start_matches('/'));
        for folder in inner.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            let name = folder.display().to_string();
            if !name.is_empty() && !files.iter().any(|(known, _, _)| *known == name) {
                files.push((name, 0o40755, Vec::new()));
            }
        }
        files.push((inner.display().to_string(), 0o100_755, read(Path::new(path))?));
    }
    Ok(())
}

/// Writes the guest's root.
///
/// # Errors
/// [`Failure`].
pub fn root(at: &Path, address: &str, script: &str) -> Result<(), Failure> {
    let folders = ["bin", "dev", "proc", "sys", "modules", "etc", "tmp"];
    let mut files: Vec<File> = folders.iter().map(|name| (name.to_string(), 0o40755, Vec::new())).collect();
    files.push(("bin/busybox".into(), 0o100_755, read(Path::new("/bin/busybox"))?));
    program("/usr/bin/iperf3", &mut files)?;
    for module in MODULES {
        let path = Path::new(CACHE).join("modules").join(format!("{module}.ko"));
        files.push((format!("modules/{module}.ko"), 0o100_644, read(&path)?));
    }
    let init = INIT.replace("MODULES", &MODULES.join(" ")).replace("ADDRESS", address);
    files.push(("init".into(), 0o100_755, init.replace("SCRIPT", script).into_bytes()));
    std::fs::write(at, archive(&files)).map_err(Failure::io(at.display().to_string()))
}

/// A guest that runs. It ends with this.
pub struct Guest {
    child: Child,
    console: Arc<Mutex<String>>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Either fails for one that has ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Guest {
    /// Boots one by a command that names QEMU, with a network device of these options.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn boot(mut qemu: Command, root: &Path, device: &[String], shared: bool) -> Result<Guest, Failure> {
        let kernel = kernel().ok_or_else(|| Failure::Input("no kernel for guests".into()))?;
        qemu.args(["-accel", "tcg,tb-size=128", "-cpu", "max", "-M", "q35,usb=off", "-m", MEMORY]);
        if shared {
            let memory = format!("memory-backend-memfd,id=mem,size={MEMORY},share=on");
            qemu.args(["-object", &memory, "-numa", "node,memdev=mem"]);
        }
        let line = "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check mitigations=off rdinit=/init";
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(device)
            .args(["-append", line, "-serial", "stdio", "-kernel"])
            .arg(kernel)
            .arg("-initrd")
            .arg(root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = qemu.spawn().map_err(Failure::io("qemu-system-x86_64"))?;
        let console: Arc<Mutex<String>> = Arc::default();
        let (output, shared) = (child.stdout.take(), Arc::clone(&console));
        std::thread::spawn(move || {
            let (mut output, mut buffer) = (output?, [0; 4096]);
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).replace('\r', "");
                shared.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
            Some(())
        });
        Ok(Guest { child, console })
    }

    /// What it has said so far.
    pub fn console(&self) -> String {
        self.console.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
