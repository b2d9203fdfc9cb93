//! How many bytes requests and replies have on the wire, as messages of `weir.store.v1`: without the batch
//! and the stream that carry them. For benches that compare forms of an application.

use crate::convert::{to_answer, to_operation, to_outcome, to_query};
use prost::Message as _;
use weir_store::{Answer, Operation, Outcome, Query};

/// Bytes of an operation and of what it led to.
pub fn of_operation(operation: &Operation, outcome: &Outcome) -> (usize, usize) {
    (to_operation(operation).encoded_len(), to_outcome(outcome.clone()).encoded_len())
}

/// Bytes of a query and of its answer.
pub fn of_query(query: &Query, answer: &Answer) -> (usize, usize) {
    (to_query(query).encoded_len(), to_answer(answer.clone()).encoded_len())
}
