//! Servers that we did not write, for remote backends: each is a real process that nobody else can reach.

use super::{Mounted, cannot_mount};
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weir_userfs::locate::{Life, Surroundings, open_in};
use weir_userfs::remote::s3::Settings;

/// What a protocol can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offers {
    /// Symbolic links.
    pub links: bool,
    /// More names of a file.
    pub hard_links: bool,
    /// Permissions.
    pub modes: bool,
}

/// A server with an empty folder.
pub struct Peer {
    /// Of the protocol.
    pub name: &'static str,
    /// What can be asked of it.
    pub offers: Offers,
    /// The server's folder as it is on its machine, where it has one.
    pub under: Option<PathBuf>,
    text: String,
    surroundings: Surroundings,
    server: Option<Server>,
    folder: tempfile::TempDir,
}

/// A new namespace has copies of the mounts of other tests, which would not end as long as it is there.
const WITHOUT_COPIES: &str =
    r#"awk '$3 ~ /^fuse/ { print $2 }' /proc/self/mounts | while read -r point; do umount -l "$point"; done"#;

/// A process in namespaces of its own, with all its children.
struct Server {
    process: Child,
}

impl Server {
    /// Runs `script` with a network in which there is only itself.
    fn start(script: &str, log: &Path) -> Server {
        let log = fs::File::create(log).expect("a log");
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
            &format!("{WITHOUT_COPIES}\n{script}"),
        ]);
        unshare.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        Server { process: unshare.spawn().expect("unshare") }
    }

    /// The network, once the server is in it.
    fn network(&self) -> fs::File {
        let own = fs::metadata("/proc/self/ns/net").expect("namespaces");
        let begun = Instant::now();
        loop {
            let name = format!("/proc/{}/ns/net", self.process.id());
            let other = fs::File::open(name).ok();
            let is_own = |file: &fs::File| {
                use std::os::unix::fs::MetadataExt;
                file.metadata().is_ok_and(|found| found.ino() == own.ino())
            };
            if let Some(file) = other.filter(|file| !is_own(file)) {
                return file;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "unshare has made no network");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its children end with it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ran(command: &mut Command) {
    let output = command.output().expect("a program that is installed");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Peer {
    /// A client of it, mounted.
    pub fn mount(&self) -> Mounted {
        self.try_mount().unwrap_or_else(|error| panic!("{error}"))
    }

    /// The text, and the command in place of `ssh`.
    pub fn way(&self) -> (String, String) {
        (self.text.clone(), self.surroundings.ssh.clone())
    }

    fn try_mount(&self) -> Result<Mounted, String> {
        self.in_its_network(|| {
            let backend =
                open_in(&self.text, &self.surroundings, Life::Alone).map_err(|error| error.to_string())?;
            Ok(Mounted::shared(self.name, backend))
        })
    }

    /// Does something in the network of the server, where it has one: threads are in the network of who started them.
    fn in_its_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let Some(server) = &self.server else { return work() };
        let network = server.network();
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let kind = rustix::thread::LinkNameSpaceType::Network;
                rustix::thread::move_into_link_name_space(network.as_fd(), Some(kind)).expect("setns");
                work()
            });
            inside.join().expect("no panic")
        })
    }

    /// Another text for the same surroundings.
    pub fn refused(&self, text: &str) -> String {
        self.in_its_network(|| {
            open_in(text, &self.surroundings, Life::Alone)
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default()
        })
    }

    /// OpenSSH's server, started for each connection by the client as the way to it: no port is listened at.
    pub fn sftp() -> Result<Peer, String> {
        for program in ["/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"] {
            if !Path::new(program).exists() {
                return Err(format!("{program} is not installed"));
            }
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        for key in ["host", "user"] {
            let mut keygen = Command::new("ssh-keygen");
            ran(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at(key)));
        }
        // Where sshd puts unprivileged processes.
        fs::create_dir_all("/run/sshd").expect("a folder for sshd");
        fs::create_dir(at("data")).expect("a folder");
        let server = format!(
            "HostKey {0}/host\nAuthorizedKeysFile {0}/user.pub\nStrictModes no\nPidFile none\nUsePAM no\n\
             PermitRootLogin yes\nPasswordAuthentication no\nSubsystem sftp /usr/lib/openssh/sftp-server\n",
            folder.path().display()
        );
        let client = format!(
            "Host peer\n User root\n IdentityFile {0}/user\n IdentitiesOnly yes\n UserKnownHostsFile {0}/known\n \
             StrictHostKeyChecking accept-new\n GlobalKnownHostsFile /dev/null\n \
             ProxyCommand /usr/sbin/sshd -i -f {0}/server\n",
            folder.path().display()
        );
        fs::write(at("server"), server).expect("written");
        fs::write(at("client"), client).expect("written");
        Ok(Peer {
            name: "sftp",
            offers: Offers { links: true, hard_links: true, modes: true },
            under: Some(at("data")),
            text: format!("sftp:peer:{}", at("data").display()),
            surroundings: Surroundings {
                ssh: format!("ssh -F {}", at("client").display()),
                ..Surroundings::from_environment()
            },
            server: None,
            folder,
        })
    }
}

