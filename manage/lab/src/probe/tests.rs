//! Parsers on recorded and on arbitrary text, and the datagram tool on the loopback.

use super::{datagram, http, latency, ping, stream};
use std::net::SocketAddr;
use std::time::Duration;

const IPERF: &str = r#"{"start":{"connected":[]},"intervals":[],"end":{"streams":[],
 "sum_sent":{"start":0,"end":2.0,"seconds":2.0,"bytes":5000000,"bits_per_second":20000000.0,"retransmits":7,"sender":true},
 "sum_received":{"start":0,"end":2.0,"seconds":2.0,"bytes":4900000,"bits_per_second":19600000.0,"sender":true}}}"#;

const SOCKPERF: &str = "\
sockperf: [Valid Duration] RunTime=0.550 sec; SentMessages=35096; ReceivedMessages=35096
sockperf: \u{1b}[2;35m====> avg-latency=7.810 (std-dev=2.121)\u{1b}[0m
sockperf: \u{1b}[2;35mTotal 35096 observations\u{1b}[0m; each percentile contains 350.96 observations
sockperf: ---> <MAX> observation =  294.527
sockperf: ---> percentile 99.999 =  294.527
sockperf: ---> percentile 99.990 =   54.535
sockperf: ---> percentile 99.000 =   12.548
sockperf: ---> percentile 50.000 =    7.572
";

#[test]
fn iperf3_received_bytes_count_and_not_sent_ones() {
    let report = stream::parse(IPERF).unwrap();
    assert_eq!(report.received_bytes, 4_900_000);
    assert_eq!(report.received_bits_per_s, 19_600_000.0);
    assert_eq!(report.retransmits, 7);
}

#[test]
fn iperf3_says_why_it_failed() {
    let text = r#"{"start":{},"end":{},"error":"unable to connect to server: Connection refused"}"#;
    let error = stream::parse(text).unwrap_err().to_string();
    assert!(error.contains("Connection refused"), "{error}");
    assert!(stream::parse("{}").unwrap_err().to_string().contains("no summary"));
    assert!(stream::parse("").is_err());
}

#[test]
fn sockperf_percentiles_are_not_taken_from_their_longer_neighbours() {
    let report = latency::parse(SOCKPERF).unwrap();
    assert_eq!((report.p50_us, report.p99_us, report.messages), (7.572, 12.548, 35096));
    let without = SOCKPERF.replace("percentile 99.000", "percentile 98.000");
    assert!(latency::parse(&without).unwrap_err().to_string().contains("99.000"));
}

#[test]
fn ping_summaries_of_full_partial_and_no_answer() {
    let some = "4 packets transmitted, 3 received, 25% packet loss, time 2037ms\n\
                rtt min/avg/max/mdev = 0.512/0.774/1.051/0.220 ms\n";
    let report = ping::parse(some).unwrap();
    assert_eq!((report.sent, report.received, report.round_trip_mean_ms), (4, 3, Some(0.774)));
    assert!(!report.all() && !report.none());
    let none = "3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 2031ms\n";
    let report = ping::parse(none).unwrap();
    assert!(report.none() && report.round_trip_mean_ms.is_none());
    assert!(ping::parse("connect: Network is unreachable\n").is_err());
}

#[test]
fn curl_line_with_and_without_address() {
    let outcome = http::parse("200 612 0.001234 10.0.0.2").unwrap();
    assert!(outcome.is_ok());
    let http::Outcome::Answered { body_bytes, time_ms, address, .. } = outcome else { panic!("an answer") };
    assert_eq!((body_bytes, address.as_str()), (612, "10.0.0.2"));
    assert!((time_ms - 1.234).abs() < 1e-9);
    assert!(!http::parse("404 0 0.1 ").unwrap().is_ok());
    assert!(http::parse("garbage").is_err());
}

#[test]
fn parsers_take_arbitrary_text() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let _ = stream::parse(&text);
        let _ = latency::parse(&text);
        let _ = ping::parse(&text);
        let _ = http::parse(&text);
        let _ = crate::bench::load::Ticks::parse(&text);
    });
}

#[test]
fn datagrams_sent_on_loopback_are_counted_once_each() {
    let listening = datagram::udp_listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let target = listening.local_addr().unwrap();
    let receiver =
        std::thread::spawn(move || datagram::udp_receive(&listening, Duration::from_secs(20)).unwrap());
    let sent = datagram::udp_send(target, 18, Duration::from_millis(50)).unwrap();
    let received = receiver.join().unwrap();
    assert!(sent.datagrams > 0);
    assert!(received.datagrams > 0 && received.datagrams <= sent.datagrams, "{received:?} of {sent:?}");
    assert!(received.per_second() > 0.0 || received.datagrams == 1);
}

#[test]
fn a_receiver_that_hears_nothing_ends_with_zero() {
    let listening = datagram::udp_listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let received = datagram::udp_receive(&listening, Duration::from_millis(1)).unwrap();
    assert_eq!(received, datagram::Received { datagrams: 0, elapsed_us: 0 });
    assert_eq!(received.per_second(), 0.0);
}

#[test]
fn the_tool_names_what_it_takes() {
    let words = |text: &str| text.split(' ').map(str::to_string).collect::<Vec<_>>();
    for wrong in
        ["udp-send", "udp-send 127.0.0.1 18 10", "udp-send 127.0.0.1:9 99999 10", "udp-recv x", "else"]
    {
        let error = datagram::tool(&words(wrong)).unwrap_err().to_string();
        assert!(error.contains("udp-send ADDRESS:PORT"), "{error}");
    }
    // Nobody has to listen for the sender to work.
    let discard: SocketAddr =
        datagram::udp_listen("127.0.0.1:0".parse().unwrap()).unwrap().local_addr().unwrap();
    let line = datagram::tool(&words(&format!("udp-send {discard} 18 5"))).unwrap();
    let sent: datagram::Sent = serde_json::from_str(&line).unwrap();
    assert!(sent.elapsed_us >= 5_000);
}
