//! Real namespaces, programs and packets: a bridge and a tunnel that carry traffic, and the probes over them.

#![allow(clippy::unwrap_used)] // a failed step of a test ends the test; helpers are no #[test] that clippy knows

use std::net::IpAddr;
use std::time::Duration;
use weir_lab::bench::net::{KernelVxlan, Path, PlainVeth};
use weir_lab::probe::{http, ping, stream};
use weir_lab::process::Record;
use weir_lab::scope::CleanOnDrop;
use weir_lab::{Error, Program, Scope, interrupt, system};

/// A scope for a test; `None`, with the NOT RUN line, where root or a program is missing.
fn scope(test: &str, programs: &[&str]) -> Option<CleanOnDrop> {
    if !system::is_root() {
        println!("NOT RUN {test}: it needs root");
        return None;
    }
    if let Err(error) = system::require_installed(programs) {
        println!("NOT RUN {test}: {error}");
        return None;
    }
    let scope = Scope::begin(&format!("test-{test}"), &format!("wxlab-{test}-"));
    Some(scope.unwrap().clean_on_drop())
}

#[test]
fn two_namespaces_reach_each_other_with_both_protocols_and_through_a_route() {
    let Some(scope) = scope("route", &["ip", "ping"]) else { return };
    let (left, middle, right) =
        (scope.netns("l").unwrap(), scope.netns("m").unwrap(), scope.netns("r").unwrap());
    left.veth("eth0", &middle, "l").unwrap();
    right.veth("eth0", &middle, "r").unwrap();
    for (netns, link, v4, v6) in [
        (&left, "eth0", "10.1.0.2/24", "fd01::2/64"),
        (&middle, "l", "10.1.0.1/24", "fd01::1/64"),
        (&middle, "r", "10.2.0.1/24", "fd02::1/64"),
        (&right, "eth0", "10.2.0.2/24", "fd02::2/64"),
    ] {
        netns.address(link, v4).unwrap();
        netns.address(link, v6).unwrap();
        netns.mtu(link, 1400).unwrap();
        netns.up(link).unwrap();
    }
    let unreachable = ping::run(&left, "10.2.0.2".parse().unwrap(), &ping::Options::default()).unwrap();
    assert!(unreachable.none(), "no route yet: {unreachable:?}");
    for (netns, v4, v6) in [(&left, "10.1.0.1", "fd01::1"), (&right, "10.2.0.1", "fd02::1")] {
        netns.route("default", v4).unwrap();
        netns.route("default", v6).unwrap();
    }
    middle.sysctl("net.ipv4.ip_forward", "1").unwrap();
    middle.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    for address in ["10.2.0.2", "fd02::2"] {
        let address: IpAddr = address.parse().unwrap();
        let mut last = None;
        system::wait_for("answers through the router", std::time::Duration::from_secs(30), || {
            let report = ping::run(&left, address, &ping::Options::default())?;
            let all = report.all();
            last = Some(report);
            Ok(all)
        })
        .unwrap_or_else(|error| panic!("{address}: {error} {last:?}"));
    }
    let too_long = ping::Options { payload_bytes: 1400, dont_fragment: true, ..ping::Options::default() };
    assert!(ping::run(&left, "10.2.0.2".parse().unwrap(), &too_long).unwrap().none());
}

#[test]
fn peers_through_the_kernel_carry_streams_and_are_cleaned() {
    let Some(scope) = scope("peers", &["ip", "bridge", "ping", "iperf3", "ss"]) else { return };
    for path in [&mut PlainVeth as &mut dyn Path, &mut KernelVxlan] {
        let ends = path.set_up(&scope).unwrap();
        let name = format!("{}-server", path.name());
        let mut server = stream::server(&scope, &name, &ends.server, None).unwrap();
        let options = stream::Options { duration_s: 1, flows: 2, ..stream::Options::default() };
        let report = stream::run(&ends.client, ends.server_address, &options).unwrap();
        assert!(report.received_bytes > 1_000_000, "{}: {report:?}", path.name());
        server.stop().unwrap();
        assert!(stream::run(&ends.client, ends.server_address, &options).is_err(), "nobody listens any more");
        path.tear_down().unwrap();
    }
    assert_eq!(scope.namespaces().len(), 6);
    assert_eq!(scope.clean().unwrap().namespaces, 6);
    assert!(scope.namespaces().is_empty());
}

