use super::*;
use weir_model::event::Role;
use weir_model::said::LIFE_MAX_MS;
use weir_trust::said::{verify_joined_by, verify_said};

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn key() -> OperatorKey {
    OperatorKey { name: label("alice"), domain: label("lab"), seed: "07".repeat(32), agent: None }
}

fn body() -> EventBody {
    EventBody::Removed { actuator: label("h1") }
}

fn statement(domain: &str, author: &str, now_ms: u64) -> Statement {
    Statement::new(&label(domain), author.to_owned(), now_ms, &body())
}

#[test]
fn what_is_signed_is_taken_by_whoever_checks_it() {
    let (key, asked) = (key(), Asked::event(body()));
    let operator = Operator::new(&key).unwrap();
    let (public, domain) = (key.key().unwrap().public(), label("lab"));
    let mut numbers = std::collections::BTreeSet::new();
    for _ in 0..3_000 {
        let word = operator.sign(&statement("lab", "operator/alice", now_ms()), &asked).unwrap();
        let Word::Signed(signed) = word else { panic!("{word}") };
        let Signed { operator, number, made_ms, until_ms, signature } = *signed;
        let event = Event { source: SourceId::of_operator(&operator), sequence: number, body: body() };
        let said = Said { event, made_ms, until_ms, signature };
        verify_said(&public, &domain, &said).unwrap();
        assert_eq!(said.time_problem(now_ms()), None);
        assert!(numbers.insert(number) && until_ms - made_ms <= LIFE_MAX_MS);
    }
}

#[test]
fn nothing_is_signed_for_another_domain_name_or_time_or_what_was_not_asked() {
    let operator = Operator::new(&key()).unwrap();
    let asked = Asked::event(body());
    let refused = |statement: &Statement, asked: &Asked<'_>| operator.sign(statement, asked).unwrap_err();
    let now_ms = now_ms();
    assert!(refused(&statement("west", "operator/alice", now_ms), &asked).contains("domain 'west'"));
    assert!(refused(&statement("lab", "operator/bob", now_ms), &asked).contains("operator/bob"));
    let behind = refused(&statement("lab", "operator/alice", now_ms + 3_600_000), &asked);
    assert!(behind.contains("behind that of the domain"), "{behind}");
    let ahead = refused(&statement("lab", "operator/alice", now_ms - 3_600_000), &asked);
    assert!(ahead.contains("ahead of that of the domain"), "{ahead}");
    let other = Asked::event(EventBody::Removed { actuator: label("h2") });
    assert!(refused(&statement("lab", "operator/alice", now_ms), &other).contains("the removal of 'h1'"));
    let odd = Statement { body: "AA".into(), ..statement("lab", "operator/alice", now_ms) };
    assert!(refused(&odd, &asked).contains("cannot be read"));
}

#[test]
fn a_token_has_a_key_of_which_its_bearer_alone_has_the_seed() {
    let operator = Operator::new(&key()).unwrap();
    let request = TokenRequest {
        name: label("h1"),
        role: Role::Host,
        valid_s: Some(60),
        underlay: Some("192.0.2.7".into()),
        key: None,
    };
    let (asked, seed) = operator.token(&request).unwrap();
    let json =
        serde_json::json!({"ca_fingerprint": "ab", "secret": "s", "controllers": ["https://192.0.2.1:7443"]});
    let given = format!("{JOIN_TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(json.to_string()));
    let whole = operator.with_key(&given, &seed).unwrap();
    let text = URL_SAFE_NO_PAD.decode(whole.strip_prefix(JOIN_TOKEN_PREFIX).unwrap()).unwrap();
    let token: JoinToken = serde_json::from_slice(&text).unwrap();
    assert_eq!((token.secret.as_str(), token.domain), ("s", Some(label("lab"))));
    // What the bearer signs with it, is taken by the key that is ordered.
    let pair = KeyPair::from_seed(&from_hex(&token.key.unwrap()).unwrap());
    let facts = weir_model::event::ActuatorFacts {
        name: label("h1"),
        role: Role::Host,
        identity: [1; 32],
        underlay: "192.0.2.7".parse().unwrap(),
    };
    let id = from_hex(&asked.named.id).unwrap();
    let joined = weir_trust::said::sign_joined_by(&pair, &label("lab"), id, [2; 32], facts);
    verify_joined_by(&from_hex(&asked.named.key).unwrap(), &label("lab"), &joined).unwrap();
    let EventBody::Identity(about) = asked.event else { panic!("another event") };
    let IdentityEvent::Token { id: ordered, change: TokenChange::MadeWithKey { key, .. }, .. } = *about
    else {
        panic!("another event")
    };
    assert_eq!((ordered, key), (id, pair.public()));
    assert_ne!(operator.token(&request).unwrap().1, seed);
    assert!(operator.with_key("weir2.x", &seed).is_err());
}

#[test]
fn secrets_are_not_printed() {
    let key = key();
    let shown = format!("{key:?} {:?}", Operator::new(&key).unwrap());
    assert!(shown.contains("alice") && !shown.contains("0707"), "{shown}");
    assert!(OperatorKey { seed: "7".into(), ..key }.key().is_err());
}
