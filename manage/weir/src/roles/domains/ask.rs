//! Asking one other domain: a question at a time, at one of its controllers after the other.

use super::{Domains, Ordered, Shown, locked};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_blocking};
use weir_api::domains::DomainClient;
use weir_apps::fabric::domains::{self as query, DomainStatus};
use weir_base::codec::{decode, encode};
use weir_controller::Error;
use weir_controller::core::OutboxPage;
use weir_controller::domains::{Answer, Asker, Seen};
use weir_model::Label;
use weir_model::domain::{Asked, DomainController, DomainEvent, Fetch};

/// How long a question may wait at the other domain for something to tell, milliseconds.
const WAIT_MS: u64 = 3_000;
/// What an answer may take beyond that: connection, page.
const ANSWER_BOUND: Duration = Duration::from_millis(WAIT_MS + 2_000);
/// What a word may take.
const WORD_BOUND: Duration = Duration::from_secs(2);
/// How often it is looked whether there is something to do.
const LOOK: Duration = Duration::from_millis(20);

fn seen(known: &DomainStatus) -> Seen<'_> {
    Seen { controllers: &known.record.controllers, through: known.taken.through, anew: known.taken.anew }
}

/// Takes what a domain tells until it is not known any more.
pub async fn follow(domains: Arc<Domains>, of: Label) {
    let mut asker = Asker::new(domains.own().clone(), domains.me.id, of.clone());
    let mut link = Link::default();
    loop {
        let Some(known) = query::domain(&domains.handle.store(), &of) else { return };
        let (now, seen) = (domains.now_ms(), seen(&known));
        let mine = |since_ms| domains.handle.orders_for_all(Duration::from_millis(since_ms));
        if let Some(event) = asker.due(&seen, now, mine) {
            if domains.order(event).await == Ordered::Rejected {
                asker.lost(domains.now_ms());
            }
            continue;
        }
        link.renew(&known.record.authority_pem);
        if let Some(fetch) = link.may_tell().then(|| asker.word(&seen, now)).flatten() {
            link.tell(&domains, seen.controllers, fetch);
        }
        match asker.ask(&seen, now) {
            Some((whom, fetch)) => {
                let through = fetch.through;
                let answer = link.ask(&domains, &whom, fetch).await;
                let answer = link.tried(&domains, &of, through, answer).await;
                // The state went on meanwhile.
                let Some(known) = query::domain(&domains.handle.store(), &of) else { return };
                asker.answered(&self::seen(&known), answer, domains.now_ms());
            }
            None => tokio::time::sleep(LOOK).await,
        }
        let shown = Shown { counters: asker.counters, problem: link.problem.clone() };
        locked(&domains.shown).insert(of.clone(), shown);
    }
}

impl Domains {
    /// Whether nothing of a domain was ordered beyond a number, also after a moment: one that just started has less at first.
    async fn is_current(&self, of: &Label, through: u64) -> bool {
        self.catch_up().await;
        query::domain(&self.handle.store(), of).is_some_and(|known| known.taken.through == through)
    }
}

/// The connections to one domain.
#[derive(Default)]
struct Link {
    authority: String,
    client: Option<Arc<DomainClient>>,
    /// Telling all of its controllers how far this domain is.
    telling: Option<JoinHandle<()>>,
    /// Why nothing comes.
    problem: Option<String>,
}

impl Link {
    /// Connects by the authority that is known now.
    fn renew(&mut self, authority: &str) {
        if self.client.is_some() && self.authority == authority {
            return;
        }
        self.authority = authority.to_owned();
        match DomainClient::new(authority) {
            Ok(client) => self.client = Some(Arc::new(client)),
            Err(error) => {
                self.client = None;
                self.problem = Some(format!("the certificate of its authority cannot be read: {error}"));
            }
        }
    }

    fn question(domains: &Domains, fetch: Fetch, wait_ms: u64) -> Vec<u8> {
        // Pauses are of a clock that does not go back; who is asked compares with its own time of day.
        let fetch = Fetch { now_ms: domains.wall_ms(), ..fetch };
        encode(&Asked { signed: domains.handle.sign_fetch(fetch), wait_ms })
    }

    async fn ask(&mut self, domains: &Domains, whom: &DomainController, fetch: Fetch) -> Answer {
        let Some(client) = self.client.clone() else { return Answer::Silent };
        let (question, api) = (Self::question(domains, fetch, WAIT_MS), whom.api.clone());
        let asked = spawn_blocking(move || client.ask(&api, &question, ANSWER_BOUND)).await;
        match asked {
            Ok(Ok(bytes)) => match decode::<OutboxPage>(&bytes) {
                Ok(page) => Answer::Page(page),
                Err(error) => {
                    self.problem = Some(format!("the answer of {} has no sense: {error}", whom.api));
                    Answer::Refused
                }
            },
            Ok(Err(problem)) => {
                self.problem = Some(problem.to_string());
                Answer::Silent
            }
            Err(_) => Answer::Silent,
        }
    }

    /// Whether what came would be taken as things are.
    async fn tried(&mut self, domains: &Domains, of: &Label, through: u64, answer: Answer) -> Answer {
        let Answer::Page(mut page) = answer else { return answer };
        if page.statements.is_empty() {
            self.problem = None;
            page.behind = page.behind && domains.is_current(of, through).await;
            return Answer::Page(page);
        }
        let statements = page.statements.clone();
        let event = DomainEvent::Forwarded { origin: of.clone(), statements };
        match domains.handle.would_take(event).await {
            Ok(()) => {
                self.problem = None;
                Answer::Page(page)
            }
            Err(Error::Rejected(rejection)) => {
                self.problem = Some(format!("what it tells is not taken: {rejection}"));
                Answer::Refused
            }
            Err(_) => Answer::Silent,
        }
    }

    /// One word at a time is on its way.
    fn may_tell(&self) -> bool {
        self.telling.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Tells all controllers how far this domain is. What is lost is said again with the next question.
    fn tell(&mut self, domains: &Domains, controllers: &[DomainController], fetch: Fetch) {
        let Some(client) = self.client.clone() else { return };
        let question = Self::question(domains, fetch, 0);
        let all: Vec<String> = controllers.iter().map(|one| one.api.clone()).collect();
        self.telling = Some(spawn_blocking(move || {
            for api in all {
                if let Err(error) = client.ask(&api, &question, WORD_BOUND) {
                    tracing::debug!(%error, "a word was not heard");
                }
            }
        }));
    }
}
