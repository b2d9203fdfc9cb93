//! Weir as a path of `weir bench net`: its real processes, joined as on real machines.
//!
//! ```text
//!   t1 ══ TAP ══ h1 ───── underlay, MTU 1600 ───── h2 ══ TAP ══ t2
//!                  ╲                               ╱
//!                   ╲────── c (controller, g1) ───╱
//! ```
//!
//! The two hosts have the same link between them as the peers' hosts. The first packets go by the
//! gateway; the controller then gives the pair a direct location, and a slow ping keeps it in use.

use std::path::PathBuf;
use std::time::Duration;
use weir_lab::bench::net::{Endpoints, Path};
use weir_lab::process::{Daemon, Program};
use weir_lab::{Error, Netns, Result, Scope, system};

const CONTROLLER: &str = "10.201.0.1";
const UNDERLAY: [&str; 2] = ["10.200.0.1", "10.200.0.2"];
const TENANTS: [&str; 2] = ["10.0.0.11", "10.0.0.12"];
const UNDERLAY_MTU_BYTES: u32 = 1600;
/// Starting, joining and programming may take so long.
const BOUND: Duration = Duration::from_secs(60);

const RESOURCES: &str = r#"[
  {"kind": "network", "name": "bench", "mtu": 1500, "ingress": "allow"},
  {"kind": "subnet", "network": "bench", "name": "a", "v4": "10.0.0.0/24"},
  {"kind": "endpoint", "network": "bench", "name": "t1", "subnet": "a", "host": "h1", "addresses": ["10.0.0.11"],
   "attachment": {"kind": "KIND", "netns": "T1", "device": "eth0"}},
  {"kind": "endpoint", "network": "bench", "name": "t2", "subnet": "a", "host": "h2", "addresses": ["10.0.0.12"],
   "attachment": {"kind": "KIND", "netns": "T2", "device": "eth0"}}
]"#;

/// See the module.
pub struct Weir {
    name: &'static str,
    /// What its namespaces' names begin with.
    short: &'static str,
    /// How its endpoints' frames reach the switch.
    ports: &'static str,
    /// How its hosts' datagrams go to each other.
    underlay: &'static str,
    program: PathBuf,
    daemons: Vec<Daemon>,
    /// The controller's namespace and the folder, once it runs.
    operator: Option<(Netns, PathBuf)>,
}

struct Ground {
    name: &'static str,
    ports: &'static str,
    underlay: &'static str,
    control: Netns,
    hosts: [Netns; 2],
    tenants: [Netns; 2],
    folder: PathBuf,
    program: PathBuf,
}

impl Weir {
    /// Runs this binary.
    pub fn new(program: PathBuf) -> Weir {
        let (daemons, operator) = (Vec::new(), None);
        Weir { name: "weir", short: "w", ports: "tap", underlay: "sockets", program, daemons, operator }
    }

    /// Runs this binary, with endpoints behind veth pairs: as peers of the usual ports.
    pub fn with_veth_ports(program: &std::path::Path) -> [Weir; 2] {
        let of = |name, short, ports| Weir { name, short, ports, ..Weir::new(program.to_path_buf()) };
        [of("weir-af-packet", "p", "af-packet"), of("weir-af-xdp", "x", "af-xdp")]
    }

    /// Runs this binary, with AF_XDP on the underlay: as a peer of the usual sockets.
    pub fn with_xdp_underlay(program: &std::path::Path) -> Weir {
        let usual = Weir::new(program.to_path_buf());
        Weir { name: "weir-xdp-underlay", short: "u", underlay: "af-xdp", ..usual }
    }

    /// Runs another build, as a peer.
    pub fn beside(program: PathBuf) -> Weir {
        Weir { name: "weir-beside", short: "b", ..Weir::new(program) }
    }

    /// Applies more resources, once it is set up.
    ///
    /// # Errors
    /// What the controller says.
    pub fn apply_more(&self, name: &str, text: &str) -> Result<()> {
        let Some((control, folder)) = &self.operator else { return Ok(()) };
        let file = folder.join(format!("{name}.json"));
        std::fs::write(&file, text).map_err(|error| Error::io("write resources", error))?;
        let (context, file) = (folder.join("controller/admin.json"), file.display().to_string());
        let context = context.display().to_string();
        let arguments = ["--context", &context, "apply", "--yes", "--wait-s", "30", "-f", &file];
        control.run(&self.program.display().to_string(), &arguments).map(drop)
    }
}

