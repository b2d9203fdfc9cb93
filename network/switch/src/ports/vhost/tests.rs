mod beside;
mod bounded;
mod charged;
mod hostile;
mod meeting;
mod reasons;

use super::driver::{Driver, INDIRECT, Taken, WRITE, take, take_event};
use super::feature;
use super::guest::{Guest, Lost, Refused};
use crate::engine::sys;
use crate::testing::{ACK, ip, tcp};
use weir_packet::virtio::{FLAG_NEEDS_CSUM, GSO_TCPV4, HEADER_BYTES, VirtioNetHeader};

const MODERN: u64 = feature::VERSION_1;
/// Header of a modern guest.
const LONG: usize = 12;
const RX: usize = 0;
const TX: usize = 1;

/// A frame of TCP with so many bytes of payload, whose checksum is right.
fn frame(payload: usize) -> Vec<u8> {
    let mut packet = tcp((ip("10.0.0.1"), 1000), (ip("10.0.0.2"), 80), ACK);
    packet.transport.extend((0..payload).map(|at| at as u8));
    packet.build()
}

fn take_all(guest: &mut Guest, pair: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut room = vec![0; 70_000];
    for _ in 0..guest.begin(pair, 64) {
        if let Taken::Frame(bytes) = take(guest, pair, &mut room) {
            frames.push(room[guest.header_bytes()..bytes].to_vec());
        }
    }
    frames
}

fn post_frame(driver: &mut Driver, frame: &[u8]) -> u16 {
    let at = driver.buffer(LONG + frame.len());
    driver.write(at, &[0; LONG]);
    driver.write(at + LONG, frame);
    driver.post(TX, &[(at, LONG + frame.len())], 0)
}

fn send(guest: &mut Guest, header: VirtioNetHeader, frame: &[u8]) -> Result<Lost, Refused> {
    let (first, second) = frame.split_at(frame.len() / 2);
    guest.send(&header, &[sys::piece(first), sys::piece(second)], || 0)
}

