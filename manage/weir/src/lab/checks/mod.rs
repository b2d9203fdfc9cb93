//! What the lab checks once it is up: each check is what a person would type, with the answer that is expected and
//! the one that came. A check that cannot be made fails; the others are made all the same.

mod inside;
mod outside;
mod truth;
mod walls;

use super::guest::Guest;
use super::place::Place;
use crate::failure::Failure;
use std::net::IpAddr;
use std::time::Duration;
use weir_api::client::Client;
use weir_lab::progress::Progress;
use weir_lab::{Error, Netns, interrupt, system};

/// One line of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// What was tried.
    pub name: String,
    /// What should be seen.
    pub expected: String,
    /// What was seen.
    pub measured: String,
    /// Whether it is as it should be.
    pub holds: bool,
}

impl Row {
    /// A line.
    pub fn new(
        name: impl Into<String>,
        expected: impl Into<String>,
        measured: impl Into<String>,
        holds: bool,
    ) -> Row {
        Row { name: name.into(), expected: expected.into(), measured: measured.into(), holds }
    }
}

/// What checks are made on.
#[derive(Debug, Clone, Copy)]
pub struct Ground<'a> {
    /// Its names and addresses.
    pub place: Place,
    /// Its controller.
    pub client: &'a Client,
    /// Its guests.
    pub guests: &'a [Guest],
}

impl Ground<'_> {
    /// A guest by tenant and name.
    pub fn guest(&self, network: &str, name: &str) -> Result<&Guest, Failure> {
        let found = self.guests.iter().find(|guest| guest.network == network && guest.name == name);
        found.ok_or_else(|| {
            Failure::Input(format!("net.yaml has no endpoint {network}/{name} with a namespace"))
        })
    }

    /// The namespace of a guest.
    pub fn netns(&self, network: &str, name: &str) -> Result<&Netns, Failure> {
        Ok(&self.guest(network, name)?.netns)
    }

    /// The address of a guest, as its own device has it.
    pub fn address(&self, network: &str, name: &str, v6: bool) -> Result<IpAddr, Failure> {
        let guest = self.guest(network, name)?;
        let found = guest.addresses()?.into_iter().find(|address| address.is_ipv6() == v6);
        found.ok_or_else(|| {
            let family = if v6 { "IPv6" } else { "IPv4" };
            Failure::Input(format!("{network}/{name} has no {family} address on {}", guest.device))
        })
    }
}

type Check = fn(&Ground) -> Result<Vec<Row>, Failure>;

/// Every check: what it is called while it runs, and what it does.
const CHECKS: [(&str, Check); 12] = [
    ("ping between hosts, IPv4 and IPv6", inside::ping_hosts),
    ("names by DNS", inside::names),
    ("HTTP by name between hosts", inside::http),
    ("the same address in both tenants", walls::same_address),
    ("red does not reach blue", walls::no_way_across),
    ("a denied port, and the rule that counts it", walls::denied_port),
    ("a stateful rule", walls::stateful),
    ("to the outside by NAT", outside::north_south),
    ("no way in from the outside", outside::no_way_in),
    ("TCP throughput between hosts", inside::throughput),
    ("traces and packets agree", truth::traces),
    ("every switch in sync", truth::status),
];

/// How many steps [`run`] shows.
pub const COUNT: u64 = CHECKS.len() as u64;

/// Makes every check.
///
/// # Errors
/// Only when the person interrupts; what fails is a row.
pub fn run(ground: &Ground, progress: &mut Progress) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (title, check) in CHECKS {
        progress.step(title);
        interrupt::check()?;
        match check(ground) {
            Ok(made) => rows.extend(made),
            Err(Failure::Lab(Error::Interrupted)) => return Err(Error::Interrupted.into()),
            Err(failure) => rows.push(Row::new(title, "a check", failure.to_string(), false)),
        }
    }
    Ok(rows)
}

/// The body of a page, or why there is none.
fn page(netns: &Netns, url: &str, limit_s: u32) -> Result<Result<String, String>, Failure> {
    let mut command = netns.command("curl");
    command.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", &limit_s.to_string(), url]);
    let output = system::run_output(command, Duration::from_secs(u64::from(limit_s) + 10))?;
    Ok(if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
    } else {
        Err(system::error_text(&output))
    })
}

/// An address as it stands in a URL.
fn in_url(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}
