//! The oracles ([`crate::oracle`], [`crate::oracle4`]) before servers that we did not write, each in a network of its own: nfs-ganesha
//! (Debian's), over NFSv3 and NFSv4, and the one that `scripts/nfs-peer` builds, over NFSv3.

use crate::oracle::{NOTHING, RULES, attacked, export, tree};
use crate::oracle4::{Attack, KEY, MARK, rules};
use crate::played::{BOUND, until, wall_before};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use weir_filewall::proxy::Server;
use weir_filewall::wire::nfs3::Op;

const CALLS: usize = 1000;
const GANESHA: [&str; 3] = ["/usr/bin/ganesha.nfsd", "/usr/sbin/rpcbind", "/etc/mtab"];
/// What `scripts/nfs-peer` has built.
const PEER: &str = "/var/cache/weir/nfs-peer/osnfs";
/// How long the peer may be silent: what it has not answered by then it never does.
const SILENT: Duration = Duration::from_millis(500);

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
            let (done, unanswered) = attacked(&wall, &real.export, (1, CALLS), &NOTHING, BOUND);
            assert!(done > CALLS / 20, "{done} calls were carried out");
            // Of a COMMIT nothing was heard once in a minute in which others kept the disk busy.
            let silent = unanswered.iter().filter(|op| **op != Some(Op::Commit)).count();
            assert_eq!(silent, 0, "not answered: {unanswered:?}");
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
            let (done, unanswered) = attacked(&wall, &real.export, (1, CALLS), &NOTHING, SILENT);
            println!("{done} calls were carried out; not answered: {unanswered:?}");
            assert!(done > CALLS / 20, "{done} calls were carried out");
        });
    }
}
