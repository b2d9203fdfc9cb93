use super::*;
use weir_api::pki::Authority;

fn request() -> AddDomain {
    let authority = Authority::make(&Label::new("east").unwrap()).unwrap().certificate_pem;
    let one = |id: u64| DomainMember { id, key: "ab".repeat(32), api: format!("198.18.2.{id}:7443") };
    let domain = DomainDescription {
        name: "east".into(),
        group_key: "cd".repeat(96),
        authority,
        controllers: vec![one(2), one(1)],
    };
    AddDomain { domain, underlays: vec!["198.18.2.0/24".into(), "fd00:2::/64".into()] }
}

#[test]
fn a_description_is_read_as_it_was_shown() {
    let DomainEvent::Known(record) = Domains::known(request()).unwrap() else { panic!("another event") };
    assert_eq!(record.name.as_str(), "east");
    let ids: Vec<u64> = record.controllers.iter().map(|one| one.id).collect();
    assert_eq!((ids, record.underlays.len()), (vec![1, 2], 2));
    let mut shown = described(&record);
    shown.controllers.reverse();
    assert_eq!(shown, request_like(&record));
}

/// What was asked for, with the certificate that was made for it.
fn request_like(record: &DomainRecord) -> DomainDescription {
    DomainDescription { authority: record.authority_pem.clone(), ..request().domain }
}

#[test]
fn what_is_wrong_is_named_with_what_is_right() {
    let wrong = |change: &dyn Fn(&mut AddDomain)| {
        let mut request = request();
        change(&mut request);
        Domains::known(request).unwrap_err().to_string()
    };
    let cases: [(String, &[&str]); 6] = [
        (wrong(&|one| one.domain.name = "East".into()), &["name", "East", "a-z"]),
        (wrong(&|one| one.domain.group_key = "12".into()), &["groupKey", "'12'", "192 of a threshold key"]),
        (wrong(&|one| one.domain.authority = "none".into()), &["authority", "none", "PEM"]),
        (
            wrong(&|one| one.domain.controllers[0].key = "x".into()),
            &["controller 2", "'x'", "64 hexadecimal"],
        ),
        (
            wrong(&|one| one.domain.controllers[1].api = "0.0.0.0:1".into()),
            &["api of controller 1", "192.0.2.10:7443"],
        ),
        (wrong(&|one| one.underlays[1] = "198.18.2.0/33".into()), &["underlays", "198.18.2.0/33", "such as"]),
    ];
    for (said, words) in cases {
        assert!(words.iter().all(|word| said.contains(word)), "{said}: {words:?}");
    }
}

#[test]
fn metrics_have_one_line_a_sample() {
    let mut text = Metrics::default();
    text.total("domain_answers_total", "Answers.", &[("answered", 2), ("refused", 0)]);
    text.total("domain_questions_waiting", "Questions.", &[("", 3)]);
    let shown = Shown { problem: None, ..Shown::default() };
    text.domains(&Store::new(), &BTreeMap::from([(Label::new("east").unwrap(), shown)]));
    assert_eq!(text.0.problems(), []);
    let text = text.0.text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.contains(&"weir_controller_domain_answers_total{outcome=\"answered\"} 2"), "{text}");
    assert!(lines.contains(&"# TYPE weir_controller_domain_questions_waiting gauge"), "{text}");
    assert!(lines.contains(&"weir_controller_domain_questions_waiting 3"), "{text}");
    assert!(
        lines.contains(&"weir_controller_domain_asked_total{domain=\"east\",what=\"pages\"} 0"),
        "{text}"
    );
}
