//! The ways by which programs reach files, mounted side by side until this is dropped.

use crate::{Failure, left};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weir_intercept::Injector;
use weir_userfs::accelerate;
use weir_userfs::backend::Backend;
use weir_userfs::dir::Directory;
use weir_userfs::mem::{Limits, Memory};
use weir_userfs::mount::{Mount, Options};

/// Debian's example of a file system that passes everything on to a folder, by the interface without paths.
const LIBFUSE_SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
/// What `scripts/fuse-peer` builds: libfuse's example that gives the kernel the files, and is asked over io_uring.
const RING_SERVER: &str = "/var/cache/weir/fuse-peer/passthrough_hp";
/// Whether the kernel offers FUSE over io_uring; not unless told.
const RING_OFFERED: &str = "/sys/module/fuse/parameters/enable_uring";
/// How long a file system of others may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);

/// One way.
pub struct Way {
    pub name: &'static str,
    /// Where the files are.
    pub root: PathBuf,
    injector: Option<String>,
    preload: Option<PathBuf>,
}

impl Way {
    /// Files at `root`, for programs that ask this injector when they begin.
    pub fn new(name: &'static str, root: &Path, injector: Option<String>) -> Way {
        Way { name, root: root.to_owned(), injector, preload: None }
    }

    /// `program`, so that it goes this way.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.stdin(Stdio::null());
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        if let Some(name) = self.injector.clone() {
            // SAFETY: a question by a socket between fork and exec of a process with idle threads only.
            unsafe {
                command.pre_exec(move || {
                    std::mem::forget(weir_intercept::announce(&name).map_err(std::io::Error::other)?);
                    Ok(())
                });
            }
        }
        command
    }
}

