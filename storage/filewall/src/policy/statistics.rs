//! `kind: statistics`: counts calls and replies by client, user and operation (paper 4.4.1: `reqstats`, `rspstats`).
//!
//! The counters belong to the principal, so that `weir filewall top` shows them by client, user and role, and a reload of the
//! files does not reset them.

use super::{Context, Policy, Verdict};
use crate::message::{Asked, Call, Reply};
use crate::wire::nfs3::ALL_OPS;
use serde::Deserialize;

/// The file: it has no fields of its own.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatisticsFile {}

/// The policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics;

impl Policy for Statistics {
    fn kind(&self) -> &'static str {
        "statistics"
    }

    fn ops(&self) -> u32 {
        ALL_OPS
    }

    fn request(&self, call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        call.caller.usage.call(call.op());
        Verdict::Forward
    }

    fn reply(&self, asked: &Asked, reply: &mut Reply<'_>, latency_us: u64, _context: &Context<'_>) {
        asked.caller.usage.reply(asked.op, latency_us, u64::from(reply.results.count));
    }
}
