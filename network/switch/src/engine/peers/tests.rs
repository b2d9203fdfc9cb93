use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_word_holds_for_its_time_and_for_its_speaker() {
    let mut peers = Peers::new(true);
    let (one, other) = (ip("10.0.0.1"), ip("2001:db8::1"));
    assert!(!peers.takes_partial(one, 0));
    // The clock wraps.
    let now = u32::MAX - 5;
    peers.heard(one, now);
    assert!(peers.takes_partial(one, now) && !peers.takes_partial(other, now));
    assert!(peers.takes_partial(one, now.wrapping_add(HEARD_MS_MAX)));
    assert!(!peers.takes_partial(one, now.wrapping_add(HEARD_MS_MAX + 1)));
}

#[test]
fn more_peers_than_places_only_forget() {
    let mut peers = Peers::new(true);
    let all: Vec<IpAddr> =
        (0..4 * PEERS_MAX as u32).map(|last| IpAddr::V4((0x0a00_0000 + last).into())).collect();
    for peer in &all {
        peers.heard(*peer, 7);
        assert!(peers.takes_partial(*peer, 7));
    }
    let known = all.iter().filter(|peer| peers.takes_partial(**peer, 7)).count();
    assert!(known > PEERS_MAX / 2 && known <= PEERS_MAX, "{known}");
    assert!(!peers.takes_partial(ip("192.0.2.1"), 7));
}

#[test]
fn who_does_not_want_it_believes_nobody() {
    let mut peers = Peers::new(false);
    peers.heard(ip("10.0.0.1"), 0);
    assert!(!peers.enabled() && !peers.takes_partial(ip("10.0.0.1"), 0));
}
