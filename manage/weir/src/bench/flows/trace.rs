//! Packet-ins from a recorded trace (`weir capture -w FILE`, or any pcap of Ethernet frames): what a switch that begins
//! without rules would report. That is the first frame of each flow and each frame of ARP; what follows meets a rule.
//!
//! Each Ethernet source stands behind a port of its own, in the order in which they come. Time is that of the file.

use super::{Controller, Flows, MEMBERS, mac, median, wrong};
use crate::failure::Failure;
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Instant;
use weir_apps::flows::balancer::{self, Member, Vip};
use weir_apps::flows::{Form, PacketIn, devices, learning};
use weir_model::MacAddr;
use weir_packet::headers::{ARP_REQUEST, parse_arp};
use weir_packet::{FlowKey, Network};

/// Most frames that are read of a file.
const FRAMES_MAX: usize = 10_000_000;
/// Most packet-ins that are replayed.
const PACKETS_MAX: usize = 100_000;
/// Most destinations that stand for virtual addresses.
const VIPS_MAX: usize = 256;

/// What a trace has for a switch without rules.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Trace {
    /// Packets without a rule, in their order.
    pub packets: Vec<Heard>,
    /// Frames of the file.
    pub frames: usize,
    /// Frames that are no Ethernet frame with a unicast source.
    pub unreadable: usize,
}

/// A packet without a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    pub packet: PacketIn,
    /// Whether it asks by ARP for the second of its addresses.
    pub asks: bool,
}

impl Trace {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Trace, Failure> {
        let said = |error: &dyn std::fmt::Display| Failure::Input(format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(Failure::io(path.display().to_string()))?;
        let mut reader = PcapReader::new(std::io::BufReader::new(file)).map_err(|error| said(&error))?;
        if reader.header().datalink != DataLink::ETHERNET {
            return Err(said(&format!("its frames are {:?}, Ethernet is wanted", reader.header().datalink)));
        }
        let mut seen = Seen::default();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.map_err(|error| said(&error))?;
            seen.frame(u64::try_from(packet.timestamp.as_millis()).unwrap_or(u64::MAX), &packet.data);
            if seen.trace.frames > FRAMES_MAX || seen.trace.packets.len() > PACKETS_MAX {
                return Err(said(&format!(
                    "it has more than {FRAMES_MAX} frames or {PACKETS_MAX} flows: give a shorter trace"
                )));
            }
        }
        Ok(seen.trace)
    }
}

/// What of a trace was seen so far.
#[derive(Default)]
struct Seen {
    ports: HashMap<MacAddr, u32>,
    flows: HashSet<FlowKey>,
    trace: Trace,
}

impl Seen {
    fn frame(&mut self, now_ms: u64, frame: &[u8]) {
        self.trace.frames += 1;
        let parsed = weir_packet::parse(frame).ok();
        let Some(parsed) = parsed.filter(|parsed| MacAddr(parsed.source_mac).is_unicast()) else {
            self.trace.unreadable += 1;
            return;
        };
        let (mut addresses, mut asks) = (None, false);
        match parsed.network {
            Network::Arp => {
                let Ok(arp) = parse_arp(&frame[parsed.l3_offset..]) else {
                    self.trace.unreadable += 1;
                    return;
                };
                addresses = Some((Ipv4Addr::from(arp.sender_ip), Ipv4Addr::from(arp.target_ip)));
                asks = arp.operation == ARP_REQUEST;
            }
            Network::Other => {}
            _ => {
                let key = FlowKey::new(0, &parsed);
                if !self.flows.insert(key) {
                    return;
                }
                if let (IpAddr::V4(from), IpAddr::V4(to)) = (key.source.into(), key.destination.into()) {
                    addresses = Some((from, to));
                }
            }
        }
        let (source, target) = (MacAddr(parsed.source_mac), MacAddr(parsed.destination_mac));
        let next = self.ports.len() as u32;
        let port = *self.ports.entry(source).or_insert(next);
        let packet = PacketIn { switch: 1, port, source, target, addresses, now_ms };
        self.trace.packets.push(Heard { packet, asks });
    }
}

/// What the apps decided on a packet, as text: what all forms must have in common.
type Decision = String;

