//! The remote context (Bohra, table 3.1) and the driver of the [ring](crate::ring): hosts answer each other's probes over UDP.
//!
//! It is not one-sided: there is no RDMA here, so a thread of the probed host answers, pinned and of real-time priority like the
//! loop, or (`responder: dataplane`) the engine of its switch, in its packet core. A host whose kernel has stopped does not answer; one that is merely busy does.
//! Where the switch answers it has the host's port, and the monitors speak to each other on the next one.
//!
//! ```text
//! packet, 56 bytes, little-endian: magic u32, version u16, kind u16, from u16, about u16, suspects u32, nonce u64, progress u64,
//!                                  time u64, tag 16 bytes: HMAC-SHA256 of the rest under the ring's key, cut
//! ```
//! A packet without a right tag is dropped and counted. An answer counts only for the newest probe (its nonce), a value only for the
//! newest read; what a host says of its own accord only if it was said just now and is new ([`clocks`]), so that nothing can be replayed.
//!
//! Besides, hosts read each other's sensors: [`views`] is who asks, [`shelf`] who answers.
//!
//! Fencing comes before fail-over: when a host is declared failed, the one whose turn it is runs the `fence` command with its name, and only its
//! success is told as `fenced`, here and to the others. Who has no such command, or whose command fails, says so, and the next one does it.

pub mod clocks;
mod packet;
mod responder;
pub mod shelf;
pub mod views;

pub use packet::{Kind, PACKET_BYTES, Packet};
pub use responder::Responder;
pub use views::ViewFile;

use crate::detector::Settings;
use crate::error::{Error, Result};
use crate::incident::Note;
use crate::local;
use crate::policy::Context;
use crate::ring::hearing::Standing;
use crate::ring::{HOSTS_MAX, Host, Input, Output, Ring};
use clocks::Clocks;
use serde::Deserialize;
use shelf::Shelf;
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use views::Views;
use weir_sensor::{Directory, now_ns};

/// Shortest key, bytes.
const KEY_BYTES_MIN: usize = 16;
/// What distinguishes fences from opinions about the same host.
const FENCE_MATTER: Host = 1 << 15;
/// For so many periods what a host says of its own accord is of now.
const NEW_PERIODS: u64 = 10;
/// Most packets that are taken between two looks at the clock.
const BURST_MAX: usize = 1024;

/// A ring's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RingFile {
    /// This host's name.
    pub own: String,
    /// All hosts and where they answer. Their order by name is the ring's.
    pub hosts: BTreeMap<String, SocketAddr>,
    /// File with the secret that all share.
    pub key_file: PathBuf,
    /// So many hosts may fail at once.
    #[serde(default = "one")]
    pub k: usize,
    /// Time between two probes, ms.
    #[serde(default = "period_ms")]
    pub period_ms: u64,
    /// So many periods without an answer make a host suspect.
    #[serde(default = "periods")]
    pub periods: u32,
    /// Program that fences a host; it is given the host's name.
    #[serde(default)]
    pub fence: Option<PathBuf>,
    /// Who answers probes, the same on all hosts: the monitor (`local`), or the switch (`dataplane`).
    #[serde(default)]
    pub responder: Context,
    /// Boxes of other hosts that are read, and kept here.
    #[serde(default)]
    pub views: Vec<ViewFile>,
}

fn one() -> usize {
    1
}

fn period_ms() -> u64 {
    20
}

fn periods() -> u32 {
    5
}

impl RingFile {
    /// Reads and checks one.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::File`].
    pub fn load(path: &Path) -> Result<RingFile> {
        let wrong = |reason: String| Error::File { path: path.to_path_buf(), reason };
        let text =
            std::fs::read_to_string(path).map_err(|error| Error::io(path.display().to_string(), error))?;
        let file: RingFile = weir_document::read(&text).map_err(|error| wrong(error.to_string()))?;
        if !file.hosts.contains_key(&file.own) {
            return Err(wrong(format!("own: '{}' is not among the hosts", file.own)));
        }
        if file.hosts.len() > HOSTS_MAX {
            return Err(wrong(format!("{} hosts are more than {HOSTS_MAX}", file.hosts.len())));
        }
        if file.k + 1 >= file.hosts.len() {
            return Err(wrong(format!("k {} needs at least {} hosts", file.k, file.k + 2)));
        }
        if file.responder == Context::Dataplane && file.hosts.values().any(|at| at.port() == u16::MAX) {
            return Err(wrong(
                "responder dataplane needs the port after that of each host: use one below 65535".into(),
            ));
        }
        if file.period_ms == 0 || file.periods == 0 {
            return Err(wrong("period-ms and periods must be more than 0".into()));
        }
        file.check_views().map_err(wrong)?;
        Ok(file)
    }

