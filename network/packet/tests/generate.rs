//! Random valid frames, built by etherparse and not by us.

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6FlowLabel, Ipv6Header,
    PacketBuilder, TcpHeader, VlanId,
};
use proptest::prelude::*;

/// Everything that a generated frame is made of.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub is_v6: bool,
    pub vlan: Option<u16>,
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub ttl: u8,
    pub tos: u8,
    pub identification: u16,
    pub dont_fragment: bool,
    pub flow_label: u32,
    pub kind: Kind,
    pub payload: Vec<u8>,
}

/// The transport of a generated frame.
#[derive(Debug, Clone)]
pub enum Kind {
    Tcp {
        source: u16,
        destination: u16,
        sequence: u32,
        acknowledgement: u32,
        flags: u8,
        window: u16,
        options: Vec<u8>,
    },
    Udp {
        source: u16,
        destination: u16,
    },
    Echo {
        id: u16,
        sequence: u16,
        reply: bool,
    },
}

/// Frames with up to `payload_bytes` of payload.
pub fn recipe(payload_bytes: usize) -> impl Strategy<Value = Recipe> {
    let network = (any::<bool>(), proptest::option::of(1..4095_u16), any::<[u8; 16]>(), any::<[u8; 16]>());
    let fields = (2..=255_u8, any::<u8>(), any::<u16>(), any::<bool>(), 0..0x10_0000_u32);
    let payload = proptest::collection::vec(any::<u8>(), 0..=payload_bytes);
    (network, fields, kind(), payload).prop_map(|(network, fields, kind, payload)| {
        let (is_v6, vlan, mut source, mut destination) = network;
        // Unicast in either family, and no mapped address.
        source[0] = 0x20 | source[0] & 0x0f;
        destination[0] = 0x20 | destination[0] & 0x0f;
        let (ttl, tos, identification, dont_fragment, flow_label) = fields;
        Recipe {
            is_v6,
            vlan,
            source,
            destination,
            ttl,
            tos,
            identification,
            dont_fragment,
            flow_label,
            kind,
            payload,
        }
    })
}

fn kind() -> impl Strategy<Value = Kind> {
    let numbers = (any::<u16>(), any::<u16>(), any::<u32>(), any::<u32>(), any::<u16>());
    let options = proptest::collection::vec(any::<u8>(), 0..=10);
    let tcp = (numbers, any::<u8>(), options).prop_map(|(numbers, flags, options)| {
        let (source, destination, sequence, acknowledgement, window) = numbers;
        // Whole words; option bytes need not mean anything.
        let options = options.iter().flat_map(|&byte| [1, byte, 1, 1]).collect();
        Kind::Tcp { source, destination, sequence, acknowledgement, flags, window, options }
    });
    let udp =
        (any::<u16>(), any::<u16>()).prop_map(|(source, destination)| Kind::Udp { source, destination });
    let echo = (any::<u16>(), any::<u16>(), any::<bool>()).prop_map(|(id, sequence, reply)| Kind::Echo {
        id,
        sequence,
        reply,
    });
    prop_oneof![tcp, udp, echo]
}

fn ip_headers(recipe: &Recipe) -> IpHeaders {
    if recipe.is_v6 {
        let header = Ipv6Header {
            traffic_class: recipe.tos,
            flow_label: Ipv6FlowLabel::try_new(recipe.flow_label).unwrap(),
            hop_limit: recipe.ttl,
            source: recipe.source,
            destination: recipe.destination,
            next_header: IpNumber::TCP,
            ..Ipv6Header::default()
        };
        return IpHeaders::Ipv6(header, Ipv6Extensions::default());
    }
    let four = |address: &[u8; 16]| [address[0], address[1], address[2], address[3]];
    let mut header =
        Ipv4Header::new(0, recipe.ttl, IpNumber::TCP, four(&recipe.source), four(&recipe.destination))
            .unwrap();
    header.dscp = (recipe.tos >> 2).try_into().unwrap();
    header.ecn = (recipe.tos & 3).try_into().unwrap();
    header.identification = recipe.identification;
    header.dont_fragment = recipe.dont_fragment;
    header.fragment_offset = IpFragOffset::ZERO;
    IpHeaders::Ipv4(header, Ipv4Extensions::default())
}

/// The frame of a recipe, with all checksums as etherparse computes them.
pub fn build(recipe: &Recipe) -> Vec<u8> {
    let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let step = match recipe.vlan {
        Some(vlan) => link.single_vlan(VlanId::try_new(vlan).unwrap()).ip(ip_headers(recipe)),
        None => link.ip(ip_headers(recipe)),
    };
    let mut frame = Vec::new();
    match &recipe.kind {
        Kind::Tcp { source, destination, sequence, acknowledgement, flags, window, options } => {
            let mut header = TcpHeader::new(*source, *destination, *sequence, *window);
            header.acknowledgment_number = *acknowledgement;
            header.set_options_raw(options).unwrap();
            let bit = |position: u8| flags >> position & 1 == 1;
            (header.fin, header.syn, header.rst, header.psh) = (bit(0), bit(1), bit(2), bit(3));
            (header.ack, header.urg, header.ece, header.cwr) = (bit(4), bit(5), bit(6), bit(7));
            step.tcp_header(header).write(&mut frame, &recipe.payload).unwrap();
        }
        Kind::Udp { source, destination } => {
            step.udp(*source, *destination).write(&mut frame, &recipe.payload).unwrap();
        }
        Kind::Echo { id, sequence, reply } => {
            let step = match (recipe.is_v6, reply) {
                (false, false) => return write(step.icmpv4_echo_request(*id, *sequence), &recipe.payload),
                (false, true) => return write(step.icmpv4_echo_reply(*id, *sequence), &recipe.payload),
                (true, false) => step.icmpv6_echo_request(*id, *sequence),
                (true, true) => step.icmpv6_echo_reply(*id, *sequence),
            };
            step.write(&mut frame, &recipe.payload).unwrap();
        }
    }
    frame
}

fn write(step: etherparse::PacketBuilderStep<etherparse::Icmpv4Header>, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    step.write(&mut frame, payload).unwrap();
    frame
}
