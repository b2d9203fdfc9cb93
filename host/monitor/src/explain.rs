//! An entry of the audit log in words: what was seen, why that is an alarm, who was behind it, what was done, what came
//! of it.

use crate::audit::{Alarm, Entry, GuestAlarm, Process, What};
use crate::webhook::rfc3339;
use std::fmt::Write;

/// What comes after an alarm is looked for among so many later entries.
const LATER_MAX: usize = 256;

/// When it was, in UTC.
pub fn time(entry: &Entry) -> String {
    rfc3339(entry.unix_ms)
}

fn named(process: Option<&Process>) -> String {
    process.map_or("nobody".to_string(), |process| {
        let ended = if process.alive { "" } else { ", which had ended" };
        format!("process {} ({}, user {}{ended})", process.process, process.program, process.user)
    })
}

/// What an alarm measured.
fn measured(alarm: &Alarm) -> String {
    let Alarm { found, limit, .. } = alarm;
    match alarm.measure.as_str() {
        "living" => format!(
            "{found} living processes were born within the window; the policy allows fewer than {limit}"
        ),
        "forks" => {
            format!("{found} processes were forked within the window; the policy allows fewer than {limit}")
        }
        "growth" => format!(
            "{found} processes more live than the fewest of the long window; the policy allows fewer than {limit}"
        ),
        "depth" => format!(
            "a chain of {found} young processes, each forked by the one before; the policy allows fewer than {limit}"
        ),
        "breadth" => format!("one process had {found} living children; the policy allows fewer than {limit}"),
        "memory-used-bytes" => format!("{found} bytes of memory were used; the policy acts from {limit} on"),
        "memory-left-bytes" => format!("{found} bytes of memory were left; the policy wants {limit}"),
        "silent-ns" => {
            format!("the counter stood still for {} ms; the policy allows less", found / 1_000_000)
        }
        other => format!("{other} was {found}; the limit is {limit}"),
    }
}

fn done(alarm: &Alarm) -> String {
    let would = |text: &str| format!("nothing: {text}");
    match alarm.outcome.as_str() {
        "reported" if alarm.dry_run => would(&format!(
            "a dry run. In earnest, {} would have hit {} processes",
            alarm.action,
            alarm.members - alarm.spared
        )),
        "reported" => would("the policy only reports"),
        "nobody-to-blame" => would("whoever is behind it is protected, or no tree holds half of it"),
        "unable" => would(&format!("the cgroup could not do what {} needs", alarm.action)),
        _ => {
            let frozen = match alarm.frozen {
                true => format!("frozen after {} us, ", alarm.freeze_us),
                false => String::new(),
            };
            format!(
                "{}: {frozen}{} processes signalled, done after {} us",
                alarm.action, alarm.signalled, alarm.act_us
            )
        }
    }
}

fn guest_line(alarm: &GuestAlarm) -> String {
    let GuestAlarm { found, limit, .. } = alarm;
    let seen = match alarm.measure.as_str() {
        "tasks" => {
            let below = match alarm.process {
                0 => String::new(),
                process => format!(", half of them below its process {process}"),
            };
            let program = &alarm.program;
            format!(
                "the guest has {found} tasks, most of them {program}{below}; the policy allows fewer than {limit}"
            )
        }
        "panic" => "the guest's kernel has panicked".to_string(),
        _ => format!("the guest made no progress for {} ms, also after it was stimulated", found / 1_000_000),
    };
    let fenced = match alarm.fenced {
        None => "",
        Some(true) => ", fenced first",
        Some(false) => ", NOT fenced",
    };
    let failed_over = match alarm.failed_over {
        None => "",
        Some(true) => ", failed over",
        Some(false) => ", the fail-over FAILED",
    };
    let done = match alarm.outcome.as_str() {
        "reported" if alarm.dry_run => format!("nothing was done: a dry run of {}", alarm.action),
        "reported" => "the policy only reports".to_string(),
        "unable" => format!("{} could NOT be done", alarm.action),
        _ => format!("{}, done after {} us", alarm.action, alarm.act_us),
    };
    format!("{seen}; {done}{fenced}{failed_over}")
}

