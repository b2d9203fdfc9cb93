//! `weir bench vm`: two stock QEMU guests under emulation, by vhost-user through two switches and their overlay, beside QEMU's own back
//! ends: its socket, which joins the two directly, and TAPs on a bridge of the kernel.
//!
//! The guests' processors are emulated, so what is shown is that it works, with contents compared, and how the ways compare to each other;
//! the figures are those of the emulation. Back ends take turns; each turn boots both guests anew.

mod guest;

use super::net_path::Weir;
use super::order::median;
use crate::failure::Failure;
use clap::Args;
use guest::Guest;
use std::fmt::Display;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use weir_lab::bench::net::Path as _;
use weir_lab::{Netns, Scope, scope::CleanOnDrop, system};

/// A guest under emulation on a loaded machine is slow.
const BOUND: Duration = Duration::from_secs(120);
const ADDRESSES: [&str; 2] = ["10.0.0.21", "10.0.0.22"];
const MACS: [&str; 2] = ["52:54:00:00:00:21", "52:54:00:00:00:22"];
const RESOURCES: &str = r#"[
  {"kind": "endpoint", "network": "bench", "name": "vm1", "subnet": "a", "host": "h1", "mac": "52:54:00:00:00:21",
   "addresses": ["10.0.0.21"], "attachment": {"kind": "vhost-user", "socket": "FOLDER/vm1.sock"}},
  {"kind": "endpoint", "network": "bench", "name": "vm2", "subnet": "a", "host": "h2", "mac": "52:54:00:00:00:22",
   "addresses": ["10.0.0.22"], "attachment": {"kind": "vhost-user", "socket": "FOLDER/vm2.sock"}}
]"#;
/// The second guest: takes a file, and serves iperf3.
const SERVER: &str = "iperf3 -s -D
nc -l -p 7000 > /tmp/file
echo SUM-B $(md5sum < /tmp/file)";
/// The first guest: waits for the other, asks it often, sends a file, and then as much as it can.
const CLIENT: &str = "until ping -q -c 1 -W 1 PEER > /dev/null; do sleep 0.2; done
ping -q -c 20 -A PEER > /dev/null
echo PING $(ping -q -c PINGS -A PEER | tail -n 1)
dd if=/dev/urandom of=/tmp/file bs=1M count=16 2> /dev/null
echo SUM-A $(md5sum < /tmp/file)
until nc PEER 7000 < /tmp/file; do sleep 0.2; done
echo STREAM $(iperf3 -c PEER -t SECONDS -f m | grep receiver)";

#[derive(Debug, Args)]
pub struct Vm {
    /// Turns of each back end
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each stream
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Round trips of each turn
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=10000))]
    pings: u32,
}

fn wrong(error: impl Display) -> Failure {
    Failure::Input(error.to_string())
}

/// How two guests are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    VhostUser,
    Socket,
    Tap,
}

impl Backend {
    const ALL: [Backend; 3] = [Backend::VhostUser, Backend::Socket, Backend::Tap];

    fn name(self) -> &'static str {
        match self {
            Backend::VhostUser => "weir-vhost-user",
            Backend::Socket => "qemu-socket",
            Backend::Tap => "qemu-tap-bridge",
        }
    }

    /// Options of guest 0 or 1.
    fn device(self, folder: &Path, number: usize) -> Vec<String> {
        let at = |name: &str| folder.join(name).display().to_string();
        let (netdev, more) = match self {
            Backend::VhostUser => {
                let socket = at(["vm1.sock", "vm2.sock"][number]);
                let chardev = format!("socket,id=c0,path={socket},reconnect=1");
                let more = vec!["-chardev".to_string(), chardev];
                ("vhost-user,id=n0,chardev=c0".to_string(), more)
            }
            Backend::Socket => {
                let server = if number == 1 { "on" } else { "off" };
                let path = at("pair.sock");
                (format!("stream,id=n0,server={server},addr.type=unix,addr.path={path}"), vec![])
            }
            Backend::Tap => (format!("tap,id=n0,ifname=t{number},script=no,downscript=no,vhost=off"), vec![]),
        };
        // QEMU 7.2 under emulation ends with a fault in its own code unless such a device has no vectors.
        let vectors = if self == Backend::VhostUser { ",vectors=0" } else { "" };
        let device = format!("virtio-net-pci,netdev=n0,romfile=,mac={}{vectors}", MACS[number]);
        more.into_iter().chain(["-netdev".into(), netdev, "-device".into(), device]).collect()
    }
}

/// What was measured of a back end, in each turn.
#[derive(Debug, Default)]
struct Measured {
    round_trip_ms: Vec<f64>,
    mbit_per_s: Vec<f64>,
}

impl Measured {
    fn take(&mut self, console: &str) -> Result<(), Failure> {
        let line = |name: &str| console.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let bad = || wrong(format!("the guest did not say what was asked: {console}"));
        // "round-trip min/avg/max = 0.4/0.5/0.6 ms"
        let ping = line("PING").and_then(|text| text.split("= ").nth(1)).ok_or_else(bad)?;
        let average = ping.split('/').nth(1).and_then(|text| text.parse().ok()).ok_or_else(bad)?;
        let words: Vec<&str> = line("STREAM").ok_or_else(bad)?.split_whitespace().collect();
        let unit = words.iter().position(|word| *word == "Mbits/sec").ok_or_else(bad)?;
        let rate = unit.checked_sub(1).and_then(|at| words[at].parse().ok()).ok_or_else(bad)?;
        self.round_trip_ms.push(average);
        self.mbit_per_s.push(rate);
        Ok(())
    }
}

