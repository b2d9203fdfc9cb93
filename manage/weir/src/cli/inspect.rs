//! `get`, `describe`, `watch`, `status`, `counters` and `forget`.

use super::consent::Consent;
use super::output::{self, Format, paint, table};
use super::{Failure, Output, parse_id};
use crate::roles::placing;
use clap::Args;
use comfy_table::Color;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;
use weir_api::any::parse_kind;
use weir_api::client::{Client, ClientError};
use weir_api::types::{
    ActuatorStatus, ConductView, DeviceView, LineView, ResourceView, StatusResponse, WatchEvent,
};
use weir_model::Label;
use weir_model::resource::{Kind, Resource};

/// Lines of one kind that `status` shows of a switch.
const LINES_SHOWN: usize = 5;

#[derive(Debug, Args)]
pub(super) struct Get {
    /// network, subnet, endpoint, route, firewall-rule, balancer, a kind of a plane such as filewall, all, or devices (seen in learned
    /// networks)
    kind: String,
    /// NETWORK/NAME, NAME of a network, or HOST/NAME of what a plane has
    name: Option<String>,
    /// Only of this network
    #[arg(short, long)]
    network: Option<String>,
    /// With -o yaml: write what was allocated (addresses, MAC, VNI) into the documents too, so that it stays the same elsewhere
    #[arg(long)]
    allocated: bool,
    #[command(flatten)]
    output: Output,
}

