//! How a command ends that has ordered something of a program on a host.

use crate::exit::Exit;
use weir_api::types::OrderOutcome;

/// How it ends, and what it says. `who` carries it out; nothing for an order that leaves nothing to be carried out.
pub(super) fn ending(
    in_force: bool,
    outcome: Option<&OrderOutcome>,
    wait_s: u32,
    who: Option<&str>,
) -> (Exit, String) {
    match (outcome, who) {
        (Some(OrderOutcome { done: true, text }), _) => (Exit::Done, text.clone()),
        (Some(OrderOutcome { done: false, text }), _) => (Exit::Failed, format!("refused: {text}")),
        (None, _) if wait_s == 0 => (Exit::Done, "what becomes of it shows 'weir status'".to_string()),
        (None, _) if !in_force => (
            Exit::NotInForce,
            format!("it is not in force after {wait_s} s: 'weir status' and 'weir plane show' show why"),
        ),
        (None, None) => (Exit::Done, "the host has it".to_string()),
        (None, Some(who)) => (
            Exit::NotInForce,
            format!(
                "the host has it, but {who} has not said within {wait_s} s what it did: does it run there?"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_as_the_program_did() {
        let outcome = |done, text: &str| OrderOutcome { done, text: text.to_string() };
        let code = |in_force, outcome: Option<OrderOutcome>, wait_s, who| {
            ending(in_force, outcome.as_ref(), wait_s, who).0
        };
        let who = Some("FileWall 'wall'");
        assert_eq!(code(true, Some(outcome(true, "in force")), 10, who), Exit::Done);
        assert_eq!(code(true, Some(outcome(false, "kind: nonsense")), 10, who), Exit::Failed);
        assert_eq!(code(true, None, 10, who), Exit::NotInForce, "no such FileWall, or a dead one");
        assert_eq!(code(false, None, 10, who), Exit::NotInForce);
        assert_eq!(code(true, None, 10, None), Exit::Done, "a withdrawal leaves nothing to do");
        assert_eq!(code(false, None, 10, None), Exit::NotInForce);
        assert_eq!(code(false, None, 0, who), Exit::Done);
        let (_, text) = ending(true, Some(&outcome(false, "policy.yaml: nonsense")), 10, who);
        assert!(text.contains("policy.yaml: nonsense"), "{text}");
    }
}
