//! Queries: what a person wants to know of the stream of events, declared before it comes (Bohra, 3.4.3; row O).
//!
//! ```text
//! on-demand processes = living();
//! on-demand shells    = frequency(exec.comm, "sh");
//! every 1s  forkers when rate(fork, 1s) > 200 = top(5, fork.parent);
//! once      storm = rate(fork, 100ms) > 2000;
//! every 5s  web = slope("web", "requests", 10s);
//! ```
//!
//! - `on-demand`: has a value whenever it is asked for.
//! - `once`: is evaluated each period until its condition holds; then it fires, into the audit log, and never again.
//! - `every D`: is evaluated each D; with `when` it fires each time that holds.
//!
//! [`parse`] reads, [`check`] gives types and memory, [`run`] evaluates. Queries are checked when they are loaded: unknown
//! names, wrong types, and memory or numbers over the limits refuse the start. Afterwards no query allocates, and the cost
//! of an event is at most one update a stream's summary.

mod check;
mod parse;
mod run;

pub use run::{Answer, Queries, Value};

use crate::error::{Error, Result};
use check::Code;
use std::path::Path;

/// Most queries.
pub const QUERIES_MAX: usize = 64;
/// Longest text, bytes.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Deepest nesting of an expression.
pub const DEPTH_MAX: usize = 24;
/// Most parts of one query.
pub const PARTS_MAX: usize = 256;
/// Most memory of the summaries of all queries, bytes.
pub const BYTES_MAX: usize = 4 << 20;
/// Shortest and longest window, ns.
pub const WINDOW_NS: std::ops::RangeInclusive<u64> = 10_000_000..=3_600_000_000_000;

/// When a query is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// When it is asked for.
    OnDemand,
    /// Until it fires.
    Once,
    /// Each so many nanoseconds.
    Every(u64),
}

impl When {
    /// As in a file.
    pub fn name(self) -> &'static str {
        match self {
            When::OnDemand => "on-demand",
            When::Once => "once",
            When::Every(_) => "every",
        }
    }
}

/// A checked query.
#[derive(Clone, Debug)]
pub struct Query {
    /// Its name.
    pub name: String,
    /// When it is evaluated.
    pub when: When,
    condition: Option<Code>,
    value: Code,
}

impl Query {
    /// Memory that its summaries take, bytes.
    pub fn bytes(&self) -> usize {
        self.value.bytes() + self.condition.as_ref().map_or(0, Code::bytes)
    }

    /// The sensors that it reads: boxes and names.
    pub fn sensors(&self) -> impl Iterator<Item = (&str, &str)> {
        self.condition.iter().chain([&self.value]).flat_map(Code::sensors)
    }
}

/// Reads and checks queries from a file.
///
/// # Errors
/// [`Error::File`] with the place and what is wrong; [`Error::Io`].
pub fn load(path: &Path) -> Result<Vec<Query>> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::io(path.display().to_string(), error))?;
    compile(&text).map_err(|error| Error::File { path: path.to_path_buf(), reason: located(&text, &error) })
}

/// An error with line and column in place of the byte.
fn located(text: &str, error: &Error) -> String {
    let Error::Query { at, reason } = error else { return error.to_string() };
    let before = text.get(..*at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.len() - before.rfind('\n').map_or(0, |newline| newline + 1) + 1;
    format!("line {line}, column {column}: {reason}")
}

/// Reads and checks queries.
///
/// # Errors
/// [`Error::Query`].
pub fn compile(text: &str) -> Result<Vec<Query>> {
    if text.len() > TEXT_BYTES_MAX {
        let reason = format!("{} bytes of text are over the limit of {TEXT_BYTES_MAX}", text.len());
        return Err(Error::Query { at: TEXT_BYTES_MAX, reason });
    }
    let statements = parse::parse(text)?;
    let mut queries: Vec<Query> = Vec::new();
    let mut bytes = 0;
    for statement in statements {
        let wrong = |reason: String| Error::Query { at: statement.at, reason };
        if queries.iter().any(|query| query.name == statement.name) {
            return Err(wrong(format!("there are two queries named '{}'", statement.name)));
        }
        if queries.len() == QUERIES_MAX {
            return Err(wrong(format!("more than {QUERIES_MAX} queries")));
        }
        let query = check::check(&statement)?;
        bytes += query.bytes();
        if bytes > BYTES_MAX {
            return Err(wrong(format!(
                "the summaries up to this query take {bytes} bytes, allowed are {BYTES_MAX}"
            )));
        }
        queries.push(query);
    }
    Ok(queries)
}

#[cfg(test)]
mod tests;
