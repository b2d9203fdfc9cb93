//! `weir group convert`: a controller that is alone becomes the first member of a group, under traffic.
//!
//! Three steps, each of which leaves something whole; given again, the command goes on where it ended:
//! 1. the controller's order ends, and it starts again as the only member of a group;
//! 2. the others are added, one after the other;
//! 3. as soon as there are three they make the group's key, which takes the place of the one from before.

use super::consent::Consent;
use super::output;
use super::{Failure, Output};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weir_api::client::{Client, ClientError};
use weir_api::types::{AddMember, ConvertRequest, GroupStatus};

/// How long each step may take.
const STEP_BOUND: Duration = Duration::from_secs(120);
/// How often it is looked whether it is done.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(super) struct Convert {
    /// The order of the group: raft
    #[arg(long, required_unless_present = "back")]
    order: Option<String>,
    /// The number of this controller in the group
    #[arg(long, default_value_t = 1)]
    id: u64,
    /// Where the other controllers are to connect with this one
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "back")]
    listen: Option<String>,
    /// The controllers are in different places: they wait longer before they elect
    #[arg(long)]
    wide: bool,
    /// One of the others, which runs with --join-group; give it two times or more
    #[arg(long = "member", value_name = "NUMBER,REPLICA,API,SESSION", value_parser = member)]
    members: Vec<AddMember>,
    /// Take the conversion back at the next start, where the group has ordered nothing yet. While the controller does not run
    #[arg(long, requires = "state", conflicts_with_all = ["order", "listen", "members"])]
    back: bool,
    /// State directory of the controller, with --back
    #[arg(long, value_name = "DIRECTORY", requires = "back")]
    state: Option<PathBuf>,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    output: Output,
}

fn member(text: &str) -> Result<AddMember, String> {
    let wrong = || {
        format!(
            "'{text}': use NUMBER,REPLICA,API,SESSION, such as 2,192.0.2.11:7445,192.0.2.11:7443,192.0.2.11:7444"
        )
    };
    let mut parts = text.split(',').map(str::trim);
    let id: u64 = parts.next().and_then(|id| id.parse().ok()).ok_or_else(wrong)?;
    let mut next = || parts.next().filter(|part| !part.is_empty()).map(str::to_string).ok_or_else(wrong);
    let (replica, api, session) = (next()?, next()?, next()?);
    if parts.next().is_some() {
        return Err(wrong());
    }
    let member = json!({"id": id, "replica": replica, "api": api, "session": session});
    serde_json::from_value(member).map_err(|error| error.to_string())
}

/// Whether what was asked may go on by itself, or could be asked again.
fn passes(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(refused) => {
            matches!(refused.problem.code.as_str(), "unavailable" | "uncertain" | "overloaded" | "not-leader")
        }
        ClientError::Unreachable { .. } => true,
        _ => false,
    }
}

/// The group, once it has what is waited for.
fn wait(client: &Client, what: &str, is: impl Fn(&GroupStatus) -> bool) -> Result<GroupStatus, Failure> {
    let until = Instant::now() + STEP_BOUND;
    loop {
        match client.group() {
            Ok(group) if is(&group) => return Ok(group),
            Err(error) if Instant::now() >= until => return Err(error.into()),
            _ if Instant::now() >= until => {
                let text = format!(
                    "after {} s {what}: see 'weir group list', and give the command again, which goes on where it ended",
                    STEP_BOUND.as_secs()
                );
                return Err(Failure::Refused(text));
            }
            _ => std::thread::sleep(LOOK),
        }
    }
}

impl Convert {
    /// Whether no controller is asked.
    pub(super) fn is_back(&self) -> bool {
        self.back
    }

