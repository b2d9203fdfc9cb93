//! The lock-order graph (Bohra, 3.4.2: dependency graphs): which locks a program takes while it holds which others, from the
//! events that it publishes.
//!
//! An event is three words: the thread, the lock, and 1 (wants it), 2 (has it) or 3 (let it go). An edge from one lock to another
//! says that somebody held the first when he wanted the second. A cycle of edges is a deadlock that may come, though it never did;
//! a cycle of threads that wait for each other is one that has come.
//!
//! Invariants
//! - The memory is fixed: [`LOCKS_MAX`] locks, [`THREADS_MAX`] threads, [`HELD_MAX`] locks that one thread holds. What finds no room
//!   is counted and left out, so an answer may say too little, never too much.
//! - After a loss of events nobody knows who holds what: that is forgotten, the edges stay.

use crate::resident::present;

/// Most locks.
pub const LOCKS_MAX: usize = 256;
/// Most threads that hold or want one at the same time.
pub const THREADS_MAX: usize = 256;
/// Most locks that one thread holds.
pub const HELD_MAX: usize = 8;
const WORDS: usize = LOCKS_MAX / 64;

/// A set of locks.
type Set = [u64; WORDS];

#[derive(Clone, Copy, Debug)]
struct Thread {
    id: u64,
    held: [u8; HELD_MAX],
    count: u8,
    wants: Option<u8>,
}

impl Thread {
    fn held(&self) -> &[u8] {
        &self.held[..usize::from(self.count)]
    }
}

/// The graph. See the module.
#[derive(Clone, Debug)]
pub struct LockOrder {
    locks: Vec<u64>,
    edges: Box<[Set]>,
    threads: Vec<Thread>,
    cycles: u64,
    /// Events that found no room.
    pub refused: u64,
}

impl Default for LockOrder {
    fn default() -> LockOrder {
        LockOrder {
            locks: present(Vec::with_capacity(LOCKS_MAX)),
            edges: present(vec![[0; WORDS]; LOCKS_MAX]).into_boxed_slice(),
            threads: present(Vec::with_capacity(THREADS_MAX)),
            cycles: 0,
            refused: 0,
        }
    }
}

fn has(set: &Set, lock: u8) -> bool {
    set[usize::from(lock) / 64] >> (lock % 64) & 1 == 1
}

fn put(set: &mut Set, lock: u8) {
    set[usize::from(lock) / 64] |= 1 << (lock % 64);
}

impl LockOrder {
    /// Its memory, bytes.
    pub const BYTES: usize = LOCKS_MAX * (8 + size_of::<Set>()) + THREADS_MAX * size_of::<Thread>();

    /// Takes an event.
    pub fn take(&mut self, thread: u64, lock: u64, operation: u64) {
        let Some(lock) = self.lock(lock) else {
            self.refused += 1;
            return;
        };
        match operation {
            1 => self.wants(thread, lock),
            2 => {
                self.wants(thread, lock);
                self.gets(thread, lock);
            }
            3 => self.lets_go(thread, lock),
            _ => self.refused += 1,
        }
    }

    /// Events were lost.
    pub fn forget_holders(&mut self) {
        self.threads.clear();
    }

    fn lock(&mut self, id: u64) -> Option<u8> {
        if let Some(at) = self.locks.iter().position(|known| *known == id) {
            return u8::try_from(at).ok();
        }
        if self.locks.len() == LOCKS_MAX {
            return None;
        }
        self.locks.push(id);
        u8::try_from(self.locks.len() - 1).ok()
    }

    fn thread(&mut self, id: u64) -> Option<usize> {
        if let Some(at) = self.threads.iter().position(|thread| thread.id == id) {
            return Some(at);
        }
        if self.threads.len() == THREADS_MAX {
            self.refused += 1;
            return None;
        }
        self.threads.push(Thread { id, held: [0; HELD_MAX], count: 0, wants: None });
        Some(self.threads.len() - 1)
    }

    fn wants(&mut self, thread: u64, lock: u8) {
        let Some(at) = self.thread(thread) else { return };
        let Thread { held, count, wants, .. } = &mut self.threads[at];
        *wants = Some(lock);
        let (held, count) = (*held, usize::from(*count));
        for before in held.into_iter().take(count) {
            // To take a lock again that one holds is the business of that lock.
            if before == lock || has(&self.edges[usize::from(before)], lock) {
                continue;
            }
            if self.leads(lock, before) {
                self.cycles += 1;
            }
            put(&mut self.edges[usize::from(before)], lock);
        }
    }

    fn gets(&mut self, thread: u64, lock: u8) {
        let Some(at) = self.thread(thread) else { return };
        let thread = &mut self.threads[at];
        thread.wants = None;
        if thread.held().contains(&lock) {
            return;
        }
        match thread.held.get_mut(usize::from(thread.count)) {
            Some(place) => {
                *place = lock;
                thread.count += 1;
            }
            None => self.refused += 1,
        }
    }

    fn lets_go(&mut self, thread: u64, lock: u8) {
        let Some(at) = self.threads.iter().position(|known| known.id == thread) else { return };
        let thread = &mut self.threads[at];
        if let Some(place) = thread.held().iter().position(|held| *held == lock) {
            thread.count -= 1;
            thread.held[place] = thread.held[usize::from(thread.count)];
        }
        if thread.count == 0 && thread.wants.is_none() {
            self.threads.swap_remove(at);
        }
    }

    /// Whether edges lead from one lock to another.
    fn leads(&self, from: u8, to: u8) -> bool {
        let (mut seen, mut next): (Set, Set) = ([0; WORDS], [0; WORDS]);
        put(&mut next, from);
        while next != [0; WORDS] {
            let mut after: Set = [0; WORDS];
            for lock in (0..=u8::MAX).filter(|lock| has(&next, *lock)) {
                if has(&self.edges[usize::from(lock)], to) {
                    return true;
                }
                for (word, more) in after.iter_mut().zip(&self.edges[usize::from(lock)]) {
                    *word |= more;
                }
            }
            for (seen, next) in seen.iter_mut().zip(&next) {
                *seen |= next;
            }
            for ((next, after), seen) in next.iter_mut().zip(&after).zip(&seen) {
                *next = after & !seen;
            }
        }
        false
    }

    /// Edges that closed a cycle: deadlocks that may come.
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Threads that wait for each other in a circle now.
    pub fn deadlocked(&self) -> u64 {
        let holder = |lock: u8| self.threads.iter().position(|thread| thread.held().contains(&lock));
        let follows = |at: usize| self.threads[at].wants.and_then(holder);
        let returns = |start: usize| {
            let mut at = start;
            for _ in 0..self.threads.len() {
                match follows(at) {
                    Some(next) if next == start => return true,
                    Some(next) => at = next,
                    None => return false,
                }
            }
            false
        };
        (0..self.threads.len()).filter(|at| returns(*at)).count() as u64
    }
}
