use super::*;

#[test]
fn only_steps_forward_are_a_proof() {
    let steps = |values: &[u64]| values.windows(2).fold(0, |steps, pair| step(pair[0], pair[1], steps));
    assert_eq!(steps(&[5, 5, 5, 5, 5]), 0, "a dead kernel");
    assert_eq!(steps(&[5, 6, 6, 7, 9]), STEPS);
    assert_eq!(steps(&[5, 6, 7, 0x6d6d_6d6d_6d6d, 0x6d6d_6d6d_6d6d]), 0, "it is written over");
    assert_eq!(steps(&[5, 6, 4, 5]), 1, "backwards");
    assert_eq!(steps(&[u64::MAX, 0, 1, 2]), STEPS, "around");
}
