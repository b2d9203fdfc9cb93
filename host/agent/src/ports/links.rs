//! What the kernel tells of devices by itself: that one went, came or was renamed, in each namespace in which ports have theirs, and that
//! a named namespace came or went.
//!
//! It says where to look, and no more: what is there then, and what is to be done, the keeper finds out as in its looks from time to time, which
//! go on for what is not told (too many namespaces, messages that were lost).
//!
//! A socket that listens in a namespace keeps it alive. So it is closed as soon as the namespace's name is gone or is another's.

use super::devices::Namespaces;
use crate::shared::Shared;
use crate::sys;
use rustix::fs::inotify::{self, WatchFlags};
use rustix::net::{RecvFlags, recv};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Most namespaces that are listened in; what happens in others is seen by the looks.
pub const LISTENED_MAX: usize = 1024;
/// Most names of a namespace's devices that are remembered; beyond, all are forgotten, and each next message is news.
const NAMES_MAX: usize = 4096;
/// Bytes of one read: the kernel's largest message fits.
const READ_BYTES: usize = 64 * 1024;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const IFLA_IFNAME: u16 = 3;
/// Of a message, and of what it says of a device in front of its attributes.
const HEADER_BYTES: usize = 16;
const DEVICE_BYTES: usize = 16;

/// Devices of a namespace, as far as the kernel told of them.
#[derive(Debug, Default)]
pub struct Names(HashMap<i32, Vec<u8>>);

impl Names {
    /// Takes in messages; returns whether a device went, came, or has another name.
    pub fn take(&mut self, mut messages: &[u8]) -> bool {
        let mut is_news = false;
        while let Some((message, rest)) = next_message(messages) {
            is_news |= self.take_one(message);
            messages = rest;
        }
        is_news
    }

    fn take_one(&mut self, message: &[u8]) -> bool {
        let kind = u16::from_ne_bytes([message[4], message[5]]);
        let Some(device) = message.get(HEADER_BYTES..HEADER_BYTES + DEVICE_BYTES) else { return false };
        // Others are of bridges' ports.
        let is_device = i32::from(device[0]) == libc::AF_UNSPEC;
        let index = i32::from_ne_bytes([device[4], device[5], device[6], device[7]]);
        match kind {
            RTM_DELLINK if is_device => {
                self.0.remove(&index);
                true
            }
            RTM_NEWLINK if is_device => {
                let Some(name) = name_of(&message[HEADER_BYTES + DEVICE_BYTES..]) else { return false };
                if self.0.len() >= NAMES_MAX {
                    self.0.clear();
                }
                self.0.insert(index, name.to_vec()).as_deref() != Some(name)
            }
            _ => false,
        }
    }
}

