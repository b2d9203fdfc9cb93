//! `weir monitor` as a person uses it: files are checked, it runs, shows, answers questions of all three kinds, acts, explains
//! and is audited; and what is wrong is told. What it repairs is in a cgroup of its own, with at most 200 processes.

use crate::lab::text;
use crate::namespaces::BOUND;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use weir_lab::system;

const POLICIES: &str = "\
kind: fork-bomb
name: bombs
cgroup: CGROUP
action: freeze-kill
dry-run: false
when: { living: 24, window-ms: 2000 }
---
kind: fork-bomb
name: tried
cgroup: CGROUP
when: { living: 12, window-ms: 2000 }
---
kind: service
name: caged
cgroup: CGROUP
";
const QUERIES: &str = "\
on-demand processes = living();
once first_forks = count(fork) >= 5;
every 100ms forkers when rate(fork, 10s) > 0 = top(3, fork.comm);
";

/// A cgroup of version 2 with a bound on its processes.
struct Cage {
    name: String,
    folder: PathBuf,
    bound: PathBuf,
}

impl Cage {
    fn new(name: &str) -> Result<Cage, String> {
        if !system::is_root() {
            return Err("it needs root".into());
        }
        let mount = weir_monitor::controls::mount().ok_or("cgroups of version 2 are not mounted")?;
        let name = format!("wxweir-{name}-{}", std::process::id());
        let folder = mount.join(&name);
        let pids = Path::new("/sys/fs/cgroup/pids");
        let bound = if pids.is_dir() { pids.join(&name) } else { folder.clone() };
        for folder in [&folder, &bound] {
            std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        std::fs::write(bound.join("pids.max"), "200").map_err(|error| format!("pids.max: {error}"))?;
        Ok(Cage { name, folder, bound })
    }

    /// Starts a shell command inside.
    fn start(&self, command: &str) -> Child {
        let (bound, folder) = (self.bound.display(), self.folder.display());
        let enter =
            format!("echo $$ > {bound}/cgroup.procs && echo $$ > {folder}/cgroup.procs && exec sh -c \"$1\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &enter, "sh", command]).stdout(Stdio::null()).stderr(Stdio::null());
        shell.spawn().unwrap()
    }

    fn empty(&self) -> bool {
        let events = std::fs::read_to_string(self.folder.join("cgroup.events")).unwrap_or_default();
        events.contains("populated 0")
    }

    fn frozen(&self) -> bool {
        let events = std::fs::read_to_string(self.folder.join("cgroup.events")).unwrap_or_default();
        events.contains("frozen 1")
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        let gone = || {
            let _ = std::fs::write(self.folder.join("cgroup.freeze"), "0");
            let _ = std::fs::write(self.folder.join("cgroup.kill"), "1");
            for folder in [&self.bound, &self.folder] {
                let _ = std::fs::remove_dir(folder);
            }
            !self.bound.exists() && !self.folder.exists()
        };
        let _ = system::wait_for("the end of the cage", BOUND, || Ok(gone()));
    }
}

fn weir(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).args(arguments).env("NO_COLOR", "1").output().unwrap()
}

/// A monitor that runs, with its files in a folder.
struct Running {
    child: Child,
    status: String,
    folder: tempfile::TempDir,
}

impl Running {
    fn start(policies: &str, more: &[&str]) -> Running {
        Running::with_audit(policies, more, None)
    }

    /// One whose audit log, and what it did by order, outlives it.
    fn with_audit(policies: &str, more: &[&str], audit: Option<&str>) -> Running {
        Running::with_sensors(policies, more, audit, None)
    }

    /// One that looks for boxes in another folder than its own.
    fn with_sensors(policies: &str, more: &[&str], audit: Option<&str>, sensors: Option<&str>) -> Running {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
            path.display().to_string()
        };
        let (policy, query) = (write("policies.yaml", policies), write("queries.txt", QUERIES));
        // A port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let status = format!("127.0.0.1:{port}");
        let own = folder.path().join("audit.log").display().to_string();
        let audit = audit.map_or(own, str::to_string);
        let own_sensors = folder.path().join("sensors").display().to_string();
        let sensors = sensors.map_or(own_sensors, str::to_string);
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["monitor", "--policy", &policy, "--query", &query, "--audit", &audit]);
        command.args(["--sensors", &sensors, "--status", &status]).args(more).stderr(log);
        let mut running = Running { child: command.spawn().unwrap(), status, folder };
        system::wait_for("the monitor", BOUND, || {
            assert!(running.child.try_wait().unwrap().is_none(), "{}", running.log());
            Ok(running.ask("top").is_some())
        })
        .unwrap();
        running
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn audit(&self) -> String {
        self.folder.path().join("audit.log").display().to_string()
    }

