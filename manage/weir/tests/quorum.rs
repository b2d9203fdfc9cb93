//! A group whose members sign with shares of a key: the key stays while shares are dealt anew; and one of three
//! that lies, as an aggregator and about its own shares, is found out, named, and changes nothing.
//!
//! The liar is written here. It takes the place of a controller that was killed, with that one's certificate and address,
//! and speaks to the others as it would.

use crate::echo::ping_all;
use crate::extra::{Extra, configure, endpoint, ip};
use crate::group::{leader, wait_whole};
use crate::lab::{Lab, SWITCHES, group_lab};
use crate::namespaces::{enter, wait};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;
use weir_api::pki::{self, Authority};
use weir_api::types::GroupSigning;
use weir_base::codec::{decode, encode};
use weir_controller::quorum::PeerMessage;
use weir_model::signed::{BlsSignature, Signature};
use weir_raft::driver::{Identity, Listener, TlsListener, TlsTransport, replica_name};
use weir_raft::net::message::{Hello, Request, Response, decode_request, encode_request, encode_response};
use weir_raft::net::{Lane, Link, PROTOCOL, Transport};
use weir_raft::runtime::Life;
use weir_trust::threshold::ShareSignature;

const FRAME_BYTES_MAX: usize = 18 << 20;

fn signing(lab: &Lab) -> GroupSigning {
    lab.client().group().unwrap().signing.unwrap()
}

fn newcomer(lab: &Lab, extra: &Extra, number: u8) {
    let name = format!("signed-{number}");
    let netns = extra.netns(&name);
    let address = format!("10.1.0.{}", 220 + number);
    lab.apply(&endpoint("red", &name, "h1", &[&address], &netns));
    configure(&netns, &format!("{address}/24"), "10.1.0.1");
    assert!(ping_all(&lab.netns("red-app"), ip(&address)), "a new endpoint comes up");
}

