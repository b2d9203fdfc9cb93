//! Making this controller the first member of a group: what is looked at before, and the last entry of its order.
//!
//! All that can be known is looked at while the order still goes on: what is refused changes nothing. What comes after is `roles::convert`.

use super::{Controlled, api_error};
use crate::roles::group::{MEMBER_NUMBER_MAX, MemberAddress, reach};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use weir_api::types::{ConvertRequest, ConvertResponse};
use weir_api::{ApiError, Caller};
use weir_base::codec::decode;
use weir_model::Label;
use weir_model::conversion::{Conversion, GroupOrder, LISTEN_BYTES_MAX};
use weir_model::event::SPEAKS_TABLE;
use weir_model::session::{PROTOCOL_MIN, SUCCESSIONS_SINCE};

/// The fewest others that a group needs beside this controller.
const OTHERS_MIN: usize = 2;
/// Room that a group's log and its first snapshots need beside the state, bytes.
const ROOM_BYTES: u64 = 128 << 20;
/// Most names told of one kind.
const NAMES_TOLD_MAX: usize = 8;

/// Some names, and how many more there are.
fn told(names: &[String]) -> String {
    let mut text = names.iter().take(NAMES_TOLD_MAX).cloned().collect::<Vec<_>>().join(", ");
    if let Some(more) = names.len().checked_sub(NAMES_TOLD_MAX).filter(|more| *more > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

impl Controlled {
    /// See the module.
    pub(super) async fn become_member(
        &self,
        caller: Caller,
        request: ConvertRequest,
    ) -> Result<ConvertResponse, ApiError> {
        let listen = self.may_convert(&request).await?;
        self.all_follow()?;
        let replica = SocketAddr::new(self.advertised()?, listen.port()).to_string();
        for member in &request.members {
            let (id, replica) = (member.id, member.replica.clone());
            let (api, session) = (member.api.clone(), member.session.clone());
            let id = u32::try_from(id).map_err(|error| ApiError::invalid(error.to_string()))?;
            reach(id, &MemberAddress { replica, api, session }).await?;
        }
        let snapshot = self.handle.inspect(|core| core.snapshot()).await.map_err(api_error)?;
        let bytes = tokio::task::spawn_blocking(move || snapshot.to_bytes().len() as u64).await;
        let state_bytes = bytes.map_err(|error| ApiError::internal(error.to_string()))?;
        self.holds_two_of(state_bytes)?;
        let actuators = self.handle.published().joined.len() as u64;
        let mut answer = ConvertResponse { replica, state_bytes, actuators, version: None };
        if !request.dry_run {
            let conversion = Conversion {
                order: GroupOrder::Raft,
                member: request.id,
                listen: listen.to_string(),
                wide: request.wide,
            };
            let ordered = self.handle.convert(conversion, Some(caller.subject)).await;
            answer.version = Some(ordered.map_err(|error| self.failed(error))?.0);
        }
        Ok(answer)
    }

    /// Whether this controller and those that were named make a group. Gives where this one is to listen.
    async fn may_convert(&self, request: &ConvertRequest) -> Result<SocketAddr, ApiError> {
        if let Some(group) = &self.group {
            let id = group.status().id;
            return Err(ApiError::conflict(format!(
                "this is controller {id} of a group: controllers come and go with 'weir group add' and 'remove'"
            )));
        }
        if request.order != "raft" {
            let text = format!(
                "order: '{}' is not allowed: a controller that is alone becomes a member of a group with raft; a group with bft is founded as one",
                request.order
            );
            return Err(ApiError::invalid(text));
        }
        let listen = request.listen.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
        let listen = listen.filter(|_| request.listen.len() <= LISTEN_BYTES_MAX).ok_or_else(|| {
            ApiError::invalid(format!(
                "listen: '{}' is not allowed: use the ADDRESS:PORT where the other controllers connect, such as 192.0.2.10:7445",
                request.listen
            ))
        })?;
        let mut ids = BTreeSet::from([request.id]);
        let mut places = BTreeSet::from([self.api_address.clone(), self.session_address.clone()]);
        for member in &request.members {
            let (replica, api, session) =
                (member.replica.clone(), member.api.clone(), member.session.clone());
            let address = MemberAddress { replica, api, session };
            let wrong = |error: String| ApiError::invalid(format!("controller {}: {error}", member.id));
            address.check().map_err(wrong)?;
            if !ids.insert(member.id) {
                return Err(wrong("each has a number of its own".to_string()));
            }
            for place in [address.replica, address.api, address.session] {
                if places.contains(&place) {
                    return Err(wrong(format!("'{place}' is where another one is")));
                }
                places.insert(place);
            }
        }
        if let Some(id) = ids.iter().find(|id| !(1..=MEMBER_NUMBER_MAX).contains(*id)) {
            return Err(ApiError::invalid(format!(
                "id: '{id}' is not allowed: use 1 to {MEMBER_NUMBER_MAX}"
            )));
        }
        if request.members.len() < OTHERS_MIN {
            return Err(ApiError::invalid(format!(
                "members: a group has three controllers or more, and {} beside this one are named: start the others with --join-group, and name them",
                request.members.len()
            )));
        }
        // Whoever listens there does not go away by itself when this controller starts again.
        if let Err(error) = tokio::net::TcpListener::bind(listen).await {
            return Err(ApiError::unavailable(format!(
                "listen: {listen} cannot be used ({error}): nothing was changed"
            )));
        }
        Ok(listen)
    }

    /// Whether all that obey this controller can follow the group that it becomes.
    fn all_follow(&self) -> Result<(), ApiError> {
        let published = self.handle.published();
        let speaks = |name: &&Label| {
            let known = published.store.get(SPEAKS_TABLE, name.as_str().as_bytes());
            known.and_then(|cell| decode::<u32>(&cell.value).ok()).unwrap_or(PROTOCOL_MIN)
        };
        let behind = published.joined.keys().filter(|name| speaks(name) < SUCCESSIONS_SINCE);
        let behind: Vec<String> = behind.map(Label::to_string).collect();
        if !behind.is_empty() {
            return Err(ApiError::conflict(format!(
                "hosts of an earlier release do not know that a group's key can take the place of another, and would take nothing of the group: \
                 upgrade {}, or forget them ('weir forget'); one that was upgraded is known as such when it has connected. Nothing was changed",
                told(&behind)
            )));
        }
        let domains: Vec<String> = self.domains.list().items.into_iter().map(|one| one.domain.name).collect();
        if !domains.is_empty() {
            return Err(ApiError::conflict(format!(
                "this domain and {} know each other by keys that change: 'weir domain forget' on both sides first, and make them known again \
                 afterwards. Nothing was changed",
                told(&domains)
            )));
        }
        Ok(())
    }

    fn advertised(&self) -> Result<std::net::IpAddr, ApiError> {
        let own = self.api_address.parse::<SocketAddr>().map(|address| address.ip());
        own.map_err(|error| ApiError::internal(error.to_string()))
    }

    /// Whether the disk has room for a group's log and its snapshots of such a state.
    fn holds_two_of(&self, state_bytes: u64) -> Result<(), ApiError> {
        let dir: &Path = self.own.state_dir();
        let found = rustix::fs::statvfs(dir);
        let found = found.map_err(|error| ApiError::internal(format!("{}: {error}", dir.display())))?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let needed = state_bytes.saturating_mul(2).saturating_add(ROOM_BYTES);
        if free < needed {
            return Err(ApiError::unavailable(format!(
                "the disk of {} has {} MiB left, and {} MiB are needed for the group's log and state: nothing was changed",
                dir.display(),
                free >> 20,
                needed >> 20
            )));
        }
        Ok(())
    }
}
