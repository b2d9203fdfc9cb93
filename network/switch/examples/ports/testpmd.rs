//! testpmd of DPDK, as a generator (two virtio-user ports, between which it forwards) and as a switch between two
//! vhost ports.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long anything may take before the bench gives up.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A running testpmd.
pub struct Testpmd {
    child: Child,
    input: ChildStdin,
    output: Arc<Mutex<String>>,
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a program is there.
pub fn is_there(program: &str) -> bool {
    Command::new("which").arg(program).output().is_ok_and(|output| output.status.success())
}

/// Has a program end when this thread does, whatever ends it.
pub fn ends_with_us(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: one system call between fork and exec, which touches no memory.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

impl Testpmd {
    /// Starts one whose polling thread is bound to processor `cpu` and works on two devices.
    pub fn start(name: &str, cpu: usize, huge_dir: &Path, devices: [String; 2], more: &[&str]) -> Testpmd {
        // The first processor of the list is that of the prompt, which sleeps.
        let cores = format!("{}@0,{}@{cpu}", cpu + 1, cpu + 2);
        let mut command = Command::new("stdbuf");
        ends_with_us(&mut command);
        command
            .args([
                "-oL",
                "dpdk-testpmd",
                "--lcores",
                &cores,
                "--no-pci",
                "-m",
                "192",
                "--single-file-segments",
            ])
            .args(["--file-prefix", &format!("weir-ports-{}-{name}", std::process::id())])
            .args(["--huge-dir", &huge_dir.display().to_string()]);
        for device in devices {
            command.args(["--vdev", &device]);
        }
        command
            .args(["--", "-i", "--total-num-mbufs=16384", "--no-mlockall", "--burst=32"])
            .args(["--rxd=1024", "--txd=1024", "--record-core-cycles", "--no-lsc-interrupt"])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("testpmd starts");
        let output = Arc::new(Mutex::new(String::new()));
        let (seen, stdout) = (Arc::clone(&output), child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let mut seen = seen.lock().expect("not poisoned");
                seen.push_str(&line);
                seen.push('\n');
            }
        });
        let input = child.stdin.take().expect("piped");
        let mut testpmd = Testpmd { child, input, output };
        testpmd.until("Done", 0);
        testpmd
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types a command.
    pub fn say(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("testpmd lives");
        self.input.flush().expect("testpmd lives");
    }

    /// Types a command and waits for words of its answer; returns all that it printed since, and soon after.
    pub fn ask(&mut self, command: &str, words: &str) -> String {
        let before = self.output.lock().expect("not poisoned").len();
        self.say(command);
        self.until(words, before);
        std::thread::sleep(Duration::from_millis(30));
        self.output.lock().expect("not poisoned")[before..].to_string()
    }

    /// Waits until words were seen behind the first `from` bytes of what it printed.
    pub fn until(&mut self, words: &str, from: usize) {
        let start = Instant::now();
        loop {
            let output = self.output.lock().expect("not poisoned").clone();
            if output[from..].contains(words) {
                return;
            }
            let ended = self.child.try_wait().expect("asked");
            assert!(ended.is_none() && start.elapsed() < PATIENCE, "no '{words}' ({ended:?}): {output}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