#[test]
fn several_sign_and_shares_are_dealt_anew_under_the_same_key() {
    let Some(lab) = group_lab("quorum_refresh") else { return };
    wait_whole(&lab);
    let before = signing(&lab);
    let key = before.key.clone().unwrap();
    assert_eq!((key.len(), before.threshold, &before.members[..]), (192, 2, &[1, 2, 3][..]));
    assert_eq!(lab.client().status().unwrap().group_key, key);
    let share = |one: &str| std::fs::read(lab.folder().join(one).join("state/quorum/share")).unwrap();
    let shares = || ["c1", "c2", "c3"].map(share);
    let old = shares();
    assert!(old[0] != old[1] && old[1] != old[2], "each has its own");
    let mode = std::fs::metadata(lab.folder().join("c1/state/quorum")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    assert!(lab.ok(&["group", "refresh"]).contains("new share"));
    let after = signing(&lab);
    assert!(after.phase > before.phase);
    assert_eq!(after.key, Some(key));
    wait("new shares on every disk", || shares().iter().zip(&old).all(|(new, old)| new != old));
    assert_eq!(after.faults, before.faults);

    let extra = Extra::begin();
    newcomer(&lab, &extra, 1);
    let listed = lab.ok(&["group", "list"]);
    assert!(listed.contains("Signed by any 2 of controllers 1, 2, 3 with shares of key"), "{listed}");
    let traced = lab.ok(&["trace", "red/app", "db", "--protocol", "tcp", "--port", "5432"]);
    assert!(traced.contains("threshold key"), "{traced}");
}

/// A member that lies.
struct Liar {
    stop: Arc<AtomicBool>,
    lies: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Liar {
    /// In the place of controller `id`, which must not run.
    fn begin(lab: &Lab, id: u8, others: &[u8]) -> Liar {
        let state = lab.folder().join(format!("c{id}/state"));
        let read = |name: &str| std::fs::read_to_string(state.join(name)).unwrap();
        let authority = pki::Identity { certificate_pem: read("ca.crt"), key_pem: read("ca.key") };
        let authority = Authority::open(&authority).unwrap();
        let made = authority.replica(&replica_name(u64::from(id))).unwrap();
        let root = pki::chain(authority.certificate_pem()).unwrap().into_iter().next().unwrap();
        let chain = pki::chain(&made.certificate_pem).unwrap();
        let identity = Identity { chain, key: pki::key(&made).unwrap(), authority: root };
        let (stop, lies) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (netns, told) = (lab.netns(&format!("c{id}")), (stop.clone(), lies.clone()));
        let others = others.to_vec();
        let run = move || {
            enter(&netns);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let life = Life::default();
            runtime.block_on(async {
                let lived = life.spawn(live(id, others, identity, told));
                lived.await.unwrap();
                life.end();
            });
        };
        Liar { stop, lies, thread: std::thread::spawn(run) }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap();
    }
}

fn address(id: u8) -> String {
    format!("198.18.{}.{id}:7445", 77 + 10 + 9)
}

async fn live(id: u8, others: Vec<u8>, identity: Identity, (stop, lies): (Arc<AtomicBool>, Arc<AtomicU64>)) {
    let listener = std::net::TcpListener::bind(address(id)).unwrap();
    let listener = Box::new(TlsListener::new(listener, &identity, FRAME_BYTES_MAX).unwrap());
    let transport = TlsTransport::new(&identity, FRAME_BYTES_MAX).unwrap();
    let (accepted, mut links) = mpsc::channel(64);
    let listening = tokio::spawn(listener.listen(accepted));
    let (heard, mut shares) = mpsc::channel(1024);
    let mut outgoing: Vec<(u8, Option<(Link, u64)>)> = others.into_iter().map(|to| (to, None)).collect();
    let mut last = BlsSignature([[7; 16]; 3]);
    while !stop.load(Ordering::Acquire) {
        tokio::select! {
            link = links.recv() => {
                let heard = heard.clone();
                tokio::spawn(hear(link.unwrap().link, heard));
            }
            share = shares.recv() => {
                let (phase, header, share): (u64, weir_model::signed::BatchHeader, ShareSignature) = share.unwrap();
                // What was right for another batch: a point of the group that signs something else.
                let wrong = std::mem::replace(&mut last, share.signature);
                let batch = (header.index, header.root);
                let lie = ShareSignature { member: u32::from(id), signature: wrong };
                for (to, link) in &mut outgoing {
                    say(&transport, id, *to, link, PeerMessage::Signature { batch, signature: wrong }).await;
                    // It has no key of the member's identity, so nobody else is convinced by this.
                    let statement = Signature { r: [1; 32], s: [2; 32] };
                    let share = PeerMessage::Share { phase, header: header.clone(), share: lie.clone(), statement };
                    say(&transport, id, *to, link, share).await;
                }
                lies.fetch_add(1, Ordering::AcqRel);
            }
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
    listening.abort();
}

/// Refuses what raft asks, and passes on the shares that come because it is taken for the aggregator.
async fn hear(mut link: Link, heard: mpsc::Sender<(u64, weir_model::signed::BatchHeader, ShareSignature)>) {
    let _hello = link.incoming.recv().await;
    while let Some(frame) = link.incoming.recv().await {
        let Ok((number, request)) = decode_request(frame) else { return };
        let response = match request {
            Request::Tell { bytes } => {
                if let Ok(PeerMessage::Share { phase, header, share, .. }) = decode(&bytes) {
                    let _full = heard.try_send((phase, header, share));
                }
                Response::Ok
            }
            _ => Response::Refused("no".into()),
        };
        if link.outgoing.send(encode_response(number, &response)).await.is_err() {
            return;
        }
    }
}

async fn say(transport: &TlsTransport, id: u8, to: u8, link: &mut Option<(Link, u64)>, message: PeerMessage) {
    if link.as_ref().is_none_or(|(link, _)| link.outgoing.is_closed()) {
        let Ok(open) = transport.connect(u64::from(to), address(to), Lane::Peers).await else { return };
        let (from, to) = (u64::from(id), u64::from(to));
        let hello = Hello { protocol: PROTOCOL, group: "lab".into(), from, to, lane: 4 };
        let _gone = open.outgoing.send(hello.encode()).await;
        *link = Some((open, 0));
    }
    if let Some((open, number)) = link {
        *number += 1;
        let request = Request::Tell { bytes: encode(&message).into() };
        let _gone = open.outgoing.send(encode_request(*number, &request)).await;
        while open.incoming.try_recv().is_ok() {}
    }
}

#[test]
fn a_member_that_lies_is_named_and_changes_nothing() {
    let Some(lab) = group_lab("quorum_liar") else { return };
    wait_whole(&lab);
    // What an earlier scenario found out counts no more.
    lab.ok(&["group", "refresh"]);
    let extra = Extra::begin();
    let forged = |switch: &str| {
        let counters = lab.counters(switch);
        counters.iter().filter(|(name, _)| name.contains("forged")).map(|(_, count)| count).sum::<u64>()
    };
    let before: Vec<u64> = SWITCHES.into_iter().map(forged).collect();

    // The lowest puts signatures together; its place is taken by one that lies.
    lab.kill("c1");
    leader(&lab, "c1");
    let liar = Liar::begin(&lab, 1, &[2, 3]);
    let mut number = 2;
    wait("a lie", || {
        newcomer(&lab, &extra, number);
        number += 1;
        liar.lies.load(Ordering::Acquire) > 1
    });
    wait("the liar's name", || {
        let found = signing(&lab);
        found
            .faults
            .iter()
            .any(|fault| fault.contains("member 1: the group's signature that it put together"))
            && found.aggregator == Some(2)
    });
    assert!(lab.ok(&["group", "list"]).contains("controller 1: it lied in this dealing"));
    newcomer(&lab, &extra, number);
    let after: Vec<u64> = SWITCHES.into_iter().map(forged).collect();
    assert_eq!(after, before, "no switch was sent anything that the group did not sign");
    liar.end();

    lab.start("c1");
    wait_whole(&lab);
    lab.ok(&["group", "refresh"]);
    wait("it puts signatures together again", || signing(&lab).aggregator == Some(1));
}