#[test]
fn http_outcomes_tell_refusal_from_silence_and_unknown_names() {
    let Some(scope) = scope("http", &["ip", "curl", "ss", "nginx"]) else { return };
    let ends = PlainVeth.set_up(&scope).unwrap();
    let url = format!("http://{}/any/name", ends.server_address);
    let mut server = http::server(&scope, "nginx", &ends.server, 80, "six bodies").unwrap();
    let outcome = http::run(&ends.client, &url, 20).unwrap();
    assert!(matches!(outcome, http::Outcome::Answered { status: 200, body_bytes: 10, .. }), "{outcome:?}");
    server.stop().unwrap();
    assert_eq!(http::run(&ends.client, &url, 20).unwrap(), http::Outcome::Refused);
    let refused = http::run(&ends.client, &format!("http://{}:81/", ends.server_address), 5).unwrap();
    assert_eq!(refused, http::Outcome::Refused);
    scope.resolv_conf(&ends.client, "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n").unwrap();
    let unknown = http::run(&ends.client, "http://nobody.example/", 20).unwrap();
    assert_eq!(unknown, http::Outcome::NameUnknown);
    ends.server.down("eth0").unwrap();
    let silent = http::run(&ends.client, &format!("http://{}:81/", ends.server_address), 1).unwrap();
    assert_eq!(silent, http::Outcome::Silent);
}

#[test]
fn a_program_sees_its_namespace_core_and_environment() {
    let Some(scope) = scope("program", &["ip", "taskset"]) else { return };
    let netns = scope.netns("a").unwrap();
    let script = "ip -o link | wc -l; taskset -cp $$ | sed 's/.*: //'; echo $WORD";
    let program = Program::new("sh").args(["-c", script]).netns(&netns).core(0).env("WORD", "weir");
    let text = system::run_ok(program.command(), std::time::Duration::from_secs(30)).unwrap();
    assert_eq!(text.lines().collect::<Vec<_>>(), ["1", "0", "weir"]);
    let begin = scope.start("sleeper", &Program::new("sleep").arg("600").netns(&netns)).unwrap();
    // The pid is the program's own from the start; it enters the namespace a moment later.
    let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
    let there = format!("/proc/{}/ns/net", begin.pid());
    begin
        .wait_until("its namespace", std::time::Duration::from_secs(30), || {
            Ok(std::fs::read_link(&there).is_ok_and(|inside| inside != ours))
        })
        .unwrap();
}

/// What the test below runs as a process of its own: a command that is interrupted while it has a namespace.
fn interrupted_command(scope: CleanOnDrop) {
    interrupt::install().unwrap();
    scope.netns("a").unwrap();
    scope.start("sleeper", &Program::new("sleep").arg("600")).unwrap();
    println!("READY");
    let bound = std::time::Duration::from_secs(60);
    let waited = system::wait_for("a signal", bound, || Ok(false));
    assert!(matches!(waited, Err(Error::Interrupted)), "{waited:?}");
}

#[test]
fn ctrl_c_ends_a_command_and_leaves_nothing() {
    use std::io::BufRead;
    const NAME: &str = "ctrl_c_ends_a_command_and_leaves_nothing";
    let Some(scope) = scope("ctrl", &["ip"]) else { return };
    if std::env::var_os("WEIR_LAB_TEST_CHILD").is_some() {
        return interrupted_command(scope);
    }
    // The child takes the scope; the lock is free from here on.
    drop(scope);
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env("WEIR_LAB_TEST_CHILD", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("READY")));
    let record = weir_lab::process::Record::of(i32::try_from(child.id()).unwrap(), NAME.into()).unwrap();
    assert!(record.signal(rustix::process::Signal::INT).unwrap());
    let output: Vec<String> = lines.collect();
    assert!(child.wait().unwrap().success(), "{output:?}");
    assert!(weir_lab::netns::list("wxlab-ctrl-").is_empty());
    assert!(!weir_lab::scope::list().contains(&"test-ctrl".to_string()));
}

