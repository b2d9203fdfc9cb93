use super::*;
use crate::testing::label;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CustomExtension, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, PublicKeyData as _,
};
use sha2::{Digest as _, Sha256};
use weir_model::identity::Rotation as Change;
use weir_model::join::{AUTHORITY_FILE, TRUST_FILE, TrustFile};
use weir_trust::identity::{verify_rotation, verify_settled};
use weir_trust::owner::{OWNER_OID, sign_owner, to_der};

const NOW: fn() -> SystemTime = SystemTime::now;

struct Scene {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, TlsKey>,
    at: Instant,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let key = TlsKey::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap().pem();
        let trust = TrustFile {
            domain: label("prod"),
            group_key: to_hex(&[1; 32]),
            epoch: 1,
            dataplane_secret: to_hex(&[2; 16]),
        };
        let files = [
            (AUTHORITY_FILE, authority),
            (TRUST_FILE, serde_json::to_string(&trust).unwrap()),
            (IDENTITY_FILE, format!("{}\n", to_hex(&[7; 32]))),
            (KEY_FILE, "the key before".to_string()),
            (CERTIFICATE_FILE, "the certificate before".to_string()),
        ];
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        Scene { directory, issuer: Issuer::new(params, key), at: Instant::now() }
    }

    /// As another process finds it.
    fn open(&self) -> Rotation {
        Rotation::open(self.directory.path(), &label("h1")).unwrap()
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    /// With the word of an identity for the key.
    fn sign(&self, csr_pem: &str, name: &str, by: Option<&KeyPair>) -> String {
        let request = CertificateSigningRequestParams::from_pem(csr_pem).unwrap();
        let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.custom_extensions.extend(by.map(|by| {
            let certified = Sha256::digest(request.public_key.subject_public_key_info()).into();
            let word = sign_owner(by, &label("prod"), &SourceId::of_actuator(&label("h1")), &certified);
            CustomExtension::from_oid_content(&OWNER_OID, to_der(&word))
        }));
        params.signed_by(&request.public_key, &self.issuer).unwrap().pem()
    }

    fn step(&mut self, rotation: &mut Rotation, anew: bool) -> Step {
        // Whatever was said is said again by now.
        self.at += RETRY;
        rotation.step(self.at, anew).unwrap()
    }

    /// What is asked of a controller.
    fn asked(&mut self, rotation: &mut Rotation) -> (Change, String) {
        match self.step(rotation, false) {
            Step::Say(frame) => match *frame {
                ToController::Rotate { rotation, csr_pem } => (rotation, csr_pem),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

fn new_key(rotation: &Rotation) -> KeyPair {
    Rotation::new_key(rotation.kept.as_ref().unwrap()).unwrap()
}

#[test]
fn a_change_goes_on_after_a_crash_at_any_step() {
    let mut scene = Scene::new();
    let old = KeyPair::from_seed(&[7; 32]);
    let mut rotation = scene.open();
    assert_eq!(scene.step(&mut rotation, true), Step::Wait);
    rotation.begin().unwrap();

    // Made: every process asks for the same keys.
    let (asked, csr) = scene.asked(&mut rotation);
    let mut rotation = scene.open();
    let (again, _) = scene.asked(&mut rotation);
    assert_eq!(again, asked);
    rotation.begin().unwrap();
    assert_eq!(scene.asked(&mut rotation).0, asked, "somebody wants it once more");
    assert_eq!((asked.old, verify_rotation(&label("prod"), &asked)), (old.public(), Ok(())));
    assert_eq!(scene.file(IDENTITY_FILE).trim(), to_hex(&[7; 32]), "nothing is signed with it yet");

    // Known: all three files are the new ones, also when only some were written.
    let new = new_key(&rotation);
    let certificate = scene.sign(&csr, "h1", Some(&new));
    assert_eq!(rotation.known(&asked.new, &certificate, NOW()).unwrap(), Some(asked.new));
    for lost in [IDENTITY_FILE, KEY_FILE, CERTIFICATE_FILE] {
        std::fs::write(scene.directory.path().join(lost), "torn").unwrap();
        rotation = scene.open();
        assert_eq!(identity(scene.directory.path()).unwrap().public(), asked.new);
        assert_eq!(scene.file(CERTIFICATE_FILE), certificate);
        assert!(TlsKey::from_pem(&scene.file(KEY_FILE)).is_ok());
    }

    // The old one is dropped when the switch has not signed with it for a while, and not before sessions are new.
    assert_eq!(scene.step(&mut rotation, true), Step::TellSwitch);
    rotation.switch_signs(&old.public(), scene.at);
    assert_eq!(scene.step(&mut rotation, true), Step::TellSwitch);
    rotation.switch_signs(&asked.new, scene.at);
    assert_eq!(rotation.step(scene.at + Duration::from_secs(4), true).unwrap(), Step::Wait);
    scene.at += GRACE;
    assert_eq!(scene.step(&mut rotation, false), Step::Wait);
    let Step::Say(frame) = scene.step(&mut rotation, true) else { panic!("it does not end") };
    let ToController::Settle { key, by_key } = *frame else { panic!("{frame:?}") };
    let source = SourceId::of_actuator(&label("h1"));
    assert_eq!((key, verify_settled(&label("prod"), &source, &key, &by_key)), (asked.new, Ok(())));

    // Another switch may have read the file before.
    rotation.switch_is_new();
    assert_eq!(scene.step(&mut rotation, true), Step::TellSwitch);
    assert!(!rotation.settled(&old.public()).unwrap());
    assert!(rotation.settled(&asked.new).unwrap());
    assert!(!rotation.is_open() && !scene.open().is_open());
    assert!(!scene.directory.path().join(ROTATION_FILE).exists());
    assert_eq!(identity(scene.directory.path()).unwrap().public(), asked.new);
}

#[test]
fn what_was_not_asked_for_changes_nothing() {
    let mut scene = Scene::new();
    let mut rotation = scene.open();
    assert_eq!(rotation.known(&[9; 32], "", NOW()).unwrap(), None, "nothing is under way");
    rotation.begin().unwrap();
    let (asked, csr) = scene.asked(&mut rotation);
    let other = TlsKey::generate().unwrap();
    let elsewhere = Scene::new();
    let (new, old) = (new_key(&rotation), KeyPair::from_seed(&[7; 32]));
    let wrong = [
        ([9; 32], scene.sign(&csr, "h1", Some(&new)), "another identity"),
        (asked.new, scene.sign(&csr, "h2", Some(&new)), "not for 'h1'"),
        (asked.new, elsewhere.sign(&csr, "h1", Some(&new)), "authority did not sign"),
        (
            asked.new,
            scene.sign(&Keys::request_of(&other, &label("h1"), None).unwrap(), "h1", Some(&new)),
            "not for the key",
        ),
        // No controller would take these, and the certificate before is over soon.
        (asked.new, scene.sign(&csr, "h1", None), "word of the new identity"),
        (asked.new, scene.sign(&csr, "h1", Some(&old)), "word of the new identity"),
        (asked.new, "no certificate".to_string(), "PEM"),
    ];
    for (key, certificate, why) in wrong {
        let error = rotation.known(&key, &certificate, NOW()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!(scene.file(CERTIFICATE_FILE), "the certificate before");
        assert_eq!(scene.asked(&mut rotation).0, asked);
    }
    assert!(!rotation.settled(&asked.new).unwrap());
}

#[test]
fn one_that_does_not_lead_costs_a_moment_and_not_a_silence() {
    let mut scene = Scene::new();
    let mut rotation = scene.open();
    rotation.begin().unwrap();
    scene.asked(&mut rotation);
    let asked_at = scene.at;
    assert_eq!(rotation.step(asked_at + NEXT, false).unwrap(), Step::Wait, "an answer is waited for");
    rotation.refused(asked_at);
    assert_eq!(rotation.step(asked_at + NEXT / 2, false).unwrap(), Step::Wait);
    assert!(matches!(rotation.step(asked_at + NEXT, false).unwrap(), Step::Say(_)));
}
