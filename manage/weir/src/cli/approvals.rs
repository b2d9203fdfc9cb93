//! `weir approvals`: requests that wait for the word of several operators, and what has to wait.
//!
//! Whoever approves signs the digest of the whole request. So the request itself is taken from the controller, its digest is made here, and
//! what is shown is decoded from it: a controller cannot show one request and have another one approved. Nor can the author: what would
//! move, hide or turn the text of a terminal is shown as what it is.

use super::consent::Consent;
use super::{Failure, Output, output};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};
use std::process::ExitCode;
use weir_api::client::Client;
use weir_api::types::{ApprovalList, NeedOf, NeedsRequest, WaitingView};
use weir_base::codec::decode;
use weir_model::Label;
use weir_model::approval::{Approval, RequestKind, WAIT_S};
use weir_model::domain::DomainEvent;
use weir_model::event::{EventBody, Mutation, Said, Wanted};
use weir_model::identity::IdentityEvent;
use weir_model::join::{from_hex, to_hex};
use weir_model::operator::{OperatorChange, OperatorRole};
use weir_model::plane::PlaneOrder;
use weir_model::request::kinds_of;
use weir_trust::said::digest;

/// How many digits of an id lists show.
const SHOWN_DIGITS: usize = 16;

#[derive(Debug, Subcommand)]
pub(super) enum Approvals {
    /// List the requests that wait, and what needs approvals here
    List(List),
    /// Show all that a request changes
    Show(Show),
    /// Approve a request: with the last approval that it needs it is done
    Approve(Say),
    /// Refuse a request, or take your own back: it waits no longer
    Reject(Say),
    /// Say which kinds of requests need the word of several operators, instead of what was said before
    Require(Require),
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// Its id, or the first digits of it
    id: String,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Say {
    /// Its id, or the first digits of it
    id: String,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Require {
    /// KIND=COUNT or KIND=COUNT:ROLE, such as delete-network=2:admin; the author is one of the COUNT, and the ROLE is operator where none is given.
    /// None at all: every request needs its author alone
    #[arg(value_name = "NEED", value_parser = need)]
    needs: Vec<NeedOf>,
    /// For how long a request waits, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = WAIT_S)]
    wait_s: u32,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    output: Output,
}

fn need(text: &str) -> Result<NeedOf, String> {
    let wrong = || {
        let kinds = RequestKind::ALL.map(RequestKind::as_str).join(", ");
        format!(
            "KIND=COUNT or KIND=COUNT:ROLE is wanted, with a kind of {kinds}, and the role operator or admin"
        )
    };
    let (kind, rest) = text.split_once('=').ok_or_else(wrong)?;
    let kind = RequestKind::ALL.into_iter().find(|known| known.as_str() == kind).ok_or_else(wrong)?;
    let (count, role) = rest.split_once(':').unwrap_or((rest, "operator"));
    let role = match role {
        "operator" => OperatorRole::Operator,
        "admin" => OperatorRole::Admin,
        _ => return Err(wrong()),
    };
    Ok(NeedOf { kind, approvals: count.parse().map_err(|_| wrong())?, role })
}

/// A request that waits, as its author signed it.
struct Found {
    view: WaitingView,
    id: [u8; 32],
    said: Said,
}

/// What is shown of one.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    id: &'a str,
    author: &'a str,
    kinds: Vec<&'static str>,
    needed: u8,
    role: OperatorRole,
    given: &'a [String],
    since_ms: u64,
    until_ms: u64,
    changes: Vec<String>,
}

impl Found {
    /// Checks that a request is the one that its id names, in a domain.
    fn of(view: WaitingView, domain: &Label) -> Result<Found, Failure> {
        use base64::Engine as _;
        let odd = |why: &str| {
            Failure::Refused(format!(
                "the controller shows a request under the id {} that {why}: nothing was signed; ask another controller, and compare their audits \
                 ('weir audit compare')",
                view.id
            ))
        };
        let bytes = base64::prelude::BASE64_STANDARD.decode(&view.said);
        let said: Said =
            decode(&bytes.map_err(|_| odd("cannot be read"))?).map_err(|_| odd("cannot be read"))?;
        let id = from_hex::<32>(&view.id).filter(|id| *id == digest(domain, &said));
        let id = id.ok_or_else(|| odd("is another one"))?;
        Ok(Found { view, id, said })
    }

