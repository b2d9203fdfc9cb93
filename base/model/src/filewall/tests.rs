use super::*;

fn file(name: &str, text: &str) -> PolicyFile {
    PolicyFile { name: name.into(), text: text.into() }
}

#[test]
fn files_are_few_named_in_order_and_short() {
    assert_eq!(files_problem(&[file("a.yaml", "x"), file("b.wat", "")]), None);
    for (files, reason) in [
        (vec![], "1 to 32"),
        ((0..33).map(|n| file(&format!("{n:02}.yaml"), "")).collect(), "1 to 32"),
        (vec![file("../a.yaml", "")], "name ends in"),
        (vec![file(".a.yaml", "")], "name ends in"),
        (vec![file("key", "")], "name ends in"),
        (vec![file("b.yaml", ""), file("a.yaml", "")], "in the order"),
        (vec![file("a.yaml", ""), file("a.yaml", "")], "in the order"),
        (vec![file("a.yaml", &"x".repeat(ORDER_BYTES_MAX))], "at most"),
    ] {
        assert!(files_problem(&files).is_some_and(|problem| problem.contains(reason)), "{reason}");
    }
}
