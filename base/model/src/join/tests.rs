use super::*;

#[test]
fn hex_is_read_strictly() {
    assert_eq!(from_hex::<2>("0aFf"), Some([0x0a, 0xff]));
    for wrong in ["", "0a", "0aff0", "0afg", "+aff", "0aff00"] {
        assert_eq!(from_hex::<2>(wrong), None, "{wrong:?}");
    }
    assert_eq!(to_hex(&[0x0a, 0xff]), "0aff");
}

#[test]
fn secrets_are_not_printed() {
    let response = JoinResponse {
        certificate_pem: String::new(),
        ca_pem: String::new(),
        domain: Label::new("d").unwrap(),
        epoch: 1,
        group_key: "aa".repeat(32),
        dataplane_secret: "5ec2e7".repeat(5),
        controllers: vec![],
    };
    assert!(!format!("{response:?}").contains("5ec2e7"));
    let token = JoinToken {
        ca_fingerprint: "bb".repeat(32),
        secret: "5ec2e7".into(),
        controllers: vec!["c".into()],
        domain: None,
        key: Some("5ec2e7".repeat(10)),
    };
    assert!(!format!("{token:?}").contains("5ec2e7"));
}
