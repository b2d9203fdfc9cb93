//! Ending the order of a controller that is alone, so that it goes on as the first member of a group.
//!
//! The door is closed first, and what came in before is decided and answered; then the last entry is ordered. So nobody is left without an answer
//! but who comes while a proposal is stuck: it hears nothing, and asks again.

use super::ControllerHandle;
use crate::Error;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weir_model::Version;
use weir_model::conversion::{Conversion, GroupOrder};
use weir_model::event::EventBody;

/// How long what came in before is waited for.
const DRAIN_BOUND: Duration = Duration::from_millis(500);
/// How often it is looked.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

impl ControllerHandle {
    /// Orders the last entry of this order. When it is decided, the controller has nothing more to do: it is shut down, and opening it again gives
    /// [`Error::Ended`].
    ///
    /// # Errors
    /// As [`ControllerHandle::propose`]; [`Error::Converts`]: it is under way.
    pub async fn convert(&self, conversion: Conversion, subject: Option<String>) -> Result<Version, Error> {
        if self.shared.converts.swap(true, Ordering::SeqCst) {
            return Err(Error::Converts);
        }
        let until = Instant::now() + DRAIN_BOUND;
        while self.shared.open_proposals() + self.shared.operations.open() > 0 && Instant::now() < until {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
        let ordered = async {
            let event = self.shared.own_event(EventBody::Converted(Box::new(conversion)), subject)?;
            self.shared.propose_last(event)?.await.map_err(|_| Error::Stopped)?
        };
        let ordered = ordered.await;
        let stays = match &ordered {
            Ok(_) | Err(Error::Stopped) => false,
            Err(Error::Order(error)) => error.is_definite(),
            Err(_) => true,
        };
        if stays {
            self.shared.converts.store(false, Ordering::SeqCst);
        }
        ordered
    }

    /// Orders that this order goes on, where it has ended: nothing was ordered by the group.
    ///
    /// # Errors
    /// As [`ControllerHandle::propose`].
    pub async fn take_back(&self) -> Result<(), Error> {
        if !self.published().ended {
            return Ok(());
        }
        let nothing = Conversion { order: GroupOrder::Alone, member: 0, listen: String::new(), wide: false };
        let event = self.shared.own_event(EventBody::Converted(Box::new(nothing)), None)?;
        self.shared.propose(event)?.await.map_err(|_| Error::Stopped)?.map(drop)
    }

    /// Returns when the order has ended.
    pub async fn has_ended(&self) {
        let mut versions = self.versions();
        while !self.published().ended {
            if versions.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Whether the domain had an order of another kind before.
    pub fn is_converted(&self) -> bool {
        self.shared.is_converted()
    }
}
