//! A stock QEMU guest under emulation: Debian's kernel as `scripts/guest-kernel` fetches it, busybox, `iperf3`, and a script.

use crate::failure::Failure;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use weir_lab::guest::{self, File};

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

/// What is missing here for a guest, if anything is.
pub fn missing() -> Option<String> {
    if guest::kernel().is_none() || !guest::has_module("virtio_net") {
        return Some("there is no kernel for guests: run scripts/guest-kernel".into());
    }
    let programs = ["qemu-system-x86_64", "busybox", "iperf3", "ldd"];
    weir_lab::system::require_installed(&programs).err().map(|error| error.to_string())
}

/// Writes the guest's root.
///
/// # Errors
/// [`Failure`].
pub fn root(at: &Path, address: &str, script: &str) -> Result<(), Failure> {
    let folders = ["bin", "dev", "proc", "sys", "modules", "etc", "tmp"];
    let mut files: Vec<File> = folders.into_iter().map(File::folder).collect();
    files.push(guest::program_at("/bin/busybox", "bin/busybox")?);
    guest::program("/usr/bin/iperf3")?.into_iter().for_each(|file| guest::add(&mut files, file));
    for module in MODULES {
        files.push(guest::module(module)?);
    }
    let init = INIT.replace("MODULES", &MODULES.join(" ")).replace("ADDRESS", address);
    files.push(File::program("init", init.replace("SCRIPT", script)));
    std::fs::write(at, guest::archive(&files)).map_err(Failure::io(at.display().to_string()))
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
        let kernel = guest::kernel().ok_or_else(|| Failure::Input("no kernel for guests".into()))?;
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
