//! Names that several processes make at the same moment, accelerated and not.

use super::accelerated::{Accelerated, accelerated};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

const NAMES: usize = 1000;
/// Two of each kind.
const PROCESSES: usize = 4;

fn meet(on: &Accelerated, program: &Path, way: &str) {
    let meeting = program.with_extension(way);
    File::create(&meeting).unwrap().set_len(1 << 20).unwrap();
    let begun: Vec<_> = (0..PROCESSES)
        .map(|number| {
            let mut plain = Command::new(program);
            plain.current_dir(on.on.root());
            let mut command = if number % 2 == 0 { on.command(program.to_str().unwrap()) } else { plain };
            command.args([way, &NAMES.to_string(), &PROCESSES.to_string(), &number.to_string()]);
            command.arg(&meeting).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for (number, child) in begun.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "fine\n", "{way}: process {number}: {output:?}");
    }
}

#[test]
fn a_name_that_others_make_at_once_is_opened_unless_it_must_be_new() {
    let Some(mut on) = accelerated("creation") else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/create.c");
    let program = folder.path().join("create");
    let built = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).status();
    assert!(built.expect("cc").success());
    meet(&on, &program, "open");
    for name in 0..NAMES {
        // Whoever wrote to another file than the others left a hole in this one.
        let path = on.on.root().join(format!("open-{name}"));
        assert_eq!(fs::read(path).unwrap(), b"abcd", "name {name}");
    }
    meet(&on, &program, "new");
    meet(&on, &program, "again");
    let made = on.on.mount().backend().segment().unwrap().figures().files_made;
    assert!(made > 100, "accelerated processes made {made} files by themselves");
}
