//! A group of three controllers whose members die, stop, are cut off, lose their disk, and come and go. Each time no write
//! that was acknowledged is lost, traffic goes on, new endpoints come up under whoever leads, and no switch is
//! programmed differently.

use crate::checker::{Event, is_linearizable};
use crate::echo::{Echo, ping_all};
use crate::extra::{Extra, configure, endpoint, ip};
use crate::history::{Moments, call};
use crate::lab::{Lab, SWITCHES, group_lab, text};
use crate::namespaces::wait;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_api::client::Context;
use weir_api::pki::client_config;
use weir_api::types::GroupStatus;
use weir_lab::process::Signal;
use weir_model::join::CONTROLLER_DNS_NAME;
use weir_rpc::Error;
use weir_rpc::client::{Client, ClientSettings};
use weir_store::{Operation, Outcome, Query, Select, TableOptions};

/// Replicas behind which no barrier passes have no say here: only one that leads answers for the group.
fn group(lab: &Lab) -> Option<GroupStatus> {
    lab.client().group().ok()
}

/// Name of the controller that leads, once one that is not `besides` does.
pub fn leader(lab: &Lab, besides: &str) -> String {
    let mut found = String::new();
    wait("a leader of the group", || {
        let status = group(lab).filter(|status| status.leader == Some(status.id));
        found = status.map(|status| format!("c{}", status.id)).unwrap_or_default();
        !found.is_empty() && found != besides && lab.client().list(None, None).is_ok()
    });
    found
}

/// Every controller is in the group with a vote, has all entries, and every switch has a session with each.
pub fn wait_whole(lab: &Lab) {
    let count = lab.controllers().len();
    wait("the whole group", || {
        group(lab).is_some_and(|status| {
            let others = status.members.iter().filter(|member| Some(member.id) != status.leader);
            status.members.len() == count
                && others.clone().count() == count - 1
                && others.into_iter().all(|member| member.voter && member.lag == Some(0))
        })
    });
    for switch in SWITCHES {
        let netns = lab.netns(if switch == "g1" { "gw" } else { switch });
        wait(&format!("the sessions of {switch}"), || {
            let metrics = netns.command("curl").args(["-sf", "http://127.0.0.1:9471/metrics"]).output();
            let all = format!("weir_agent_sessions_established {count}\n");
            metrics.is_ok_and(|output| text(&output.stdout).contains(&all))
        });
    }
    lab.wait_in_step();
}

