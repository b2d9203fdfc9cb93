//! `weir lab`: a whole system on one machine, with real processes and real kernel namespaces.
//!
//! It starts only what a person would start on real machines: `weir controller`, `weir host`, `weir gateway`, and
//! unmodified programs in the guests. What it makes has one name prefix and one run directory (see `weir-lab`), stays
//! when the command ends, and is found again by `weir lab down|status|run`.
//!
//! Invariants
//! - Nothing outside the lab's prefix and run directory is changed, but for one link, [`CONTEXT_LINK`], by which the
//!   command line finds the controller of the usual instance.
//! - When `up` fails before its checks, what runs is left for a look, and the error says how to end it; with
//!   `--no-keep` nothing is left.

mod checks;
mod guest;
pub(crate) mod place;
mod play;
mod programs;
mod topology;

#[cfg(test)]
mod tests;

use crate::cli::{input, output};
use crate::failure::Failure;
use checks::{Ground, Row};
use clap::{Args, Subcommand};
use comfy_table::{Cell, Color};
use guest::Guest;
use place::{Kind, Place};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weir_api::client::Client;
use weir_api::types::ApplyRequest;
use weir_lab::progress::Progress;
use weir_lab::{Cleaned, Error, Scope, interrupt, scope, system};
use weir_model::resource::Resource;

/// The lab that is meant when none is named.
const LAB: &str = "two-tenants";
/// The resources of all labs.
const RESOURCES: &str = include_str!("../../../../labs/two-tenants/net.yaml");
/// What commands with `--lab` take.
const CONTEXT_LINK: &str = "/run/weir-lab/admin.json";
/// Programs of Debian that it runs.
const NEEDED: [&str; 12] =
    ["ip", "sysctl", "unshare", "mount", "ping", "ss", "getent", "curl", "iperf3", "nginx", "dhcpcd", "sh"];
/// How long the switches may take to have the lab's resources in force.
const APPLY_BOUND: Duration = Duration::from_secs(30);
/// Steps of bringing up, as the progress display counts them.
const UP_STEPS: u64 = 6;

/// `weir lab …`
#[derive(Debug, Args)]
pub struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct Which {
    /// Which lab: 'weir lab list' names them
    #[arg(default_value = LAB, value_parser = Kind::ALL.map(Kind::name))]
    lab: String,
    /// Number of an instance, to run one lab beside another
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=i64::from(place::INSTANCE_MAX)))]
    instance: u8,
}

#[derive(Debug, Args)]
struct ProgramOf {
    /// Name of the program: 'weir lab status' names them
    program: String,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring a lab up, check it, and leave it running
    Up {
        #[command(flatten)]
        which: Which,
        /// Bring it down again after the checks
        #[arg(long)]
        no_keep: bool,
        /// Make no checks
        #[arg(long)]
        no_checks: bool,
        /// How a group signs: shares, which its controllers put together, shares-at-switches, or endorsed
        #[arg(long, value_parser = ["shares", "shares-at-switches", "endorsed"])]
        signatures: Option<String>,
        /// What an update of a switch waits for: see docs/operate/consistency.md
        #[arg(long, value_parser = ["dependent", "linear", "none"])]
        consistency: Option<String>,
    },
    /// End a lab and remove all that it made
    Down {
        #[command(flatten)]
        which: Which,
    },
    /// Show the programs of a lab that is up, and commands to play with
    Status {
        #[command(flatten)]
        which: Which,
    },
    /// List the labs
    List,
    /// Check a lab that is up once more
    Run {
        #[command(flatten)]
        which: Which,
    },
    /// End one program of a lab at once, as a crash would
    Kill(ProgramOf),
    /// Start one program of a lab again that was ended
    Start {
        #[command(flatten)]
        one: ProgramOf,
        /// A controller begins without a log, and waits to be added to the group with 'weir group add'
        #[arg(long)]
        join_group: bool,
    },
}