impl Path for Weir {
    fn name(&self) -> &str {
        self.name
    }

    fn conditions(&self) -> String {
        let ports = match self.ports {
            "af-packet" => "AF_PACKET on veth pairs with TSO and USO",
            "af-xdp" => "AF_XDP (copying) on veth pairs without offloads",
            _ => "TAP ports with TSO and USO",
        };
        let underlay = match self.underlay {
            "af-xdp" => "AF_XDP (copying) on the underlay",
            _ => "UDP sockets on the underlay",
        };
        format!(
            "Geneve with security token, {ports}, {underlay}, stateful firewall, one engine thread a host, bound to the processor \
             of its end, default settings"
        )
    }

    fn set_up(&mut self, scope: &Scope) -> Result<Endpoints> {
        let ground = Ground::make(scope, self)?;
        self.operator = Some((ground.control.clone(), ground.folder.clone()));
        self.daemons.push(ground.controller(scope)?);
        self.daemons.push(ground.node(scope, "g1", &ground.control, CONTROLLER, 1)?);
        for (index, host) in ground.hosts.iter().enumerate() {
            let name = ["h1", "h2"][index];
            self.daemons.push(ground.node(scope, name, host, UNDERLAY[index], index)?);
        }
        ground.apply()?;
        ground.configure_tenants()?;
        ground.wait_direct()?;
        let keep = Program::new("ping").args(["-q", "-i", "3", TENANTS[1]]).netns(&ground.tenants[0]);
        self.daemons.push(scope.start(&format!("{}-keep", self.name), &keep)?);
        let [client, server] = ground.tenants;
        let address = |text: &str| {
            text.parse().map_err(|_| Error::Output { program: "bench", reason: text.to_string() })
        };
        Ok(Endpoints {
            client,
            client_address: address(TENANTS[0])?,
            server,
            server_address: address(TENANTS[1])?,
        })
    }

    fn tear_down(&mut self) -> Result<()> {
        for daemon in self.daemons.iter_mut().rev() {
            daemon.stop()?;
        }
        Ok(())
    }
}

impl Ground {
    fn make(scope: &Scope, weir: &Weir) -> Result<Ground> {
        let netns = |part: &str| scope.netns(&format!("{}-{part}", weir.short));
        let ground = Ground {
            name: weir.name,
            ports: weir.ports,
            underlay: weir.underlay,
            control: netns("c")?,
            hosts: [netns("h1")?, netns("h2")?],
            tenants: [netns("t1")?, netns("t2")?],
            folder: scope.folder().join(weir.name),
            program: weir.program.clone(),
        };
        let [first, second] = &ground.hosts;
        first.veth("under", second, "under")?;
        // A source address must be there before a route names it.
        ground.control.address("lo", format!("{CONTROLLER}/32"))?;
        ground.control.up("lo")?;
        for (index, host) in ground.hosts.iter().enumerate() {
            host.mtu("under", UNDERLAY_MTU_BYTES)?;
            host.address("under", format!("{}/24", UNDERLAY[index]))?;
            host.up("under")?;
            let link = ["m1", "m2"][index];
            host.veth("mgmt", &ground.control, link)?;
            host.mtu("mgmt", UNDERLAY_MTU_BYTES)?;
            ground.control.mtu(link, UNDERLAY_MTU_BYTES)?;
            host.up("mgmt")?;
            ground.control.up(link)?;
            host.ip(&["route", "add", CONTROLLER, "dev", "mgmt", "src", UNDERLAY[index]])?;
            ground.control.ip(&["route", "add", UNDERLAY[index], "dev", link, "src", CONTROLLER])?;
        }
        Ok(ground)
    }

    /// Runs a command of the operator in the controller's namespace; gives what it printed.
    fn weir(&self, arguments: &[&str]) -> Result<String> {
        let context = self.folder.join("controller/admin.json");
        let mut all: Vec<&str> = vec!["--context"];
        let context = context.display().to_string();
        all.push(&context);
        all.extend(arguments);
        self.control.run(&self.program.display().to_string(), &all).map(|text| text.trim().to_string())
    }

    fn controller(&self, scope: &Scope) -> Result<Daemon> {
        let state = self.folder.join("controller");
        std::fs::create_dir_all(&state).map_err(|error| Error::io("make the state directory", error))?;
        let program = Program::new(&self.program)
            .args([
                "controller",
                "--domain",
                "bench",
                "--api",
                "10.201.0.1:7443",
                "--session",
                "10.201.0.1:7444",
            ])
            .arg("--state")
            .arg(&state)
            .netns(&self.control);
        let daemon = scope.start(&format!("{}-controller", self.name), &program)?;
        daemon.wait_until("the controller", BOUND, || Ok(self.weir(&["status"]).is_ok()))?;
        Ok(daemon)
    }

