//! What became of an order: told by the program of the host that carries it out, waited for by whoever has ordered it.
//!
//! ```text
//!  FileWall, monitor ── Teller ──► switch (weir_switch::health) ── signed event ──► controllers ──► table of health
//!  `weir filewall order`, `weir monitor repair` ◄── answer ◄── outcome_within ◄───────────────────────────┘
//! ```
//!
//! An order is named by the version at which it was decided, of which a domain has one only. What became of it is a note in its host's report
//! of health, so it is signed, ordered, and shown by `weir status`.
//!
//! Invariants
//! - Nothing is said of an order before it is in force, or refused for good.
//! - What was said may be lost on its way, and the switch remembers nothing when it begins anew: it is said again over each new
//!   connection, and in paces that end ([`AGAIN`]), so a program that lives says it, and one that rests costs nothing.
//! - Whoever waits, waits no longer than was asked for. That nothing was said in that time is an answer of its own: the program is not
//!   there, or is slow.

use crate::exit::Exit;
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_api::types::OrderOutcome;
use weir_apps::fabric;
use weir_controller::driver::ControllerHandle;
use weir_model::Label;
use weir_model::health::{HealthNote, Severity, TEXT_BYTES_MAX};
use weir_model::local::ToSwitch;
use weir_store::Store;
use weir_switch::health::{ORDERS_MAX, order_policy, orders_report};

/// After so long it is said again what was said; then no more.
const AGAIN: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(300)];
/// Between two looks at what was told.
const LOOK: Duration = Duration::from_millis(50);

/// Says to the switch what became of orders.
#[derive(Debug)]
pub struct Teller {
    host: Label,
    notes: VecDeque<HealthNote>,
    due: Option<Instant>,
    told: usize,
}

impl Teller {
    /// One that has nothing to say.
    pub fn new(host: Label) -> Teller {
        Teller { host, notes: VecDeque::new(), due: None, told: 0 }
    }

    /// The order of a version is in force, as the words say, or was refused or has failed, and why.
    pub fn say(&mut self, version: u64, outcome: Result<&str, &str>) {
        let (severity, text) = match outcome {
            Ok(text) => (Severity::Info, text),
            Err(text) => (Severity::Warning, text),
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let note = HealthNote {
            number: 0,
            unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            severity,
            policy: order_policy(version),
            text: cut(text, TEXT_BYTES_MAX).to_string(),
        };
        self.notes.retain(|known| known.policy != note.policy);
        self.notes.push_back(note);
        let over = self.notes.len().saturating_sub(ORDERS_MAX);
        self.notes.drain(..over);
        self.connected();
    }

    /// The switch may be another process, which knows nothing.
    pub fn connected(&mut self) {
        self.told = 0;
        self.due = (!self.notes.is_empty()).then(Instant::now);
    }

    /// What is to be sent to the switch now, if anything is.
    pub fn due(&mut self) -> Option<ToSwitch> {
        if self.due.is_none_or(|due| Instant::now() < due) {
            return None;
        }
        self.due = AGAIN.get(self.told).map(|pause| Instant::now() + *pause);
        self.told += 1;
        Some(ToSwitch::Health(orders_report(self.host.clone(), self.notes.iter().cloned().collect())))
    }
}

/// The beginning of a text, in whole characters.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// What became of the order of a version, as far as its host has told.
pub fn outcome(store: &Store, host: &Label, version: u64) -> Option<OrderOutcome> {
    let policy = order_policy(version);
    let notes = fabric::health(store, host)?.report.notes;
    let note = notes.into_iter().rev().find(|note| note.policy == policy)?;
    Some(OrderOutcome { done: note.severity == Severity::Info, text: note.text })
}

/// The same, waited for.
pub async fn outcome_within(
    handle: &ControllerHandle,
    host: &Label,
    version: u64,
    limit: Duration,
) -> Option<OrderOutcome> {
    let until = Instant::now() + limit;
    loop {
        let found = outcome(&handle.published().store, host, version);
        if found.is_some() || Instant::now() >= until {
            return found;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// How a command ends that has ordered something, and what it says. `who` carries it out; nothing for an order that leaves nothing to be
/// carried out.
pub fn ending(
    in_force: bool,
    outcome: Option<&OrderOutcome>,
    wait_s: u32,
    who: Option<&str>,
) -> (Exit, String) {
    let refused = |text: &str| (Exit::Failed, format!("refused: {text}"));
    match (outcome, who) {
        (Some(OrderOutcome { done: true, text }), _) => (Exit::Done, text.clone()),
        (Some(OrderOutcome { done: false, text }), _) => refused(text),
        (None, _) if wait_s == 0 => (Exit::Done, "what becomes of it shows 'weir status'".to_string()),
        (None, _) if !in_force => {
            (Exit::NotInForce, format!("the host does not have it after {wait_s} s: 'weir status' shows why"))
        }
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

    fn notes(frame: Option<ToSwitch>) -> Vec<HealthNote> {
        match frame {
            Some(ToSwitch::Health(report)) => {
                assert_eq!(report.problem(), None);
                report.notes
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_became_of_an_order_is_said_once_now_and_again_over_a_new_connection() {
        let mut teller = Teller::new(Label::new("h1").unwrap());
        teller.connected();
        assert!(teller.due().is_none(), "there is nothing to say");
        teller.say(7, Err(&"ä".repeat(TEXT_BYTES_MAX)));
        let said = notes(teller.due());
        assert_eq!((said[0].policy.as_str(), said[0].severity), ("order v7", Severity::Warning));
        assert_eq!(said[0].text.len(), TEXT_BYTES_MAX);
        assert!(teller.due().is_none(), "not again at once");
        teller.connected();
        assert_eq!(notes(teller.due()), said);
        teller.say(7, Ok("it is in force"));
        let said = notes(teller.due());
        assert_eq!((said.len(), said[0].severity), (1, Severity::Info), "the last word counts");
    }

    #[test]
    fn what_is_said_is_bounded_in_length_and_in_time() {
        let mut teller = Teller::new(Label::new("h1").unwrap());
        (0..1000).for_each(|version| teller.say(version, Ok("in force")));
        let said = notes(teller.due());
        assert_eq!((said.len(), said.last().unwrap().policy.as_str()), (ORDERS_MAX, "order v999"));
        for _ in AGAIN {
            assert!(teller.due.is_some());
            teller.due = Some(Instant::now());
            notes(teller.due());
        }
        assert!(teller.due.is_none(), "it ends");
    }

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