impl Lab {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::List => {
                list();
                Ok(ExitCode::SUCCESS)
            }
            Command::Up { which, no_keep, no_checks, signatures, consistency } => {
                let said = Said { signatures: signatures.as_deref(), consistency: consistency.as_deref() };
                up(which.place(), no_keep, no_checks, &said)
            }
            Command::Down { which } => down(which.place()),
            Command::Status { which } => status(which.place()),
            Command::Run { which } => check_again(which.place()),
            Command::Kill(one) => kill(one.which.place(), &one.program),
            Command::Start { one, join_group } => {
                let (place, scope) = one.which.attached()?;
                programs::start_again(&scope, place, &guests_of(place)?, &one.program, join_group)?;
                say!("{} runs.", one.program);
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl Which {
    fn place(&self) -> Place {
        // The command line takes no other name.
        Place::new(Kind::named(&self.lab).unwrap_or(Kind::TwoTenants), self.instance)
    }

    fn attached(&self) -> Result<(Place, Scope), Failure> {
        let place = self.place();
        Ok((place, attach(place)?))
    }
}

fn attach(place: Place) -> Result<Scope, Failure> {
    system::require_root()?;
    Scope::attach(&place.name())?.ok_or_else(|| {
        Failure::Input(format!("the lab {} is not up: 'weir lab up' brings it up", place.name()))
    })
}

/// The lab's resources, with the namespaces of an instance, and as JSON for the API.
fn resources_of(place: Place) -> Result<(Vec<Resource>, Vec<serde_json::Value>), Failure> {
    let documents = input::parse("net.yaml", &place.resources(RESOURCES))?;
    let of_networks = documents.iter().filter_map(|document| document.resource.of_networks().cloned());
    Ok((of_networks.collect(), documents.iter().map(|document| document.value.clone()).collect()))
}

fn guests_of(place: Place) -> Result<Vec<Guest>, Failure> {
    Ok(guest::guests(&resources_of(place)?.0))
}

/// What was said of a lab's controllers.
struct Said<'a> {
    signatures: Option<&'a str>,
    consistency: Option<&'a str>,
}

fn up(place: Place, no_keep: bool, no_checks: bool, said: &Said<'_>) -> Result<ExitCode, Failure> {
    system::require_root()?;
    if said.signatures.is_some() && !place.grouped() {
        return Err(Failure::Input(format!("{} has one controller, which signs alone", place.name())));
    }
    system::require_installed(&NEEDED)?;
    interrupt::install()?;
    let begin = Instant::now();
    if let Some(earlier) = Scope::attach(&place.name())? {
        tell!("{} is up already: it is ended first, and brought up anew.", place.name());
        remove(place, &earlier)?;
    }
    let scope = Scope::begin(&place.name(), &place.prefix())?;
    if let Some(signatures) = said.signatures {
        programs::sign_by(&scope, signatures)?;
    }
    if let Some(consistency) = said.consistency {
        programs::consistent_by(&scope, consistency)?;
    }
    let steps = UP_STEPS + if no_checks { 0 } else { checks::COUNT };
    let mut progress = Progress::new(&place.name(), steps);
    let outcome = bring_up(&scope, place, &mut progress).and_then(|(client, guests)| {
        let ready = begin.elapsed();
        if no_checks {
            return Ok((Vec::new(), ready));
        }
        let ground = Ground { place, client: &client, guests: &guests };
        Ok((checks::run(&ground, &mut progress)?, ready))
    });
    progress.finish();
    let interrupted = matches!(outcome, Err(Failure::Lab(Error::Interrupted)));
    if no_keep || interrupted {
        remove(place, &scope)?;
    } else if outcome.is_err() {
        tell!("What runs is left for a look, in {}: 'weir lab down' ends it.", scope.folder().display());
    }
    let (rows, ready) = outcome?;
    let all_hold = report(&rows);
    say!("Up after {:.1} s, checked after {:.1} s.", ready.as_secs_f64(), begin.elapsed().as_secs_f64());
    if !no_keep {
        say!("\n{}", play::text(place, &scope));
    }
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn bring_up(scope: &Scope, place: Place, progress: &mut Progress) -> Result<(Client, Vec<Guest>), Failure> {
    let (resources, values) = resources_of(place)?;
    let guests = guest::guests(&resources);
    progress.step("namespaces and links");
    topology::build(scope, place)?;
    guest::make_namespaces(scope, &guests)?;
    progress.step(match place.founders().len() {
        1 => "controller",
        3 => "three controllers",
        4 => "four controllers",
        _ => "seven controllers",
    });
    let client = programs::start_controllers(scope, place)?;
    link_context(place, scope)?;
    progress.step("three hosts and a gateway");
    programs::start_members(scope, place, &client)?;
    progress.step("resources: two networks, six endpoints, their rules");
    write_resources(place, scope)?;
    client.apply(&ApplyRequest { resources: values, ..ApplyRequest::default() })?;
    programs::wait_in_step(&client, APPLY_BOUND)?;
    progress.step("addresses, routes and names by DHCP");
    guest::configure(scope, &guests)?;
    progress.step("services");
    guest::serve(scope, place, &guests)?;
    Ok((client, guests))
}

/// The resources as a file, for the person to change and apply.
fn write_resources(place: Place, scope: &Scope) -> Result<(), Error> {
    let path = resources_path(scope);
    std::fs::write(&path, place.resources(RESOURCES))
        .map_err(|error| Error::io(format!("write {}", path.display()), error))
}

fn resources_path(scope: &Scope) -> PathBuf {
    scope.folder().join("net.yaml")
}

fn link_context(place: Place, scope: &Scope) -> Result<(), Error> {
    if !place.is_usual() {
        return Ok(());
    }
    unlink_context()?;
    std::os::unix::fs::symlink(programs::context_path(scope, place), CONTEXT_LINK)
        .map_err(|error| Error::io(format!("link {CONTEXT_LINK}"), error))
}

fn unlink_context() -> Result<(), Error> {
    if Path::new(CONTEXT_LINK).is_symlink() {
        std::fs::remove_file(CONTEXT_LINK)
            .map_err(|error| Error::io(format!("remove {CONTEXT_LINK}"), error))?;
    }
    Ok(())
}

/// Ends everything. Supervisors go first, so that none starts a switch again; then the agents and switches that they
/// leave.
fn remove(place: Place, scope: &Scope) -> Result<Cleaned, Failure> {
    for (_, record) in
        scope.programs().into_iter().filter(|(name, _)| programs::members().any(|one| one.name == name))
    {
        record.stop(|| ())?;
    }
    let orphans = programs::end_orphans(scope)?;
    if place.is_usual() {
        unlink_context()?;
    }
    let cleaned = scope.clean()?;
    Ok(Cleaned { processes: cleaned.processes + orphans, ..cleaned })
}

fn down(place: Place) -> Result<ExitCode, Failure> {
    system::require_root()?;
    let Some(scope) = Scope::attach(&place.name())? else {
        say!("The lab {} is not up: there is nothing to end ('weir lab list' shows what is).", place.name());
        return Ok(ExitCode::SUCCESS);
    };
    let cleaned = remove(place, &scope)?;
    say!("Removed {} with {} namespaces.", place.name(), cleaned.namespaces);
    Ok(ExitCode::SUCCESS)
}

fn check_again(place: Place) -> Result<ExitCode, Failure> {
    let scope = attach(place)?;
    interrupt::install()?;
    let guests = guests_of(place)?;
    let client = programs::client(&scope, place)?;
    let mut progress = Progress::new(&place.name(), checks::COUNT);
    let rows = checks::run(&Ground { place, client: &client, guests: &guests }, &mut progress);
    progress.finish();
    Ok(if report(&rows?) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn kill(place: Place, name: &str) -> Result<ExitCode, Failure> {
    let scope = attach(place)?;
    let found = scope.programs().into_iter().find(|(program, record)| program == name && record.alive());
    let Some((_, record)) = found else {
        return Err(Failure::Input(format!("no program '{name}' runs: 'weir lab status' names them")));
    };
    record.signal(weir_lab::process::Signal::KILL)?;
    system::wait_for(&format!("the end of {name}"), Duration::from_secs(5), || Ok(!record.alive()))?;
    say!("{name} is gone; 'weir lab start {name}{}' starts it again.", place.arguments());
    Ok(ExitCode::SUCCESS)
}

fn status(place: Place) -> Result<ExitCode, Failure> {
    let scope = attach(place)?;
    let mut table = output::table(&["program", "state", "pid"]);
    for (name, record) in scope.programs() {
        let state = if record.alive() {
            output::paint("runs", Color::Green)
        } else {
            output::paint("ended", Color::Red)
        };
        table.add_row(vec![Cell::new(name), state, Cell::new(record.pid)]);
    }
    say!("{table}\n");
    say!("{}", play::text(place, &scope));
    Ok(ExitCode::SUCCESS)
}

fn list() {
    let up = scope::list();
    let mut table = output::table(&["lab", "what", "state"]);
    for kind in Kind::ALL {
        let names = (0..=place::INSTANCE_MAX).map(|number| Place::new(kind, number).name());
        let instances: Vec<String> = names.filter(|name| up.contains(name)).collect();
        let state =
            if instances.is_empty() { "down".to_string() } else { format!("up: {}", instances.join(", ")) };
        table.add_row([kind.name().to_string(), kind.what().to_string(), state]);
    }
    say!("{table}");
}

/// Prints the table of results; whether all hold.
fn report(rows: &[Row]) -> bool {
    if rows.is_empty() {
        return true;
    }
    let mut table = output::table(&["check", "expected", "measured", ""]);
    for row in rows {
        let verdict =
            if row.holds { output::paint("ok", Color::Green) } else { output::paint("FAILED", Color::Red) };
        table.add_row(vec![
            Cell::new(&row.name),
            Cell::new(&row.expected),
            Cell::new(&row.measured),
            verdict,
        ]);
    }
    say!("{table}\n");
    let failed = rows.iter().filter(|row| !row.holds).count();
    say!("{} checks, {} hold, {failed} failed.", rows.len(), rows.len() - failed);
    failed == 0
}
