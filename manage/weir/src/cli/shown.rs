//! What a process beside the switch shows of itself, for a person: `top` (all of it, again and again) and `status` (whether it does what it should).
//! A FileWall and a monitor have both, by the same words, options and exit codes.

use super::output::{Format, print};
use crate::exit::Exit;
use crate::failure::Failure;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::io::{IsTerminal, Write};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// A kind of process that shows its status.
pub trait Shown: Debug {
    /// Where it does, unless another address is given.
    const ADDRESS: &'static str;
    /// What it is, with its article.
    const NAME: &'static str;
    /// All that it shows.
    type Status: Serialize + DeserializeOwned;
    /// What `status` says of it.
    type Brief: Serialize;

    /// Prints the status for people, beside the one before it (seconds earlier).
    fn show(status: &Self::Status, before: Option<(&Self::Status, u64)>);
    /// In short, and what is wrong.
    fn brief(status: &Self::Status) -> (Self::Brief, Vec<String>);
    /// Prints what is in [`Shown::brief`] for people.
    fn say(brief: &Self::Brief);
}

/// Asks what shows its status at an address.
///
/// # Errors
/// [`Failure::Input`].
pub fn fetch<S: Shown, T: DeserializeOwned>(address: SocketAddr, what: &str) -> Result<T, Failure> {
    let url = format!("http://{address}/{what}");
    let wrong = |error: ureq::Error| Failure::Input(format!("{url}: {error}; is {} running there?", S::NAME));
    ureq::get(&url).call().map_err(wrong)?.body_mut().read_json().map_err(wrong)
}

/// Which one is asked, and how its answer is printed.
#[derive(Debug, Args)]
pub struct Look<S: Shown> {
    /// Where it shows its status
    #[arg(long, default_value = S::ADDRESS)]
    status: SocketAddr,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    #[arg(skip)]
    of: PhantomData<S>,
}

impl<S: Shown> Look<S> {
    /// Asks it.
    ///
    /// # Errors
    /// As [`fetch`].
    pub fn fetch<T: DeserializeOwned>(&self, what: &str) -> Result<T, Failure> {
        fetch::<S, T>(self.status, what)
    }
}

/// `top`
#[derive(Debug, Args)]
pub struct Top<S: Shown> {
    #[command(flatten)]
    look: Look<S>,
    /// Seconds between two looks; without it, and when the output is no terminal, one look
    #[arg(long)]
    every_s: Option<u64>,
}

impl<S: Shown> Top<S> {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut before: Option<S::Status> = None;
        loop {
            let status: S::Status = self.look.fetch("status")?;
            if self.every_s.is_some() && std::io::stdout().is_terminal() {
                put!("\x1b[2J\x1b[H");
            }
            print(self.look.output, &status, || S::show(&status, before.as_ref().zip(self.every_s)))?;
            std::io::stdout().flush().map_err(Failure::io("printing"))?;
            let Some(seconds) = self.every_s else { return Ok(ExitCode::SUCCESS) };
            std::thread::sleep(Duration::from_secs(seconds.max(1)));
            before = Some(status);
        }
    }
}

/// `status`
#[derive(Debug, Args)]
pub struct Brief<S: Shown> {
    #[command(flatten)]
    look: Look<S>,
}

/// For programs.
#[derive(Serialize)]
struct Briefly<'a, B> {
    #[serde(flatten)]
    brief: &'a B,
    /// What is wrong.
    problems: &'a [String],
}

impl<S: Shown> Brief<S> {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let (brief, problems) = S::brief(&self.look.fetch("status")?);
        print(self.look.output, &Briefly { brief: &brief, problems: &problems }, || {
            S::say(&brief);
            problems.iter().for_each(|problem| say!("PROBLEM: {problem}"));
        })?;
        Ok(if problems.is_empty() { Exit::Done } else { Exit::No }.into())
    }
}
