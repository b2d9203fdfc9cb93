//! Two domains with a network in both: real controllers of each, real hosts and gateways, real packets of one domain's guest to the
//! other's.
//!
//! ```text
//!            east: c1 c2 c3 (raft), host eh, gateway eg          west: controller w1, host wh, gateway wg
//!   198.18.120.0/24 ─────────────────────┬──────────────────────────────── 198.18.121.0/24
//!                                  one underlay
//!   guests of red: 10.1.0.0/24 (subnet of east)                  10.2.0.0/24 (subnet of west)
//! ```
//!
//! Packets of a guest go to the own gateway, and from there to the other domain's host. So all that a domain needs of the other's is
//! in its gateway's locations, which the two orders told each other.

use crate::echo::{ping_all, ping_none};
use crate::extra::{configure, ip};
use crate::lab::text;
use crate::namespaces::wait;
use std::process::{Command, Output};
use weir_api::domains::{DomainDescription, DomainList, DomainView};
use weir_lab::process::Daemon;
use weir_lab::scope::CleanOnDrop;
use weir_lab::{Netns, Program, Scope, system};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const PREFIX: &str = "wd9-";
const BRIDGE: &str = "underlay";
const UNDERLAY_MTU_BYTES: u32 = 9200;
/// Where the commands of both operators run.
const OPERATOR: &str = "198.18.120.254";

/// One domain.
struct Domain<'s> {
    scope: &'s Scope,
    name: &'static str,
    /// Third number of its addresses.
    range: u8,
    controllers: Vec<(&'static str, Option<Daemon>)>,
}

fn address(range: u8, number: u8) -> String {
    format!("198.18.{range}.{number}")
}

/// A namespace on the underlay.
fn member(scope: &Scope, underlay: &Netns, short: &str, range: u8, number: u8) -> Netns {
    let netns = scope.netns(short).unwrap();
    netns.veth("eth0", underlay, short).unwrap();
    netns.mtu("eth0", UNDERLAY_MTU_BYTES).unwrap();
    netns.address("eth0", format!("{}/23", address(range, number))).unwrap();
    netns.up("eth0").unwrap();
    underlay.mtu(short, UNDERLAY_MTU_BYTES).unwrap();
    underlay.attach(short, BRIDGE).unwrap();
    underlay.up(short).unwrap();
    netns
}

impl<'s> Domain<'s> {
    /// Its controllers are started; those of a group found it.
    fn found(
        scope: &'s Scope,
        underlay: &Netns,
        name: &'static str,
        range: u8,
        controllers: &[&'static str],
    ) -> Domain<'s> {
        for (number, one) in (1..).zip(controllers) {
            member(scope, underlay, one, range, number);
        }
        let controllers = controllers.iter().map(|one| (*one, None)).collect();
        let mut domain = Domain { scope, name, range, controllers };
        if domain.controllers.len() > 1 {
            domain.settings();
        }
        for one in domain.names() {
            domain.start(one);
        }
        wait(&format!("the controllers of {name}"), || domain.weir(&["domain", "show"]).status.success());
        domain
    }

