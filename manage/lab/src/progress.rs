//! Progress for people: a bar on a terminal, one plain line a step where output goes to a file.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// Steps of known number. Written to the error stream, so that results can be piped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    plain: bool,
    done: u64,
    total: u64,
}

impl Progress {
    /// A display of `total` steps under a title.
    pub fn new(title: &str, total: u64) -> Self {
        let plain = !std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(
            Some(total),
            if plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() },
        );
        if let Ok(style) =
            ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {elapsed} {wide_msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(title.to_string());
        if plain {
            eprintln!("{title}: {total} steps");
        } else {
            bar.enable_steady_tick(std::time::Duration::from_millis(200));
        }
        Self { bar, plain, done: 0, total }
    }

    /// Says what begins now.
    pub fn step(&mut self, text: &str) {
        self.done += 1;
        if self.plain {
            eprintln!("  [{}/{}] {text}", self.done.min(self.total), self.total);
        } else {
            self.bar.set_position(self.done.saturating_sub(1));
            self.bar.set_message(text.to_string());
        }
    }

    /// A line that stays.
    pub fn note(&self, text: &str) {
        if self.plain {
            eprintln!("  {text}");
        } else {
            self.bar.println(text);
        }
    }

    /// Ends the display.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}
