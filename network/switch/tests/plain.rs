//! A mind without policy: it forwards by port and location entries, and answers ARP.
use std::collections::HashMap;
use std::net::IpAddr;
use weir_model::entry::{LocationEntry, PortEntry, Vni};
use weir_model::local::{ConnectionStatus, TraceFrom, TraceReport};
use weir_model::resource::Encapsulation;
use weir_model::update::Refusal;
use weir_model::{Change, Entry, Key, MacAddr, Update};
use weir_packet::build::arp_reply;
use weir_packet::{FlowKey, parse};
use weir_switch::config::SwitchConfig;
use weir_switch::flow::*;
use weir_switch::slow::mind::Mind;
use weir_trust::gate::Gate;
use weir_trust::token::TokenKey;

pub struct PlainMind {
    underlay: IpAddr,
    tokens: TokenKey,
    ports: Vec<Key>,
    entries: HashMap<Key, PortEntry>,
    locations: HashMap<(u32, IpAddr), LocationEntry>,
    formats: HashMap<u32, (Encapsulation, u16)>,
}

impl PlainMind {
    pub fn new(config: &SwitchConfig, tokens: TokenKey) -> PlainMind {
        PlainMind {
            underlay: config.underlay,
            tokens,
            ports: vec![],
            entries: HashMap::new(),
            locations: HashMap::new(),
            formats: HashMap::new(),
        }
    }

    fn vni(&self, ingress: &Ingress) -> Option<u32> {
        match ingress {
            Ingress::Port(p) => self.ports.get(*p as usize).and_then(Key::vni).map(|v| v.0),
            Ingress::Underlay { vni, .. } => Some(*vni),
            Ingress::External => None,
        }
    }

    fn local(&self, vni: u32, ip: IpAddr) -> Option<(PortIndex, MacAddr)> {
        self.ports.iter().enumerate().find_map(|(i, key)| {
            let entry = self.entries.get(key)?;
            (key.vni() == Some(Vni(vni)) && entry.addresses.contains(&ip)).then_some((i as u16, entry.mac))
        })
    }

    fn hop(&self, vni: u32, ip: IpAddr) -> Option<(Hop, MacAddr)> {
        if let Some((port, mac)) = self.local(vni, ip) {
            return Some((Hop::Port(port), mac));
        }
        let location = self.locations.get(&(vni, ip))?;
        let (format, _) = *self.formats.get(&vni)?;
        let token = self.tokens.token(vni, self.underlay);
        let hop = Hop::Underlay { receiver: location.underlay, vni, format, token, by_gateway: false };
        Some((hop, location.mac))
    }

    fn action(&self, hop: Hop, mtu: u16) -> Action {
        Action {
            hop,
            ethernet: None,
            nat: None,
            routed: false,
            mtu,
            mss_max: 0,
            counter: 0,
            connection: NO_CONNECTION,
            idle_ms: 10_000,
        }
    }
}

const NOTHING: Resolution = Resolution { install: Vec::new(), outcome: Outcome::Drop };

impl Resolver for PlainMind {
    fn resolve(
        &mut self,
        _now_ms: u64,
        ingress: &Ingress,
        key: &FlowKey,
        reason: MissReason,
        frame: &[u8],
    ) -> Resolution {
        let Some(vni) = self.vni(ingress) else { return NOTHING };
        let Ok(parsed) = parse(frame) else { return NOTHING };
        if parsed.network == weir_packet::Network::Arp {
            let Ok(arp) = weir_packet::headers::parse_arp(&frame[parsed.l3_offset..]) else { return NOTHING };
            let Some((_, mac)) = self.hop(vni, IpAddr::V4(arp.target_ip.into())) else { return NOTHING };
            let mut out = vec![0; 64];
            let Ok(n) = arp_reply(&mut out, &parsed, &arp, mac.0) else { return NOTHING };
            out.truncate(n);
            return Resolution { install: vec![], outcome: Outcome::Answer(out) };
        }
        if reason != MissReason::NoFlow {
            return NOTHING;
        }
        if let Ingress::Underlay { sender, token, format: Encapsulation::Geneve, .. } = ingress
            && !token.is_some_and(|t| self.tokens.check(vni, *sender, t))
        {
            return NOTHING;
        }
        let mtu = self.formats.get(&vni).map_or(1500, |f| f.1);
        let Some((hop, _)) = self.hop(vni, key.destination.into()) else { return NOTHING };
        Resolution { install: vec![(*ingress, *key, self.action(hop, mtu))], outcome: Outcome::Reinject }
    }

    fn apply(&mut self, _now_ms: u64, update: &Update) -> Result<Effects, Refusal> {
        let mut effects = Effects { invalidate: vec![Invalidate::All], ports: vec![] };
        match (&update.key, &update.change) {
            (Key::Port { .. }, Change::Put(Entry::Port(entry))) => {
                let index = self.ports.iter().position(|k| *k == update.key).unwrap_or_else(|| {
                    self.ports.push(update.key.clone());
                    self.ports.len() - 1
                });
                self.entries.insert(update.key.clone(), entry.clone());
                effects.ports.push(PortEffect::Set {
                    port: index as u16,
                    netns: entry.netns.clone(),
                    device: entry.device.clone(),
                    up: true,
                    reason: String::new(),
                    mtu: 1500,
                });
            }
            (Key::Location { vni, address }, Change::Put(Entry::Location(entry))) => {
                self.locations.insert((vni.0, *address), entry.clone());
            }
            (Key::Location { vni, address }, Change::Delete) => {
                self.locations.remove(&(vni.0, *address));
            }
            (Key::Network { vni }, Change::Put(Entry::Network(entry))) => {
                self.formats.insert(vni.0, (entry.encapsulation, entry.mtu));
            }
            _ => {}
        }
        Ok(effects)
    }

    fn used(&mut self, _: u64, _: u32, _: FlowUse) {}

    fn tick(&mut self, _: u64) -> Vec<Invalidate> {
        vec![]
    }
}

impl Mind for PlainMind {
    fn port_key(&self, port: PortIndex) -> Option<Key> {
        self.ports.get(port as usize).cloned()
    }
    fn counters(&self) -> Vec<(CounterIndex, String, u64)> {
        vec![(0, "forwarded".into(), 0)]
    }
    fn connections(&self, _: u64, _: usize) -> Vec<ConnectionStatus> {
        vec![]
    }
    fn trace(&mut self, _: u64, _: &TraceFrom, _: &[u8], _: &Gate) -> Result<TraceReport, String> {
        Err("no trace".into())
    }
    fn take_changes(&mut self) -> Vec<Vec<u8>> {
        vec![]
    }
    fn snapshot(&self) -> Vec<Vec<u8>> {
        vec![]
    }
    fn restore(&mut self, _: u64, _: &[Vec<u8>]) -> usize {
        0
    }
}
