use super::*;
use crate::explain::tests::alarm;

#[test]
fn times_are_those_of_the_calendar() {
    assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
    assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
    assert_eq!(rfc3339(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
    assert_eq!(rfc3339(4_107_542_399_999), "2100-02-28T23:59:59.999Z");
}

#[test]
fn an_alarm_has_the_fields_that_receivers_read() {
    let json = serde_json::to_value(message(&alarm("acted")).unwrap()).unwrap();
    assert_eq!(json["version"], "4");
    assert_eq!(json["status"], "firing");
    assert_eq!(json["commonLabels"]["policy"], "web");
    let alert = &json["alerts"][0];
    assert_eq!(alert["labels"]["alertname"], "weir-monitor-living");
    assert_eq!(alert["labels"]["severity"], "warning");
    assert_eq!(alert["startsAt"], "2023-11-14T22:13:20.123Z");
    assert!(alert["annotations"]["description"].as_str().unwrap().contains("freeze-kill"));
    for field in
        ["groupKey", "truncatedAlerts", "receiver", "groupLabels", "commonAnnotations", "externalURL"]
    {
        assert!(json.get(field).is_some(), "{field}");
    }
}

#[test]
fn what_is_no_alarm_is_not_sent() {
    assert_eq!(message(&Entry { number: 1, unix_ms: 0, policy: None, what: What::Stopped }), None);
}