impl Peer {
    /// nfs-ganesha, with rpcbind, in a network of its own.
    pub fn nfs() -> Result<Peer, String> {
        for program in ["/usr/bin/ganesha.nfsd", "/usr/sbin/rpcbind", "/etc/mtab"] {
            if !Path::new(program).exists() {
                return Err(format!("there is no {program}"));
            }
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("data")).expect("a folder");
        let conf = format!(
            "NFS_CORE_PARAM {{ Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; mount_path_pseudo = true; \
             MNT_Port = 20048; }}\nEXPORT {{ Export_Id = 7; Path = {}; Pseudo = /vfs; Access_Type = RW; \
             Squash = No_Root_Squash; SecType = sys; Protocols = 3; Filesystem_Id = 7.7; FSAL {{ Name = VFS; }} }}\n\
             LOG {{ Default_Log_Level = WARN; }}\n",
            at("data").display()
        );
        fs::write(at("conf"), conf).expect("written");
        // The server is started again whenever it is killed, which is how a test restarts it.
        let script = format!(
            "ip link set lo up && mount -t tmpfs none /run && mkdir -p /run/ganesha /run/rpcbind \
             /var/lib/nfs/ganesha && mount -t tmpfs none /var/lib/nfs/ganesha || exit 1\n\
             rpcbind -f & until [ -S /run/rpcbind.sock ]; do sleep 0.05; done\n\
             (while :; do if [ -e {0}/kill ]; then kill -9 $(cat {0}/ganesha.pid) && rm {0}/kill; fi; sleep 0.05; done) &\n\
             while :; do ganesha.nfsd -F -f {0}/conf -L {0}/ganesha.log -p {0}/ganesha.pid; sleep 0.2; done",
            folder.path().display()
        );
        let server = Some(Server::start(&script, &at("server.log")));
        let peer = Peer {
            name: "nfs",
            offers: Offers { links: true, hard_links: true, modes: true },
            under: Some(at("data")),
            text: "nfs:127.0.0.1:/vfs".to_owned(),
            surroundings: Surroundings::from_environment(),
            server,
            folder,
        };
        peer.wait_until_it_serves()
    }

    /// What `scripts/s3-peer` has built, in a network of its own.
    pub fn s3() -> Result<Peer, String> {
        const PROGRAM: &str = "/var/cache/weir/s3-peer/gofakes3";
        if !Path::new(PROGRAM).exists() {
            return Err("there is no S3 server: run scripts/s3-peer".to_owned());
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = format!(
            "ip link set lo up; exec {PROGRAM} -backend memory -initialbucket bucket -host 127.0.0.1:7070"
        );
        let server = Some(Server::start(&script, &folder.path().join("server.log")));
        let settings = Settings {
            endpoint: Some("http://127.0.0.1:7070".to_owned()),
            key: Some(("tester".to_owned(), "testers-own-secret".to_owned())),
            ..Settings::default()
        };
        let peer = Peer {
            name: "s3",
            offers: Offers { links: false, hard_links: false, modes: false },
            // It keeps objects in memory.
            under: None,
            text: "s3://bucket/some/prefix".to_owned(),
            surroundings: Surroundings { s3: settings, ..Surroundings::from_environment() },
            server,
            folder,
        };
        peer.wait_until_it_serves()
    }

    fn wait_until_it_serves(self) -> Result<Peer, String> {
        let begun = Instant::now();
        while let Err(error) = self.try_mount() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} does not serve: {error}", self.name);
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(self)
    }

    /// Kills the server, which is started again at once. Whether it is one of which this can be asked.
    pub fn kill_server(&self) -> bool {
        if self.name != "nfs" {
            return false;
        }
        let order = self.folder.path().join("kill");
        fs::write(&order, "").expect("written");
        let begun = Instant::now();
        while order.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the server was not killed");
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

/// Runs `test` with every peer that this machine has.
pub fn on_peers(name: &str, test: impl Fn(&Peer)) {
    if let Some(reason) = cannot_mount() {
        println!("NOT RUN {name}: {reason}");
        return;
    }
    for peer in [Peer::sftp, Peer::nfs, Peer::s3] {
        let peer = peer();
        match peer {
            Ok(peer) => {
                println!("{name} on {}", peer.name);
                test(&peer);
            }
            Err(reason) => println!("NOT RUN {name}: {reason}"),
        }
    }
}
