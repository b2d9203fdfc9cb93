//! Faults that are contained: a panic in the handling of one thing of many (a frame of a port) costs that thing, and every other
//! panic ends the process at once.
//!
//! A panic says that the program is wrong about something. Where what was touched is thrown away afterwards, going on is safe and
//! stopping is what an attacker wants; everywhere else nobody knows what is wrong, and a process that starts anew from what it has
//! kept is the better answer. So both are said in the code: [`contain`] around the one thing, and [`end_on_others`] once in `main`.
//!
//! Invariants
//! - Without [`end_on_others`], as in tests, a panic outside of [`contain`] unwinds as ever.
//! - A panic while another unwinds ends the process, as the language says.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest message that is kept, bytes.
const MESSAGE_BYTES_MAX: usize = 512;

thread_local! {
    /// How many contained regions this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Where the last contained panic was, and what it said.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A panic that was contained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contained {
    /// Where it was and what it said, if [`end_on_others`] was called; else what it said.
    pub message: String,
}

/// Leaves a region however it ends.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// Does `work`. A panic in it ends with it.
///
/// Whatever `work` changes must be made right, or thrown away, by the caller when it fails.
///
/// # Errors
/// What the panic said.
pub fn contain<T>(work: impl FnOnce() -> T) -> Result<T, Contained> {
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _leave = Leave;
        work()
    }));
    result.map_err(|payload| {
        let told = LAST.with(|last| last.try_borrow_mut().map(|mut last| std::mem::take(&mut *last)));
        let message = match told {
            Ok(told) if !told.is_empty() => told,
            _ => text_of(&*payload),
        };
        // What a payload does when it is dropped is its maker's, and may panic as well.
        std::mem::forget(payload);
        Contained { message: cut(message) }
    })
}

/// Has every panic outside of [`contain`] end the process, after whoever told of panics before has told. To be called once, when
/// the process starts.
pub fn end_on_others() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
            tell(info);
            std::process::abort();
        }
        // Whoever contains it tells of it, and not oftener than makes sense.
        let place = info.location().map(|place| format!("{}:{}: ", place.file(), place.line()));
        let text = place.unwrap_or_default() + &text_of(info.payload());
        let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = text));
    }));
}

fn text_of(payload: &(dyn std::any::Any + Send)) -> String {
    let known = payload.downcast_ref::<&str>().map(|text| (*text).to_string());
    known.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_string())
}

fn cut(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES_MAX {
        let end = (0..=MESSAGE_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests;
