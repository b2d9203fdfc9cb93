//! A controller that is alone becomes the first member of a group: under traffic and writes, and killed at every step.
//!
//! The scenario on the lab has hosts and gateway: connections go on, what they have stays, and they follow the group's own key. The table of steps is
//! on loopback, without hosts, and needs no root: a process dies at each step of the conversion, starts again by the same command, and everything that
//! was acknowledged is there; given again, the command completes the group.

use crate::echo::ping_all;
use crate::extra::Extra;
use crate::group::{Writer, connection, newcomer, runtime, store};
use crate::lab::{Lab, lab, text};
use crate::namespaces::wait;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_api::client::{Client, Context};
use weir_api::types::CertificateView;
use weir_lab::Program;
use weir_rpc::Error;
use weir_store::{Operation, Outcome, TableOptions};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Where one of the controllers that join is, and how the command names it.
struct Place {
    id: u64,
    replica: String,
    api: String,
    session: String,
}

impl Place {
    fn at(address: &str, id: u64, ports: [u16; 3]) -> Place {
        let [replica, api, session] = ports.map(|port| format!("{address}:{port}"));
        Place { id, replica, api, session }
    }

    fn named(&self) -> String {
        format!("{},{},{},{}", self.id, self.replica, self.api, self.session)
    }

