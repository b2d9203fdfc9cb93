//! An oracle of a guest's tasks that shares nothing with the monitor: `crash` reads a dump that QEMU writes, with the debugging
//! symbols of that kernel (`scripts/guest-kernel --debug`), and finds by itself how far the kernel was moved.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use weir_monitor::guest::qmp::Qmp;

const SYMBOLS: &str = "/var/cache/weir/guest/debug";
/// Its own `ps` goes by another table, of which it understands nothing in kernels newer than itself; this it reads by the symbols.
const ASKED: &[u8] = b"list task_struct.tasks -s task_struct.pid,comm,real_parent -h init_task\nquit\n";

/// A task as `crash` finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Where its `task_struct` is.
    pub address: u64,
    pub pid: u32,
    pub program: String,
    /// Where its parent's is.
    pub parent: u64,
}

/// The tasks of a guest, in the order of its list; the guest must be stopped.
pub fn tasks(qmp: &mut Qmp, release: &str, folder: &Path) -> Result<Vec<Found>, String> {
    let symbols = format!("{SYMBOLS}/vmlinux-{release}");
    if !Path::new(&symbols).exists() {
        return Err(format!("{symbols} is not there: run scripts/guest-kernel --debug"));
    }
    let dump = folder.join("dump");
    let arguments = serde_json::json!({ "paging": false, "protocol": format!("file:{}", dump.display()), "detach": true });
    qmp.command("dump-guest-memory", arguments).map_err(|error| error.to_string())?;
    crate::cage::until("the dump", || {
        let state = qmp.command("query-dump", serde_json::Value::Null).unwrap();
        state["status"] != "active"
    });
    let mut crash = Command::new("crash")
        .args(["-s", &symbols])
        .arg(&dump)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("crash: {error}"))?;
    crash.stdin.take().unwrap().write_all(ASKED).map_err(|error| format!("crash: {error}"))?;
    let output = crash.wait_with_output().map_err(|error| format!("crash: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let found = parse(&said);
    assert!(found.len() > 2, "crash has found no tasks: {said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(found)
}

/// An address on a line of its own, then `name = value` for each field.
fn parse(said: &str) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    for line in said.lines() {
        match (line.trim().trim_end_matches(',').split_once(" = "), found.last_mut()) {
            (None, _) => found.extend(hex(line.trim()).map(|address| Found { address, ..Found::default() })),
            (Some(("pid", value)), Some(task)) => task.pid = value.parse().unwrap(),
            (Some(("comm", value)), Some(task)) => {
                task.program = value.trim_matches('"').split("\\000").next().unwrap().to_string();
            }
            // A symbol may follow.
            (Some(("real_parent", value)), Some(task)) => {
                task.parent = hex(value.split(' ').next().unwrap()).unwrap();
            }
            _ => {}
        }
    }
    found
}
