//! Servers of one kind on loopback, three or, where one may lie, four, as processes of their own. They end, and their directory goes, with this.

use super::etcd::Etcd;
use crate::failure::Failure;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weir_api::client::{Client, Context};

/// How long they may take to have a leader.
const BOUND: Duration = Duration::from_secs(30);
/// Below the range from which the system takes ports by itself.
const PORT_FIRST: u16 = 24_100;
/// Microseconds of a clock tick in `/proc`, fixed by the kernel's interface.
const TICK_US: f64 = 10_000.0;

/// Threads that write logs, and sync them.
const LOGS: [&str; 7] =
    ["order-log", "order-spare", "raft-log", "raft-quiet", "bft-votes", "bft-journal", "bft-spare"];
/// The thread of a Byzantine agreement, where the kernel has io_uring.
const CONSENSUS: &str = "bft";

/// Processor time of a controller, microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// All of it.
    pub whole_us: f64,
    /// Of threads that write logs.
    pub logs_us: f64,
    /// Of the thread of a Byzantine agreement.
    pub consensus_us: f64,
    /// Of that thread, between the coming of something to order and its commit.
    pub agreeing_us: f64,
}

impl Spent {
    /// What came since.
    pub fn since(&self, before: &Spent) -> Spent {
        Spent {
            whole_us: self.whole_us - before.whole_us,
            logs_us: self.logs_us - before.logs_us,
            consensus_us: self.consensus_us - before.consensus_us,
            agreeing_us: self.agreeing_us - before.agreeing_us,
        }
    }

    /// What somebody waits for. The time of logs is that of their syncs.
    pub fn waited_for_us(&self) -> f64 {
        self.whole_us - self.logs_us - (self.consensus_us - self.agreeing_us)
    }
}

/// Which kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// A group of three controllers, of which one may crash.
    Weir,
    /// A group of four controllers, of which one may lie.
    Bft,
    /// etcd.
    Etcd,
}

impl Peer {
    /// How many there are.
    fn servers(self) -> usize {
        if self == Peer::Bft { 4 } else { 3 }
    }

    /// Ports from here are its.
    fn port_first(self) -> u16 {
        PORT_FIRST
            + match self {
                Peer::Weir => 0,
                Peer::Etcd => 50,
                Peer::Bft => 100,
            }
    }

    /// Whether these are controllers.
    pub fn is_weir(self) -> bool {
        self != Peer::Etcd
    }
}

/// See the module.
pub struct Servers {
    /// The kind.
    pub peer: Peer,
    folder: PathBuf,
    children: Vec<Option<Child>>,
    /// The members' keys in hex, where members have some.
    keys: Vec<String>,
    given: Given,
}

/// Settings of controllers beside the usual ones, as YAML.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Lines of the file.
    pub lines: String,
    /// Lines of the part `group`, indented; without a group they are left out.
    pub group: String,
}

fn wrong(error: impl std::fmt::Display) -> Failure {
    Failure::Input(error.to_string())
}

pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("starting a client"))
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ended = (child.kill(), child.wait());
        }
        // What cannot be removed is left for a look.
        let _removed = std::fs::remove_dir_all(&self.folder);
    }
}

impl Servers {
    /// Starts them where every write goes to a disk, and waits for a leader.
    pub fn start(peer: Peer) -> Result<Servers, Failure> {
        Servers::start_in(peer, Path::new("/var/tmp"))
    }

    /// Starts them with their state below a folder, and waits for a leader.
    pub fn start_in(peer: Peer, parent: &Path) -> Result<Servers, Failure> {
        Servers::start_many(peer, peer.servers(), parent)
    }

    /// Starts so many with their state below a folder, and waits for a leader. One of Weir's is without a group.
    pub fn start_many(peer: Peer, count: usize, parent: &Path) -> Result<Servers, Failure> {
        Servers::start_with(peer, count, parent, Given::default())
    }

    /// The same with settings of controllers beside the usual ones.
    pub fn start_with(peer: Peer, count: usize, parent: &Path, given: Given) -> Result<Servers, Failure> {
        let name = format!("weir-bench-order-{peer:?}-{}", std::process::id());
        let folder = parent.join(name);
        std::fs::create_dir_all(&folder).map_err(Failure::io(folder.display().to_string()))?;
        let children = (0..count).map(|_| None).collect();
        let mut servers = Servers { peer, folder, children, keys: Vec::new(), given };
        if peer.is_weir() && count > 1 {
            let out = servers.folder.join("keys.json");
            servers.group(1, &["keys", "--domain", "bench", "--out", &out.display().to_string()])?;
        }
        if peer == Peer::Bft {
            for number in 1..=count {
                let key = servers.group(number, &["identity"])?;
                servers.keys.push(key.trim().to_owned());
            }
        }
        for number in 1..=count {
            servers.begin(number)?;
        }
        servers.leader()?;
        Ok(servers)
    }

