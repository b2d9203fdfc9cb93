//! `trace` and `capture`.

use super::output::{self};
use super::written::{Force, Readers};
use super::{Failure, Output};
use crate::exit::Exit;
use clap::Args;
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weir_api::client::Client;
use weir_api::types::{CaptureRequest, CapturedFrame, TraceRequest, TraceResponse};
use weir_model::join::to_hex;

/// Limit of a pcap file on its frames, bytes: what tcpdump writes.
const SNAP_BYTES_MAX: u32 = 262_144;

#[derive(Debug, Args)]
pub(super) struct Trace {
    /// The endpoint that sends: NETWORK/NAME
    from: String,
    /// Destination: an address, or the name of an endpoint of the same network
    #[arg(required_unless_present = "pcap")]
    to: Option<String>,
    /// tcp, udp or icmp; without it, tcp when a port is given, and icmp when none is
    #[arg(short, long, value_parser = ["tcp", "udp", "icmp"])]
    protocol: Option<String>,
    /// Destination port, which tcp and udp need
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Source port
    #[arg(long, default_value_t = 40000)]
    source_port: u16,
    /// Take a real packet instead: a frame of this pcap file
    #[arg(long, conflicts_with = "to", value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Which frame of the file, from 1
    #[arg(long, default_value_t = 1, requires = "pcap")]
    frame: usize,
    /// Only the verdict, in one line, and by which rule
    #[arg(short, long)]
    short: bool,
    #[command(flatten)]
    output: Output,
}

impl Trace {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let Some((network, endpoint)) = self.from.split_once('/') else {
            return Err(Failure::Input(format!("'{}' is no endpoint: write NETWORK/NAME", self.from)));
        };
        let (protocol, port) = protocol_and_port(self.protocol.as_deref(), self.port, self.pcap.is_some())?;
        let frame =
            self.pcap.as_ref().map(|path| read_frame(path, self.frame)).transpose()?.unwrap_or_default();
        let request = TraceRequest {
            network: network.to_string(),
            endpoint: endpoint.to_string(),
            to: self.to.unwrap_or_default(),
            protocol,
            source_port: self.source_port,
            port,
            frame,
        };
        let traced = client.trace(&request)?;
        output::print(self.output.output, &traced, || {
            if self.short { say!("{}", in_short(&traced)) } else { show(&traced) }
        })?;
        Ok(if traced.delivered { ExitCode::SUCCESS } else { Exit::No.into() })
    }
}

/// What is traced: a packet of TCP or UDP has a destination port, and one of ICMP has none.
pub(super) fn protocol_and_port(
    protocol: Option<&str>,
    port: Option<u16>,
    is_frame: bool,
) -> Result<(String, u16), Failure> {
    let protocol = protocol.unwrap_or(if port.is_some() { "tcp" } else { "icmp" });
    match (protocol, port) {
        ("icmp", Some(port)) => {
            Err(Failure::Input(format!("--port {port}: icmp has no ports; say -p tcp or -p udp")))
        }
        ("tcp" | "udp", None) if !is_frame => {
            Err(Failure::Input(format!("-p {protocol} needs the destination port: --port 1 to 65535")))
        }
        (protocol, port) => Ok((protocol.to_owned(), port.unwrap_or(0))),
    }
}

/// The verdict, and the last rule that had a say.
pub(super) fn in_short(traced: &TraceResponse) -> String {
    let rule = traced.steps.iter().rev().find_map(|step| step.rule.as_ref());
    let by = rule.map(|rule| format!(" (by {rule})")).unwrap_or_default();
    format!("{}{by}", output::ansi(&traced.verdict, if traced.delivered { 32 } else { 31 }))
}

fn show(traced: &TraceResponse) {
    let mut switch = "";
    for step in &traced.steps {
        if step.switch != switch {
            switch = &step.switch;
            say!("{}", output::ansi(&format!("at {switch}"), 1));
        }
        say!("  {:<18} {}", step.stage, step.detail);
        if let Some(rule) = &step.rule {
            say!("  {:<18}   by {rule}", "");
        }
        if let (Some(entry), Some(version)) = (&step.entry, step.version) {
            let signer = step.signed_by.as_deref().unwrap_or("nobody");
            say!("  {:<18}   {entry} v{version}, signed by {signer}", "");
        }
    }
    say!("{}", output::ansi(&traced.verdict, if traced.delivered { 32 } else { 31 }));
}

fn read_frame(path: &PathBuf, number: usize) -> Result<String, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::Input(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(Failure::io(path.display().to_string()))?;
    let mut reader = PcapReader::new(file).map_err(|error| wrong(&error))?;
    let kind = reader.header().datalink;
    if kind != DataLink::ETHERNET {
        let text = format!(
            "its frames are of the kind {kind:?}, and a trace takes Ethernet frames: capture on one device, not on 'any'"
        );
        return Err(wrong(&text));
    }
    let mut seen = 0;
    // Frames that were cut are told by a reader that checks as faults of the file.
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet.map_err(|error| wrong(&error))?;
        seen += 1;
        if seen == number {
            return Ok(to_hex(&packet.data));
        }
    }
    Err(wrong(&format!("it has {seen} frames, not {number}")))
}

#[derive(Debug, Args)]
pub(super) struct Capture {
    /// Name of the host or gateway
    switch: String,
    /// The port: NETWORK/NAME of its endpoint; without it, the underlay
    #[arg(long)]
    port: Option<String>,
    /// Where to write the pcap; '-' is the standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Stop after so many frames
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    frames: u32,
    /// Stop after so many seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Bytes kept of each frame
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(14..=65_535))]
    snap_bytes: u32,
    #[command(flatten)]
    force: Force,
}

impl Capture {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let request = CaptureRequest {
            actuator: self.switch,
            port: self.port,
            frames: self.frames,
            duration_ms: self.seconds * 1000,
            snap_bytes: self.snap_bytes,
        };
        let name = self.write.display().to_string();
        let count = self.force.write(&self.write, Readers::Anybody, |out| {
            let frames = client.capture(&request)?;
            pcap(out, &frames, &name).map(|()| frames.len())
        })?;
        tell!("{count} frames");
        Ok(ExitCode::SUCCESS)
    }
}

fn pcap(out: &mut dyn Write, frames: &[CapturedFrame], name: &str) -> Result<(), Failure> {
    let wrong = |error: pcap_file::PcapError| match error {
        pcap_file::PcapError::IoError(error) => Failure::io(name)(error),
        error => Failure::Refused(format!("{name}: {error}")),
    };
    // The largest frame there can be, kept or not: readers refuse a longer one.
    let header =
        PcapHeader { datalink: DataLink::ETHERNET, snaplen: SNAP_BYTES_MAX, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(out, header).map_err(wrong)?;
    for frame in frames {
        let data =
            bytes(&frame.bytes).ok_or_else(|| Failure::Refused("the answer holds no frame".to_string()))?;
        let packet = PcapPacket {
            timestamp: Duration::from_nanos(frame.time_ns),
            orig_len: frame.length,
            data: Cow::Owned(data),
        };
        writer.write_packet(&packet).map_err(wrong)?;
    }
    Ok(())
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    if !hex.len().is_multiple_of(2) {
        return None;
    }
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()).collect()
}