/// The first message and what follows it; nothing where its length cannot be.
fn next_message(messages: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_ne_bytes(*messages.first_chunk()?) as usize;
    let message = messages.get(..length).filter(|message| message.len() >= HEADER_BYTES)?;
    Some((message, messages.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The name among a device's attributes.
fn name_of(mut attributes: &[u8]) -> Option<&[u8]> {
    loop {
        let [length @ .., _, _] = *attributes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes(length));
        let attribute = attributes.get(..length).filter(|attribute| attribute.len() >= 4)?;
        if u16::from_ne_bytes([attribute[2], attribute[3]]) == IFLA_IFNAME {
            return Some(&attribute[4..]);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// Where there is something to look at.
#[derive(Debug, Default)]
pub struct News {
    changed: Notify,
    namespaces: Mutex<BTreeSet<Option<String>>>,
    folder: AtomicBool,
}

impl News {
    fn tell(&self, netns: Option<String>) {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).insert(netns);
        self.changed.notify_one();
    }

    fn tell_folder(&self) {
        self.folder.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Waits until there is something.
    pub async fn wait(&self) {
        self.changed.notified().await;
    }

    /// Namespaces in which something changed, and whether named namespaces came or went.
    pub fn take(&self) -> (BTreeSet<Option<String>>, bool) {
        let namespaces = std::mem::take(&mut *self.namespaces.lock().unwrap_or_else(PoisonError::into_inner));
        (namespaces, self.folder.swap(false, Ordering::AcqRel))
    }
}

/// A task that ends with this.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
struct Listened {
    identity: Option<(u64, u64)>,
    task: Task,
}

/// See the module.
#[derive(Debug)]
pub struct Links {
    shared: Arc<Shared>,
    news: Arc<News>,
    listened: BTreeMap<Option<String>, Listened>,
    folder: Option<Task>,
}

impl Links {
    /// Nothing is listened to yet.
    pub fn new(shared: Arc<Shared>) -> Links {
        Links { shared, news: Arc::default(), listened: BTreeMap::new(), folder: None }
    }

    /// What was told.
    pub fn news(&self) -> Arc<News> {
        Arc::clone(&self.news)
    }

    /// Listens in these namespaces, and in no others. Where it begins to, there is news: something may have happened before.
    pub async fn listen_in(&mut self, namespaces: &Namespaces, wanted: &BTreeSet<Option<String>>) {
        self.watch_folder(namespaces.folder());
        let identity = |netns: &Option<String>| netns.as_deref().and_then(|netns| namespaces.identity(netns));
        self.listened.retain(|netns, listened| {
            let is_there = netns.is_none() || listened.identity.is_some();
            // One that ended by an error stays, so that it is not begun again and again: the looks are what sees then.
            wanted.contains(netns) && is_there && listened.identity == identity(netns)
        });
        for netns in wanted {
            if self.listened.contains_key(netns) || self.listened.len() >= LISTENED_MAX {
                continue;
            }
            // Read before: if the namespace is made anew meanwhile, it differs.
            let identity = identity(netns);
            if netns.is_some() && identity.is_none() {
                continue;
            }
            let Ok(socket) = namespaces.listen(netns.as_deref()).await else { continue };
            let (shared, news, of) = (Arc::clone(&self.shared), self.news(), netns.clone());
            let task = Task(tokio::spawn(async move { hear(&shared, &news, of, socket).await }));
            self.listened.insert(netns.clone(), Listened { identity, task });
            self.news.tell(netns.clone());
        }
        let hearing = self.listened.values().filter(|listened| !listened.task.0.is_finished()).count();
        self.shared.metrics.links_listened.set(hearing as u64);
    }

    fn watch_folder(&mut self, folder: &Path) {
        if self.folder.as_ref().is_some_and(|task| !task.0.is_finished()) {
            return;
        }
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::DELETE_SELF;
        let watched = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)
            .and_then(|watched| inotify::add_watch(&watched, folder, flags).map(|_| watched));
        // It is made with the first namespace: until then there is nothing to be told.
        let Ok(watched) = watched else { return };
        let news = self.news();
        self.folder = Some(Task(tokio::spawn(async move {
            drain(watched, |_| news.tell_folder(), || news.tell_folder()).await;
        })));
    }
}

async fn hear(shared: &Shared, news: &News, netns: Option<String>, socket: OwnedFd) {
    let mut names = Names::default();
    let changed = || {
        shared.metrics.links_changed.count();
        news.tell(netns.clone());
    };
    let take = |messages: &[u8]| {
        if names.take(messages) {
            changed();
        }
    };
    drain(socket, take, changed).await;
}

/// Reads a descriptor for ever; `lost` is called when the kernel had no room for what it wanted to tell.
async fn drain(descriptor: OwnedFd, mut take: impl FnMut(&[u8]), mut lost: impl FnMut()) {
    let Some(watched) = sys::watch(descriptor) else { return };
    let mut bytes = vec![0; READ_BYTES];
    loop {
        let Ok(mut ready) = watched.readable().await else { return };
        // A socket's loss is told by `recv` alone; an inotify's descriptor is no socket.
        let read = match recv(watched.get_ref(), &mut bytes[..], RecvFlags::empty()) {
            Err(rustix::io::Errno::NOTSOCK) => rustix::io::read(watched.get_ref(), &mut bytes[..]),
            read => read.map(|(read, _)| read),
        };
        match read {
            Ok(0) => return,
            Ok(read) => take(&bytes[..read]),
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::NOBUFS) => lost(),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests;
