//! A controller that floods: a program with the address and the domain's authority of one member of a Byzantine group, to which every host
//! has a session. It orders nothing and votes on nothing; it sends to the hosts, as fast as they read, what makes them work for nothing
//! (attack ii of the paper's 2.7.6).
//!
//! It is this test program once more, in the member's namespace, as [`crate::liar`].

use crate::lab::Lab;
use crate::liar::Liar;
use rustls::{ServerConnection, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use weir_api::pki::{Authority, Identity, server_config};
use weir_base::codec::{encode_frame, read_frame};
use weir_model::entry::Vni;
use weir_model::local::Question;
use weir_model::session::{PROTOCOL, ToActuator, ToController};
use weir_model::signed::{
    BatchHeader, BlsSignature, GroupSignature, HeaderShare, ProvenUpdate, SignedHeader, SignedUpdates,
    UnsignedUpdates,
};
use weir_model::{Change, Key, Label, Update, Version};
use weir_trust::batch::prepare_batch;
use weir_trust::identity::{Context, KeyPair};
use weir_trust::threshold::{Dealer, Ledger, Members, Player, Round};

const KIND: &str = "WEIR_FLOODER_KIND";
const FOLDER: &str = "WEIR_FLOODER_FOLDER";
/// What every lab's domain is called.
const DOMAIN: &str = "lab";
/// Which controller of the lab of four it is, and where.
const MEMBER: &str = "c4";
const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 106, 4));
const SESSIONS: u16 = 7444;
/// Frames before what the host says is read away.
const BURST: u64 = 64;
/// Versions that nothing has.
const FRESH: u64 = 1 << 40;

/// What it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Updates with fresh versions, each batch under a signature that is a point of the curve and not the group's.
    Fresh,
    /// The same, a thousand updates a frame.
    FreshWhole,
    /// Updates under the signature's promise, and shares of batches that do not exist.
    Shares,
    /// The proof of a batch without updates.
    Proofs,
    /// What is no frame.
    Garbage,
    /// Requests for the whole state, and questions.
    Asks,
}

/// All of them.
pub const FLOODS: [Flood; 6] =
    [Flood::Fresh, Flood::FreshWhole, Flood::Shares, Flood::Proofs, Flood::Garbage, Flood::Asks];

/// Starts it in the place of the lab's fourth controller, which must not run. `scenario` is the test that calls [`floods`] first.
pub fn begin(lab: &Lab, scenario: &str, flood: Flood) -> Liar {
    let nth = FLOODS.iter().position(|one| *one == flood).unwrap();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", lab.netns(MEMBER).name()]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", scenario, "--nocapture", "--test-threads=1"]);
    command.env(KIND, nth.to_string()).env(FOLDER, lab.folder());
    Liar(command.stdout(Stdio::null()).spawn().unwrap())
}

/// Floods until it is killed, when this process was started to do so; else false.
pub fn floods() -> bool {
    let (Ok(kind), Ok(folder)) = (std::env::var(KIND), std::env::var(FOLDER)) else { return false };
    let flood = FLOODS[kind.parse::<usize>().unwrap()];
    let state = PathBuf::from(folder).join(MEMBER).join("state");
    let read = |name: &str| std::fs::read_to_string(state.join(name)).unwrap();
    let authority = Identity { certificate_pem: read("ca.crt"), key_pem: read("ca.key") };
    let identity = Authority::open(&authority).unwrap().controller(&[ADDRESS], SystemTime::now()).unwrap();
    let config = server_config(&identity, &authority.certificate_pem, true).unwrap();
    let signature = a_point();
    let listener = TcpListener::bind(SocketAddr::new(ADDRESS, SESSIONS)).unwrap();
    for stream in listener.incoming().flatten() {
        let config = config.clone();
        std::thread::spawn(move || {
            // It ends when the host has had enough.
            let _end = serve(stream, config, flood, signature);
        });
    }
    true
}