    /// What a command that looks at it answers.
    fn ask(&self, what: &str) -> Option<Value> {
        let output = weir(&["monitor", what, "--status", &self.status, "-o", "json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Waits for an event that a policy raised, or any with an empty name; gives its number and all of it.
    fn wait_for_event(&self, policy: &str, wanted: impl Fn(&Value) -> bool) -> (u64, Value) {
        let mut found = None;
        system::wait_for("an event", BOUND, || {
            let events = self.ask("events").unwrap();
            let of = |event: &&Value| event["policy"].as_str().unwrap_or("") == policy && wanted(event);
            found = events.as_array().unwrap().iter().find(of).cloned();
            Ok(found.is_some())
        })
        .unwrap();
        let event = found.unwrap();
        (event["number"].as_u64().unwrap(), event)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_person_checks_runs_asks_and_understands_a_monitor() {
    let cage = match Cage::new("monitor") {
        Ok(cage) => cage,
        Err(reason) => {
            return println!("NOT RUN a_person_checks_runs_asks_and_understands_a_monitor: {reason}");
        }
    };
    let policies = POLICIES.replace("CGROUP", &cage.name);
    let monitor = Running::start(&policies, &["--ordinary"]);
    let path = |name: &str| monitor.folder.path().join(name).display().to_string();
    let (policy, query) = (path("policies.yaml"), path("queries.txt"));
    let output = weir(&["monitor", "check", "--policy", &policy, "--query", &query]);
    let said = text(&output.stdout);
    for line in [
        "bombs: fork-bomb, freeze-kill, in earnest",
        "tried: fork-bomb, freeze-kill, dry run",
        "caged: service, report, dry run",
        "processes: on-demand",
        "first_forks: once",
        "forkers: every",
    ] {
        assert!(output.status.success() && said.contains(line), "{line}: {said}");
    }

    // It acts: by one policy in earnest, by the other in words.
    let mut bomb = cage.start("while true; do sleep 1000 & done");
    let (number, alarm) = monitor.wait_for_event("bombs", |event| event["event"] == "alarm");
    assert_eq!(alarm["outcome"], "acted", "{alarm}");
    let (tried, words) = monitor.wait_for_event("tried", |event| event["event"] == "alarm");
    assert_eq!((&words["outcome"], &words["dry_run"]), (&"reported".into(), &true.into()), "{words}");
    monitor.wait_for_event("bombs", |event| event["event"] == "settled");
    bomb.wait().unwrap();
    system::wait_for("the end of the bomb", BOUND, || Ok(cage.empty())).unwrap();

    // The three kinds of queries.
    monitor.wait_for_event("", |event| event["event"] == "query" && event["query"] == "first_forks");
    monitor.wait_for_event("", |event| event["event"] == "query" && event["query"] == "forkers");
    let queries = monitor.ask("query").unwrap();
    let row = |name: &str| {
        let rows = queries.as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {queries}")).clone()
    };
    assert!(row("processes")["value"].as_str().unwrap().parse::<u64>().unwrap() > 0, "{queries}");
    assert_eq!(row("first_forks")["kind"], "once");
    assert_eq!(row("forkers")["kind"], "every");
    let one = weir(&["monitor", "query", "processes", "--status", &monitor.status]);
    assert!(one.status.success() && text(&one.stdout).contains("on-demand"), "{}", text(&one.stdout));

    // What top shows, and why it acted.
    let top = weir(&["monitor", "top", "--status", &monitor.status]);
    for word in ["kernel by", "bombs", "tried", "loop:"] {
        assert!(text(&top.stdout).contains(word), "{word}: {}", text(&top.stdout));
    }
    let explained = weir(&["monitor", "explain", &number.to_string(), "--audit", &monitor.audit()]);
    let said = text(&explained.stdout);
    for word in
        ["living processes were born", "behind:", "freeze-kill", "processes signalled", "then:", "gone"]
    {
        assert!(explained.status.success() && said.contains(word), "{word}: {said}");
    }
    let explained = weir(&["monitor", "explain", &tried.to_string(), "--audit", &monitor.audit()]);
    assert!(text(&explained.stdout).contains("a dry run"), "{}", text(&explained.stdout));
    let audited = weir(&["monitor", "audit", "--audit", &monitor.audit()]);
    assert!(audited.status.success() && text(&audited.stdout).contains("nothing was changed"));

    // It ends when it is told to, and the log is whole; a log that somebody changed is found out.
    let audit = monitor.audit();
    let process = rustix::process::Pid::from_child(&monitor.child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let mut monitor = monitor;
    assert!(monitor.child.wait().unwrap().success(), "{}", monitor.log());
    let whole = std::fs::read_to_string(&audit).unwrap();
    assert!(whole.lines().last().unwrap().contains("stopped"), "{whole}");
    std::fs::write(&audit, whole.replacen("\"acted\"", "\"reported\"", 1)).unwrap();
    let audited = weir(&["monitor", "audit", "--audit", &audit]);
    assert_eq!(audited.status.code(), Some(4), "{}", text(&audited.stdout));
}

/// SIGHUP reads policies and queries anew, in the same process (a supervisor sees no end), with the audit log going on; files that are wrong
/// change nothing.
#[test]
fn sighup_reads_the_files_anew_and_wrong_ones_change_nothing() {
    let policies = |names: &[&str]| {
        let one = |name: &&str| format!("kind: fork-bomb\nname: {name}\nwhen: {{ living: 5000 }}\n");
        names.iter().map(one).collect::<Vec<_>>().join("---\n")
    };
    let mut monitor = Running::start(&policies(&["before"]), &["--ordinary"]);
    let write = |monitor: &Running, name: &str, text: &str| {
        std::fs::write(monitor.folder.path().join(name), text).unwrap();
        let process = rustix::process::Pid::from_child(&monitor.child);
        rustix::process::kill_process(process, rustix::process::Signal::HUP).unwrap();
    };
    let names = |monitor: &Running| -> Option<Vec<String>> {
        let status = monitor.ask("top")?;
        let rows = status["policies"].as_array()?;
        Some(rows.iter().filter_map(|row| Some(row["name"].as_str()?.to_string())).collect())
    };
    assert_eq!(names(&monitor).unwrap(), ["before"]);
    write(&monitor, "policies.yaml", "kind: flood\nname: wrong\n");
    system::wait_for("the refusal", BOUND, || Ok(monitor.log().contains("goes on with what it had")))
        .unwrap();
    assert!(monitor.log().contains("flood"), "{}", monitor.log());
    assert_eq!(names(&monitor).unwrap(), ["before"]);
    write(&monitor, "policies.yaml", &policies(&["after", "beside"]));
    let wanted = ["after", "beside"].map(str::to_string);
    system::wait_for("the new policies", BOUND, || {
        assert!(monitor.child.try_wait().unwrap().is_none(), "it is the same process: {}", monitor.log());
        Ok(names(&monitor).is_some_and(|names| names == wanted))
    })
    .unwrap();
    write(&monitor, "queries.txt", "on-demand other = living();\n");
    system::wait_for("the new queries", BOUND, || {
        let queries = monitor.ask("query");
        Ok(queries.is_some_and(|rows| {
            rows.as_array().is_some_and(|rows| rows.len() == 1 && rows[0]["name"] == "other")
        }))
    })
    .unwrap();
    let audited = weir(&["monitor", "audit", "--audit", &monitor.audit()]);
    assert!(audited.status.success() && text(&audited.stdout).contains("nothing was changed"), "one chain");
    let process = rustix::process::Pid::from_child(&monitor.child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert!(monitor.child.wait().unwrap().success(), "{}", monitor.log());
}

/// Takes what is sent to it by HTTP, and keeps the path and the body of each.
struct Sink {
    address: String,
    taken: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Sink {
    fn start() -> Sink {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let taken = Arc::new(Mutex::new(Vec::new()));
        let keep = taken.clone();
        // It ends with the tests.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut stream = BufReader::new(stream);
                let line = |stream: &mut BufReader<TcpStream>| {
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                    line.trim_end().to_string()
                };
                let path = line(&mut stream).split(' ').nth(1).unwrap_or_default().to_string();
                let mut length = 0;
                loop {
                    let header = line(&mut stream).to_ascii_lowercase();
                    if header.is_empty() {
                        break;
                    }
                    if let Some(value) = header.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                keep.lock().unwrap().push((path, serde_json::from_slice(&body).unwrap()));
                let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        Sink { address, taken }
    }

    /// Waits for a body that was sent to a path.
    fn wait_for(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        system::wait_for(path, BOUND, || {
            let taken = self.taken.lock().unwrap();
            found = taken.iter().find(|(to, body)| to == path && wanted(body)).map(|(_, body)| body.clone());
            Ok(found.is_some())
        })
        .unwrap();
        found.unwrap()
    }
}

#[test]
fn alarms_go_to_the_webhook_and_metrics_to_the_collector() {
    let cage = match Cage::new("sent") {
        Ok(cage) => cage,
        Err(reason) => {
            return println!("NOT RUN alarms_go_to_the_webhook_and_metrics_to_the_collector: {reason}");
        }
    };
    let sink = Sink::start();
    let (webhook, otlp) = (format!("http://{}/alerts", sink.address), format!("http://{}", sink.address));
    let more = ["--ordinary", "--webhook", &webhook, "--otlp", &otlp, "--otlp-every-s", "1"];
    let monitor = Running::start(&POLICIES.replace("CGROUP", &cage.name), &more);
    let mut bomb = cage.start("while true; do sleep 1000 & done");
    let alert = sink.wait_for("/alerts", |body| body["commonLabels"]["policy"] == "bombs");
    assert_eq!((&alert["version"], &alert["status"]), (&"4".into(), &"firing".into()), "{alert}");
    assert_eq!(alert["alerts"][0]["labels"]["alertname"], "weir-monitor-living", "{alert}");
    // And that it is over, of the same alert.
    let over = |body: &Value| body["status"] == "resolved" && body["commonLabels"]["policy"] == "bombs";
    let over = sink.wait_for("/alerts", over);
    assert_eq!(over["alerts"][0]["fingerprint"], alert["alerts"][0]["fingerprint"], "{over}");
    let of_policy = |body: &Value| {
        let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array()?;
        let alarms = metrics.iter().find(|metric| metric["name"] == "weir_monitor_policy_alarms_total")?;
        let points = alarms["sum"]["dataPoints"].as_array()?;
        let of = |point: &&Value| point["attributes"][0]["value"]["stringValue"] == "bombs";
        points.iter().find(of)?["asDouble"].as_f64()
    };
    sink.wait_for("/v1/metrics", |body| of_policy(body) >= Some(1.0));
    // The same as Prometheus reads.
    let text = ureq::get(format!("http://{}/metrics", monitor.status)).call().unwrap();
    let text = text.into_body().read_to_string().unwrap();
    assert!(text.contains("weir_monitor_policy_alarms_total{policy=\"bombs\"} "), "{text}");
    bomb.wait().unwrap();
}

#[test]
fn what_is_wrong_with_a_monitors_files_and_arguments_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let refused = |arguments: &[&str], code: i32, reason: &str| {
        let output = weir(&[&["monitor"], arguments].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(reason), "{arguments:?}: {said}");
    };
    let kind = write("kind.yaml", "kind: flood\nname: a\n");
    refused(&["check", "--policy", &kind], 2, "kind 'flood' is not known");
    let guest = write("guest.yaml", "kind: guest\nname: a\nmemory-file: /m\nstimulus: shout\n");
    refused(&["check", "--policy", &guest], 2, "console:PATH");
    let action = write("action.yaml", "kind: fork-bomb\nname: a\naction: hug\nwhen: { living: 5 }\n");
    refused(&["check", "--policy", &action], 2, "freeze-kill");
    let query = write("query.txt", "on-demand a = living() + ;");
    refused(&["check", "--query", &query], 2, "line 1, column");
    let ring = write("ring.yaml", "own: a\nhosts: { a: 127.0.0.1:1 }\nkey-file: /k\n");
    refused(&["--ring", &ring], 2, "needs at least");
    refused(&["check"], 2, "--policy");
    refused(&["--report-to", "/run/weir"], 2, "--report-as");
    refused(&["top", "--status", "127.0.0.1:1"], 2, "is a 'weir monitor' running there?");
    refused(&["query", "--status", "127.0.0.1:1"], 2, "127.0.0.1:1");
    let missing = folder.path().join("none.log").display().to_string();
    refused(&["explain", "1", "--audit", &missing], 1, "none.log: no monitor ran here");
    let empty = write("empty.log", "");
    refused(&["explain", "7", "--audit", &empty], 1, "has no event 7");
    let cgroup = write("cgroup.yaml", "kind: fork-bomb\nname: a\ncgroup: wx-nowhere\nwhen: { living: 5 }\n");
    let checked = weir(&["monitor", "check", "--policy", &cgroup]);
    assert!(checked.status.success() && text(&checked.stdout).contains("wx-nowhere is not on this host"));
}

#[test]
fn a_hosts_monitor_tells_the_controllers_and_obeys_their_signed_orders() {
    const NAME: &str = "a_hosts_monitor_tells_the_controllers_and_obeys_their_signed_orders";
    let Some(lab) = crate::lab::lab(NAME) else { return };
    let cage = match Cage::new("ordered") {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let health_of = |host: &str| lab.switches().into_iter().find(|one| one.name == host).unwrap().health;
    // The supervisor of h1 runs a monitor, and keeps it running.
    system::wait_for("h1's report", BOUND, || Ok(health_of("h1").is_some())).unwrap();
    lab.crash("h1", "monitor");

    // Inside the lab's namespaces no cgroups are mounted, so that of h2 is run from outside them.
    let health = || health_of("h2");
    let told = |wanted: &str| {
        system::wait_for(wanted, BOUND, || {
            Ok(health().is_some_and(|health| health.notes.iter().any(|note| note.text.contains(wanted))))
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", health()));
    };
    let settings = lab.folder().join("h2/state/node.json").display().to_string();
    let audit = lab.folder().join("h2/audit.log").display().to_string();
    let policies = POLICIES.replace("CGROUP", &cage.name);
    let start = || {
        let more = ["--ordinary", "--host-config", &settings];
        Running::with_audit(&policies, &more, Some(&audit))
    };
    let mut monitor = start();
    system::wait_for("its report", BOUND, || Ok(health().is_some())).unwrap();

    // What it sees and does comes to the controllers.
    let mut bomb = cage.start("while true; do sleep 1000 & done");
    told("living processes were born within the window");
    bomb.wait().unwrap();
    assert!(health().unwrap().alarms >= 1);
    // Faults only: what the host's own queries find stays in its log.
    monitor.wait_for_event("", |event| event["event"] == "query" && event["query"] == "forkers");
    let notes = health().unwrap().notes;
    assert!(notes.iter().all(|note| !note.text.starts_with("query ")), "{notes:?}");
    let shown = lab.ok(&["status"]);
    assert!(shown.contains("h2: monitor:") && shown.contains("bombs:"), "{shown}");

    // What they order is done, for as long as it stands.
    let mut sleeper = cage.start("sleep 1000");
    system::wait_for("a process in the cage", BOUND, || Ok(!cage.empty())).unwrap();
    // The command waits for what the monitor did: it is done when it says so.
    let said = lab.ok(&["monitor", "repair", "h2", "freeze", &cage.name, "--wait-s", "60"]);
    assert!(cage.frozen() && said.contains("was carried out"), "{said}");
    told(&format!("freeze of cgroup {} was ordered", cage.name));
    assert_eq!(health().unwrap().repairs.len(), 1);
    let shown = || lab.ok(&["plane", "show", "h2"]);
    assert!(shown().contains(&format!("freeze cgroup {}", cage.name)) && shown().contains(" yes "));
    // A monitor that was away does what was ordered, and undoes what was withdrawn.
    drop(monitor);
    assert!(cage.frozen());
    lab.ok(&["monitor", "withdraw", "h2", &cage.name, "--wait-s", "60"]);
    assert!(cage.frozen(), "nobody is there to thaw it");
    monitor = start();
    system::wait_for("the thaw", BOUND, || Ok(!cage.frozen())).unwrap();
    assert!(sleeper.try_wait().unwrap().is_none(), "it lives");
    let kill = ["monitor", "repair", "h2", "kill", &cage.name, "--id", "one", "--wait-s", "60"];
    lab.ok(&kill);
    assert!(system::wait_for("its end", BOUND, || Ok(sleeper.try_wait().unwrap().is_some())).is_ok());
    // What the monitor cannot do has its reason, and is no success.
    let ordered = |cgroup: &str, wait_s: &str| {
        lab.weir(&["monitor", "repair", "h2", "kill", cgroup, "--wait-s", wait_s])
    };
    let none = ordered("wxweir-no-such-cgroup", "60");
    let said = text(&none.stdout);
    assert_eq!(none.status.code(), Some(1), "{said}");
    assert!(said.contains("wxweir-no-such-cgroup") && said.contains("NOT carried out"), "{said}");
    lab.ok(&["monitor", "withdraw", "h2", "wxweir-no-such-cgroup", "--wait-s", "60"]);
    // Somebody killed what ran there, whoever that was.
    told("the main process of the service, was ended by SIGKILL");
    // It was killed once: what comes into the cage later lives, also after a restart of the monitor.
    let mut later = cage.start("sleep 1000");
    system::wait_for("a process in the cage", BOUND, || Ok(!cage.empty())).unwrap();
    drop(monitor);
    // Nobody is there to say that it was done.
    let nobody = ordered("wxweir-later", "3");
    assert_eq!(nobody.status.code(), Some(5), "{}", text(&nobody.stdout));
    lab.ok(&["monitor", "withdraw", "h2", "wxweir-later", "--wait-s", "60"]);
    let monitor = start();
    told(&format!("kill of cgroup {} was ordered", cage.name));
    system::wait_for("the kill that was done", BOUND, || Ok(shown().contains(" yes "))).unwrap();
    // Nor is it done again for whoever gives it again, because its answer was lost.
    lab.ok(&kill);
    assert!(later.try_wait().unwrap().is_none(), "an order is carried out once");
    lab.ok(&["monitor", "withdraw", "h2", &cage.name, "--wait-s", "60"]);
    later.kill().unwrap();
    later.wait().unwrap();

    // What is wrong is refused, and by whom.
    let refused = |arguments: &[&str], reason: &str| {
        let output = lab.weir(arguments);
        assert!(
            !output.status.success() && text(&output.stderr).contains(reason),
            "{}",
            text(&output.stderr)
        );
    };
    refused(&["monitor", "repair", "h1", "kill", "../above"], "cgroup's path");
    refused(&["monitor", "repair", "h9", "kill", "machines"], "no host or gateway is named 'h9'");
    refused(&["monitor", "withdraw", "h1", "never-ordered"], "no repair of cgroup");
    drop(monitor);
}

/// The packet core of a switch shows that it goes on; one that stands still is told by its host's monitor.
#[test]
fn a_packet_core_that_stands_still_is_told() {
    const NAME: &str = "a_packet_core_that_stands_still_is_told";
    let Some(lab) = crate::lab::lab(NAME) else { return };
    let policy = "kind: stalled\nname: core\nbox: switch-h2\nsensor: slots\nperiods: 3\naction: report\n";
    let sensors = lab.run_folder("h2").join("sensors").display().to_string();
    let monitor = Running::with_sensors(policy, &["--ordinary"], None, Some(&sensors));
    let slots = |process: i32| {
        let status = monitor.ask("top")?;
        let found = status["boxes"].as_array()?.iter().find(|row| row["name"] == "switch-h2")?.clone();
        (found["process"] == process).then(|| found["sensors"][0]["value"].as_u64())?
    };
    // It counts.
    let mut seen = None;
    system::wait_for("the counter of h2's packet core", BOUND, || {
        let Some(switch) = lab.child("h2", "switch") else { return Ok(false) };
        let Some(now) = slots(switch.pid) else { return Ok(false) };
        Ok(seen.replace((switch.pid, now)).is_some_and(|(pid, before)| pid == switch.pid && now > before))
    })
    .unwrap();
    // It hangs. Its supervisor replaces it after a while, perhaps before the monitor has looked: then the next one hangs.
    let alarm = |event: &Value| event["event"] == "alarm" && event["measure"] == "silent-ns";
    system::wait_for("the alarm", BOUND, || {
        if let Some(switch) = lab.child("h2", "switch")
            && slots(switch.pid).is_some()
        {
            // It may have been replaced just now.
            let _ = switch.signal(weir_lab::process::Signal::STOP);
        }
        let events = monitor.ask("events");
        Ok(events.is_some_and(|events| events.as_array().is_some_and(|events| events.iter().any(alarm))))
    })
    .unwrap();
    // The next switch counts again.
    let mut seen = None;
    system::wait_for("a packet core that goes on", BOUND, || {
        let Some(switch) = lab.child("h2", "switch") else { return Ok(false) };
        let Some(now) = slots(switch.pid) else { return Ok(false) };
        Ok(seen.replace((switch.pid, now)).is_some_and(|(pid, before)| pid == switch.pid && now > before))
    })
    .unwrap();
    lab.wait_in_step();
}
