use super::*;

/// What every Linux has: a loopback device, no way of frames to the host itself, and a reason for what is not there.
#[test]
fn the_loopback_device_is_found_by_its_address() {
    let mut kernel = Kernel::new().unwrap();
    let here = "127.0.0.1".parse().unwrap();
    let link = kernel.device_of(here).unwrap();
    assert!(link.is_loopback && link.mac.is_none() && link.mtu > 1000, "{link:?}");
    assert_eq!(kernel.link(link.index).unwrap(), link);
    assert_eq!(kernel.route(here, here).unwrap(), None);
    let missing = kernel.device_of("192.0.2.250".parse().unwrap()).unwrap_err();
    assert!(missing.to_string().contains("no device has the address 192.0.2.250"), "{missing}");
    assert_eq!(kernel.neighbour(link.index, "127.0.0.9".parse().unwrap()).unwrap(), None);
}

fn changed(messages: Vec<RouteNetlinkMessage>) -> Changes {
    let mut changes = Changes::default();
    let messages: Vec<_> = messages.into_iter().map(NetlinkMessage::from).collect();
    note(&messages, &mut changes);
    changes
}

#[test]
fn a_neighbour_is_told_by_its_address_and_everything_else_as_all() {
    let (v4, v6): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "fd00::1".parse().unwrap());
    let of = |address| neighbour_message(2, address);
    let told =
        changed(vec![RouteNetlinkMessage::NewNeighbour(of(v4)), RouteNetlinkMessage::DelNeighbour(of(v6))]);
    assert_eq!(told, Changes { all: false, neighbours: vec![v4, v6] });
    assert!(changed(vec![RouteNetlinkMessage::NewRoute(RouteMessage::default())]).all);
    let many = vec![RouteNetlinkMessage::NewNeighbour(of(v4)); NEIGHBOURS_MAX + 1];
    assert!(changed(many).all);
}

#[test]
fn a_way_that_is_not_one_of_frames_is_none() {
    let receiver = "203.0.113.1".parse().unwrap();
    let mut message = RouteMessage::default();
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![
        RouteAttribute::Oif(3),
        RouteAttribute::Gateway(RouteAddress::Inet("192.0.2.1".parse().unwrap())),
        RouteAttribute::Metrics(vec![RouteMetric::Mtu(1400), RouteMetric::Hoplimit(9)]),
    ];
    let next_hop = "192.0.2.1".parse().unwrap();
    let wanted = Route { device: 3, next_hop, mtu: Some(1400), hop_limit: Some(9) };
    assert_eq!(route_of(&message, receiver), Some(wanted));
    message.attributes.push(RouteAttribute::Encap(vec![]));
    assert_eq!(route_of(&message, receiver), None);
    message.attributes.clear();
    message.header.kind = RouteType::BlackHole;
    assert_eq!(route_of(&message, receiver), None);
}

#[test]
fn a_neighbour_that_failed_is_not_known() {
    let mut message = neighbour_message(2, "192.0.2.1".parse().unwrap());
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 1]));
    let mut of = |state| {
        message.header.state = state;
        neighbour_of(&message)
    };
    let mac = [2, 0, 0, 0, 0, 1];
    assert_eq!(of(NeighbourState::Reachable), Some(Neighbour { mac, is_stale: false }));
    assert_eq!(of(NeighbourState::Stale), Some(Neighbour { mac, is_stale: true }));
    assert_eq!(of(NeighbourState::Failed), None);
    assert_eq!(of(NeighbourState::Incomplete), None);
}

/// Bytes that are no messages are left out, and end.
#[test]
fn nonsense_is_no_message() {
    for bytes in [&[][..], &[1, 0, 0], &[3, 0, 0, 0], &[0; 64], &[0xff; 64], &[16, 0, 0, 0, 1, 2, 3]] {
        assert!(messages(bytes).is_empty(), "{bytes:?}");
    }
}
