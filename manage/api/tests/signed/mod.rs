//! Calls that are signed: what a client signs, and what it does not.

use super::serve;
use std::sync::Mutex;
use weir_api::client::{Client, ClientError};
use weir_api::operator::{OperatorKey, now_ms};
use weir_api::said::{Statement, WAITS, Word};
use weir_api::types::{ApiError, ApprovalResponse, NeedsRequest};
use weir_api::{Caller, TOKEN_CALLER};
use weir_model::Label;
use weir_model::approval::Approval;
use weir_model::event::{Event, EventBody, Said, SourceId};
use weir_trust::said::verify_said;

/// The requests that were taken.
static TAKEN: Mutex<Vec<Said>> = Mutex::new(Vec::new());

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn key() -> OperatorKey {
    OperatorKey { name: label("alice"), domain: label("lab"), seed: "07".repeat(32), agent: None }
}

fn statement(body: &EventBody) -> Statement {
    Statement::new(&label("lab"), "operator/alice".to_owned(), now_ms(), body)
}

/// A controller that wants it signed; of `liar` it makes something else, of `moves` something else at the first time.
pub fn remove(caller: &Caller, name: Label) -> Result<(), ApiError> {
    let body = EventBody::Removed { actuator: name.clone() };
    let evil = EventBody::Removed { actuator: label("another") };
    match &caller.word {
        Word::None => {
            assert_eq!(caller.subject, TOKEN_CALLER);
            if name.as_str() == "h1" { Ok(()) } else { Err(ApiError::unsigned("an operator must sign it")) }
        }
        Word::Prepare { operator } => {
            assert_eq!(operator.as_str(), "alice");
            Err(ApiError::to_sign(statement(if name.as_str() == "liar" { &evil } else { &body })))
        }
        Word::Signed(signed) => {
            let source = SourceId::of_operator(&signed.operator);
            let event = Event { source, sequence: signed.number, body: body.clone() };
            let (made_ms, until_ms, signature) = (signed.made_ms, signed.until_ms, signed.signature);
            let said = Said { event, made_ms, until_ms, signature };
            verify_said(&key().key().unwrap().public(), &label("lab"), &said).unwrap();
            let mut taken = TAKEN.lock().unwrap();
            if name.as_str() == "moves" && !taken.iter().any(|one| *one.body() == body) {
                taken.push(said);
                return Err(ApiError::sign_again("something has changed", statement(&body)));
            }
            if name.as_str() == "never" {
                return Err(ApiError::sign_again("something has changed", statement(&body)));
            }
            taken.push(said);
            Ok(())
        }
    }
}

/// A controller that has the approval of 7s signed as that of 9s.
pub fn approve(caller: &Caller, id: [u8; 32], approve: bool) -> Result<ApprovalResponse, ApiError> {
    let of = |id| match approve {
        true => EventBody::Approval(Box::new(Approval::Given(id))),
        false => EventBody::Approval(Box::new(Approval::Refused(id))),
    };
    match &caller.word {
        Word::None => Err(ApiError::unsigned("an operator must sign it")),
        Word::Prepare { .. } => {
            Err(ApiError::to_sign(statement(&of(if id == [7; 32] { [9; 32] } else { id }))))
        }
        Word::Signed(signed) => {
            let event = Event {
                source: SourceId::of_operator(&signed.operator),
                sequence: signed.number,
                body: of(id),
            };
            let (made_ms, until_ms, signature) = (signed.made_ms, signed.until_ms, signed.signature);
            let said = Said { event, made_ms, until_ms, signature };
            verify_said(&key().key().unwrap().public(), &label("lab"), &said).unwrap();
            Ok(ApprovalResponse { version: 5, done: approve, given: 2, needed: 2 })
        }
    }
}

#[test]
fn a_client_approves_the_request_that_it_names_and_no_other() {
    let (_runtime, context, _) = serve();
    let client = Client::new(weir_api::client::Context { operator: Some(key()), ..context }).unwrap();
    assert!(client.approve(&[8; 32], true).unwrap().done);
    assert!(!client.approve(&[8; 32], false).unwrap().done);
    let Err(ClientError::NotSigned(why)) = client.approve(&[7; 32], true) else { panic!("it was signed") };
    assert!(why.contains(&"09".repeat(32)) && why.contains("Nothing was signed"), "{why}");
    // What is ordered and waits is told as that.
    let needs = NeedsRequest { kinds: Vec::new(), wait_s: 60 };
    let Err(ClientError::Refused(error)) = client.need_approvals(&needs) else { panic!("it waits") };
    assert_eq!((error.status.as_u16(), error.problem.code.as_str()), (409, WAITS));
}

#[test]
fn a_client_signs_what_it_asked_and_nothing_else() {
    let (_runtime, context, _) = serve();
    let client = |operator| Client::new(weir_api::client::Context { operator, ..context.clone() }).unwrap();
    let removed = |name: &str| EventBody::Removed { actuator: label(name) };
    let of = |name: &str| TAKEN.lock().unwrap().iter().filter(|said| *said.body() == removed(name)).count();

    let unsigned = client(None);
    unsigned.remove_actuator("h1").unwrap();
    let Err(ClientError::Refused(error)) = unsigned.remove_actuator("h2") else {
        panic!("it must be signed")
    };
    assert_eq!((error.status.as_u16(), error.problem.code.as_str()), (403, "unsigned"));

    let signs = client(Some(key()));
    signs.remove_actuator("h2").unwrap();
    assert_eq!(of("h2"), 1);
    // The first signature is over what was so before.
    signs.remove_actuator("moves").unwrap();
    let numbers: Vec<u64> = TAKEN.lock().unwrap().iter().map(Said::number).collect();
    assert!(of("moves") == 2 && numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    // It does not go on for ever.
    let Err(ClientError::Refused(error)) = signs.remove_actuator("never") else {
        panic!("it cannot be done")
    };
    assert_eq!(error.problem.code, "sign-again");
    // A controller that has something else signed gets no signature.
    let Err(ClientError::NotSigned(why)) = signs.remove_actuator("liar") else { panic!("it was signed") };
    assert!(why.contains("the removal of 'another'") && why.contains("Nothing was signed"), "{why}");
    assert_eq!((of("liar"), of("another")), (0, 0));
    let other = client(Some(OperatorKey { domain: label("west"), ..key() }));
    let Err(ClientError::NotSigned(why)) = other.remove_actuator("h2") else { panic!("it was signed") };
    assert!(why.contains("domain 'west'") && of("h2") == 1, "{why}");
}
