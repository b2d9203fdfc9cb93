//! Ordered time: what a group stamps on the entries of its order, led by the clocks of a majority and of nobody alone.
//!
//! Lives of keys, leases and idle clients end by ordered time, so one wrong clock must neither end them all nor make them last
//! for ever. Each member keeps its own idea of ordered time with an [`OrderedTime`]: it runs on the member's monotonic clock, and is only
//! corrected by wall clocks. Members tell each other their wall clock and their idea of ordered time in a [`Reading`] each second.
//!
//! **Corrections.** The middle of the members' wall clocks, once a quorum of them is known, is compared with the own idea:
//! - A difference is made up for by running at most 1/[`SLEW`] faster or slower.
//! - A clock ahead by more than [`STEP_MS`] is followed at once when the difference has stood for [`STANDING_MS`]: the machines slept, or
//!   were set right. A clock that jumps to and fro never stands.
//! - Beyond [`ASK_MS`] nobody can tell a wrong clock from a long sleep. Ordered time goes on by monotonic time alone, and a person is asked:
//!   see [`State::Asks`].
//!
//! **Agreement.** Whose own idea is further than [`APART_MS`] from the middle of all ideas takes that: it slept, or was restarted.
//! With n members of which f lie and 2f+1 or more readings, the middle is never outside of what honest members say.
//!
//! **Set right.** Ordered time itself is never set: that would end lives or make them longer. An ordered correction only says by how much
//! wall time differs from it ([`OrderedTime::set_difference`]), so everything that has a life keeps what is left of it.
//!
//! A step machine: clocks come in as numbers, it reads none.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

/// Differences are made up for by one part in so many.
pub const SLEW: u64 = 16;
/// A clock that is further ahead is followed at once, when the difference stands.
pub const STEP_MS: i64 = 5_000;
/// For how long a difference must stand to be followed at once.
pub const STANDING_MS: u64 = 60_000;
/// A difference stands while it moves by no more than this.
pub const STEADY_MS: i64 = 1_000;
/// A larger difference is not followed: a person is asked.
pub const ASK_MS: i64 = 24 * 60 * 60 * 1_000;
/// Whose idea of ordered time is further from the middle of all takes the middle.
pub const APART_MS: i64 = 3_000;
/// How far a proposal's time may be ahead of a member's own idea.
pub const AHEAD_MS: u64 = 5_000;
/// A reading that is older does not count.
pub const READING_MS: u64 = 30_000;
/// A member that has just begun waits for so long for the readings of others.
pub const SETTLE_MS: u64 = 2_000;
/// Between two corrections.
const CORRECT_MS: u64 = 100;
/// Members whose readings are kept.
pub const MEMBERS_MAX: usize = 256;
/// Bytes of a [`Reading`].
pub const READING_BYTES: usize = 24;
/// Says that bytes are a reading; no other message between members begins so.
const MAGIC: [u8; 8] = *b"\xc1clock\x00\x01";

/// What a member tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Its wall clock, milliseconds of the Unix epoch.
    pub wall_ms: u64,
    /// Its idea of ordered time; 0: it has none yet.
    pub ordered_ms: u64,
}

impl Reading {
    /// Its bytes.
    pub fn encode(&self) -> [u8; READING_BYTES] {
        let mut bytes = [0; READING_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.wall_ms.to_le_bytes());
        bytes[16..].copy_from_slice(&self.ordered_ms.to_le_bytes());
        bytes
    }

    /// Reads one; `None`: the bytes are something else.
    pub fn decode(bytes: &[u8]) -> Option<Reading> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (wall, ordered) = (rest.get(..8)?.try_into().ok()?, rest.get(8..)?.try_into().ok()?);
        Some(Reading { wall_ms: u64::from_le_bytes(wall), ordered_ms: u64::from_le_bytes(ordered) })
    }
}

/// How ordered time and the clocks of a majority agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// They agree.
    Follows,
    /// They differ a little, and the difference is being made up for.
    Corrects,
    /// They differ by so much that a person must say what is right.
    Asks,
    /// The clocks of too few members are known.
    Alone,
}

/// What is known of the clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Ordered time; 0: none yet.
    pub ordered_ms: u64,
    /// What is taken for wall time.
    pub wall_ms: u64,
    /// By how much the majority's clocks are ahead of that, milliseconds; none while too few are known.
    pub majority_ms: Option<i64>,
    /// By how much each member's clock is ahead of it; the own with them.
    pub members_ms: BTreeMap<u64, i64>,
    /// How they agree.
    pub state: State,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    reading: Reading,
    at_ms: u64,
}

