//! The oracles ([`crate::oracle`], [`crate::oracle4`]) before servers that we did not write, each in a network of its own: nfs-ganesha
//! (Debian's), over NFSv3 and NFSv4, and the one that `scripts/nfs-peer` builds, over NFSv3.
//!
//! Both open what they are asked about without a look at what it is: a READ of a FIFO (the second server), or a COMMIT (nfs-ganesha), waits in
//! `open` until somebody has the other end, and with it every call behind it on that connection. FileWall has passed it on, and nothing came back
//! ([`a_server_that_waits_at_a_fifo_is_what_does_not_answer`]). So whoever makes FIFOs here has them held at both ends ([`Partner`]); then each
//! call must be answered.

use crate::oracle::{NOTHING, RULES, attacked, export, tree};
use crate::oracle4::{Attack, KEY, MARK, rules};
use crate::played::{BOUND, ask, client, until, wall_before};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_filewall::proxy::{FileWall, Server};
use weir_filewall::wire::build::{Caller, Record};
use weir_filewall::wire::nfs3::Op;
use weir_filewall::wire::rpc::program;
use weir_filewall::wire::xdr::{Reader, get_u32};

const CALLS: usize = 1000;
const GANESHA: [&str; 3] = ["/usr/bin/ganesha.nfsd", "/usr/sbin/rpcbind", "/etc/mtab"];
/// What `scripts/nfs-peer` has built.
const PEER: &str = "/var/cache/weir/nfs-peer/osnfs";
/// How long a server that waits at a FIFO is listened to.
const SILENT: Duration = Duration::from_millis(500);

/// Has both ends of every FIFO of an export open, as long as it lives.
struct Partner {
    stop: Option<Sender<()>>,
    holder: Option<JoinHandle<()>>,
}

impl Partner {
    fn of(export: &Path) -> Partner {
        let (stop, stopped) = channel();
        let export = export.to_path_buf();
        let holder = std::thread::spawn(move || {
            let mut held = BTreeMap::new();
            while stopped.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
                for fifo in fifos(&export) {
                    held.entry(fifo.1).or_insert_with(|| both_ends(&fifo.0));
                }
            }
        });
        Partner { stop: Some(stop), holder: Some(holder) }
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.stop = None;
        let _ = self.holder.take().map(JoinHandle::join);
    }
}

/// The FIFOs below a folder: path and number. What goes meanwhile is none.
fn fifos(folder: &Path) -> Vec<(PathBuf, u64)> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) if about.file_type().is_fifo() => found.push((entry.path(), about.ino())),
                _ => {}
            }
        }
    }
    found
}

fn both_ends(fifo: &Path) -> Option<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).write(true).custom_flags(nonblocking).open(fifo).ok()
}