    fn names(&self) -> Vec<&'static str> {
        self.controllers.iter().map(|(name, _)| *name).collect()
    }

    fn folder(&self, of: &str) -> String {
        self.scope.folder().join(of).display().to_string()
    }

    /// Settings and secrets of a group.
    fn settings(&self) {
        let keys = self.folder(&format!("{}-keys.json", self.name));
        let first = self.folder(&format!("{}/state", self.names()[0]));
        let mut command = Command::new(WEIR);
        command.args(["group", "keys", "--domain", self.name, "--state", &first, "--out", &keys]);
        assert!(command.status().unwrap().success());
        let mut founders = String::new();
        for (number, _) in (1..).zip(self.names()) {
            let at = address(self.range, number);
            founders += &format!(
                "    - {{ id: {number}, replica: \"{at}:7445\", api: \"{at}:7443\", session: \"{at}:7444\" }}\n"
            );
        }
        for (number, name) in (1..).zip(self.names()) {
            let at = address(self.range, number);
            let text = format!(
                "group:\n  id: {number}\n  listen: {at}:7445\n  keys: {keys}\n  founders:\n{founders}"
            );
            std::fs::create_dir_all(self.folder(name)).unwrap();
            std::fs::write(self.folder(&format!("{name}/controller.yaml")), text).unwrap();
        }
    }

    fn start(&mut self, one: &str) {
        let number = 1 + self.names().iter().position(|name| *name == one).unwrap() as u8;
        let (at, state) = (address(self.range, number), self.folder(&format!("{one}/state")));
        std::fs::create_dir_all(&state).unwrap();
        let mut program = Program::new(WEIR)
            .args(["controller", "--domain", self.name, "--state", &state])
            .args(["--api", &format!("{at}:7443"), "--session", &format!("{at}:7444")])
            .netns(&Netns::existing(format!("{PREFIX}{one}")));
        if self.controllers.len() > 1 {
            program = program.args(["--config", &self.folder(&format!("{one}/controller.yaml"))]);
        }
        let daemon = self.scope.start(one, &program).unwrap();
        self.controllers[usize::from(number) - 1].1 = Some(daemon);
    }

    /// Ends a controller as a crash would.
    fn kill(&mut self, one: &str) {
        let (_, daemon) = self.controllers.iter_mut().find(|(name, _)| *name == one).unwrap();
        daemon.take().unwrap().kill().unwrap();
    }

    /// A command of its operator.
    fn command(&self) -> Command {
        let mut command = Netns::existing(format!("{PREFIX}net")).command(WEIR);
        let first = self.controllers.iter().find(|(_, daemon)| daemon.is_some());
        let (name, _) = first.unwrap_or(&self.controllers[0]);
        command.env("WEIR_CONTEXT", self.folder(&format!("{name}/state/admin.json"))).env("NO_COLOR", "1");
        command
    }

    fn weir(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    /// Runs a command; its output. It must succeed.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.weir(arguments);
        let (said, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{}: weir {}: {said}{error}", self.name, arguments.join(" "));
        said
    }

    /// What a command that must fail says.
    fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.weir(arguments);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{}: weir {}: {said}", self.name, arguments.join(" "));
        said
    }

    /// A host or gateway of it, joined.
    fn join(&self, underlay: &Netns, role: &str, name: &str, number: u8) {
        let netns = member(self.scope, underlay, name, self.range, number);
        let token = self.ok(&["token", "--name", name, "--role", role]);
        for folder in ["state", "run"] {
            std::fs::create_dir_all(self.folder(&format!("{name}/{folder}"))).unwrap();
        }
        let program = Program::new(WEIR)
            .args([role, "--name", name, "--underlay", "eth0", "--monitor", "off"])
            .args([
                "--state",
                &self.folder(&format!("{name}/state")),
                "--run",
                &self.folder(&format!("{name}/run")),
            ])
            .netns(&netns)
            .env("WEIR_JOIN_TOKEN", token.trim());
        self.scope.start(name, &program).unwrap();
        wait(&format!("the session of {name}"), || self.ok(&["status"]).contains(name));
    }

    /// Applies resources.
    fn apply(&self, yaml: &str) {
        let file = self.folder(&format!("{}.yaml", self.name));
        std::fs::write(&file, yaml).unwrap();
        let said = self.ok(&["apply", "-f", &file, "--yes", "--wait-s", "60"]);
        assert!(
            said.contains("in force on every switch") || said.contains("no switch needs to know"),
            "{said}"
        );
    }

    /// The file for the operator of another domain.
    fn shown(&self) -> String {
        let file = self.folder(&format!("{}-domain.yaml", self.name));
        std::fs::write(&file, self.ok(&["domain", "show", "-o", "yaml"])).unwrap();
        file
    }

    /// How it sees another one.
    fn sees(&self, other: &str) -> Option<DomainView> {
        let list: DomainList = serde_json::from_str(&self.ok(&["domain", "list", "-o", "json"])).unwrap();
        list.items.into_iter().find(|one| one.domain.name == other)
    }

    /// All that it told is taken.
    fn wait_told(&self, other: &str, at_least: u64) {
        wait(&format!("{other} to take what {} tells", self.name), || {
            self.sees(other).is_some_and(|one| one.told.last >= at_least && one.told.acked == one.told.last)
        });
    }

    /// One more guest of red.
    fn guest(&self, name: &str, subnet: &str, host: &str, at: &str) -> Netns {
        let netns = self.scope.netns(name).unwrap();
        let yaml = format!(
            "kind: endpoint\nnetwork: red\nname: {name}\nsubnet: {subnet}\nhost: {host}\naddresses: [{at}]\n\
             attachment: {{netns: {}, device: eth0}}\n",
            netns.name()
        );
        self.apply(&yaml);
        configure(&netns, &format!("{at}/24"), &format!("{}.1", at.rsplit_once('.').unwrap().0));
        netns
    }
}

/// The network as both operators ask for it.
const RED: &str = "kind: network\nname: red\nvni: 7000\nencapsulation: vxlan\ningress: allow\n---\n\
     kind: subnet\nnetwork: red\nname: left\nv4: 10.1.0.0/24\ndomain: east\n---\n\
     kind: subnet\nnetwork: red\nname: right\nv4: 10.2.0.0/24\ndomain: west\n";