    fn node(&self, scope: &Scope, name: &str, netns: &Netns, underlay: &str, cpu: usize) -> Result<Daemon> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder).map_err(|error| Error::io("make the state directory", error))?;
        let role = if name == "g1" { "gateway" } else { "host" };
        // A build before this one has tokens for everybody.
        let one = ["token", "--name", name, "--role", role, "--underlay", "0.0.0.0/0"];
        let token = self.weir(&one).or_else(|_| self.weir(&["token"]))?;
        // The gateway is on the loopback device, and what is usual another build may not know.
        let is_usual = role == "gateway" || self.underlay == "sockets";
        let more = if is_usual { String::new() } else { format!(", underlay: {}", self.underlay) };
        let settings = format!(
            "name: {name}\nrole: {role}\nunderlay: {underlay}\nstateDir: {0}\nrunDir: {0}/run\n\
             supervisor: {{stopSwitch: true}}\nmonitor: {{run: \"off\"}}\n\
             switch: {{engine: {{cpu: {cpu}{more}}}}}\n",
            folder.display()
        );
        let file = folder.join("settings.yaml");
        std::fs::write(&file, settings).map_err(|error| Error::io("write settings", error))?;
        let program = Program::new(&self.program)
            .args([role, "--config"])
            .arg(&file)
            .env("WEIR_JOIN_TOKEN", token)
            .netns(netns);
        let daemon = scope.start(&format!("{}-{name}", self.name), &program)?;
        daemon.wait_until("the session", BOUND, || self.shows(name, |one| one["connected"] == true))?;
        Ok(daemon)
    }

    /// Whether the status of a switch is as wanted.
    fn shows(&self, name: &str, wanted: impl Fn(&serde_json::Value) -> bool) -> Result<bool> {
        let Ok(text) = self.weir(&["status", "-o", "json"]) else { return Ok(false) };
        let status: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| Error::Output { program: "weir", reason: error.to_string() })?;
        let switches = status["actuators"].as_array().cloned().unwrap_or_default();
        Ok(switches.iter().any(|one| one["name"] == name && wanted(one)))
    }

    fn apply(&self) -> Result<()> {
        let [first, second] = &self.tenants;
        let text = RESOURCES.replace("KIND", self.ports);
        let text = text.replace("\"T1\"", &format!("\"{}\"", first.name()));
        let text = text.replace("\"T2\"", &format!("\"{}\"", second.name()));
        let file = self.folder.join("net.json");
        std::fs::write(&file, text).map_err(|error| Error::io("write resources", error))?;
        self.weir(&["apply", "--yes", "--wait-s", "30", "-f", &file.display().to_string()]).map(drop)
    }

    fn configure_tenants(&self) -> Result<()> {
        for (netns, address) in self.tenants.iter().zip(TENANTS) {
            system::wait_for("the device of an endpoint", BOUND, || Ok(netns.mac("eth0").is_ok()))?;
            netns.address("eth0", format!("{address}/24"))?;
            netns.up("eth0")?;
        }
        Ok(())
    }

    /// Sends until both hosts know where the other endpoint is.
    fn wait_direct(&self) -> Result<()> {
        let before: Vec<Option<u64>> = ["h1", "h2"].map(|name| self.desired(name)).to_vec();
        system::wait_for("a direct path", BOUND, || {
            // Answers of every size are welcome: only the bytes count.
            let _ = self.tenants[0].run("ping", &["-q", "-c", "40", "-i", "0.02", "-s", "1400", TENANTS[1]]);
            Ok(["h1", "h2"].iter().zip(&before).all(|(name, before)| self.desired(name) > *before))
        })
    }

    /// How many entries a switch shall have, when it has them all.
    fn desired(&self, name: &str) -> Option<u64> {
        let text = self.weir(&["status", "-o", "json"]).ok()?;
        let status: serde_json::Value = serde_json::from_str(&text).ok()?;
        let one = status["actuators"].as_array()?.iter().find(|one| one["name"] == name)?.clone();
        let (desired, acked) = (one["desiredEntries"].as_u64()?, one["ackedEntries"].as_u64()?);
        (desired == acked).then_some(desired)
    }
}