/// See the module. Times named `steady_ms` are of one monotonic clock.
#[derive(Clone, Debug)]
pub struct OrderedTime {
    own: u64,
    members: BTreeSet<u64>,
    quorum: usize,
    heard: BTreeMap<u64, Heard>,
    /// Ordered time at a moment.
    at: Option<(u64, u64)>,
    corrected_ms: u64,
    /// Since when enough readings are there, while the own idea is not certain.
    settling_since_ms: Option<u64>,
    certain: bool,
    /// A difference, and since when it stands.
    standing: Option<(i64, u64)>,
    difference_ms: i64,
    own_wall_ms: u64,
    /// When a difference was followed at once: the others do so at about the same time.
    stepped_ms: Option<u64>,
    steps: u64,
}

/// The lower middle: at most half of the values are below it, and with n = 3f+1 no f of them can push it beyond the others.
fn middle<T: Copy + Ord>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    values.get(values.len().checked_sub(1)? / 2).copied()
}

fn apart(a_ms: u64, b_ms: u64) -> i64 {
    i64::try_from(i128::from(a_ms) - i128::from(b_ms)).unwrap_or(if a_ms > b_ms {
        i64::MAX
    } else {
        i64::MIN
    })
}

impl OrderedTime {
    /// The idea of a member that is alone until it is told otherwise. `last_ms` is the ordered time that its state has; 0: nothing was
    /// ordered yet.
    pub fn new(own: u64, last_ms: u64, steady_ms: u64) -> OrderedTime {
        OrderedTime {
            own,
            members: BTreeSet::from([own]),
            quorum: 1,
            heard: BTreeMap::new(),
            at: (last_ms > 0).then_some((last_ms, steady_ms)),
            corrected_ms: steady_ms,
            settling_since_ms: None,
            certain: false,
            standing: None,
            difference_ms: 0,
            own_wall_ms: 0,
            stepped_ms: None,
            steps: 0,
        }
    }

    /// Who is in the group, and how many readings it takes to correct by them.
    pub fn set_members(&mut self, members: BTreeSet<u64>, quorum: usize) {
        self.heard.retain(|member, _| members.contains(member));
        (self.members, self.quorum) = (members, quorum.max(1));
    }

    /// Another member told its clock.
    pub fn heard(&mut self, from: u64, reading: Reading, steady_ms: u64) {
        let known = self.members.contains(&from) && from != self.own;
        if known && (self.heard.contains_key(&from) || self.heard.len() < MEMBERS_MAX) {
            self.heard.insert(from, Heard { reading, at_ms: steady_ms });
        }
    }

    /// The state has this ordered time. Who is not certain yet begins with it; who is does not let a proposer lead it on.
    pub fn decided(&mut self, last_ms: u64, steady_ms: u64) {
        let alone = self.members.len() <= 1;
        if (!self.certain || alone) && last_ms > self.ordered_ms(steady_ms) {
            self.at = Some((last_ms, steady_ms));
        }
    }

    /// By how much wall time is ahead of ordered time, as the order says.
    pub fn set_difference(&mut self, difference_ms: i64) {
        if self.difference_ms != difference_ms {
            self.difference_ms = difference_ms;
            self.standing = None;
        }
    }

    /// Ordered time at a moment; 0: none yet. It never goes back but to agree with a majority.
    pub fn ordered_ms(&self, steady_ms: u64) -> u64 {
        self.at.map_or(0, |(ordered_ms, at_ms)| ordered_ms.saturating_add(steady_ms.saturating_sub(at_ms)))
    }

    /// What is taken for wall time at a moment: what everything that people read should have.
    pub fn wall_ms(&self, steady_ms: u64) -> u64 {
        match self.at {
            Some(_) => self.ordered_ms(steady_ms).saturating_add_signed(self.difference_ms),
            None => self.own_wall_ms,
        }
    }

    /// What this member tells the others.
    pub fn reading(&self, wall_ms: u64, steady_ms: u64) -> Reading {
        Reading { wall_ms, ordered_ms: self.ordered_ms(steady_ms) }
    }

