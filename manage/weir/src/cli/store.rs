//! `weir store`: tables of the store, over the address and the token of the context.

use super::Failure;
use super::consent::Consent;
use super::output::{self, Format};
use crate::exit::Exit;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Read as _;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weir_api::client::Context;
use weir_api::pki::client_config;
use weir_api::proxy::Proxies;
use weir_model::Version;
use weir_model::join::CONTROLLER_DNS_NAME;
use weir_rpc::Error;
use weir_rpc::client::{Client, ClientSettings, WatchFilter};
use weir_store::{
    Action, Answer, Condition, KEY_BYTES_MAX, Operation, Outcome, ProcedureLimits, Query, Select, Selected,
    TableOptions,
};

/// How long a controller that does not answer is tried, milliseconds.
const GIVE_UP_MS: u64 = 10_000;

#[derive(Debug, Args)]
pub(super) struct Store {
    #[command(subcommand)]
    command: Command,
    /// How to print; bytes are text, or 0x and hexadecimal digits, in every form
    #[arg(short, long, value_enum, global = true, default_value_t = Format::Table)]
    output: Format,
}

/// A table is named NAMESPACE/WORD. Keys and values are text, or bytes as 0x and hexadecimal digits.
#[derive(Debug, Subcommand)]
enum Command {
    /// Make a table
    Create {
        /// Its name, NAMESPACE/WORD
        table: String,
        /// Values have columns
        #[arg(long)]
        columns: bool,
        /// COLUMN=TABLE, or TABLE for the whole value: what is there is a key of this table
        #[arg(long = "reference", value_name = "[COLUMN=]TABLE")]
        references: Vec<String>,
        /// Most entries
        #[arg(long, default_value_t = 0)]
        entries_max: u64,
        /// Most bytes of keys and values
        #[arg(long, default_value_t = 0)]
        bytes_max: u64,
    },
    /// Delete a table with all that is in it
    Drop {
        /// Its name
        table: String,
        #[command(flatten)]
        consent: Consent,
    },
    /// List the tables of a namespace; those of the apps when none is named
    Tables {
        /// The namespace
        #[arg(default_value = "")]
        namespace: String,
    },
    /// Show an entry (exit code 4 when it is not there)
    Get {
        /// The table
        table: String,
        /// The key
        key: String,
        /// Only this column
        #[arg(long)]
        column: Option<String>,
        /// Go by references, this column each; '' for the whole value
        #[arg(long, num_args = 0..=1, default_missing_value = "")]
        follow: Vec<String>,
        /// Print the value alone, as it is
        #[arg(long)]
        raw: bool,
        /// The answer may lack what was done in the last so many milliseconds
        #[arg(long, default_value_t = 0)]
        staleness_ms: u64,
    },
    /// Write an entry, or one column of it
    Put {
        /// The table
        table: String,
        /// The key
        key: String,
        /// The value; - reads it from standard input
        value: String,
        /// Only this column
        #[arg(long)]
        column: Option<String>,
        /// The entry goes after so many milliseconds
        #[arg(long, default_value_t = 0, conflicts_with = "column")]
        ttl_ms: u64,
    },
    /// Write an entry if it is as expected (exit code 4 when it is not)
    Cas {
        /// The table
        table: String,
        /// The key
        key: String,
        /// The value; - reads it from standard input
        value: String,
        /// It must be at this version; 0: it must not be there
        #[arg(long, required_unless_present = "expect")]
        expect_version: Option<u64>,
        /// It must have this value
        #[arg(long, conflicts_with = "expect_version")]
        expect: Option<String>,
    },
    /// Delete an entry
    Remove {
        /// The table
        table: String,
        /// The key
        key: String,
    },
    /// Add to a counter and print what it was before
    Increment {
        /// The table
        table: String,
        /// The key
        key: String,
        /// What to add
        #[arg(default_value_t = 1, allow_hyphen_values = true)]
        by: i64,
    },
    /// List entries in order of their keys
    Scan {
        /// The table
        table: String,
        /// Only keys that begin so
        #[arg(default_value = "")]
        prefix: String,
        /// Most entries
        #[arg(long, default_value_t = 1_000)]
        limit: u32,
    },
    /// Follow changes as they happen
    Watch {
        /// Only this table
        table: Option<String>,
        /// Only keys that begin so
        #[arg(default_value = "")]
        prefix: String,
        /// From this version on; else from now on
        #[arg(long)]
        from: Option<u64>,
        /// End after so many changes
        #[arg(long)]
        count: Option<usize>,
    },
    /// Call a procedure and print its reply
    Call {
        /// Its name, NAMESPACE/WORD
        procedure: String,
        /// What it is given
        #[arg(default_value = "")]
        arguments: String,
        /// Only if it writes nothing: a read, which needs no place in the order
        #[arg(long)]
        read: bool,
        /// With --read: the answer may be so old, milliseconds
        #[arg(long, default_value_t = 0, requires = "read")]
        staleness_ms: u64,
    },
    /// Load a procedure from a WebAssembly module
    LoadProcedure {
        /// Its name, NAMESPACE/WORD
        procedure: String,
        /// The file
        file: PathBuf,
        /// Fuel of one call
        #[arg(long, default_value_t = ProcedureLimits::default().fuel_max)]
        fuel_max: u64,
        /// Memory of one call, bytes
        #[arg(long, default_value_t = ProcedureLimits::default().memory_bytes_max)]
        memory_bytes_max: u64,
    },
    /// Show version, time and digest of the state
    Digest,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Unavailable(reason) => Failure::Store { reason, unreachable: true },
            other => Failure::Store { reason: other.to_string(), unreachable: false },
        }
    }
}

