//! Reads policies from a file, or from all `.yaml` files of a folder in the order of their names.

use super::guest::GuestFields;
use super::service::ServiceFields;
use super::{
    Action, COMM_BYTES, Common, Context, ForkBomb, ForkBombWhen, GROWTH_WINDOW_MS, MemoryHog, MemoryHogWhen,
    NAME_CHARS_MAX, POLICIES_MAX, Policy, Stalled, WHITELIST_MAX, WINDOW_MS_MAX, is_plain,
};
use crate::error::{Error, Result};
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Longest file, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads and checks policies.
///
/// # Errors
/// [`Error::File`] with the document and the field that is wrong; [`Error::Io`].
pub fn load(path: &Path) -> Result<Vec<Policy>> {
    let mut policies: Vec<Policy> = Vec::new();
    for file in files(path)? {
        let wrong = |reason: String| Error::File { path: file.clone(), reason };
        let length =
            std::fs::metadata(&file).map_err(|error| Error::io(file.display().to_string(), error))?.len();
        if length > FILE_BYTES_MAX {
            return Err(wrong(format!("{length} bytes are over the limit of {FILE_BYTES_MAX}")));
        }
        let text =
            std::fs::read_to_string(&file).map_err(|error| Error::io(file.display().to_string(), error))?;
        for policy in parse(&text).map_err(wrong)? {
            if policies.iter().any(|other| other.common().name == policy.common().name) {
                return Err(wrong(format!("two policies are named '{}'", policy.common().name)));
            }
            policies.push(policy);
        }
    }
    if policies.len() > POLICIES_MAX {
        let reason = format!("{} policies are more than {POLICIES_MAX}", policies.len());
        return Err(Error::File { path: path.to_path_buf(), reason });
    }
    Ok(policies)
}

fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let listing =
        std::fs::read_dir(path).map_err(|error| Error::io(format!("listing {}", path.display()), error))?;
    let mut files: Vec<PathBuf> = listing
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|ext| ext == "yaml" || ext == "yml"))
        .collect();
    files.sort();
    Ok(files)
}

/// What is watched where nobody wrote policies: both are only reported.
const BUILTIN: &str = "\
kind: fork-bomb
name: builtin-fork-bomb
action: report
when: { living: 512, depth: 64, window-ms: 500, growth: 1024, growth-window-ms: 600000 }
---
kind: memory-hog
name: builtin-memory-hog
action: report
cooldown-ms: 60000
when: { available-bytes: 134217728 }
";

/// The policies that hold where nobody wrote any: they report and do nothing.
///
/// # Errors
/// As [`load`], if this crate is wrong.
pub fn builtin() -> Result<Vec<Policy>> {
    parse(BUILTIN).map_err(|reason| Error::File { path: "builtin".into(), reason })
}

fn parse_action(said: &str) -> std::result::Result<Action, String> {
    const ACTIONS: [Action; 5] =
        [Action::FreezeKill, Action::Freeze, Action::KillCgroup, Action::Hook, Action::Report];
    let found = ACTIONS.into_iter().find(|action| action.name() == said);
    found.ok_or_else(|| {
        format!("action '{said}' is not known: use freeze-kill, freeze, kill-cgroup, hook or report")
    })
}

