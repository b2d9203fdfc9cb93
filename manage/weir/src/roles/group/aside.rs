//! The members of the group, for the agreement to set an entry of the order aside (`weir_controller::aside`).
//!
//! With `order: bft` those of the epoch that ordered the entry count, by their keys. With `order: raft` those count who vote now: members
//! trust each other there, the keys of all follow from one seed, and while an entry is waited for nobody leads who could change them.

use super::{Engine, clocks};
use crate::roles::manifest;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use weir_controller::aside::Electorate;
use weir_controller::driver::AsideGroup;
use weir_controller::driver::aside::{Keep, LEFT_OUT_FILE};

/// The key of a member where some may crash only.
pub type KeyOf = Box<dyn Fn(u64) -> [u8; 32] + Send + Sync>;

/// See the module.
pub struct Members {
    pub(super) engine: Arc<OnceLock<Engine>>,
    pub(super) id: u32,
    pub(super) key_of: KeyOf,
}

impl AsideGroup for Members {
    fn me(&self) -> u32 {
        self.id
    }

    fn electorate(&self, index: u64) -> Option<Electorate> {
        let engine = self.engine.get()?;
        let (members, survives_lies): (BTreeMap<u32, [u8; 32]>, bool) = match engine {
            Engine::Bft(order) => {
                let roster = order.engine().roster_at(index)?;
                (roster.members.iter().map(|(id, member)| (*id, member.key)).collect(), true)
            }
            Engine::Raft(_) => {
                let key = |id: u64| Some((u32::try_from(id).ok()?, (self.key_of)(id)));
                (engine.voters().into_iter().filter_map(key).collect(), false)
            }
        };
        let quorum = clocks::quorum(survives_lies, members.len());
        (!members.is_empty()).then_some(Electorate { members, quorum, believes: !survives_lies })
    }

    fn tell(&self, to: u32, bytes: Vec<u8>) {
        if let Some(engine) = self.engine.get() {
            engine.tell(to, Bytes::from(bytes));
        }
    }
}

/// Keeps promises in a folder of a state directory, so that its manifest knows what they are before they are.
pub fn keep(state_dir: &Path, folder: &'static str) -> Keep {
    let dir = state_dir.to_path_buf();
    Arc::new(move |bytes| {
        let name = format!("{folder}/{LEFT_OUT_FILE}");
        manifest::will_hold(&dir, &name, bytes).map_err(std::io::Error::other)?;
        weir_base::file::replace(&dir.join(name), bytes, 0o600)
    })
}
