//! Packet layouts: every list of TCP and IPv4 options that fits, in frames that end where their last header ends, read beside a
//! parser that is written here, byte by byte, and knows nothing of the crate.

use numbers::Numbers;
use weir_packet::build::{IcmpError, echo_reply, icmp_error, tcp_reset};
use weir_packet::coalesce::{Checksums, CoalesceConfig, Coalescer, Output, Place};
use weir_packet::headers::parse_neighbor;
use weir_packet::rewrite::{
    ChecksumState, Endpoint, Rewrite, clamp_mss, decrement_ttl, parse_embedded, rewrite, rewrite_embedded,
    set_ecn, set_macs,
};
use weir_packet::virtio::VirtioNetHeader;
use weir_packet::{FlowKey, HashSeed, IpAddress, PacketError, Parsed, Plain, checksum, parse};

/// Options' area of a TCP header at most, bytes.
const OPTIONS_MAX: usize = 40;
/// Areas up to here are tried with every list there is; longer ones with lists drawn at random.
const ALL_UP_TO: usize = 8;
/// Lists drawn for each longer area.
const DRAWN: usize = 600;
const SYN: u8 = 2;
const CLAMP: u16 = 1_360;

/// A small generator of numbers, so that the same lists are drawn every time.
mod numbers {
    pub struct Numbers(pub u64);

    impl Numbers {
        pub fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % end as u64) as usize
        }
    }
}

/// Options to make lists of, well-formed and not: what is longer than the room that is left is cut there.
fn options() -> Vec<Vec<u8>> {
    let mut timestamps = vec![8, 10];
    timestamps.extend([1, 2, 3, 4, 5, 6, 7, 8]);
    let mut selective = vec![5, 18];
    selective.extend([9; 16]);
    vec![
        vec![1],
        vec![0],
        vec![2, 4, 0x05, 0xb4],
        vec![2, 4, 0x01, 0x00],
        vec![3, 3, 7],
        vec![4, 2],
        timestamps,
        selective,
        vec![254, 5, 1, 2, 3],
        // Malformed: no length, lengths that are too short, an MSS of another length.
        vec![7],
        vec![9, 0],
        vec![9, 1],
        vec![2, 3, 0x05],
        vec![9, 41],
    ]
}

/// Calls `each` with every list of options of exactly `room` bytes.
fn every_list(room: usize, made: &mut Vec<u8>, each: &mut impl FnMut(&[u8])) {
    if made.len() == room {
        return each(made);
    }
    for option in options() {
        let before = made.len();
        made.extend(option.iter().take(room - before));
        every_list(room, made, each);
        made.truncate(before);
    }
}

fn drawn_list(room: usize, numbers: &mut Numbers) -> Vec<u8> {
    let (all, mut made) = (options(), Vec::new());
    while made.len() < room {
        // Rarely one that ends the walk.
        let choice = if numbers.below(8) == 0 { numbers.below(all.len()) } else { 2 + numbers.below(7) };
        made.extend(&all[choice]);
    }
    made.truncate(room);
    made
}

/// Where the value of the MSS option is in an area of options, by RFC 9293 §3.1, read byte by byte.
fn naive_mss(area: &[u8]) -> Option<usize> {
    let mut rest: Vec<(usize, u8)> = area.iter().copied().enumerate().collect();
    rest.reverse();
    while let Some((_, kind)) = rest.pop() {
        match kind {
            0 => return None,
            1 => continue,
            _ => {}
        }
        let (_, length) = rest.pop()?;
        let body = usize::from(length).checked_sub(2)?;
        if body > rest.len() {
            return None;
        }
        let first = rest.last().map(|(at, _)| *at);
        if kind == 2 && body == 2 {
            return first;
        }
        rest.truncate(rest.len() - body);
    }
    None
}

