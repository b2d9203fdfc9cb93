use super::descriptors::for_connections;
use super::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// So long a test waits for what must come.
const GENEROUS: Duration = Duration::from_secs(60);

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
}

fn few() -> Limits {
    Limits {
        strangers_max: 4,
        strangers_per_address_max: 3,
        known_max: 3,
        known_per_name_max: 2,
        first_byte: GENEROUS,
        handshake: GENEROUS,
        stranger_life: GENEROUS,
    }
}

#[test]
fn a_newcomer_gets_the_place_of_the_oldest_silent_stranger() {
    let door = Door::new("test", few());
    let enter = |last| door.enter(address(last)).unwrap();
    let (first, second, third) = (enter(1), enter(1), enter(1));
    first.spoke();
    // The address has all that it may have: one of its own goes, and of those the oldest that said nothing.
    let fourth = enter(1);
    assert!(!first.ends() && second.ends() && !third.ends() && !fourth.ends());
    drop(second);
    // All places are taken: the address with the most gives one, whoever comes.
    let (other, another) = (enter(2), enter(3));
    assert!(third.ends(), "the oldest silent one of the address with the most");
    assert!(!first.ends() && !fourth.ends() && !other.ends() && !another.ends());
    assert_eq!(door.counters.displaced.load(Ordering::Relaxed), 2);
    assert_eq!(door.counters.refused.load(Ordering::Relaxed), 0);
}

#[test]
fn those_about_to_end_are_bounded() {
    let door = Door::new("test", few());
    let mut held = Vec::new();
    for last in 0..100 {
        held.extend(door.enter(address(last)));
        let (strangers, _) = door.occupied();
        assert!(strangers <= 2 * few().strangers_max, "{strangers}");
    }
    assert!(door.counters.refused.load(Ordering::Relaxed) > 0);
    held.clear();
    assert_eq!(door.occupied(), (0, 0));
    assert!(door.enter(address(1)).is_some(), "whoever went left its place");
}

#[test]
fn strangers_take_no_place_of_who_is_known() {
    let door = Door::new("test", few());
    let known = door.enter(address(1)).unwrap();
    known.admit("operator").unwrap();
    known.admit("operator").unwrap();
    let strangers: Vec<_> = (0..50).filter_map(|_| door.enter(address(1))).collect();
    assert!(!known.ends());
    assert_eq!(door.occupied().1, 1);
    // A displaced one is told so when it says who it is too late.
    let displaced = strangers.iter().find(|place| place.ends()).unwrap();
    assert_eq!(displaced.admit("operator"), Err(Full::Displaced));
    drop(strangers);
    // By name, and in all.
    let again = |name: &str| {
        let place = door.enter(address(1)).unwrap();
        place.admit(name).map(|()| place)
    };
    let _second = again("operator").unwrap();
    assert!(matches!(again("operator"), Err(Full::Name { limit: 2, .. })));
    let _third = again("h1").unwrap();
    assert!(matches!(again("h2"), Err(Full::All { limit: 3 })));
}

#[test]
fn whoever_is_not_taken_any_more_is_ended_by_name() {
    let door = Door::new("test", few());
    let (operator, host) = (door.enter(address(1)).unwrap(), door.enter(address(1)).unwrap());
    operator.admit("operator").unwrap();
    host.admit("actuator/h1").unwrap();
    assert_eq!(door.end(|name| name == "actuator/h1"), 1);
    assert!(host.ends() && !operator.ends());
    assert_eq!(door.end(|name| name == "actuator/h1"), 0, "it is ended once");
}

#[test]
fn one_network_of_ipv6_is_one_address() {
    let door = Door::new("test", few());
    let places: Vec<_> = (0..6_u16)
        .filter_map(|host| door.enter(IpAddr::V6([0x2001, 0xdb8, 0, 1, 0, 0, 0, host].into())))
        .collect();
    assert_eq!(places.iter().filter(|place| !place.ends()).count(), few().strangers_per_address_max);
    let mapped = Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped();
    let one = Door::new("test", Limits { strangers_per_address_max: 1, ..few() });
    let plain = one.enter(address(1)).unwrap();
    let _same = one.enter(IpAddr::V6(mapped)).unwrap();
    assert!(plain.ends());
}

#[test]
fn a_door_fits_the_descriptors_that_there_are() {
    let usual = Limits::default();
    assert_eq!(usual.within(1 << 20), usual);
    for descriptors in [64, 100, 256, 1_000, 4_000] {
        let fitted = usual.within(for_connections(descriptors + descriptors::RESERVED));
        assert!(fitted.connections_max() <= descriptors, "{descriptors}: {fitted:?}");
        assert!(fitted.strangers_max >= 4 && fitted.known_max >= 4, "{descriptors}: {fitted:?}");
    }
    assert!(descriptors::raise() > 0);
}

#[test]
fn what_is_counted_is_told() {
    let door = Door::new("test", few());
    let place = door.enter(address(1)).unwrap();
    let _other = door.enter(address(2)).unwrap();
    place.admit("operator").unwrap();
    let text = Door::metrics_text(std::slice::from_ref(&door));
    assert!(text.contains("weir_door_connections_total{door=\"test\",event=\"entered\"} 2\n"), "{text}");
    assert!(text.contains("weir_door_connections{door=\"test\",who=\"stranger\"} 1\n"), "{text}");
    assert!(text.contains("weir_door_connections{door=\"test\",who=\"known\"} 1\n"), "{text}");
    assert_eq!(weir_base::exposition::check(&text), []);
    let two = [door, Door::new("other", few())];
    assert_eq!(weir_base::exposition::check(&Door::metrics_text(&two)), []);
}

