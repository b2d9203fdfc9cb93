use super::*;
use crate::testing::{ip, udp};
use proptest::prelude::*;

/// A later fragment of a datagram that an endpoint of a port sent, with a frame of so many bytes.
fn later(port: u16, identification: u16, piece: usize, bytes: usize) -> (Parsed, HeldFrame) {
    let whole = udp((ip("10.0.0.1"), 1000), (ip("10.0.0.2"), 53), 64 * 60);
    let parsed = weir_packet::parse(&whole.pieces(identification, 64)[piece].build()).unwrap();
    let (ingress, virtio) = (Ingress::Port(port), VirtioNetHeader::default());
    (parsed, HeldFrame { ingress, class: port.into(), virtio, frame: vec![piece as u8; bytes].into() })
}

fn hold(held: &mut Held, port: u16, identification: u16, piece: usize, bytes: usize, now_ms: u32) -> u64 {
    let (parsed, frame) = later(port, identification, piece, bytes);
    held.hold(&parsed, frame, now_ms).frames
}

fn first_came(held: &mut Held, port: u16, identification: u16, now_ms: u32) -> Vec<u8> {
    let (first, _) = later(port, identification, 0, 0);
    held.first_came(&Ingress::Port(port), &first, now_ms);
    std::iter::from_fn(|| held.take_due()).map(|due| due.frame[0]).collect()
}

#[test]
fn what_waits_for_a_first_fragment_comes_out_in_the_order_of_the_datagram() {
    let mut held = Held::default();
    for (identification, piece) in [(1, 5), (2, 3), (1, 1), (1, 40), (2, 1)] {
        assert_eq!(hold(&mut held, 3, identification, piece, 100, 0), 0);
    }
    assert!(first_came(&mut held, 4, 1, 0).is_empty(), "of another port");
    assert!(first_came(&mut held, 3, 7, 0).is_empty(), "of another datagram");
    assert_eq!(first_came(&mut held, 3, 1, WAIT_MS), [1, 5, 40]);
    assert_eq!((held.len(), held.bytes()), (2, 200));
    assert_eq!(first_came(&mut held, 3, 2, WAIT_MS), [1, 3]);
    assert!(held.is_empty() && held.bytes() == 0);
}

#[test]
fn what_waited_too_long_is_dropped() {
    let mut held = Held::default();
    let begin = u32::MAX - 10;
    hold(&mut held, 3, 1, 1, 100, begin);
    hold(&mut held, 3, 1, 2, 100, begin.wrapping_add(500));
    assert_eq!(held.expire(begin.wrapping_add(WAIT_MS)), Lost::default());
    let late = begin.wrapping_add(WAIT_MS + 1);
    assert_eq!(first_came(&mut held, 3, 1, late), [2], "also where nobody has counted it yet");
    assert_eq!(held.expire(late), Lost { frames: 1, bytes: 100 });
    assert!(held.is_empty() && held.bytes() == 0);
}

/// Who floods takes from himself.
#[test]
fn a_flood_of_lone_fragments_leaves_others_theirs() {
    let mut held = Held::default();
    hold(&mut held, 1, 9, 1, 100, 0);
    let mut lost = 0;
    for number in 0..5000 {
        lost += hold(&mut held, 2, number, 1, 100, 0);
    }
    assert_eq!((held.len(), lost), (1 + SHARE_FRAMES, 5000 - SHARE_FRAMES as u64));
    // From everywhere at once: whoever has most makes room.
    for number in 0..5000 {
        lost += hold(&mut held, 10 + number % 8, number, 1, 100, 0);
    }
    assert_eq!((held.len(), lost), (FRAMES_MAX, 10_001 - FRAMES_MAX as u64));
    assert_eq!(first_came(&mut held, 1, 9, 0), [1], "it was there first, and has least");
    assert_eq!(hold(&mut held, 2, 1, 1, SHARE_BYTES + 1, 0), 1, "larger than anybody's share");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Whatever comes, the limits hold, and each fragment comes out once, is lost once, or is still there.
    #[test]
    fn limits_hold_and_nothing_is_lost_uncounted(
        steps in proptest::collection::vec((0_u16..6, 0_u16..4, 0_usize..60, 1_usize..30_000, 0_u32..60), 1..400),
    ) {
        let (mut held, mut now_ms) = (Held::default(), 0);
        let (mut came, mut gone) = (0_u64, 0_u64);
        for (port, identification, piece, bytes, ms) in steps {
            now_ms += ms;
            if piece == 0 {
                gone += first_came(&mut held, port, identification, now_ms).len() as u64;
            } else {
                came += 1;
                gone += hold(&mut held, port, identification, piece, bytes, now_ms);
            }
            prop_assert!(held.len() <= FRAMES_MAX && held.bytes() <= BYTES_MAX);
            for class in 0..6 {
                let (frames, bytes) = held.share(class);
                prop_assert!(frames <= SHARE_FRAMES && bytes <= SHARE_BYTES);
            }
            prop_assert_eq!(came, gone + held.len() as u64);
        }
        gone += held.expire(now_ms + WAIT_MS + 1).frames;
        prop_assert_eq!((came, held.len(), held.bytes()), (gone, 0, 0));
    }
}