/// One line.
pub fn line(entry: &Entry) -> String {
    match &entry.what {
        What::Started { kernel, degraded: None, policies } => {
            format!("started: kernel by {kernel}, {} policies", policies.len())
        }
        What::Started { kernel, degraded: Some(reason), policies } => {
            format!("started DEGRADED: kernel by {kernel} ({reason}), {} policies", policies.len())
        }
        What::Alarm(alarm) => format!("{}; {}", measured(alarm), done(alarm)),
        What::Settled { took_us, again: 0 } => format!("gone {took_us} us after the alarm"),
        What::Settled { took_us, again } => {
            format!("gone {took_us} us after the alarm, {again} of it signalled again")
        }
        What::Unsettled { left } => format!("{left} processes of it are still there"),
        What::Recovered => "the counter moves again".to_string(),
        What::Resynced { lost } => {
            format!("{lost} events of the kernel were lost; all processes were looked at anew")
        }
        What::HostFailed { host, fenced } => {
            let fenced = match fenced {
                None => "no program fences it",
                Some(true) => "it was fenced",
                Some(false) => "it could NOT be fenced",
            };
            format!("host {host} failed; {fenced}")
        }
        What::HostRecovered { host } => format!("host {host} answers again"),
        What::Query { query, value } => format!("query {query} fired: {value}"),
        What::Ordered { cgroup, order, version, problem: None } => {
            format!("{order} of cgroup {cgroup} was ordered (version {version}) and carried out")
        }
        What::Ordered { cgroup, order, version, problem: Some(problem) } => {
            format!(
                "{order} of cgroup {cgroup} was ordered (version {version}) and NOT carried out: {problem}"
            )
        }
        What::Guest(alarm) => guest_line(alarm),
        What::Crashed(crash) => crash.line(),
        What::Restarted { attempt, took_us, process } => {
            format!("up again as process {process} {took_us} us after the command (attempt {attempt})")
        }
        What::NotRestarted(not) => not.line(),
        What::Stopped => "stopped".to_string(),
    }
}

/// All about an entry; `later` are the entries after it.
pub fn text(entry: &Entry, later: &[&Entry]) -> String {
    let mut text = format!("event {} at {}", entry.number, time(entry));
    if let Some(policy) = &entry.policy {
        // Writing to a String cannot fail.
        let _ = write!(text, ", policy {policy}");
    }
    let What::Alarm(alarm) = &entry.what else {
        let _ = write!(text, "\n{}", line(entry));
        return text;
    };
    let _ = write!(text, "\nseen:    {}", measured(alarm));
    let _ = write!(
        text,
        "\nbehind:  {}, forked by {}",
        named(alarm.culprit.as_ref()),
        named(alarm.parent.as_ref())
    );
    let _ = write!(text, "\n         its tree: {} living processes, weight {}", alarm.members, alarm.weight);
    if alarm.age_us > 0 {
        let _ = write!(text, ", the oldest born {} us before the alarm", alarm.age_us);
    }
    if alarm.spared > 0 {
        let _ =
            write!(text, "\nspared:  {} of them are protected or outside the policy's cgroup", alarm.spared);
    }
    let _ = write!(text, "\ndone:    {}", done(alarm));
    if !alarm.processes.is_empty() {
        let list: Vec<String> = alarm.processes.iter().map(u32::to_string).collect();
        let more = alarm.members.saturating_sub(alarm.spared) as usize > list.len();
        let _ = write!(text, "\n         processes {}{}", list.join(" "), if more { " …" } else { "" });
    }
    let after = later.iter().take(LATER_MAX).find(|later| {
        later.policy == entry.policy
            && matches!(
                later.what,
                What::Settled { .. } | What::Unsettled { .. } | What::Recovered | What::Alarm(_)
            )
    });
    if let Some(after) = after
        && !matches!(after.what, What::Alarm(_))
    {
        let _ = write!(text, "\nthen:    {} (event {})", line(after), after.number);
    }
    text
}

#[cfg(test)]
pub(crate) mod tests;