    fn shown(&self) -> Shown<'_> {
        Shown {
            id: &self.view.id,
            author: self.said.author().short(),
            kinds: kinds_of(self.said.body()).into_iter().map(RequestKind::as_str).collect(),
            needed: self.view.needed,
            role: self.view.role,
            given: &self.view.given,
            since_ms: self.view.since_ms,
            until_ms: self.view.until_ms,
            changes: changes(self.said.body()),
        }
    }

    fn text(&self) -> String {
        let shown = self.shown();
        let mut text = format!(
            "Request {} of {}: {}\n",
            shown.id,
            plain(shown.author),
            plain(&weir_api::asked::in_words(self.said.body()))
        );
        for change in &shown.changes {
            text.push_str(&format!("  {}\n", plain(change)));
        }
        text.push_str(&format!(
            "It needs the word of {} of role {}, and has that of {}; until {} it waits.",
            shown.needed,
            role(shown.role),
            some(shown.given),
            super::audit::time(shown.until_ms)
        ));
        text
    }
}

fn some(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { plain(&names.join(", ")) }
}

/// Text of somebody else in a line of a terminal: control characters, and those that turn the direction or have no width, as their numbers.
fn plain(text: &str) -> String {
    let is_unseen = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        match is_unseen(c) {
            true => shown.extend(c.escape_unicode()),
            false => shown.push(c),
        }
        shown
    })
}

fn role(role: OperatorRole) -> &'static str {
    match role {
        OperatorRole::Operator => "operator",
        OperatorRole::Admin => "admin",
    }
}

