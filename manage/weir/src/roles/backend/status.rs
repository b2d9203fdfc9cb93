//! What the domain is like now.

use super::names::Names;
use super::{Controlled, api_error, planes, ports, resources};
use crate::roles::health;
use std::collections::{BTreeMap, BTreeSet};
use weir_api::ApiError;
use weir_api::types::{ActuatorStatus, ClockOf, ClockStatus, ConductView, LineView, StatusResponse};
use weir_apps::fabric;
use weir_apps::orders::Conduct;
use weir_base::ordered_time::State;
use weir_controller::core::scheduler::{LineStatus, TargetStatus, WaitState, Waiting};
use weir_model::Label;
use weir_model::event::Role;
use weir_store::Store;

/// Most waiting updates looked at for the status.
const WAITING_READ_MAX: usize = 10_000;
/// Most waiting or refused lines told for a switch.
const LINES_TOLD_MAX: usize = 20;
/// How long what a host told of a controller is shown, milliseconds.
const CONDUCT_SHOWN_MS: u64 = 86_400_000;
/// Most ports without traffic told of a host.
const PORTS_TOLD_MAX: usize = 100;

impl Controlled {
    pub(super) async fn state_of_domain(&self) -> Result<StatusResponse, ApiError> {
        let published = self.handle.published();
        let status = self.handle.status().await.map_err(api_error)?;
        let looked = self.handle.waiting_of_each(LINES_TOLD_MAX, WAITING_READ_MAX);
        let waiting = looked.await.map_err(api_error)?;
        let seen: BTreeMap<&Label, &TargetStatus> =
            status.actuators.iter().map(|seen| (&seen.target.target, &seen.target)).collect();
        let names = Names::of(&published.store);
        let open = status.actuators.iter().filter(|seen| seen.target.connected);
        let hosts: BTreeSet<Label> = open.map(|seen| seen.target.target.clone()).collect();
        let members = self.group.as_ref().map(|group| group.numbers_by_session()).unwrap_or_default();
        let is_host = |known: &fabric::ActuatorStatus| known.facts.role == Role::Host;
        let hosts = fabric::actuators(&published.store)
            .filter(|known| is_host(known) && hosts.contains(&known.facts.name))
            .map(|known| known.facts.name);
        let mut down = self.ports_down(hosts.collect()).await;
        down.append(&mut ports::without_switch(&published.store));
        let actuators = fabric::actuators(&published.store)
            .map(|known| {
                let name = known.facts.name.clone();
                let seen = seen.get(&name);
                let refused = known.refusals.iter().rev().take(LINES_TOLD_MAX).map(|refused| {
                    format!("{} at {}: {}", names.key(&refused.key), refused.version, refused.refusal)
                });
                let waiting = waiting.get(&name).into_iter().flatten();
                let down = down.remove(&name);
                let ports_down_total = down.as_ref().map(Vec::len);
                let mut ports_down = down.unwrap_or_default();
                ports_down.truncate(PORTS_TOLD_MAX);
                ActuatorStatus {
                    role: known.facts.role,
                    underlay: known.facts.underlay.to_string(),
                    connected: seen.is_some_and(|seen| seen.connected),
                    desired_entries: seen.map_or(0, |seen| seen.keys),
                    desired_version: seen.map_or(0, |seen| seen.desired.0),
                    acked_entries: seen.map_or(0, |seen| seen.keys.saturating_sub(seen.lag)),
                    acked_version: seen.map_or(0, |seen| seen.acked.0),
                    // While its state is compared nobody knows what is in force there.
                    in_force_version: seen
                        .filter(|seen| seen.connected && seen.synced)
                        .map(|seen| seen.acked.0),
                    waiting: waiting.map(|waiting| explain(waiting, &names)).collect(),
                    refused: refused.collect(),
                    refused_total: known.refusals.len(),
                    ports_down,
                    ports_down_total,
                    planes: planes::statuses_of(&published.store, &name),
                    health: health::view(&published.store, &name),
                    conduct: conduct(&published.store, &name, published.now_ms, &members),
                    name: name.to_string(),
                }
            })
            .collect();
        let resources = resources::counts(&published.store);
        Ok(StatusResponse {
            domain: self.state.domain.to_string(),
            version: published.store.version().0,
            digest: format!("{:032x}", published.store.digest()),
            software: env!("CARGO_PKG_VERSION").to_string(),
            group_key: self.group_key(),
            epoch: published.epoch,
            resources,
            actuators,
            group: self.group.as_ref().map(|group| self.status_of(group)),
            clock: Some(self.clocks()),
            line: status.line.map(|line| line_view(line, &names)),
        })
    }

    /// The controllers' clocks, as this one knows them.
    pub(super) fn clocks(&self) -> ClockStatus {
        let view = self.handle.time().view().0;
        let state = match view.state {
            State::Follows => "follows",
            State::Corrects => "corrects",
            State::Asks => "asks",
            State::Alone => "alone",
        };
        let controllers = view.members_ms.into_iter().map(|(id, ahead_ms)| ClockOf { id, ahead_ms });
        ClockStatus {
            ordered_ms: view.ordered_ms,
            wall_ms: view.wall_ms,
            ahead_ms: view.majority_ms,
            state: state.to_string(),
            controllers: controllers.collect(),
        }
    }
}

fn line_view(line: LineStatus, names: &Names<'_>) -> LineView {
    let LineStatus { target, key, version, state, for_ms, length, older } = line;
    let waiting = Waiting { target, key, version, state };
    LineView { actuator: waiting.target.to_string(), update: explain(&waiting, names), for_ms, length, older }
}

/// What a host told of controllers in the last day; `members` are where hosts reach them.
fn conduct(store: &Store, host: &Label, now_ms: u64, members: &BTreeMap<String, u64>) -> Vec<ConductView> {
    let mut told = weir_apps::orders::conduct_of(store, host);
    told.retain(|one| now_ms < one.told_ms.saturating_add(CONDUCT_SHOWN_MS));
    told.sort_by_key(|one| std::cmp::Reverse(one.told_ms));
    let view = |Conduct { report, told_ms }: Conduct| ConductView {
        member: members.get(&report.controller).copied(),
        address: report.controller,
        sent: report.what.as_str().to_string(),
        ended: report.ended,
        forgeries: report.forgeries,
        ago_ms: now_ms.saturating_sub(told_ms),
    };
    told.into_iter().map(view).collect()
}

/// A waiting update in words.
fn explain(waiting: &Waiting, names: &Names<'_>) -> String {
    let why = match &waiting.state {
        WaitState::Dependencies(missing) => {
            let missing: Vec<String> = missing
                .iter()
                .map(|after| {
                    let key = names.key(&after.key);
                    format!("{key} {} at {} ({})", after.version, after.target, after.reason)
                })
                .collect();
            format!("after {}", missing.join(", "))
        }
        WaitState::Disconnected => "it is not connected".to_string(),
        WaitState::Comparing => "its state is being compared".to_string(),
        WaitState::Unsigned => {
            "the group has not signed it yet: 'weir group list' shows whose share is missing".to_string()
        }
        WaitState::Queued => "it is in the queue".to_string(),
        WaitState::Sent { for_ms } => format!("sent {for_ms} ms ago"),
        WaitState::Refused(refusal) => format!("refused: {refusal}"),
    };
    format!("{} {}: {why}", names.key(&waiting.key), waiting.version)
}
