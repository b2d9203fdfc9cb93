use super::*;
use weir_planes::Plane;

fn entry(number: u64, what: What) -> audit::Entry {
    audit::Entry { number, unix_ms: 1000, policy: Some("p".into()), what }
}

fn failed(host: &str) -> What {
    What::HostFailed { host: host.into(), fenced: Some(true) }
}

#[test]
fn what_is_told_is_bounded_and_what_is_of_no_interest_is_not_told() {
    let told = note(&entry(7, failed(&"ä".repeat(400)))).unwrap();
    assert_eq!((told.number, told.severity), (7, Severity::Critical));
    assert!(told.text.len() <= TEXT_BYTES_MAX && told.text.len() > TEXT_BYTES_MAX - 4, "{}", told.text.len());
    assert!(note(&entry(7, What::Settled { took_us: 5, again: 0 })).is_some());
    assert_eq!(note(&entry(7, What::Stopped)), None);
    let fired = entry(7, What::Query { query: "forkers".into(), value: "5".into() });
    assert_eq!(note(&fired), None, "a query that fires is no fault");
    assert!(webhook::severity(&fired).is_some(), "who asked to be told by a webhook is told");
}

#[test]
fn the_newest_notes_are_told_and_a_report_is_never_longer_than_one_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.log");
    let mut log = audit::Log::open(&audit).unwrap();
    log.write(1000, None, failed("before")).unwrap();
    let telling = Telling::new(&audit);
    let status = Status { kernel: "bpf".into(), degraded: Some("old".into()), ..Status::default() };
    assert!(telling.report(&status).notes[0].text.contains("before"), "from the log");
    for number in 1..=40 {
        telling.hear(&entry(number, failed("h")));
    }
    let report = telling.report(&status);
    let numbers: Vec<u64> = report.notes.iter().map(|note| note.number).collect();
    assert_eq!(numbers, (40 - NOTES_MAX as u64 + 1..=40).collect::<Vec<_>>());
    assert_eq!(report.kernel, "bpf (degraded: old)");
    // In JSON a control character has six bytes.
    for number in 50..70 {
        telling.hear(&entry(number, failed(&"\u{1}".repeat(400))));
    }
    let report = telling.report(&status);
    let text = serde_json::to_vec(&report).unwrap();
    assert!(text.len() <= REPORT_BYTES_MAX && report.notes.len() > 8, "{} bytes", text.len());
    assert_eq!(report.notes.last().unwrap().number, 69);
    let kind = weir_planes::find(weir_planes::ALL, weir_planes::monitor::Monitor::NAME).unwrap();
    assert_eq!((kind.check_report)(&text), Ok(()));
}