/// A signature that is right under some key: a whole check is needed to see that it is not the group's.
fn a_point() -> BlsSignature {
    let key = KeyPair::from_seed(&[9; 32]);
    let members: Members = [(1, key.public())].into_iter().collect();
    let round = Round::fresh(Label::new(DOMAIN).unwrap(), 1, members).unwrap();
    let mut player = Player::new(round.clone(), 1).unwrap();
    let mut ledger = Ledger::new(round.clone());
    let mut next = 1_u8;
    let mut randomness = |bytes: &mut [u8]| {
        for byte in bytes {
            next = next.wrapping_mul(37).wrapping_add(11);
            *byte = next;
        }
    };
    let mut dealer = Dealer::new(round, 1, None, &mut randomness).unwrap();
    let ack = player.take(&dealer.deal(1).unwrap(), &key).unwrap();
    dealer.take_ack(&ack).unwrap();
    ledger.add(&dealer.log(&key).unwrap()).unwrap();
    let (_, secret) = player.finish(&ledger).unwrap();
    secret.sign(Context::Batch, b"nothing that anybody checks").unwrap().signature
}

fn batch(target: &Label, index: u64, count: u32) -> (BatchHeader, Vec<ProvenUpdate>) {
    let update = |vni: u32| Update {
        target: target.clone(),
        key: Key::Network { vni: Vni(1_000 + vni) },
        version: Version(index),
        expected: Version::ZERO,
        change: Change::Delete,
    };
    let updates = (0..count).map(update).collect();
    prepare_batch(&Label::new(DOMAIN).unwrap(), 1 << 20, Version(index), updates).unwrap()
}

fn frame(flood: Flood, target: &Label, nth: u64, signature: BlsSignature) -> Vec<u8> {
    let signed = |count: u32| {
        let (header, updates) = batch(target, FRESH + nth, count);
        let header = SignedHeader { header, signature: GroupSignature::Threshold(signature) };
        ToActuator::Updates(SignedUpdates { header, updates })
    };
    let frame = match flood {
        Flood::Fresh => signed(1),
        Flood::FreshWhole => signed(1_000),
        Flood::Proofs => {
            let ToActuator::Updates(whole) = signed(1) else { unreachable!("they are updates") };
            ToActuator::Updates(SignedUpdates { updates: Vec::new(), ..whole })
        }
        Flood::Shares if nth.is_multiple_of(2) => {
            let (header, updates) = batch(target, FRESH + nth, 1);
            ToActuator::Unsigned(UnsignedUpdates { header, updates })
        }
        Flood::Shares => {
            let (header, _) = batch(target, FRESH + nth - 1, 1);
            // As if one were enough, and as many as are.
            let threshold = 1 + 2 * u32::from(nth % 4 == 1);
            ToActuator::Share(HeaderShare { header, phase: 1, threshold, member: 4, signature })
        }
        Flood::Garbage => return [64_u32.to_le_bytes().as_slice(), &[0xee; 64]].concat(),
        Flood::Asks if nth.is_multiple_of(2) => ToActuator::SendState,
        Flood::Asks => ToActuator::Ask { id: nth, question: Question::Counters },
    };
    encode_frame(&frame).unwrap()
}

fn serve(
    stream: TcpStream,
    config: Arc<rustls::ServerConfig>,
    flood: Flood,
    signature: BlsSignature,
) -> Result<(), Box<dyn std::error::Error>> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    let mut stream = StreamOwned::new(ServerConnection::new(config)?, stream);
    let ToController::Hello { protocol, actuator, .. } = read_frame::<ToController>(&mut stream)? else {
        return Ok(());
    };
    stream.write_all(&encode_frame(&ToActuator::Welcome { protocol: protocol.min(PROTOCOL), epoch: 1 })?)?;
    stream.flush()?;
    let mut answers = vec![0; 1 << 16];
    for nth in 0.. {
        stream.write_all(&frame(flood, &actuator, nth, signature))?;
        if nth % BURST == BURST - 1 {
            stream.flush()?;
            // Who does not read is let go of for that alone.
            stream.sock.set_nonblocking(true)?;
            loop {
                match stream.read(&mut answers) {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
            stream.sock.set_nonblocking(false)?;
        }
    }
    Ok(())
}
