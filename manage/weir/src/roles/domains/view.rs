//! How domains are shown, made known and forgotten.

use super::{Domains, Shown, locked};
use std::collections::BTreeMap;
use weir_api::ApiError;
use weir_api::domains::{
    AddDomain, DomainDescription, DomainList, DomainMember, DomainTaken, DomainTold, DomainView,
};
use weir_apps::fabric::domains::{self as query, DomainStatus, Unowned};
use weir_base::exposition::{Exposition, Kind};
use weir_model::Label;
use weir_model::domain::{DomainController, DomainEvent, DomainRecord};
use weir_model::join::to_hex;
use weir_store::Store;

fn member(one: &DomainController) -> DomainMember {
    DomainMember { id: one.id, key: to_hex(&one.key), api: one.api.clone() }
}

fn described(record: &DomainRecord) -> DomainDescription {
    DomainDescription {
        name: record.name.to_string(),
        group_key: record.group_key.to_hex(),
        authority: record.authority_pem.clone(),
        controllers: record.controllers.iter().map(member).collect(),
    }
}

fn view(status: &DomainStatus, problem: Option<String>) -> DomainView {
    let (told, taken) = (&status.told, &status.taken);
    let refused = Unowned::ALL.iter().zip(taken.refused).filter(|(_, count)| *count > 0);
    DomainView {
        domain: described(&status.record),
        underlays: status.record.underlays.iter().map(ToString::to_string).collect(),
        told: DomainTold { last: told.last, acked: told.acked, cut: told.cut, begun: told.begun },
        taken: DomainTaken {
            through: taken.through,
            locations: taken.locations,
            taken: taken.taken,
            refused: refused.map(|(why, count)| (why.word().to_owned(), count)).collect(),
            last_refused: taken.last_refused.clone(),
        },
        problem,
    }
}

impl Domains {
    /// What this domain's operator brings to others.
    ///
    /// # Errors
    /// `unavailable` while the group has no key, or this controller does not know its members.
    pub fn description(&self) -> Result<DomainDescription, ApiError> {
        let unmade = "the controllers have not made the group's key yet: all that found the group must run";
        let group_key = self.handle.group_key().ok_or_else(|| ApiError::unavailable(unmade))?;
        let controllers = self.controllers();
        if controllers.is_empty() {
            let text = "this controller does not know yet who is in its group: ask again in a second";
            return Err(ApiError::unavailable(text));
        }
        Ok(DomainDescription {
            name: self.own().to_string(),
            group_key: group_key.to_hex(),
            authority: self.me.state.authority.certificate_pem().to_owned(),
            controllers: controllers.iter().map(member).collect(),
        })
    }

    /// The domains that are known.
    pub fn list(&self) -> DomainList {
        let (store, shown) = (self.handle.store(), locked(&self.shown));
        let problem = |name: &Label| match shown.get(name) {
            Some(shown) => shown.problem.clone(),
            None => Some("it has not been asked yet".to_owned()),
        };
        let items = query::domains(&store).map(|one| view(&one, problem(&one.record.name)));
        DomainList { items: items.collect() }
    }

    /// What makes a domain known.
    ///
    /// # Errors
    /// `invalid`, with the field, its value, and what is allowed.
    pub fn known(request: AddDomain) -> Result<DomainEvent, ApiError> {
        request.record().map(DomainEvent::Known)
    }

    /// What lets a domain be unknown.
    ///
    /// # Errors
    /// `not-found`.
    pub fn forgotten(&self, name: Label) -> Result<DomainEvent, ApiError> {
        match query::record(&self.handle.store(), &name) {
            Some(_) => Ok(DomainEvent::Forgotten { domain: name }),
            None => Err(ApiError::not_found(format!(
                "no other domain is known here as '{name}': 'weir domain list' lists them"
            ))),
        }
    }
}

/// Numbers of domains, for Prometheus.
#[derive(Default)]
pub struct Metrics(pub Exposition);

fn kind(name: &str) -> Kind {
    if name.ends_with("_total") { Kind::Counter } else { Kind::Gauge }
}

impl Metrics {
    /// A metric by outcome; with an empty outcome, one number.
    pub fn total(&mut self, name: &str, help: &str, samples: &[(&str, u64)]) {
        for (outcome, value) in samples {
            let label = [("outcome", *outcome)];
            let labels = if outcome.is_empty() { &[][..] } else { &label };
            self.0.put(&format!("weir_controller_{name}"), kind(name), help, labels, *value as f64);
        }
    }

    fn by_domain<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = (&'a Label, &'a str, u64)>,
    ) {
        for (domain, what, value) in samples {
            let labels = [("domain", domain.as_str()), ("what", what)];
            let labels = if what.is_empty() { &labels[..1] } else { &labels };
            self.0.put(&format!("weir_controller_{name}"), kind(name), help, labels, value as f64);
        }
    }

    /// What is told and taken, and how asking goes.
    pub(super) fn domains(&mut self, store: &Store, shown: &BTreeMap<Label, Shown>) {
        let all: Vec<DomainStatus> = query::domains(store).collect();
        let told = all.iter().flat_map(|one| {
            let (name, told) = (&one.record.name, &one.told);
            [("last", told.last), ("acked", told.acked), ("begun", told.begun), ("cut", u64::from(told.cut))]
                .map(|(what, value)| (name, what, value))
        });
        self.by_domain(
            "domain_told",
            "Statements to another domain: numbers, and whether it is cut off.",
            told,
        );
        let taken = all.iter().flat_map(|one| {
            let (name, taken) = (&one.record.name, &one.taken);
            [("through", taken.through), ("taken", taken.taken), ("locations", taken.locations)]
                .map(|(what, value)| (name, what, value))
        });
        self.by_domain("domain_taken", "Statements of another domain: numbers, and locations kept.", taken);
        let refused = all.iter().flat_map(|one| {
            let counts = Unowned::ALL.iter().zip(one.taken.refused);
            counts.map(move |(why, count)| (&one.record.name, why.word(), count))
        });
        self.by_domain(
            "domain_refused_total",
            "Statements of another domain that were refused, by reason.",
            refused,
        );
        let asked = shown.iter().flat_map(|(name, shown)| {
            let counters = shown.counters;
            [
                ("pages", counters.pages),
                ("silent", counters.silent),
                ("refused", counters.refused),
                ("proposed", counters.proposed),
                ("spared", counters.spared),
                ("lost", counters.lost),
            ]
            .map(|(what, value)| (name, what, value))
        });
        self.by_domain("domain_asked_total", "Questions to another domain, by what came of them.", asked);
    }
}

#[cfg(test)]
mod tests;