/// Text, or bytes as 0x and hexadecimal digits.
fn bytes(text: &str) -> Result<Vec<u8>, Failure> {
    if text == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map_err(Failure::io("standard input"))?;
        return Ok(bytes);
    }
    let Some(digits) = text.strip_prefix("0x") else { return Ok(text.as_bytes().to_vec()) };
    let wrong = || Failure::Input(format!("'{text}': after 0x come pairs of hexadecimal digits"));
    if !digits.is_ascii() || digits.len() % 2 != 0 {
        return Err(wrong());
    }
    let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| wrong());
    (0..digits.len()).step_by(2).map(pair).collect()
}

/// What [`bytes`] reads.
fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.starts_with("0x") && !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.iter().fold("0x".to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
    }
}

fn value_shown(value: &Selected) -> String {
    match value {
        Selected::Whole(value) => match weir_store::columns::Columns::read(value) {
            Some(columns) => columns
                .iter()
                .map(|(name, bytes)| format!("{name}={}", shown(bytes)))
                .collect::<Vec<_>>()
                .join(" "),
            None => shown(value),
        },
        Selected::Columns(columns) => {
            let one = |(name, bytes): &(String, Vec<u8>)| format!("{name}={}", shown(bytes));
            columns.iter().map(one).collect::<Vec<_>>().join(" ")
        }
        Selected::Nothing => String::new(),
    }
}

fn connect(context: &Context) -> Result<Client, Failure> {
    let wrong = |what: String| Failure::Input(format!("the context: {what}"));
    let server = context.server.trim_end_matches('/');
    let endpoint = server
        .strip_prefix("https://")
        .ok_or_else(|| wrong(format!("server '{server}' must begin with https://")))?;
    let mut settings = ClientSettings::new([endpoint]);
    settings.tls = Some(client_config(&context.ca).map_err(|error| wrong(error.to_string()))?);
    settings.server_name = Some(CONTROLLER_DNS_NAME.to_owned());
    settings.token = Some(context.token.clone());
    settings.give_up_ms = GIVE_UP_MS;
    let proxies = Proxies::from_environment().map_err(|error| Failure::Input(error.to_string()))?;
    let proxy = proxies.to(server);
    settings.proxy = proxy.map(|proxy| weir_rpc::client::Proxy {
        address: proxy.address.clone(),
        authorization: proxy.authorization.clone(),
    });
    refused_at_once(endpoint, proxy)?;
    Ok(Client::new(settings)?)
}

/// The client tries for as long as it may, for a controller that starts again. A person whom a machine tells that nobody
/// listens there wants to know it now.
fn refused_at_once(endpoint: &str, proxy: Option<&weir_api::proxy::Proxy>) -> Result<(), Failure> {
    let address = proxy.map_or(endpoint, |proxy| proxy.address.as_str());
    let Ok(mut addresses) = address.to_socket_addrs() else { return Ok(()) };
    let Some(first) = addresses.next() else { return Ok(()) };
    match TcpStream::connect_timeout(&first, Duration::from_millis(GIVE_UP_MS)) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            let by = proxy.map(|proxy| format!(" (by the proxy {address} of {})", proxy.variable));
            let reason = format!("{endpoint}: {error}{}", by.unwrap_or_default());
            Err(Failure::Store { reason, unreachable: true })
        }
        _ => Ok(()),
    }
}

