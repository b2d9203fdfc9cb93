//! The tasks of one replica.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::{AbortHandle, JoinHandle};

tokio::task_local! {
    static LIFE: Life;
}

/// Ended tasks are forgotten whenever this many were added.
const SWEEP_EVERY: usize = 256;

#[derive(Default)]
struct Tasks {
    over: bool,
    threads: bool,
    handles: Vec<AbortHandle>,
    sweep_at: usize,
}

/// The tasks of one replica: all that were spawned, directly or not, by a task inside. They end together.
#[derive(Clone, Default)]
pub struct Life {
    tasks: Arc<Mutex<Tasks>>,
}

impl Life {
    /// A life whose replica may use other threads: in no simulation.
    pub fn with_threads() -> Life {
        Life { tasks: Arc::new(Mutex::new(Tasks { threads: true, ..Tasks::default() })) }
    }

    /// Runs `future` and all that it spawns within this life. Needs a tokio runtime.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let handle = tokio::spawn(LIFE.scope(self.clone(), future));
        // A panic elsewhere leaves a list of handles, which is whole.
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.over {
            handle.abort();
            return handle;
        }
        tasks.handles.push(handle.abort_handle());
        if tasks.handles.len() >= tasks.sweep_at {
            tasks.handles.retain(|task| !task.is_finished());
            tasks.sweep_at = tasks.handles.len() + SWEEP_EVERY;
        }
        handle
    }

    /// Ends all tasks where they stand, and those that they still try to spawn.
    pub fn end(&self) {
        let handles = {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.over = true;
            std::mem::take(&mut tasks.handles)
        };
        for handle in handles {
            handle.abort();
        }
    }
}

/// Whether the task that calls may use other threads.
pub(super) fn has_threads() -> bool {
    LIFE.try_with(|life| life.tasks.lock().unwrap_or_else(PoisonError::into_inner).threads).unwrap_or(false)
}

/// Spawns in the life of the task that calls, if it has one.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match LIFE.try_with(Life::clone) {
        Ok(life) => life.spawn(future),
        Err(_) => tokio::spawn(future),
    }
}