/// Reads the documents of a text.
///
/// # Errors
/// What is wrong, as text.
pub(super) fn parse(text: &str) -> std::result::Result<Vec<Policy>, String> {
    let values = weir_document::values(text).map_err(|error| error.to_string())?;
    let numbered = values.into_iter().enumerate().filter(|(_, value)| !value.is_null());
    numbered
        .map(|(at, value)| policy(value).map_err(|reason| format!("document {}: {reason}", at + 1)))
        .collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Document {
    kind: String,
    name: String,
    #[serde(default)]
    cgroup: Option<PathBuf>,
    #[serde(default)]
    whitelist: Vec<String>,
    #[serde(default)]
    action: Option<String>,
    #[serde(default)]
    dry_run: Option<bool>,
    #[serde(default)]
    cooldown_ms: Option<u64>,
    #[serde(default)]
    when: Option<Value>,
    #[serde(default)]
    memory: Option<PathBuf>,
    #[serde(default, rename = "box")]
    sensor_box: Option<String>,
    #[serde(default)]
    sensor: Option<String>,
    #[serde(default)]
    periods: Option<u32>,
    #[serde(default)]
    period_ms: Option<u64>,
    #[serde(default)]
    context: Option<Context>,
    #[serde(default)]
    memory_file: Option<PathBuf>,
    #[serde(default)]
    qmp: Option<PathBuf>,
    #[serde(default)]
    hook: Option<PathBuf>,
    #[serde(default)]
    hook_ms: Option<u64>,
    #[serde(default)]
    stimulus: Option<String>,
    #[serde(default)]
    watch_ms: Option<u64>,
    #[serde(default)]
    fail_over: Option<PathBuf>,
    #[serde(default)]
    unit: Option<String>,
    #[serde(default)]
    pid_file: Option<PathBuf>,
    #[serde(default)]
    program: Option<String>,
    #[serde(default)]
    clean_exits: Option<Vec<u32>>,
    #[serde(default)]
    restart: Option<Value>,
}

/// What of a name of a program the kernel keeps.
fn as_kept(name: &str) -> String {
    let mut bytes = 0;
    let fits = |letter: &char| {
        bytes += letter.len_utf8();
        bytes <= COMM_BYTES
    };
    name.chars().take_while(fits).collect()
}

/// Checks what all kinds have alike.
fn check_common(common: &Common) -> std::result::Result<(), String> {
    let Common { name, cgroup, whitelist, action, .. } = common;
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(fits) {
        return Err(format!("'{name}' is no name: use 1 to 63 letters, digits, '-', '_' or '.'"));
    }
    if whitelist.len() > WHITELIST_MAX {
        return Err(format!("{} names on a whitelist are more than {WHITELIST_MAX}", whitelist.len()));
    }
    if let Some(long) = whitelist.iter().find(|name| name.len() > COMM_BYTES) {
        return Err(format!(
            "whitelist: the kernel cuts names of programs to {COMM_BYTES} bytes, and '{long}' is longer: say '{}'",
            as_kept(long)
        ));
    }
    if let Some(path) = cgroup.as_ref().filter(|path| !is_plain(path)) {
        return Err(format!("cgroup '{}': a path without '..' is right", path.display()));
    }
    if cgroup.is_none() && matches!(action, Action::Freeze | Action::KillCgroup | Action::Hook) {
        return Err(format!("action {} needs a cgroup, or it would hit the whole host", action.name()));
    }
    Ok(())
}

/// The first field that is given and is of `stalled` alone, or of `stalled` and `guest`.
fn of_stalled(document: &Document) -> Option<&'static str> {
    let kind = document.kind.as_str();
    let alone = [
        (document.sensor_box.is_some(), "box"),
        (document.sensor.is_some(), "sensor"),
        (document.context.is_some(), "context"),
    ];
    let with_guest = [(document.periods.is_some(), "periods"), (document.period_ms.is_some(), "period-ms")];
    let alone = alone.iter().filter(|_| kind != "stalled");
    let with_guest = with_guest.iter().filter(|_| !matches!(kind, "stalled" | "guest"));
    alone.chain(with_guest).find(|(given, _)| *given).map(|(_, field)| *field)
}

fn stalled(
    common: Common,
    (sensor_box, sensor): (Option<String>, Option<String>),
    context: Option<Context>,
    (periods, period_ms): (Option<u32>, Option<u64>),
) -> std::result::Result<Policy, String> {
    let need = |field: Option<String>, name| field.ok_or(format!("field '{name}' is missing"));
    let periods = periods.unwrap_or(3);
    if periods == 0 || period_ms == Some(0) {
        return Err("periods and period-ms must be more than 0".into());
    }
    Ok(Policy::Stalled(Stalled {
        common,
        sensor_box: need(sensor_box, "box")?,
        sensor: need(sensor, "sensor")?,
        periods,
        period_ms,
        context: context.unwrap_or_default(),
    }))
}