pub fn store(context: &Context) -> Client {
    let servers = std::iter::once(&context.server).chain(&context.others);
    let mut settings = ClientSettings::new(servers.map(|server| server.trim_start_matches("https://")));
    settings.tls = Some(client_config(&context.ca).unwrap());
    settings.server_name = Some(CONTROLLER_DNS_NAME.to_owned());
    settings.token = Some(context.token.clone());
    Client::new(settings).unwrap()
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Adds to a counter and puts a key of its own, again and again, and remembers what was acknowledged.
pub struct Writer {
    context: Context,
    table: String,
    stop: Arc<AtomicBool>,
    acked: Arc<Mutex<BTreeSet<u64>>>,
    /// How many additions were acknowledged, and how many more may have been made.
    thread: JoinHandle<(u64, u64)>,
}

impl Writer {
    pub fn begin(lab: &Lab, name: &str) -> Writer {
        let context = lab.context_of("c1");
        assert_eq!(context.others.len(), lab.controllers().len() - 1, "the context names the whole group");
        Writer::with(context, name)
    }

    /// One that knows these controllers.
    pub fn with(context: Context, name: &str) -> Writer {
        let table = format!("test/{name}");
        let stop = Arc::new(AtomicBool::new(false));
        let acked: Arc<Mutex<BTreeSet<u64>>> = Arc::default();
        let create = Operation::CreateTable { table: table.clone(), options: TableOptions::default() };
        let client_context = context.clone();
        let made = runtime().block_on(async move { store(&client_context).submit(create).await });
        assert!(matches!(made, Ok(Outcome::Written { .. })), "{made:?}");
        let thread = {
            let (context, table, stop, acked) = (context.clone(), table.clone(), stop.clone(), acked.clone());
            std::thread::spawn(move || {
                runtime().block_on(async move {
                    let client = store(&context);
                    let (mut number, mut added, mut unsure): (u64, u64, u64) = (0, 0, 0);
                    while !stop.load(Ordering::Acquire) {
                        number += 1;
                        match client.increment(&table, b"count", "", 1).await {
                            Ok(_) => added += 1,
                            Err(Error::Uncertain(_)) => unsure += 1,
                            Err(Error::Unavailable(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                        match client.put(&table, &number.to_be_bytes(), b"x".to_vec()).await {
                            Ok(_) => drop(acked.lock().unwrap().insert(number)),
                            Err(Error::Uncertain(_) | Error::Unavailable(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    (added, unsure)
                })
            })
        };
        let writer = Writer { context, table, stop, acked, thread };
        writer.goes_on();
        writer
    }

    /// More is acknowledged from now on.
    pub fn goes_on(&self) {
        let before = self.acked.lock().unwrap().len();
        wait("more acknowledged writes", || {
            assert!(!self.thread.is_finished(), "the writer ended");
            self.acked.lock().unwrap().len() >= before + 10
        });
    }

    /// All that was acknowledged is there, and each addition was made once.
    pub fn ends(self) {
        self.stop.store(true, Ordering::Release);
        let (added, unsure) = self.thread.join().unwrap();
        let acked = self.acked.lock().unwrap().clone();
        runtime().block_on(async {
            let client = store(&self.context);
            for number in &acked {
                let found = client.get(&self.table, &number.to_be_bytes()).await.unwrap();
                assert!(found.is_some(), "write {number} was acknowledged and is lost");
            }
            let counted = client.increment(&self.table, b"count", "", 0).await.unwrap();
            let counted = u64::try_from(counted).unwrap();
            let fits = (added..=added + unsure).contains(&counted);
            assert!(
                fits,
                "{counted} additions, of which {added} were acknowledged and {unsure} may have been made"
            );
        });
    }
}

/// Callers who put, get and swap the same few keys, whatever happens to the group; what they saw must be linearizable.
pub struct Callers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<(u64, Event)>>>,
}

/// Keys that callers share.
const KEYS: u64 = 6;
const CALLERS: u64 = 4;
/// Between two calls of one caller: the checker's work grows with the square of a history.
const CALLER_PAUSE: Duration = Duration::from_millis(20);

impl Callers {
    pub fn begin(lab: &Lab, name: &str) -> Callers {
        let (context, table) = (lab.context_of("c1"), format!("test/history-{name}"));
        let create = Operation::CreateTable { table: table.clone(), options: TableOptions::default() };
        let made = runtime().block_on(async { store(&context).submit(create).await });
        assert!(matches!(made, Ok(Outcome::Written { .. })), "{made:?}");
        let (stop, moments) = (Arc::new(AtomicBool::new(false)), Arc::new(Moments::default()));
        let caller = |number: u64| {
            let (context, table) = (context.clone(), table.clone());
            let (stop, moments) = (stop.clone(), moments.clone());
            std::thread::spawn(move || {
                runtime().block_on(async {
                    call(store(&context), &table, number, KEYS, CALLER_PAUSE, stop, moments).await
                })
            })
        };
        let threads = (0..CALLERS).map(caller).collect();
        Callers { stop, threads }
    }

    pub fn ends(self) {
        self.stop.store(true, Ordering::Release);
        let mut histories: Vec<Vec<Event>> = vec![Vec::new(); KEYS as usize];
        for (number, event) in self.threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
            histories[number as usize].push(event);
        }
        for (number, history) in histories.iter().enumerate() {
            assert!(history.len() > 20, "key {number} has only {} events", history.len());
            assert!(is_linearizable(history), "key {number}: {history:?}");
        }
    }
}

/// The digest of the store at every controller is the same, when nothing is ordered.
pub fn same_state(lab: &Lab) {
    wait("the same state everywhere", || {
        let digests: Vec<(u64, String)> = lab
            .controllers()
            .iter()
            .filter_map(|one| {
                let context = Context { others: vec![], ..lab.context_of(one) };
                let status = weir_api::client::Client::new(context).unwrap().status_here().ok()?;
                // A member that is behind has another version.
                Some((status.version, status.digest))
            })
            .collect();
        digests.len() == lab.controllers().len() && digests.iter().all(|digest| *digest == digests[0])
    });
}

/// One more endpoint of red comes up and is reached.
pub fn newcomer(lab: &Lab, extra: &Extra, number: u8) {
    let name = format!("late-{number}");
    let netns = extra.netns(&name);
    let address = format!("10.1.0.{}", 200 + number);
    lab.apply(&endpoint("red", &name, "h1", &[&address], &netns));
    configure(&netns, &format!("{address}/24"), "10.1.0.1");
    // What is in force is there at once; a machine under load may still lose a packet.
    wait("a new endpoint to be reached", || ping_all(&lab.netns("red-app"), ip(&address)));
}

/// Every controller, not only the one that leads, knows that every switch has what it shall have: who leads next sends
/// nothing again then.
pub fn wait_known(lab: &Lab) {
    wait("every controller to know what is in force", || {
        lab.controllers().iter().all(|one| {
            let context = Context { others: vec![], ..lab.context_of(one) };
            let status = weir_api::client::Client::new(context).unwrap().status_here();
            status.is_ok_and(|status| {
                !status.actuators.is_empty()
                    && status.actuators.iter().all(|switch| switch.acked_entries == switch.desired_entries)
            })
        })
    });
}

pub fn connection(lab: &Lab) -> Echo {
    // The rule lets in port 5432, and there nginx listens.
    lab.kill("nginx-red-db");
    Echo::open(&lab.netns("red-app"), &lab.netns("red-db"), lab.v4("red-db"), 5432)
}

/// Cuts a controller off, or brings it back.
pub fn link(lab: &Lab, name: &str, state: &str) {
    let netns = lab.netns(name);
    netns.sysctl("net.ipv6.conf.eth0.keep_addr_on_down", "1").unwrap();
    netns.ip(&["link", "set", "dev", "eth0", state]).unwrap();
}

#[test]
fn the_leader_may_be_killed_and_stopped() {
    let Some(lab) = group_lab("group_leader") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    let echo = connection(&lab);
    wait_known(&lab);
    let (before, repeated) = (lab.programmed(), lab.repeated());
    let writer = Writer::begin(&lab, "leader");
    let callers = Callers::begin(&lab, "leader");

    let first = leader(&lab, "");
    lab.kill(&first);
    echo.goes_on();
    let second = leader(&lab, &first);
    writer.goes_on();
    assert_eq!(lab.programmed(), before, "keys and versions of each switch");
    assert_eq!(lab.repeated(), repeated, "what was in force did not come again");
    newcomer(&lab, &extra, 1);
    lab.start(&first);
    wait_whole(&lab);

    let stopped = lab.program(&second).unwrap();
    assert!(stopped.signal(Signal::STOP).unwrap());
    let third = leader(&lab, &second);
    writer.goes_on();
    newcomer(&lab, &extra, 2);
    assert!(stopped.signal(Signal::CONT).unwrap());
    wait_whole(&lab);
    assert_eq!(leader(&lab, ""), third, "who was stopped follows");

    echo.goes_on();
    callers.ends();
    writer.ends();
    same_state(&lab);
    lab.restore();
    lab.wait_in_step();
    assert_eq!(keys(&lab), before.values().flat_map(|entries| entries.keys().cloned()).collect::<Vec<_>>());
    assert!(echo.close() > 0);
    lab.start("nginx-red-db");
}

/// Keys on all switches that are in force, without those deleted.
fn keys(lab: &Lab) -> Vec<weir_model::Key> {
    lab.programmed().values().flat_map(|entries| entries.keys().cloned()).collect()
}

#[test]
fn members_may_be_cut_off() {
    let Some(lab) = group_lab("group_cut") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    let before = lab.programmed();
    let writer = Writer::begin(&lab, "cut");
    let callers = Callers::begin(&lab, "cut");
    let link = |name: &str, state: &str| link(&lab, name, state);

    let first = leader(&lab, "");
    let follower = lab.controllers().iter().copied().find(|one| *one != first).unwrap();
    link(follower, "down");
    writer.goes_on();
    newcomer(&lab, &extra, 3);
    link(follower, "up");
    wait_whole(&lab);

    let first = leader(&lab, "");
    link(&first, "down");
    let second = leader(&lab, &first);
    writer.goes_on();
    newcomer(&lab, &extra, 4);
    link(&first, "up");
    wait_whole(&lab);
    assert_ne!(second, first);

    callers.ends();
    writer.ends();
    same_state(&lab);
    let after = lab.programmed();
    for (switch, entries) in before {
        assert!(entries.iter().all(|(key, version)| after[switch].get(key) == Some(version)), "{switch}");
    }
}

/// Where a controller is reached by a port.
fn address(number: u8, port: u16) -> String {
    format!("198.18.{}.{number}:{port}", 77 + 10 + 9)
}

/// Asks for a controller at an address of replicas that is not its own: that is told, and nothing of it stays.
fn cannot_add(lab: &Lab, number: u8, replica: &str, words: &str) {
    let (api, session, id) = (address(number, 7443), address(number, 7444), number.to_string());
    let before = lab.ok(&["group", "list"]).lines().count();
    let output = lab.weir(&["group", "add", &id, "--replica", replica, "--api", &api, "--session", &session]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(words), "{replica}: {said}");
    assert_eq!(lab.ok(&["group", "list"]).lines().count(), before, "no learner is left behind: {said}");
}

fn add(lab: &Lab, number: u8) {
    let address = |port: u16| address(number, port);
    let (replica, api, session) = (address(7445), address(7443), address(7444));
    let number = number.to_string();
    lab.ok(&["group", "add", &number, "--replica", &replica, "--api", &api, "--session", &session]);
}

#[test]
fn members_come_and_go_and_one_without_its_disk_comes_back() {
    let Some(lab) = group_lab("group_members") else { return };
    wait_whole(&lab);
    let writer = Writer::begin(&lab, "members");
    let before = lab.programmed();

    // One that does not run, one where another port is, one where another member is.
    cannot_add(&lab, 4, &address(4, 7445), &address(4, 7445));
    lab.start("c4");
    cannot_add(&lab, 4, &address(4, 7440), &address(4, 7440));
    cannot_add(&lab, 4, &address(1, 7445), "is where controller 1 is");
    writer.goes_on();

    // One more, one less, one at a time; then back.
    add(&lab, 4);
    writer.goes_on();
    lab.ok(&["group", "remove", "3", "--yes"]);
    lab.kill("c3");
    writer.goes_on();
    assert!(lab.ok(&["group", "list"]).contains("Group of 3 controllers"));

    // The machine of c3 has lost its disk, but for the note that it was a member.
    std::fs::remove_dir_all(lab.folder().join("c3/state/group")).unwrap();
    let refused = lab.weir(&["lab", "start", "c3", "three-controllers", "--instance", "9"]);
    assert!(!refused.status.success());
    let said = std::fs::read_to_string(lab.log("c3")).unwrap();
    assert!(said.contains("'group/log.proof' is missing"), "{said}");
    let state = lab.folder().join("c3/state");
    lab.ok(&["state", "rejoin", "--yes", "--state", &state.display().to_string()]);
    lab.ok(&["lab", "start", "c3", "three-controllers", "--instance", "9", "--join-group"]);
    add(&lab, 3);
    writer.goes_on();
    lab.ok(&["group", "remove", "4", "--yes"]);
    lab.kill("c4");
    wait_whole(&lab);

    // It votes again: with one of the others gone there is no majority without it.
    let gone = lab.controllers().iter().copied().find(|one| *one != "c3").unwrap();
    lab.kill(gone);
    writer.goes_on();
    lab.start(gone);
    wait_whole(&lab);
    writer.ends();
    same_state(&lab);
    assert_eq!(lab.programmed(), before, "keys and versions of each switch");
}

#[test]
fn a_member_that_does_not_lead_says_who_does() {
    let Some(lab) = group_lab("group_follower") else { return };
    wait_whole(&lab);
    let first = leader(&lab, "");
    let follower = lab.controllers().iter().copied().find(|one| *one != first).unwrap();
    let alone = lab.folder().join("follower.json");
    let context = Context { others: vec![], ..lab.context_of(follower) };
    std::fs::write(&alone, serde_json::to_string(&context).unwrap()).unwrap();
    let alone = alone.display().to_string();
    // It follows to the leader by itself.
    assert!(lab.ok(&["get", "networks", "--context", &alone]).contains("red"));
    assert!(lab.ok(&["status", "--context", &alone]).contains("Group of 3 controllers"));
    lab.ok(&["store", "create", "test/follower", "--context", &alone]);
    lab.ok(&["store", "put", "test/follower", "k", "v", "--context", &alone]);
    let read = ["store", "get", "test/follower", "k", "--raw", "--context", &alone];
    assert_eq!(lab.ok(&read), "v");
    let here = weir_api::client::Client::new(context).unwrap();
    let refused = here.status_here().unwrap().group.unwrap();
    assert_eq!((refused.role.as_str(), refused.leader), ("follower", first[1..].parse().ok()));
    let missing = runtime().block_on(async {
        let query =
            Query::Get { table: "test/follower".into(), key: b"none".to_vec(), select: Select::Whole };
        store(&lab.context_of(follower)).read(query, 60_000).await
    });
    assert!(missing.is_ok(), "{missing:?}");
}
