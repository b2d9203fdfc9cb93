//! Wrong clocks of a controller, a host and a client: years and hours off, jumping forth and back. What has a time to live ends in its time, not
//! before and not never; the controller whose clock is off is named; who cannot speak with the others because of it says that it is the clock;
//! and the group serves all the while.
//!
//! The programs run under libfaketime, which reads by how much the wall clock is off from a file; the monotonic clock is true.

use crate::echo::ping_all;
use crate::group::{Writer, leader, runtime, store, wait_whole};
use crate::lab::{Lab, group_lab, text};
use crate::namespaces::wait;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use weir_api::types::ClockOf;
use weir_rpc::client::Client;
use weir_store::{Action, Condition, Operation, TableOptions};

const TABLE: &str = "test/clocks";
const ODD: &str = "c3";
const HOST: &str = "h1";
const CLIENT: &str = "client";
const STARTER: &str = "starter";
const DAYS_30_MS: u64 = 30 * 86_400 * 1_000;
const SHORT_MS: u64 = 5_000;
/// A client that has not ended after so long is killed, seconds: more than a call may take.
const CLIENT_BOUND_S: &str = "120";

fn library() -> String {
    format!("/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", std::env::consts::ARCH)
}

/// The clocks that are wrong, each by what its file says.
struct Wrong {
    folder: PathBuf,
}

impl Wrong {
    fn new(lab: &Lab) -> Wrong {
        let folder = lab.folder().join("clocks");
        std::fs::create_dir_all(&folder).unwrap();
        let wrong = Wrong { folder };
        let _there = std::fs::remove_file(wrong.file(STARTER));
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weir"), wrong.file(STARTER)).unwrap();
        wrong.set_all("+0");
        wrong
    }

    fn file(&self, whose: &str) -> PathBuf {
        self.folder.join(whose)
    }

    /// Whoever reads sees the old or the new offset, never half of one.
    fn set(&self, whose: &str, offset: &str) {
        let aside = self.folder.join("new");
        std::fs::write(&aside, format!("{offset}\n")).unwrap();
        std::fs::rename(aside, self.file(whose)).unwrap();
    }

    fn set_all(&self, offset: &str) {
        [ODD, HOST, CLIENT].iter().for_each(|whose| self.set(whose, offset));
    }

