//! What a session counts.

/// What the machine has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Attempts to connect.
    pub connects: u64,
    /// Streams that ended or did not come about.
    pub closes: u64,
    /// Streams ended because the controller broke the protocol.
    pub protocol_errors: u64,
    /// Acks without a session.
    pub dropped_acks: u64,
    /// Events of the switch without a session.
    pub dropped_events: u64,
    /// Answers that nobody waits for.
    pub dropped_answers: u64,
    /// Questions refused because too many are open.
    pub questions_refused: u64,
    /// Questions that were not answered in time.
    pub questions_expired: u64,
    /// Connections to the switch ended because it did not tell its state.
    pub switch_resets: u64,
    /// Frames of updates, shares and endorsements that were forged.
    pub forgeries: u64,
    /// Streams ended because of what came on them: forgeries, and what is no frame.
    pub bad_conduct: u64,
    /// Requests for the whole state that wait for their time.
    pub states_delayed: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.connects += other.connects;
        self.closes += other.closes;
        self.protocol_errors += other.protocol_errors;
        self.dropped_acks += other.dropped_acks;
        self.dropped_events += other.dropped_events;
        self.dropped_answers += other.dropped_answers;
        self.questions_refused += other.questions_refused;
        self.questions_expired += other.questions_expired;
        self.switch_resets += other.switch_resets;
        self.forgeries += other.forgeries;
        self.bad_conduct += other.bad_conduct;
        self.states_delayed += other.states_delayed;
    }
}
