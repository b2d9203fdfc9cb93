#![allow(clippy::unwrap_used)]

use super::*;
use std::process::Command;

/// Says which test plays the process that ends.
const CHILD: &str = "WEIR_TEST_CONTAIN";

#[test]
fn a_contained_panic_costs_only_its_work() {
    assert_eq!(contain(|| 7), Ok(7));
    let failed = contain(|| -> u32 { panic!("at frame {}", 3) });
    assert!(failed.unwrap_err().message.contains("at frame 3"));
    let bytes: Vec<u8> = Vec::new();
    let index = std::hint::black_box(4);
    assert!(contain(|| bytes[index]).unwrap_err().message.contains("index"));
    assert_eq!(contain(|| 8), Ok(8));
}

#[test]
fn regions_nest_and_end_with_their_panics() {
    let outer = contain(|| {
        let inner = contain(|| panic!("inside"));
        (inner.is_err(), DEPTH.with(Cell::get))
    });
    assert_eq!(outer, Ok((true, 1)));
    assert_eq!(DEPTH.with(Cell::get), 0);
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let message = contain(|| panic!("{}", "ä".repeat(1000))).unwrap_err().message;
    assert!(message.len() <= MESSAGE_BYTES_MAX && message.len() >= MESSAGE_BYTES_MAX - 1);
}

/// What the child process of the next test does.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    end_on_others();
    let contained = contain(|| panic!("inside"));
    assert!(contained.unwrap_err().message.contains("contain/tests.rs"));
    if what == "outside" {
        let ended = std::thread::spawn(|| panic!("outside"));
        let _ = ended.join();
    }
    // Without the abort the process would end so.
    std::process::exit(42);
}

#[test]
fn a_panic_outside_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let run = |what: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "contain::tests::child", "--nocapture"]).env(CHILD, what);
        child.output().unwrap()
    };
    assert_eq!(run("inside").status.code(), Some(42));
    let ended = run("outside");
    assert_eq!((ended.status.code(), ended.status.signal()), (None, Some(6)));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("outside"), "the panic is told of");
}
