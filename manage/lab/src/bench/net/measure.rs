//! What is measured on a path, and how one window of it is taken.

use super::path::Endpoints;
use crate::bench::load::Ticks;
use crate::probe::{datagram, latency, ping, stream};
use crate::{Daemon, Error, Result, Scope};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// The client's core, and the core of the host that it is on.
pub(super) const CLIENT_CORE: u32 = 0;
/// The server's core, and the core of the host that it is on.
pub(super) const SERVER_CORE: u32 = 1;
/// Payload of a 64-byte Ethernet frame with IPv4 and UDP, check sequence included.
const SMALL_PAYLOAD_BYTES: usize = 18;
/// Servers of streams: two hundred connections are of two clients, each of which needs one.
const STREAM_SERVERS: u16 = 2;
const DATAGRAM_DURATION_MS: u64 = 1000;
const LATENCY_DURATION_S: u32 = 1;

/// One figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// TCP with one connection, at the receiver.
    #[serde(rename = "tcp_1_flow")]
    Tcp1Flow,
    /// TCP with eight connections, at the receiver.
    #[serde(rename = "tcp_8_flows")]
    Tcp8Flows,
    /// TCP with two hundred connections, at the receiver.
    #[serde(rename = "tcp_200_flows")]
    Tcp200Flows,
    /// 64-byte UDP frames that reached the receiving program.
    #[serde(rename = "udp_64b_received")]
    Udp64bReceived,
    /// Half a TCP round trip of 14 bytes, median.
    LatencyP50,
    /// The same, 99th percentile.
    LatencyP99,
    /// All processor time of the machine for a gigabyte received, one connection.
    #[serde(rename = "cpu_1_flow")]
    Cpu1Flow,
    /// The same with eight connections.
    #[serde(rename = "cpu_8_flows")]
    Cpu8Flows,
    /// The same with two hundred.
    #[serde(rename = "cpu_200_flows")]
    Cpu200Flows,
}

impl Metric {
    /// All figures, in the order of the tables.
    pub const ALL: [Metric; 9] = [
        Metric::Tcp1Flow,
        Metric::Tcp8Flows,
        Metric::Tcp200Flows,
        Metric::Udp64bReceived,
        Metric::LatencyP50,
        Metric::LatencyP99,
        Metric::Cpu1Flow,
        Metric::Cpu8Flows,
        Metric::Cpu200Flows,
    ];

    /// Its name in result lines.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Tcp1Flow => "tcp_1_flow",
            Metric::Tcp8Flows => "tcp_8_flows",
            Metric::Tcp200Flows => "tcp_200_flows",
            Metric::Udp64bReceived => "udp_64b_received",
            Metric::LatencyP50 => "latency_p50",
            Metric::LatencyP99 => "latency_p99",
            Metric::Cpu1Flow => "cpu_1_flow",
            Metric::Cpu8Flows => "cpu_8_flows",
            Metric::Cpu200Flows => "cpu_200_flows",
        }
    }

    /// Its name in tables.
    pub fn title(self) -> &'static str {
        match self {
            Metric::Tcp1Flow => "TCP 1 flow, Gbit/s",
            Metric::Tcp8Flows => "TCP 8 flows, Gbit/s",
            Metric::Tcp200Flows => "TCP 200 flows, Gbit/s",
            Metric::Udp64bReceived => "64-byte UDP received, kpps",
            Metric::LatencyP50 => "TCP half round trip p50, us",
            Metric::LatencyP99 => "p99, us",
            Metric::Cpu1Flow => "CPU 1 flow, s/GB",
            Metric::Cpu8Flows => "CPU 8 flows, s/GB",
            Metric::Cpu200Flows => "CPU 200 flows, s/GB",
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Tcp1Flow | Metric::Tcp8Flows | Metric::Tcp200Flows => "Gbit/s",
            Metric::Udp64bReceived => "kpps",
            Metric::LatencyP50 | Metric::LatencyP99 => "us",
            Metric::Cpu1Flow | Metric::Cpu8Flows | Metric::Cpu200Flows => "s/GB",
        }
    }

    /// True if more is better.
    pub fn higher_is_better(self) -> bool {
        matches!(self, Metric::Tcp1Flow | Metric::Tcp8Flows | Metric::Tcp200Flows | Metric::Udp64bReceived)
    }
}

/// One thing that is run; it gives one or two figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    Tcp1,
    Tcp8,
    Tcp200,
    Latency,
    Datagrams,
}

impl Test {
    pub(super) const ALL: [Test; 5] = [Test::Tcp1, Test::Tcp8, Test::Tcp200, Test::Latency, Test::Datagrams];

    pub(super) fn title(self) -> &'static str {
        match self {
            Test::Tcp1 => "TCP 1 flow",
            Test::Tcp8 => "TCP 8 flows",
            Test::Tcp200 => "TCP 200 flows",
            Test::Latency => "latency",
            Test::Datagrams => "64-byte UDP",
        }
    }
}

/// The servers of one path, and how to run its clients.
pub(super) struct Bench {
    endpoints: Endpoints,
    name: String,
    tool: Vec<OsString>,
    stream_s: u32,
    servers: Vec<Daemon>,
}

