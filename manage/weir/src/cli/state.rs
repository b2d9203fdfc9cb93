//! `weir state`: whether the state directory of a controller, a host or a gateway is whole, and what to do where it is not.

use super::Failure;
use super::consent::Consent;
use crate::roles::manifest;
use crate::roles::state::StateError;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(super) enum State {
    /// Say what is missing, damaged or of another time (exit code 4); reads only
    Check(Place),
    /// Take the directory as it is now: what is missing from it is never asked for again; a host without its key joins anew. While its
    /// controller or host does not run
    Accept(Change),
    /// Put a member's place in the order aside, so that it joins its group anew. While its controller does not run
    Rejoin(Change),
}

#[derive(Debug, Args)]
pub(super) struct Place {
    /// State directory of the controller, host or gateway
    #[arg(long, value_name = "DIRECTORY")]
    state: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Change {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    consent: Consent,
}

/// Exit code where something is wrong.
const WRONG: u8 = 4;

fn wrong(error: StateError) -> Failure {
    Failure::Input(error.to_string())
}

impl State {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        match self {
            State::Check(Place { state }) => {
                let problems = manifest::problems(&state, None).map_err(wrong)?;
                if problems.is_empty() {
                    say!("{} is whole, as far as its manifest says.", state.display());
                    return Ok(ExitCode::SUCCESS);
                }
                problems.iter().for_each(|problem| say!("{problem}"));
                Ok(ExitCode::from(WRONG))
            }
            State::Accept(Change { place: Place { state }, consent }) => {
                manifest::may_accept(&state).map_err(wrong)?;
                let problems = manifest::problems(&state, None);
                let told = problems.as_ref().map_or_else(ToString::to_string, |all| all.join(", "));
                let what = format!(
                    "{} is taken as it is: {}. What was lost is lost: a controller that gets new keys is another one for hosts and for the \
                     other controllers, and one without its log begins again; a host without its keys joins anew, with a token.",
                    state.display(),
                    if told.is_empty() { "nothing is missing" } else { &told }
                );
                if !consent.given(&what)? {
                    return Ok(ExitCode::SUCCESS);
                }
                let generation = manifest::accept(&state).map_err(wrong)?;
                say!("{} is taken as it is (generation {generation}).", state.display());
                Ok(ExitCode::SUCCESS)
            }
            State::Rejoin(Change { place: Place { state }, .. }) if weir_agent::kept::is_host(&state) => {
                Err(Failure::Input(format!(
                    "{} is of a host, which has no place in an order: 'weir state accept' and a new token let it join anew",
                    state.display()
                )))
            }
            State::Rejoin(Change { place: Place { state }, consent }) => {
                let parts = manifest::of_member(&state);
                let what = format!(
                    "{} is put aside ({}): it forgets how it voted. In a group with order: raft, first 'weir group remove' it at another \
                     controller; then this; then start it with --join-group and 'weir group add' it. With order: bft, when all others are \
                     known to be sound: this, then start it, and count it as one that may lie until it is not behind.",
                    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") },
                    state.display()
                );
                if !consent.given(&what)? {
                    return Ok(ExitCode::SUCCESS);
                }
                let aside = manifest::rejoin(&state).map_err(wrong)?;
                say!("Its place in the order is in {} now: start it with --join-group.", aside.display());
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