    /// What `weir group …` prints for one of them.
    fn group(&self, number: usize, arguments: &[&str]) -> Result<String, Failure> {
        let mut command = Command::new(own()?);
        command.arg("group").args(arguments).arg("--state").arg(self.state(number));
        let output = command.output().map_err(Failure::io("weir group"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(wrong(format!("weir group {} failed: {said}", arguments[0])));
        }
        String::from_utf8(output.stdout).map_err(wrong)
    }

    fn state(&self, number: usize) -> PathBuf {
        self.folder.join(number.to_string())
    }

    /// `127.0.0.1:port` of one of them: 0 for clients, 1 between each other, 2 for sessions.
    fn at(&self, number: usize, purpose: u16) -> String {
        let port = self.peer.port_first() + number as u16 * 10 + purpose;
        format!("127.0.0.1:{port}")
    }

    /// Where clients reach them.
    pub fn addresses(&self) -> Vec<String> {
        (1..=self.children.len()).map(|number| self.at(number, 0)).collect()
    }

    /// Where hosts reach them.
    pub fn sessions(&self) -> Vec<String> {
        (1..=self.children.len()).map(|number| self.at(number, 2)).collect()
    }

    /// Starts one, anew if it ran before.
    pub fn begin(&mut self, number: usize) -> Result<(), Failure> {
        let mut command = match self.peer {
            Peer::Weir | Peer::Bft => self.weir(number)?,
            Peer::Etcd => self.etcd(number),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(Failure::io(format!("starting {:?}", command.get_program())))?;
        self.children[number - 1] = Some(child);
        Ok(())
    }

    fn weir(&self, number: usize) -> Result<Command, Failure> {
        let founder = |one: usize| {
            let (replica, api, session) = (self.at(one, 1), self.at(one, 0), self.at(one, 2));
            let key = self.keys.get(one - 1).map(|key| format!(", key: \"{key}\"")).unwrap_or_default();
            format!(
                "    - {{ id: {one}, replica: \"{replica}\", api: \"{api}\", session: \"{session}\"{key} }}\n"
            )
        };
        let order = if self.peer == Peer::Bft { "  order: bft\n" } else { "" };
        let mut text = format!(
            "domain: bench\nadvertise: 127.0.0.1\napi: {}\nsession: {}\n{}",
            self.at(number, 0),
            self.at(number, 2),
            self.given.lines
        );
        if self.children.len() > 1 {
            text += &format!(
                "group:\n  id: {number}\n  listen: {}\n  keys: {}\n{order}{}  founders:\n{}",
                self.at(number, 1),
                self.folder.join("keys.json").display(),
                self.given.group,
                (1..=self.children.len()).map(founder).collect::<String>()
            );
        }
        let settings = self.folder.join(format!("{number}.yaml"));
        std::fs::write(&settings, text).map_err(Failure::io(settings.display().to_string()))?;
        let mut command = Command::new(own()?);
        command.arg("controller").arg("--config").arg(settings).arg("--state").arg(self.state(number));
        Ok(command)
    }

    fn etcd(&self, number: usize) -> Command {
        let url = |one: usize, purpose: u16| format!("http://{}", self.at(one, purpose));
        let cluster: Vec<String> = (1..=3).map(|one| format!("n{one}={}", url(one, 1))).collect();
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("n{number}"), "--data-dir"]).arg(self.state(number));
        command.args(["--listen-client-urls", &url(number, 0), "--advertise-client-urls", &url(number, 0)]);
        command.args(["--listen-peer-urls", &url(number, 1)]);
        command.args(["--initial-advertise-peer-urls", &url(number, 1)]);
        command.args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"]);
        command
    }

    /// The context of Weir's first controller.
    pub fn context(&self) -> Result<Context, Failure> {
        let path = self.state(1).join("admin.json");
        let text = std::fs::read_to_string(&path).map_err(Failure::io(path.display().to_string()))?;
        serde_json::from_str(&text).map_err(wrong)
    }

