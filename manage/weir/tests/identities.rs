//! Keys of hosts and controllers change under traffic, also when processes die in the middle of it; what is revoked is refused by every
//! controller, in TLS, sessions, acks and events, and stays so over restarts.

use crate::extra::Extra;
use crate::group::{Callers, Writer, connection, newcomer, wait_known, wait_whole};
use crate::lab::{Lab, byzantine_lab, text};
use crate::namespaces::wait;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::SystemTime;
use weir_api::pki::Authority;
use weir_lab::process::Signal;
use weir_model::Label;
use weir_model::event::SourceId;
use weir_trust::identity::KeyPair;
use weir_trust::owner::{OWNER_OID, sign_owner, to_der_set};

fn identities(lab: &Lab) -> Vec<Value> {
    serde_json::from_str(&lab.ok(&["identity", "list", "-o", "json"])).unwrap()
}

/// What is listed of one.
fn identity(lab: &Lab, name: &str) -> Value {
    let found = identities(lab)
        .into_iter()
        .find(|one| one["source"].as_str().unwrap().ends_with(&format!("/{name}")));
    found.unwrap_or_else(|| panic!("{name} is not listed"))
}

pub fn key(lab: &Lab, name: &str) -> String {
    identity(lab, name)["key"].as_str().unwrap_or_default().to_owned()
}

fn state(lab: &Lab, member: &str) -> PathBuf {
    lab.folder().join(member).join("state")
}

/// The certificate of a host and its key, as somebody who stole the files has them.
struct Stolen {
    host: &'static str,
    certificate: String,
    key: String,
}

impl Stolen {
    fn from(lab: &Lab, extra: &Extra, host: &'static str) -> Stolen {
        let copy = |name: &str| {
            let to = extra.file(&format!("{host}-{name}"));
            std::fs::copy(state(lab, host).join(name), &to).unwrap();
            to
        };
        Stolen { host, certificate: copy("session.crt"), key: copy("session.key") }
    }

    /// Whether a controller speaks with who shows it.
    fn is_taken(&self, lab: &Lab, controller: &str) -> bool {
        let mut curl = lab.netns(self.host).command("curl");
        curl.args([
            "-s",
            "--max-time",
            "5",
            "-o",
            "/dev/null",
            "--cert",
            &self.certificate,
            "--key",
            &self.key,
        ]);
        curl.arg("--cacert").arg(state(lab, self.host).join("ca.crt"));
        curl.arg(format!("{}/healthz", lab.context_of(controller).server));
        curl.output().unwrap().status.success()
    }

    fn taken_by(&self, lab: &Lab) -> usize {
        lab.controllers().iter().filter(|one| self.is_taken(lab, one)).count()
    }
}

/// A counter of a controller.
pub fn counter(lab: &Lab, controller: &str, what: &str) -> u64 {
    let metrics = lab.client_of(controller).metrics().unwrap_or_default();
    let line = format!("weir_controller_identities_total{{what=\"{what}\"}} ");
    metrics.lines().find_map(|found| found.strip_prefix(&line)?.parse().ok()).unwrap_or(0)
}