async fn listening() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// What a connection hears at its end: nothing more, or that it was broken off.
async fn end_of(mut stream: TcpStream) -> bool {
    let mut byte = [0];
    let read = tokio::time::timeout(GENEROUS, stream.read(&mut byte)).await.expect("it ends");
    !matches!(read, Ok(1))
}

#[tokio::test]
async fn who_says_nothing_is_ended_and_who_is_known_stays() {
    let (listener, at) = listening().await;
    let soon = Duration::from_millis(200);
    let door =
        Door::new("test", Limits { first_byte: soon, handshake: 2 * soon, stranger_life: 3 * soon, ..few() });
    let counters = || {
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (get(&door.counters.silent), get(&door.counters.unshaken), get(&door.counters.unknown))
    };
    let reads = |mut stream: Guarded<TcpStream>| {
        tokio::spawn(async move {
            let mut byte = [0];
            while matches!(stream.read(&mut byte).await, Ok(1)) {}
        })
    };

    let silent = TcpStream::connect(at).await.unwrap();
    reads(accept(&listener, &door).await.0);
    assert!(end_of(silent).await);
    assert_eq!(counters(), (1, 0, 0));

    let mut slow = TcpStream::connect(at).await.unwrap();
    slow.write_all(b"h").await.unwrap();
    reads(accept(&listener, &door).await.0);
    assert!(end_of(slow).await);
    assert_eq!(counters(), (1, 1, 0));

    let mut nobody = TcpStream::connect(at).await.unwrap();
    nobody.write_all(b"h").await.unwrap();
    let (stream, _) = accept(&listener, &door).await;
    stream.place().shaken();
    reads(stream);
    assert!(end_of(nobody).await);
    assert_eq!(counters(), (1, 1, 1));

    let mut known = TcpStream::connect(at).await.unwrap();
    known.write_all(b"h").await.unwrap();
    let (stream, _) = accept(&listener, &door).await;
    let place = stream.place().clone();
    place.admit("operator").unwrap();
    let reading = reads(stream);
    // Another one that is ended in the same time shows that time goes on.
    let silent = TcpStream::connect(at).await.unwrap();
    reads(accept(&listener, &door).await.0);
    assert!(end_of(silent).await);
    known.write_all(b"still here").await.unwrap();
    assert!(!reading.is_finished());
    // Until its certificate is over.
    place.until(Instant::now());
    assert!(end_of(known).await);
}

#[tokio::test]
async fn a_displaced_connection_is_closed_though_nothing_moves_on_it() {
    let (listener, at) = listening().await;
    let door = Door::new("test", Limits { strangers_per_address_max: 1, ..few() });
    let first = TcpStream::connect(at).await.unwrap();
    let (mut stream, _) = accept(&listener, &door).await;
    let reading = tokio::spawn(async move { stream.read(&mut [0]).await.map_err(|error| error.kind()) });
    // Its task waits by now, or will see at once that it has no place.
    tokio::task::yield_now().await;
    let second = TcpStream::connect(at).await.unwrap();
    let (_held, _) = accept(&listener, &door).await;
    assert!(end_of(first).await);
    assert_eq!(reading.await.unwrap(), Err(std::io::ErrorKind::ConnectionAborted));
    drop(second);
}

/// The shape of the fault: thousands hold connections and say nothing, and somebody who can say who it is comes between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_strangers_keep_nobody_out() {
    const STRANGERS: usize = 10_000;
    let descriptors = descriptors::raise();
    let held_max = (descriptors / 4).min(1_024);
    let (listener, at) = listening().await;
    let door =
        Door::new("test", Limits { strangers_max: 64, strangers_per_address_max: 64, ..Limits::default() });
    let served = door.clone();
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = accept(&listener, &served).await;
            tokio::spawn(async move {
                let mut asked = [0; 5];
                if stream.read_exact(&mut asked).await.is_ok() && &asked == b"hello" {
                    stream.place().shaken();
                    if stream.place().admit("operator").is_ok() {
                        let _ = stream.write_all(b"welcome").await;
                    }
                }
            });
        }
    });
    let mut held = std::collections::VecDeque::new();
    let mut answered = 0;
    for number in 0..STRANGERS {
        held.push_back(TcpStream::connect(at).await.unwrap());
        if held.len() > held_max {
            held.pop_front();
        }
        if number % 500 == 499 {
            let mut operator = TcpStream::connect(at).await.unwrap();
            operator.write_all(b"hello").await.unwrap();
            let mut answer = Vec::new();
            tokio::time::timeout(GENEROUS, operator.read_to_end(&mut answer))
                .await
                .expect("an answer")
                .unwrap();
            assert_eq!(answer, b"welcome", "after {number} strangers");
            answered += 1;
            let (strangers, _) = door.occupied();
            assert!(strangers <= 128, "{strangers} strangers are inside");
        }
    }
    assert_eq!(answered, STRANGERS / 500);
    assert!(door.counters.displaced.load(Ordering::Relaxed) > 0);
    server.abort();
    drop(Arc::clone(&door));
}
