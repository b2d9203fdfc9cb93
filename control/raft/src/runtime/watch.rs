//! A watch channel whose waiters wake in the order in which they came.
//!
//! One value with a version; a receiver remembers the version that it saw last. Waiters queue in a `tokio::sync::Notify`,
//! which is first come, first served. A value that was sent is seen even when the senders are gone.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use openraft_rt::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use openraft_rt::{OptionalSend, OptionalSync};
use tokio::sync::Notify;

struct Shared<T> {
    value: RwLock<T>,
    version: AtomicU64,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    changed: Notify,
}

impl<T> Shared<T> {
    fn read(&self) -> Held<'_, T> {
        // A panic in a caller's `modify` leaves a value that this channel cannot judge; openraft stops by itself then.
        Held(self.value.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// See the module.
pub struct OrderedWatch;

/// The value, held against changes.
pub struct Held<'a, T>(RwLockReadGuard<'a, T>);

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Changes the value.
pub struct Sender<T>(Arc<Shared<T>>);

/// Sees the value change.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

impl Watch for OrderedWatch {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = Held<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Sender<T>, Receiver<T>) {
        let shared = Arc::new(Shared {
            value: RwLock::new(init),
            version: AtomicU64::new(0),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(1),
            changed: Notify::new(),
        });
        (Sender(Arc::clone(&shared)), Receiver { shared, seen: 0 })
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::AcqRel);
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::AcqRel);
        Receiver { shared: Arc::clone(&self.shared), seen: self.seen }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<OrderedWatch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Ordering::Acquire) == 0 {
            return Err(SendError(value));
        }
        self.send_if_modified(|current| {
            *current = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        {
            let mut value = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
            if !modify(&mut value) {
                return false;
            }
            self.0.version.fetch_add(1, Ordering::AcqRel);
        }
        self.0.changed.notify_waiters();
        true
    }

    fn borrow_watched(&self) -> Held<'_, T> {
        self.0.read()
    }

    fn subscribe(&self) -> Receiver<T> {
        self.0.receivers.fetch_add(1, Ordering::AcqRel);
        Receiver { shared: Arc::clone(&self.0), seen: self.0.version.load(Ordering::Acquire) }
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<OrderedWatch, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            let mut waiting = std::pin::pin!(self.shared.changed.notified());
            // Queued before the version is read, or a change between the two would go unnoticed.
            waiting.as_mut().enable();
            let version = self.shared.version.load(Ordering::Acquire);
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if self.shared.senders.load(Ordering::Acquire) == 0 {
                return Err(RecvError(()));
            }
            waiting.await;
        }
    }

    fn borrow_watched(&self) -> Held<'_, T> {
        self.shared.read()
    }

    fn borrow_and_update(&mut self) -> Held<'_, T> {
        let held = self.shared.read();
        self.seen = self.shared.version.load(Ordering::Acquire);
        held
    }
}