impl Get {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let format = self.output.output;
        if matches!(self.kind.as_str(), "device" | "devices") {
            let list = client.devices(self.network.as_deref().or(self.name.as_deref()))?;
            output::print(format, &list, || show_devices(&list.items))?;
            if list.more {
                tell!("there are more than these {}: name a network", list.items.len());
            }
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(name) = &self.name {
            let view = client.resource(&parse_id(&self.kind, name)?)?;
            if format == Format::Yaml {
                return print_documents(std::slice::from_ref(&view), self.allocated);
            }
            output::print(format, &view, || show_resources(client, std::slice::from_ref(&view)))?;
            return Ok(ExitCode::SUCCESS);
        }
        let kind = match self.kind.as_str() {
            "all" => None,
            kind => Some(parse_kind(kind)?),
        };
        let list = client.list(kind.as_ref().map(Label::as_str), self.network.as_deref())?;
        if format == Format::Yaml {
            return print_documents(&list.items, self.allocated);
        }
        output::print(format, &list, || show_resources(client, &list.items))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Resources as documents that `weir apply` takes.
fn print_documents(items: &[ResourceView], allocated: bool) -> Result<ExitCode, Failure> {
    for (number, view) in items.iter().enumerate() {
        let document = document(view, allocated)?;
        put!("{}{}", if number > 0 { "---\n" } else { "" }, output::yaml(&document)?);
    }
    Ok(ExitCode::SUCCESS)
}

/// A resource as it was asked for, with what was allocated when that is wanted.
pub(super) fn document(view: &ResourceView, allocated: bool) -> Result<Value, Failure> {
    let mut document =
        serde_json::to_value(&view.resource).map_err(|error| Failure::Input(error.to_string()))?;
    let Some(resource) = view.resource.of_networks() else { return Ok(document) };
    let fields: &[&str] = match resource.kind() {
        Kind::Network => &["vni"],
        Kind::Endpoint => &["mac", "addresses"],
        _ => &[],
    };
    let Value::Object(wanted) = &mut document else { return Ok(document) };
    for field in fields.iter().filter(|_| allocated) {
        if let Some(value) = view.allocated.get(*field).filter(|value| !value.is_null()) {
            wanted.insert((*field).to_owned(), value.clone());
        }
    }
    // Its fields are in their usual order then, and it is what apply takes.
    let resource: Resource =
        serde_json::from_value(document).map_err(|error| Failure::Refused(error.to_string()))?;
    serde_json::to_value(&resource).map_err(|error| Failure::Refused(error.to_string()))
}

fn show_devices(items: &[DeviceView]) {
    if items.is_empty() {
        say!("No device was seen: only networks with 'forwarding: learned' look for them.");
        return;
    }
    let mut table = table(&["network", "id", "mac", "addresses", "host", "first seen", "last seen"]);
    for device in items {
        table.add_row(vec![
            device.network.clone(),
            device.id.to_string(),
            device.mac.clone(),
            join(&device.addresses),
            or_dash(device.host.as_ref()),
            at(device.first_ms),
            at(device.seen_ms),
        ]);
    }
    say!("{table}");
}

/// A time of the day in UTC, with its date.
fn at(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| "-".to_string(), |time| time.to_string())
}

/// Ports that carry no traffic, of endpoints by NETWORK/NAME; nothing when nobody can say.
fn ports_down(client: &Client, items: &[ResourceView]) -> BTreeMap<String, String> {
    let is_endpoint =
        |view: &ResourceView| matches!(view.resource.of_networks(), Some(Resource::Endpoint(_)));
    if !items.iter().any(is_endpoint) {
        return BTreeMap::new();
    }
    let Ok(status) = client.status() else { return BTreeMap::new() };
    let actuators = status.actuators;
    let unknown = items.iter().filter_map(|view| match view.resource.of_networks()? {
        Resource::Endpoint(endpoint) => {
            let host = endpoint.host.as_ref()?;
            let known = actuators.iter().find(|actuator| actuator.name == host.as_str());
            let problem = placing::problem(host.as_str(), known.map(|known| known.role))?;
            Some((format!("{}/{}", endpoint.network, endpoint.name), problem))
        }
        _ => None,
    });
    let down = actuators.iter().flat_map(|actuator| &actuator.ports_down);
    let down = down.map(|down| (down.endpoint.clone(), down.reason.clone()));
    unknown.chain(down).collect()
}

fn show_resources(client: &Client, items: &[ResourceView]) {
    let down = ports_down(client, items);
    if items.is_empty() {
        say!("Nothing there: 'weir apply -f FILE' creates resources.");
        return;
    }
    let mut tables = Vec::new();
    for kind in Kind::ALL {
        let rows: Vec<(&ResourceView, &Resource)> = items
            .iter()
            .filter_map(|view| Some((view, view.resource.of_networks()?)))
            .filter(|(_, resource)| resource.kind() == kind)
            .collect();
        if rows.is_empty() {
            continue;
        }
        let mut table = table(columns(kind));
        for (view, resource) in rows {
            table.add_row(row(view, resource, &down));
        }
        tables.push(table.to_string());
    }
    tables.extend(super::plane::tables(client, items));
    say!("{}", tables.join("\n\n"));
}

fn columns(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Network => &[
            "network",
            "vni",
            "mtu",
            "encapsulation",
            "forwarding",
            "ingress",
            "egress",
            "external",
            "version",
        ],
        Kind::Subnet => &["subnet", "v4", "v6", "lease", "version"],
        Kind::Endpoint => &["endpoint", "host", "addresses", "mac", "tags", "state", "version"],
        Kind::Route => &["route", "prefix", "priority", "next hop", "version"],
        Kind::FirewallRule => {
            &["rule", "direction", "priority", "action", "protocol", "ports", "peers", "targets", "version"]
        }
        Kind::Balancer => &["balancer", "address", "services", "members", "version"],
    }
}

fn join<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        "-".to_string()
    } else {
        items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
    }
}

fn or_dash<T: ToString>(item: Option<T>) -> String {
    item.map_or_else(|| "-".to_string(), |item| item.to_string())
}

/// A value as it is written in a document, without quotes.
fn plain<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(text)) => text,
        Ok(Value::Object(fields)) => fields
            .into_iter()
            .map(|(name, value)| format!("{name} {}", value.as_str().unwrap_or_default()))
            .collect::<Vec<_>>()
            .join(" "),
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// A service as `tcp/80`, or `tcp/80:8080` when the members have another port.
fn service(service: &weir_model::resource::BalancerService) -> String {
    let target = service.target_port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}/{}{target}", service.protocol, service.port)
}

