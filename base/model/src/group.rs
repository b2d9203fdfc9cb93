//! What controllers of a group say of each other, and hosts of controllers (row C5; the failure detector of row R6).
//!
//! A [`GroupWord`] is one controller's statement: ordered, and signed by it as every event. Alone it changes nothing but its own row. What
//! follows from enough of them is decided by every member for itself, from the rows and the members of the group alone
//! (`weir_controller::core::group`), so all come to the same. Its age is ordered time, and not what it says.
//!
//! A [`ConductReport`] is one host's statement that it ended the session of a controller for what came on it. It is shown, and kept in the
//! audit with the host's signature. Nothing follows from it: hosts are not bounded as liars are, any of them may say this of anybody.

use crate::Label;
use serde::{Deserialize, Serialize};

/// Controllers and spares of which one controller may say something.
pub const SUBJECTS_MAX: usize = 32;
/// Spares that one controller may name.
pub const SPARES_MAX: usize = 4;
/// Bytes of where a spare is, as the members' list has it.
pub const SPARE_ADDRESS_BYTES_MAX: usize = 512;
/// Bytes of a proof.
pub const PROOF_BYTES_MAX: usize = 16 << 10;
/// Members that are said to have suspected another one.
pub const WHO_MAX: usize = 16;
/// The longest wait between a suspicion and what follows from it, milliseconds: thirty days.
pub const AFTER_MAX_MS: u64 = 30 * 86_400_000;
/// Bytes of a controller's address in a report.
pub const CONTROLLER_BYTES_MAX: usize = 256;
/// A host reports a controller once in so long, milliseconds; what comes before is not taken.
pub const CONDUCT_EACH_MS: u64 = 30_000;
/// Name of the source, below a host's own, under which its agent reports. It is none of a plane.
pub const AGENT: &str = "agent";

/// Nobody says this: a place among the bodies of events that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Never {}

/// One controller's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupWord {
    /// It has not heard of another one. Said again, it goes on as it began.
    Suspects {
        /// Number of the other.
        member: u64,
        /// For how long it wants that to last before the other is replaced, milliseconds; 0: for ever.
        after_ms: u64,
    },
    /// It hears of it again.
    Trusts {
        /// Number of the other.
        member: u64,
    },
    /// It has checked a proof that another one lied.
    Convicts {
        /// Number of the other.
        member: u64,
        /// The key that signed the lie.
        key: [u8; 32],
        /// The proof: who reads it checks it, and believes nobody. Empty: it is in the order already.
        proof: Vec<u8>,
    },
    /// This controller is to be kept as a spare.
    Spare {
        /// Its number.
        id: u64,
        /// Its key, in a group of which some may lie.
        key: Option<[u8; 32]>,
        /// Where it is, as the members' list has it.
        address: String,
    },
    /// It is a spare no longer.
    NoSpare {
        /// Its number.
        id: u64,
    },
    /// A member was replaced by a spare, or removed, by what members said of it.
    Replaced(Replaced),
}

/// A member that was replaced or removed, by what members said of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Replaced {
    /// The member.
    pub out: u64,
    /// The spare in its place; none: there was none.
    pub by: Option<u64>,
    /// Number of the list of members that has it so: the epoch, in a group of which some may lie.
    pub number: u64,
    /// Why.
    pub because: Because,
    /// Who had said so, in order.
    pub who: Vec<u64>,
}

/// Why a member was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Because {
    /// As many as decide had not heard of it.
    Silent,
    /// It was proven to have lied.
    Lied,
}

impl Because {
    /// In a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Because::Silent => "silent",
            Because::Lied => "lied",
        }
    }
}

impl GroupWord {
    /// What is over a bound, and what would be right.
    pub fn problem(&self) -> Option<&'static str> {
        match self {
            GroupWord::Suspects { after_ms, .. } if *after_ms > AFTER_MAX_MS => {
                Some("a suspicion leads to something after 30 days at most")
            }
            GroupWord::Convicts { proof, .. } if proof.len() > PROOF_BYTES_MAX => {
                Some("a proof has 16384 bytes at most")
            }
            GroupWord::Spare { address, .. }
                if address.is_empty() || address.len() > SPARE_ADDRESS_BYTES_MAX =>
            {
                Some("a spare's address has 1 to 512 bytes")
            }
            GroupWord::Replaced(Replaced { who, .. })
                if who.len() > WHO_MAX || !who.is_sorted_by(|a, b| a < b) =>
            {
                Some("at most 16 members suspected it, each named once and in order")
            }
            _ => None,
        }
    }
}

/// A host ended the session of a controller for what came on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConductReport {
    /// The host or gateway.
    pub actuator: Label,
    /// Where it has its session with the controller: this is how it knows it. At most [`CONTROLLER_BYTES_MAX`] bytes.
    pub controller: String,
    /// What came.
    pub what: BadConduct,
    /// Sessions that it ended so, since its agent started.
    pub ended: u64,
    /// Forgeries of it that were counted, since its agent started.
    pub forgeries: u64,
}

/// What came on a session that a host ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BadConduct {
    /// Forged updates, or forged shares or endorsements, again and again.
    Forgeries,
    /// What is no frame.
    Garbage,
}

impl BadConduct {
    /// In words, behind "sent".
    pub fn as_str(self) -> &'static str {
        match self {
            BadConduct::Forgeries => "forged updates or signatures",
            BadConduct::Garbage => "what is no frame",
        }
    }
}

impl ConductReport {
    /// What is over a bound, and what would be right.
    pub fn problem(&self) -> Option<&'static str> {
        let length = self.controller.len();
        if length == 0 || length > CONTROLLER_BYTES_MAX || self.controller.chars().any(char::is_control) {
            return Some("a controller's address has 1 to 256 bytes, and none of control");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_reports_over_their_bounds_are_told() {
        let spare = |address: &str| GroupWord::Spare { id: 5, key: None, address: address.to_owned() };
        assert_eq!(spare("192.0.2.5:1").problem(), None);
        assert!(spare("").problem().is_some() && spare(&"a".repeat(513)).problem().is_some());
        let convicts = |bytes| GroupWord::Convicts { member: 1, key: [0; 32], proof: vec![0; bytes] };
        assert!(
            convicts(PROOF_BYTES_MAX).problem().is_none()
                && convicts(PROOF_BYTES_MAX + 1).problem().is_some()
        );
        let suspects = |after_ms| GroupWord::Suspects { member: 1, after_ms };
        assert!(suspects(AFTER_MAX_MS).problem().is_none() && suspects(AFTER_MAX_MS + 1).problem().is_some());
        let replaced = |who: &[u64]| {
            let (by, because) = (Some(5), Because::Silent);
            GroupWord::Replaced(Replaced { out: 4, by, number: 2, because, who: who.to_vec() })
        };
        assert!(replaced(&[1, 2, 3]).problem().is_none());
        assert!(replaced(&[1, 1]).problem().is_some() && replaced(&[2, 1]).problem().is_some());
        let report = |controller: &str| ConductReport {
            actuator: Label::new("h1").unwrap(),
            controller: controller.to_owned(),
            what: BadConduct::Forgeries,
            ended: 1,
            forgeries: 17,
        };
        assert!(report("192.0.2.1:7444").problem().is_none());
        assert!(report("").problem().is_some() && report("a\nb").problem().is_some());
    }
}