fn policy(value: Value) -> std::result::Result<Policy, String> {
    let document: Document = weir_document::of(&value).map_err(|error| error.to_string())?;
    let of_stalled = of_stalled(&document);
    let Document { kind, name, cgroup, whitelist, action, dry_run, cooldown_ms, when, memory, .. } = document;
    let said = action;
    let guest = GuestFields {
        memory_file: document.memory_file,
        qmp: document.qmp,
        hook: document.hook,
        hook_ms: document.hook_ms,
        stimulus: document.stimulus,
        watch_ms: document.watch_ms,
        fail_over: document.fail_over,
    };
    let service = ServiceFields {
        unit: document.unit,
        pid_file: document.pid_file,
        program: document.program,
        clean_exits: document.clean_exits,
        restart: document.restart,
    };
    let is_guest = kind == "guest";
    let action = match &said {
        Some(said) if !is_guest => parse_action(said)?,
        Some(_) => Action::Report,
        None => Action::default(),
    };
    let (dry_run, cooldown_ms) = (dry_run.unwrap_or(true), cooldown_ms.unwrap_or(1000));
    let common = Common { name, cgroup, whitelist, action, dry_run, cooldown_ms };
    check_common(&common)?;
    let foreign = of_stalled
        .or_else(|| guest.given().filter(|_| !is_guest))
        .or_else(|| service.given().filter(|_| kind != "service"))
        .or_else(|| memory.is_some().then_some("memory").filter(|_| kind != "memory-hog"));
    let not_for = |given: Option<&str>| match given {
        Some(field) => Err(format!("field '{field}' does not belong to kind {kind}")),
        None => Ok(()),
    };
    not_for(foreign)?;
    match kind.as_str() {
        "fork-bomb" => Ok(Policy::ForkBomb(ForkBomb { common, when: fork_bomb_when(when)? })),
        "memory-hog" => {
            let when: MemoryHogWhen = field("when", when)?;
            check_memory(&common, memory.as_ref(), &when)?;
            Ok(Policy::MemoryHog(MemoryHog { common, memory, when }))
        }
        "stalled" => {
            not_for(when.map(|_| "when"))?;
            let times = (document.periods, document.period_ms);
            stalled(common, (document.sensor_box, document.sensor), document.context, times)
        }
        "guest" => {
            let times = (document.period_ms, document.periods);
            guest.policy(common, said.as_deref(), times, when).map(Policy::Guest)
        }
        "service" => {
            not_for(when.map(|_| "when"))?;
            not_for(said.map(|_| "action"))?;
            service.policy(common).map(Policy::Service)
        }
        _ => Err(format!("kind '{kind}' is not known: use fork-bomb, memory-hog, stalled, guest or service")),
    }
}

fn field<T: for<'de> Deserialize<'de>>(name: &str, value: Option<Value>) -> std::result::Result<T, String> {
    let value = value.ok_or(format!("field '{name}' is missing"))?;
    serde_json::from_value(value).map_err(|error| format!("{name}: {error}"))
}

fn fork_bomb_when(value: Option<Value>) -> std::result::Result<ForkBombWhen, String> {
    let when: ForkBombWhen = field("when", value)?;
    let limits =
        [when.living, when.forks, when.depth.map(u64::from), when.breadth.map(u64::from), when.growth];
    if limits.iter().all(Option::is_none) {
        return Err("when: give at least one of living, forks, depth, breadth, growth".into());
    }
    if limits.contains(&Some(0)) {
        return Err("when: a limit of 0 would always be passed".into());
    }
    if !(10..=WINDOW_MS_MAX).contains(&when.window_ms) {
        return Err(format!("when: window-ms must be from 10 to {WINDOW_MS_MAX}, not {}", when.window_ms));
    }
    if !GROWTH_WINDOW_MS.contains(&when.growth_window_ms) {
        let (least, most) = (GROWTH_WINDOW_MS.start(), GROWTH_WINDOW_MS.end());
        return Err(format!(
            "when: growth-window-ms must be from {least} to {most}, not {}",
            when.growth_window_ms
        ));
    }
    Ok(when)
}

fn check_memory(
    common: &Common,
    memory: Option<&PathBuf>,
    when: &MemoryHogWhen,
) -> std::result::Result<(), String> {
    let of_cgroup = when.used_bytes.is_some() || when.used_percent.is_some();
    if of_cgroup == when.available_bytes.is_some() {
        return Err(
            "when: give used-bytes or used-percent of a cgroup, or available-bytes of the host".into()
        );
    }
    if of_cgroup && common.cgroup.is_none() && memory.is_none() {
        return Err("used-bytes and used-percent need a cgroup".into());
    }
    if when.used_percent.is_some_and(|percent| percent == 0 || percent > 100) {
        return Err("when: used-percent must be from 1 to 100".into());
    }
    Ok(())
}