fn row(view: &ResourceView, resource: &Resource, down: &BTreeMap<String, String>) -> Vec<String> {
    let allocated = |name: &str| match view.allocated.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| item.as_str().unwrap_or_default().to_string())
            .collect::<Vec<_>>()
            .join(","),
        Some(Value::Null) | None => "-".to_string(),
        Some(other) => other.to_string(),
    };
    let name = |network: &weir_model::Label, name: &weir_model::Label| format!("{network}/{name}");
    let mut row = match resource {
        Resource::Network(r) => vec![
            r.name.to_string(),
            allocated("vni"),
            r.mtu.to_string(),
            plain(&r.encapsulation),
            plain(&r.forwarding),
            plain(&r.ingress),
            plain(&r.egress),
            if r.external_access { "yes" } else { "no" }.to_string(),
        ],
        Resource::Subnet(r) => {
            vec![name(&r.network, &r.name), or_dash(r.v4), or_dash(r.v6), format!("{}s", r.dhcp.lease_s)]
        }
        Resource::Endpoint(r) => vec![
            name(&r.network, &r.name),
            or_dash(r.host.as_ref()),
            allocated("addresses"),
            allocated("mac"),
            join(&r.tags),
            match down.get(&name(&r.network, &r.name)) {
                Some(reason) => format!("{}, but no traffic: {reason}", plain(&r.state)),
                None => plain(&r.state),
            },
        ],
        Resource::Route(r) => {
            vec![name(&r.network, &r.name), r.prefix.to_string(), r.priority.to_string(), plain(&r.next_hop)]
        }
        Resource::FirewallRule(r) => vec![
            name(&r.network, &r.name),
            plain(&r.direction),
            r.priority.to_string(),
            plain(&r.action),
            r.protocol.to_string(),
            join(&r.ports),
            join(&r.peers.iter().map(plain).collect::<Vec<_>>()),
            join(&r.targets),
        ],
        Resource::Balancer(r) => vec![
            name(&r.network, &r.name),
            r.address.to_string(),
            join(&r.services.iter().map(service).collect::<Vec<_>>()),
            join(&r.members),
        ],
    };
    row.push(view.version.to_string());
    row
}

#[derive(Debug, Args)]
pub(super) struct Describe {
    /// Kind of the resource
    kind: String,
    /// NETWORK/NAME, NAME of a network, or HOST/NAME of what a plane has
    name: String,
    #[command(flatten)]
    output: Output,
}

impl Describe {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let view = client.resource(&parse_id(&self.kind, &self.name)?)?;
        if self.output.output != Format::Table {
            output::print(self.output.output, &view, || ())?;
            return Ok(ExitCode::SUCCESS);
        }
        let json = serde_json::to_value(&view).map_err(|error| Failure::Input(error.to_string()))?;
        put!("{}", output::yaml(&json)?);
        for (name, reason) in ports_down(client, std::slice::from_ref(&view)) {
            if view.resource.id().to_string().ends_with(&format!("/{name}")) {
                say!("No traffic: {reason}");
            }
        }
        let (network, tags) = match view.resource.of_networks() {
            Some(Resource::Network(network)) => (&network.name, None),
            Some(Resource::Endpoint(endpoint)) => (&endpoint.network, Some(endpoint.tags.clone())),
            _ => return Ok(ExitCode::SUCCESS),
        };
        let related = client.list(None, Some(network.as_str()))?;
        let concerns = |resource: &Resource| match (resource, &tags) {
            (Resource::Network(_), _) => false,
            (Resource::FirewallRule(rule), Some(tags)) => {
                rule.targets.is_empty() || rule.targets.iter().any(|target| tags.contains(target))
            }
            (_, Some(_)) => false,
            (_, None) => true,
        };
        let items: Vec<ResourceView> = related
            .items
            .into_iter()
            .filter(|view| view.resource.of_networks().is_some_and(&concerns))
            .collect();
        if !items.is_empty() {
            say!();
            show_resources(client, &items);
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Debug, Args)]
pub(super) struct Watch {
    /// Tell changes after this version; without it, those from now on
    #[arg(long)]
    from: Option<u64>,
    /// Stop after so many changes
    #[arg(long)]
    count: Option<u64>,
    #[command(flatten)]
    output: Output,
}