    /// Times that a difference was followed at once.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The latest time that a proposal may have, as far as this member knows.
    pub fn latest_ms(&self, steady_ms: u64) -> u64 {
        let own_ms = self.ordered_ms(steady_ms);
        if !self.certain {
            // It may be the one that is behind: it lets through what its clock or the others' ideas allow.
            let by_clock = self.own_wall_ms.saturating_add_signed(self.difference_ms.saturating_neg());
            let ideas = middle(self.ideas(steady_ms)).unwrap_or(0);
            return own_ms.max(by_clock).max(ideas).saturating_add(AHEAD_MS);
        }
        // Others may find a moment earlier that a difference has stood for long enough.
        let soon = match self.standing {
            Some((ahead_ms, since_ms)) if steady_ms.saturating_sub(since_ms) >= STANDING_MS / 2 => {
                u64::try_from(ahead_ms).unwrap_or(0)
            }
            _ => 0,
        };
        own_ms.saturating_add(soon).saturating_add(AHEAD_MS)
    }

    /// Whether a correction that says `wall_ms` at `ordered_ms` is what the clocks say.
    pub fn is_right(&self, wall_ms: u64, ordered_ms: u64, steady_ms: u64) -> bool {
        let clocks_ms = middle(self.clocks(steady_ms)).filter(|_| self.is_quorum(steady_ms));
        let near = |a_ms: u64, b_ms: u64| apart(a_ms, b_ms).unsigned_abs() <= AHEAD_MS;
        clocks_ms.is_some_and(|clocks_ms| near(wall_ms, clocks_ms))
            && near(ordered_ms, self.ordered_ms(steady_ms))
    }

    /// What the clocks of the members say, by a majority; none while too few are known.
    pub fn clocks_ms(&self, steady_ms: u64) -> Option<u64> {
        middle(self.clocks(steady_ms)).filter(|_| self.is_quorum(steady_ms))
    }

    fn fresh(&self, steady_ms: u64) -> impl Iterator<Item = (u64, Reading, u64)> {
        self.heard.iter().filter_map(move |(member, heard)| {
            let age_ms = steady_ms.saturating_sub(heard.at_ms);
            (age_ms <= READING_MS).then_some((*member, heard.reading, age_ms))
        })
    }

    fn clocks(&self, steady_ms: u64) -> Vec<u64> {
        let others = self.fresh(steady_ms).map(|(_, reading, age_ms)| reading.wall_ms.saturating_add(age_ms));
        let own = self.members.contains(&self.own).then_some(self.own_wall_ms);
        others.chain(own).collect()
    }

    /// Ideas of those who have one.
    fn ideas(&self, steady_ms: u64) -> Vec<u64> {
        let others = self.fresh(steady_ms).filter(|(_, reading, _)| reading.ordered_ms > 0);
        let others = others.map(|(_, reading, age_ms)| reading.ordered_ms.saturating_add(age_ms));
        let own = self.at.map(|_| self.ordered_ms(steady_ms)).filter(|_| self.members.contains(&self.own));
        others.chain(own).collect()
    }

    fn is_quorum(&self, steady_ms: u64) -> bool {
        self.clocks(steady_ms).len() >= self.quorum
    }

    /// Time passed: `own_wall_ms` is this machine's clock. To be called every few hundred milliseconds.
    pub fn tick(&mut self, own_wall_ms: u64, steady_ms: u64) {
        self.own_wall_ms = own_wall_ms;
        if !self.is_quorum(steady_ms) {
            (self.settling_since_ms, self.standing) = (None, None);
            self.corrected_ms = steady_ms;
            return;
        }
        if !self.certain {
            return self.settle(steady_ms);
        }
        let passed_ms = steady_ms.saturating_sub(self.corrected_ms);
        if passed_ms < CORRECT_MS {
            return;
        }
        self.corrected_ms = steady_ms;
        self.agree(steady_ms);
        self.correct(passed_ms, steady_ms);
    }