    pub(super) fn run_back(self) -> Result<ExitCode, Failure> {
        let dir = self.state.unwrap_or_default();
        let what = format!(
            "the conversion of {} is taken back at the next start of its controller, which goes on alone, with all that it had.",
            dir.display()
        );
        if !self.consent.given(&what)? {
            return Ok(ExitCode::SUCCESS);
        }
        crate::roles::convert::go_back(&dir)?;
        let words = "Start the controller by the command that it had before: it goes on alone.";
        output::done(self.output.output, json!({"takesBack": dir}), words)?;
        Ok(ExitCode::SUCCESS)
    }

    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let Convert { order, id, listen, wide, members, consent, output, .. } = self;
        let (order, listen) = (order.unwrap_or_default(), listen.unwrap_or_default());
        let count = members.len() + 1;
        let begun = match client.group() {
            Ok(group) if group.id == id && group.order == order => true,
            Ok(group) => {
                let text = format!(
                    "this is controller {} of a group with order: {}, and is not converted: 'weir group add' and 'remove' change who is in it",
                    group.id, group.order
                );
                return Err(Failure::Refused(text));
            }
            // It is alone, or the server says what is wrong.
            Err(_) => false,
        };
        let mut request = ConvertRequest { order, id, listen, wide, members, dry_run: true };
        if begun {
            let what = format!("The group has begun: what is missing of its {count} controllers is added.");
            if !consent.given(&what)? {
                return Ok(ExitCode::SUCCESS);
            }
        } else {
            let plan = client.convert(&request)?;
            let names: Vec<String> =
                request.members.iter().map(|one| format!("controller {}", one.id)).collect();
            let what = format!(
                "This controller becomes controller {id} of a group of {count} with order: raft, at {}.\n\
                 1. Its order ends with an entry that says so, and it starts again as the group's only member, with the state of now ({} KiB) \
                 and the same hosts ({}), keys and certificates. Nothing is taken for about a second; traffic goes on.\n\
                 2. {} come in one after the other, each with the whole state.\n\
                 3. With three the controllers make a key of their own. The key of now names it, and signs nothing any more.\n\
                 Once the group has ordered something there is no way back behind the first step.",
                plan.replica,
                plan.state_bytes.div_ceil(1024),
                plan.actuators,
                names.join(" and "),
            );
            if !consent.given(&what)? {
                return Ok(ExitCode::SUCCESS);
            }
            request.dry_run = false;
            match client.convert(&request) {
                // Its answer may be lost, as it ends.
                Ok(_) | Err(ClientError::Unreachable { may_be_done: true, .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        wait(client, "the controller does not lead a group of its own", |group| {
            group.id == id && group.leader.is_some()
        })?;
        for member in &request.members {
            let votes =
                |group: &GroupStatus| group.members.iter().any(|one| one.id == member.id && one.voter);
            let until = Instant::now() + STEP_BOUND;
            while !client.group().is_ok_and(|group| votes(&group)) {
                match client.add_member(member) {
                    Ok(()) => break,
                    Err(error) if passes(&error) && Instant::now() < until => std::thread::sleep(LOOK),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let group = wait(client, "the controllers have not made the group's key", |group| {
            group.members.iter().filter(|one| one.voter).count() >= count
                && group.signing.as_ref().is_none_or(|signing| {
                    signing.key.is_some() && signing.members.len() == group.members.len()
                })
        })?;
        let key = group.signing.and_then(|signing| signing.key);
        let words = format!(
            "The group has its {count} controllers. Write the part 'group' into the settings of controller {id} now (id: {id}, listen: {}); until \
             then it goes by what is in its state directory.",
            request.listen
        );
        output::done(output.output, json!({"converted": id, "controllers": count, "key": key}), &words)?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    //! Tests of how members are named.

    use super::member;

    #[test]
    fn a_member_is_its_number_and_three_places() {
        let read = member("2, 192.0.2.11:7445,192.0.2.11:7443,192.0.2.11:7444").unwrap();
        assert_eq!((read.id, read.replica.as_str()), (2, "192.0.2.11:7445"));
        assert_eq!((read.api.as_str(), read.session.as_str()), ("192.0.2.11:7443", "192.0.2.11:7444"));
        for wrong in ["", "2", "x,a,b,c", "2,a,b", "2,a,,c", "2,a,b,c,d"] {
            assert!(member(wrong).unwrap_err().contains("NUMBER,REPLICA,API,SESSION"), "{wrong}");
        }
    }
}
