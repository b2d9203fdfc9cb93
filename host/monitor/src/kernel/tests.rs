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
    match bpf::Programs::load(false) {
        Ok(programs) => {
            let names: Vec<String> = programs.view.sensors().into_iter().map(|sensor| sensor.name).collect();
            assert_eq!(names, SENSOR_NAMES.map(|(name, _)| name.to_string()));
            hears_a_program(&mut Kernel { inner: Inner::Bpf(Box::new(programs)), degraded: None });
        }
        Err(reason) => println!("NOT RUN programs_in_the_kernel_tell_forks_execs_and_exits: {reason}"),
    }
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
    match bpf::Programs::load(false) {
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
