//! A crash, and what came of it, as the audit log and people have it.

use crate::audit::process::Process;
use crate::incident::{Crash, NotUp};
use crate::restart::Next;
use serde::{Deserialize, Serialize};

/// The names of signals, by number, from 1 on (x86-64 and ARM have the same).
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// The end of a process of a service by a fault, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashEntry {
    /// Who.
    pub process: Option<Process>,
    /// Whether it was the main process: the service is down.
    pub main: bool,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u32>,
    /// Whether it left a core.
    #[serde(default)]
    pub core: bool,
    /// Its exit code, if it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u32>,
    /// From its fork to its end, ms, if the monitor saw both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lived_ms: Option<u64>,
    /// Crashes of other processes of the service that have no entry of their own.
    #[serde(default)]
    pub more: u64,
    /// The service is started again in so many ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_in_ms: Option<u64>,
    /// It would be, but for the dry run.
    #[serde(default)]
    pub dry_run: bool,
    /// It was started so often in the policy's window that it is not started any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up_after: Option<u32>,
}

/// A service that was started again and is not up, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRestarted {
    /// The attempt, counted from 1.
    pub attempt: u32,
    /// Why.
    pub reason: String,
    /// It is tried again in so many ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_in_ms: Option<u64>,
    /// It was started so often in the policy's window that it is not started any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up_after: Option<u32>,
}

pub(crate) fn crash(crash: &Crash) -> CrashEntry {
    let signal = crash.status.map(|status| status & 0x7f).filter(|signal| *signal != 0);
    CrashEntry {
        process: Process::of(&crash.process),
        main: crash.main,
        signal,
        core: crash.status.is_some_and(|status| status & 0x80 != 0),
        exit_code: crash.status.filter(|_| signal.is_none()).map(|status| status >> 8 & 0xff),
        lived_ms: crash.lived_ns.map(|ns| ns / 1_000_000),
        more: crash.more,
        restart_in_ms: in_ms(crash.next),
        dry_run: matches!(crash.next, Next::WouldIn(_)),
        given_up_after: given_up(crash.next),
    }
}

pub(crate) fn not_restarted(attempt: u32, why: NotUp, next: Next) -> NotRestarted {
    let reason = match why {
        NotUp::NotRun => "the command could not be run".to_string(),
        NotUp::Command(status) if status & 0x7f == 0 => {
            format!("the command ended with exit code {}", status >> 8)
        }
        NotUp::Command(status) => format!("the command was ended by {}", signal_name(status & 0x7f)),
        NotUp::Late => "no main process was seen in time".to_string(),
    };
    NotRestarted { attempt, reason, again_in_ms: in_ms(next), given_up_after: given_up(next) }
}

fn in_ms(next: Next) -> Option<u64> {
    match next {
        Next::In(ns) | Next::WouldIn(ns) => Some(ns / 1_000_000),
        Next::Nothing | Next::GivenUp(_) => None,
    }
}

fn given_up(next: Next) -> Option<u32> {
    match next {
        Next::GivenUp(after) => Some(after),
        _ => None,
    }
}

fn signal_name(signal: u32) -> String {
    let name = (signal as usize).checked_sub(1).and_then(|at| SIGNALS.get(at));
    name.map_or(format!("signal {signal}"), |name| format!("SIG{name}"))
}

fn then(in_ms: Option<u64>, given_up_after: Option<u32>) -> String {
    match (in_ms, given_up_after) {
        (Some(ms), _) => format!("it is started again in {ms} ms"),
        (None, Some(after)) => {
            format!("given up: it was started {after} times lately; start it yourself")
        }
        (None, None) => "nobody starts it again".to_string(),
    }
}

impl CrashEntry {
    /// In words.
    pub fn line(&self) -> String {
        let who = self.process.as_ref().map_or("a process".to_string(), |process| {
            format!("process {} ({}, user {})", process.process, process.program, process.user)
        });
        let role = if self.main { "the main process of the service" } else { "a process of the service" };
        let how = match (self.signal, self.exit_code) {
            (Some(signal), _) if self.core => format!("was ended by {} and left a core", signal_name(signal)),
            (Some(signal), _) => format!("was ended by {}", signal_name(signal)),
            (None, Some(code)) => format!("ended with exit code {code}"),
            (None, None) => "ended unseen".to_string(),
        };
        let age = self.lived_ms.map_or(String::new(), |ms| format!(" after {ms} ms"));
        let more = match self.more {
            0 => String::new(),
            more => format!("; {more} more like it"),
        };
        let next = match (self.main, self.dry_run) {
            (false, _) => String::new(),
            (true, true) => "; a dry run: it would be started again".to_string(),
            (true, false) => format!("; {}", then(self.restart_in_ms, self.given_up_after)),
        };
        format!("{who}, {role}, {how}{age}{more}{next}")
    }
}

impl NotRestarted {
    /// In words.
    pub fn line(&self) -> String {
        let next = then(self.again_in_ms, self.given_up_after);
        format!("not up (attempt {}): {}; {next}", self.attempt, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::Suspect;

    fn told(status: Option<u32>, main: bool, next: Next) -> String {
        let mut comm = [0; 16];
        comm[..3].copy_from_slice(b"web");
        let process = Suspect { process: 7, comm, user: 5, alive: false };
        let found = Crash { policy: 0, process, status, main, lived_ns: Some(12_000_000), more: 0, next };
        crash(&found).line()
    }

    #[test]
    fn a_crash_is_told_in_words() {
        let before = "process 7 (web, user 5), the main process of the service, ";
        for (status, next, words) in [
            (
                Some(139),
                Next::In(100_000_000),
                "was ended by SIGSEGV and left a core after 12 ms; it is started again in 100 ms",
            ),
            (
                Some(9),
                Next::WouldIn(1),
                "was ended by SIGKILL after 12 ms; a dry run: it would be started again",
            ),
            (Some(3 << 8), Next::Nothing, "ended with exit code 3 after 12 ms; nobody starts it again"),
            (
                None,
                Next::GivenUp(5),
                "ended unseen after 12 ms; given up: it was started 5 times lately; start it yourself",
            ),
            (Some(40), Next::Nothing, "was ended by signal 40 after 12 ms; nobody starts it again"),
        ] {
            assert_eq!(told(status, true, next), format!("{before}{words}"));
        }
        assert_eq!(
            told(Some(11), false, Next::Nothing),
            "process 7 (web, user 5), a process of the service, was ended by SIGSEGV after 12 ms"
        );
    }

    #[test]
    fn why_it_is_not_up_is_told() {
        let line = |why, next| not_restarted(2, why, next).line();
        assert_eq!(
            line(NotUp::Command(1 << 8), Next::In(5_000_000)),
            "not up (attempt 2): the command ended with exit code 1; it is started again in 5 ms"
        );
        assert!(line(NotUp::Late, Next::GivenUp(9)).contains("no main process was seen in time; given up"));
        assert!(line(NotUp::Command(9), Next::Nothing).contains("SIGKILL"));
    }
}
