//! Wrong clocks of a controller, a host and a client: years and hours off, jumping forth and back. What has a time to live ends in its time, not
//! before and not never; the controller whose clock is off is named; and the group serves all the while.
//!
//! The programs run under libfaketime, which reads by how much the wall clock is off from a file; the monotonic clock is true.

use crate::echo::ping_all;
use crate::group::{Writer, leader, runtime, store, wait_whole};
use crate::lab::{Lab, group_lab, text};
use crate::namespaces::wait;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use weir_api::types::ClockOf;
use weir_rpc::client::Client;
use weir_store::{Action, Condition, Operation, TableOptions};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
const TABLE: &str = "test/clocks";
const ODD: &str = "c3";
const HOST: &str = "h1";
const DAYS_30_MS: u64 = 30 * 86_400 * 1_000;
const SHORT_MS: u64 = 3_000;

/// The clocks that are wrong, each by what its file says.
struct Wrong {
    folder: PathBuf,
}

impl Wrong {
    fn new(lab: &Lab) -> Wrong {
        let folder = lab.folder().join("clocks");
        std::fs::create_dir_all(&folder).unwrap();
        let wrong = Wrong { folder };
        [ODD, HOST, "client"].iter().for_each(|whose| wrong.set(whose, "+0"));
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

    fn environment(&self, whose: &str) -> [(&'static str, String); 5] {
        [
            ("LD_PRELOAD", LIBRARY.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file(whose).display().to_string()),
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            ("FAKETIME_DONT_RESET", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
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

/// A client whose clock is wrong is served, or told that it is its clock.
fn is_served_or_told(output: &Output, offset: &str) {
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() || said.contains("clock"), "a client {offset} off: {said}");
    let hours = offset.ends_with('h') || offset == "+0";
    assert!(output.status.success() || !hours, "a client {offset} off is refused: {said}");
}

#[test]
fn wrong_clocks_end_no_life_early_and_make_none_immortal() {
    let name = "wrong_clocks_end_no_life_early_and_make_none_immortal";
    if !Path::new(LIBRARY).exists() {
        return println!("NOT RUN {name}: {LIBRARY} is missing (Debian's package faketime)");
    }
    let Some(lab) = group_lab(name) else { return };
    wait_whole(&lab);
    let wrong = Wrong::new(&lab);
    for program in [ODD, HOST] {
        lab.kill(program);
        lab.start_with(program, &wrong.environment(program));
    }
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
    for (nth, (offset, hours)) in
        [("-10y", -87_600), ("+10y", 87_600), ("-1h", -1), ("+1h", 1), ("+0", 0)].into_iter().enumerate()
    {
        [ODD, HOST, "client"].iter().for_each(|whose| wrong.set(whose, offset));
        wait(&format!("the clock of {ODD} to be named, {offset}"), || {
            // Half of it: a year has leap days, and the group's time may be led a little.
            let is_off = |ahead_ms: i64| match hours {
                0 => ahead_ms.abs() < 5_000,
                hours => ahead_ms.signum() == i64::signum(hours) && ahead_ms.abs() > hours.abs() * 1_800_000,
            };
            odd_clock(&lab).is_some_and(|one| is_off(one.ahead_ms))
        });
        if hours != 0 {
            let said = lab.ok(&["status"]);
            assert!(said.contains(&format!("The clock of controller {} is", &ODD[1..])), "{offset}: {said}");
        }
        let short = format!("short-{nth}");
        runtime.block_on(async {
            put(&client, &short, SHORT_MS).await;
            assert!(has(&client, &short).await, "{offset}: it ends early");
            assert!(has(&client, "month").await, "{offset}: it ends early");
        });
        writer.goes_on();
        assert!(ping_all(&lab.netns("red-app"), lab.v4("red-db")), "{offset}: the host forwards");
        let mut command = lab.command();
        command.args(["status"]).envs(wrong.environment("client"));
        is_served_or_told(&command.output().unwrap(), offset);
        wait(&format!("what has lived {SHORT_MS} ms to go, {offset}"), || {
            std::thread::sleep(Duration::from_millis(200));
            !runtime.block_on(has(&client, &short))
        });
    }
    assert!(runtime.block_on(has(&client, "month")));
    writer.ends();
    for program in [ODD, HOST] {
        lab.kill(program);
        lab.start(program);
    }
    wait_whole(&lab);
}
