use super::*;

fn window() -> UsageWindow {
    UsageWindow::new(Label::new("h1").unwrap())
}

fn ip(n: u32) -> IpAddr {
    IpAddr::V4(n.into())
}

#[test]
fn the_largest_come_first_and_the_list_is_bounded() {
    let mut window = window();
    for n in 0..5000 {
        window.add(1, ip(n), true, u64::from(n));
        window.add(1, ip(n), false, 0);
    }
    window.add(1, ip(17), true, 100_000);
    let report = window.close(1000, false).unwrap();
    assert_eq!(report.through_gateway.len(), USAGE_FLOWS_MAX);
    assert_eq!(report.direct.len(), USAGE_FLOWS_MAX);
    assert_eq!((report.through_gateway[0].address, report.through_gateway[0].bytes), (ip(17), 100_017));
    assert!(report.through_gateway.is_sorted_by(|a, b| a.bytes >= b.bytes));
}

#[test]
fn silence_is_told_once() {
    let mut window = window();
    assert!(window.close(1000, false).is_none());
    window.add(1, ip(1), false, 9);
    assert_eq!(window.close(1000, false).unwrap().direct.len(), 1);
    assert!(window.close(1000, false).unwrap().direct.is_empty());
    assert!(window.close(1000, false).is_none());
}

#[test]
fn a_silent_host_that_holds_locations_tells_of_it_now_and_then() {
    let mut window = window();
    let told = (0..10 * SILENT_WINDOWS_MAX).filter(|_| window.close(1000, true).is_some()).count();
    assert_eq!(told, 10);
}

#[test]
fn destinations_are_bounded() {
    let mut window = window();
    for n in 0..DESTINATIONS_MAX as u32 + 10 {
        window.add(1, ip(n), true, 1);
    }
    window.add(1, ip(0), true, 1);
    assert_eq!(window.left_out, 10);
}
