//! What is shown of the spares, the suspicions, and what was done.

use super::{Group, MemberAddress};
use weir_api::types::{GroupMember, GroupReplaced, GroupSuspicion};
use weir_controller::core::group::Suspected;
use weir_model::group::Replaced;

impl Group {
    /// What is shown of the spares, the suspicions, and what was done.
    pub(in crate::roles::group) fn watched(
        &self,
        members: &mut Vec<GroupMember>,
    ) -> (Vec<GroupSuspicion>, Vec<GroupReplaced>) {
        let Some(handle) = self.handle() else { return (Vec::new(), Vec::new()) };
        let (words, (_, roster), now_ms) =
            (handle.group_words(), self.roster(&handle), handle.published().now_ms);
        for (id, spare) in words.spares(&roster) {
            if let Some(known) = members.iter_mut().find(|member| member.id == id) {
                known.spare = true;
                continue;
            }
            let MemberAddress { replica, api, session } = MemberAddress::read(&spare.address);
            let (lag, silent_ms) = self.spare_lag(id);
            members.push(GroupMember {
                id,
                voter: false,
                replica,
                api,
                session,
                lag,
                silent_ms,
                unreached: None,
                spare: true,
            });
        }
        members.sort_by_key(|member| member.id);
        let rests_ms = words.rests_until_ms(&roster, handle.source());
        let suspicion = |one: Suspected| GroupSuspicion {
            member: one.member,
            lied: one.lied,
            by: one.who,
            since_ms: one.since_ms,
            for_ms: now_ms.saturating_sub(one.since_ms),
            due_in_ms: one.due_ms.map(|due_ms| due_ms.max(rests_ms).saturating_sub(now_ms)),
        };
        let replaced = |(at_ms, one): (u64, Replaced)| GroupReplaced {
            member: one.out,
            spare: one.by,
            because: one.because.as_str().to_string(),
            by: one.who,
            at_ms,
            ago_ms: now_ms.saturating_sub(at_ms),
        };
        let suspicions = words.suspected(&roster).into_iter().map(suspicion).collect();
        (suspicions, words.replaced(&roster, handle.source()).into_iter().map(replaced).collect())
    }
}