impl Store {
    pub(super) fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::io("starting the client"))?;
        let told = Told(self.output);
        runtime.block_on(async { self.command.run(&connect(context)?, told).await })
    }
}

/// How a command of the store says something.
#[derive(Clone, Copy)]
struct Told(Format);

impl Told {
    fn say(self, fields: Value, words: &str) -> Result<(), Failure> {
        output::done(self.0, fields, words)
    }

    /// One of many: a line each, in JSON for programs.
    fn line(self, fields: &Value, words: &str) {
        match self.0 {
            Format::Table => say!("{words}"),
            Format::Json | Format::Yaml => say!("{fields}"),
        }
    }

    fn done(self, outcome: Outcome) -> Result<ExitCode, Failure> {
        match outcome {
            Outcome::Written { version } if version == Version::ZERO => {
                self.say(json!({"written": null}), "nothing to do")?;
            }
            Outcome::Written { version } => {
                self.say(json!({"written": version.0}), &format!("written at {version}"))?;
            }
            Outcome::Counted { before, .. } => self.say(json!({"before": before}), &before.to_string())?,
            Outcome::Reply { reply, .. } => self.say(json!({"reply": shown(&reply)}), &shown(&reply))?,
            Outcome::Conflict { found, .. } => {
                let words = match found {
                    Version::ZERO => "not written: it is not there".to_owned(),
                    found => format!("not written: it is at {found}"),
                };
                self.say(json!({"written": null, "found": found.0}), &words)?;
                return Ok(Exit::No.into());
            }
            Outcome::Refused(refusal) => return Err(Error::Refused(refusal).into()),
            other => return Err(Failure::Refused(format!("the controller answers {other:?}"))),
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn write(
    client: &Client,
    told: Told,
    (table, key): (String, &str),
    condition: Condition,
    action: Action,
) -> Result<ExitCode, Failure> {
    let write = weir_store::Write { table, key: bytes(key)?, condition, action };
    told.done(client.submit(Operation::Write(write)).await?)
}

fn answered(answer: Answer) -> Result<Answer, Failure> {
    match answer {
        Answer::Refused(refusal) => Err(Error::Refused(refusal).into()),
        answer => Ok(answer),
    }
}

impl Command {
    async fn run(self, client: &Client, told: Told) -> Result<ExitCode, Failure> {
        match self {
            Command::Create { table, columns, references, entries_max, bytes_max } => {
                let split = |text: String| match text.split_once('=') {
                    Some((column, table)) => (column.to_owned(), table.to_owned()),
                    None => (String::new(), text),
                };
                let mut references: Vec<_> = references.into_iter().map(split).collect();
                references.sort();
                let options = TableOptions { columns, references, entries_max, bytes_max };
                told.done(client.submit(Operation::CreateTable { table, options }).await?)
            }
            Command::Drop { table, consent } => drop_table(client, told, table, consent).await,
            Command::Tables { namespace } => tables(client, told, namespace).await,
            Command::Get { table, key, column, follow, raw, staleness_ms } => {
                let (key, select) =
                    (bytes(&key)?, column.map_or(Select::Whole, |name| Select::Columns(vec![name])));
                let query = match follow.is_empty() {
                    true => Query::Get { table, key, select },
                    false => Query::Follow { table, key, via: follow, select },
                };
                get(client, told, query, raw, staleness_ms).await
            }
            Command::Put { table, key, value, column, ttl_ms } => {
                let value = bytes(&value)?;
                let action = match column {
                    Some(name) => Action::Columns { set: vec![(name, value)], remove: vec![] },
                    None => Action::Put { value, ttl_ms },
                };
                write(client, told, (table, &key), Condition::Always, action).await
            }
            Command::Cas { table, key, value, expect_version, expect } => {
                let condition = match expect {
                    Some(expect) => Condition::Value(bytes(&expect)?),
                    None => Condition::Version(Version(expect_version.unwrap_or_default())),
                };
                let action = Action::Put { value: bytes(&value)?, ttl_ms: 0 };
                write(client, told, (table, &key), condition, action).await
            }
            Command::Remove { table, key } => {
                write(client, told, (table, &key), Condition::Always, Action::Remove).await
            }
            Command::Increment { table, key, by } => {
                let action = Action::Increment { column: String::new(), by };
                write(client, told, (table, &key), Condition::Always, action).await
            }
            Command::Scan { table, prefix, limit } => {
                scan(client, told, table, &bytes(&prefix)?, limit).await
            }
            Command::Watch { table, prefix, from, count } => {
                let key_prefix = bytes(&prefix)?;
                // A watch tries for ever: what no controller takes is refused here.
                let longest = key_prefix.len().max(table.as_ref().map_or(0, String::len));
                if longest > KEY_BYTES_MAX {
                    return Err(Failure::Input(format!(
                        "a table's name or a prefix of {longest} bytes: at most {KEY_BYTES_MAX} are allowed"
                    )));
                }
                let filters =
                    table.into_iter().map(|table| WatchFilter { table, key_prefix: key_prefix.clone() });
                watch(client, told, from, filters.collect(), count).await
            }
            Command::Call { procedure, arguments, read: true, staleness_ms } => {
                let query = Query::Call { procedure: procedure.clone(), arguments: bytes(&arguments)? };
                let (_, answer) = client.read(query, staleness_ms).await?;
                match answered(answer)? {
                    Answer::Reply(reply) => {
                        told.say(json!({"reply": shown(&reply)}), &shown(&reply))?;
                        Ok(ExitCode::SUCCESS)
                    }
                    _ => {
                        say!("nothing was done: '{procedure}' would write; call it without --read");
                        Ok(Exit::No.into())
                    }
                }
            }
            Command::Call { procedure, arguments, .. } => {
                let arguments = bytes(&arguments)?;
                told.done(client.submit(Operation::Call { procedure, arguments }).await?)
            }
            Command::LoadProcedure { procedure, file, fuel_max, memory_bytes_max } => {
                let module = std::fs::read(&file).map_err(Failure::io(file.display().to_string()))?;
                let limits = ProcedureLimits { fuel_max, memory_bytes_max };
                told.done(client.submit(Operation::LoadProcedure { procedure, module, limits }).await?)
            }
            Command::Digest => {
                let (_, answer) = client.read(Query::Digest, 0).await?;
                let Answer::Digest { version, now_ms, digest } = answered(answer)? else {
                    return Err(Failure::Refused("the controller answers something else".into()));
                };
                let fields =
                    json!({"version": version.0, "nowMs": now_ms, "digest": format!("{digest:032x}")});
                let words = format!("version {version}\ntime    {now_ms} ms\ndigest  {digest:032x}");
                told.say(fields, &words)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

async fn get(
    client: &Client,
    told: Told,
    query: Query,
    raw: bool,
    staleness_ms: u64,
) -> Result<ExitCode, Failure> {
    let (_, answer) = client.read(query, staleness_ms).await?;
    match answered(answer)? {
        Answer::Found(found) if raw => {
            let out = match found.value {
                Selected::Whole(value) => value,
                Selected::Columns(columns) => columns.into_iter().flat_map(|(_, bytes)| bytes).collect(),
                Selected::Nothing => Vec::new(),
            };
            crate::print::bytes(&out);
            Ok(ExitCode::SUCCESS)
        }
        Answer::Found(found) => {
            let value = value_shown(&found.value);
            told.say(
                json!({"version": found.version.0, "value": value}),
                &format!("{}  {value}", found.version),
            )?;
            Ok(ExitCode::SUCCESS)
        }
        Answer::Absent { hops } => {
            match hops {
                0 => tell!("it is not there"),
                hops => tell!("it refers to something that is not there, {hops} tables on"),
            }
            Ok(Exit::No.into())
        }
        other => Err(Failure::Refused(format!("the controller answers {other:?}"))),
    }
}

async fn drop_table(
    client: &Client,
    told: Told,
    table: String,
    consent: Consent,
) -> Result<ExitCode, Failure> {
    let namespace = table.split('/').next().unwrap_or_default().to_owned();
    let (_, answer) = client.read(Query::Tables { namespace }, 0).await?;
    let Answer::Tables(tables) = answered(answer)? else {
        return Err(Failure::Refused("the controller answers something else".into()));
    };
    // One that is not there is refused by the controller, in its words.
    if let Some(info) = tables.iter().find(|info| info.table == table) {
        let what = format!("Table {table} goes with its {} entries ({} bytes).", info.entries, info.bytes);
        if !consent.given(&what)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    told.done(client.submit(Operation::DropTable { table }).await?)
}

async fn tables(client: &Client, told: Told, namespace: String) -> Result<ExitCode, Failure> {
    let (_, answer) = client.read(Query::Tables { namespace }, 0).await?;
    let Answer::Tables(tables) = answered(answer)? else {
        return Err(Failure::Refused("the controller answers something else".into()));
    };
    let mut out = super::output::table(&["TABLE", "ENTRIES", "BYTES", "COLUMNS", "REFERS TO"]);
    let mut listed = Vec::new();
    for info in tables {
        listed.push(json!({
            "table": info.table,
            "entries": info.entries,
            "bytes": info.bytes,
            "columns": info.options.columns,
            "references": info.options.references,
        }));
        let references = info.options.references.iter().map(|(column, to)| match column.as_str() {
            "" => to.clone(),
            column => format!("{column}={to}"),
        });
        let references = references.collect::<Vec<_>>().join(" ");
        let columns = if info.options.columns { "yes" } else { "" }.to_owned();
        out.add_row([info.table, info.entries.to_string(), info.bytes.to_string(), columns, references]);
    }
    told.say(listed.into(), &out.to_string())?;
    Ok(ExitCode::SUCCESS)
}

async fn scan(
    client: &Client,
    told: Told,
    table: String,
    prefix: &[u8],
    limit: u32,
) -> Result<ExitCode, Failure> {
    // The least key behind all that begin so: the prefix with its last byte that is not 0xFF one higher.
    let mut to = prefix.to_vec();
    while to.pop_if(|byte| *byte == u8::MAX).is_some() {}
    if let Some(last) = to.last_mut() {
        *last += 1;
    }
    let (mut from, mut left) = (prefix.to_vec(), limit);
    while left > 0 {
        let query =
            Query::Scan { table: table.clone(), from, to: to.clone(), limit: left, select: Select::Whole };
        let (_, answer) = client.read(query, 0).await?;
        let Answer::Page { entries, next } = answered(answer)? else {
            return Err(Failure::Refused("the controller answers something else".into()));
        };
        left -= entries.len() as u32;
        for (key, found) in entries {
            let (key, value) = (shown(&key), value_shown(&found.value));
            told.line(
                &json!({"key": key, "version": found.version.0, "value": value}),
                &format!("{key}  {}  {value}", found.version),
            );
        }
        let Some(next) = next else { return Ok(ExitCode::SUCCESS) };
        from = next;
    }
    tell!("there is more: these are the first {limit}; --limit shows more");
    Ok(ExitCode::SUCCESS)
}

async fn watch(
    client: &Client,
    told: Told,
    from: Option<u64>,
    filters: Vec<WatchFilter>,
    count: Option<usize>,
) -> Result<ExitCode, Failure> {
    let mut watch = client.watch(from.map(Version), filters);
    let mut seen = 0;
    loop {
        for change in watch.next().await? {
            for write in &change.writes {
                let key = shown(&write.key);
                let value = write.value.as_ref().map(|value| value_shown(&Selected::Whole(value.to_vec())));
                let fields =
                    json!({"version": change.version.0, "table": write.table, "key": key, "value": value});
                let words = value.unwrap_or_else(|| "(deleted)".to_owned());
                told.line(&fields, &format!("{}  {}  {key}  {words}", change.version, write.table));
                seen += 1;
            }
            if let Some(table) = &change.dropped {
                let fields = json!({"version": change.version.0, "table": table, "dropped": true});
                told.line(&fields, &format!("{}  {table}  (table deleted)", change.version));
                seen += 1;
            }
            if count.is_some_and(|count| seen >= count) {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    #[test]
    fn bytes_are_shown_as_they_are_typed() {
        for value in [&b"text"[..], b"", b"\x00\xff", b"0x12", b"a\nb"] {
            assert_eq!(super::bytes(&super::shown(value)).unwrap(), value);
        }
        assert!(super::bytes("0x1").is_err() && super::bytes("0xgg").is_err());
    }
}