impl Vm {
    /// With the usual options.
    pub fn usual() -> Vm {
        Vm { rounds: 3, seconds: 4, pings: 200 }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        system::require_root()?;
        if let Some(reason) = guest::missing() {
            return Err(Failure::Missing(reason));
        }
        let own = std::env::current_exe().map_err(Failure::io("finding this program"))?;
        let scope: CleanOnDrop = Scope::begin("bench-vm", "wbv-")?.clean_on_drop();
        let mut weir = Weir::new(own);
        weir.set_up(&scope)?;
        let folder = scope.folder().join("guests");
        std::fs::create_dir_all(&folder).map_err(Failure::io(folder.display().to_string()))?;
        weir.apply_more("vms", &RESOURCES.replace("FOLDER", &folder.display().to_string()))?;
        let bridged = bridge(&scope)?;
        let client = CLIENT.replace("PEER", ADDRESSES[1]).replace("SECONDS", &self.seconds.to_string());
        let scripts = [client.replace("PINGS", &self.pings.to_string()), SERVER.to_string()];
        for (number, script) in scripts.iter().enumerate() {
            guest::root(&folder.join(format!("root{number}")), ADDRESSES[number], script)?;
        }
        let mut measured = Backend::ALL.map(|_| Measured::default());
        for _ in 0..self.rounds {
            for (backend, measured) in Backend::ALL.into_iter().zip(&mut measured) {
                turn(backend, &folder, &bridged, measured)?;
            }
        }
        report(&measured);
        weir.tear_down()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A bridge with a TAP for each guest.
fn bridge(scope: &Scope) -> Result<Netns, Failure> {
    let netns = scope.netns("bridge")?;
    netns.ip(&["link", "add", "br0", "type", "bridge"])?;
    for tap in ["t0", "t1"] {
        netns.ip(&["tuntap", "add", tap, "mode", "tap", "vnet_hdr"])?;
        netns.ip(&["link", "set", tap, "master", "br0", "up"])?;
    }
    netns.up("br0")?;
    Ok(netns)
}

fn turn(backend: Backend, folder: &Path, bridged: &Netns, measured: &mut Measured) -> Result<(), Failure> {
    // The one that listens first.
    let mut guests = Vec::new();
    for number in [1, 0] {
        let qemu = match backend {
            Backend::Tap => bridged.command("qemu-system-x86_64"),
            Backend::VhostUser | Backend::Socket => Command::new("qemu-system-x86_64"),
        };
        let device = backend.device(folder, number);
        let root = folder.join(format!("root{number}"));
        guests.push(Guest::boot(qemu, &root, &device, backend == Backend::VhostUser)?);
        if backend == Backend::Socket && number == 1 {
            system::wait_for("QEMU's socket", BOUND, || Ok(folder.join("pair.sock").exists()))?;
        }
    }
    let over = |guest: &Guest| guest.console().contains("THE-END");
    if let Err(error) = system::wait_for("the guests", BOUND, || Ok(guests.iter().all(over))) {
        let said: Vec<String> = guests.iter().map(Guest::console).collect();
        return Err(wrong(format!("{}: {error}: {}", backend.name(), said.join("\n"))));
    }
    let (server, client) = (guests[0].console(), guests[1].console());
    let sum = |console: &str, name: &str| {
        console.lines().find_map(|line| line.strip_prefix(name)).map(|sum| sum.trim().to_string())
    };
    let (sent, came) = (sum(&client, "SUM-A"), sum(&server, "SUM-B"));
    if sent.is_none() || sent != came {
        return Err(wrong(format!("{}: other bytes came: {sent:?}, {came:?}", backend.name())));
    }
    drop(guests);
    // QEMU leaves it.
    let _ = std::fs::remove_file(folder.join("pair.sock"));
    measured.take(&client)
}

fn report(measured: &[Measured; 3]) {
    let all = |values: &[f64]| median(values.iter().copied());
    for (backend, one) in Backend::ALL.iter().zip(measured) {
        say!(
            "{}: round trip {:.3} ms, TCP {:.0} Mbit/s (medians of {} turns); 16 MiB compared in each",
            backend.name(),
            all(&one.round_trip_ms),
            all(&one.mbit_per_s),
            one.mbit_per_s.len()
        );
    }
    let [own, peers @ ..] = measured;
    for (backend, peer) in Backend::ALL[1..].iter().zip(peers) {
        let (a, b) = (all(&own.round_trip_ms), all(&peer.round_trip_ms));
        say!("RESULT vm round-trip weir={a:.3}ms {}={b:.3}ms ratio={:.2}", backend.name(), a / b);
        let (a, b) = (all(&own.mbit_per_s), all(&peer.mbit_per_s));
        say!("RESULT vm tcp weir={a:.0}Mbit/s {}={b:.0}Mbit/s ratio={:.2}", backend.name(), a / b);
    }
}
