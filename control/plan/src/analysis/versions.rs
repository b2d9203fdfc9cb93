//! Two phases (Reitblatt et al. 2012): the new rules are put beside the old ones under a version that no
//! packet carries yet; then each source marks what enters with it; when the old packets have drained the
//! old rules go. Every packet goes the old way or the new one, whole. It needs room for both sets of rules.

use super::draft::Draft;
use super::flow::FlowChange;
use crate::plan::{After, Method, Operation, Reason};

/// Plans a flow by versions.
pub(super) fn two_phase(change: &FlowChange<'_>, why: String) -> Draft {
    let version = change.version.wrapping_add(1);
    let mut draft = Draft::new(change, Method::Versions { version }, Some(why));
    draft.version = version;
    let put = |(switch, action): (&_, &_)| Operation::Put { switch: *switch, version, action: *action };
    let puts: Vec<usize> = change.new.rules.iter().map(|rule| draft.push(put(rule), Vec::new())).collect();
    let ready: Vec<After> =
        puts.iter().map(|step| After { step: *step, reason: Reason::VersionReady }).collect();
    for source in change.sources.keys() {
        let step = draft.push(Operation::Stamp { switch: *source, version }, ready.clone());
        draft.movers.insert(*source, step);
    }
    let stamps: Vec<usize> = draft.movers.values().copied().collect();
    let firsts = if stamps.is_empty() { puts } else { stamps };
    let old = change.old.rules.keys().copied().collect();
    draft.remove(&firsts, &old, change.version);
    draft
}