    /// Settings of one that waits to be added.
    fn settings(&self, folder: &Path, keys: &Path) -> PathBuf {
        let advertise = self.api.rsplit_once(':').unwrap().0;
        let text = format!(
            "domain: lab\nstateDir: {}\napi: {}\nsession: {}\nadvertise: {advertise}\ngroup: {{id: {}, listen: \"{}\", keys: {}}}\n",
            folder.display(),
            self.api,
            self.session,
            self.id,
            self.replica,
            keys.display()
        );
        let path = folder.with_extension("yaml");
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn refused(lab: &Lab, arguments: &[&str], words: &str) {
    let output = lab.weir(arguments);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
}

/// Keys and certificates of hosts and gateways.
fn of_hosts(lab: &Lab) -> Vec<(String, Option<String>, Vec<CertificateView>)> {
    let known = lab.client().identities().unwrap().items.into_iter();
    let hosts = known.filter(|one| one.kind != "controller");
    hosts.map(|one| (one.source, one.key, one.certificates)).collect()
}

#[test]
fn a_controller_that_is_alone_becomes_a_group_under_traffic() {
    let Some(lab) = lab("convert") else { return };
    let extra = Extra::begin();
    let address = lab.context_of("controller").server;
    let address = address.trim_start_matches("https://").rsplit_once(':').unwrap().0.to_owned();
    let keys = PathBuf::from(extra.file("domain-keys.json"));
    let state = lab.folder().join("controller/state");
    let (state, keys_text) = (state.display().to_string(), keys.display().to_string());
    lab.ok(&["group", "keys", "--state", &state, "--domain", "lab", "--out", &keys_text]);
    let places = [Place::at(&address, 2, [7545, 7543, 7544]), Place::at(&address, 3, [7645, 7643, 7644])];
    let listen = format!("{address}:7445");
    let begun = ["group", "convert", "--order", "raft", "--id", "1", "--listen", &listen];
    let (second, third) = (places[0].named(), places[1].named());
    let with = |members: &[&str], more: &[&str]| {
        let members: Vec<String> =
            members.iter().flat_map(|one| ["--member".into(), (*one).into()]).collect();
        let all = begun.iter().map(|one| (*one).to_owned()).chain(members);
        all.chain(more.iter().map(|one| (*one).to_owned())).collect::<Vec<_>>()
    };
    let refuses = |all: Vec<String>, words: &str| {
        refused(&lab, &all.iter().map(String::as_str).collect::<Vec<_>>(), words);
    };
    refuses(with(&[&second], &["--yes"]), "a group has three controllers or more");
    refuses(with(&[&second, &third], &["--yes"]), "controller 2 is not reached");
    refuses(with(&[&second, &second], &["--yes"]), "each has a number of its own");

    let joined: Vec<_> = places
        .iter()
        .map(|place| {
            let folder = PathBuf::from(extra.file(&format!("c{}", place.id)));
            let program = Program::new(WEIR).args(["controller", "--join-group", "--config"]);
            let program = program.arg(place.settings(&folder, &keys)).netns(&lab.netns("ctl"));
            extra.start(&format!("c{}", place.id), &program)
        })
        .collect();
    wait("those that wait to be added", || {
        places.iter().all(|place| {
            let log = std::fs::read_to_string(extra.file(&format!("c{}.log", place.id))).unwrap_or_default();
            log.contains("the controller is ready")
        })
    });
    let held = lab.netns("ctl");
    let taken = crate::namespaces::within(&held, || TcpListener::bind(&listen).unwrap());
    refuses(with(&[&second, &third], &["--yes"]), "cannot be used");
    drop(taken);
    let plan = with(&[&second, &third], &["--dry-run"]);
    let said = lab.ok(&plan.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said.contains("becomes controller 1 of a group of 3"), "{said}");
    assert!(lab.client().group().is_err(), "nothing was changed");

    let echo = connection(&lab);
    let others = places.iter().map(|place| format!("https://{}", place.api)).collect();
    let writer = Writer::with(Context { others, ..lab.context_of("controller") }, "convert");
    let before = (lab.programmed(), of_hosts(&lab));
    let go = with(&[&second, &third], &["--yes"]);
    let said = lab.ok(&go.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said.contains("has its 3 controllers"), "{said}");
    writer.goes_on();
    echo.goes_on();
    let group = lab.client().group().unwrap();
    let signing = group.signing.unwrap();
    assert_eq!((group.id, group.members.len(), signing.members), (1, 3, vec![1, 2, 3]));
    lab.wait_in_step();
    assert_eq!(lab.programmed(), before.0, "keys and versions of each switch");
    assert_eq!(of_hosts(&lab), before.1, "identities and certificates of hosts");
    // What is new is signed by the group's key, and every switch follows it.
    newcomer(&lab, &extra, 1);
    lab.wait_in_step();
    let traced = lab.ok(&["trace", "red/app", "db", "-p", "tcp", "--port", "5432"]);
    assert!(traced.contains("named by the key before") || traced.contains("epoch 1 "), "{traced}");
    // Switches know it from their journals.
    lab.crash("h1", "switch");
    lab.wait_in_step();
    newcomer(&lab, &extra, 2);
    let verified = lab.weir(&["audit", "verify"]);
    assert!(verified.status.success(), "{}{}", text(&verified.stdout), text(&verified.stderr));

    // The one that began may go, and comes back by the command that it always had.
    lab.kill("controller");
    writer.goes_on();
    echo.goes_on();
    lab.start("controller");
    wait("the first member to be back", || {
        let context = Context { others: Vec::new(), ..lab.context_of("controller") };
        Client::new(context)
            .unwrap()
            .group()
            .is_ok_and(|group| group.members.len() == 3 && group.leader.is_some())
    });
    writer.ends();
    echo.close();
    assert!(ping_all(&lab.netns("red-app"), lab.v4("red-db")));
    drop(joined);
    lab.spent();
}

/// A controller on loopback that is killed when this is dropped.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _ended = self.child.wait();
    }
}

