//! Which addresses of a network a decision asked the tables about, so that the flow that comes of it hangs on them (row A12).
//!
//! What the tables say of an address is what they have under it, the route that it takes, and what they have under that route's next hop. So
//! these addresses and their next hops are all that a decision hangs on of what the tables have by address, and a link of a flow
//! cannot be forgotten: the maps are private to the tables, and each lookup by which a walk reads them notes its address here.

use std::cell::RefCell;
use std::net::IpAddr;

/// Most addresses that are noted of one walk. More than a flow has links for: of one with more it is known that it has too many.
pub const ASKED_MAX: usize = 8;

/// The addresses that a walk asked about.
#[derive(Default)]
pub struct Asked(RefCell<Vec<IpAddr>>);

impl std::fmt::Debug for Asked {
    /// They are no state: only whoever makes a walk reads them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}

impl Asked {
    /// Forgets them: another walk begins.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// Notes an address.
    pub fn note(&self, address: IpAddr) {
        let mut addresses = self.0.borrow_mut();
        if addresses.len() < ASKED_MAX && !addresses.contains(&address) {
            addresses.push(address);
        }
    }

    /// Says each of them.
    pub fn each(&self, mut say: impl FnMut(IpAddr)) {
        self.0.borrow().iter().for_each(|address| say(*address));
    }
}
