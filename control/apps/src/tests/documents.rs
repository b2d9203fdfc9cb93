//! Documents that are wrong get an error that names the field.

use super::*;

fn field(document: Value) -> FieldError {
    match Cloud::new().try_apply(json!([document])) {
        Err(Rejection::Field { error, .. }) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wrong_field_is_named_with_its_value() {
    let subnet = |more: Value| with(subnet("red", "10.0.0.0/24"), more);
    let endpoint = |more: Value| with(endpoint("red", "web", "h1"), more);
    for (document, name, value, allowed) in [
        (
            json!({"kind": "network", "name": "red", "mtuu": 1500}),
            "mtuu",
            "1500",
            "no such field, but name, mtu",
        ),
        (
            json!({"kind": "network", "name": "red", "mtu": "big"}),
            "mtu",
            "big",
            "a whole number from 0 to 65535",
        ),
        (json!({"kind": "network", "name": "red", "mtu": 9}), "mtu", "9", "1280 to 65000"),
        (json!({"kind": "network", "name": "red", "ingress": "maybe"}), "ingress", "maybe", "allow or deny"),
        (subnet(json!({"v4": "10.0.0.0/240"})), "v4", "10.0.0.0/240", "an IP"),
        (subnet(json!({"v4": "10.0.0.1/24"})), "v4", "10.0.0.1/24", "here 10.0.0.0/24"),
        (subnet(json!({"dhcp": {"leasS": 5}})), "dhcp.leasS", "5", "leaseS"),
        (
            subnet(json!({"dhcp": {"leaseS": "long"}})),
            "dhcp.leaseS",
            "long",
            "a whole number from 0 to 4294967295",
        ),
        (endpoint(json!({"attachment": {"netns": "a"}})), "attachment.device", "", "must be given"),
        (endpoint(json!({"subnet": null})), "subnet", "null", "a text"),
        (endpoint(json!({"tags": ["Web"]})), "tags", "[\"Web\"]", "a letter or digit"),
    ] {
        let error = field(document.clone());
        assert_eq!((error.field.as_str(), error.value.as_str()), (name, value), "{document}: {error}");
        assert!(error.allowed.contains(allowed), "{document}: {error}");
    }
}

fn text(document: &str) -> Result<Plan, Rejection> {
    let wanted = Wanted::Document(document.to_string());
    Cloud::new().mutate(vec![Mutation { id: id("network/red"), expected: None, wanted }])
}

#[test]
fn what_is_no_document_at_all_is_said() {
    for (document, wanted) in [
        ("{", "document: '{' is not allowed: JSON; EOF"),
        (r#"{"kind": "network"}"#, "name: '' is not allowed: it must be given"),
        (r#"{"name": "red"}"#, "kind: '' is not allowed: it must be given"),
        (r#"{"kind": "net", "name": "red"}"#, "kind: "),
        (r#"{"kind": "network", "name": "red", "mtu": 1400, "mtu": 1500}"#, "duplicate field `mtu`"),
        (r#"{"kind": "network", "name": "blue"}"#, "the document of network/red"),
        (r#"{"kind": "endpoint", "network": "x", "subnet": "y", "name": "red"}"#, "kind: 'endpoint/x/red'"),
    ] {
        let error = text(document).unwrap_err().to_string();
        assert!(error.contains(wanted), "{document}: {error}");
    }
    let long = format!(r#"{{"kind": "network", "name": "red"{}}}"#, " ".repeat(DOCUMENT_BYTES_MAX));
    assert!(matches!(text(&long), Err(Rejection::Limit { .. })));
    let strange = ResourceId { kind: Kind::Network, network: Some(label("x")), name: label("y") };
    let gone = Mutation { id: strange, expected: None, wanted: Wanted::Absent };
    assert!(matches!(Cloud::new().mutate(vec![gone]), Err(Rejection::Field { .. })));
}

#[test]
fn fuzz_documents() {
    let good = [
        network("red").to_string(),
        with(subnet("red", "10.0.0.0/24"), json!({"v6": "fd00::/64", "dhcp": {"leaseS": 60}})).to_string(),
        with(endpoint("red", "a", "h1"), json!({"addresses": ["10.0.0.5"], "attachment": {"device": "d"}}))
            .to_string(),
    ];
    bolero::check!().with_iterations(5_000).with_type::<(u8, usize, u8, Vec<u8>)>().for_each(
        |(which, at, flip, noise)| {
            let mut bytes = good[usize::from(*which) % good.len()].clone().into_bytes();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            bytes.splice(at..at, noise.iter().copied());
            let document = String::from_utf8_lossy(&bytes).into_owned();
            for target in ["network/red", "subnet/red/main", "endpoint/red/a"] {
                let wanted = Wanted::Document(document.clone());
                let mut cloud = Cloud::new();
                let before = cloud.store.digest();
                let change = Mutation { id: id(target), expected: None, wanted };
                if cloud.mutate(vec![change]).is_err() {
                    assert_eq!(cloud.store.digest(), before);
                }
            }
        },
    );
}
