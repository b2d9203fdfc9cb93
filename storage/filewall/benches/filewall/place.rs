//! Where the bench runs: a network, mount and process namespace without a name, in it nfs-ganesha on a tmpfs, and the
//! processes in front of it. Everything ends with the process namespace.

use super::{Failure, failed};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use weir_filewall::proxy::Server;
use weir_filewall::wire::build::Caller;

/// Where ganesha serves NFS and MOUNT.
const NFS_PORT: u16 = 2049;
const MOUNT_PORT: u16 = 20048;
/// Bound on every wait.
const BOUND: Duration = Duration::from_secs(60);
/// Who calls: a user to whom the policies give a role.
pub const CALLER: Caller<'static> = Caller { uid: 1001, gid: 100, groups: &[] };

/// Runs this program again inside namespaces of its own.
pub fn enter() -> Result<ExitCode, Failure> {
    let own = std::env::current_exe().map_err(failed("own program"))?;
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(own)
        .arg("inside")
        .args(std::env::args().skip(1).filter(|word| word != "--bench"))
        .status()
        .map_err(failed("run unshare (it needs root)"))?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// The folder that everything is in, and what runs.
pub struct Place {
    folder: tempfile::TempDir,
    children: Vec<Child>,
}

impl Place {
    /// Brings the namespace up and starts the server.
    pub fn new() -> Result<Place, Failure> {
        let folder = tempfile::tempdir().map_err(failed("make a folder"))?;
        let mut place = Place { folder, children: Vec::new() };
        std::fs::create_dir(place.export()).map_err(failed("make a folder"))?;
        let export = place.export().display().to_string();
        let script = format!(
            "ip link set lo up && mount -t tmpfs none /run && mkdir /run/ganesha /run/rpcbind && \
             mount -t tmpfs -o mode=777 none {export}"
        );
        let status = Command::new("sh").args(["-c", &script]).status().map_err(failed("run sh"))?;
        if !status.success() {
            return Err(Failure(format!("'{script}' failed: {status}")));
        }
        let conf = place.path("ganesha.conf");
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; mount_path_pseudo = true; \
             NFS_Port = {NFS_PORT}; MNT_Port = {MOUNT_PORT}; }}\nEXPORT {{ Export_Id = 7; Path = {export}; \
             Pseudo = /vfs; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 3; \
             Filesystem_Id = 7.7; FSAL {{ Name = VFS; }} }}\nLOG {{ Default_Log_Level = WARN; }}\n"
        );
        std::fs::write(&conf, text).map_err(failed("write a file"))?;
        place.start("rpcbind", &["-f"])?;
        let limit = Instant::now() + BOUND;
        while !Path::new("/run/rpcbind.sock").exists() {
            if Instant::now() > limit {
                return Err(Failure("rpcbind does not start".to_string()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let log = place.path("ganesha.log").display().to_string();
        let conf = conf.display().to_string();
        place.start("ganesha.nfsd", &["-F", "-f", &conf, "-L", &log, "-p", "/run/ganesha.pid"])?;
        Ok(place)
    }

    /// The folder that is exported.
    pub fn export(&self) -> PathBuf {
        self.path("export")
    }

    /// A file in the folder of the bench.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&mut self, program: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> Result<u32, Failure> {
        let program = program.as_ref();
        let child = Command::new(program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed(format!("start {}", Path::new(program).display())))?;
        let id = child.id();
        self.children.push(child);
        Ok(id)
    }

    /// Starts this program in another role; its process.
    pub fn role(&mut self, words: &[&str]) -> Result<u32, Failure> {
        let own = std::env::current_exe().map_err(failed("own program"))?;
        self.start(own, words)
    }

    /// Writes policies, and starts a FileWall under them at `port`.
    pub fn wall(&mut self, name: &str, port: u16, policy: &str) -> Result<u32, Failure> {
        let folder = self.policies(name, policy)?;
        self.role(&["wall", &port.to_string(), &folder])
    }

    /// Writes policies; their folder.
    pub fn policies(&self, name: &str, policy: &str) -> Result<String, Failure> {
        let folder = self.path(name);
        std::fs::create_dir(&folder).map_err(failed("make a folder"))?;
        std::fs::write(folder.join("policy.yaml"), policy).map_err(failed("write a file"))?;
        Ok(folder.display().to_string())
    }

    /// Ends a process at once.
    pub fn kill(&mut self, process: u32) -> Result<(), Failure> {
        let Some(at) = self.children.iter().position(|child| child.id() == process) else {
            return Err(Failure(format!("process {process} is none of the bench's")));
        };
        let mut child = self.children.swap_remove(at);
        child.kill().and_then(|()| child.wait()).map(drop).map_err(failed("end a process"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The server as its clients, and as those of a tunnel on `port`, name it.
pub fn server(port: Option<u16>) -> Server {
    Server {
        address: [127, 0, 0, 1].into(),
        nfs_port: port.unwrap_or(NFS_PORT),
        mount_port: Some(MOUNT_PORT),
        path: "/vfs".to_string(),
    }
}

/// The server as the clients of a FileWall on `port` name it.
pub fn behind_wall(port: u16) -> Server {
    Server { nfs_port: port, mount_port: Some(port), ..server(None) }
}

/// Address of the server's NFS.
pub fn nfs() -> SocketAddr {
    server(None).nfs()
}

/// Waits until the export of a server can be mounted; its handle.
pub fn mount(server: &Server) -> Result<weir_filewall::wire::nfs3::Handle, Failure> {
    let since = Instant::now();
    loop {
        let reason = match server.mount(server.path.as_bytes(), &CALLER) {
            Ok(Ok(handle)) => return Ok(handle),
            Ok(Err(status)) => format!("MOUNT was answered with {status}"),
            Err(error) => error.to_string(),
        };
        if since.elapsed() > BOUND {
            return Err(Failure(format!(
                "the server on port {} cannot be mounted: {reason}",
                server.nfs_port
            )));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Processor time of all threads of a process, µs.
pub fn cpu_us(process: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return 0.0 };
    let one = |task: std::fs::DirEntry| -> Option<f64> {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    tasks.flatten().filter_map(one).sum::<f64>() / 1000.0
}
