//! The checker: knows what was proposed, answered and shown, and judges what is there after a crash. It knows
//! nothing of how a log works.

use std::collections::BTreeMap;

use bytes::Bytes;
use weir_base::world::Rng;

/// What proposers were told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Nothing yet, or an error that leaves it open.
    Open,
    /// It has this index.
    Acknowledged(u64),
    /// It is not in the order and never will be.
    Refused,
}

/// The payload of proposal `id`: the id, then bytes that only this id has.
pub fn payload(id: u64) -> Bytes {
    let mut rng = Rng::new(id);
    let mut bytes = vec![0; rng.below(1500) as usize];
    rng.fill(&mut bytes);
    let mut out = id.to_le_bytes().to_vec();
    out.extend_from_slice(&bytes);
    Bytes::from(out)
}

/// The id in a payload whose every byte is right.
pub fn id_of(bytes: &[u8]) -> Result<u64, String> {
    let head = bytes.get(..8).ok_or("a payload without an id")?;
    let id = u64::from_le_bytes(head.try_into().unwrap());
    if payload(id) == bytes { Ok(id) } else { Err(format!("the bytes of proposal {id} changed")) }
}

/// Remembers and judges. Ids are given in the order of proposing.
#[derive(Debug, Clone, Default)]
pub struct Witness {
    fates: BTreeMap<u64, Fate>,
    next_id: u64,
    /// What was shown as committed at the last opening, or acknowledged since: it may never change again.
    settled: Vec<u64>,
}

impl Witness {
    /// A new proposal's id.
    pub fn propose(&mut self) -> u64 {
        self.next_id += 1;
        self.fates.insert(self.next_id, Fate::Open);
        self.next_id
    }

    /// The proposer was told an index.
    pub fn acknowledged(&mut self, id: u64, index: u64) -> Result<(), String> {
        if self.fates.insert(id, Fate::Acknowledged(index)) != Some(Fate::Open) {
            return Err(format!("proposal {id} was answered twice"));
        }
        if index != self.settled.len() as u64 + 1 {
            return Err(format!("proposal {id} got index {index} after {}", self.settled.len()));
        }
        self.settled.push(id);
        Ok(())
    }

    /// The proposer was told that it is not in the order.
    pub fn refused(&mut self, id: u64) {
        self.fates.insert(id, Fate::Refused);
    }

    /// The ids that are settled, as the application's state.
    pub fn state(&self) -> &[u64] {
        &self.settled
    }

    /// Judges the whole history as it is after an opening, and takes it as settled.
    pub fn judge(&mut self, history: &[u64]) -> Result<(), String> {
        if !history.starts_with(&self.settled) {
            let same = history.iter().zip(&self.settled).take_while(|(there, was)| there == was).count();
            return Err(format!(
                "index {} was settled as proposal {:?} and is now {:?}",
                same + 1,
                self.settled.get(same),
                history.get(same)
            ));
        }
        if let Some(pair) = history.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(format!("proposal {} stands after {}: out of order or twice", pair[1], pair[0]));
        }
        for (nth, id) in history.iter().enumerate().skip(self.settled.len()) {
            match self.fates.get(id) {
                Some(Fate::Open) => {}
                fate => return Err(format!("index {} is proposal {id}, whose fate was {fate:?}", nth + 1)),
            }
        }
        self.settled = history.to_vec();
        // What is not there now must not turn up later.
        let mut there = history.iter().copied().zip(1..).peekable();
        for (id, fate) in &mut self.fates {
            match there.next_if(|(next, _)| next == id) {
                Some((_, index)) => *fate = Fate::Acknowledged(index),
                None => *fate = Fate::Refused,
            }
        }
        Ok(())
    }
}
