//! This controller's part in what its domain and others tell each other (row C6; decision 0028).
//!
//! The decisions are in `weir_apps::fabric::domains`, whom to ask and when to order in [`weir_controller::domains`]; here are the
//! connections. For each domain that is known one task asks one of its controllers at a time ([`ask`]), over HTTPS, with a request
//! that waits there for something to tell. Controllers of others ask here ([`answer`]): a signature in the question says who.
//!
//! Nothing of it is kept but what the order has, so a controller that is killed asks on where its domain is.
//!
//! Limits: a task and at most two blocking requests for each of 64 domains; [`answer::WAITING_MAX`] requests that wait here, and
//! [`answer::WAITING_OF_ONE_MAX`] of one controller; pages of a mebibyte; pauses as in [`weir_controller::domains`]. All is counted.

mod answer;
mod ask;
mod view;

use super::group::Group;
use super::names::member_name;
use super::state::State;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::{AbortHandle, JoinSet};
use weir_apps::fabric::domains::{self as query, DomainStatus};
use weir_controller::Error;
use weir_controller::core::admission::Unauthentic;
use weir_controller::domains::{AGAIN_MS, AskerCounters, Words};
use weir_controller::driver::ControllerHandle;
use weir_model::Label;
use weir_model::domain::{DomainController, DomainEvent};
use weir_model::event::SourceId;

/// How often it is looked which domains are known, and what is to be ordered about them.
const LOOK: Duration = Duration::from_millis(100);
/// How long one that cannot have a barrier is given to follow.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Between two words of who the own controllers are, milliseconds.
const CONTROLLERS_PAUSE_MS: u64 = 1_000;

/// What happened besides asking.
#[derive(Debug, Default)]
struct Counters {
    answered: AtomicU64,
    words: AtomicU64,
    refused: AtomicU64,
    no_room: AtomicU64,
    malformed: AtomicU64,
    ordered: AtomicU64,
    rejected: AtomicU64,
    not_ordered: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// How asking one domain goes.
#[derive(Clone, Debug, Default)]
struct Shown {
    counters: AskerCounters,
    problem: Option<String>,
}

/// What became of something that was to be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ordered {
    Done,
    /// It changed nothing, and would not later.
    Rejected,
    /// Nobody knows, or not now.
    Unknown,
}

/// Who this controller is.
pub struct Me {
    /// Its number in the group; 0 when it is alone.
    pub id: u64,
    /// Where it is reached, `ADDRESS:PORT`.
    pub api: String,
    /// Its group.
    pub group: Option<Group>,
    /// Keys.
    pub state: Arc<State>,
}

