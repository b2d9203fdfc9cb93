//! A bounded cache of answers, apart for each network and for the outside, so that no tenant's
//! questions push another's answers out or show through it.

use super::directory::{Answer, Question};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{RData, Record};
use std::collections::{HashMap, VecDeque};
use weir_model::entry::Vni;

/// Most answers kept for one scope.
pub const ANSWERS_MAX: usize = 1024;
/// Most scopes.
pub const SCOPES_MAX: usize = 1024;
/// Longest time that an answer is kept, seconds.
pub const TTL_MAX_S: u32 = 60;
/// Longest time that a negative answer is kept, seconds.
pub const TTL_NEGATIVE_MAX_S: u32 = 10;
/// Most records of an answer that is kept.
pub const RECORDS_MAX: usize = 64;

/// Whose answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// About the names of a network.
    Network(Vni),
    /// About the world's names.
    Outside,
}

#[derive(Clone, Debug)]
struct Kept {
    answer: Answer,
    since_ms: u64,
    until_ms: u64,
}

#[derive(Debug, Default)]
struct Answers {
    kept: HashMap<Question, Kept>,
    /// In the order of coming; the oldest goes first.
    order: VecDeque<Question>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Cache {
    scopes: HashMap<Scope, Answers>,
    order: VecDeque<Scope>,
}

/// How long an answer may be kept, seconds; zero means not at all.
fn keep_s(answer: &Answer) -> u32 {
    if answer.records.len() + answer.authority.len() > RECORDS_MAX {
        return 0;
    }
    let negative = answer.records.is_empty();
    let lowest = |records: &[Record]| records.iter().map(|record| record.ttl).min();
    match answer.code {
        ResponseCode::NoError if !negative => lowest(&answer.records).unwrap_or(0).min(TTL_MAX_S),
        ResponseCode::NoError | ResponseCode::NXDomain => {
            let soa = answer.authority.iter().find_map(|record| match &record.data {
                RData::SOA(soa) => Some(soa.minimum.min(record.ttl)),
                _ => None,
            });
            soa.unwrap_or(1).min(TTL_NEGATIVE_MAX_S)
        }
        _ => 0,
    }
}

impl Cache {
    /// A kept answer, its records' times shortened by its age.
    pub fn get(&mut self, scope: Scope, question: &Question, now_ms: u64) -> Option<Answer> {
        let kept = self.scopes.get(&scope)?.kept.get(question)?;
        if now_ms >= kept.until_ms {
            return None;
        }
        let age_s = ((now_ms - kept.since_ms) / 1000) as u32;
        let mut answer = kept.answer.clone();
        for record in answer.records.iter_mut().chain(&mut answer.authority) {
            record.ttl = record.ttl.saturating_sub(age_s);
        }
        Some(answer)
    }

    /// Keeps an answer if it may be kept.
    pub fn put(&mut self, scope: Scope, question: &Question, answer: &Answer, now_ms: u64) {
        let keep_s = keep_s(answer);
        if keep_s == 0 {
            return;
        }
        if !self.scopes.contains_key(&scope) {
            if self.scopes.len() >= SCOPES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.scopes.remove(&oldest);
            }
            self.order.push_back(scope);
        }
        let answers = self.scopes.entry(scope).or_default();
        let kept =
            Kept { answer: answer.clone(), since_ms: now_ms, until_ms: now_ms + u64::from(keep_s) * 1000 };
        if answers.kept.insert(question.clone(), kept).is_none() {
            answers.order.push_back(question.clone());
            if answers.kept.len() > ANSWERS_MAX
                && let Some(oldest) = answers.order.pop_front()
            {
                answers.kept.remove(&oldest);
            }
        }
    }

    /// Number of answers kept.
    pub fn len(&self) -> usize {
        self.scopes.values().map(|answers| answers.kept.len()).sum()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