    fn check_views(&self) -> std::result::Result<(), String> {
        for view in &self.views {
            let name = view.copy();
            if !self.hosts.contains_key(&view.host) {
                return Err(format!("views: '{}' is not among the hosts", view.host));
            }
            if view.host == self.own {
                return Err(format!(
                    "views: '{name}' is a box of this host itself: use '{}'",
                    view.sensor_box
                ));
            }
            if view.sensors.is_empty() || view.every_ms < views::EVERY_MS_MIN {
                let least = views::EVERY_MS_MIN;
                return Err(format!("views: '{name}' needs a sensor, and every-ms of at least {least}"));
            }
            if self.views.iter().filter(|other| other.copy() == name).count() > 1 {
                return Err(format!("views: '{name}' is there twice: name all its sensors in one"));
            }
        }
        let sensors: usize = self.views.iter().map(|view| view.sensors.len()).sum();
        if sensors > views::SENSORS_MAX {
            return Err(format!("views: {sensors} sensors are more than {}", views::SENSORS_MAX));
        }
        Ok(())
    }
}

/// A host as it is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostView {
    /// Its name.
    pub name: String,
    /// Whether it is taken for failed.
    pub failed: bool,
    /// The accrual level, if this host watches it.
    pub level: Option<f64>,
    /// Of this host itself: whether it judges no other, because it hears no majority of its neighbours.
    pub alone: bool,
}

/// A running part of a ring.
#[derive(Debug)]
pub struct Remote {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    view: Arc<Mutex<Vec<HostView>>>,
    /// The names of the hosts, by number.
    pub names: Vec<String>,
}

struct Driver {
    ring: Ring,
    own: Host,
    socket: UdpSocket,
    addresses: Vec<SocketAddr>,
    /// Where probes go.
    probed: Vec<SocketAddr>,
    names: Vec<String>,
    key: Vec<u8>,
    nonces: BTreeMap<Host, u64>,
    clocks: Clocks,
    standing: Standing,
    /// Whether the switch answers probes: then nobody hears by them who watches it.
    by_dataplane: bool,
    period: Duration,
    fence: Option<PathBuf>,
    /// What came of fences that were run.
    fenced: (Sender<Fenced>, Receiver<Fenced>),
    notes: SyncSender<Note>,
    views: Views,
    shelf: Shelf,
    dropped: u64,
}

/// Who was fenced, and whether it was done.
type Fenced = (Host, bool);

/// Reads the ring's key.
fn read_key(path: &Path) -> Result<Vec<u8>> {
    let key = std::fs::read(path)
        .map_err(|error| Error::io(format!("the ring's key {}", path.display()), error))?;
    if key.len() < KEY_BYTES_MIN {
        let reason = format!("a key of {} bytes is too short: use at least {KEY_BYTES_MIN}", key.len());
        return Err(Error::File { path: path.to_path_buf(), reason });
    }
    Ok(key)
}

