//! What a kill leaves behind.

use super::*;

#[test]
fn a_kill_at_any_byte_loses_nothing_that_was_acknowledged_and_half_of_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let context = Context::open(&path).unwrap();
    let grant = |file: &str, op: &str| Change::Grant {
        file: file.to_string(),
        op: op.to_string(),
        grant: "nobody".to_string(),
    };
    // What was acknowledged, and how long the file was then.
    let mut acknowledged = vec![(0, 0)];
    for number in 1..=4 {
        let file = hexadecimal(&[number; 8]);
        context.commit(&[grant(&file, "READ"), grant(&file, "WRITE")]).unwrap();
        acknowledged.push((std::fs::metadata(&path).unwrap().len(), usize::from(number)));
    }
    drop(context);
    let whole = std::fs::read(&path).unwrap();
    for cut in 0..=whole.len() {
        let killed = folder.path().join(format!("cut-{cut}"));
        std::fs::write(&killed, &whole[..cut]).unwrap();
        let context = Context::open(&killed).unwrap();
        let expected = acknowledged.iter().rev().find(|(bytes, _)| *bytes <= cut as u64).unwrap().1;
        let tables = context.tables();
        assert_eq!(tables.files.len(), expected, "cut at {cut}");
        let whole =
            |grants: &Arc<Grants>| [Op::Read, Op::Write].iter().all(|op| grants[op.index()] == Grant::Nobody);
        assert!(tables.files.values().all(whole), "cut at {cut}");
        // It goes on from there.
        context.commit(&[grant("ff", "READ")]).unwrap();
        assert_eq!(context.tables().files.len(), expected + 1);
    }
}
