//! `weir token`: makes, lists and voids join tokens.

use super::output::{done, print, table};
use super::{Failure, Output};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use std::process::ExitCode;
use weir_api::client::Client;
use weir_api::types::{TokenRequest, TokenView};
use weir_model::Label;
use weir_model::event::Role;

/// What joins.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Joins {
    /// Carries endpoints
    Host,
    /// Knows every network
    Gateway,
    /// Has planes and no switch ('weir host --no-switch')
    Planes,
}

impl From<Joins> for Role {
    fn from(joins: Joins) -> Role {
        match joins {
            Joins::Host => Role::Host,
            Joins::Gateway => Role::Gateway,
            Joins::Planes => Role::Planes,
        }
    }
}

/// `weir token`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Token {
    #[command(subcommand)]
    command: Option<Command>,
    /// Name that whoever joins by it gets
    #[arg(long, required = true)]
    name: Option<Label>,
    /// What joins by it
    #[arg(long, value_enum, default_value_t = Joins::Host)]
    role: Joins,
    /// How long it is good for, seconds: 60 to 604800
    #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u32).range(60..=604_800))]
    valid_s: u32,
    /// Where its address on the underlay may be, if that is not the one from which it speaks to the controller
    #[arg(long, value_name = "ADDRESS|PREFIX")]
    underlay: Option<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the tokens that were made
    List(List),
    /// Have a token not taken any more; who has joined by it stays
    Void(Void),
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Void {
    /// What 'weir token list' calls it
    id: String,
    #[command(flatten)]
    output: Output,
}

fn row(one: &TokenView) -> Vec<String> {
    let underlay = one.underlay.clone().unwrap_or_default();
    vec![
        one.id.clone(),
        one.name.clone(),
        one.role.as_str().to_owned(),
        one.state.clone(),
        one.until_s.to_string(),
        underlay,
    ]
}

impl Token {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        match self.command {
            Some(Command::List(List { output })) => {
                let listed = client.tokens()?;
                print(output.output, &listed, || {
                    let mut table = table(&["id", "name", "role", "state", "until (s)", "underlay"]);
                    for one in &listed.items {
                        table.add_row(row(one));
                    }
                    say!("{table}");
                })?;
            }
            Some(Command::Void(Void { id, output })) => {
                client.void_token(&id)?;
                let words = format!(
                    "{id} is not taken any more. Whoever has joined by it stays: 'weir identity revoke' ends that."
                );
                done(output.output, json!({"voided": id}), &words)?;
            }
            None => {
                let name =
                    self.name.ok_or_else(|| Failure::Input("say for whom it is: --name NAME".to_owned()))?;
                let (valid_s, underlay) = (Some(self.valid_s), self.underlay);
                let request = TokenRequest { name, role: self.role.into(), valid_s, underlay, key: None };
                let made = client.token(&request)?;
                print(self.output.output, &made, || say!("{}", made.token))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