impl Remote {
    /// Joins a ring. What it declares goes to `notes`; boxes of `sensors` can be read by others, and copies of theirs go there.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::File`] for a key that is too short.
    pub fn start(
        file: &RingFile,
        settings: local::Settings,
        sensors: &Directory,
        notes: SyncSender<Note>,
    ) -> Result<Remote> {
        let key = read_key(&file.key_file)?;
        let names: Vec<String> = file.hosts.keys().cloned().collect();
        let probed: Vec<SocketAddr> = file.hosts.values().copied().collect();
        let mut addresses = probed.clone();
        if file.responder == Context::Dataplane {
            addresses.iter_mut().for_each(|address| address.set_port(address.port().saturating_add(1)));
        }
        let own = names.iter().position(|name| *name == file.own).unwrap_or(0) as Host;
        let period = Duration::from_millis(file.period_ms);
        let failed = |error| Error::io(format!("listening at {}", addresses[usize::from(own)]), error);
        let socket = UdpSocket::bind(addresses[usize::from(own)]).map_err(failed)?;
        socket.set_read_timeout(Some(period / 4)).map_err(failed)?;
        let detector = Settings { period_ns: period.as_nanos() as u64, periods: file.periods, watch_ns: 0 };
        let mut driver = Driver {
            ring: Ring::new(own, 0..names.len() as Host, file.k, detector),
            own,
            socket,
            addresses,
            probed,
            names: names.clone(),
            key,
            nonces: BTreeMap::new(),
            clocks: Clocks::new((period.as_nanos() as u64).saturating_mul(NEW_PERIODS)),
            standing: Standing::Alone,
            by_dataplane: file.responder == Context::Dataplane,
            period,
            fence: file.fence.clone(),
            fenced: channel(),
            notes,
            views: Views::new(&file.views, &names, sensors, now_ns())?,
            shelf: Shelf::open(sensors)?,
            dropped: 0,
        };
        let (stop, view) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (stopped, shown) = (stop.clone(), view.clone());
        let thread = std::thread::Builder::new()
            .name("monitor-ring".into())
            .spawn(move || {
                // The loop has told already what the machine refuses.
                drop(local::settle(&local::Settings { lock_memory: false, ..settings }));
                driver.run(&stopped, &shown);
            })
            .map_err(|error| Error::io("starting the ring", error))?;
        Ok(Remote { stop, thread: Some(thread), view, names })
    }

