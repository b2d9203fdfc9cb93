use super::*;
use std::sync::mpsc::sync_channel;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A wire that takes nothing, and whose device is there or not.
struct Dead(bool);

impl Wire for Dead {
    fn put(&mut self, _: &[&[u8]]) -> bool {
        true
    }
    fn show(&mut self) -> io::Result<()> {
        if self.0 { Ok(()) } else { Err(io::ErrorKind::NotConnected.into()) }
    }
    fn take(&mut self, _: usize, _: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        0
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn settle(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_receiver_is_asked_for_once_a_map() {
    let (sender, asks) = sync_channel(ASKS_MAX);
    let hops: SharedHops = Arc::default();
    let wake = Arc::new(Wakeup::new().unwrap());
    let mut wires = Wires::new(vec![Box::new(Dead(true))], Arc::clone(&hops), Some((sender, wake)));
    let receiver = ip("192.0.2.9");
    for round in 1..=2 {
        for _ in 0..3 {
            let map = wires.hops();
            assert_eq!(wires.way(&map, receiver, false, 100), Err(BySockets::Unknown));
        }
        assert_eq!(asks.try_iter().collect::<Vec<_>>(), [Ask::Hop(receiver)], "round {round}");
        hops.store(Arc::new(Hops::new(round, [])));
    }
    let way = Receiver { way: Err(BySockets::NoNeighbour), used: Arc::default() };
    hops.store(Arc::new(Hops::new(9, [(receiver, way.clone())])));
    let map = wires.hops();
    assert_eq!(wires.way(&map, receiver, true, 100), Err(BySockets::Cut));
    assert!(!way.used.load(Relaxed));
    assert_eq!(wires.way(&map, receiver, false, 100), Err(BySockets::NoNeighbour));
    assert!(way.used.load(Relaxed), "whoever keeps the map sees that it is used");
    assert_eq!(asks.try_iter().count(), 0);
}

#[test]
fn a_device_that_is_gone_is_told_and_rests() {
    let (sender, asks) = sync_channel(ASKS_MAX);
    let wake = Arc::new(Wakeup::new().unwrap());
    let mut wires = Wires::new(vec![Box::new(Dead(false))], Arc::default(), Some((sender, wake)));
    assert!(!wires.show(), "nothing was put");
    assert!(wires.put(&[&[1]]));
    assert!(wires.show());
    assert_eq!(asks.try_iter().collect::<Vec<_>>(), [Ask::Gone]);
    let map = wires.hops();
    assert_eq!(wires.way(&map, ip("192.0.2.9"), false, 100), Err(BySockets::Rests));
}

#[test]
fn a_map_has_a_limit() {
    let way = || Receiver { way: Err(BySockets::OtherWay), used: Arc::default() };
    let many = (0..HOPS_MAX as u32 + 10).map(|number| (IpAddr::from(number.to_be_bytes()), way()));
    assert_eq!(Hops::new(1, many).len(), HOPS_MAX);
}

#[test]
fn a_way_whose_mtu_has_no_room_for_headers_is_none() {
    let (from, to) = (ip("192.0.2.1"), ip("192.0.2.2"));
    let hop = |mtu| Hop::new(([2; 6], [4; 6]), from, to, 64, [6081, 4789], mtu);
    assert_eq!(hop(27), None);
    assert_eq!(hop(128).unwrap().payload_max, 100);
    assert_eq!(Hop::new(([2; 6], [4; 6]), from, ip("fd00::1"), 64, [6081, 4789], 1500), None);
}
