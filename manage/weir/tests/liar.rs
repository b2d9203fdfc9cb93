//! A controller that lies: a program with the key, the address and the links of one member of a Byzantine group, which does one kind of wrong
//! as often as it can instead of ordering.
//!
//! It is this test program once more, in the member's namespace.

use crate::lab::Lab;
use crate::traitor::{Betrayal, Kind, betray};
use commonware_runtime::{Runner as _, Supervisor as _, tokio};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use weir_bft::driver::link_founder;
use weir_bft::{Identity, Members, Places, Settings};

const KIND: &str = "WEIR_LIAR_KIND";
const FOLDER: &str = "WEIR_LIAR_FOLDER";
/// What every lab's domain is called.
const DOMAIN: &str = "lab";
/// How many found the group, who of them lies, and the third byte of their addresses.
const GROUP: &str = "WEIR_LIAR_GROUP";

/// A group in which a liar takes the place of a founder.
#[derive(Clone, Copy)]
pub struct Where {
    pub founders: u32,
    pub liar: u32,
    /// Third byte of the addresses of the lab's underlay.
    pub net: u8,
}

/// The last of four.
pub const OF_FOUR: Where = Where { founders: 4, liar: 4, net: 106 };
/// The last but one of seven.
pub const OF_SEVEN: Where = Where { founders: 7, liar: 6, net: 116 };
/// What it does, one after the other. Whoever votes wrongly is cut off by the others as long as they run, so that comes last.
pub const KINDS: [Kind; 5] = [Kind::Floods, Kind::Repeats, Kind::Forges, Kind::Usurps, Kind::Equivocates];

/// The kind that is convicted.
pub const EQUIVOCATES: Kind = Kind::Equivocates;

/// The liar while it runs.
pub struct Liar(pub Child);

impl Drop for Liar {
    fn drop(&mut self) {
        // Also after a failed assertion.
        let _gone = (self.0.kill(), self.0.wait());
    }
}

/// Starts it in the place of a founder, which must not run. `scenario` is the test that calls [`lies`] first.
pub fn begin(lab: &Lab, scenario: &str, kind: Kind, place: Where) -> Liar {
    let Where { founders, liar, net } = place;
    let nth = KINDS.iter().position(|one| *one == kind).unwrap();
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", lab.netns(&format!("c{liar}")).name()])
        .arg(std::env::current_exe().unwrap());
    command.args(["--exact", scenario, "--nocapture", "--test-threads=1"]);
    command.env(KIND, nth.to_string()).env(FOLDER, lab.folder());
    command.env(GROUP, format!("{founders} {liar} {net}"));
    Liar(command.stdout(Stdio::null()).spawn().unwrap())
}

/// Lies until it is killed, when this process was started to do so; else false.
pub fn lies() -> bool {
    let (Ok(kind), Ok(folder)) = (std::env::var(KIND), std::env::var(FOLDER)) else { return false };
    let kind = KINDS[kind.parse::<usize>().unwrap()];
    let folder = PathBuf::from(folder);
    let group = std::env::var(GROUP).unwrap();
    let mut group = group.split(' ').map(|number| number.parse::<u32>().unwrap());
    let [founders_count, liar, net] = std::array::from_fn(|_| group.next().unwrap());
    let identity = |id: u32| {
        let hex = std::fs::read_to_string(folder.join(format!("c{id}/state/group.identity"))).unwrap();
        Identity { id, secret: weir_model::join::from_hex::<32>(hex.trim()).unwrap() }
    };
    let address = |id: u32| SocketAddr::from(([198, 18, net as u8, id as u8], 7445));
    let founders = Members((1..=founders_count).map(|id| (id, identity(id).public().unwrap())).collect());
    let members: BTreeMap<u32, SocketAddr> = (1..=founders_count).map(|id| (id, address(id))).collect();
    let storage = tempfile::tempdir().unwrap();
    let places = Places {
        listen: address(liar),
        members,
        votes: storage.path().to_owned(),
        in_memory: false,
        threads: 1,
    };
    let (settings, me) = (Settings::new(DOMAIN), identity(liar));
    let runtime = tokio::Config::new().with_worker_threads(1).with_storage_directory(storage.path());
    tokio::Runner::new(runtime).start(|context| async move {
        let linked = link_founder(&context, &settings, &me, &founders, places).unwrap();
        let betrayal = Betrayal { group: DOMAIN.to_owned(), me, founders, kind, seed: 7 };
        betray(context.child("liar"), betrayal, linked.channels).await;
    });
    true
}