    /// Number of the one that leads.
    pub fn leader(&self) -> Result<usize, Failure> {
        let until = Instant::now() + BOUND;
        loop {
            if let Some(number) = self.look_for_leader()? {
                return Ok(number);
            }
            if Instant::now() > until {
                return Err(wrong(format!("{:?}: nobody leads within {} s", self.peer, BOUND.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn look_for_leader(&self) -> Result<Option<usize>, Failure> {
        if self.peer.is_weir() {
            let Ok(context) = self.context() else { return Ok(None) };
            let client = Client::new(context)?;
            if client.list(None, None).is_err() {
                return Ok(None);
            }
            if self.children.len() == 1 {
                return Ok(Some(1));
            }
            return Ok(client.group().ok().and_then(|group| group.leader).map(|leader| leader as usize));
        }
        runtime()?.block_on(async {
            for number in 1..=3 {
                let Ok(mut member) = Etcd::connect(&self.at(number, 0)).await else { continue };
                if member.leads().await.unwrap_or(false) {
                    return Ok(Some(number));
                }
            }
            Ok(None)
        })
    }

    /// Where clients reach the one that leads.
    pub fn leader_address(&self) -> Result<String, Failure> {
        Ok(self.at(self.leader()?, 0))
    }

    /// Processor time of all of them so far, microseconds.
    pub fn cpu_us(&self) -> f64 {
        let ticks = |child: &Child| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
            let fields: Vec<&str> = stat.rsplit(") ").next()?.split(' ').collect();
            Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
        };
        self.children.iter().flatten().map(|child| ticks(child).unwrap_or_default() * TICK_US).sum()
    }

    /// Processor time of each controller so far, and of parts of it.
    ///
    /// # Errors
    /// [`Failure`]: one does not answer.
    pub fn each_spent(&self) -> Result<Vec<Spent>, Failure> {
        let each = self.children.iter().enumerate().filter_map(|(at, child)| Some((at + 1, child.as_ref()?)));
        each.map(|(number, child)| self.spent(number, child.id())).collect()
    }

    fn spent(&self, number: usize, pid: u32) -> Result<Spent, Failure> {
        let folder = format!("/proc/{pid}/task");
        let mut spent = Spent::default();
        for task in std::fs::read_dir(&folder).map_err(Failure::io(folder))?.flatten() {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).ok();
            // A thread that has just ended is none.
            let (Some(name), Some(times)) = (read("comm"), read("schedstat")) else { continue };
            let ns = times.split(' ').next().and_then(|word| word.parse::<f64>().ok());
            let us = ns.ok_or_else(|| wrong("the kernel does not say what a thread used"))? / 1e3;
            spent.whole_us += us;
            match name.trim() {
                name if LOGS.contains(&name) => spent.logs_us += us,
                CONSENSUS => spent.consensus_us += us,
                _ => {}
            }
        }
        if self.peer == Peer::Bft {
            let path = self.state(number).join("admin.json");
            let text = std::fs::read_to_string(&path).map_err(Failure::io(path.display().to_string()))?;
            let metrics = Client::new(serde_json::from_str(&text).map_err(wrong)?)?.metrics()?;
            let value = |what: &str| {
                let name = format!("weir_controller_log_seconds_total{{what=\"{what}\"}} ");
                metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok())
            };
            let seconds = value("agreement_cpu");
            spent.agreeing_us = seconds.ok_or_else(|| wrong("a controller does not count agreements"))? * 1e6;
        }
        Ok(spent)
    }

    /// Resident memory of the one that has most, bytes.
    pub fn memory_bytes(&self) -> f64 {
        let resident = |child: &Child| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.trim().strip_suffix(" kB")?.parse::<f64>().ok()
        };
        self.children.iter().flatten().filter_map(resident).fold(0.0, f64::max) * 1024.0
    }

    /// Allocated disk of the one that has most, bytes.
    pub fn disk_bytes(&self) -> f64 {
        (1..=self.children.len()).map(|number| allocated(&self.state(number))).fold(0.0, f64::max)
    }

    /// The process of one.
    pub fn pid(&self, number: usize) -> Option<u32> {
        self.children[number - 1].as_ref().map(Child::id)
    }

    /// Kills one at once.
    pub fn kill(&mut self, number: usize) -> Result<(), Failure> {
        let Some(mut child) = self.children[number - 1].take() else { return Ok(()) };
        child.kill().and_then(|()| child.wait()).map_err(Failure::io("killing a server"))?;
        Ok(())
    }
}

/// What a folder takes on its disk, bytes. A file that goes meanwhile takes nothing.
fn allocated(path: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(metadata) = path.symlink_metadata() else { return 0.0 };
    if !metadata.is_dir() {
        // `st_blocks` counts 512 bytes on every file system.
        return metadata.blocks() as f64 * 512.0;
    }
    std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| allocated(&entry.path())).sum()
}

fn own() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(Failure::io("finding this program"))
}