/// A server with an export, and processes of its own that end with it.
struct Real {
    process: Child,
    folder: tempfile::TempDir,
    export: PathBuf,
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Real {
    fn start(script: impl Fn(&Path, &Path) -> String) -> Real {
        let folder = tempfile::tempdir().unwrap();
        let export = export(folder.path());
        let log = File::create(folder.path().join("log")).unwrap();
        let script = format!("ip link set lo up\n{}", script(folder.path(), &export));
        let mut unshare = Command::new("unshare");
        unshare.args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            &script,
        ]);
        unshare.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Real { process: unshare.spawn().unwrap(), folder, export }
    }

    fn ganesha() -> Real {
        Real::start(|folder, export| {
            let conf = format!(
                "NFS_CORE_PARAM {{ Protocols = 3, 4; Enable_NLM = false; Enable_RQUOTA = false; mount_path_pseudo = true; \
                 MNT_Port = 20048; }}\nNFSv4 {{ Graceless = true; Only_Numeric_Owners = true; Minor_Versions = 0, 1; }}\n\
                 EXPORT {{ Export_Id = 7; Path = {}; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash; \
                 SecType = sys; Protocols = 3, 4; FSAL {{ Name = VFS; }} }}\n",
                export.display()
            );
            fs::write(folder.join("conf"), conf).unwrap();
            format!(
                "mount -t tmpfs none /run && mkdir -p /run/ganesha /run/rpcbind /var/lib/nfs/ganesha && \
                 mount -t tmpfs none /var/lib/nfs/ganesha || exit 1\n\
                 rpcbind -f & until [ -S /run/rpcbind.sock ]; do sleep 0.05; done\n\
                 exec ganesha.nfsd -F -f {0}/conf -L STDOUT -p /run/ganesha.pid",
                folder.display()
            )
        })
    }

    /// It gives the root of its folder whatever is mounted.
    fn peer() -> Real {
        Real::start(|_, export| format!("exec {PEER} {} 12049", export.display()))
    }

    /// Does something in its network, once it answers at a port.
    fn inside(&self, port: u16, work: impl FnOnce() + Send) {
        let own = fs::metadata("/proc/self/ns/net").unwrap().ino();
        let name = format!("/proc/{}/ns/net", self.process.id());
        until("its network", || fs::metadata(&name).is_ok_and(|found| found.ino() != own));
        let network = File::open(&name).unwrap();
        let log = self.folder.path().join("log");
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let kind = rustix::thread::LinkNameSpaceType::Network;
                rustix::thread::move_into_link_name_space(network.as_fd(), Some(kind)).unwrap();
                until("the server", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
                work();
            });
            if let Err(panic) = inside.join() {
                println!("the server: {}", fs::read_to_string(&log).unwrap_or_default());
                std::panic::resume_unwind(panic);
            }
        });
    }
}

fn server(nfs_port: u16, mount_port: u16) -> Server {
    Server { address: [127, 0, 0, 1].into(), nfs_port, mount_port: Some(mount_port), path: "/export".into() }
}

/// Why a test is not run.
fn lacking(name: &str, needed: &[&str]) -> bool {
    let missing = needed.iter().find(|path| !Path::new(path).exists());
    if let Some(path) = missing {
        println!("NOT RUN {name}: there is no {path}");
    } else if !rustix::process::geteuid().is_root() {
        println!("NOT RUN {name}: namespaces and NFS servers need root");
    }
    missing.is_some() || !rustix::process::geteuid().is_root()
}

/// What is denied stays as it is, whatever `work` does.
fn held(real: &Real, port: u16, work: impl FnOnce() + Send) {
    let denied = [real.export.join("secret"), real.folder.path().join("beside")];
    let before = denied.each_ref().map(|path| tree(path));
    real.inside(port, work);
    assert_eq!(denied.each_ref().map(|path| tree(path)), before, "what is denied was changed");
}

fn keyed(key: bool, rules: &str) -> String {
    format!("{}{rules}", if key { KEY } else { "" })
}

#[test]
fn nothing_that_is_denied_is_seen_or_changed_before_nfs_ganesha() {
    if lacking("nothing_that_is_denied_is_seen_or_changed_before_nfs_ganesha", &GANESHA) {
        return;
    }
    for key in [false, true] {
        let real = Real::ganesha();
        held(&real, 20048, || {
            let (wall, _policies) = wall_before(server(2049, 20048), &keyed(key, RULES));
            let _partner = Partner::of(&real.export);
            let (done, unanswered) = attacked(&wall, &real.export, (1, CALLS), &NOTHING, BOUND);
            assert!(done > CALLS / 20, "{done} calls were carried out");
            assert_eq!(unanswered, [], "not answered");
        });
    }
}

#[test]
fn nothing_that_is_denied_is_seen_or_changed_by_compounds_before_nfs_ganesha() {
    if lacking("nothing_that_is_denied_is_seen_or_changed_by_compounds_before_nfs_ganesha", &GANESHA) {
        return;
    }
    for key in [false, true] {
        let real = Real::ganesha();
        held(&real, 20048, || {
            let (wall, _policies) = wall_before(server(2049, 20048), &keyed(key, &rules("all")));
            let done = Attack::known(&wall, 1).attacks((1, CALLS), &[MARK]);
            assert!(done > CALLS / 4, "{done} operations were carried out");
        });
    }
}