/// A super-frame of two segments and a header that asks to cut it.
fn super_frame() -> (VirtioNetHeader, Vec<u8>) {
    let frame = frame(2000);
    let header = VirtioNetHeader {
        flags: FLAG_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    (header, frame)
}

/// What the guest got: each frame with its header, from chains of one descriptor.
fn received(driver: &mut Driver) -> Vec<Vec<u8>> {
    let back = driver.take_used(RX);
    back.iter().map(|(head, length)| driver.read(driver.buffer_of(RX, *head), *length as usize)).collect()
}

fn post_buffers(driver: &mut Driver, count: usize, bytes: usize) {
    for _ in 0..count {
        let at = driver.buffer(bytes);
        driver.post(RX, &[(at, bytes)], WRITE);
    }
}

fn transport_sum_is_right(frame: &[u8]) -> bool {
    let parsed = weir_packet::parse(frame).unwrap();
    let mut again = frame.to_vec();
    weir_packet::checksum::fill_transport(&mut again, &parsed).unwrap();
    again == frame
}

#[test]
fn frames_of_a_guest_are_copied_out_and_given_back_at_once() {
    let mut driver = Driver::new(256);
    let mut guest = driver.guest(1, MODERN);
    let frames = [frame(10), frame(1000), frame(3000)];
    let first = post_frame(&mut driver, &frames[0]);
    // The header by itself, the frame in two pieces.
    let at = driver.buffer(8192);
    driver.write(at, &[0; LONG]);
    driver.write(at + 100, &frames[1][..500]);
    driver.write(at + 2000, &frames[1][500..]);
    let second = driver.post(TX, &[(at, LONG), (at + 100, 500), (at + 2000, frames[1].len() - 500)], 0);
    // A table of descriptors.
    let at = driver.buffer(8192);
    driver.write(at, &Driver::descriptor(super::driver::GUEST + at as u64 + 64, 12, 1, 1));
    driver.write(
        at + 16,
        &Driver::descriptor(super::driver::GUEST + at as u64 + 128, frames[2].len() as u32, 0, 0),
    );
    driver.write(at + 64, &[0; LONG]);
    driver.write(at + 128, &frames[2]);
    let third = driver.post(TX, &[(at, 32)], INDIRECT);
    assert_eq!(take_all(&mut guest, 0), frames);
    assert!(driver.take_used(TX).is_empty(), "nothing is shown before the batch ends");
    assert_eq!(guest.publish(), 1, "a driver that does not say otherwise is interrupted");
    let heads: Vec<u32> = driver.take_used(TX).iter().map(|(head, _)| *head).collect();
    assert_eq!(heads, [first, second, third].map(u32::from));
    driver.set_flags(TX, 1);
    post_frame(&mut driver, &frames[0]);
    assert_eq!(take_all(&mut guest, 0).len(), 1);
    assert_eq!(guest.publish(), 0, "it asked not to be interrupted");
}

#[test]
fn frames_of_every_length_are_copied_whole_in_one_piece() {
    for features in [MODERN | feature::MRG_RXBUF, MODERN, 0] {
        let mut driver = Driver::new(256);
        let mut guest = driver.guest(1, features);
        let header = guest.header_bytes();
        for payload in 0..200 {
            let mut frame = frame(payload);
            frame[0] = payload as u8;
            let at = driver.buffer(header + frame.len());
            driver.write(at, &vec![0; header]);
            driver.write(at + header, &frame);
            driver.post(TX, &[(at, header + frame.len())], 0);
            assert_eq!(take_all(&mut guest, 0), [frame.clone()], "taken, of {payload} bytes");
            guest.publish();
            // Room for exactly as much, then for more: what is behind the frame stays as it was.
            for (spare, parts) in [(0, false), (64, false), (0, true), (64, true)] {
                let at = driver.buffer(header + frame.len() + spare);
                driver.write(at, &vec![0xee; header + frame.len() + spare]);
                driver.post(RX, &[(at, header + frame.len() + spare)], WRITE);
                if parts {
                    let (ethernet, rest) = frame.split_first_chunk().unwrap();
                    assert!(guest.put_plain(ethernet, rest, || 0));
                } else {
                    guest.send(&VirtioNetHeader::default(), &[sys::piece(&frame)], || 0).unwrap();
                }
                guest.publish();
                let back = driver.take_used(RX);
                assert_eq!(back.len(), 1);
                assert_eq!(back[0].1 as usize, header + frame.len());
                let got = driver.read(at, header + frame.len() + spare);
                assert_eq!(&got[header..header + frame.len()], frame, "sent, of {payload} bytes");
                assert!(got[header + frame.len()..].iter().all(|byte| *byte == 0xee));
                assert_eq!(&got[..HEADER_BYTES], [0; HEADER_BYTES]);
                if header > HEADER_BYTES {
                    assert_eq!(&got[HEADER_BYTES..header], [1, 0], "one buffer");
                }
            }
            driver.take_used(TX);
        }
    }
}

#[test]
fn what_a_guest_changes_after_the_copy_changes_nothing() {
    let mut driver = Driver::new(8);
    let mut guest = driver.guest(1, MODERN);
    let sent = frame(100);
    let at = driver.buffer(LONG + sent.len());
    driver.write(at, &[0; LONG]);
    driver.write(at + LONG, &sent);
    driver.post(TX, &[(at, LONG + sent.len())], 0);
    let got = take_all(&mut guest, 0);
    driver.write(at, &vec![0xff; LONG + sent.len()]);
    assert_eq!(got, [sent]);
}

#[test]
fn a_frame_for_a_guest_takes_as_many_buffers_as_it_needs() {
    let mut driver = Driver::new(256);
    let mut guest = driver.guest(1, MODERN | feature::MRG_RXBUF);
    post_buffers(&mut driver, 10, 1024);
    let sent = frame(3000);
    assert_eq!(send(&mut guest, VirtioNetHeader::default(), &sent), Ok(Lost::default()));
    assert_eq!(send(&mut guest, VirtioNetHeader::default(), &frame(10)), Ok(Lost::default()));
    assert!(driver.take_used(RX).is_empty(), "nothing is shown before the turn ends");
    assert_eq!(guest.publish(), 1, "one interrupt for all of them");
    let parts = received(&mut driver);
    assert_eq!(parts.len(), 4);
    assert_eq!(parts[0][10..LONG], [3, 0], "number of buffers");
    assert_eq!([&parts[0][LONG..], &parts[1][..], &parts[2][..]].concat(), sent);
    assert_eq!(parts[3][10..LONG], [1, 0]);
    assert_eq!(parts[3][LONG..], frame(10));
    // Six buffers of 1024 are left: too few.
    assert_eq!(send(&mut guest, VirtioNetHeader::default(), &frame(8000)), Err(Refused::Full));
    assert_eq!(
        send(&mut guest, VirtioNetHeader::default(), &frame(100)),
        Ok(Lost::default()),
        "nothing was used up"
    );
}

#[test]
fn whatever_was_fetched_ahead_frames_are_written_where_their_turn_is() {
    let mut driver = Driver::new(256);
    let mut guest = driver.guest(1, MODERN | feature::MRG_RXBUF);
    let (mut sent, mut got, mut posted) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..400_usize {
        let buffers = (round % 7).min(200 - posted.len());
        for _ in 0..buffers {
            let at = driver.buffer(512);
            posted.push((driver.post(RX, &[(at, 512)], WRITE), at));
        }
        // One, or more than what was fetched.
        let frame = frame(if round % 5 == 0 { 2000 } else { 20 + round % 300 });
        let result = if frame.len() < 500 && round % 3 > 0 {
            let (ethernet, rest) = frame.split_first_chunk().unwrap();
            guest.put_plain(ethernet, rest, || 0)
        } else {
            send(&mut guest, VirtioNetHeader::default(), &frame).is_ok()
        };
        if result {
            sent.push(frame);
        }
        if round % 2 == 0 {
            guest.publish();
            guest.prepare();
        }
        for (head, length) in driver.take_used(RX) {
            let (posted, at) = posted.remove(0);
            assert_eq!(u32::from(posted), head, "in the order in which they were posted");
            got.push(driver.read(at, length as usize));
        }
    }
    let mut parts = got.into_iter();
    for frame in &sent[..sent.len() - 10] {
        let first = parts.next().unwrap();
        let count = u16::from_le_bytes([first[10], first[11]]);
        let rest: Vec<u8> = (1..count).flat_map(|_| parts.next().unwrap()).collect();
        assert_eq!([&first[LONG..], &rest[..]].concat(), *frame);
    }
    assert!(sent.len() > 150, "{}", sent.len());
}

#[test]
fn without_merging_a_frame_must_fit_one_chain() {
    let mut driver = Driver::new(256);
    let mut guest = driver.guest(1, MODERN);
    post_buffers(&mut driver, 2, 1024);
    let at = driver.buffer(4096);
    driver.post(RX, &[(at, LONG), (at + 64, 1000), (at + 2000, 2000)], WRITE);
    assert_eq!(send(&mut guest, VirtioNetHeader::default(), &frame(3000)), Err(Refused::TooLarge));
    for _ in 0..2 {
        assert_eq!(send(&mut guest, VirtioNetHeader::default(), &frame(10)), Ok(Lost::default()));
    }
    let sent = frame(2000);
    assert_eq!(send(&mut guest, VirtioNetHeader::default(), &sent), Ok(Lost::default()));
    guest.publish();
    let back = driver.take_used(RX);
    assert_eq!(back.len(), 3);
    assert_eq!(back[2].1 as usize, LONG + sent.len());
    assert_eq!(driver.read(at + 64, 1000), sent[..1000]);
    assert_eq!(driver.read(at + 2000, sent.len() - 1000), sent[1000..]);
}

#[test]
fn a_guest_gets_super_frames_as_far_as_it_knows_them() {
    let (header, whole) = super_frame();
    // It knows all: one frame, the header says how to cut it.
    let mut driver = Driver::new(256);
    let mut guest = driver.guest(1, MODERN | feature::GUEST_CSUM | feature::GUEST_TSO4);
    post_buffers(&mut driver, 4, 4096);
    assert_eq!(send(&mut guest, header, &whole), Ok(Lost::default()));
    guest.publish();
    let got = received(&mut driver);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0][..2], [FLAG_NEEDS_CSUM, GSO_TCPV4]);
    assert_eq!(got[0][LONG..], whole);
    // It knows partial checksums: segments with those.
    let mut driver = Driver::new(256);
    let mut guest = driver.guest(1, MODERN | feature::GUEST_CSUM);
    post_buffers(&mut driver, 4, 4096);
    assert_eq!(send(&mut guest, header, &whole), Ok(Lost::default()));
    guest.publish();
    let got = received(&mut driver);
    assert_eq!(got.len(), 2);
    for segment in &got {
        assert_eq!(segment[..2], [FLAG_NEEDS_CSUM, 0]);
        assert_eq!(segment.len(), LONG + 54 + 1000);
    }
    // It knows nothing: complete segments.
    let mut driver = Driver::new(256);
    let mut guest = driver.guest(1, MODERN);
    post_buffers(&mut driver, 1, 4096);
    let lost = send(&mut guest, header, &whole).unwrap();
    assert_eq!(lost, Lost { packets: 1, bytes: 1054 }, "it had room for one of two");
    guest.publish();
    let got = received(&mut driver);
    assert_eq!(got[0][..10], [0; 10]);
    assert!(transport_sum_is_right(&got[0][LONG..]));
    // A frame with a partial checksum is completed for it.
    let (mut partial, mut whole) = (header, frame(100));
    (partial.gso_type, partial.gso_size, partial.hdr_len) = (0, 0, 0);
    let parsed = weir_packet::parse(&whole).unwrap();
    weir_packet::checksum::fill_partial(&mut whole, &parsed).unwrap();
    post_buffers(&mut driver, 1, 4096);
    assert_eq!(send(&mut guest, partial, &whole), Ok(Lost::default()));
    guest.publish();
    let got = received(&mut driver);
    assert_eq!(got[0][..10], [0; 10]);
    assert!(transport_sum_is_right(&got[0][LONG..]));
}

