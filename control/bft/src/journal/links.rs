//! The links from the founders' epoch to the last that is known, one file each, kept for ever: a replica that was away through many changes
//! of members, or never was one, is led by them (rows B1, C5).

use std::io;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use weir_base::world::Disk;
use weir_order::Error;

use super::{Journal, damaged};
use crate::core::{Tag, decode_final};
use crate::lock::locked;
use crate::members::{Link, Roster};
use crate::wire::{LINKS_MAX, Message};

const INCOMING: &str = "link.tmp";

/// See the module. Damaged files are asked for again.
pub struct Links {
    disk: Arc<dyn Disk>,
    group: Vec<u8>,
    founding: Roster,
    frontier: Roster,
}

fn file_name(epoch: u64) -> String {
    format!("epoch-{epoch:08}.link")
}

fn read(disk: &dyn Disk, epoch: u64) -> io::Result<Option<Link>> {
    let file = match disk.open(&file_name(epoch)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = vec![0; file.len()? as usize];
    let count = file.read_at(0, &mut bytes)?;
    bytes.truncate(count);
    let Some((sum, body)) = bytes.split_first_chunk::<32>() else { return Ok(None) };
    if Sha256::digest(body)[..] != sum[..] {
        tracing::warn!(epoch, "the file of a link is damaged: the link is asked for again");
        return Ok(None);
    }
    Ok(Link::decode(body.to_vec().into()).ok().filter(|link| link.block.epoch == epoch))
}

impl Links {
    /// Reads what is there.
    pub fn open(disk: &Arc<dyn Disk>, group: &[u8], founding: &Roster) -> Result<Links, Error> {
        let (founding, frontier) = (founding.clone(), founding.clone());
        let mut links = Links { disk: Arc::clone(disk), group: group.to_vec(), founding, frontier };
        let failed = |source| Error::Io {
            action: "reading",
            file: "a link between epochs".to_owned(),
            dir: disk.describe(),
            source: Arc::new(source),
        };
        while let Some(link) = read(&**disk, links.frontier.epoch).map_err(failed)? {
            let Some(next) = Roster::behind(group, &link.block) else { break };
            links.frontier = next;
        }
        Ok(links)
    }

    /// The last members that they lead to.
    pub fn frontier(&self) -> &Roster {
        &self.frontier
    }

    /// Makes one more durable, when it is the next.
    fn add(&mut self, link: &Link) -> io::Result<()> {
        let next = Roster::behind(&self.group, &link.block);
        let Some(next) = next.filter(|_| link.block.epoch == self.frontier.epoch) else { return Ok(()) };
        match self.disk.remove(INCOMING) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let (file, body) = (self.disk.create(INCOMING)?, link.encode());
        file.write_at(0, &[&Sha256::digest(&body)[..], &body].concat())?;
        file.sync_data()?;
        self.disk.rename(INCOMING, &file_name(link.block.epoch))?;
        self.disk.sync_dir()?;
        self.frontier = next;
        Ok(())
    }
}

impl Journal {
    /// Keeps a link for ever. Blocks until it is durable.
    pub fn keep_link(&self, link: &Link) -> Result<(), Error> {
        let kept = locked(&self.links).add(link);
        kept.map_err(|error| Error::Io {
            action: "writing",
            file: file_name(link.block.epoch),
            dir: self.disk.describe(),
            source: Arc::new(error),
        })
    }

    /// Makes links of the last blocks of epochs in the journal: a crash came before they were kept.
    pub(super) fn mend_links(&self) -> Result<(), Error> {
        let ends: Vec<(u64, u64)> = {
            let ledger = locked(&self.ledger);
            let ends = ledger.chain.iter().filter(|chained| chained.next.is_some());
            ends.filter_map(|chained| Some((chained.block, chained.certificate?))).collect()
        };
        for (block, certificate) in ends {
            let (block, record) = (self.block(block)?, self.read(certificate, Tag::Final)?);
            let (_, _, certificate) = decode_final(record).map_err(|error| damaged(error.0))?;
            self.keep_link(&Link { block, certificate })?;
        }
        Ok(())
    }

    /// Who ordered the batch at a place that was committed here in `epoch` or before; none where a link is missing.
    ///
    /// # Errors
    /// The disk's.
    pub fn roster_at(&self, index: u64, epoch: u64) -> io::Result<Option<Roster>> {
        let links = locked(&self.links);
        let mut roster = links.founding.clone();
        while roster.epoch < epoch {
            let Some(link) = read(&*self.disk, roster.epoch)? else { return Ok(None) };
            if link.block.last_index() >= index {
                break;
            }
            let Some(next) = Roster::behind(&links.group, &link.block) else { return Ok(None) };
            roster = next;
        }
        Ok(Some(roster))
    }

    /// What leads on from an epoch; nothing when no more is known.
    pub fn links(&self, epoch: u64) -> Option<Message> {
        let last = {
            let links = locked(&self.links);
            if epoch < links.founding.epoch {
                return None;
            }
            links.frontier.epoch
        };
        let wanted = (epoch..last).take(LINKS_MAX);
        let found: Vec<Link> = wanted.map_while(|epoch| read(&*self.disk, epoch).ok().flatten()).collect();
        (!found.is_empty()).then_some(Message::Links(found))
    }
}
