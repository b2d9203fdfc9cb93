//! Servers that we did not write, for remote backends: each is a real process that nobody else can reach.

use super::{Mounted, cannot_mount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_userfs::locate::{Surroundings, open_in};

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
    _folder: tempfile::TempDir,
}

fn ran(command: &mut Command) {
    let output = command.output().expect("a program that is installed");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Peer {
    /// A client of it, mounted.
    pub fn mount(&self) -> Mounted {
        let backend = open_in(&self.text, &self.surroundings).unwrap_or_else(|error| panic!("{error}"));
        Mounted::shared(self.name, backend)
    }

    /// Another text for the same surroundings.
    pub fn refused(&self, text: &str) -> String {
        open_in(text, &self.surroundings).err().map(|error| error.to_string()).unwrap_or_default()
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
            surroundings: Surroundings { ssh: format!("ssh -F {}", at("client").display()) },
            _folder: folder,
        })
    }
}

/// Runs `test` with every peer that this machine has.
pub fn on_peers(name: &str, test: impl Fn(&Peer)) {
    if let Some(reason) = cannot_mount() {
        println!("NOT RUN {name}: {reason}");
        return;
    }
    for peer in [Peer::sftp()] {
        match peer {
            Ok(peer) => {
                println!("{name} on {}", peer.name);
                test(&peer);
            }
            Err(reason) => println!("NOT RUN {name}: {reason}"),
        }
    }
}
