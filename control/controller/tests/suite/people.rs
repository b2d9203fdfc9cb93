//! A controller whose settings name operators: it says so in the order, takes what they sign and nothing else of theirs, and is the
//! same after a restart, whatever its settings say then. What was ordered before stays.

use super::app::{ENDPOINTS, TestApp, endpoint, label, transaction};
use super::recovery::{open, runtime, settings};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_base::codec::encode;
use weir_base::world::{Disk, SimDisk};
use weir_controller::Error;
use weir_controller::core::admission::Unauthentic;
use weir_controller::driver::{Controller, ControllerHandle};
use weir_model::Version;
use weir_model::event::{Event, EventBody, SourceId};
use weir_model::operator::{Founders, OperatorFacts, OperatorRole};
use weir_model::said::Said;
use weir_trust::identity::KeyPair;
use weir_trust::said::sign_said;

const BOUND: Duration = Duration::from_secs(60);

fn anna() -> KeyPair {
    KeyPair::from_seed(&[101; 32])
}

fn founders() -> Founders {
    [(label("anna"), OperatorFacts { role: OperatorRole::Admin, keys: vec![anna().public()] })].into()
}

fn put(endpoint_name: &str) -> EventBody {
    EventBody::Intent(transaction(vec![endpoint("n1", endpoint_name, "h1")]))
}

fn asks(key: &KeyPair, number: u64, body: EventBody) -> Said {
    let made_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let source = SourceId::of_operator(&label("anna"));
    let event = Event { source, sequence: Said::number_at(made_ms) + number, body };
    sign_said(key, &label("d"), event, (made_ms, made_ms + 60_000))
}

fn has(handle: &ControllerHandle, name: &str) -> bool {
    handle.store().get(ENDPOINTS, &encode(&(label("n1"), label(name)))).is_some()
}

fn why(result: Result<Version, Error>) -> Unauthentic {
    match result {
        Err(Error::Unauthentic { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn settings_that_name_operators_put_the_rule_in_force_and_leave_an_old_log_as_it_was() {
    let runtime = runtime();
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let opened = |founders: Founders| -> Controller {
        let mut settings = settings();
        settings.operators = founders;
        open(&disk, &settings, Arc::new(TestApp)).unwrap()
    };
    let controller = opened(Founders::new());
    runtime.block_on(controller.handle().submit_own(put("e1"), None)).unwrap();
    controller.shutdown();

    let controller = opened(founders());
    let handle = controller.handle();
    assert!(has(&handle, "e1"));
    // Whether the order has it by now or not, nothing of an operator is taken by the controller's own word.
    assert_eq!(why(runtime.block_on(handle.submit_own(put("e2"), None))), Unauthentic::Unsigned);
    let until = Instant::now() + BOUND;
    while !handle.published().operators.in_force() {
        assert!(Instant::now() < until, "the controller does not say who the operators are");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!handle.awaits_operators() && handle.must_be_signed(&put("e2")));
    let version = handle.store().version();
    assert_eq!(why(runtime.block_on(handle.submit_own(put("e2"), None))), Unauthentic::Unsigned);
    assert_eq!(handle.store().version(), version, "it took no place in the order");
    assert_eq!(why(runtime.block_on(handle.betray(put("e2")))), Unauthentic::Unsigned);
    let said = asks(&anna(), 1, put("e3"));
    let decided = runtime.block_on(handle.submit_said(said.clone())).unwrap();
    assert_eq!(runtime.block_on(handle.submit_said(said.clone())).unwrap(), decided, "it is decided once");
    let again = EventBody::Said(Box::new(said));
    assert_eq!(runtime.block_on(handle.betray(again)).unwrap(), decided, "however it comes");
    let forged = asks(&KeyPair::from_seed(&[66; 32]), 2, put("e4"));
    assert_eq!(why(runtime.block_on(handle.submit_said(forged))), Unauthentic::Forged);
    assert!(handle.metrics_text().contains("weir_controller_operators 1\n"));
    let digest = handle.store().digest();
    controller.shutdown();

    // The order has it; settings that name nobody, or somebody else, change nothing.
    let other =
        OperatorFacts { role: OperatorRole::Admin, keys: vec![KeyPair::from_seed(&[66; 32]).public()] };
    for named in [Founders::new(), [(label("eve"), other)].into()] {
        let controller = opened(named);
        let handle = controller.handle();
        assert_eq!(handle.store().digest(), digest);
        assert!(handle.published().operators.in_force() && !handle.awaits_operators());
        assert_eq!(why(runtime.block_on(handle.submit_own(put("e2"), None))), Unauthentic::Unsigned);
        assert_eq!(handle.published().operators.rows().count(), 1);
        let names = ["e1", "e2", "e3", "e4"].map(|name| has(&handle, name));
        assert_eq!(names, [true, false, true, false]);
        controller.shutdown();
    }
}
