use super::alerts::{FIRING_MAX, REPEAT_MS, RESOLVE_MS};
use super::*;
use crate::explain::tests::alarm;
use serde_json::Value;

#[test]
fn times_are_those_of_the_calendar() {
    assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
    assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
    assert_eq!(rfc3339(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
    assert_eq!(rfc3339(4_107_542_399_999), "2100-02-28T23:59:59.999Z");
}

fn json(messages: &[Message]) -> Vec<Value> {
    messages.iter().map(|message| serde_json::to_value(message).unwrap()).collect()
}

/// Another entry of the alarm's policy, some time after it.
fn later(number: u64, after_ms: u64, what: What) -> Entry {
    let first = alarm("acted");
    Entry { number, unix_ms: first.unix_ms + after_ms, policy: first.policy, what }
}

#[test]
fn an_alarm_has_the_fields_that_receivers_read() {
    let json = &json(&Firing::default().take(&alarm("acted")))[0];
    assert_eq!((&json["version"], &json["status"]), (&"4".into(), &"firing".into()));
    assert_eq!(json["commonLabels"]["policy"], "web");
    let alert = &json["alerts"][0];
    assert_eq!(alert["labels"]["alertname"], "weir-monitor-living");
    assert_eq!(alert["labels"]["severity"], "warning");
    assert_eq!(
        (&alert["status"], &alert["endsAt"]),
        (&"firing".into(), &"0001-01-01T00:00:00Z".into()),
        "{alert}"
    );
    assert_eq!(alert["startsAt"], "2023-11-14T22:13:20.123Z");
    assert!(alert["annotations"]["description"].as_str().unwrap().contains("freeze-kill"));
    for field in
        ["groupKey", "truncatedAlerts", "receiver", "groupLabels", "commonAnnotations", "externalURL"]
    {
        assert!(json.get(field).is_some(), "{field}");
    }
}

#[test]
fn an_alarm_is_resolved_with_its_fingerprint_when_it_is_over() {
    let mut firing = Firing::default();
    let begun = &json(&firing.take(&alarm("acted")))[0]["alerts"][0];
    assert_eq!(firing.count(), 1);
    // What is over elsewhere ends nothing here.
    let other = Entry { policy: Some("other".into()), ..later(4, 5, What::Settled { took_us: 8, again: 0 }) };
    assert_eq!(firing.take(&other), []);
    let over = json(&firing.take(&later(5, 2000, What::Settled { took_us: 8, again: 0 })));
    let [message] = over.as_slice() else { panic!("{over:?}") };
    let ended = &message["alerts"][0];
    assert_eq!((&message["status"], &ended["status"]), (&"resolved".into(), &"resolved".into()));
    assert_eq!((&ended["fingerprint"], &ended["labels"]), (&begun["fingerprint"], &begun["labels"]));
    assert_eq!(ended["startsAt"], begun["startsAt"]);
    assert_eq!(ended["endsAt"], "2023-11-14T22:13:22.123Z");
    assert_eq!(firing.count(), 0);
    assert_eq!(firing.take(&later(6, 3000, What::Settled { took_us: 8, again: 0 })), [], "once");
}

#[test]
fn an_alarm_that_nobody_raises_again_is_over_after_a_while() {
    let mut firing = Firing::default();
    let first = alarm("reported");
    firing.take(&first);
    // It is raised again: that is told at most once a minute, and puts off its end.
    let again =
        |number: u64, after_ms: u64| Entry { number, unix_ms: first.unix_ms + after_ms, ..alarm("reported") };
    assert_eq!(firing.take(&again(4, 1000)), []);
    assert_eq!(firing.take(&again(5, REPEAT_MS)).len(), 1);
    assert_eq!(firing.expire(first.unix_ms + RESOLVE_MS), []);
    let over = json(&firing.expire(first.unix_ms + REPEAT_MS + RESOLVE_MS));
    assert_eq!(over.len(), 1);
    assert_eq!((&over[0]["status"], firing.count()), (&"resolved".into(), 0));
    assert_eq!(over[0]["alerts"][0]["startsAt"], rfc3339(first.unix_ms));
}

#[test]
fn a_host_that_failed_fires_until_it_answers_or_a_new_monitor_finds_it_well() {
    let failed = |number: u64, host: &str| Entry {
        number,
        unix_ms: 1_000_000,
        policy: None,
        what: What::HostFailed { host: host.into(), fenced: Some(true) },
    };
    let mut firing = Firing::default();
    assert_eq!(firing.take(&failed(1, "h1")).len() + firing.take(&failed(2, "h2")).len(), 2);
    assert_eq!(firing.expire(u64::MAX), [], "it is not over by itself");
    let recovered = What::HostRecovered { host: "h1".into() };
    let over = json(&firing.take(&Entry { what: recovered, ..failed(3, "h1") }));
    assert_eq!((over.len(), &over[0]["commonLabels"]["host"]), (1, &"h1".into()));
    firing.begin_anew(2_000_000);
    assert_eq!(firing.expire(2_000_000 + RESOLVE_MS - 1), []);
    let over = json(&firing.expire(2_000_000 + RESOLVE_MS));
    assert_eq!((over.len(), &over[0]["commonLabels"]["host"]), (1, &"h2".into()));
}

#[test]
fn what_is_no_alarm_is_not_sent_and_what_was_taken_is_not_taken_again() {
    let mut firing = Firing::default();
    assert_eq!(firing.take(&Entry { number: 1, unix_ms: 0, policy: None, what: What::Stopped }), []);
    assert_eq!(firing.take(&alarm("acted")).len(), 1);
    assert_eq!(firing.take(&alarm("acted")), []);
    let kept: Firing = serde_json::from_slice(&serde_json::to_vec(&firing).unwrap()).unwrap();
    assert_eq!(kept, firing);
}

#[test]
fn not_more_than_a_limit_fire_and_who_gives_way_is_over() {
    let mut firing = Firing::default();
    let mut told = 0;
    for number in 1..=FIRING_MAX as u64 + 10 {
        let entry = Entry { number, unix_ms: number, policy: Some(format!("p{number}")), ..alarm("acted") };
        told += firing.take(&entry).len();
    }
    assert_eq!((firing.count(), told), (FIRING_MAX, FIRING_MAX + 20));
}

#[test]
fn fingerprints_are_those_of_prometheus() {
    let fingerprint_of = |labels: &[(&str, &str)]| {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in labels.iter().flat_map(|(k, v)| [k.as_bytes(), &[255], v.as_bytes(), &[255]].concat()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        format!("{hash:016x}")
    };
    let sent = json(&Firing::default().take(&alarm("acted")));
    let labels = [("alertname", "weir-monitor-living"), ("policy", "web"), ("severity", "warning")];
    assert_eq!(sent[0]["alerts"][0]["fingerprint"], fingerprint_of(&labels));
}

mod outbox {
    use super::super::{Limits, Outbox};

    fn numbers(outbox: &mut Outbox) -> Vec<String> {
        let mut all = Vec::new();
        while let Some((number, message)) = outbox.first() {
            all.push(String::from_utf8(message).unwrap());
            outbox.remove(number);
        }
        all
    }

    #[test]
    fn what_waits_is_there_after_a_restart_in_order_and_what_was_taken_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Outbox::open(folder.path(), Limits::default()).unwrap();
        let mut outbox = open();
        for message in ["a", "b", "c"] {
            outbox.push(message.as_bytes());
        }
        let (first, message) = outbox.first().unwrap();
        assert_eq!(message, b"a");
        outbox.remove(first);
        drop(outbox);
        let mut outbox = open();
        outbox.push(b"d");
        assert_eq!(outbox.waiting(), (3, 3));
        assert_eq!(numbers(&mut outbox), ["b", "c", "d"]);
        assert_eq!(open().first(), None);
    }

    #[test]
    fn the_oldest_give_way_and_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let mut few = Outbox::open(folder.path(), Limits { count_max: 3, bytes_max: 1 << 20 }).unwrap();
        (0..10).for_each(|number| few.push(number.to_string().as_bytes()));
        assert_eq!((few.waiting().0, few.dropped), (3, 7));
        // A limit of bytes holds for what is there, too.
        let mut small = Outbox::open(folder.path(), Limits { count_max: 100, bytes_max: 2 }).unwrap();
        assert_eq!(small.dropped, 1);
        small.push(&[b'x'; 3]);
        assert_eq!((small.dropped, small.waiting()), (2, (2, 2)), "it is larger than all that may wait");
        assert_eq!(numbers(&mut small), ["8", "9"]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// As a kill leaves it, and as people and faults do.
    #[test]
    fn what_is_no_whole_message_does_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let mut outbox = Outbox::open(folder.path(), Limits::default()).unwrap();
        outbox.push(b"whole");
        drop(outbox);
        let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        put("00000000000000000009.new", "half");
        put("notes.json", "a person's");
        put("00000000000000000002.json", "");
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("00000000000000000003.json")).unwrap();
        std::fs::create_dir(folder.path().join("00000000000000000004.json")).unwrap();
        let mut outbox = Outbox::open(folder.path(), Limits::default()).unwrap();
        assert!(!folder.path().join("00000000000000000009.new").exists());
        outbox.push(b"next");
        assert_eq!(numbers(&mut outbox), ["whole", "next"]);
        assert_eq!(outbox.dropped, 1, "the empty one");
        assert!(folder.path().join("notes.json").exists());
    }

    #[test]
    fn a_disk_that_takes_nothing_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("outbox");
        let mut outbox = Outbox::open(&inside, Limits::default()).unwrap();
        std::fs::remove_dir(&inside).unwrap();
        outbox.push(b"a");
        std::fs::create_dir(&inside).unwrap();
        outbox.push(b"b");
        assert_eq!(outbox.unkept, 1);
        assert_eq!(numbers(&mut outbox), ["a", "b"]);
    }
}