/// See the module.
pub struct Domains {
    handle: ControllerHandle,
    me: Me,
    words: Mutex<Words>,
    waiting: Mutex<BTreeMap<(Label, u64), usize>>,
    shown: Mutex<BTreeMap<Label, Shown>>,
    counters: Counters,
    begun: Instant,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves maps that are each whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Domains {
    /// The part of this controller.
    pub fn new(handle: ControllerHandle, me: Me) -> Domains {
        Domains {
            handle,
            me,
            words: Mutex::default(),
            waiting: Mutex::default(),
            shown: Mutex::default(),
            counters: Counters::default(),
            begun: Instant::now(),
        }
    }

    /// Wall time, as the group has it: other domains compare with theirs.
    fn wall_ms(&self) -> u64 {
        self.handle.time().wall_ms()
    }

    /// Milliseconds of a clock that does not go back.
    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn own(&self) -> &Label {
        self.handle.domain()
    }

    /// The controllers of this domain as this one sees them, with the keys that they have now; empty while it cannot say.
    fn controllers(&self) -> Vec<DomainController> {
        let state = &self.me.state;
        let Some(group) = &self.me.group else {
            return vec![DomainController { id: 0, key: self.handle.identity(), api: self.me.api.clone() }];
        };
        let mut all = group.controllers(|id| state.member_event_key(id).public());
        all.retain_mut(|one| match self.handle.keys_of(&SourceId::of_controller(&member_name(one.id))) {
            Ok(keys) => {
                one.key = keys.now;
                true
            }
            Err(Error::Identity { reason, .. }) => reason != Unauthentic::Revoked,
            Err(_) => true,
        });
        if all.iter().any(|one| one.api.is_empty()) { Vec::new() } else { all }
    }

    /// Returns when this controller should have all that was ordered before this call: after a barrier, or, where it cannot have one because
    /// another leads, after the time in which one that lags follows.
    async fn catch_up(&self) {
        let wait = Duration::from_millis(AGAIN_MS);
        let passed = tokio::time::timeout(wait, self.handle.barrier()).await;
        if !passed.is_ok_and(|passed| passed.is_ok()) {
            tokio::time::sleep(CATCH_UP).await;
        }
    }

    /// Orders something, and waits for it a moment.
    async fn order(&self, event: DomainEvent) -> Ordered {
        let ordered = self.handle.about_domains(event, None);
        match tokio::time::timeout(Duration::from_millis(AGAIN_MS), ordered).await {
            Ok(Ok(_)) => {
                count(&self.counters.ordered);
                Ordered::Done
            }
            Ok(Err(Error::Rejected(rejection))) => {
                count(&self.counters.rejected);
                tracing::debug!(%rejection, "something about another domain is rejected");
                Ordered::Rejected
            }
            Ok(Err(error)) => {
                count(&self.counters.not_ordered);
                tracing::debug!(%error, "something about another domain is not ordered");
                Ordered::Unknown
            }
            Err(_) => {
                count(&self.counters.not_ordered);
                Ordered::Unknown
            }
        }
    }

    /// Asks, and orders what is to be ordered. Never ends.
    pub async fn run(self: Arc<Self>) {
        let mut asking = Asking::default();
        let (mut controllers_at_ms, mut words_at_ms) = (0, BTreeMap::new());
        loop {
            let known: Vec<DomainStatus> = query::domains(&self.handle.store()).collect();
            asking.follow(&self, &known);
            if !known.is_empty() && self.now_ms() >= controllers_at_ms {
                controllers_at_ms = self.now_ms() + CONTROLLERS_PAUSE_MS;
                self.say_controllers().await;
            }
            self.order_words(&known, &mut words_at_ms).await;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Says who the controllers of this domain are, where its order does not have that yet: the one that leads does, or, where
    /// none is believed, each.
    async fn say_controllers(&self) {
        if !self.handle.leads() && !self.handle.orders_everywhere() {
            return;
        }
        let (store, list) = (self.handle.store(), self.controllers());
        let is_said = query::controllers(&store) == list
            || query::word(&store, self.handle.source()).is_some_and(|said| said == list);
        if list.is_empty() || is_said {
            return;
        }
        // What fails is said again.
        let _outcome = self.order(DomainEvent::Controllers(list)).await;
    }

    /// Orders how far others are, by the words of their controllers.
    async fn order_words(&self, known: &[DomainStatus], again_at_ms: &mut BTreeMap<Label, u64>) {
        again_at_ms.retain(|domain, _| known.iter().any(|one| one.record.name == *domain));
        let due: Vec<(Label, DomainEvent, u64)> = {
            let mut words = locked(&self.words);
            words.keep(|domain| known.iter().any(|one| one.record.name == *domain));
            let of = |one: &DomainStatus| {
                let (name, told) = (&one.record.name, &one.told);
                let lane = (told.acked, told.last, told.cut);
                let (event, overdue_ms) = words.due(name, &one.record.controllers, lane, self.wall_ms())?;
                Some((name.clone(), event, overdue_ms))
            };
            known.iter().filter_map(of).collect()
        };
        for (domain, event, overdue_ms) in due {
            let paused = again_at_ms.get(&domain).is_some_and(|at| self.now_ms() < *at);
            if paused || !self.handle.orders_for_all(Duration::from_millis(overdue_ms)) {
                continue;
            }
            let ordered = self.order(event).await;
            locked(&self.words).ordered(&domain);
            if ordered != Ordered::Done {
                again_at_ms.insert(domain, self.now_ms() + AGAIN_MS);
            }
        }
    }

    /// Counters and gauges, Prometheus text.
    pub fn metrics_text(&self) -> String {
        let mut text = view::Metrics::default();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        text.total(
            "domain_answers_total",
            "Questions of controllers of other domains, by what was made of them.",
            &[
                ("answered", load(&counters.answered)),
                ("word", load(&counters.words)),
                ("refused", load(&counters.refused)),
                ("no_room", load(&counters.no_room)),
                ("malformed", load(&counters.malformed)),
            ],
        );
        text.total(
            "domain_orders_total",
            "Events about other domains that this controller wanted ordered, by outcome.",
            &[
                ("ordered", load(&counters.ordered)),
                ("rejected", load(&counters.rejected)),
                ("unknown", load(&counters.not_ordered)),
            ],
        );
        let waiting = locked(&self.waiting).values().sum::<usize>() as u64;
        text.total(
            "domain_questions_waiting",
            "Questions that wait for something to tell.",
            &[("", waiting)],
        );
        text.domains(&self.handle.store(), &locked(&self.shown));
        text.0.text()
    }
}

/// The tasks that ask, one for each domain. They end with this.
#[derive(Default)]
struct Asking {
    tasks: JoinSet<()>,
    by_domain: BTreeMap<Label, AbortHandle>,
}

impl Asking {
    fn follow(&mut self, domains: &Arc<Domains>, known: &[DomainStatus]) {
        while self.tasks.try_join_next().is_some() {}
        self.by_domain.retain(|domain, task| {
            let stays = known.iter().any(|one| one.record.name == *domain) && !task.is_finished();
            if !stays {
                task.abort();
                locked(&domains.shown).remove(domain);
            }
            stays
        });
        for DomainStatus { record, .. } in known {
            if !self.by_domain.contains_key(&record.name) {
                tracing::info!(domain = %record.name, "what another domain tells is asked for");
                let task = self.tasks.spawn(ask::follow(domains.clone(), record.name.clone()));
                self.by_domain.insert(record.name.clone(), task);
            }
        }
    }
}