impl Flows {
    /// Replays a trace in each form, forms taking turns, one packet after the other as a switch would hand them over.
    pub(super) async fn replay(&self, data: &Controller, trace: &Trace) -> Result<(), Failure> {
        say!(
            "{} frames, {} packets without a rule, {} unreadable",
            trace.frames,
            trace.packets.len(),
            trace.unreadable
        );
        if trace.packets.is_empty() {
            return Err(wrong("the trace has no packet that an app could decide on"));
        }
        let mut measured: Vec<Vec<(f64, f64)>> = vec![Vec::new(); Form::ALL.len()];
        for round in 0..self.rounds {
            let mut first: Option<Vec<Decision>> = None;
            for (at, form) in Form::ALL.into_iter().enumerate() {
                let run = round * Form::ALL.len() as u32 + at as u32;
                let (decisions, figures) = replay_once(data, form, run, trace).await?;
                measured[at].push(figures);
                let wanted = first.get_or_insert_with(|| decisions.clone());
                if let Some(number) =
                    (0..decisions.len()).find(|number| decisions[*number] != wanted[*number])
                {
                    return Err(wrong(format!(
                        "form {} decided on packet {number} '{}', and form {} '{}'",
                        form.word(),
                        decisions[number],
                        Form::ALL[0].word(),
                        wanted[number]
                    )));
                }
            }
        }
        say!("the same decisions in every form");
        let of = |at: usize, part: fn(&(f64, f64)) -> f64| median(measured[at].iter().map(part));
        let (plain, plain_p90) = (of(0, |one| one.0), of(0, |one| one.1));
        for (at, form) in Form::ALL.iter().enumerate() {
            let (word, flows, p90) = (form.word(), of(at, |one| one.0), of(at, |one| one.1));
            say!(
                "RESULT flows trace-{word}-throughput weir={flows:.0}/s init={plain:.0}/s ratio={:.2}",
                flows / plain
            );
            say!(
                "RESULT flows trace-{word}-p90 weir={p90:.2}ms init={plain_p90:.2}ms ratio={:.2}",
                p90 / plain_p90
            );
        }
        Ok(())
    }
}

/// Each run has a switch, devices and virtual addresses of its own, so that it begins as the trace did.
fn of_run(run: u32, packet: &PacketIn) -> PacketIn {
    // Bits of the vendor's part that no address of a trace needs to keep.
    let own = |MacAddr(mut mac): MacAddr| {
        if MacAddr(mac).is_unicast() {
            let [high, low] = ((run + 1) as u16).to_be_bytes();
            (mac[0], mac[1], mac[2]) = (mac[0] | 2, mac[1] ^ high, mac[2] ^ low);
        }
        MacAddr(mac)
    };
    PacketIn {
        switch: u64::from(run) + 100,
        source: own(packet.source),
        target: own(packet.target),
        ..packet.clone()
    }
}

fn vip_of(run: u32, number: usize, address: Ipv4Addr) -> Vip {
    let id = 1_000_000 + u64::from(run) * VIPS_MAX as u64 + number as u64;
    let name = format!("of-trace-{address}");
    Vip { id, name, address, mac: mac(0x6000_0000 | number as u32), port: 443, pool: id }
}

async fn replay_once(
    data: &Controller,
    form: Form,
    run: u32,
    trace: &Trace,
) -> Result<(Vec<Decision>, (f64, f64)), Failure> {
    let destinations = trace.packets.iter().filter_map(|heard| Some(heard.packet.addresses?.1));
    let vips: BTreeSet<Ipv4Addr> = destinations.take(PACKETS_MAX).collect();
    for (number, address) in vips.into_iter().take(VIPS_MAX).enumerate() {
        let member = |at: u64| Member {
            id: (number as u64) * MEMBERS + at + 10_000_000,
            name: format!("server-{number}-{at}"),
            address: Ipv4Addr::from(0x0C00_0000 | (number as u32) << 8 | at as u32),
            mac: mac(0x7000_0000 | (number as u32) << 8 | at as u32),
            port: 8443,
        };
        let members: Vec<Member> = (0..MEMBERS).map(member).collect();
        balancer::configure(data, &vip_of(run, number, address), &members).await.map_err(wrong)?;
    }
    let (mut decisions, mut taken_us) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    for heard in &trace.packets {
        let packet = of_run(run, &heard.packet);
        let from = Instant::now();
        // A cache that began with the run, as that of a controller which has just got the switch.
        let forward = learning::forward(data, form, 0, &packet).await.map_err(wrong)?;
        let seen = devices::seen(data, form, 0, &packet).await.map_err(wrong)?;
        let server = match packet.addresses {
            Some((_, to)) if heard.asks => {
                format!("{:?}", balancer::resolve(data, form, 0, to).await.map_err(wrong)?)
            }
            Some((_, to)) => format!("{:?}", balancer::choose(data, form, 0, to).await.map_err(wrong)?),
            None => String::new(),
        };
        taken_us.push(from.elapsed().as_micros() as u64);
        // The paper's order: a procedure that reads both devices sees the target before the source is noted.
        let target = seen.target.is_some() && packet.source != packet.target;
        decisions.push(format!("{forward:?}, new {}, target known {target}, server {server}", seen.new));
    }
    let elapsed_s = begun.elapsed().as_secs_f64();
    taken_us.sort_unstable();
    let p90 = taken_us.get(taken_us.len() * 9 / 10).map_or(f64::NAN, |us| *us as f64 / 1_000.0);
    Ok((decisions, (trace.packets.len() as f64 / elapsed_s, p90)))
}

#[cfg(test)]
mod tests;