impl Watch {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let mut from = self.from;
        let mut left = self.count.unwrap_or(u64::MAX);
        loop {
            let resumed = client.watch(from, |event| {
                show_event(self.output.output, &event);
                left -= 1;
                left > 0
            });
            match resumed {
                Ok(last) => from = last.or(from),
                // Without a version to resume from, a lost controller would mean lost changes.
                Err(error @ ClientError::Unreachable { .. }) if from.is_some() => {
                    tell!("weir: {error}; trying again");
                }
                Err(error) => return Err(error.into()),
            }
            if left == 0 {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

fn show_event(format: Format, event: &WatchEvent) {
    match format {
        Format::Table => {
            let sign = if event.item.is_some() { output::ansi("~", 33) } else { output::ansi("-", 31) };
            say!("{:<8} {sign} {}", format!("v{}", event.version), event.id);
        }
        Format::Json | Format::Yaml => say!("{}", serde_json::to_string(event).unwrap_or_default()),
    }
}

#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    output: Output,
}

impl Status {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let status = client.status()?;
        output::print(self.output.output, &status, || {
            let by =
                client.proxy().map(|proxy| format!(" by the proxy {} ({})", proxy.address, proxy.variable));
            say!("server {}{}", client.server(), by.unwrap_or_default());
            show_status(&status);
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn show_status(status: &StatusResponse) {
    say!(
        "domain {}  v{}  digest {}  epoch {}  controller {}",
        status.domain,
        status.version,
        &status.digest[..status.digest.len().min(16)],
        status.epoch,
        status.software
    );
    if let Some(group) = &status.group {
        say!("{}\n", super::group::text(group));
    }
    status.clock.iter().flat_map(super::clock::notes).for_each(|note| say!("{note}\n"));
    if status.resources.is_empty() {
        say!("no resources: 'weir apply -f FILE' creates some\n");
    }
    let counts: Vec<String> = status
        .resources
        .iter()
        .map(|count| format!("{} {}", count.count, plural(count.kind.as_str(), count.count)))
        .collect();
    if !counts.is_empty() {
        say!("{}\n", counts.join(", "));
    }
    if status.actuators.is_empty() {
        say!("No host has joined: 'weir token --name NAME' makes a token for 'weir host'.");
        return;
    }
    let mut table =
        table(&["switch", "role", "underlay", "session", "entries", "desired", "acked", "in force", "state"]);
    for actuator in &status.actuators {
        let session =
            if actuator.connected { paint("open", Color::Green) } else { paint("closed", Color::Red) };
        let mut row: Vec<comfy_table::Cell> =
            [actuator.name.clone(), plain(&actuator.role), actuator.underlay.clone()]
                .into_iter()
                .map(Into::into)
                .collect();
        row.push(session);
        row.push(format!("{}/{}", actuator.acked_entries, actuator.desired_entries).into());
        row.push(format!("v{}", actuator.desired_version).into());
        row.push(format!("v{}", actuator.acked_version).into());
        row.push(actuator.in_force_version.map_or("-".to_string(), |v| format!("v{v}")).into());
        row.push(state(actuator));
        table.add_row(row);
    }
    say!("{table}");
    if let Some(line) = &status.line {
        say!("{}", line_text(line));
    }
    for actuator in &status.actuators {
        let behind = actuator.desired_entries.saturating_sub(actuator.acked_entries);
        show_some(&actuator.name, "waits", &actuator.waiting, behind);
        show_some(&actuator.name, "refused", &actuator.refused, actuator.refused_total);
        let down: Vec<String> = actuator
            .ports_down
            .iter()
            .map(|port| format!("port {}: {}", port.endpoint, port.reason))
            .collect();
        show_some(&actuator.name, "no traffic", &down, actuator.ports_down_total.unwrap_or(0));
        let conduct: Vec<String> = actuator.conduct.iter().map(conduct).collect();
        show_some(&actuator.name, "says", &conduct, conduct.len());
        for plane in &actuator.planes {
            let what = &plane.plane;
            show_some(&actuator.name, &format!("{what} ordered"), &plane.ordered, plane.ordered_total);
            show_some(&actuator.name, what, &plane.told, plane.told_total);
        }
    }
}

/// With linear consistency: what everything else waits for.
fn line_text(line: &LineView) -> String {
    let behind = line.length.saturating_sub(1);
    let (name, seconds) = (&line.actuator, line.for_ms as f64 / 1e3);
    format!(
        "{name} holds the line ('consistency: linear'): {}, for {seconds:.1} s; {behind} {} behind it. If it does not come back, 'weir \
         forget {name}' lets go",
        line.update,
        plural("update", behind)
    )
}

/// What a host said of a controller, in words.
fn conduct(one: &ConductView) -> String {
    let ConductView { address, member, sent, ended, forgeries, ago_ms } = one;
    let who = member.map_or_else(|| address.clone(), |member| format!("controller {member}"));
    let often = if *ended == 1 { String::new() } else { format!(", {ended} times by now") };
    let forged = if *forgeries == 0 { String::new() } else { format!("; {forgeries} forgeries counted") };
    format!("{who} sent {sent}, session closed {} s ago{often}{forged}", ago_ms / 1_000)
}

/// The first lines of one kind, and how many more there are.
fn show_some(name: &str, what: &str, lines: &[String], total: usize) {
    lines.iter().take(LINES_SHOWN).for_each(|line| say!("{name}: {what}: {line}"));
    let more = total.max(lines.len()).saturating_sub(LINES_SHOWN);
    if more > 0 {
        say!("{name}: {what}: … and {more} more: -o json shows the first {}", lines.len());
    }
}

pub(super) fn plural(kind: &str, count: usize) -> String {
    if count == 1 { kind.to_owned() } else { format!("{kind}s") }
}

fn state(actuator: &ActuatorStatus) -> comfy_table::Cell {
    if !actuator.refused.is_empty() {
        paint("refused something", Color::Red)
    } else if !actuator.connected {
        // What it last acked it goes on with, but nobody can see that now.
        paint("disconnected", Color::Yellow)
    } else if actuator.in_force_version.is_none() {
        paint("comparing", Color::Yellow)
    } else if actuator.acked_entries < actuator.desired_entries {
        paint("behind", Color::Yellow)
    } else if !actuator.ports_down.is_empty() {
        paint("ports down", Color::Yellow)
    } else {
        paint("in sync", Color::Green)
    }
}

#[derive(Debug, Args)]
pub(super) struct Counters {
    /// Name of the host or gateway
    switch: String,
    /// Only counters whose name contains this
    #[arg(default_value = "")]
    containing: String,
    /// Also those that are zero
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    output: Output,
}

impl Counters {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let mut counters = client.counters(&self.switch)?;
        counters.retain(|name, _| name.contains(&self.containing));
        if counters.is_empty() {
            return Err(Failure::Missing(format!(
                "no counter of {} has '{}' in its name: 'weir counters {} --all' shows all names",
                self.switch, self.containing, self.switch
            )));
        }
        counters.retain(|_, value| self.all || *value > 0);
        output::print(self.output.output, &counters, || {
            let mut table = table(&["counter", "value"]);
            for (name, value) in &counters {
                table.add_row([name.clone(), value.to_string()]);
            }
            say!("{table}");
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Debug, Args)]
pub(super) struct Forget {
    /// Name of the host or gateway
    switch: String,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    output: Output,
}

impl Forget {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let status = client.status()?;
        let Some(known) = status.actuators.iter().find(|actuator| actuator.name == self.switch) else {
            let name = &self.switch;
            let text = format!("no host or gateway is named '{name}': 'weir status' lists them");
            return Err(Failure::Missing(text));
        };
        let session = if known.connected { "which is connected now" } else { "which is away" };
        let what = format!(
            "{} {}, {session}, is forgotten with the {} entries that it shall have; to come back it must join anew.",
            plain(&known.role),
            self.switch,
            known.desired_entries
        );
        if !self.consent.given(&what)? {
            return Ok(ExitCode::SUCCESS);
        }
        client.remove_actuator(&self.switch)?;
        output::done(
            self.output.output,
            json!({"forgotten": self.switch}),
            &format!(
                "{} is forgotten. Endpoints placed on it stay unprogrammed until they move.",
                self.switch
            ),
        )?;
        Ok(ExitCode::SUCCESS)
    }
}
