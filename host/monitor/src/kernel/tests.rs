use super::*;
use std::process::Command;
use std::time::{Duration, Instant};

/// Starts a program, and waits until the source has told its fork, its exec and its exit.
fn hears_a_program(kernel: &mut Kernel) {
    kernel.fetch(|_| ());
    let mut child = Command::new("sleep").arg("0").spawn().unwrap();
    let process = child.id();
    child.wait().unwrap();
    let (mut forked, mut exec, mut exited) = (None, false, false);
    let limit = Instant::now() + Duration::from_secs(20);
    while !(forked.is_some() && exec && exited) {
        kernel.fetch(|event| match event.what {
            What::Fork { parent } if event.process == process => forked = Some(parent),
            What::Exec if event.process == process => exec = true,
            What::Exit { .. } if event.process == process => exited = true,
            _ => {}
        });
        assert!(Instant::now() < limit, "fork {forked:?}, exec {exec}, exit {exited}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(forked, Some(std::process::id()));
}

#[test]
fn programs_in_the_kernel_tell_forks_execs_and_exits() {
    match bpf::Programs::load(Extras::default()) {
        Ok(programs) => {
            let names: Vec<String> = programs.view.sensors().into_iter().map(|sensor| sensor.name).collect();
            assert_eq!(names, SENSOR_NAMES.map(|(name, _)| name.to_string()));
            hears_a_program(&mut Kernel { inner: Inner::Bpf(Box::new(programs)), degraded: None });
        }
        Err(reason) => println!("NOT RUN programs_in_the_kernel_tell_forks_execs_and_exits: {reason}"),
    }
}

#[test]
fn programs_in_the_kernel_count_the_switches_of_each_processor() {
    let name = "programs_in_the_kernel_count_the_switches_of_each_processor";
    let kernel = match Kernel::open_with(Extras { switches: true, ..Extras::default() }) {
        Ok(kernel) if kernel.way() == Way::Bpf && kernel.degraded.is_none() => kernel,
        Ok(kernel) => return println!("NOT RUN {name}: {:?}", kernel.degraded),
        Err(reason) => return println!("NOT RUN {name}: {reason}"),
    };
    let view = kernel.view().unwrap().unwrap();
    let own = rustix::thread::sched_getaffinity(None).unwrap();
    let processor = (0..PROCESSORS_MAX).find(|processor| own.is_set(*processor)).unwrap();
    let switches = || view.value_of(&format!("{SWITCHES}{processor}")).unwrap();
    crate::sys::pin(processor).unwrap();
    let before = switches();
    // Each of these sleeps is at least two switches: away, and back.
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let found = switches() - before;
    rustix::thread::sched_setaffinity(None, &own).unwrap();
    assert!(found >= 100, "{found} switches");
    assert!(view.find("switches-100000").is_none());
}

/// A shell that waits for a line, then forks two children that fork, and says so.
fn forker() -> std::process::Child {
    let script = "read go; (true; sleep 0; echo child) & (true; sleep 0; echo child) & wait; echo parent";
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn forks_of_the_doomed_come_to_nothing_and_those_of_the_pardoned_go_on() {
    use std::os::unix::process::ExitStatusExt;
    let name = "forks_of_the_doomed_come_to_nothing_and_those_of_the_pardoned_go_on";
    let mut kernel = match Kernel::open() {
        Ok(kernel) if kernel.way() == Way::Bpf => kernel,
        Ok(kernel) => return println!("NOT RUN {name}: {:?}", kernel.degraded),
        Err(reason) => return println!("NOT RUN {name}: {reason}"),
    };
    let run = |mut child: std::process::Child| {
        drop(child.stdin.take());
        let output = child.wait_with_output().unwrap();
        (output.status.signal(), String::from_utf8(output.stdout).unwrap())
    };
    // Wait until it is the shell: what it was before has forked nothing.
    let started = |kernel: &mut Kernel| {
        let child = forker();
        let (mut exec, limit) = (false, Instant::now() + Duration::from_secs(20));
        while !exec {
            kernel.fetch(|event| exec |= event.what == What::Exec && event.process == child.id());
            assert!(Instant::now() < limit, "its exec is not told");
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    };
    let child = started(&mut kernel);
    assert!(kernel.doom(child.id()));
    assert_eq!(run(child), (Some(9), String::new()), "it and its child were killed as they forked");
    let child = started(&mut kernel);
    assert!(kernel.doom(child.id()));
    kernel.pardon(child.id());
    assert_eq!(run(child), (None, "child\nchild\nparent\n".to_string()));
    assert!(!kernel.doom(u32::MAX), "no process has such a number");
}

/// Ends in three ways; each is told as `wait` tells it.
fn hears_how_programs_end(kernel: &mut Kernel) {
    for (command, wanted) in [("exit 3", 3 << 8), ("kill -TERM $$", 15), ("exit 0", 0)] {
        let mut child = Command::new("sh").args(["-c", command]).spawn().unwrap();
        let process = child.id();
        child.wait().unwrap();
        let limit = Instant::now() + Duration::from_secs(20);
        let mut found = None;
        while found.is_none() {
            kernel.fetch(|event| match event.what {
                What::Exit { status } if event.process == process => found = Some(status),
                _ => {}
            });
            assert!(Instant::now() < limit, "{command}: its end is not told");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(found, Some(wanted), "{command}");
    }
}

#[test]
fn programs_in_the_kernel_tell_how_programs_end() {
    match bpf::Programs::load(Extras::default()) {
        Ok(programs) => {
            hears_how_programs_end(&mut Kernel { inner: Inner::Bpf(Box::new(programs)), degraded: None });
        }
        Err(reason) => println!("NOT RUN programs_in_the_kernel_tell_how_programs_end: {reason}"),
    }
}

#[test]
fn the_connector_tells_how_programs_end() {
    match Kernel::open_connector("a test".into()) {
        Ok(mut kernel) => hears_how_programs_end(&mut kernel),
        Err(reason) => println!("NOT RUN the_connector_tells_how_programs_end: {reason}"),
    }
}

#[test]
fn the_connector_tells_forks_execs_and_exits() {
    match Kernel::open_connector("a test".into()) {
        Ok(mut kernel) => {
            assert_eq!((kernel.way(), kernel.degraded.as_deref()), (Way::Connector, Some("a test")));
            hears_a_program(&mut kernel);
        }
        Err(reason) => println!("NOT RUN the_connector_tells_forks_execs_and_exits: {reason}"),
    }
}

#[test]
fn the_shape_is_the_one_that_the_programs_were_compiled_with() {
    let shape = include_str!("../../bpf/shape.h");
    let mut wanted = vec![
        format!("#define WEIR_KERNEL_SENSORS {SENSORS}"),
        format!("#define WEIR_KERNEL_RECORDS {RECORDS}"),
        format!("#define WEIR_HOOK_CGROUPS {HOOK_CGROUPS}"),
        format!("#define WEIR_KERNEL_SWITCHES {SWITCHES_AT}"),
        format!("#define WEIR_DOOM_PROCESSES {DOOM_PROCESSES}"),
    ];
    for (slot, (name, _)) in SENSOR_NAMES.iter().enumerate() {
        wanted.push(format!("#define WEIR_KERNEL_{} {slot}", name.to_uppercase()));
    }
    for line in wanted {
        assert!(shape.lines().any(|other| other == line), "{line}");
    }
}

#[test]
fn stat_is_read_with_any_name() {
    let rest = "S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 100 200";
    for name in ["sh", "a) R 1", "((", "sixteen-bytes-or"] {
        let stat = proc::parse_stat(format!("12 ({name}) {rest}").as_bytes()).unwrap();
        assert_eq!((stat.parent, stat.state, stat.start_ticks), (7, b'S', 4242));
        assert_eq!(comm_text(&stat.comm), name.chars().take(15).collect::<String>());
    }
    assert_eq!(proc::parse_stat(b""), None);
    assert_eq!(proc::parse_stat(b"1 (x) S"), None);
}

#[test]
fn this_process_is_seen() {
    let proc = proc::Proc::open().unwrap();
    let own = std::process::id();
    let mut seen = false;
    proc.for_each(&mut proc::Listing::default(), |process| seen |= process == own);
    assert!(seen);
    let stat = proc.stat(own).unwrap();
    assert_eq!(stat.parent, std::os::unix::process::parent_id());
    assert!(proc.resident_pages(own).unwrap().all > 0);
    assert_eq!(proc.stat(u32::MAX), None);
}

#[test]
fn any_message_and_any_stat_are_read_without_harm() {
    bolero::check!().for_each(|bytes: &[u8]| {
        connector::parse(bytes);
        proc::parse_stat(bytes);
    });
}
