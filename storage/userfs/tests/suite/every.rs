//! Programs of which every call is seen: what no place of a known form calls is served by the segment too.

use super::accelerated::accelerated;
use std::path::Path;
use std::process::Command;
use weir_intercept::Calls;

#[test]
fn calls_of_no_known_form_are_served_where_all_are_wanted() {
    let Some(mut on) = accelerated("calls_of_no_known_form_are_served") else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("unseen");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/unseen.c");
    assert!(Command::new("cc").arg("-O1").arg("-o").arg(&program).arg(&source).status().unwrap().success());
    let file = on.on.root().join("file");
    std::fs::write(&file, [b'a'; 1000]).unwrap();
    let mut run = |calls| {
        let before = on.figures();
        let output = on.command_for(program.to_str().unwrap(), calls).arg(&file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let after = on.figures();
        (String::from_utf8(output.stdout).unwrap(), after.reads - before.reads, after.caught - before.caught)
    };
    // Its first byte is another from the second turn on.
    assert_eq!(run(Calls::Known).2, 0);
    let (sum, reads, caught) = run(Calls::Every);
    assert_eq!(sum, format!("{}\n", 200 * (1000 * u32::from(b'a') + 1)));
    assert!(reads >= 200 * 8, "{reads}");
    assert!(caught >= 200 * 12, "{caught}");
    let figures = on.figures();
    assert!(figures.calls >= figures.caught, "{figures:?}");
}