/// A host changes its keys while its agent and its switch are killed, and controllers are.
fn changes_over_crashes(lab: &Lab, host: &str) {
    let before = key(lab, host);
    let rotate = || {
        let mut command = lab.command();
        command
            .args(["identity", "rotate", host])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut running = rotate();
    wait("new keys to be made", || state(lab, host).join("rotation.json").exists());
    lab.crash(host, "agent");
    lab.crash(host, "switch");
    lab.kill("c1");
    wait("the change to end without c1", || {
        let listed = lab.weir(&["identity", "list", "-o", "json"]);
        let listed: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        let own = listed.iter().find(|one| one["source"] == format!("actuator/{host}"));
        own.is_some_and(|own| own["key"] != before.as_str() && own["previous"].is_null())
    });
    lab.start("c1");
    let _ended = (running.kill(), running.wait());
    wait("the file of the change to go", || !state(lab, host).join("rotation.json").exists());
    wait_whole(lab);
}

/// A controller signs certificates for a host, as it likes: no controller takes one, and all take the host's own.
fn the_authoritys_key_makes_nobody(lab: &Lab, extra: &Extra) {
    let read = |name: &str| std::fs::read_to_string(state(lab, "c4").join(name)).unwrap();
    let made = weir_api::pki::Identity { certificate_pem: read("ca.crt"), key_pem: read("ca.key") };
    let (authority, h2) = (Authority::open(&made).unwrap(), Label::new("h2").unwrap());
    let thief = KeyPair::from_seed(&[9; 32]);
    for (number, by) in [None, Some(thief)].into_iter().enumerate() {
        let key = rcgen::KeyPair::generate().unwrap();
        let word = by.map(|by| {
            let certified = Sha256::digest(rcgen::PublicKeyData::subject_public_key_info(&key)).into();
            let domain = Label::new("lab").unwrap();
            to_der_set(&sign_owner(&by, &domain, &SourceId::of_actuator(&h2), &certified))
        });
        let attributes = word.map(|values| rcgen::Attribute { oid: &OWNER_OID, values });
        let request = rcgen::CertificateParams::new(vec!["h2".to_owned()]).unwrap();
        let request = request.serialize_request_with_attributes(&key, attributes.into_iter().collect());
        let request = request.unwrap().pem().unwrap();
        let signed = authority.actuator(&h2, &request, 30, SystemTime::now()).unwrap();
        let file = |name: &str, text: &str| {
            let to = extra.file(&format!("evil-{number}-{name}"));
            std::fs::write(&to, text).unwrap();
            to
        };
        let (certificate, key) = (file("crt", &signed), file("key", &key.serialize_pem()));
        let evil = Stolen { host: "h2", certificate, key };
        wait("what one controller signed to be refused by all", || evil.taken_by(lab) == 0);
    }
    assert_eq!(Stolen::from(lab, extra, "h2").taken_by(lab), 4, "its own");
}

fn hosts_change_theirs(lab: &Lab, extra: &Extra) {
    let (before, others) = (identity(lab, "h1"), key(lab, "h2"));
    assert_eq!(before["certificates"].as_array().unwrap().len(), 1, "{before}");
    let old = Stolen::from(lab, extra, "h1");
    assert_eq!(old.taken_by(lab), 4);
    let programmed = lab.programmed();
    lab.ok(&["identity", "rotate", "h1"]);
    let after = identity(lab, "h1");
    assert_ne!((&after["key"], &after["certificates"]), (&before["key"], &before["certificates"]));
    assert_eq!((&after["previous"], &after["revoked"]), (&Value::Null, &Value::Null), "{after}");
    assert_eq!(after["certificates"].as_array().unwrap().len(), 1, "{after}");
    assert_eq!(key(lab, "h2"), others);
    wait_whole(lab);
    wait("the certificate before to be refused by all", || old.taken_by(lab) == 0);
    assert_eq!(Stolen::from(lab, extra, "h1").taken_by(lab), 4, "the new one is taken");
    for (switch, entries) in programmed {
        let now = &lab.programmed()[switch];
        assert!(entries.iter().all(|(key, version)| now.get(key) == Some(version)), "{switch}");
    }
}

fn a_controller_changes_its_own(lab: &Lab) {
    let before = key(lab, "controller-2");
    lab.ok(&["identity", "rotate", "controller-2"]);
    let after = identity(lab, "controller-2");
    assert!(after["key"] != before.as_str() && after["previous"].is_null(), "{after}");
    // What it says is taken, also after it began anew with its new key, and when it is the only one that is asked.
    for round in ["before", "behind"] {
        let context = state(lab, "c2").join("admin.json");
        let mut asked: weir_api::client::Context =
            serde_json::from_str(&std::fs::read_to_string(&context).unwrap()).unwrap();
        asked.others.clear();
        let alone = lab.folder().join("c2-alone.json");
        std::fs::write(&alone, serde_json::to_string(&asked).unwrap()).unwrap();
        let (alone, document) = (alone.display().to_string(), format!("kind: network\nname: said-{round}\n"));
        let arguments = ["apply", "-f", "-", "--yes", "--wait-s", "30", "--context", &alone];
        let said = lab.weir_with_input(&arguments, &document);
        assert!(said.status.success(), "{}", text(&said.stderr));
        if round == "before" {
            lab.kill("c2");
            lab.start("c2");
            wait_whole(lab);
        }
    }
}

fn one_is_revoked(lab: &Lab, extra: &Extra, echo: &crate::echo::Echo) {
    let stolen = Stolen::from(lab, extra, "h3");
    assert_eq!(stolen.taken_by(lab), 4);
    lab.ok(&["identity", "revoke", "h3", "--reason", "stolen from the rack", "--yes"]);
    let gone = || lab.switches().iter().any(|one| one.name == "h3" && !one.connected);
    wait("the sessions of h3 to end", gone);
    wait("its certificate to be refused by all", || stolen.taken_by(lab) == 0);
    wait("every controller to have refused its sessions", || {
        lab.controllers().iter().all(|one| counter(lab, one, "session_revoked") > 0)
    });
    let listed = identity(lab, "h3");
    assert_eq!(listed["revoked"]["reason"], "stolen from the rack");
    assert!(listed["key"].is_null() && listed["refused"].as_u64() >= Some(1), "{listed}");
    let said = lab.ok(&["audit", "list", "--about", "stolen from the rack"]);
    assert!(said.contains("identity") && said.contains("h3 revoked"), "{said}");
    echo.goes_on();

    // It is in the order, and not only in memory.
    for one in ["c1", "c3"] {
        lab.kill(one);
        lab.start(one);
        // Its agent would try again by itself, but with each refusal it waits longer.
        lab.crash("h3", "agent");
        wait(&format!("{one} to refuse it again"), || counter(lab, one, "session_revoked") > 0);
        assert!(!stolen.is_taken(lab, one));
    }
    assert!(gone());
    let again = lab.weir(&["identity", "rotate", "h3"]);
    assert!(text(&again.stderr).contains("revoked"), "{}", text(&again.stderr));
}

/// Another machine in its place: an empty state directory and a new token.
fn it_is_replaced(lab: &Lab) {
    let token = lab.ok(&["token", "--name", "h3"]);
    lab.kill("h3");
    for role in ["agent", "switch"] {
        if let Some(child) = lab.child("h3", role) {
            let _gone = child.signal(Signal::KILL);
            wait(&format!("the {role} of h3 to be gone"), || !child.alive());
        }
    }
    // First with what it had: refused. Then with new keys.
    let begin = || {
        let mut start: Command = lab.command();
        start.args(["lab", "start", "h3", "four-controllers", "--instance", "9"]);
        start.env("WEIR_JOIN_TOKEN", token.trim()).output().unwrap()
    };
    std::fs::remove_file(state(lab, "h3").join("membership.json")).unwrap();
    begin();
    wait("its old key to be refused", || {
        std::fs::read_to_string(lab.log("h3")).is_ok_and(|log| log.contains("this key was revoked"))
    });
    for file in ["identity.seed", "session.key", "session.crt"] {
        std::fs::remove_file(state(lab, "h3").join(file)).unwrap();
    }
    wait("the refused one to have ended", || lab.program("h3").is_none_or(|one| !one.alive()));
    // Keys that are gone are made anew only where an operator says so.
    lab.ok(&["state", "accept", "--state", &state(lab, "h3").display().to_string(), "--yes"]);
    begin();
    wait("h3 to be there again", || lab.switches().iter().any(|one| one.name == "h3" && one.connected));
    let listed = identity(lab, "h3");
    assert!(listed["revoked"].is_null() && listed["refused"].as_u64() >= Some(1), "{listed}");
}

#[test]
fn keys_change_under_traffic_and_who_is_revoked_is_refused_everywhere() {
    let Some(lab) = byzantine_lab("identities") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    let echo = connection(&lab);
    wait_known(&lab);
    let writer = Writer::begin(&lab, "identities");
    let callers = Callers::begin(&lab, "identities");

    the_authoritys_key_makes_nobody(&lab, &extra);
    hosts_change_theirs(&lab, &extra);
    echo.goes_on();
    newcomer(&lab, &extra, 41);
    changes_over_crashes(&lab, "h2");
    echo.goes_on();
    writer.goes_on();
    a_controller_changes_its_own(&lab);
    one_is_revoked(&lab, &extra, &echo);
    it_is_replaced(&lab);
    wait_whole(&lab);
    newcomer(&lab, &extra, 42);
    echo.goes_on();
    callers.ends();
    writer.ends();
    for one in lab.controllers() {
        let context = state(&lab, one).join("admin.json").display().to_string();
        let verified = lab.ok(&["audit", "verify", "--context", &context]);
        assert!(verified.contains("Nothing is wrong"), "{one}: {verified}");
    }
    assert!(echo.close() > 0);
    lab.start("nginx-red-db");
}