#[test]
fn nothing_that_is_denied_is_seen_or_changed_before_another_server() {
    if lacking("nothing_that_is_denied_is_seen_or_changed_before_another_server", &[PEER]) {
        return;
    }
    for key in [false, true] {
        let real = Real::peer();
        held(&real, 12049, || {
            let (wall, _policies) = wall_before(server(12049, 12049), &keyed(key, RULES));
            let _partner = Partner::of(&real.export);
            let (done, unanswered) = attacked(&wall, &real.export, (1, CALLS), &NOTHING, BOUND);
            assert!(done > CALLS / 20, "{done} calls were carried out");
            assert_eq!(unanswered, [], "not answered");
        });
    }
}

/// FileWall passes the call on, the server has it and says nothing, until somebody opens the other end: then the answer comes, and FileWall
/// brings it to the client.
fn waits_at_a_fifo(real: &Real, port: u16, wall: &FileWall, call: impl Fn(u32, &[u8]) -> Vec<u8>) {
    let mut stream = client(wall);
    let fifo = real.export.join("pub/fifo");
    let nobody = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, nobody, 0).unwrap();
    let caller = Caller { uid: 0, gid: 0, groups: &[] };
    let mount = Record::call(1, program::MOUNT, 3, 1, &caller).opaque(b"/export").finish();
    let reply = ask(&mut stream, &mount);
    let mut reader = Reader::whole(&reply);
    reader.take(28).unwrap();
    let mut handle = reader.opaque(64).unwrap().of(&reply).to_vec();
    for (xid, name) in [(2, &b"pub"[..]), (3, b"fifo")] {
        let reply =
            ask(&mut stream, &Record::nfs3(xid, Op::Lookup, &caller).opaque(&handle).opaque(name).finish());
        let mut reader = Reader::whole(&reply);
        reader.take(24).unwrap();
        assert_eq!(reader.u32(), Ok(0), "{}", String::from_utf8_lossy(name));
        handle = reader.opaque(64).unwrap().of(&reply).to_vec();
    }
    stream.set_read_timeout(Some(SILENT)).unwrap();
    stream.write_all(&call(4, &handle)).unwrap();
    let mut mark = [0; 4];
    let answered_at_once = stream.read_exact(&mut mark).is_ok();
    println!(
        "port {port}: {}",
        if answered_at_once { "it does not wait at a FIFO" } else { "it waits at a FIFO" }
    );
    if answered_at_once {
        return;
    }
    // The call is at the server: FileWall waits for one reply.
    assert_eq!(wall.status().totals.counters["pending"], 1);
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let _ends = both_ends(&fifo).unwrap();
    stream.read_exact(&mut mark).unwrap();
    let mut rest = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    stream.read_exact(&mut rest).unwrap();
    assert_eq!(get_u32(&rest, 0), 4, "the answer is that of the call");
    assert_eq!(wall.status().totals.counters["pending"], 0);
}

#[test]
fn a_server_that_waits_at_a_fifo_is_what_does_not_answer() {
    const NAME: &str = "a_server_that_waits_at_a_fifo_is_what_does_not_answer";
    let caller = Caller { uid: 0, gid: 0, groups: &[] };
    if !lacking(NAME, &GANESHA) {
        let real = Real::ganesha();
        real.inside(20048, || {
            let (wall, _policies) = wall_before(server(2049, 20048), "kind: none\n");
            let commit = |xid, handle: &[u8]| {
                Record::nfs3(xid, Op::Commit, &caller).opaque(handle).u64(0).u32(0).finish()
            };
            waits_at_a_fifo(&real, 2049, &wall, commit);
        });
    }
    if !lacking(NAME, &[PEER]) {
        let real = Real::peer();
        real.inside(12049, || {
            let (wall, _policies) = wall_before(server(12049, 12049), "kind: none\n");
            let read = |xid, handle: &[u8]| {
                Record::nfs3(xid, Op::Read, &caller).opaque(handle).u64(0).u32(4096).finish()
            };
            waits_at_a_fifo(&real, 12049, &wall, read);
        });
    }
}