impl Process {
    fn start(log: &Path, arguments: &[&str]) -> Process {
        let out = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(WEIR);
        command.arg("controller").args(arguments).stdin(Stdio::null());
        command.stdout(out.try_clone().unwrap()).stderr(out);
        Process { child: command.spawn().unwrap(), log: log.to_path_buf() }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

fn free_ports<const N: usize>() -> [u16; N] {
    let held: Vec<TcpListener> = (0..N).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    std::array::from_fn(|at| held[at].local_addr().unwrap().port())
}

/// A domain of one controller on loopback, and two that wait to be added.
struct Domain {
    dir: tempfile::TempDir,
    own: Place,
    others: [Place; 2],
    waiting: Vec<Process>,
}

impl Domain {
    fn begin() -> Domain {
        let dir = tempfile::tempdir().unwrap();
        let ports = free_ports::<9>();
        let place = |at: usize| {
            Place::at("127.0.0.1", at as u64 + 1, [ports[3 * at], ports[3 * at + 1], ports[3 * at + 2]])
        };
        Domain { dir, own: place(0), others: [place(1), place(2)], waiting: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// By the same command, whatever it is.
    fn start(&self) -> Process {
        let state = self.path("c1").display().to_string();
        let arguments = [
            "--domain",
            "lab",
            "--state",
            &state,
            "--api",
            &self.own.api,
            "--session",
            &self.own.session,
            "--advertise",
            "127.0.0.1",
        ];
        Process::start(&self.path("c1.log"), &arguments)
    }

    /// Starts those that wait.
    fn start_others(&mut self) {
        let keys = self.path("keys.json");
        let (state, out) = (self.path("c1").display().to_string(), keys.display().to_string());
        let made = Command::new(WEIR)
            .args(["group", "keys", "--domain", "lab", "--state", &state, "--out", &out])
            .output();
        assert!(made.unwrap().status.success());
        for place in &self.others {
            let settings = place.settings(&self.path(&format!("c{}", place.id)), &keys);
            let settings = settings.display().to_string();
            let log = self.path(&format!("c{}.log", place.id));
            self.waiting.push(Process::start(&log, &["--join-group", "--config", &settings]));
        }
        wait("those that wait to be added", || {
            self.waiting.iter().all(|one| one.said().contains("the controller is ready"))
        });
    }

    fn context(&self) -> Option<Context> {
        let text = std::fs::read_to_string(self.path("c1/admin.json")).ok()?;
        let context: Context = serde_json::from_str(&text).ok()?;
        let others = self.others.iter().map(|place| format!("https://{}", place.api)).collect();
        Some(Context { others, ..context })
    }

    fn convert(&self) -> Output {
        self.convert_command().output().unwrap()
    }

    fn convert_command(&self) -> Command {
        let mut command = Command::new(WEIR);
        command.args([
            "group",
            "convert",
            "--order",
            "raft",
            "--id",
            "1",
            "--yes",
            "--listen",
            &self.own.replica,
        ]);
        for place in &self.others {
            command.args(["--member", &place.named()]);
        }
        command.env("WEIR_CONTEXT", self.path("c1/admin.json")).env("NO_COLOR", "1");
        command
    }

    fn answers(&self) -> bool {
        let Some(context) = self.context() else { return false };
        let alone = Context { others: Vec::new(), ..context };
        Client::new(alone).is_ok_and(|client| client.list(None, None).is_ok())
    }
}

/// Puts keys of its own, and remembers what was acknowledged and the longest time without any.
struct Puts {
    stop: Arc<AtomicBool>,
    acked: Arc<Mutex<Vec<u64>>>,
    thread: std::thread::JoinHandle<Duration>,
}

const TABLE: &str = "test/convert";

impl Puts {
    fn begin(context: Context) -> Puts {
        let made = Operation::CreateTable { table: TABLE.to_owned(), options: TableOptions::default() };
        let with = context.clone();
        let made = runtime().block_on(async move { store(&with).submit(made).await });
        assert!(matches!(made, Ok(Outcome::Written { .. })), "{made:?}");
        let (stop, acked) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<u64>>>::default());
        let (stopped, remembers) = (stop.clone(), acked.clone());
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                let client = store(&context);
                let (mut number, mut last, mut longest) = (0_u64, Instant::now(), Duration::ZERO);
                while !stopped.load(Ordering::Acquire) {
                    number += 1;
                    match client.put(TABLE, &number.to_be_bytes(), b"x".to_vec()).await {
                        Ok(_) => {
                            remembers.lock().unwrap().push(number);
                            longest = longest.max(last.elapsed());
                            last = Instant::now();
                        }
                        Err(Error::Uncertain(_) | Error::Unavailable(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                longest
            })
        });
        let puts = Puts { stop, acked, thread };
        puts.goes_on();
        puts
    }

    fn goes_on(&self) {
        let before = self.acked.lock().unwrap().len();
        wait("more acknowledged writes", || {
            assert!(!self.thread.is_finished(), "the writer ended");
            self.acked.lock().unwrap().len() >= before + 10
        });
    }

    /// How many were acknowledged, how many of these are gone, and the longest time without any.
    fn ends(self, context: &Context) -> (usize, usize, Duration) {
        self.stop.store(true, Ordering::Release);
        let longest = self.thread.join().unwrap();
        let acked = self.acked.lock().unwrap().clone();
        let lost = runtime().block_on(async {
            let client = store(context);
            let mut lost = 0;
            for number in &acked {
                let found = client.get(TABLE, &number.to_be_bytes()).await.unwrap();
                lost += usize::from(found.is_none());
            }
            lost
        });
        (acked.len(), lost, longest)
    }
}

/// The way back: until the group has ordered something.
#[test]
fn a_conversion_is_taken_back_until_the_group_has_ordered_something() {
    let mut domain = Domain::begin();
    let mut first = domain.start();
    wait("the controller", || domain.answers());
    domain.start_others();
    let puts = Puts::begin(domain.context().unwrap());
    std::fs::write(domain.path("c1/convert-dies"), "marked").unwrap();
    let state = domain.path("c1").display().to_string();
    let back = || {
        let arguments = ["group", "convert", "--back", "--state", &state, "--yes"];
        Command::new(WEIR).args(arguments).output().unwrap()
    };
    let mut asks = domain.convert_command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait("its death", || first.child.try_wait().unwrap().is_some());
    let _gone = (asks.kill(), asks.wait());
    let done = back();
    assert!(done.status.success(), "{}", text(&done.stderr));
    first = domain.start();
    wait("the controller alone again", || domain.answers() && !domain.path("c1/converted.back").exists());
    puts.goes_on();
    let alone = Context { others: Vec::new(), ..domain.context().unwrap() };
    assert!(Client::new(alone).unwrap().group().is_err(), "it is alone");
    let done = domain.convert();
    assert!(done.status.success(), "{}\n{}", text(&done.stderr), first.said());
    puts.goes_on();
    let context = domain.context().unwrap();
    assert_eq!(Client::new(context.clone()).unwrap().group().unwrap().members.len(), 3);
    let (_, lost, _) = puts.ends(&context);
    assert_eq!(lost, 0);
    // Now there is no way back.
    drop(first);
    let done = back();
    let said = text(&done.stderr);
    assert!(!done.status.success() && said.contains("there is no way back"), "{said}");
}

/// The table of steps: at each the process dies as by kill -9, and what starts again is the one or the other, and goes on.
#[test]
fn killed_at_every_step_it_is_the_one_or_the_other_and_loses_nothing() {
    for step in ["none", "ordered", "seeded", "named", "marked"] {
        let mut domain = Domain::begin();
        let mut first = domain.start();
        wait("the controller", || domain.answers());
        domain.start_others();
        let puts = Puts::begin(domain.context().unwrap());
        if step != "none" {
            std::fs::write(domain.path("c1/convert-dies"), step).unwrap();
        }
        let (mut said, mut dies) = (None, step != "none");
        let converted = std::thread::scope(|scope| {
            let asked = scope.spawn(|| domain.convert());
            while !asked.is_finished() {
                if dies && first.child.try_wait().unwrap().is_some() {
                    dies = false;
                    let marked = domain.path("c1/converted").exists();
                    said = Some(marked);
                    assert_eq!(marked, step == "marked", "{step}: the mark comes last");
                    first = domain.start();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            asked.join().unwrap()
        });
        assert!(!dies, "{step}: it did not die there: {}", first.said());
        assert_eq!(said.is_some(), step != "none");
        // Given again where it gave up, the command goes on.
        let done = if converted.status.success() { converted } else { domain.convert() };
        assert!(done.status.success(), "{step}: {}\n{}", text(&done.stderr), first.said());
        puts.goes_on();
        let context = domain.context().unwrap();
        let group = Client::new(context.clone()).unwrap().group().unwrap();
        assert_eq!(group.members.iter().filter(|one| one.voter).count(), 3, "{step}");
        assert_eq!(group.signing.unwrap().members, [1, 2, 3], "{step}");
        let (acked, lost, longest) = puts.ends(&context);
        println!(
            "convert, dies at {step}: {acked} writes acknowledged, {lost} lost, longest pause {} ms",
            longest.as_millis()
        );
        assert_eq!(lost, 0, "{step}");
        if step == "none" {
            println!("RESULT convert pause weir={:.2} s", longest.as_secs_f64());
            println!("RESULT convert lost-acks weir={lost}");
        }
        // What was ended does not serve again: not without the mark either.
        drop(first);
        std::fs::remove_file(domain.path("c1/converted")).unwrap();
        let again = domain.start();
        wait("a directory without its mark to be refused", || {
            again.said().contains("'converted' is missing")
        });
    }
}
