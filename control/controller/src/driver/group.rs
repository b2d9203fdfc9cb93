//! What a controller says of the others of its group, and reads of what they said ([`crate::core::group`]).
//!
//! Where one leads, only that one orders: the others hand it their words, signed.

use super::handle::ControllerHandle;
use crate::Error;
use crate::core::group::Words;
use weir_model::event::{EventBody, SignedEvent};
use weir_model::group::GroupWord;

impl ControllerHandle {
    /// What the controllers of the group have said of each other.
    pub fn group_words(&self) -> Words {
        Words::of_store(&self.published().store)
    }

    /// A word of this controller, under its next number and signed.
    ///
    /// # Errors
    /// The numbers' file cannot be written.
    pub fn group_word(&self, word: GroupWord) -> Result<SignedEvent, Error> {
        self.shared.own_event(EventBody::Group(Box::new(word)), None)
    }

    /// Orders a word of a controller, where this one orders; else nothing. What is not its author's is dropped and counted.
    pub fn take_group_word(&self, event: SignedEvent) {
        let may = self.leads() || self.orders_everywhere();
        if may && matches!(event.event.body, EventBody::Group(_)) {
            self.shared.intake(event);
        }
    }
}
