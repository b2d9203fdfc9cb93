//! Runs the commands that start services again, outside the loop: a thread for each policy, so that a command that hangs holds
//! up nobody else.
//!
//! A command may end once the service is up (`systemctl restart …`), or be the service itself, in the foreground. So one that goes
//! on is left alone, as long as no later attempt follows: then the service did not come up by it, and it is ended.

use crate::error::{Error, Result};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Orders that wait for one policy.
const ORDERS_MAX: usize = 2;
/// Ends of commands that wait to be read by the loop.
pub const RAN_MAX: usize = 64;
/// How often a command that runs is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// What a command goes through: a service must not inherit the monitor's protection from the out-of-memory killer, and belongs
/// into its own cgroup, in which it is watched.
const ENTER: &str = "echo 0 > /proc/self/oom_score_adj; [ -z \"$0\" ] || echo $$ > \"$0/cgroup.procs\" || exit 125; exec \"$@\"";

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Which policy.
    pub policy: usize,
    /// The attempt.
    pub attempt: u32,
    /// As `wait` tells; nothing if it could not be started.
    pub status: Option<u32>,
}

/// What to run for a policy.
#[derive(Clone, Debug)]
pub struct Work {
    /// Which policy.
    pub policy: usize,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The cgroup to run it in; else that of the monitor.
    pub cgroup: Option<PathBuf>,
}

/// Where the loop sends the numbers of attempts, by policy.
pub type Orders = Vec<Option<SyncSender<u32>>>;

/// Starts the threads. They end when the loop does.
///
/// # Errors
/// [`Error::Io`].
pub fn start(policies: usize, works: Vec<Work>) -> Result<(Orders, Receiver<Ran>)> {
    let (tell, ran) = sync_channel(RAN_MAX);
    let mut all: Orders = vec![None; policies];
    for work in works {
        let (orders, ordered) = sync_channel(ORDERS_MAX);
        let (policy, tell) = (work.policy, tell.clone());
        std::thread::Builder::new()
            .name("monitor-restart".into())
            .spawn(move || Runner { work, tell, running: None }.run(&ordered))
            .map_err(|error| Error::io("starting the thread that starts a service again", error))?;
        if let Some(slot) = all.get_mut(policy) {
            *slot = Some(orders);
        }
    }
    Ok((all, ran))
}

struct Runner {
    work: Work,
    tell: SyncSender<Ran>,
    running: Option<(u32, Child)>,
}

impl Runner {
    fn run(mut self, orders: &Receiver<u32>) {
        loop {
            let order = match self.running {
                None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) => orders.recv_timeout(LOOK),
            };
            match order {
                Ok(attempt) => self.start(attempt),
                Err(RecvTimeoutError::Timeout) => self.look(),
                // What runs may be the service.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn start(&mut self, attempt: u32) {
        self.look();
        if let Some((before, mut child)) = self.running.take() {
            tracing::warn!(
                policy = self.work.policy,
                before,
                "ending a command that did not bring the service up"
            );
            drop(child.kill());
            drop(child.wait());
        }
        match command(&self.work.command, self.work.cgroup.as_deref()).spawn() {
            Ok(child) => self.running = Some((attempt, child)),
            Err(error) => {
                tracing::error!(%error, "the command that starts a service again cannot be run");
                self.tell(attempt, None);
            }
        }
    }

    fn look(&mut self) {
        let Some((attempt, child)) = &mut self.running else { return };
        let attempt = *attempt;
        let status = match child.try_wait() {
            Ok(None) => return,
            Ok(Some(status)) => Some(status.into_raw().cast_unsigned()),
            Err(_) => None,
        };
        self.running = None;
        self.tell(attempt, status);
    }

    fn tell(&self, attempt: u32, status: Option<u32>) {
        // The loop takes a look at the service itself; this only says why sooner.
        let _ = self.tell.try_send(Ran { policy: self.work.policy, attempt, status });
    }
}

fn command(words: &[String], cgroup: Option<&Path>) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", ENTER]).arg(cgroup.unwrap_or(Path::new(""))).args(words);
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(command: &[&str]) -> Work {
        Work { policy: 1, command: command.iter().map(|word| (*word).to_string()).collect(), cgroup: None }
    }

    fn next(ran: &Receiver<Ran>) -> Ran {
        ran.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn how_a_command_ended_is_told() {
        for (words, status) in
            [(&["true"][..], 0), (&["sh", "-c", "exit 7"], 7 << 8), (&["/nowhere/to"], 127 << 8)]
        {
            let (orders, ran) = start(2, vec![work(words)]).unwrap();
            assert!(orders[0].is_none());
            orders[1].as_ref().unwrap().send(3).unwrap();
            assert_eq!(next(&ran), Ran { policy: 1, attempt: 3, status: Some(status) }, "{words:?}");
        }
    }

    #[test]
    fn a_command_that_goes_on_is_ended_by_the_next_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = folder.path().join("numbers");
        let script = format!("echo $$ >> {}; exec sleep 1000", numbers.display());
        let (orders, ran) = start(2, vec![work(&["sh", "-c", &script])]).unwrap();
        let lines = || std::fs::read_to_string(&numbers).unwrap_or_default().lines().count();
        for attempt in 1..3 {
            orders[1].as_ref().unwrap().send(attempt).unwrap();
            for _ in 0..6000 {
                if lines() == attempt as usize {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(lines(), attempt as usize);
        }
        let text = std::fs::read_to_string(&numbers).unwrap();
        let alive = |number: &str| {
            std::fs::read_to_string(format!("/proc/{number}/comm")).is_ok_and(|comm| comm == "sleep\n")
        };
        let (first, second) = text.trim().split_once('\n').unwrap();
        assert!(!alive(first) && alive(second), "{text}");
        assert!(ran.try_recv().is_err(), "the first was ended, the second goes on");
        // What goes on is the service: it outlives the monitor.
        drop((orders, ran));
        assert!(alive(second));
        let process = rustix::process::Pid::from_raw(second.parse().unwrap()).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    }
}