    /// The hosts as they are seen now.
    pub fn view(&self) -> Vec<HostView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Driver {
    fn run(&mut self, stop: &AtomicBool, view: &Mutex<Vec<HostView>>) {
        let period_ns = self.period.as_nanos() as u64;
        let mut due = now_ns();
        while !stop.load(Ordering::Acquire) {
            let now = now_ns();
            if now >= due {
                due = now + period_ns;
                self.give(Input::Tick);
                self.tell_standing();
                *view.lock().unwrap_or_else(PoisonError::into_inner) = self.shown(now);
            }
            while let Ok((about, done)) = self.fenced.1.try_recv() {
                self.give(Input::Fenced { from: self.own, about, done });
            }
            self.read_views(now);
            let mut bytes = [0; PACKET_BYTES + 1];
            for _ in 0..BURST_MAX {
                // An error is a time-out, or a host that is not there: the next tick comes either way.
                let Ok((length, from)) = self.socket.recv_from(&mut bytes) else { break };
                self.take(&bytes[..length], from);
                if now_ns() >= due {
                    break;
                }
            }
        }
    }

    /// Says when this host is alone, and when it is among others again.
    fn tell_standing(&mut self) {
        let now = self.ring.standing();
        let before = std::mem::replace(&mut self.standing, now);
        match (before, now) {
            (Standing::Steady, Standing::Alone) => {
                tracing::warn!("no majority of the hosts around this one is heard: it judges nobody");
            }
            (Standing::Alone | Standing::Unsteady, Standing::Steady) => {
                tracing::info!(
                    "a majority of the hosts around this one has been heard for some time: it judges again"
                );
            }
            _ => {}
        }
    }

    /// Asks for what is due of other hosts' boxes.
    fn read_views(&mut self, now: u64) {
        let mut asks = Vec::new();
        self.views.due(now, |ask| asks.push(ask));
        for views::Ask { host, nonce, key } in asks {
            self.send(host, Packet { nonce, progress: key, ..self.packet(Kind::Read) });
        }
    }

    fn shown(&self, now: u64) -> Vec<HostView> {
        let watched: BTreeMap<Host, f64> = self.ring.watched(now).into_iter().collect();
        let row = |(number, name): (usize, &String)| HostView {
            name: name.clone(),
            failed: self.ring.failed().contains(&(number as Host)),
            level: watched.get(&(number as Host)).copied(),
            alone: number == usize::from(self.own) && self.ring.standing() == Standing::Alone,
        };
        self.names.iter().enumerate().map(row).collect()
    }

    fn send(&mut self, to: Host, packet: Packet) {
        let to_responder = matches!(packet.kind, Kind::Probe | Kind::Read);
        let addresses = if to_responder { &self.probed } else { &self.addresses };
        if let Some(address) = addresses.get(usize::from(to)) {
            // Who cannot be reached is found by the detector.
            drop(self.socket.send_to(&packet.encode(&self.key), address));
        }
    }

    fn packet(&self, kind: Kind) -> Packet {
        Packet { kind, from: self.own, about: 0, suspects: false, nonce: 0, progress: 0, time: now_ns() }
    }

    fn take(&mut self, bytes: &[u8], from: SocketAddr) {
        let Some(packet) = Packet::decode(bytes, &self.key) else {
            self.dropped += 1;
            tracing::debug!(%from, dropped = self.dropped, "a packet that is not of this ring");
            return;
        };
        if usize::from(packet.from) >= self.names.len() || packet.from == self.own {
            return;
        }
        let now = now_ns();
        match packet.kind {
            Kind::Probe => {
                let answer = Packet { nonce: packet.nonce, progress: now, ..self.packet(Kind::Answer) };
                self.send(packet.from, answer);
                self.said(now, &packet, Input::Heard(packet.from));
            }
            Kind::Here => self.said(now, &packet, Input::Heard(packet.from)),
            Kind::Answer if self.nonces.get(&packet.from) == Some(&packet.nonce) => {
                self.nonces.remove(&packet.from);
                self.clocks.answered(now, packet.nonce, packet.from, packet.time);
                self.give(Input::Answer { host: packet.from, progress: packet.progress });
            }
            Kind::Answer => {}
            Kind::Read => {
                let reading = self.shelf.read(packet.progress);
                self.send(packet.from, Packet::value(self.own, packet.nonce, reading, now));
            }
            Kind::Value => self.views.take(packet.from, packet.nonce, packet.reading()),
            Kind::Opinion | Kind::Fenced => {
                let Packet { kind, from, about, suspects, .. } = packet;
                if usize::from(about) < self.names.len() {
                    self.said(
                        now,
                        &packet,
                        match kind {
                            Kind::Fenced => Input::Fenced { from, about, done: suspects },
                            _ => Input::Opinion { from, about, suspects },
                        },
                    );
                }
            }
        }
    }

    /// What a host says of its own accord: taken if it is new. If it is not, or cannot be known to be, the host is asked for its clock.
    fn said(&mut self, now: u64, packet: &Packet, input: Input) {
        // Matters are kept apart by what they are about, and fences from opinions.
        let about = match packet.kind {
            Kind::Fenced => packet.about | FENCE_MATTER,
            Kind::Opinion => packet.about,
            _ => Host::MAX,
        };
        if self.clocks.is_new(now, packet.from, about, packet.time) {
            self.give(input);
        } else if self.clocks.asks(now, packet.from) {
            self.probe(packet.from);
        }
    }

    fn probe(&mut self, host: Host) {
        let nonce = now_ns();
        self.nonces.insert(host, nonce);
        self.send(host, Packet { nonce, ..self.packet(Kind::Probe) });
    }

    fn give(&mut self, input: Input) {
        let mut out = Vec::new();
        self.ring.step(now_ns(), input, &mut out);
        for output in out {
            match output {
                Output::Probe(host) => {
                    self.probe(host);
                    if self.by_dataplane {
                        self.send(host, self.packet(Kind::Here));
                    }
                }
                Output::Tell { to, about, suspects } => {
                    self.send(to, Packet { about, suspects, ..self.packet(Kind::Opinion) });
                }
                Output::TellFenced { to, about, done } => {
                    self.send(to, Packet { about, suspects: done, ..self.packet(Kind::Fenced) });
                }
                Output::Failed(host) => {
                    let _ = self.notes.try_send(Note::HostFailed { host, fenced: None });
                }
                Output::Fence(host) => match self.fence.clone() {
                    Some(program) => {
                        let name = self.names[usize::from(host)].clone();
                        fence_and_tell(program, name, host, self.notes.clone(), self.fenced.0.clone());
                    }
                    None => drop(self.fenced.0.send((host, false))),
                },
                Output::Recovered(host) => {
                    let _ = self.notes.try_send(Note::HostRecovered { host });
                }
            }
        }
    }
}

/// Fences in a thread of its own, for as long as that takes, and tells what came of it.
fn fence_and_tell(
    program: PathBuf,
    name: String,
    host: Host,
    notes: SyncSender<Note>,
    fenced: Sender<(Host, bool)>,
) {
    let tell = move || {
        let done = Command::new(program).arg(name).status().is_ok_and(|status| status.success());
        let _ = notes.try_send(Note::HostFailed { host, fenced: Some(done) });
        let _ = fenced.send((host, done));
    };
    if let Err(error) = std::thread::Builder::new().name("monitor-fence".into()).spawn(tell) {
        tracing::error!(%error, host, "a failed host was not fenced");
    }
}

#[cfg(test)]
mod tests;