fn underlay(scope: &Scope) -> Netns {
    let netns = scope.netns("net").unwrap();
    netns.bridge(BRIDGE).unwrap();
    netns.mtu(BRIDGE, UNDERLAY_MTU_BYTES).unwrap();
    netns.address(BRIDGE, format!("{OPERATOR}/23")).unwrap();
    netns
}

fn begin(scenario: &str) -> Option<CleanOnDrop> {
    if !system::is_root() {
        println!("NOT RUN {scenario}: it needs root");
        return None;
    }
    if let Err(error) = system::require_installed(&["ip", "ping"]) {
        println!("NOT RUN {scenario}: {error}");
        return None;
    }
    Some(Scope::begin("test-domains", PREFIX).unwrap().clean_on_drop())
}

/// What is wrong is said with what is right, before anything is known.
fn errors(east: &Domain<'_>, west: &Domain<'_>, file: &str) {
    assert!(west.ok(&["domain", "list"]).contains("No other domain is known here"));
    assert!(west.fails(1, &["domain", "remove", "east", "--yes"]).contains("'weir domain list' lists them"));
    assert!(west.fails(1, &["domain", "show", "east"]).contains("'weir domain list' lists them"));
    assert!(
        west.fails(1, &["domain", "add", "/nowhere.yaml", "--underlay", "10.0.0.0/8"])
            .contains("no such file")
    );
    let said = west.fails(1, &["domain", "add", file, "--underlay", "198.18.120.0/33"]);
    assert!(said.contains("198.18.120.0/33") && said.contains("such as"), "{said}");
    assert!(west.fails(2, &["domain", "add", file]).contains("--underlay"));
    let own = east.fails(1, &["domain", "add", file, "--underlay", "198.18.120.0/24"]);
    assert!(own.contains("another domain than this one"), "{own}");
}

#[test]
fn guests_of_two_domains_reach_each_other_whoever_is_killed_until_one_is_forgotten() {
    let Some(scope) = begin("domains") else { return };
    let net = underlay(&scope);
    let mut west = Domain::found(&scope, &net, "west", 121, &["w1"]);
    let mut east = Domain::found(&scope, &net, "east", 120, &["c1", "c2", "c3"]);
    for (domain, host, gateway) in [(&east, "eh", "eg"), (&west, "wh", "wg")] {
        domain.join(&net, "host", host, 11);
        domain.join(&net, "gateway", gateway, 21);
    }
    let (of_east, of_west) = (east.shown(), west.shown());
    errors(&east, &west, &of_east);
    let described: DomainDescription =
        serde_json::from_str(&east.ok(&["domain", "show", "-o", "json"])).unwrap();
    assert_eq!((described.name.as_str(), described.controllers.len()), ("east", 3));

    // What one asks for before the other is known is told when it is.
    east.apply(RED);
    west.apply(RED);
    let left = east.guest("left", "left", "eh", "10.1.0.10");
    let right = west.guest("right", "right", "wh", "10.2.0.10");
    assert!(ping_none(&left, ip("10.2.0.10")), "nobody knows where it is");
    assert!(west.ok(&["domain", "add", &of_east, "--underlay", "198.18.120.0/24"]).contains("3 controllers"));
    east.ok(&["domain", "add", &of_west, "--underlay", "198.18.121.0/24"]);
    wait("answers of the other domain's guest", || ping_all(&left, ip("10.2.0.10")));
    assert!(ping_all(&right, ip("10.1.0.10")), "and the other way");
    // A guest each, who the controllers are, and that this is all.
    east.wait_told("west", 3);
    west.wait_told("east", 3);
    let refused = west.fails(1, &["apply", "-f", &wrong_owner(&west), "--yes"]);
    assert!(refused.contains("is of domain 'east': its endpoints are made there"), "{refused}");

    stays_here(&east, &west);
    killed(&mut east, &mut west, &left, &right);
    other_controllers(&east, &west);
    other_underlay(&east, &west, &of_east, &right);
    forgotten(&east, &west, &right);
}

/// An endpoint in the other's subnet.
fn wrong_owner(west: &Domain<'_>) -> String {
    let file = west.folder("wrong.yaml");
    let yaml = "kind: endpoint\nnetwork: red\nname: wrong\nsubnet: left\nhost: wh\naddresses: [10.1.0.66]\n";
    std::fs::write(&file, yaml).unwrap();
    file
}

/// What happens in networks of one domain is not told.
fn stays_here(east: &Domain<'_>, west: &Domain<'_>) {
    let (before, heard) = (east.sees("west").unwrap().told, west.sees("east").unwrap().taken);
    let mut yaml =
        "kind: network\nname: local\n---\nkind: subnet\nnetwork: local\nname: main\nv4: 10.7.0.0/24\n"
            .to_owned();
    for number in 10..30 {
        yaml += &format!(
            "---\nkind: endpoint\nnetwork: local\nname: e{number}\nsubnet: main\nhost: eh\naddresses: [10.7.0.{number}]\n"
        );
    }
    east.apply(&yaml);
    east.ok(&["delete", "endpoint", "local/e10", "--yes", "--wait-s", "30"]);
    assert_eq!(east.sees("west").unwrap().told.last, before.last, "22 changes, and nothing to tell");
    assert_eq!(west.sees("east").unwrap().taken, heard);
}

