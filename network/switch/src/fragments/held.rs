//! Fragments that come before the first one of their datagram wait for it (rows A17, A22, A24, A25).
//!
//! They are judged as they would have been behind it: when the first one was taken, those that wait for it are taken in
//! the order of their offsets, each as if it had just come, so that verdict, translation and counters are the first one's. Nothing is
//! decided about a fragment while it waits, and nobody but a first fragment has it go on.
//!
//! Limits: [`FRAMES_MAX`] and [`BYTES_MAX`] in all, [`SHARE_FRAMES`] and [`SHARE_BYTES`] of one sender (a port, or a class of senders on the
//! underlay), [`WAIT_MS`] each. Where a sender has its share, its oldest makes room; where all is taken, the oldest of whoever
//! has most: who floods takes from himself. What makes room, and what waited too long, is dropped and counted as `fragment-early`.
//!
//! What comes from the underlay waits only if a flow of its sender and network is known: strangers get no room here.
//!
//! A process that takes over gets none of them (row A30): their datagrams are sent again.

use super::DatagramKey;
use crate::flow::Ingress;
use std::collections::VecDeque;
use weir_packet::Parsed;
use weir_packet::virtio::VirtioNetHeader;

/// Most fragments that wait.
pub const FRAMES_MAX: usize = 256;
/// Most bytes of them.
pub const BYTES_MAX: usize = 512 * 1024;
/// Most fragments of one sender: more than the largest datagram has at an MTU of 1500.
pub const SHARE_FRAMES: usize = 64;
/// Most bytes of one sender: the largest datagram, and another.
pub const SHARE_BYTES: usize = 128 * 1024;
/// How long a fragment waits for its first one, milliseconds.
pub const WAIT_MS: u32 = 1000;

/// A fragment, as it is to be taken again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldFrame {
    /// Where it came in.
    pub ingress: Ingress,
    /// Who is charged.
    pub class: usize,
    /// What its device said of it.
    pub virtio: VirtioNetHeader,
    /// The frame.
    pub frame: Box<[u8]>,
}

#[derive(Clone, Debug)]
struct Waiting {
    key: DatagramKey,
    offset: u16,
    since_ms: u32,
    held: HeldFrame,
}

impl Waiting {
    fn is_over(&self, now_ms: u32) -> bool {
        now_ms.wrapping_sub(self.since_ms) > WAIT_MS
    }
}

/// Fragments that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// How many.
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl Lost {
    fn add(&mut self, waiting: &Waiting) {
        self.frames += 1;
        self.bytes += waiting.held.frame.len() as u64;
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// In the order in which they came.
    waiting: VecDeque<Waiting>,
    /// Those whose first fragment has come.
    due: VecDeque<HeldFrame>,
    bytes: usize,
}

impl Held {
    /// Keeps a later fragment whose first one was not seen. Returns what was dropped for it, or instead of it.
    pub fn hold(&mut self, parsed: &Parsed, held: HeldFrame, now_ms: u32) -> Lost {
        let mut lost = self.expire(now_ms);
        let length = held.frame.len();
        let key = DatagramKey::new(&held.ingress, parsed);
        let waiting = Waiting { key, offset: parsed.fragment_offset, since_ms: now_ms, held };
        if length > SHARE_BYTES {
            lost.add(&waiting);
            return lost;
        }
        loop {
            let (frames, bytes) = self.share(waiting.held.class);
            let class = if frames >= SHARE_FRAMES || bytes + length > SHARE_BYTES {
                Some(waiting.held.class)
            } else if self.waiting.len() + self.due.len() >= FRAMES_MAX || self.bytes + length > BYTES_MAX {
                self.heaviest()
            } else {
                break;
            };
            let Some(oldest) = self.waiting.iter().position(|old| Some(old.held.class) == class) else {
                // All that is kept goes on soon.
                lost.add(&waiting);
                return lost;
            };
            if let Some(oldest) = self.waiting.remove(oldest) {
                self.bytes -= oldest.held.frame.len();
                lost.add(&oldest);
            }
        }
        self.bytes += length;
        self.waiting.push_back(waiting);
        lost
    }

    /// Fragments and bytes of a sender that wait.
    fn share(&self, class: usize) -> (usize, usize) {
        let of_class = self.waiting.iter().filter(|waiting| waiting.held.class == class);
        of_class.fold((0, 0), |(frames, bytes), waiting| (frames + 1, bytes + waiting.held.frame.len()))
    }

    /// Who has most bytes here.
    fn heaviest(&self) -> Option<usize> {
        let mut shares: Vec<(usize, usize)> = Vec::new();
        for Waiting { held, .. } in &self.waiting {
            match shares.iter_mut().find(|(class, _)| *class == held.class) {
                Some((_, bytes)) => *bytes += held.frame.len(),
                None => shares.push((held.class, held.frame.len())),
            }
        }
        shares.iter().max_by_key(|(_, bytes)| *bytes).map(|(class, _)| *class)
    }

    /// The first fragment of a datagram was taken: what waits for it is due.
    pub fn first_came(&mut self, ingress: &Ingress, parsed: &Parsed, now_ms: u32) {
        if self.waiting.is_empty() {
            return;
        }
        let key = DatagramKey::new(ingress, parsed);
        let mut of_it: Vec<(u16, HeldFrame)> = Vec::new();
        for _ in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.pop_front() else { break };
            if waiting.key == key && !waiting.is_over(now_ms) {
                of_it.push((waiting.offset, waiting.held));
            } else {
                self.waiting.push_back(waiting);
            }
        }
        of_it.sort_by_key(|(offset, _)| *offset);
        self.due.extend(of_it.into_iter().map(|(_, held)| held));
    }

    /// One that is due.
    pub fn take_due(&mut self) -> Option<HeldFrame> {
        let held = self.due.pop_front()?;
        self.bytes -= held.frame.len();
        Some(held)
    }

    /// Lets those go that have waited too long.
    pub fn expire(&mut self, now_ms: u32) -> Lost {
        let mut lost = Lost::default();
        while self.waiting.front().is_some_and(|waiting| waiting.is_over(now_ms)) {
            let Some(waiting) = self.waiting.pop_front() else { break };
            self.bytes -= waiting.held.frame.len();
            lost.add(&waiting);
        }
        lost
    }

    /// Fragments here.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.due.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of those here.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