    /// Begins with the idea of the others, or with the clocks when nobody has one.
    fn settle(&mut self, steady_ms: u64) {
        let since_ms = *self.settling_since_ms.get_or_insert(steady_ms);
        let fresh = self.at.is_none() && self.ideas(steady_ms).is_empty();
        let waits = self.members.len() > 1 && !fresh && steady_ms.saturating_sub(since_ms) < SETTLE_MS;
        if waits {
            return;
        }
        let ideas = self.ideas(steady_ms);
        // Few ideas beside many who have none: a group that begins. Its ideas are what clocks said a moment ago.
        let begins = ideas.len() < self.quorum.min(self.members.len());
        let began = match begins {
            true => middle(self.clocks(steady_ms))
                .map(|clocks_ms| clocks_ms.saturating_add_signed(self.difference_ms.saturating_neg())),
            false => middle(ideas),
        };
        if let Some(ordered_ms) = began {
            self.at = Some((ordered_ms, steady_ms));
            (self.certain, self.corrected_ms) = (true, steady_ms);
        }
    }

    fn agree(&mut self, steady_ms: u64) {
        let ideas = self.ideas(steady_ms);
        let leads_on = self.stepped_ms.is_some_and(|at_ms| steady_ms.saturating_sub(at_ms) < STANDING_MS / 2);
        if ideas.len() < self.quorum || leads_on {
            return;
        }
        let Some(middle_ms) = middle(ideas) else { return };
        if apart(middle_ms, self.ordered_ms(steady_ms)).abs() > APART_MS {
            self.at = Some((middle_ms, steady_ms));
        }
    }

    /// By how much the clocks are ahead of what is taken for wall time.
    fn ahead_ms(&self, steady_ms: u64) -> Option<i64> {
        let clocks_ms = self.clocks_ms(steady_ms)?;
        Some(apart(clocks_ms, self.wall_ms(steady_ms)))
    }

    fn correct(&mut self, passed_ms: u64, steady_ms: u64) {
        let Some(ahead_ms) = self.ahead_ms(steady_ms) else { return };
        if ahead_ms.unsigned_abs() > ASK_MS.unsigned_abs() {
            self.standing = None;
            // Only with each other do members agree then.
            if let Some(middle_ms) = middle(self.ideas(steady_ms)) {
                self.slew(apart(middle_ms, self.ordered_ms(steady_ms)), passed_ms, steady_ms);
            }
            return;
        }
        if ahead_ms > STEP_MS {
            let (stood_ms, since_ms) = self.standing.unwrap_or((ahead_ms, steady_ms));
            // Slewing makes it smaller meanwhile.
            let slewed_ms = (steady_ms.saturating_sub(since_ms) / SLEW) as i64;
            let moved_ms = stood_ms.saturating_sub(ahead_ms);
            let stands = moved_ms >= -STEADY_MS && moved_ms <= slewed_ms + STEADY_MS;
            self.standing = Some(if stands { (stood_ms, since_ms) } else { (ahead_ms, steady_ms) });
            if stands && steady_ms.saturating_sub(since_ms) >= STANDING_MS {
                let now_ms = self.ordered_ms(steady_ms).saturating_add(ahead_ms.unsigned_abs());
                self.at = Some((now_ms, steady_ms));
                (self.standing, self.stepped_ms) = (None, Some(steady_ms));
                self.steps += 1;
                return;
            }
        } else {
            self.standing = None;
        }
        self.slew(ahead_ms, passed_ms, steady_ms);
    }

    fn slew(&mut self, ahead_ms: i64, passed_ms: u64, steady_ms: u64) {
        let most_ms = (passed_ms / SLEW) as i64;
        let by_ms = ahead_ms.clamp(-most_ms, most_ms);
        if by_ms != 0 {
            self.at = Some((self.ordered_ms(steady_ms).saturating_add_signed(by_ms), steady_ms));
        }
    }

    /// What is known of the clocks, for people.
    pub fn view(&self, steady_ms: u64) -> View {
        let wall_ms = self.wall_ms(steady_ms);
        let majority_ms = self.ahead_ms(steady_ms);
        let others = self.fresh(steady_ms);
        let others =
            others.map(|(id, reading, age)| (id, apart(reading.wall_ms.saturating_add(age), wall_ms)));
        let own = (self.own, apart(self.own_wall_ms, wall_ms));
        let state = match majority_ms {
            None => State::Alone,
            Some(ahead_ms) if ahead_ms.unsigned_abs() > ASK_MS.unsigned_abs() => State::Asks,
            Some(ahead_ms) if ahead_ms.abs() > STEADY_MS => State::Corrects,
            Some(_) => State::Follows,
        };
        View {
            ordered_ms: self.ordered_ms(steady_ms),
            wall_ms,
            majority_ms,
            members_ms: others.chain([own]).collect(),
            state,
        }
    }
}
