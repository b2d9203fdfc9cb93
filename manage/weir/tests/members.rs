//! Members of a group that are asked by those whom they do not know.

use crate::extra::Extra;
use crate::group::{leader, wait_whole};
use crate::identities::{counter, key};
use crate::lab::{Lab, group_lab};
use crate::namespaces::{BOUND, within};
use rustls::pki_types::ServerName;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use weir_agent::session::tls::session_config;
use weir_api::pki::{self, Authority};
use weir_base::codec::{decode, encode};
use weir_model::Label;
use weir_model::event::Role;
use weir_model::join::{AUTHORITY_FILE, CERTIFICATE_FILE, CONTROLLER_DNS_NAME, KEY_FILE};
use weir_model::session::{PROTOCOL, StateDigest, ToActuator, ToController};

/// The name of a host that the domain's authority knows, and no controller.
const UNKNOWN: &str = "unknown-1";

/// Files of a host as joining leaves them, without a controller having heard of it.
fn certify(lab: &Lab, folder: &Path) {
    let read = |name: &str| std::fs::read_to_string(lab.folder().join("c1/state").join(name)).unwrap();
    let authority = pki::Identity { certificate_pem: read("ca.crt"), key_pem: read("ca.key") };
    let made = Authority::open(&authority).unwrap().replica(UNKNOWN).unwrap();
    std::fs::create_dir_all(folder).unwrap();
    for (name, content) in [
        (AUTHORITY_FILE, &authority.certificate_pem),
        (CERTIFICATE_FILE, &made.certificate_pem),
        (KEY_FILE, &made.key_pem),
    ] {
        std::fs::write(folder.join(name), content).unwrap();
    }
}

async fn hear(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<ToActuator> {
    let length = stream.read_u32_le().await?;
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    decode(&bytes).map_err(std::io::Error::other)
}

/// What a controller answers to the greeting of a host that it does not know.
async fn greeted(folder: &Path, at: String) -> ToActuator {
    let stream = tokio::net::TcpStream::connect(at).await.unwrap();
    let name = ServerName::try_from(CONTROLLER_DNS_NAME).unwrap();
    let connector = tokio_rustls::TlsConnector::from(session_config(folder).unwrap());
    let mut stream = connector.connect(name, stream).await.unwrap();
    let hello = ToController::Hello {
        protocol: PROTOCOL,
        actuator: Label::new(UNKNOWN).unwrap(),
        role: Role::Host,
        software: "test".into(),
        identity: [7; 32],
        underlay: "198.18.96.11".parse().unwrap(),
        digest: StateDigest::default(),
    };
    let bytes = encode(&hello);
    stream.write_all(&u32::try_from(bytes.len()).unwrap().to_le_bytes()).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    hear(&mut stream).await.unwrap()
}

/// A host that the domain's authority knows, and no controller.
pub struct Stranger<'a> {
    lab: &'a Lab,
    folder: PathBuf,
}

impl<'a> Stranger<'a> {
    pub fn of(lab: &'a Lab, folder: &Path) -> Stranger<'a> {
        certify(lab, folder);
        Stranger { lab, folder: folder.to_path_buf() }
    }

    /// Why a controller refuses its session.
    pub fn hears(&self, at: &str) -> String {
        within(&self.lab.netns("h1"), || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let answer = async { tokio::time::timeout(BOUND, greeted(&self.folder, at.to_owned())).await };
            match runtime.block_on(answer).unwrap() {
                ToActuator::Refused(reason) => reason,
                other => panic!("{at}: {other:?}"),
            }
        })
    }
}

#[test]
fn a_member_that_cannot_answer_for_the_group_says_who_does() {
    let Some(lab) = group_lab("group_advice") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    let stranger = Stranger::of(&lab, Path::new(&extra.file("unknown")));
    let first = leader(&lab, "");
    let follower = lab.controllers().iter().copied().find(|one| *one != first).unwrap();
    let at = |name: &str| format!("198.18.96.{}:7444", &name[1..]);
    let said = stranger.hears(&at(follower));
    assert!(said.contains(&format!("controller {} leads", &first[1..])), "{said}");
    // Also before the first change of members.
    let all: Vec<String> = lab.controllers().iter().map(|one| at(one)).collect();
    let told = said.split_once("the controllers of the group are at ").map(|(_, told)| told.to_owned());
    let mut told: Vec<String> = told.unwrap_or_default().split(", ").map(str::to_owned).collect();
    told.sort();
    assert_eq!(told, all, "{said}");
}

#[test]
fn a_host_that_changes_its_keys_asks_the_one_that_leads() {
    let Some(lab) = group_lab("group_rotation") else { return };
    wait_whole(&lab);
    // Not the one that its agent knows first.
    let first = leader(&lab, "");
    lab.kill(&first);
    let second = leader(&lab, &first);
    lab.start(&first);
    wait_whole(&lab);
    assert_eq!(leader(&lab, ""), second);
    let refusals = || {
        let all = lab.controllers().iter().map(|one| counter(&lab, one, "rotation_refused"));
        all.sum::<u64>()
    };
    let (before, refused) = (key(&lab, "h1"), refusals());
    for _ in 0..2 {
        lab.ok(&["identity", "rotate", "h1"]);
    }
    assert_ne!(key(&lab, "h1"), before);
    assert_eq!(refusals(), refused, "each step is asked of one that takes it");
}