/// All that an event changes, a line each: nothing that is approved is left out.
fn changes(body: &EventBody) -> Vec<String> {
    let mutation = |mutation: &Mutation| match &mutation.wanted {
        Wanted::Absent => format!("- {}", mutation.id),
        Wanted::Document(text) => format!("+ {} {text}", mutation.id),
    };
    let order = |order: &PlaneOrder| {
        let what = format!("{} at {}, '{}'", order.plane, order.actuator, order.name);
        match &order.spec {
            None => format!("- {what}"),
            Some(spec) => format!("+ {what} {}", String::from_utf8_lossy(spec)),
        }
    };
    let all_else = |replace_all: bool| replace_all.then(|| "- everything else".to_owned());
    match body {
        EventBody::Intent(wanted) => {
            wanted.mutations.iter().map(mutation).chain(all_else(wanted.replace_all)).collect()
        }
        EventBody::Apply(apply) => {
            let orders = apply.orders.iter().map(|change| order(&change.order));
            let resources = apply.resources.mutations.iter().map(mutation);
            resources.chain(orders).chain(all_else(apply.resources.replace_all)).collect()
        }
        EventBody::Order(wanted) => vec![order(wanted)],
        EventBody::Repair(wanted) => {
            vec![format!("{} at {}: {:?}", wanted.cgroup, wanted.actuator, wanted.action)]
        }
        EventBody::FileWall(wanted) => {
            let files = wanted.files.iter().flatten().map(|file| format!("+ {} {}", file.name, file.text));
            files.chain(wanted.files.is_none().then(|| "- all policies".to_owned())).collect()
        }
        EventBody::Domain(about) => match &**about {
            DomainEvent::Known(record) => {
                let underlays: Vec<String> = record.underlays.iter().map(ToString::to_string).collect();
                let controllers: Vec<&str> = record.controllers.iter().map(|one| one.api.as_str()).collect();
                vec![
                    format!("+ domain {} with controllers at {}", record.name, controllers.join(", ")),
                    format!(
                        "  key of its group {}, hosts in {}",
                        record.group_key.to_hex(),
                        underlays.join(", ")
                    ),
                ]
            }
            DomainEvent::Forgotten { domain } => vec![format!("- domain {domain}")],
            _ => Vec::new(),
        },
        EventBody::Removed { actuator } => vec![format!("- {actuator}")],
        EventBody::Identity(about) => match &**about {
            IdentityEvent::Revoked { whose, reason } => vec![format!("revoke {}: {reason}", whose.0)],
            IdentityEvent::Operator { whose, change } => match change {
                OperatorChange::Added(facts) | OperatorChange::Changed(facts) => {
                    let keys: Vec<String> = facts.keys.iter().map(|key| to_hex(key)).collect();
                    vec![format!("+ {} {} with keys {}", whose.0, role(facts.role), keys.join(", "))]
                }
                OperatorChange::Removed => vec![format!("- {}", whose.0)],
                OperatorChange::Founded(_) => Vec::new(),
            },
            _ => Vec::new(),
        },
        EventBody::Approval(about) => match &**about {
            Approval::Needed(needs) => {
                let need = |(kind, need): (&RequestKind, &weir_model::approval::Need)| {
                    format!("{kind} needs the word of {} of role {}", need.approvals, role(need.role))
                };
                let wait = format!("a request waits for {} s", needs.wait_s);
                let all = needs.kinds.iter().map(need);
                let none = needs.kinds.is_empty().then(|| "every request needs its author alone".to_owned());
                all.chain(none).chain([wait]).collect()
            }
            Approval::Given(_) | Approval::Refused(_) => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// The one whose id begins so.
fn find(client: &Client, id: &str) -> Result<Found, Failure> {
    let domain = client.operator_domain().ok_or_else(|| {
        Failure::Input(
            "what a request is known by is of a domain: take a context with an operator's key, or name the file ('--operator')".to_owned(),
        )
    })?;
    let id = id.to_ascii_lowercase();
    if id.is_empty() || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(Failure::Input(format!(
            "'{id}' is no id: the first hexadecimal digits of one are wanted, as 'weir approvals list' shows them"
        )));
    }
    let mut found: Vec<WaitingView> = client.approvals()?.items;
    found.retain(|one| one.id.starts_with(&id));
    match (found.pop(), found.pop()) {
        (Some(one), None) => Found::of(one, domain),
        (Some(_), Some(_)) => Err(Failure::Input(format!("'{id}' is the begin of several: say more digits"))),
        (None, _) => Err(Failure::Missing(format!(
            "no request '{id}' waits: it is done, refused or over; 'weir approvals list' shows what waits"
        ))),
    }
}

impl Approvals {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        match self {
            Approvals::List(List { output }) => {
                let list = client.approvals()?;
                output::print(output.output, &list, || say!("{}", text(&list)))?;
            }
            Approvals::Show(Show { id, output }) => {
                let found = find(client, &id)?;
                output::print(output.output, &found.shown(), || say!("{}", found.text()))?;
            }
            Approvals::Approve(say) => approve(client, say)?,
            Approvals::Reject(say) => reject(client, say)?,
            Approvals::Require(require) => require.run(client)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn approve(client: &Client, Say { id, consent, output }: Say) -> Result<(), Failure> {
    let found = find(client, &id)?;
    if !consent.given(&found.text())? {
        return Ok(());
    }
    let answer = client.approve(&found.id, true)?;
    let words = match answer.done {
        true => format!("Approved, and done at version {}.", answer.version),
        false => format!("Approved by {} of {}: it waits for more.", answer.given, answer.needed),
    };
    let fields: Value = json!({
        "id": found.view.id, "done": answer.done, "version": answer.version, "given": answer.given, "needed": answer.needed,
    });
    output::done(output.output, fields, &words)
}

fn reject(client: &Client, Say { id, consent, output }: Say) -> Result<(), Failure> {
    let found = find(client, &id)?;
    if consent.given(&format!("{}\nIt is refused for all.", found.text()))? {
        client.approve(&found.id, false)?;
        output::done(output.output, json!({"rejected": found.view.id}), "Rejected: it waits no longer.")?;
    }
    Ok(())
}

impl Require {
    fn run(self, client: &Client) -> Result<(), Failure> {
        let request = NeedsRequest { kinds: self.needs, wait_s: self.wait_s };
        let needs = request.needs().map_err(|error| Failure::Input(error.to_string()))?;
        let lines = changes(&EventBody::Approval(Box::new(Approval::Needed(needs))));
        let what = format!(
            "From now on: {}. Who the operators are, and this, need as many admins as the kind that needs most.",
            lines.join("; ")
        );
        if self.consent.given(&what)? {
            client.need_approvals(&request)?;
            output::done(
                self.output.output,
                json!({"needs": request.kinds, "waitS": request.wait_s}),
                &what,
            )?;
        }
        Ok(())
    }
}

/// What waits, in words.
fn text(list: &ApprovalList) -> String {
    let need = |need: &NeedOf| format!("{} {} of role {}", need.kind, need.approvals, role(need.role));
    let mut text = match list.needs.as_slice() {
        [] => "Every request needs its author alone ('weir approvals require' changes that).".to_owned(),
        needs => format!("Needed: {}.", needs.iter().map(need).collect::<Vec<_>>().join("; ")),
    };
    if list.items.is_empty() {
        text.push_str("\nNothing waits for approval.");
        return text;
    }
    let mut table = output::table(&["request", "author", "given", "needed", "until", "what"]);
    for one in &list.items {
        use base64::Engine as _;
        let bytes = base64::prelude::BASE64_STANDARD.decode(&one.said).unwrap_or_default();
        let said = decode::<Said>(&bytes);
        let (author, what) = said.map_or_else(
            |_| ("?".to_owned(), "what this release cannot read".to_owned()),
            |said| (plain(said.author().short()), plain(&weir_api::asked::in_words(said.body()))),
        );
        let needed = format!("{} of role {}", one.needed, role(one.role));
        let shown = one.id.chars().take(SHOWN_DIGITS).collect();
        table.add_row(vec![shown, author, some(&one.given), needed, super::audit::time(one.until_ms), what]);
    }
    format!("{text}\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use weir_base::codec::encode;
    use weir_model::event::{Event, SourceId, Transaction};
    use weir_model::resource::{Kind, ResourceId};
    use weir_trust::identity::KeyPair;
    use weir_trust::said::sign_said;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn said(name: &str) -> Said {
        let id = ResourceId { kind: Kind::Network, network: None, name: label(name) };
        let mutations = vec![Mutation { id, expected: None, wanted: Wanted::Absent }];
        let body = EventBody::Intent(Transaction { mutations, replace_all: false });
        let event = Event { source: SourceId::of_operator(&label("alice")), sequence: 1, body };
        sign_said(&KeyPair::from_seed(&[1; 32]), &label("prod"), event, (1, 2))
    }

    fn view(id: &Said, shown: &Said) -> WaitingView {
        WaitingView {
            id: to_hex(&digest(&label("prod"), id)),
            said: base64::prelude::BASE64_STANDARD.encode(encode(shown)),
            version: 7,
            since_ms: 1,
            until_ms: 2,
            needed: 2,
            role: OperatorRole::Admin,
            given: vec!["alice".into()],
        }
    }

    #[test]
    fn what_is_shown_is_what_the_id_names() {
        let (red, blue) = (said("red"), said("blue"));
        let found = Found::of(view(&red, &red), &label("prod")).unwrap();
        assert_eq!(found.shown().changes, ["- network/red"]);
        assert_eq!(found.shown().kinds, ["apply", "delete", "delete-network"]);
        assert!(found.text().contains("needs the word of 2 of role admin, and has that of alice"));
        for wrong in [
            Found::of(view(&red, &blue), &label("prod")),
            Found::of(view(&red, &red), &label("west")),
            Found::of(WaitingView { said: "!".into(), ..view(&red, &red) }, &label("prod")),
        ] {
            let why = wrong.err().unwrap().to_string();
            assert!(why.contains("nothing was signed"), "{why}");
        }
    }

    /// A text that would go back over the line before, or look like another one, is shown as what it is, in one line.
    #[test]
    fn nothing_of_a_request_is_hidden_by_how_it_is_written() {
        let id = ResourceId { kind: Kind::Network, network: None, name: label("red") };
        let document = "{}\r\u{1b}[2K\u{1b}[1A- network old\n+ \u{202e}der krowten".to_owned();
        let wanted = Wanted::Document(document);
        let body = EventBody::Intent(Transaction {
            mutations: vec![Mutation { id, expected: None, wanted }],
            replace_all: true,
        });
        let event = Event { source: SourceId::of_operator(&label("alice")), sequence: 1, body };
        let said = sign_said(&KeyPair::from_seed(&[1; 32]), &label("prod"), event, (1, 2));
        let given = vec!["bo\u{1b}[0mb".to_owned()];
        let found = Found::of(WaitingView { given, ..view(&said, &said) }, &label("prod")).unwrap();
        let text = found.text();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n' || c == '\u{202e}'), "{text}");
        assert!(text.contains("- everything else") && text.contains("bo\\u{1b}[0mb"), "{text}");
    }

    #[test]
    fn needs_are_read_as_they_are_written() {
        let of = |kind, approvals, role| Ok(NeedOf { kind, approvals, role });
        assert_eq!(need("delete-network=2:admin"), of(RequestKind::DeleteNetwork, 2, OperatorRole::Admin));
        assert_eq!(need("apply=3"), of(RequestKind::Apply, 3, OperatorRole::Operator));
        for wrong in ["", "apply", "apply=", "apply=x", "apply=2:root", "token=2", "=2"] {
            assert!(need(wrong).unwrap_err().contains("delete-network"), "{wrong}");
        }
    }
}
