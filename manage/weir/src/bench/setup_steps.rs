//! The steps of changes that controllers and hosts count, and RoSCo's beside them.
//!
//! What RoSCo calls quorum is what a switch waits from the
//! first update of a batch until enough controllers vouch for it: the host that asks counts it, in every way of signing. The time in which
//! controllers put a signature together before they send anything is a step of its own.

use crate::failure::Failure;
use std::collections::BTreeMap;
use weir_api::client::Client;

/// What RoSCo took for a step, milliseconds (Lembke, Table 2.3), and its name there.
const ROSCO: [(&str, &str, Option<f64>); 5] = [
    ("order", "agreement", Some(9.78)),
    ("decide", "processing", Some(1.36)),
    // There no update has a signature of the group's.
    ("sign", "signature-at-controllers", None),
    (QUORUM, "quorum-at-switch", Some(0.28)),
    ("ack", "acknowledgement", Some(5.50)),
];
/// The step that hosts count.
const QUORUM: &str = "quorum";
/// Response, acknowledgement less processing: what it calls its overhead.
const ROSCO_RESPONSE_MS: f64 = 11.42;
const ROSCO_OVERHEAD_MS: f64 = 15.56;

/// How often each step was made, and the time of all together, microseconds.
#[derive(Clone, Debug, Default)]
pub struct Steps(BTreeMap<String, (f64, f64)>);

impl Steps {
    /// What controllers have counted together, and a host, whose metrics are this text.
    ///
    /// # Errors
    /// [`Failure`]: one does not answer.
    pub fn read(controllers: &[Client], host: &str) -> Result<Steps, Failure> {
        let mut steps = Steps::default();
        for controller in controllers {
            let text = controller.metrics()?;
            for (step, _, _) in ROSCO.iter().filter(|(step, _, _)| *step != QUORUM) {
                let labels = format!("{{step=\"{step}\"}}");
                steps.add(step, &text, "weir_controller_step_seconds", &labels)?;
            }
        }
        steps.add(QUORUM, host, "weir_agent_quorum_seconds", "")?;
        Ok(steps)
    }

    fn add(&mut self, step: &str, text: &str, name: &str, labels: &str) -> Result<(), Failure> {
        let value = |part: &str| {
            let name = format!("{name}_{part}{labels} ");
            text.lines().find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok())
        };
        let (Some(count), Some(seconds)) = (value("count"), value("sum")) else {
            return Err(Failure::Input(format!(
                "nobody counts the step '{step}': there is no {name}{labels}"
            )));
        };
        let of = self.0.entry(step.to_string()).or_default();
        *of = (of.0 + count, of.1 + seconds);
        Ok(())
    }

    /// What came since.
    pub fn since(&self, before: &Steps) -> Steps {
        let less = |(step, now): (&String, &(f64, f64))| {
            let old = before.0.get(step).copied().unwrap_or_default();
            (step.clone(), (now.0 - old.0, now.1 - old.1))
        };
        Steps(self.0.iter().map(less).collect())
    }

    /// Mean time of a step, milliseconds; nothing if it was not made.
    fn mean_ms(&self, step: &str) -> Option<f64> {
        let (count, seconds) = self.0.get(step).copied()?;
        (count > 0.0).then(|| seconds / count * 1_000.0)
    }
}

/// Prints the steps of a group beside RoSCo's, which are the paper's figures on its machines.
/// Where switches need no signature of the group before they act, there is no time for it.
pub fn report_steps(word: &str, waits_for_signature: bool, response_ms: f64, steps: &Steps) {
    let print = |metric: &str, own: f64, paper: Option<f64>| match paper {
        Some(paper) => say!(
            "RESULT setup {metric}-{word} weir={own:.2}ms rosco-paper={paper:.2}ms ratio={:.2}",
            own / paper
        ),
        None => say!("RESULT setup {metric}-{word} weir={own:.2}ms"),
    };
    print("step-response", response_ms, Some(ROSCO_RESPONSE_MS));
    for (step, theirs, paper) in ROSCO {
        let counts = step != "sign" || waits_for_signature;
        if let Some(own) = steps.mean_ms(step).filter(|_| counts) {
            print(&format!("step-{theirs}"), own, paper);
        }
    }
    if let (Some(ack), Some(decide)) = (steps.mean_ms("ack"), steps.mean_ms("decide")) {
        print("step-overhead", response_ms + ack - decide, Some(ROSCO_OVERHEAD_MS));
    }
}