impl Bench {
    /// Checks that the path carries packets, starts the servers, and checks that it carries a stream: one that loses what has a partial
    /// checksum answers pings all the same.
    pub(super) fn start(
        scope: &Scope,
        name: &str,
        endpoints: Endpoints,
        tool: &[OsString],
        stream_s: u32,
    ) -> Result<Self> {
        let mut reached = false;
        // The first packets of a path may go while its tables are still being filled.
        for _ in 0..5 {
            let report = ping::run(&endpoints.client, endpoints.server_address, &ping::Options::default())?;
            reached = report.received > 0;
            if reached {
                break;
            }
        }
        if !reached {
            return Err(Error::Output { program: "ping", reason: format!("{name} carries no packets") });
        }
        let mut bench =
            Self { endpoints, name: name.to_string(), tool: tool.to_vec(), stream_s, servers: Vec::new() };
        bench.start_servers(scope)?;
        let options = stream::Options { duration_s: 1, ..stream::Options::default() };
        let streamed = stream::run(&bench.endpoints.client, bench.endpoints.server_address, &options);
        match streamed {
            Ok(report) if report.received_bytes > 0 => Ok(bench),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            streamed => {
                bench.stop()?;
                let reason = streamed.err().map_or_else(|| "no byte was received".into(), |e| e.to_string());
                let reason = format!("{name} carries no TCP stream: {reason}");
                Err(Error::Output { program: "iperf3", reason })
            }
        }
    }

    fn start_servers(&mut self, scope: &Scope) -> Result<()> {
        let Endpoints { server, server_address, .. } = &self.endpoints;
        let core = Some(SERVER_CORE);
        for number in 0..STREAM_SERVERS {
            let (name, port) = (format!("{}-iperf3-{number}", self.name), stream::PORT + number);
            self.servers.push(stream::server_on(scope, &name, server, port, core)?);
        }
        let name = format!("{}-sockperf", self.name);
        self.servers.push(latency::server(scope, &name, server, *server_address, core)?);
        Ok(())
    }

    /// Starts the servers anew: after a broken run one may still wait for its client.
    pub(super) fn restart(&mut self, scope: &Scope) -> Result<()> {
        self.stop()?;
        self.start_servers(scope)
    }

    pub(super) fn stop(&mut self) -> Result<()> {
        while let Some(mut server) = self.servers.pop() {
            server.stop()?;
        }
        Ok(())
    }

    /// Runs one test; its figures.
    pub(super) fn run(&self, test: Test) -> Result<Vec<(Metric, f64)>> {
        let Endpoints { client, server, server_address, .. } = &self.endpoints;
        match test {
            Test::Tcp1 => self.stream(1, Metric::Tcp1Flow, Metric::Cpu1Flow),
            Test::Tcp8 => self.stream(8, Metric::Tcp8Flows, Metric::Cpu8Flows),
            Test::Tcp200 => self.stream(200, Metric::Tcp200Flows, Metric::Cpu200Flows),
            Test::Latency => {
                let report = latency::run(client, *server_address, LATENCY_DURATION_S, Some(CLIENT_CORE))?;
                Ok(vec![(Metric::LatencyP50, report.p50_us), (Metric::LatencyP99, report.p99_us)])
            }
            Test::Datagrams => {
                let options = datagram::Options {
                    tool: self.tool.clone(),
                    payload_bytes: SMALL_PAYLOAD_BYTES,
                    duration_ms: DATAGRAM_DURATION_MS,
                    sender_core: Some(CLIENT_CORE),
                    receiver_core: Some(SERVER_CORE),
                };
                let report = datagram::run(client, server, *server_address, &options)?;
                Ok(vec![(Metric::Udp64bReceived, report.received.per_second() / 1e3)])
            }
        }
    }

    /// Streams of so many connections, of as many clients at once as that takes.
    fn stream(&self, flows: u32, rate: Metric, cpu: Metric) -> Result<Vec<(Metric, f64)>> {
        let clients = flows.div_ceil(stream::FLOWS_MAX);
        let options = |number: u32| stream::Options {
            port: stream::PORT + number as u16,
            flows: flows / clients,
            duration_s: self.stream_s,
            core: Some(CLIENT_CORE),
            reverse: false,
        };
        let (ends, before) = (&self.endpoints, Ticks::now()?);
        let reports = std::thread::scope(|scope| {
            let run = |number| {
                let options = options(number);
                scope.spawn(move || stream::run(&ends.client, ends.server_address, &options))
            };
            let running: Vec<_> = (0..clients).map(run).collect();
            let panicked = || Err(Error::Output { program: "iperf3", reason: "its thread panicked".into() });
            let ended = running.into_iter().map(|client| client.join().unwrap_or_else(|_| panicked()));
            ended.collect::<Result<Vec<stream::Report>>>()
        })?;
        let busy_s = Ticks::now()?.busy_s_since(&before);
        let bytes: u64 = reports.iter().map(|report| report.received_bytes).sum();
        if bytes == 0 {
            return Err(Error::Output { program: "iperf3", reason: "no byte was received".to_string() });
        }
        let bits_per_s: f64 = reports.iter().map(|report| report.received_bits_per_s).sum();
        Ok(vec![(rate, bits_per_s / 1e9), (cpu, busy_s / (bytes as f64 / 1e9))])
    }
}
