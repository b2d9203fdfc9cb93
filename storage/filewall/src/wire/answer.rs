//! Answers to calls that are not forwarded (row F: "every filtered call gets an answer").

use super::nfs3::{Op, Status};
use super::reply::{Failure, shape};
use super::rpc::put_success;
use super::xdr::put_u32;

/// Appends a record that answers call `xid` of `op` with `status` and no attributes, in the shape that a client
/// expects of that operation. NULL has no status: it is answered with success.
pub fn put(out: &mut Vec<u8>, xid: u32, op: Op, status: Status) {
    let results = results(op, status);
    put_success(out, xid, results.len());
    out.extend_from_slice(&results);
}

/// The results of such a record.
pub fn results(op: Op, status: Status) -> Vec<u8> {
    if op == Op::Null {
        return Vec::new();
    }
    let absent_words = match shape(op) {
        Failure::Nothing => 0,
        Failure::After => 1,
        Failure::Change => 2,
        Failure::AfterAndChange => 3,
        Failure::TwoChanges => 4,
    };
    let mut out = Vec::with_capacity(4 + 4 * absent_words);
    put_u32(&mut out, status.number());
    out.resize(4 + 4 * absent_words, 0);
    out
}
