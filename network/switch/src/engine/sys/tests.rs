use super::*;

#[test]
fn addresses_come_back_as_they_went() {
    for text in ["192.0.2.1:6081", "[2001:db8::1]:4789"] {
        let address: SocketAddr = text.parse().unwrap();
        let raw = RawAddress::new(address);
        assert_eq!(raw.get(), address);
        assert_eq!(raw.ip(), address.ip());
        assert_eq!(raw.length() as usize, if address.is_ipv4() { 16 } else { 28 });
    }
}

#[test]
fn control_data_is_read_as_it_is_written() {
    let mut control = Control::default();
    assert_eq!(control.for_send(None, 0, false), 0);
    let length = control.for_send(Some(1400), 2, false);
    assert_eq!(length, 24 + 24);
    // What the kernel writes at receipt: an integer for the size, a byte for the type of service.
    let mut control = Control::default();
    let length = control.put(0, libc::SOL_UDP, UDP_GRO, 1400_i32);
    let length = control.put(length, libc::IPPROTO_IP, libc::IP_TOS, 0xb_u8);
    assert_eq!(control.of_receive(length), (Some(1400), 3));
    assert_eq!(control.of_receive(0), (None, 0));
}

#[test]
fn any_control_data_is_read_without_harm() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut control = Control::default();
        let length = bytes.len().min(Control::BYTES);
        control.0[..length].copy_from_slice(&bytes[..length]);
        let _ = control.of_receive(bytes.len());
    });
}

#[test]
fn a_wakeup_is_seen_once() {
    let (poller, wakeup) = (Poller::new().unwrap(), Wakeup::new().unwrap());
    poller.add(wakeup.fd(), 7).unwrap();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
    assert_eq!(poller.wait(&mut events, 0).unwrap(), 0);
    wakeup.wake();
    wakeup.wake();
    assert_eq!(poller.wait(&mut events, 0).unwrap(), 1);
    let token = events[0].u64;
    assert_eq!(token, 7);
    wakeup.clear();
    assert_eq!(poller.wait(&mut events, 0).unwrap(), 0);
}
