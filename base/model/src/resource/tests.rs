use super::*;

fn parse(json: &str) -> Result<Resource, String> {
    serde_json::from_str::<Resource>(json).map_err(|e| e.to_string())
}

fn wrong_field(json: &str) -> String {
    parse(json).unwrap().validate().unwrap_err().field
}

#[test]
fn a_document_keeps_its_meaning_through_json() {
    let text = r#"{"kind":"firewall-rule","network":"red","name":"web","direction":"ingress","action":"allow",
        "protocol":"tcp","ports":["80","8000-8080"],"peers":[{"prefix":"10.0.0.0/8"},{"tag":"client"}]}"#;
    let rule = parse(text).unwrap();
    rule.validate().unwrap();
    assert_eq!(rule.id().to_string(), "firewall-rule/red/web");
    let again = parse(&serde_json::to_string(&rule).unwrap()).unwrap();
    assert_eq!(rule, again);
    let Resource::FirewallRule(rule) = rule else { panic!("kind lost") };
    assert!(rule.stateful);
    assert_eq!(rule.ports[1], PortRange { first: 8000, last: 8080 });
    assert_eq!(rule.protocol, Protocol::TCP);
}

#[test]
fn an_unknown_field_is_an_error_that_names_it() {
    let error = parse(r#"{"kind":"network","name":"red","mttu":1400}"#).unwrap_err();
    assert!(error.contains("mttu"), "{error}");
    let error =
        parse(r#"{"kind":"subnet","network":"red","name":"a","v4":"10.0.0.0/24","dhcp":{"lease":1}}"#);
    assert!(error.unwrap_err().contains("lease"));
}

#[test]
fn wrong_values_name_their_field() {
    assert_eq!(wrong_field(r#"{"kind":"network","name":"red","mtu":1000}"#), "mtu");
    assert_eq!(wrong_field(r#"{"kind":"subnet","network":"red","name":"a"}"#), "v4");
    assert_eq!(wrong_field(r#"{"kind":"subnet","network":"red","name":"a","v4":"10.0.0.1/24"}"#), "v4");
    assert_eq!(wrong_field(r#"{"kind":"subnet","network":"red","name":"a","v6":"fd00::/32"}"#), "v6");
    let endpoint =
        |rest: &str| format!(r#"{{"kind":"endpoint","network":"red","name":"a","subnet":"s",{rest}}}"#);
    assert_eq!(wrong_field(&endpoint(r#""mac":"01:00:00:00:00:01""#)), "mac");
    assert_eq!(wrong_field(&endpoint(r#""addresses":["224.0.0.1"]"#)), "addresses");
    assert_eq!(wrong_field(&endpoint(r#""addresses":["10.0.0.1","10.0.0.1"]"#)), "addresses");
    assert_eq!(wrong_field(&endpoint(r#""attachment":{"device":"a/b"}"#)), "attachment.device");
    assert_eq!(wrong_field(&endpoint(r#""attachment":{"device":"a","netns":"../x"}"#)), "attachment.netns");
    assert_eq!(
        wrong_field(
            r#"{"kind":"firewall-rule","network":"red","name":"a","direction":"egress","action":"deny","protocol":"icmp","ports":["1"]}"#
        ),
        "ports"
    );
    assert!(parse(r#"{"kind":"network","name":"Red_1"}"#).unwrap_err().contains("Red_1"));
}

#[test]
fn the_router_has_the_first_address() {
    let Resource::Subnet(subnet) =
        parse(r#"{"kind":"subnet","network":"red","name":"a","v4":"10.1.2.0/24","v6":"fd00:1::/64"}"#)
            .unwrap()
    else {
        panic!("kind lost")
    };
    assert_eq!(subnet.router_v4(), Some(Ipv4Addr::new(10, 1, 2, 1)));
    assert_eq!(subnet.router_v6(), Some("fd00:1::1".parse().unwrap()));
}

#[test]
fn fuzz_a_document_never_panics() {
    bolero::check!().with_iterations(5_000).for_each(|bytes: &[u8]| {
        if let Ok(resource) = serde_json::from_slice::<Resource>(bytes) {
            let _ = resource.validate();
        }
    });
}

#[test]
fn a_wrong_document_gets_the_field_the_value_and_what_is_allowed() {
    let cases = [
        (
            r#"{"kind":"endpoint","network":"red","name":"a","subnet":"s","addresses":["10.0.0.300"]}"#,
            "addresses",
            "10.0.0.300",
        ),
        (r#"{"kind":"endpoint","network":"red","name":"a"}"#, "subnet", ""),
        (
            r#"{"kind":"endpoint","network":"red","name":"a","subnet":"s","attachment":{"device":7}}"#,
            "attachment.device",
            "7",
        ),
        (r#"{"kind":"network","name":"red","colour":1}"#, "colour", "1"),
        (r#"{"kind":"network","name":"red","mtu":100}"#, "mtu", "100"),
        (r#"{"kind":"cloud","name":"red"}"#, "kind", "cloud"),
        (r#"{"name":"red"}"#, "kind", ""),
        (r#"[1]"#, "document", "[1]"),
    ];
    for (json, field, value) in cases {
        let error = Resource::from_document(&serde_json::from_str(json).unwrap()).unwrap_err();
        assert_eq!(error.field, field, "{json}: {error}");
        assert!(error.value.contains(value), "{json}: {error}");
    }
    let right = serde_json::json!({"kind": "network", "name": "red"});
    assert_eq!(Resource::from_document(&right).unwrap().id().to_string(), "network/red");
}

#[test]
fn a_virtual_machine_has_a_socket_and_a_container_a_device() {
    let with = |attachment: &str| {
        format!(r#"{{"kind":"endpoint","network":"red","name":"a","subnet":"s","attachment":{attachment}}}"#)
    };
    for right in [
        r#"{"device":"eth0"}"#,
        r#"{"kind":"tap","device":"eth0","netns":"a","queuePairs":1}"#,
        r#"{"kind":"vhost-user","socket":"/run/weir/a.sock"}"#,
        r#"{"kind":"vhost-user-client","socket":"/run/weir/a.sock","queuePairs":8}"#,
    ] {
        let read = Resource::from_text(&with(right)).unwrap();
        let again = serde_json::to_string(&read).unwrap();
        assert_eq!(Resource::from_text(&again).unwrap(), read, "{again}");
    }
    for (wrong, field) in [
        (r#"{"kind":"tap"}"#, "attachment.device"),
        (r#"{"kind":"wire","device":"a"}"#, "attachment.kind"),
        (r#"{"device":"a","socket":"/a"}"#, "attachment.socket"),
        (r#"{"device":"a","queuePairs":2}"#, "attachment.queuePairs"),
        (r#"{"kind":"vhost-user"}"#, "attachment.socket"),
        (r#"{"kind":"vhost-user","socket":"a.sock"}"#, "attachment.socket"),
        (r#"{"kind":"vhost-user","socket":"/run/../a"}"#, "attachment.socket"),
        (r#"{"kind":"vhost-user","socket":"/a","device":"b"}"#, "attachment.device"),
        (r#"{"kind":"vhost-user","socket":"/a","netns":"b"}"#, "attachment.netns"),
        (r#"{"kind":"vhost-user","socket":"/a","queuePairs":0}"#, "attachment.queuePairs"),
        (r#"{"kind":"vhost-user","socket":"/a","queuePairs":9}"#, "attachment.queuePairs"),
    ] {
        assert_eq!(Resource::from_text(&with(wrong)).unwrap_err().field, field, "{wrong}");
    }
}

fn read(json: &str) -> (Resource, serde_json::Value) {
    let document: serde_json::Value = serde_json::from_str(json).unwrap();
    (Resource::from_document(&document).unwrap(), document)
}

#[test]
fn what_is_reserved_is_refused_at_the_door_and_still_read() {
    let subnet = |rest: &str| format!(r#"{{"kind":"subnet","network":"red","name":"a",{rest}}}"#);
    let endpoint = |address: &str| {
        format!(r#"{{"kind":"endpoint","network":"red","name":"a","subnet":"s","addresses":["{address}"]}}"#)
    };
    for (wrong, field) in [
        (subnet(r#""v4":"240.0.0.0/8""#), "v4"),
        (subnet(r#""v4":"255.0.0.0/24""#), "v4"),
        (subnet(r#""v4":"010.1.0.0/24""#), "v4"),
        (subnet(r#""v6":"::/64""#), "v6"),
        (subnet(r#""v6":"::ffff:0:0/96""#), "v6"),
        (endpoint("240.0.0.1"), "addresses"),
        (endpoint("::ffff:10.0.0.1"), "addresses"),
        (endpoint("::5"), "addresses"),
    ] {
        let (resource, document) = read(&wrong);
        let error = resource.admit(&document).unwrap_err();
        assert_eq!(error.field, field, "{wrong}: {error}");
    }
    for right in [
        subnet(r#""v4":"10.1.0.0/24","v6":"fd00:1::/64""#),
        subnet(r#""v4":"100.64.0.0/10","v6":"2001:db8::/48""#),
        subnet(r#""v6":"64:ff9b:1::/48""#).replace("64:ff9b:1::", "fc00::"),
        endpoint("10.0.0.10"),
        endpoint("0:0:0:0:0:0:0:5").replace("0:0:0:0:0:0:0:5", "fd00::5"),
        r#"{"kind":"network","name":"red"}"#.to_owned(),
        r#"{"kind":"route","network":"red","name":"r","prefix":"::/0","nextHop":"drop"}"#.to_owned(),
    ] {
        let (resource, document) = read(&right);
        resource.admit(&document).unwrap_or_else(|error| panic!("{right}: {error}"));
    }
}

#[test]
fn the_order_of_a_set_says_nothing() {
    let endpoint = |addresses: &str, tags: &str| {
        read(&format!(
            r#"{{"kind":"endpoint","network":"red","name":"a","subnet":"s","addresses":[{addresses}],"tags":[{tags}]}}"#
        ))
        .0
    };
    let one = endpoint(r#""10.0.0.5","fd00::5""#, r#""a","b""#);
    let other = endpoint(r#""fd00::5","10.0.0.5""#, r#""b","a""#);
    assert!(one != other && one.says_the_same(&other) && one.differences(&other).is_empty());
    let third = endpoint(r#""10.0.0.6""#, r#""a","b""#);
    assert!(!one.says_the_same(&third));
    let [(field, before, after)] = &one.differences(&third)[..] else { panic!() };
    assert_eq!(field, "addresses");
    assert_eq!(before.as_ref().unwrap(), &serde_json::json!(["10.0.0.5", "fd00::5"]));
    assert_eq!(after.as_ref().unwrap(), &serde_json::json!(["10.0.0.6"]));
    let rule = |ports: &str| {
        read(&format!(
            r#"{{"kind":"firewall-rule","network":"red","name":"r","direction":"ingress","action":"allow","protocol":"tcp","ports":[{ports}]}}"#
        ))
        .0
    };
    assert!(rule(r#""80","443""#).says_the_same(&rule(r#""443","80""#)));
    assert!(!rule(r#""80","443""#).says_the_same(&rule(r#""80""#)));
    let balancer = |members: &str| {
        read(&format!(
            r#"{{"kind":"balancer","network":"red","name":"b","address":"10.0.0.9","services":[{{"protocol":"tcp","port":80}}],"members":[{members}]}}"#
        ))
        .0
    };
    assert!(!balancer(r#""a","b""#).says_the_same(&balancer(r#""b","a""#)), "they take turns as they stand");
}

#[test]
fn errors_speak_of_documents_and_say_a_thing_once() {
    let cases = [
        (
            r#"{"kind":"network","name":"red","mtu":70000}"#,
            "mtu: '70000' is not allowed: a whole number from 0 to 65535",
        ),
        (
            r#"{"kind":"network","name":"red","mtu":"big"}"#,
            "mtu: 'big' is not allowed: a whole number from 0 to 65535",
        ),
        (
            r#"{"kind":"network","name":"red","ingress":"maybe"}"#,
            "ingress: 'maybe' is not allowed: allow or deny",
        ),
        (
            r#"{"kind":"network","name":"red","externalAccess":"yes"}"#,
            "externalAccess: 'yes' is not allowed: true or false",
        ),
        (r#"{"kind":"network","name":7}"#, "name: '7' is not allowed: a text"),
        (r#"{"kind":"network","name":"Red"}"#, "name: 'Red' is not allowed: use 1 to 63 of a-z"),
        (
            r#"{"kind":"firewall-rule","network":"red","name":"r","direction":"ingress","action":"allow","ports":["x"]}"#,
            "a port such as",
        ),
        (
            r#"{"kind":"endpoint","network":"red","name":"a","subnet":"s","tags":"web"}"#,
            "tags: 'web' is not allowed: a list",
        ),
    ];
    for (json, wanted) in cases {
        let document: serde_json::Value = serde_json::from_str(json).unwrap();
        let said = Resource::from_document(&document).unwrap_err().to_string();
        assert!(said.contains(wanted), "{json}: {said}");
        for word in ["u16", "variant", "expected", "invalid type", "sequence", "struct"] {
            assert!(!said.contains(word), "'{word}' in: {said}");
        }
        assert_eq!(said.matches("is not allowed").count(), 1, "{said}");
    }
}