/// What is in the machine's `/etc` that the programs below write, or would.
fn machine() -> Vec<(String, Option<Vec<u8>>)> {
    let names = ["resolv.conf", "hosts", "hostname", "weir-lab-left"];
    let read = |name: &str| (name.to_string(), std::fs::read(format!("/etc/{name}")).ok());
    names.iter().map(|name| read(name)).collect()
}

#[test]
fn what_a_program_of_a_lab_writes_into_etc_changes_nothing_outside() {
    let Some(scope) = scope("etc", &["ip", "sh", "mount"]) else { return };
    let before = machine();
    assert_eq!(before[3].1, None, "a file of an earlier fault: remove /etc/weir-lab-left");
    let write = "for file in resolv.conf hosts hostname weir-lab-left; do
  echo 'written by a lab' >/etc/$file.new && mv /etc/$file.new /etc/$file || echo 'written by a lab' >/etc/$file
done; cat /etc/resolv.conf /etc/hosts /etc/weir-lab-left";
    for (short, text) in [("a", None), ("b", Some("nameserver 192.0.2.53\n"))] {
        let netns = scope.netns(short).unwrap();
        if let Some(text) = text {
            scope.resolv_conf(&netns, text).unwrap();
            assert_eq!(netns.run("cat", &["/etc/resolv.conf"]).unwrap(), text);
        }
        // It sees what the machine has.
        let hosts = String::from_utf8_lossy(before[1].1.as_deref().unwrap_or_default()).into_owned();
        assert_eq!(netns.run("sh", &["-c", "cat /etc/hosts 2>/dev/null || true"]).unwrap(), hosts);
        assert_eq!(netns.run("sh", &["-c", write]).unwrap(), "written by a lab\n".repeat(3));
        assert_eq!(machine(), before, "a program that ran to its end");
        let program = Program::new("sh").args(["-c", &format!("{write}; echo done; sleep 60")]).netns(&netns);
        let mut daemon = scope.start(&format!("writer-{short}"), &program).unwrap();
        let log = daemon.log_path().to_path_buf();
        system::wait_for("what a program that stays writes", std::time::Duration::from_secs(30), || {
            Ok(std::fs::read_to_string(&log).unwrap_or_default().contains("done"))
        })
        .unwrap();
        assert_eq!(machine(), before, "a program that stays");
        let name = std::fs::read_to_string(format!("/proc/{}/comm", daemon.pid())).unwrap();
        assert_eq!(name.trim(), "sh", "the process that was started is the program");
        daemon.stop().unwrap();
        assert_eq!(machine(), before);
    }
    // The lab's own file says what its programs were told.
    let own = std::fs::read_to_string(format!("/etc/netns/{}b/resolv.conf", scope.prefix())).unwrap();
    assert_eq!(own, "written by a lab\n");
}

#[test]
fn a_program_whose_first_thread_has_ended_runs_until_its_last_has() {
    // The system call `exit` of the first thread ends that thread alone.
    let program = "import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(60, 0)";
    let Ok(mut child) = std::process::Command::new("python3").args(["-c", program]).spawn() else {
        return println!("NOT RUN a_program_whose_first_thread_has_ended: there is no python3");
    };
    let pid = i32::try_from(child.id()).unwrap();
    let record = Record::of(pid, "python3".into()).unwrap();
    let is_zombie =
        || Ok(std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z ")));
    system::wait_for("its first thread to end", Duration::from_secs(60), is_zombie).unwrap();
    assert!(record.alive(), "another thread has its locks still");
    child.kill().unwrap();
    // Nobody has asked for its end yet: it is a zombie, and does not run.
    system::wait_for("its end", Duration::from_secs(60), || Ok(!record.alive())).unwrap();
    child.wait().unwrap();
    assert!(!record.alive());
}
