//! One process of the switch takes over from another under traffic (row A30), and either may be killed at any step.
use crate::lab::{Lab, lab, label, sh, try_sh, wait_child, wait_for};
use crate::scripts::{
    CONVERSATIONS, ECHO_SERVER, HALF_UPGRADE, TCP_SINK, TCP_SOURCE, UDP_SEQUENCE, UDP_SEQUENCE_SINK,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use weir_model::Version;
use weir_model::entry::Rule;
use weir_model::local::{Answer, Question};
use weir_model::resource::{Action, Direction, Encapsulation, Protocol};
use weir_switch::handover::UPGRADE_SOCKET;
use weir_switch::handover::message::{Hello, Message};

/// Endpoints `a` and `b` on two hosts. Nothing may come in but connections to some ports: their replies pass by state alone.
fn strict(name: &str) -> Option<Lab> {
    let mut lab = lab(name, 2, Encapsulation::Geneve, false, 1500)?;
    lab.policy.default_ingress = Action::Deny;
    let allow = |name: &str, protocol| Rule {
        name: label(name),
        version: Version(1),
        direction: Direction::Ingress,
        priority: 1,
        action: Action::Allow,
        protocol: Protocol::Number(protocol),
        ports: vec![weir_model::resource::PortRange { first: 7000, last: 7009 }],
        peers: vec![],
        targets: vec![],
        stateful: true,
    };
    lab.policy.rules = vec![allow("tcp", 6), allow("udp", 17)];
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    Some(lab)
}

/// Connections that stand still until they are asked to speak.
struct Conversations {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Conversations {
    fn begin(lab: &Lab, count: u32) -> Conversations {
        let mut child = Command::new("ip")
            .args([
                "netns",
                "exec",
                &format!("{}a", lab.prefix),
                "python3",
                "-c",
                CONVERSATIONS,
                "10.0.0.2",
                "7002",
            ])
            .arg(count.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut conversations = Conversations { child, output };
        assert_eq!(conversations.line(), format!("ready {count}"));
        conversations
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    /// Has each say something and hear it again; the other side speaks first every other time.
    fn speak(&mut self) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "speak").unwrap();
        self.line()
    }
}

impl Drop for Conversations {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a prober lost: of how many, and how many.
fn probed(sink: crate::lab::Watching) -> (u64, u64) {
    let lines = sink.finish();
    let last = lines.last().expect("a line");
    let number = |name: &str| {
        let rest = last.split(name).nth(1).expect("a figure");
        rest.split_whitespace().next().expect("a figure").parse().expect("a number")
    };
    println!("{last}");
    (number("sent="), number("lost="))
}

/// Frames that queues outside of the switches had no room for, as the kernel counts them: those of the devices of endpoints, hosts and
/// the underlay, and of the sockets there, the switches' own among them. By place, for whoever looks for a loss.
fn left_by_queues(lab: &Lab) -> BTreeMap<String, u64> {
    // "Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors": the second such
    // line has the numbers.
    const COUNTS: &str = r#"for device in /sys/class/net/*; do
          for count in tx_dropped rx_dropped; do echo "${device##*/} $count $(cat $device/statistics/$count)"; done
        done
        awk '/^Udp:/ { count = $6 + $7 + $10 } END { print "UDP sockets", count }' /proc/net/snmp"#;
    let mut left = BTreeMap::new();
    let endpoints = ["a", "b", "u"].map(|name| format!("{}{name}", lab.prefix));
    for netns in endpoints.iter().chain(lab.hosts.iter().map(|host| &host.netns)) {
        let output =
            Command::new("ip").args(["netns", "exec", netns, "sh", "-c", COUNTS]).output().expect("it runs");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains("UDP sockets"), "{text}{}", String::from_utf8_lossy(&output.stderr));
        for line in text.lines() {
            let (what, count) = line.rsplit_once(' ').expect("a name and a number");
            left.insert(format!("{netns}: {what}"), count.parse().expect("a number"));
        }
    }
    left.retain(|_, count| *count > 0);
    left
}

/// Datagrams of 1 ms each from `a` to `b`, which are counted.
struct Probes {
    sink: crate::lab::Watching,
    source: Child,
    /// What queues had no room for before there were any.
    before: BTreeMap<String, u64>,
}

impl Probes {
    fn begin(lab: &Lab) -> Probes {
        let before = left_by_queues(lab);
        let sink = lab.python_with_input("b", UDP_SEQUENCE_SINK, &["7003"]);
        let source = lab.spawn("a", &["python3", "-c", UDP_SEQUENCE, "10.0.0.2", "7003", "0.001"]);
        Probes { sink, source, before }
    }

    /// What comes during a blackout waits in the devices' and sockets' queues, and afterwards until the flows are decided anew. Only what
    /// those had no room for may be lost. Other traffic may be among what they had no room for.
    fn end(mut self, lab: &Lab) {
        self.source.kill().unwrap();
        self.source.wait().unwrap();
        let (sent, lost) = probed(self.sink);
        let mut left = left_by_queues(lab);
        left.iter_mut().for_each(|(place, count)| *count -= self.before.get(place).unwrap_or(&0));
        left.retain(|_, count| *count > 0);
        println!("queues had no room for: {left:?}");
        if lost > left.values().sum() {
            lab.print_counters();
        }
        assert!(sent > 500, "{sent}");
        assert!(lost <= left.values().sum(), "{lost} of {sent}, and the queues had no room for {left:?}");
    }
}

/// What has the machine's processors busy until it is dropped.
struct Load(Vec<Child>);

impl Load {
    /// Twice as many as there are processors.
    fn begin() -> Load {
        let count = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
        Load((0..count).map(|_| busy().expect("it starts")).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for busy in &mut self.0 {
            let _ = busy.kill();
            let _ = busy.wait();
        }
    }
}

/// No switch that was replaced so far has dropped what its slow path had no room for.
fn no_overflow(lab: &Lab) {
    for host in &lab.hosts {
        assert_eq!(host.counters()["drops{reason=\"slow-path-overflow\"}"], 0, "{}", host.name);
    }
}

#[test]
fn connections_go_on_while_both_switches_are_replaced() {
    let Some(mut lab) = strict("upgrades under traffic") else { return };
    let _sink = lab.python("b", TCP_SINK, &["7001"]);
    let _echo = lab.python("b", ECHO_SERVER, &["7002"]);
    let mut conversations = Conversations::begin(&lab, 40);
    let probes = Probes::begin(&lab);
    let source = lab.spawn("a", &["python3", "-c", TCP_SOURCE, "10.0.0.2", "7001", "60", "0.03"]);
    for round in 0..8 {
        std::thread::sleep(Duration::from_millis(200));
        // Its counters go with it.
        no_overflow(&lab);
        lab.hosts[round % 2].upgrade();
        assert_eq!(conversations.speak(), "equal 40", "round {round}");
    }
    let output = source.wait_with_output().unwrap();
    lab.print_counters();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "equal");
    probes.end(&lab);
    no_overflow(&lab);
    let counters = lab.hosts[0].counters();
    assert_eq!(counters["handover_taken_over"], 1, "{counters:?}");
    assert!(counters["handover_connections"] >= 40, "{counters:?}");
    assert_eq!(counters["handover_frames_left"], 0);
    // What nothing allows is denied as before.
    let nobody = lab.spawn("a", &["python3", "-c", TCP_SOURCE, "10.0.0.2", "7777", "1", "0"]);
    wait_for("the drop", || {
        lab.hosts[1].counters().iter().any(|(name, count)| name.contains("default") && *count > 0)
    });
    drop(nobody);
}

/// The probes are nearly all there is, so that what queues had no room for was theirs.
#[test]
fn no_probe_is_lost_on_a_machine_that_has_too_much_to_do() {
    let Some(mut lab) = strict("upgrades of a busy machine") else { return };
    let _echo = lab.python("b", ECHO_SERVER, &["7002"]);
    let mut conversations = Conversations::begin(&lab, 5);
    let probes = Probes::begin(&lab);
    let load = Load::begin();
    for round in 0..6 {
        std::thread::sleep(Duration::from_millis(100));
        no_overflow(&lab);
        lab.hosts[round % 2].upgrade();
        assert_eq!(conversations.speak(), "equal 5", "round {round}");
    }
    drop(load);
    no_overflow(&lab);
    probes.end(&lab);
}

/// Says hello as a process that takes over would, goes so far as it is told, and then ends or stands still.
pub fn half(lab: &Lab, host: usize, step: &str) -> Child {
    let config = &lab.hosts[host].config;
    let hello = |name| {
        let hello = Hello {
            oldest: 1,
            newest: 1,
            build: "half".into(),
            name,
            domain: config.domain.clone(),
            underlay: (config.underlay, config.geneve_port, config.vxlan_port),
        };
        Message::Hello(hello).encode().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let name = if step == "stranger" { label("somebody") } else { config.name.clone() };
    Command::new("python3")
        .args(["-c", HALF_UPGRADE, config.run_dir.join(UPGRADE_SOCKET).to_str().unwrap(), &hello(name), step])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn whoever_gives_up_at_any_step_leaves_the_old_process_serving() {
    let Some(mut lab) = strict("half upgrades") else { return };
    let _echo = lab.python("b", ECHO_SERVER, &["7002"]);
    let probes = lab.python_with_input("b", UDP_SEQUENCE_SINK, &["7003"]);
    let mut conversations = Conversations::begin(&lab, 5);
    let mut prober = lab.spawn("a", &["python3", "-c", UDP_SEQUENCE, "10.0.0.2", "7003", "0.001"]);
    // Each is what it says, told by the last line of who gave up.
    for (step, said) in [
        ("stranger", "no"),
        ("hello", "welcome"),
        ("nonsense", "welcome"),
        ("copy", "copied"),
        ("freeze", "frozen"),
        ("refuse", "frozen"),
        ("hello", "welcome"),
    ] {
        let before = lab.hosts[0].counters()["handovers_begun"];
        let child = half(&lab, 0, step);
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.lines().last(), Some(said), "{step}: {text}");
        wait_for("the end of the hand-over", || {
            let counters = lab.hosts[0].counters();
            let failed = counters["handovers_failed{phase=\"brownout\"}"]
                + counters["handovers_failed{phase=\"blackout\"}"];
            failed == counters["handovers_begun"] && failed == before + 1
        });
        assert_eq!(conversations.speak(), "equal 5", "{step}");
    }
    // One that has everything and stands still is killed before the old one goes on.
    let mut child = half(&lab, 0, "hang");
    let status = child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    wait_for("the old one", || lab.hosts[0].counters()["handovers_failed{phase=\"blackout\"}"] == 3);
    assert!(lab.hosts[0].counters()["handover_kills"] >= 1);
    assert_eq!(conversations.speak(), "equal 5");
    // And after all of that it is replaced.
    lab.hosts[0].upgrade();
    assert_eq!(conversations.speak(), "equal 5");
    prober.kill().unwrap();
    prober.wait().unwrap();
    let (sent, lost) = probed(probes);
    assert_eq!(lost, 0, "of {sent}");
}

#[test]
fn either_process_may_be_killed_in_the_middle() {
    let Some(mut lab) = strict("kills in the middle") else { return };
    let _sink = lab.python("b", TCP_SINK, &["7001"]);
    let _echo = lab.python("b", ECHO_SERVER, &["7002"]);
    let mut conversations = Conversations::begin(&lab, 5);
    let source = lab.spawn("a", &["python3", "-c", TCP_SOURCE, "10.0.0.2", "7001", "80", "0.02"]);
    let (mut went_on, mut restarted) = (0, 0);
    for round in 0..16_u64 {
        let mut new = lab.hosts[0].begin_upgrade();
        // The whole takes some ten milliseconds, most of them the start of the process.
        std::thread::sleep(Duration::from_micros(900 * round));
        if round % 2 == 0 {
            new.kill().unwrap();
            new.wait().unwrap();
            // If the old one had left by then the supervisor would start another.
            let left = wait_child(lab.hosts[0].child(), {
                let mut looks = 0;
                move || {
                    looks += 1;
                    looks < 60
                }
            });
            if left.is_some() {
                lab.hosts[0].start();
                restarted += 1;
            } else {
                went_on += 1;
            }
        } else {
            lab.hosts[0].child().kill().unwrap();
            drop(lab.hosts[0].replace_child(new).map(|mut old| old.wait()));
        }
        wait_for("a switch that answers", || lab.hosts[0].connect().is_some_and(|_| answers(&lab)));
        assert_eq!(conversations.speak(), "equal 5", "round {round}");
    }
    println!("the new one killed: the old one went on {went_on} times, and had left {restarted} times");
    let output = source.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "equal");
}

fn answers(lab: &Lab) -> bool {
    use std::io::BufReader;
    use weir_base::codec::{read_frame, write_frame};
    use weir_model::local::{FromSwitch, ToSwitch};
    let Some(mut stream) = lab.hosts[0].connect() else { return false };
    let asked = ToSwitch::Ask { id: 1, question: Question::Ports };
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    write_frame(&mut stream, &asked).is_ok()
        && read_frame::<FromSwitch>(&mut BufReader::new(stream)).is_ok_and(|answer| {
            matches!(answer, FromSwitch::Answer { answer: Answer::Ports(ports), .. } if ports.iter().all(|port| port.up))
        })
}

#[test]
fn who_finds_nobody_to_take_over_from_starts_from_the_checkpoint() {
    let Some(mut lab) = strict("take-over of nobody") else { return };
    let _echo = lab.python("b", ECHO_SERVER, &["7002"]);
    let mut conversations = Conversations::begin(&lab, 5);
    lab.hosts[0].kill();
    let new = lab.hosts[0].begin_upgrade();
    lab.hosts[0].replace_child(new);
    assert_eq!(conversations.speak(), "equal 5");
    assert_eq!(lab.hosts[0].counters()["handover_taken_over"], 0);
    // A device that was made anew meanwhile is not the one that the other process has.
    let before = sh(&format!("ip -n {}a -o link show t0", lab.prefix));
    lab.hosts[0].upgrade();
    assert_eq!(sh(&format!("ip -n {}a -o link show t0", lab.prefix)), before, "carrier and all");
    assert_eq!(conversations.speak(), "equal 5");
    assert!(
        try_sh(&format!("ls {}", lab.hosts[0].config.run_dir.join(UPGRADE_SOCKET).display()))
            .status
            .success()
    );
}
