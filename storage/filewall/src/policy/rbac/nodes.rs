//! Objects of the control namespace, and numbers of those that mirror real ones.

use crate::wire::nfs3::Handle;
use hashbrown::HashMap;
use std::sync::{Mutex, PoisonError};

/// Most files and folders of the mirror that have a number at once.
pub const SHADOWS_MAX: usize = 262_144;

/// A virtual object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Top,
    Users,
    User(u32),
    UserControl(u32),
    UserRole(u32, u16),
    Roles,
    Role(u16),
    RoleControl(u16),
    RoleMembers(u16),
    RoleInherits(u16),
    /// Mirror of a file or folder, by its number.
    Shadow(u64),
}

impl Node {
    pub(super) fn parts(self) -> (u8, u64, u16) {
        match self {
            Node::Top => (1, 0, 0),
            Node::Users => (2, 0, 0),
            Node::User(uid) => (3, u64::from(uid), 0),
            Node::UserControl(uid) => (4, u64::from(uid), 0),
            Node::UserRole(uid, role) => (5, u64::from(uid), role),
            Node::Roles => (6, 0, 0),
            Node::Role(role) => (7, 0, role),
            Node::RoleControl(role) => (8, 0, role),
            Node::RoleMembers(role) => (9, 0, role),
            Node::RoleInherits(role) => (10, 0, role),
            Node::Shadow(number) => (11, number, 0),
        }
    }

    pub(super) fn of(kind: u8, number: u64, role: u16) -> Option<Node> {
        let uid = u32::try_from(number).ok();
        Some(match kind {
            1 => Node::Top,
            2 => Node::Users,
            3 => Node::User(uid?),
            4 => Node::UserControl(uid?),
            5 => Node::UserRole(uid?, role),
            6 => Node::Roles,
            7 => Node::Role(role),
            8 => Node::RoleControl(role),
            9 => Node::RoleMembers(role),
            10 => Node::RoleInherits(role),
            11 => Node::Shadow(number),
            _ => return None,
        })
    }
}

/// By handle, by number, and the last number.
type ShadowTables = (HashMap<Box<[u8]>, u64>, HashMap<u64, Handle>, u64);

/// Numbers of mirrored objects; soft state.
#[derive(Debug, Default)]
pub struct Shadows {
    tables: Mutex<ShadowTables>,
}

impl Shadows {
    pub(super) fn number(&self, real: &Handle) -> u64 {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let (by_handle, by_number, next) = &mut *tables;
        if let Some(number) = by_handle.get(real.as_bytes()) {
            return *number;
        }
        if by_handle.len() >= SHADOWS_MAX {
            // Old handles become stale, and their names are looked up again.
            by_handle.clear();
            by_number.clear();
        }
        *next += 1;
        by_handle.insert(real.as_bytes().into(), *next);
        by_number.insert(*next, *real);
        *next
    }

    pub(super) fn real(&self, number: u64) -> Option<Handle> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).1.get(&number).copied()
    }
}