    fn environment(&self, whose: &str) -> [(&'static str, String); 6] {
        [
            ("LD_PRELOAD", library()),
            ("FAKETIME_TIMESTAMP_FILE", self.file(whose).display().to_string()),
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            ("FAKETIME_DONT_RESET", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
            // Who starts a program looks whether it is there, by the true time.
            ("FAKETIME_SKIP_CMDS", STARTER.to_owned()),
        ]
    }

    /// Starts a program again that has a clock of its own.
    fn restart(&self, lab: &Lab, program: &str) {
        lab.kill(program);
        lab.start_with(&self.file(STARTER), program, &self.environment(program));
    }

    /// What a client with a wrong clock says, and whether it is done. It ends by itself.
    fn client(&self, lab: &Lab, arguments: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.args([CLIENT_BOUND_S, "env"]);
        command.args(self.environment(CLIENT).map(|(name, value)| format!("{name}={value}")));
        command.arg(env!("CARGO_BIN_EXE_weir")).args(arguments);
        let output = command.env("WEIR_CONTEXT", lab.context()).env("NO_COLOR", "1").output().unwrap();
        assert_ne!(output.status.code(), Some(124), "weir {} does not end", arguments.join(" "));
        output
    }
}

async fn put(client: &Client, key: &str, ttl_ms: u64) {
    let action = Action::Put { value: b"x".to_vec(), ttl_ms };
    client.write(TABLE, key.as_bytes(), Condition::Always, action).await.unwrap().unwrap();
}

async fn has(client: &Client, key: &str) -> bool {
    client.get(TABLE, key.as_bytes()).await.unwrap().is_some()
}

/// What the group says of the odd controller's clock.
fn odd_clock(lab: &Lab) -> Option<ClockOf> {
    let clock = lab.client_of(&leader(lab, "")).clock().ok()?;
    clock.controllers.into_iter().find(|one| format!("c{}", one.id) == ODD)
}

/// A client whose clock is wrong is served, or told that it is its clock. An hour makes no certificate bad.
fn is_served_or_told(output: &Output, hours: i64) {
    let said = text(&output.stdout) + &text(&output.stderr);
    let told = said.contains("by the clock of this machine") && said.contains("set this clock right");
    match hours.abs() > 24 {
        true => assert!(!output.status.success() && told, "{hours} hours off: {said}"),
        false => assert!(output.status.success(), "{hours} hours off: {said}"),
    }
}

/// The controller is named whose clock is off, by the group and to a person.
fn is_named(lab: &Lab, hours: i64) {
    wait(&format!("the clock of {ODD} to be named, {hours} hours"), || {
        // Half of it: a year has leap days, and the group's time may be led a little.
        let is_off = |ahead_ms: i64| match hours {
            0 => ahead_ms.abs() < 5_000,
            hours => ahead_ms.signum() == hours.signum() && ahead_ms.abs() > hours.abs() * 1_800_000,
        };
        odd_clock(lab).is_some_and(|one| is_off(one.ahead_ms))
    });
    if hours != 0 {
        let said = lab.ok(&["status"]);
        assert!(said.contains(&format!("The clock of controller {} is", &ODD[1..])), "{hours}: {said}");
    }
}

/// A life of seconds ends, and not before its time; one of a month goes on.
fn lives_end_in_time(client: &Client, runtime: &tokio::runtime::Runtime, short: &str) {
    runtime.block_on(async {
        let before = Instant::now();
        put(client, short, SHORT_MS).await;
        let is_there = has(client, short).await;
        // On a machine that is busy with something else it may be over already.
        let in_time = before.elapsed() < Duration::from_millis(SHORT_MS / 2);
        assert!(is_there || !in_time, "{short}: it ends early");
        assert!(has(client, "month").await, "{short}: it ends early");
    });
    wait(&format!("the end of {short}"), || {
        std::thread::sleep(Duration::from_millis(200));
        !runtime.block_on(has(client, short))
    });
}

#[test]
fn wrong_clocks_end_no_life_early_and_make_none_immortal() {
    let name = "wrong_clocks_end_no_life_early_and_make_none_immortal";
    if !Path::new(&library()).exists() {
        return println!("NOT RUN {name}: {} is missing (Debian's package faketime)", library());
    }
    let Some(lab) = group_lab(name) else { return };
    wait_whole(&lab);
    let wrong = Wrong::new(&lab);
    [ODD, HOST].iter().for_each(|program| wrong.restart(&lab, program));
    wait_whole(&lab);
    let (context, runtime) = (lab.context_of("c1"), runtime());
    let client = {
        let _inside = runtime.enter();
        store(&context)
    };
    let writer = Writer::begin(&lab, "clocks-writer");
    runtime.block_on(async {
        let create = Operation::CreateTable { table: TABLE.into(), options: TableOptions::default() };
        client.submit(create).await.unwrap();
        put(&client, "month", DAYS_30_MS).await;
    });
    let jumps = [("-10y", -87_600), ("+10y", 87_600), ("-1h", -1), ("+1h", 1), ("+0", 0)];
    for (nth, (offset, hours)) in jumps.into_iter().enumerate() {
        println!("{offset}");
        wrong.set_all(offset);
        is_named(&lab, hours);
        is_served_or_told(&wrong.client(&lab, &["status"]), hours);
        is_served_or_told(&wrong.client(&lab, &["store", "get", TABLE, "month"]), hours);
        lives_end_in_time(&client, &runtime, &format!("short-{nth}"));
        writer.goes_on();
        assert!(ping_all(&lab.netns("red-app"), lab.v4("red-web")), "{offset}: the host forwards");
    }
    assert!(runtime.block_on(has(&client, "month")));
    writer.ends();
    for program in [ODD, HOST] {
        lab.kill(program);
        lab.start(program);
    }
    wait_whole(&lab);
}

/// A number of the agent of a host.
pub fn of_agent(lab: &Lab, host: &str, metric: &str) -> u64 {
    let mut curl = lab.netns(host).command("curl");
    let said = text(
        &curl.args(["-sf", "--max-time", "5", "http://127.0.0.1:9471/metrics"]).output().unwrap().stdout,
    );
    said.lines().find_map(|line| line.strip_prefix(metric)?.trim().parse().ok()).unwrap_or(0)
}

#[test]
fn who_starts_with_a_wrong_clock_is_taken_or_says_that_it_is_the_clock() {
    let name = "who_starts_with_a_wrong_clock_is_taken_or_says_that_it_is_the_clock";
    if !Path::new(&library()).exists() {
        return println!("NOT RUN {name}: {} is missing (Debian's package faketime)", library());
    }
    let Some(lab) = group_lab(name) else { return };
    wait_whole(&lab);
    let wrong = Wrong::new(&lab);
    let writer = Writer::begin(&lab, "clocks-start");
    wrong.restart(&lab, HOST);
    wait_whole(&lab);
    for offset in ["-10y", "+10y"] {
        println!("{offset}");
        // Its certificate, and what it takes of hosts, go by the clocks of the others: every switch has a session with it.
        wrong.set(ODD, offset);
        wrong.restart(&lab, ODD);
        wait_whole(&lab);
        writer.goes_on();
        // A host has no other clock than its own.
        wrong.set(HOST, offset);
        let faults = "weir_agent_session_clock_faults_total ";
        lab.crash(HOST, "agent");
        wait("the host to blame a clock", || of_agent(&lab, HOST, faults) > 0);
        let log = std::fs::read_to_string(lab.log(HOST)).unwrap();
        assert!(log.contains("by the clock of this machine"), "{offset}");
        assert!(ping_all(&lab.netns("red-app"), lab.v4("red-web")), "{offset}: the host forwards");
        wrong.set(HOST, "+0");
        wait_whole(&lab);
    }
    writer.ends();
    for program in [ODD, HOST] {
        lab.kill(program);
        lab.start(program);
    }
    wait_whole(&lab);
}
