//! A folder that another user-space file system serves, mounted as `dir:`: that one needs to know nothing of us.
#![allow(unsafe_code)]

use super::{Mounted, cannot_mount};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_userfs::dir::Directory;
use weir_userfs::mem::Limits;

/// Debian's example of a server that passes all on to a folder.
const SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
const PATIENCE: Duration = Duration::from_secs(20);

/// A server of others, as it is.
struct Server {
    child: Child,
    point: PathBuf,
}

impl Server {
    fn new(folder: &Path) -> Result<Server, String> {
        if !Path::new(SOURCE).exists() {
            return Err(format!("{SOURCE} is not there; it comes with libfuse3-dev"));
        }
        let (program, under, point) = (folder.join("server"), folder.join("served"), folder.join("point"));
        for made in [&under, &point] {
            fs::create_dir(made).unwrap();
        }
        let flags = ["-I/usr/include/fuse3", "-D_FILE_OFFSET_BITS=64", "-lfuse3", "-lpthread"];
        let built =
            Command::new("gcc").args(["-O1", "-w", "-o"]).arg(&program).arg(SOURCE).args(flags).output();
        if !built.as_ref().is_ok_and(|output| output.status.success()) {
            return Err(format!("gcc cannot build {SOURCE}: {built:?}"));
        }
        let source = format!("source={}", under.display());
        let mut command = Command::new(program);
        command.args(["-f", "-o", &source]).arg(&point).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Server { child: command.spawn().unwrap(), point };
        let begun = Instant::now();
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        while device(&server.point) == device(folder) {
            assert!(begun.elapsed() < PATIENCE, "it does not mount");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH).ok();
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What programs do with files, and that the one below has it too.
fn works(on: &Mounted, below: &Path) {
    let root = on.root();
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/f"), vec![7; 300_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(root.join("d/f")).unwrap();
    file.write_all_at(b"changed", 100_000).unwrap();
    file.sync_all().unwrap();
    // SAFETY: a map of our own file, which nobody makes shorter meanwhile.
    let mapped = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            300_000,
            rustix::mm::ProtFlags::READ,
            rustix::mm::MapFlags::SHARED,
            &file,
            0,
        )
        .unwrap()
    };
    // SAFETY: inside the map.
    assert_eq!(unsafe { std::slice::from_raw_parts(mapped.cast::<u8>().add(100_000), 7) }, b"changed");
    // SAFETY: mapped above, and used by nobody any more.
    unsafe { rustix::mm::munmap(mapped, 300_000).unwrap() };
    let mut seen = [0; 7];
    File::open(below.join("d/f")).unwrap().read_exact_at(&mut seen, 100_000).unwrap();
    assert_eq!(&seen, b"changed");
    fs::rename(root.join("d/f"), root.join("g")).unwrap();
    fs::hard_link(root.join("g"), root.join("h")).unwrap();
    symlink("g", root.join("s")).unwrap();
    assert_eq!(fs::metadata(root.join("s")).unwrap().nlink(), 2);
    fs::remove_file(root.join("g")).unwrap();
    // It is open, and has another name.
    file.read_exact_at(&mut seen, 100_000).unwrap();
    assert_eq!(&seen, b"changed");
    fs::remove_dir(root.join("d")).unwrap();
    let mut names: Vec<_> = fs::read_dir(below).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["h", "s"]);
}

fn over(below: &Path) -> Mounted {
    Mounted::shared("dir", Arc::new(Directory::open(below).expect("a folder")))
}

#[test]
fn a_server_of_others_is_mounted_as_it_is() {
    if let Some(reason) = cannot_mount() {
        return println!("NOT RUN a_server_of_others: {reason}");
    }
    let folder = tempfile::tempdir().unwrap();
    let server = match Server::new(folder.path()) {
        Ok(server) => server,
        Err(reason) => return println!("NOT RUN a_server_of_others: {reason}"),
    };
    let mut on = over(&server.point);
    works(&on, &folder.path().join("served"));
    // Data go from the kernel to that server: ours is not asked.
    if let Some((opens, refused)) = on.mount().by_kernel() {
        assert!(opens > 0 && refused == 0, "{opens} opens, {refused} refused");
    }
}

#[test]
fn our_own_mounts_are_mounted_once_more() {
    if let Some(reason) = cannot_mount() {
        return println!("NOT RUN our_own_mounts: {reason}");
    }
    let memory = Mounted::memory(Limits::default());
    works(&over(&memory.root()), &memory.root());
    // Whose files the kernel has already: it takes them once, and these are read and written by the daemon above.
    let directory = Mounted::directory();
    let mut on = over(&directory.root());
    works(&on, &directory.under());
    if let Some((opens, refused)) = on.mount().by_kernel() {
        assert!(opens == 0 && refused > 0, "{opens} opens, {refused} refused");
    }
}
