//! Tests of the number of machines.

use super::*;

#[test]
fn one_machine_more_must_wait_until_another_is_idle() {
    let policy = Machines::compile(&MachinesFile { limit: 2, idle_s: 10 }, None).unwrap();
    let at = |last: u8, now_s: u64| policy.admits(1001, [10, 0, 0, last].into(), now_s * 1_000_000);
    assert!(at(1, 0) && at(2, 1) && !at(3, 2));
    assert!(at(1, 9) && !at(3, 10), "the first has been used since");
    assert!(at(3, 11), "the second has been idle for ten seconds");
    assert!(!at(2, 12));
    assert!(policy.admits(1002, [10, 0, 0, 9].into(), 0), "another user");
    assert!(
        Machines::compile(&MachinesFile { limit: 0, idle_s: 10 }, None)
            .unwrap_err()
            .to_string()
            .contains("limit 0")
    );
}