/// A file system of others, in the foreground.
struct Server {
    child: Child,
    point: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends when it is unmounted; where that fails it is ended.
        let unmounted = Command::new("umount").arg(&self.point).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// The kernel offers FUSE over io_uring while this lives.
struct Offered {
    before: String,
}

impl Offered {
    fn new(folder: &Path) -> Result<Offered, Failure> {
        let before = std::fs::read_to_string(RING_OFFERED)?;
        left::note(folder, RING_OFFERED, &before)?;
        std::fs::write(RING_OFFERED, "Y")?;
        Ok(Offered { before })
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(RING_OFFERED, self.before.trim()) {
            eprintln!("{RING_OFFERED} stays as it is: {error}");
        }
    }
}

/// All of them. Mounts go before the folders that they are in.
pub struct Ways {
    ways: Vec<Way>,
    _injectors: Vec<Injector>,
    _servers: Vec<Server>,
    _offered: Option<Offered>,
    _mounts: Vec<Mount>,
    folder: TempDir,
    _below: [TempDir; 2],
}

fn compiled(source: &Path, more: &[&str], to: &Path) -> Result<(), Failure> {
    let output = Command::new("gcc").args(["-O2", "-w", "-o"]).arg(to).arg(source).args(more).output()?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
}

/// A new folder with this name.
fn made(folder: &Path, name: &str) -> Result<PathBuf, Failure> {
    let made = folder.join(name);
    std::fs::create_dir(&made)?;
    Ok(made)
}

/// Runs a server of others until its mount is there.
fn serve(command: &mut Command, point: &Path) -> Result<Server, Failure> {
    // What it has to say is of no interest, and some say much.
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let server = Server { child, point: point.to_owned() };
    let (device, begun) = (|path: &Path| rustix::fs::stat(path).map(|found| found.st_dev), Instant::now());
    while device(point)? == device(point.parent().ok_or("a mount has a parent")?)? {
        if begun.elapsed() > PATIENCE {
            return Err(format!("{command:?} does not mount").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(server)
}

fn libfuse(program: &Path, below: &Path, point: &Path) -> Result<Server, Failure> {
    let source = format!("source={},cache=always", below.display());
    serve(Command::new(program).args(["-f", "-o", &source]).arg(point), point)
}

/// Data by the kernel itself, or (without `given`) asked for over the ring as well.
fn ring_server(given: bool, below: &Path, point: &Path) -> Result<Server, Failure> {
    let mut command = Command::new(RING_SERVER);
    command.args(["--foreground", "-o", "io_uring"]).args((!given).then_some("--nopassthrough"));
    let server = serve(command.arg(below).arg(point), point)?;
    let asked_by_ring = std::fs::read_dir(format!("/proc/{}/task", server.child.id()))?.any(|thread| {
        let name = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("comm")));
        name.is_ok_and(|name| name.starts_with("fuse-ring"))
    });
    if asked_by_ring { Ok(server) } else { Err(format!("{RING_SERVER} is not asked over io_uring").into()) }
}

impl Ways {
    /// Mounts all.
    pub fn new() -> Result<Ways, Failure> {
        // What is kept beside the programs is on the disk's file system.
        left::clean()?;
        let folder = left::folder("/var/tmp")?;
        let below = [left::folder("/dev/shm")?, left::folder("/var/tmp")?];
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let sources = own.join("examples/files_bench");
        compiled(&sources.join("work.c"), &["-lpthread"], &folder.path().join("work"))?;
        let preload = folder.path().join("preload.so");
        let segment = ["segment.c", "names.c"].map(|name| own.join("segment").join(name));
        let [data, names] = segment.each_ref().map(|path| path.to_str().unwrap_or_default());
        let library = ["-fPIC", "-shared", data, names, "-ldl"];
        compiled(&sources.join("preload.c"), &library, &preload)?;
        let mut ways = Ways {
            ways: Vec::new(),
            _injectors: Vec::new(),
            _servers: Vec::new(),
            _offered: None,
            _mounts: Vec::new(),
            folder,
            _below: below,
        };
        // As `weir fs mount` has it, so that its journal costs what it costs.
        let memory = Arc::new(Memory::kept(Limits::default(), 0, 0)?);
        let injector = Some(ways.mount("weir", memory)?);
        let root = ways.ways[0].root.clone();
        ways.ways[0].injector = injector.flatten();
        ways.ways.push(Way { name: "fuse", root: root.clone(), injector: None, preload: None });
        let (plain, point) = (Memory::plain(Limits::default(), 0, 0)?, made(ways.folder.path(), "plain")?);
        let options = Options { source: "bench".to_owned(), ..Options::default() };
        ways._mounts.push(Mount::new(Arc::new(plain), &point, &options)?);
        ways.ways.push(Way { name: "plain", root: point, injector: None, preload: None });
        let shared = made(ways._below[0].path(), "preload")?;
        ways.ways.push(Way { name: "preload", root: shared, injector: None, preload: Some(preload) });
        ways.on(0, ["direct", "passthrough", "libfuse"])?;
        ways.on(1, ["ext4_direct", "ext4_passthrough", "ext4_libfuse"])?;
        if !Path::new(RING_SERVER).exists() || !Path::new(RING_OFFERED).exists() {
            println!(
                "NOT RUN uring: {RING_SERVER} is not there (make fuse-peer), or the kernel has no FUSE over io_uring"
            );
            return Ok(ways);
        }
        ways._offered = Some(Offered::new(ways.folder.path())?);
        for (name, below, given) in
            [("uring", 0, false), ("uring_passthrough", 0, true), ("ext4_uring_passthrough", 1, true)]
        {
            let (under, point) = (made(ways._below[below].path(), name)?, made(ways.folder.path(), name)?);
            ways._servers.push(ring_server(given, &under, &point)?);
            ways.ways.push(Way { name, root: point, injector: None, preload: None });
        }
        Ok(ways)
    }

    /// Mounts `backend`; gives the name of its injector, if it has one.
    pub fn mount(
        &mut self,
        name: &'static str,
        backend: Arc<dyn Backend>,
    ) -> Result<Option<String>, Failure> {
        let point = made(self.folder.path(), name)?;
        let options = Options { source: "bench".to_owned(), ..Options::default() };
        let mount = Mount::new(backend, &point, &options)?;
        let injector = accelerate::start(&mount).ok();
        let asked = injector.as_ref().map(|injector| injector.name().to_owned());
        self._injectors.extend(injector);
        self._mounts.push(mount);
        self.ways.push(Way { name, root: point, injector: None, preload: None });
        Ok(asked)
    }

    /// The ways on a file system of the kernel's.
    fn on(&mut self, below: usize, [direct, passthrough, other]: [&'static str; 3]) -> Result<(), Failure> {
        let below = self._below[below].path().to_owned();
        let root = made(&below, "direct")?;
        self.ways.push(Way { name: direct, root, injector: None, preload: None });
        let under = made(&below, "passthrough")?;
        self.mount(passthrough, Arc::new(Directory::open(&under)?))?;
        if !Path::new(LIBFUSE_SOURCE).exists() {
            println!("NOT RUN {other}: {LIBFUSE_SOURCE} is not there; it comes with Debian's libfuse3-dev");
            return Ok(());
        }
        let program = self.folder.path().join("passthrough_ll");
        if !program.exists() {
            let flags = ["-I/usr/include/fuse3", "-D_FILE_OFFSET_BITS=64", "-lfuse3", "-lpthread"];
            compiled(Path::new(LIBFUSE_SOURCE), &flags, &program)?;
        }
        let (under, point) = (made(&below, "libfuse")?, made(self.folder.path(), other)?);
        self._servers.push(libfuse(&program, &under, &point)?);
        self.ways.push(Way { name: other, root: point, injector: None, preload: None });
        Ok(())
    }

    /// Only these are measured.
    pub fn keep(&mut self, names: &[&str]) {
        self.ways.retain(|way| names.contains(&way.name));
    }

    /// The way of this name, where it is possible.
    pub fn find(&self, name: &str) -> Option<&Way> {
        self.ways.iter().find(|way| way.name == name)
    }

    /// A program or file of the bench's own.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
