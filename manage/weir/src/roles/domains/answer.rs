//! Answering controllers of other domains.

use super::{Domains, count, locked};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use weir_api::ApiError;
use weir_apps::fabric::domains as query;
use weir_base::codec::{decode, encode};
use weir_controller::core::OutboxPage;
use weir_controller::domains::is_behind;
use weir_model::Label;
use weir_model::domain::{Asked, Fetch};

/// Most questions that wait for something to tell.
pub const WAITING_MAX: usize = 512;
/// Most of one controller: one that was killed asks again while its last question still waits.
pub const WAITING_OF_ONE_MAX: usize = 4;
/// Longest wait of a question, milliseconds.
const WAIT_MAX_MS: u64 = 10_000;
/// Between two looks for a question that waits: what comes in between is told together.
const LOOK: Duration = Duration::from_millis(10);

/// A question that waits; its place is free again when this goes.
struct Place<'d> {
    domains: &'d Domains,
    of: (Label, u64),
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = locked(&self.domains.waiting);
        match waiting.get_mut(&self.of) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(waiting.remove(&self.of)),
        }
    }
}

impl Domains {
    fn place(&self, of: (Label, u64)) -> Result<Place<'_>, ApiError> {
        let mut waiting = locked(&self.waiting);
        let all = waiting.values().sum::<usize>();
        let own = waiting.entry(of.clone()).or_default();
        if all >= WAITING_MAX || *own >= WAITING_OF_ONE_MAX {
            if *own == 0 {
                waiting.remove(&of);
            }
            count(&self.counters.no_room);
            return Err(ApiError::overloaded(format!(
                "{all} questions of other domains wait here: at most {WAITING_MAX}, and {WAITING_OF_ONE_MAX} of one controller"
            )));
        }
        *own += 1;
        Ok(Place { domains: self, of })
    }

    async fn told(&self, fetch: &Fetch) -> Result<(OutboxPage, bool), ApiError> {
        let page = self.handle.told(fetch.domain.clone(), fetch.through).await;
        let page = page.map_err(|error| ApiError::overloaded(error.to_string()))?;
        let lane = query::told_domain(&self.handle.store(), &fetch.domain);
        let behind = lane.is_some_and(|lane| is_behind(&page, fetch.through, (lane.acked, lane.last)));
        Ok((page, behind))
    }

    /// What follows, or that it is not here any more.
    async fn page(&self, fetch: &Fetch) -> Result<OutboxPage, ApiError> {
        let (mut page, mut behind) = self.told(fetch).await?;
        if behind {
            // This controller may be the one that is behind.
            self.catch_up().await;
            (page, behind) = self.told(fetch).await?;
        }
        page.behind = behind;
        Ok(page)
    }

    /// Answers a question, when there is something to tell or its wait is over.
    ///
    /// # Errors
    /// `invalid`, `unauthorized`, `overloaded`.
    pub async fn answer(&self, question: &[u8]) -> Result<Vec<u8>, ApiError> {
        let Ok(Asked { signed, wait_ms }) = decode::<Asked>(question) else {
            count(&self.counters.malformed);
            return Err(ApiError::invalid("this is no question of a controller of another domain"));
        };
        let fetch = signed.fetch.clone();
        let record = query::record(&self.handle.store(), &fetch.domain);
        let controllers = record.as_ref().map(|record| record.controllers.as_slice());
        let wall_ms = self.wall_ms();
        let heard = locked(&self.words).hear(self.own(), controllers, &signed, wall_ms);
        if let Err(why) = heard {
            count(&self.counters.refused);
            return Err(ApiError::unauthorized(why.to_string()));
        }
        if wait_ms == 0 {
            count(&self.counters.words);
            return Ok(encode(&OutboxPage::default()));
        }
        let _place = self.place((fetch.domain.clone(), fetch.controller))?;
        let until = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MAX_MS));
        let mut telling = self.handle.telling();
        loop {
            telling.borrow_and_update();
            let page = self.page(&fetch).await?;
            let over = Instant::now() >= until;
            if over || page.behind || !page.statements.is_empty() {
                count(&self.counters.answered);
                return Ok(encode(&page));
            }
            match timeout_at(until, telling.changed()).await {
                // The controller stops.
                Ok(Err(_)) => return Err(ApiError::unavailable("the controller is stopping")),
                Ok(Ok(())) => sleep(LOOK).await,
                Err(_) => {}
            }
        }
    }
}
