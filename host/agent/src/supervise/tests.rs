//! The children are shells; the lock is taken by `flock`.

use super::*;

/// Waits until a condition holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not within 30 seconds: {what}");
}

fn shell(name: &'static str, script: String) -> ChildSpec {
    ChildSpec { name, program: "/bin/sh".into(), arguments: vec!["-c".into(), script.into()] }
}

struct Scene {
    directory: tempfile::TempDir,
    config: SupervisorConfig,
}

impl Scene {
    /// An agent and a switch that note each start and hold their locks.
    fn new(stop_switch: bool) -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let agent_lock = directory.path().join(AGENT_LOCK);
        let switch_lock = directory.path().join("switch.lock");
        let config = SupervisorConfig {
            agent: shell(
                "agent",
                format!("echo $$ >> {}; exec flock -F -n {} sleep 1000", at("agents"), agent_lock.display()),
            ),
            switch: Some(shell(
                "switch",
                // Without a fork, so that the process itself holds the lock, as the switch does.
                format!(
                    "echo $$ >> {}; exec flock -F -n {} sleep 1000",
                    at("switches"),
                    switch_lock.display()
                ),
            )),
            monitor: None,
            supervisor_lock: directory.path().join(SUPERVISOR_LOCK),
            agent_lock,
            switch_lock,
            switch_socket: directory.path().join("control.sock"),
            switch_answer_ms: 0,
            stop_switch,
            take_over: "--take-over",
            replaces_others: false,
            other_settings: false,
            upgrade_socket: directory.path().join(upgrade::SUPERVISOR_SOCKET),
            store_socket: directory.path().join("store.sock"),
            backoff_min_ms: 10,
            backoff_max_ms: 50,
        };
        Scene { directory, config }
    }

    fn pids(&self, file: &str) -> Vec<i32> {
        let text = std::fs::read_to_string(self.directory.path().join(file)).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn start(&self) -> (watch::Sender<bool>, tokio::task::JoinHandle<()>) {
        let (sender, receiver) = watch::channel(false);
        let config = self.config.clone();
        let started = async move {
            for _ in 0..300 {
                match run(config.clone(), receiver.clone()).await {
                    // A program that another test is just starting has the lock for a moment, until it is itself.
                    Err(error) if error.to_string().contains("supervisor.lock") => {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    ended => return ended.unwrap(),
                }
            }
            panic!("the lock is not free");
        };
        (sender, tokio::spawn(started))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for pid in self.pids("agents").into_iter().chain(self.pids("switches")) {
            if alive(pid) {
                kill(pid);
            }
        }
    }
}

fn alive(pid: i32) -> bool {
    // A child that nobody has waited for yet is dead, but still listed.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim().starts_with('Z'))
}

fn kill(pid: i32) {
    let _ = rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

#[test]
fn waits_double_up_to_the_limit_and_begin_anew_after_a_steady_life() {
    let mut backoff = Backoff::new(100, 1000);
    let waits: Vec<u64> = (0..6).map(|_| backoff.after(5)).collect();
    assert_eq!(waits, [0, 95, 195, 395, 795, 995]);
    assert_eq!(backoff.after(STEADY_MS), 0);
    assert_eq!(backoff.after(5), 95);
    // Whoever served for a while comes back at once, and waits when it goes on like this.
    let waits: Vec<u64> = (0..5).map(|_| backoff.after(300)).collect();
    assert_eq!(waits, [0, 100, 500, 700, 700]);
}

#[tokio::test]
async fn a_child_that_dies_is_started_again() {
    let scene = Scene::new(true);
    let (stop, task) = scene.start();
    until("both run", || !scene.pids("agents").is_empty() && !scene.pids("switches").is_empty()).await;
    kill(scene.pids("agents")[0]);
    kill(scene.pids("switches")[0]);
    until("both run again", || scene.pids("agents").len() == 2 && scene.pids("switches").len() == 2).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    assert!(!alive(scene.pids("agents")[1]) && !alive(scene.pids("switches")[1]));
}

/// Whether a condition holds at some time within a while. Never a measure of anything.
async fn comes(mut holds: impl FnMut() -> bool) -> bool {
    for _ in 0..200 {
        if holds() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

/// Aborts the switch that was started last, and tells whether another one comes without a wait: any would be an hour.
async fn comes_back_at_once(scene: &Scene) -> bool {
    let pids = scene.pids("switches");
    let _ = rustix::process::kill_process(Pid::from_raw(pids[pids.len() - 1]).unwrap(), Signal::ABORT);
    comes(|| scene.pids("switches").len() > pids.len()).await
}

#[tokio::test]
async fn a_switch_that_aborts_comes_back_at_once_and_again_when_it_has_lived_for_a_while() {
    // A program that another test is just starting may have the lock for a moment; that costs a start, and here an hour.
    for attempt in 1.. {
        let mut scene = Scene::new(true);
        (scene.config.backoff_min_ms, scene.config.backoff_max_ms) = (3_600_000, 3_600_000);
        let (stop, task) = scene.start();
        until("the switch runs", || !scene.pids("switches").is_empty()).await;
        let mut comes_back = comes_back_at_once(&scene).await;
        if comes_back {
            // It is not the second crash of a row.
            tokio::time::sleep(Duration::from_millis(STEADY_MS)).await;
            comes_back = comes_back_at_once(&scene).await;
        }
        stop.send(true).unwrap();
        task.await.unwrap();
        if comes_back {
            return;
        }
        assert!(attempt < 3, "it waits: {:?}", scene.pids("switches"));
    }
}

#[tokio::test]
async fn the_switch_stays_is_adopted_and_is_replaced_when_it_dies() {
    let scene = Scene::new(false);
    let (stop, task) = scene.start();
    until("both run", || !scene.pids("agents").is_empty() && !scene.pids("switches").is_empty()).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    let first = scene.pids("switches")[0];
    assert!(alive(first) && !alive(scene.pids("agents")[0]), "only the agent was stopped");
    assert_eq!(holder(&scene.config.switch_lock).map(Pid::as_raw_pid), Some(first));
    let (stop, task) = scene.start();
    until("a new agent runs", || scene.pids("agents").len() == 2).await;
    assert_eq!(scene.pids("switches").len(), 1, "the running switch is adopted");
    kill(first);
    until("a new switch runs", || scene.pids("switches").len() == 2).await;
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn an_adopted_switch_is_stopped_when_that_is_wanted() {
    let mut scene = Scene::new(false);
    let (stop, task) = scene.start();
    until("the switch runs", || !scene.pids("switches").is_empty()).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    scene.config.stop_switch = true;
    let (stop, task) = scene.start();
    until("a new agent runs", || scene.pids("agents").len() == 2).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    let switch = scene.pids("switches")[0];
    until("the switch has ended", || !alive(switch)).await;
}

#[tokio::test]
async fn a_switch_that_never_answers_is_replaced() {
    let mut scene = Scene::new(true);
    scene.config.switch_answer_ms = 50;
    let (stop, task) = scene.start();
    until("the third switch runs", || scene.pids("switches").len() >= 3).await;
    assert!(!alive(scene.pids("switches")[0]));
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn an_adopted_switch_that_never_answers_is_replaced() {
    let mut scene = Scene::new(false);
    let (stop, task) = scene.start();
    until("the switch holds its lock", || holder(&scene.config.switch_lock).is_some()).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    let first = scene.pids("switches")[0];
    assert!(alive(first), "without a time for answers it is left alone");
    scene.config.switch_answer_ms = 50;
    scene.config.stop_switch = true;
    let (stop, task) = scene.start();
    until("another switch runs", || scene.pids("switches").len() >= 2).await;
    assert!(!alive(first));
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn a_program_that_is_missing_is_tried_again_and_stops() {
    let mut scene = Scene::new(true);
    scene.config.agent.program = "/nowhere/weir".into();
    assert!(spawn(&scene.config.agent).unwrap_err().to_string().contains("/nowhere/weir"));
    let (stop, task) = scene.start();
    until("the switch runs", || !scene.pids("switches").is_empty()).await;
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn an_agent_that_a_dead_supervisor_left_is_replaced() {
    let scene = Scene::new(true);
    let left = spawn(&scene.config.agent).unwrap();
    until("the left agent has its lock", || holder_if_taken(&scene.config.agent_lock).is_some()).await;
    let (stop, task) = scene.start();
    until("a new agent has the lock", || {
        let holder = holder_if_taken(&scene.config.agent_lock).map(Pid::as_raw_pid);
        holder.is_some() && holder == scene.pids("agents").get(1).copied()
    })
    .await;
    assert!(!alive(left.id().unwrap() as i32), "the left one is gone");
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn of_two_in_one_directory_the_second_is_told() {
    let scene = Scene::new(true);
    let (stop, task) = scene.start();
    until("the agent runs", || holder_if_taken(&scene.config.agent_lock).is_some()).await;
    let error = run(scene.config.clone(), watch::channel(false).1).await.unwrap_err().to_string();
    assert!(error.contains("another supervisor runs") && error.contains("runDir"), "{error}");
    assert_eq!(scene.pids("agents").len(), 1, "it leaves the first one's agent alone");
    let error = RunLock::take(&scene.config.agent_lock, "agent").unwrap_err().to_string();
    assert!(error.contains("another agent runs"), "{error}");
    stop.send(true).unwrap();
    task.await.unwrap();
    // A program that another test is just starting may have it for a moment.
    until("its lock is free", || RunLock::take(&scene.config.supervisor_lock, "supervisor").is_ok()).await;
}

#[tokio::test]
async fn a_monitor_is_kept_and_ends_with_the_supervisor() {
    let mut scene = Scene::new(true);
    let at = |name: &str| scene.directory.path().join(name).display().to_string();
    let script = format!("echo $$ >> {}; exec flock -F -n {} sleep 1000", at("monitors"), at(MONITOR_LOCK));
    scene.config.monitor = Some((shell("monitor", script), scene.directory.path().join(MONITOR_LOCK)));
    let (stop, task) = scene.start();
    until("the monitor runs", || !scene.pids("monitors").is_empty()).await;
    kill(scene.pids("monitors")[0]);
    until("the monitor runs again", || scene.pids("monitors").len() == 2).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    assert!(!alive(scene.pids("monitors")[1]));
}

/// A switch that is told to take over ends the one before, as that one does by itself when it has handed over.
fn takes_over(scene: &mut Scene, then: &str) {
    let at = |name: &str| scene.directory.path().join(name).display().to_string();
    let lock = scene.config.switch_lock.display().to_string();
    let script = format!(
        "before=$(tail -n 1 {0} 2>/dev/null); if [ \"$1\" = --take-over ]; then {then}; echo $$ >> {0}; kill $before; \
         exec flock -F {lock} sleep 1000; fi; echo $$ >> {0}; exec flock -F -n {lock} sleep 1000",
        at("switches")
    );
    // What follows the script is its own name, and then its arguments.
    let mut switch = shell("switch", script);
    switch.arguments.push("switch".into());
    scene.config.switch = Some(switch);
}

#[tokio::test]
async fn a_switch_is_replaced_when_that_is_asked_for() {
    let mut scene = Scene::new(true);
    takes_over(&mut scene, "true");
    let (stop, task) = scene.start();
    until("the switch runs", || holder(&scene.config.switch_lock).is_some()).await;
    for number in 1..4 {
        let answer = upgrade::ask(scene.directory.path(), None).await.unwrap();
        let pids = scene.pids("switches");
        assert_eq!(pids.len(), number + 1);
        let FromSupervisor::Upgraded { pid, .. } = answer else { panic!("{answer:?}") };
        assert_eq!(pid as i32, pids[number]);
        assert!(alive(pids[number]) && !alive(pids[number - 1]));
    }
    // It is the supervisor's child like any other.
    kill(scene.pids("switches")[3]);
    until("the next one runs", || scene.pids("switches").len() == 5).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    assert!(!alive(scene.pids("switches")[4]));
    assert!(upgrade::ask(scene.directory.path(), None).await.is_err(), "nobody is there any more");
}

#[tokio::test]
async fn a_switch_that_cannot_be_replaced_goes_on() {
    let mut scene = Scene::new(true);
    takes_over(&mut scene, "exit 3");
    let (stop, task) = scene.start();
    until("the switch runs", || holder(&scene.config.switch_lock).is_some()).await;
    let answer = upgrade::ask(scene.directory.path(), None).await.unwrap();
    assert!(matches!(&answer, FromSupervisor::Failed(reason) if reason.contains('3')), "{answer:?}");
    let missing = upgrade::ask(scene.directory.path(), Some(Path::new("/nowhere/weir"))).await.unwrap();
    assert!(matches!(&missing, FromSupervisor::Failed(reason) if reason.contains("/nowhere")), "{missing:?}");
    assert!(alive(scene.pids("switches")[0]) && scene.pids("switches").len() == 1);
    // Nonsense is no request.
    let mut stream = tokio::net::UnixStream::connect(&scene.config.upgrade_socket).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &[0xff; 64]).await.unwrap();
    drop(stream);
    assert!(matches!(upgrade::ask(scene.directory.path(), None).await.unwrap(), FromSupervisor::Failed(_)));
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn a_switch_of_another_program_is_taken_over_from() {
    let mut scene = Scene::new(false);
    takes_over(&mut scene, "true");
    let (stop, task) = scene.start();
    until("the switch runs", || holder(&scene.config.switch_lock).is_some()).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    let first = scene.pids("switches")[0];
    // It runs 'flock', and 'sh' is what is started.
    assert!(alive(first) && upgrade::is_other_program(&scene.config.switch_lock, Path::new("/bin/sh")));
    scene.config.replaces_others = true;
    scene.config.stop_switch = true;
    let (stop, task) = scene.start();
    until("another one runs", || scene.pids("switches").len() == 2 && !alive(first)).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    assert!(!alive(scene.pids("switches")[1]));
}

#[tokio::test]
async fn a_switch_with_other_settings_is_taken_over_from() {
    let mut scene = Scene::new(false);
    takes_over(&mut scene, "true");
    let (stop, task) = scene.start();
    until("the switch runs", || holder(&scene.config.switch_lock).is_some()).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    let first = scene.pids("switches")[0];
    assert!(alive(first));
    scene.config.other_settings = true;
    scene.config.stop_switch = true;
    let (stop, task) = scene.start();
    until("another one runs", || scene.pids("switches").len() == 2 && !alive(first)).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    assert!(!alive(scene.pids("switches")[1]));
}

#[test]
fn who_signed_the_lock_holds_it_if_it_has_it_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lock");
    let lock = RunLock::take(&path, "switch").unwrap();
    let own = std::process::id() as i32;
    assert_eq!(holder(&path).map(Pid::as_raw_pid), Some(own), "the system's list says so");
    std::fs::write(&path, format!("{own}\n")).unwrap();
    assert_eq!(holder(&path).map(Pid::as_raw_pid), Some(own));
    // The first process has no file of ours open.
    std::fs::write(&path, "1\n").unwrap();
    assert_eq!(holder(&path).map(Pid::as_raw_pid), Some(own));
    drop(lock);
    assert_eq!(holder(&path), None);
}