/// The one's complement sum of RFC 1071, two bytes at a time.
fn naive_sum(bytes: &[u8]) -> u32 {
    let mut sum = bytes.chunks(2).fold(0_u32, |sum, pair| {
        sum + u32::from(pair[0]) * 256 + pair.get(1).map_or(0, |low| u32::from(*low))
    });
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// The TCP checksum of a frame whose IP header begins at 14 and TCP header at `l4`.
fn naive_tcp_checksum(frame: &[u8], l4: usize) -> u16 {
    let is_v6 = frame[14] >> 4 == 6;
    let addresses = if is_v6 { &frame[22..54] } else { &frame[26..34] };
    let mut segment = frame[l4..].to_vec();
    segment[16..18].fill(0);
    let length = (segment.len() as u32).to_be_bytes();
    let all = [addresses, &length, &[0, 0, 0, 6], &segment].concat();
    !(naive_sum(&all) as u16)
}

/// A SYN with these areas of options, which ends with them but for `payload`; and where TCP begins.
fn syn(is_v6: bool, ip_options: &[u8], tcp_options: &[u8], payload: &[u8]) -> (Vec<u8>, usize) {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let tcp_bytes = 20 + tcp_options.len() + payload.len();
    if is_v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((tcp_bytes as u16).to_be_bytes());
        frame.extend([6, 64]);
        frame.extend([0xfd; 16]);
        frame.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    } else {
        frame.extend([8, 0, 0x45 + (ip_options.len() / 4) as u8, 0]);
        frame.extend(((20 + ip_options.len() + tcp_bytes) as u16).to_be_bytes());
        frame.extend([0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 5, 10, 0, 0, 9]);
        frame.extend(ip_options);
        let sum = !(naive_sum(&frame[14..]) as u16);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    let l4 = frame.len();
    frame.extend([0x82, 0x35, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0]);
    frame.extend([((20 + tcp_options.len()) / 4 * 16) as u8, SYN, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(tcp_options);
    frame.extend(payload);
    let sum = naive_tcp_checksum(&frame, l4);
    frame[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
    (frame, l4)
}

/// What a clamped frame is to be, worked out here.
fn expected(frame: &[u8], l4: usize, area: usize) -> Option<Vec<u8>> {
    let at = l4 + 20 + naive_mss(&frame[l4 + 20..l4 + 20 + area])?;
    if u16::from_be_bytes([frame[at], frame[at + 1]]) <= CLAMP {
        return None;
    }
    let mut lowered = frame.to_vec();
    lowered[at..at + 2].copy_from_slice(&CLAMP.to_be_bytes());
    let sum = naive_tcp_checksum(&lowered, l4);
    lowered[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
    Some(lowered)
}

fn check_clamp(is_v6: bool, area: &[u8], payload: &[u8]) {
    let (frame, l4) = syn(is_v6, &[], area, payload);
    let parsed = parse(&frame).unwrap();
    assert_eq!((parsed.l4_offset, parsed.payload_offset), (l4, frame.len() - payload.len()), "{area:?}");
    let (mut clamped, wanted) = (frame.clone(), expected(&frame, l4, area.len()));
    let changed = clamp_mss(&mut clamped, &parsed, CLAMP, ChecksumState::Full);
    assert_eq!(changed, Ok(wanted.is_some()), "options {area:?}");
    assert_eq!(clamped, wanted.clone().unwrap_or_else(|| frame.clone()), "options {area:?}");
    // Where the checksum is left to the device it covers the pseudo header alone.
    let mut partial = frame.clone();
    assert_eq!(clamp_mss(&mut partial, &parsed, CLAMP, ChecksumState::Partial), Ok(wanted.is_some()));
    assert_eq!(partial[l4 + 16..l4 + 18], frame[l4 + 16..l4 + 18]);
    use_all(&frame);
}

#[test]
fn packet_layouts_of_tcp_options_at_the_end_of_the_frame() {
    let mut numbers = Numbers(0x5eed_1234_9876_4321);
    for room in (0..=OPTIONS_MAX).step_by(4) {
        for is_v6 in [false, true] {
            if room <= ALL_UP_TO {
                every_list(room, &mut Vec::new(), &mut |area| check_clamp(is_v6, area, &[]));
                continue;
            }
            for count in 0..DRAWN {
                let area = drawn_list(room, &mut numbers);
                check_clamp(is_v6, &area, &[7; 3][..count % 4 % 3]);
            }
        }
    }
}

#[test]
fn packet_layouts_of_ip_options_at_the_end_of_the_frame() {
    let mut numbers = Numbers(0x0bad_cafe_5eed_0001);
    for room in (4..=OPTIONS_MAX).step_by(4) {
        for _ in 0..300 {
            let area = drawn_list(room, &mut numbers);
            let (frame, l4) = syn(false, &area, &[2, 4, 0x05, 0xb4], &[]);
            let well_formed = walks(&area);
            let parsed = parse(&frame);
            assert_eq!(parsed.is_ok(), well_formed, "{area:?}");
            if let Ok(parsed) = parsed {
                let mut clamped = frame.clone();
                assert_eq!(clamp_mss(&mut clamped, &parsed, CLAMP, ChecksumState::Full), Ok(true));
                assert_eq!(Some(clamped), expected(&frame, l4, 4));
            }
            use_all(&frame);
        }
    }
}

/// Whether IPv4's options all end in their area.
fn walks(area: &[u8]) -> bool {
    let mut rest = area.to_vec();
    rest.reverse();
    while let Some(kind) = rest.pop() {
        match kind {
            0 => return true,
            1 => {}
            _ => {
                let Some(body) = rest.pop().and_then(|length| usize::from(length).checked_sub(2)) else {
                    return false;
                };
                if body > rest.len() {
                    return false;
                }
                rest.truncate(rest.len() - body);
            }
        }
    }
    true
}

/// Gives a frame, its beginnings, and its beginnings under the description of the whole to everything that reads or
/// rewrites frames. None may panic; a frame that is too short for its description is refused.
fn use_all(frame: &[u8]) {
    let whole = parse(frame);
    // Near the end every length, before that some: what is cut inside is the same again and again.
    let cuts = (0..frame.len()).filter(|cut| frame.len() - cut <= 6 || cut % 17 == 0);
    for cut in cuts {
        let short = &frame[..cut];
        if let Ok(parsed) = parse(short) {
            use_one(short, parsed);
        }
        if let Ok(parsed) = whole
            && cut < parsed.end
        {
            let mut short = short.to_vec();
            let refused = clamp_mss(&mut short, &parsed, CLAMP, ChecksumState::Full);
            assert_eq!(refused, Err(PacketError::FrameMismatch));
            use_one(&short, parsed);
        }
    }
    if let Ok(parsed) = whole {
        use_one(frame, parsed);
    }
}

fn use_one(frame: &[u8], parsed: Parsed) {
    let (mut changed, mut out) = (frame.to_vec(), [0; 2048]);
    let address = if parsed.is_v6() { IpAddress::v6([0xfd; 16]) } else { IpAddress::v4([10, 9, 8, 7]) };
    let end = Some(Endpoint { address, port: Some(9) });
    let change = Rewrite { source: end, destination: end };
    for state in [ChecksumState::Full, ChecksumState::Partial] {
        let mut own = parsed;
        let _ = clamp_mss(&mut changed, &own, CLAMP, state);
        let _ = decrement_ttl(&mut changed, &mut own);
        let _ = set_ecn(&mut changed, &mut own, 3);
        let _ = set_macs(&mut changed, &mut own, [4; 6], [6; 6]);
        let _ = rewrite(&mut changed, &mut own, &change, state);
        if let Ok(mut embedded) = parse_embedded(&changed, &own) {
            let _ = rewrite_embedded(&mut changed, &own, &mut embedded, &change);
        }
    }
    let _ = checksum::verify(frame, &parsed);
    let _ = checksum::fill_network(&mut changed, &parsed);
    let _ = checksum::fill_transport(&mut changed, &parsed);
    let _ = checksum::fill_partial(&mut changed, &parsed);
    let _ = parse_neighbor(frame, &parsed);
    let _ = icmp_error(&mut out, frame, &parsed, [2; 6], parsed.destination, IcmpError::HostUnreachable);
    let _ = echo_reply(&mut out, frame, &parsed, [2; 6]);
    let _ = tcp_reset(&mut out, frame, &parsed, [2; 6]);
    let _ = VirtioNetHeader::default().validate(frame.len(), &parsed);
    let _ = Plain::new(0, frame);
    let _ = Plain::default().renew(0, frame, &HashSeed::new([1, 2]));
    let _ = FlowKey::new(1, &parsed);
    if frame.len() >= parsed.end {
        let mut coalescer = Coalescer::new(CoalesceConfig { join_udp: true, ..CoalesceConfig::default() });
        let mut sink = |_: Output<'_>| {};
        let place = Place { port: 0, buffer: 0, start: 0, checksums: Checksums::Verified };
        coalescer.push(place, frame, &parsed, &mut sink);
        coalescer.push(place, frame, &parsed, &mut sink);
        coalescer.flush(&mut sink);
    }
}

/// The SYN that any stack sends without SACK, timestamps and window scaling.
#[test]
fn an_mss_that_ends_the_frame_is_lowered() {
    let area = [2, 4, 0x05, 0xb5];
    let (frame, l4) = syn(false, &[], &area, &[]);
    let parsed = parse(&frame).unwrap();
    let mut clamped = frame.clone();
    assert_eq!(clamp_mss(&mut clamped, &parsed, CLAMP, ChecksumState::Full), Ok(true));
    assert_eq!(clamped[l4 + 22..], CLAMP.to_be_bytes());
    assert_eq!(Some(clamped), expected(&frame, l4, 4));
}
