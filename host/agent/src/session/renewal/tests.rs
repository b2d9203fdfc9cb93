use super::*;
use crate::testing::label;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, PublicKeyData as _,
};
use sha2::{Digest as _, Sha256};
use weir_model::event::SourceId;
use weir_model::join::{AUTHORITY_FILE, KEY_FILE, TRUST_FILE, TrustFile};
use weir_trust::identity::KeyPair as Identity;
use weir_trust::owner::{OWNER_OID, sign_owner, to_der};

const HOUR: Duration = Duration::from_secs(3600);

struct Scene {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    key: KeyPair,
    now: SystemTime,
}

fn authority() -> (Issuer<'static, KeyPair>, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    (Issuer::new(params, key), pem)
}

fn sign(
    issuer: &Issuer<'static, KeyPair>,
    key: &KeyPair,
    name: &str,
    from: SystemTime,
    life: Duration,
) -> String {
    sign_with(issuer, key, name, (from, life), None)
}

/// With the word of an identity for the key.
fn sign_with(
    issuer: &Issuer<'static, KeyPair>,
    key: &KeyPair,
    name: &str,
    (from, life): (SystemTime, Duration),
    by: Option<&Identity>,
) -> String {
    let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = from.into();
    params.not_after = (from + life).into();
    params.custom_extensions.extend(by.map(|by| {
        let certified = Sha256::digest(key.subject_public_key_info()).into();
        let word = sign_owner(by, &label("prod"), &SourceId::of_actuator(&label(name)), &certified);
        CustomExtension::from_oid_content(&OWNER_OID, to_der(&word))
    }));
    params.signed_by(key, issuer).unwrap().pem()
}

impl Scene {
    /// An actuator whose certificate began three hours ago and lives for `life`.
    fn new(life: Duration) -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let (issuer, authority) = authority();
        let key = KeyPair::generate().unwrap();
        let now = SystemTime::now();
        let certificate = sign(&issuer, &key, "host-1", now - 3 * HOUR, life);
        for (name, text) in
            [(AUTHORITY_FILE, authority), (CERTIFICATE_FILE, certificate), (KEY_FILE, key.serialize_pem())]
        {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let seed = format!("{}\n", "07".repeat(32));
        std::fs::write(directory.path().join(weir_model::join::IDENTITY_FILE), seed).unwrap();
        Scene { directory, issuer, key, now }
    }

    fn renewal(&self) -> Renewal {
        Renewal::new(self.directory.path().to_path_buf(), label("host-1"))
    }

    fn file(&self) -> String {
        std::fs::read_to_string(self.directory.path().join(CERTIFICATE_FILE)).unwrap()
    }
}

#[test]
fn a_request_comes_when_two_thirds_are_over_and_not_twice_at_once() {
    let young = Scene::new(5 * HOUR);
    assert_eq!(young.renewal().request(young.now).unwrap(), None, "three of five hours");
    let scene = Scene::new(4 * HOUR);
    let mut renewal = scene.renewal();
    let request = renewal.request(scene.now).unwrap().expect("three of four hours");
    assert!(request.contains("CERTIFICATE REQUEST"));
    assert_eq!(renewal.request(scene.now).unwrap(), None, "one is out");
    let later = scene.now + Duration::from_secs(RETRY_S);
    assert!(renewal.request(later).unwrap().is_some(), "nobody answered");
    assert!(!is_over(scene.directory.path(), scene.now).unwrap());
    assert!(is_over(scene.directory.path(), scene.now + 2 * HOUR).unwrap());
}

#[test]
fn a_new_certificate_takes_the_old_ones_place() {
    let scene = Scene::new(4 * HOUR);
    let mut renewal = scene.renewal();
    let new = sign(&scene.issuer, &scene.key, "host-1", scene.now - HOUR, 9 * HOUR);
    let life = renewal.keep(&new, scene.now).unwrap();
    assert_eq!(life.until_s - life.from_s, 9 * 3600);
    assert_eq!(scene.file(), new);
    assert_eq!(renewal.request(scene.now).unwrap(), None);
}