#[test]
fn with_event_indices_each_side_is_told_when_it_wants_to_be() {
    let mut driver = Driver::new(256);
    let mut guest = driver.guest(1, MODERN | feature::EVENT_IDX);
    post_buffers(&mut driver, 20, 256);
    let give = |guest: &mut Guest, count: usize| {
        for _ in 0..count {
            send(guest, VirtioNetHeader::default(), &frame(10)).unwrap();
        }
        guest.publish()
    };
    driver.set_used_event(RX, 4);
    assert_eq!(give(&mut guest, 1), 1, "the first time is told in any case");
    assert_eq!(give(&mut guest, 2), 0);
    assert_eq!(give(&mut guest, 2), 1, "the fifth passes index 4");
    assert_eq!(give(&mut guest, 3), 0);
    // Kicks: asked for behind what was taken.
    for _ in 0..3 {
        post_frame(&mut driver, &frame(10));
    }
    assert_eq!(take_all(&mut guest, 0).len(), 3);
    assert!(!guest.ask_for_kicks(true));
    assert_eq!(driver.available_event(TX), 3);
    post_frame(&mut driver, &frame(10));
    assert!(guest.ask_for_kicks(true), "one came before the guest could know");
}

#[test]
fn without_event_indices_kicks_are_asked_for_by_a_flag() {
    let mut driver = Driver::new(8);
    let mut guest = driver.guest(1, MODERN);
    guest.ask_for_kicks(false);
    assert!(!driver.wants_kicks(TX));
    assert!(!guest.ask_for_kicks(true));
    assert!(driver.wants_kicks(TX) && !driver.wants_kicks(RX));
    assert_eq!(guest.kicks().map(take_event).sum::<u64>(), 0);
    post_frame(&mut driver, &frame(10));
    assert!(guest.ask_for_kicks(true));
}

#[test]
fn flows_are_spread_over_pairs_and_a_restarted_switch_goes_on_where_it_was() {
    let mut driver = Driver::new(8);
    {
        let mut guest = driver.guest(2, MODERN);
        for queue in [0, 2] {
            for _ in 0..2 {
                let at = driver.buffer(512);
                driver.post(queue, &[(at, 512)], WRITE);
            }
        }
        let header = VirtioNetHeader::default();
        for flow in [0, 1, 3] {
            let frame = frame(10);
            guest.send(&header, &[sys::piece(&frame)], || flow).unwrap();
        }
    }
    // What was written is shown though the device is gone.
    assert_eq!([driver.take_used(0).len(), driver.take_used(2).len()], [1, 2]);
    let mut guest = driver.guest(2, MODERN);
    let frame = frame(20);
    guest.send(&VirtioNetHeader::default(), &[sys::piece(&frame)], || 0).unwrap();
    guest.publish();
    assert_eq!(received(&mut driver)[0][LONG..], frame);
}