/// Controllers die on both sides, and what was changed meanwhile is told.
fn killed(east: &mut Domain<'_>, west: &mut Domain<'_>, left: &Netns, right: &Netns) {
    let leader = |east: &Domain<'_>| -> Option<&'static str> {
        // While nobody leads it fails.
        let said = east.weir(&["group", "list", "-o", "json"]).stdout;
        let said: serde_json::Value = serde_json::from_slice(&said).ok()?;
        let leader = said["leader"].as_u64()?;
        Some(["c1", "c2", "c3"][leader as usize - 1])
    };
    let first = leader(east).unwrap();
    east.kill(first);
    assert!(ping_all(left, ip("10.2.0.10")), "packets need no controller");
    let late = west.guest("right-2", "right", "wh", "10.2.0.20");
    wait("a new guest of west, with a controller of east dead", || ping_all(left, ip("10.2.0.20")));
    wait("another leader of east", || leader(east).is_some_and(|now| now != first));
    let other = east.guest("left-2", "left", "eh", "10.1.0.20");
    wait("a new guest of east, with one of its controllers dead", || ping_all(right, ip("10.1.0.20")));
    assert!(ping_all(&late, ip("10.1.0.20")));
    east.start(first);

    west.kill("w1");
    let last = east.guest("left-3", "left", "eh", "10.1.0.30");
    assert!(ping_all(right, ip("10.1.0.10")), "packets need no controller");
    west.start("w1");
    wait("a guest that came while all of west's controllers were dead", || ping_all(right, ip("10.1.0.30")));
    assert!(ping_all(&last, ip("10.2.0.20")) && ping_all(&other, ip("10.2.0.10")));
    east.wait_told("west", 1);
    west.wait_told("east", 1);
    let seen = west.sees("east").unwrap();
    assert_eq!((seen.taken.refused.values().sum::<u64>(), seen.taken.locations), (0, 3), "{seen:?}");
    assert_eq!(seen.taken.taken, seen.taken.through, "each statement once");
    assert_eq!(
        (seen.told.begun, east.sees("west").unwrap().told.begun),
        (1, 1),
        "nothing was told anew for it"
    );
}

/// The list of another domain's controllers is kept current.
fn other_controllers(east: &Domain<'_>, west: &Domain<'_>) {
    let known = |count: usize| {
        wait(&format!("{count} controllers of east known in west"), || {
            west.sees("east").is_some_and(|one| one.domain.controllers.len() == count)
        });
    };
    known(3);
    east.ok(&["group", "remove", "3", "--yes"]);
    known(2);
}

/// A place that the operator did not grant is not believed; granted, all is told anew.
fn other_underlay(east: &Domain<'_>, west: &Domain<'_>, of_east: &str, right: &Netns) {
    let begun = east.sees("west").unwrap().told.begun;
    west.ok(&["domain", "add", of_east, "--underlay", "198.18.122.0/24"]);
    wait("refused places", || {
        west.sees("east").is_some_and(|one| one.taken.refused.get("not_its_underlay").copied() >= Some(3))
    });
    wait("the end of answers", || ping_none(right, ip("10.1.0.10")));
    let shown = west.ok(&["domain", "show", "east"]);
    assert!(shown.contains("not_its_underlay") && shown.contains("Last refused"), "{shown}");
    west.ok(&["domain", "add", of_east, "--underlay", "198.18.120.0/24"]);
    wait("answers again", || ping_all(right, ip("10.1.0.10")));
    assert!(east.sees("west").unwrap().told.begun > begun, "all was told anew");
}

fn forgotten(east: &Domain<'_>, west: &Domain<'_>, right: &Netns) {
    assert!(west.ok(&["domain", "remove", "east", "--yes"]).contains("is removed"));
    wait("the end of answers", || ping_none(right, ip("10.1.0.10")));
    assert_eq!(west.sees("east"), None);
    wait("east to be told why nothing comes", || {
        let problem = east.sees("west").and_then(|one| one.problem).unwrap_or_default();
        problem.contains("this domain does not know yours: its operator must make it known")
    });
    assert!(east.ok(&["domain", "list"]).contains("does not know yours"));
    east.ok(&["domain", "remove", "west", "--yes"]);
    assert!(east.ok(&["domain", "list"]).contains("No other domain is known here"));
}
