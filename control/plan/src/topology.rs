//! Networks from text: one line a link, `name name [capacity in kbit/s]`; `#` begins a comment. Names have
//! no spaces. Links carry both ways.

use crate::network::{Network, Switch};
use std::collections::BTreeMap;

/// Most links of a text.
pub const LINKS_MAX: usize = 100_000;

/// Why a text is no topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A line is not as it should be.
    #[error("line {line}: '{text}' is not 'switch switch [capacity in kbit/s]'")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What it says.
        text: String,
    },
    /// There are too many links.
    #[error("more than {LINKS_MAX} links")]
    TooManyLinks,
}

/// Reads a topology.
///
/// # Errors
/// [`TopologyError`].
pub fn parse(text: &str) -> Result<Network, TopologyError> {
    let mut network = Network::default();
    let mut known: BTreeMap<String, Switch> = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        if at >= LINKS_MAX {
            return Err(TopologyError::TooManyLinks);
        }
        let content = line.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let wrong = || TopologyError::Line { line: at + 1, text: line.to_string() };
        let words: Vec<&str> = content.split_whitespace().collect();
        let (one, other, capacity) = match words[..] {
            [one, other] => (one, other, None),
            [one, other, capacity] => (one, other, Some(capacity.parse().map_err(|_| wrong())?)),
            _ => return Err(wrong()),
        };
        if one == other {
            return Err(wrong());
        }
        let mut switch = |name: &str| match known.get(name) {
            Some(switch) => *switch,
            None => {
                let switch = network.add_switch(name);
                known.insert(name.to_string(), switch);
                switch
            }
        };
        let (one, other) = (switch(one), switch(other));
        network.add_link(one, other, capacity);
    }
    Ok(network)
}

#[cfg(test)]
mod tests;
