//! With linear consistency: the door for people's changes while too much waits for one actuator. What hosts tell is taken on; what the
//! order has is carried out.

use crate::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_model::event::EventBody;

/// What waits, in the words of [`Error::Overloaded`].
const WHAT: &str = "older updates (consistency is 'linear', and one update is not in force: 'weir status' names what holds the line)";

/// See the module.
#[derive(Debug)]
pub(super) struct LineDoor {
    is_long: AtomicBool,
    limit: usize,
}

impl LineDoor {
    /// For a line with so many older updates at most.
    pub fn new(older_max: usize) -> LineDoor {
        LineDoor { is_long: AtomicBool::new(false), limit: older_max / 2 }
    }

    /// Whether the line is long now.
    pub fn set(&self, is_long: bool) {
        self.is_long.store(is_long, Ordering::Relaxed);
    }

    /// Lets an event in.
    ///
    /// # Errors
    /// [`Error::Overloaded`]: it changes resources, and the line is long.
    pub fn admit(&self, body: &EventBody) -> Result<(), Error> {
        match changes_resources(body) && self.is_long.load(Ordering::Relaxed) {
            true => Err(Error::Overloaded { what: WHAT, limit: self.limit }),
            false => Ok(()),
        }
    }
}

fn changes_resources(body: &EventBody) -> bool {
    match body {
        EventBody::Intent(_) | EventBody::Apply(_) => true,
        EventBody::Said(said) => changes_resources(&said.event.body),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::event::Transaction;

    #[test]
    fn a_long_line_takes_no_changes_of_people_and_lets_hosts_go() {
        let door = LineDoor::new(10);
        let change = EventBody::Intent(Transaction::default());
        let forget = EventBody::Removed { actuator: weir_model::Label::new("h2").unwrap() };
        assert!(door.admit(&change).is_ok());
        door.set(true);
        let error = door.admit(&change).unwrap_err().to_string();
        assert!(error.starts_with("overloaded: 5 older updates") && error.contains("weir status"), "{error}");
        assert!(door.admit(&forget).is_ok());
        door.set(false);
        assert!(door.admit(&change).is_ok());
    }
}