#[test]
fn what_is_not_ours_is_not_kept() {
    let scene = Scene::new(4 * HOUR);
    let before = scene.file();
    let (stranger, _) = authority();
    let other = KeyPair::generate().unwrap();
    let (issuer, key, begin) = (&scene.issuer, &scene.key, scene.now - HOUR);
    let cases = [
        (sign(&stranger, key, "host-1", begin, 9 * HOUR), "authority did not sign"),
        (sign(issuer, &other, "host-1", begin, 9 * HOUR), "not for the key"),
        (sign(issuer, key, "host-2", begin, 9 * HOUR), "not for 'host-1'"),
        (sign(issuer, key, "host-1", begin, HOUR * 3 / 2), "does not last longer"),
        ("nonsense".to_string(), "no certificate"),
    ];
    for (pem, reason) in cases {
        let error = scene.renewal().keep(&pem, scene.now).unwrap_err().to_string();
        assert!(error.contains(reason), "'{reason}' is not in: {error}");
        assert_eq!(scene.file(), before);
    }
}

#[test]
fn one_controller_is_asked_at_a_time_and_the_next_when_it_does_not_answer() {
    let scene = Scene::new(4 * HOUR);
    let mut renewal = scene.renewal();
    let sessions = [3, 5, 9];
    assert_eq!((renewal.whom(&[]), renewal.whom(&sessions)), (None, Some(3)));
    assert!(renewal.request(scene.now).unwrap().is_some());
    renewal.was_asked(3);
    assert_eq!(renewal.request(scene.now).unwrap(), None, "three sessions, one request");
    assert!(!renewal.answered(5), "nobody asked it");
    // It refuses: the next one is asked, not before its time.
    assert!(renewal.answered(3) && !renewal.answered(3));
    assert_eq!(renewal.request(scene.now).unwrap(), None);
    let later = scene.now + Duration::from_secs(RETRY_S);
    assert_eq!(renewal.whom(&sessions), Some(5));
    assert!(renewal.request(later).unwrap().is_some());
    renewal.was_asked(5);
    // Its session ends: another is asked soon.
    renewal.ended(9, later);
    renewal.ended(5, later);
    let soon = later + Duration::from_secs(LOOK_S);
    assert_eq!(renewal.request(soon - Duration::from_secs(1)).unwrap(), None);
    assert!(renewal.request(soon).unwrap().is_some());
    assert_eq!((renewal.whom(&[3, 9]), renewal.whom(&sessions)), (Some(3), Some(9)));
    // What it says after all is no answer that is waited for.
    renewal.was_asked(9);
    assert!(!renewal.answered(5));
}

#[test]
fn a_certificate_with_the_word_of_our_identity_is_followed_by_none_without_it() {
    let scene = Scene::new(4 * HOUR);
    let trust = TrustFile {
        domain: label("prod"),
        group_key: String::new(),
        epoch: 1,
        dataplane_secret: String::new(),
    };
    std::fs::write(scene.directory.path().join(TRUST_FILE), serde_json::to_string(&trust).unwrap()).unwrap();
    let (ours, other) = (Identity::from_seed(&[7; 32]), Identity::from_seed(&[8; 32]));
    let new = |hours, by| {
        let times = (scene.now - HOUR, hours * HOUR);
        sign_with(&scene.issuer, &scene.key, "host-1", times, by)
    };
    // Where controllers leave it out, as those of older releases do, one without it follows one without it.
    scene.renewal().keep(&new(5, None), scene.now).unwrap();
    let owned = new(6, Some(&ours));
    scene.renewal().keep(&owned, scene.now).unwrap();
    for by in [None, Some(&other)] {
        let error = scene.renewal().keep(&new(9, by), scene.now).unwrap_err().to_string();
        assert!(error.contains("word of our identity"), "{error}");
        assert_eq!(scene.file(), owned);
    }
    scene.renewal().keep(&new(9, Some(&ours)), scene.now).unwrap();
}
