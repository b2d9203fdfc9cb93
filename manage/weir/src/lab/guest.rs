//! The guests: a namespace for each endpoint of the lab's resources, with unmodified programs in it: `dhcpcd` for
//! addresses, route and names of both IP versions, `nginx` and `iperf3` as services.

use super::place::{Place, make_folder};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use weir_lab::probe::stream;
use weir_lab::{Error, Netns, Program, Result, Scope, system};
use weir_model::resource::Resource;

/// Name of the server in the outside namespace.
pub const OUTSIDE_SERVER: &str = "nginx-out";
/// Ports that a guest's server listens on, and the outside's.
const PORTS: [u16; 4] = [80, 8080, 8081, 5432];
/// How long a device may take to come up after its endpoint was applied.
const CARRIER_BOUND: Duration = Duration::from_secs(20);
/// How long DHCP may take.
const LEASE_BOUND: Duration = Duration::from_secs(30);
/// How long a server may take to listen.
const LISTEN_BOUND: Duration = Duration::from_secs(10);
/// A guest has its own host name and its own state of the DHCP client, as a machine would. Its hooks tell no service of the machine: names go
/// into the guest's own `/etc/resolv.conf`. What begins with "$" is
/// the shell's.
const DHCP_SCRIPT: &str = "set -e
for folder in /run/dhcpcd /var/lib/dhcpcd; do
  mkdir -p $folder
  mount -t tmpfs tmpfs $folder
  chown dhcpcd: $folder
done
exec dhcpcd --nobackground --nodelay --noarp --noipv4ll --env resolvconf=none \\
  -C timezone -C ntp -C ntp.conf -C ntp-common.conf -C timesyncd.conf -C chrony.conf -C openntpd.conf -C ypbind -C wpa_supplicant \"$1\"";

/// One guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Its tenant's network.
    pub network: String,
    /// Its name in that network.
    pub name: String,
    /// Its namespace.
    pub netns: Netns,
    /// Name of its device.
    pub device: String,
}

/// The guests of a set of resources: the endpoints that say in which namespace their device is made.
pub fn guests(resources: &[Resource]) -> Vec<Guest> {
    let endpoints = resources.iter().filter_map(|resource| match resource {
        Resource::Endpoint(endpoint) => Some(endpoint),
        _ => None,
    });
    endpoints
        .filter_map(|endpoint| {
            let attachment = endpoint.attachment.as_ref()?;
            Some(Guest {
                network: endpoint.network.to_string(),
                name: endpoint.name.to_string(),
                netns: Netns::existing(attachment.netns.clone()?),
                device: attachment.device.clone(),
            })
        })
        .collect()
}

impl Guest {
    /// Name of its DHCP client among the lab's programs.
    pub fn dhcp_name(&self) -> String {
        format!("dhcp-{}-{}", self.network, self.name)
    }

    /// Name of its web server.
    pub fn server_name(&self) -> String {
        format!("nginx-{}-{}", self.network, self.name)
    }

    /// Name of its iperf3 server.
    pub fn stream_name(&self) -> String {
        format!("iperf3-{}-{}", self.network, self.name)
    }

    /// Whether it runs an iperf3 server.
    pub fn streams(&self) -> bool {
        self.name == "web"
    }

    /// Its DHCP client.
    pub fn dhcp(&self) -> Program {
        Program::new("unshare")
            .args(["--mount", "--uts", "sh", "-c", DHCP_SCRIPT, "guest", &self.device])
            .netns(&self.netns)
    }

    /// Waits until its device is there and carries traffic.
    pub fn wait_carrier(&self) -> Result<()> {
        let what = format!("carrier on {} of {}", self.device, self.netns.name());
        system::wait_for(&what, CARRIER_BOUND, || {
            // The device appears when the host's agent makes it; that it is wanted up is the guest's own business.
            Ok(self.netns.up(&self.device).is_ok()
                && self.netns.ip(&["-o", "link", "show", "dev", &self.device])?.contains("LOWER_UP"))
        })
    }

    /// Waits until DHCP gave it an address of each IP version and a name server.
    pub fn wait_lease(&self) -> Result<()> {
        let what = format!("addresses and names by DHCP in {}", self.netns.name());
        system::wait_for(&what, LEASE_BOUND, || {
            let addresses = self.addresses()?;
            Ok(addresses.iter().any(IpAddr::is_ipv4)
                && addresses.iter().any(IpAddr::is_ipv6)
                && self.resolver().contains("nameserver"))
        })
    }

    /// What its programs see as `/etc/resolv.conf`.
    pub fn resolver(&self) -> String {
        let path = PathBuf::from("/etc/netns").join(self.netns.name()).join("resolv.conf");
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// The addresses of its device that can be used beyond the link.
    pub fn addresses(&self) -> Result<Vec<IpAddr>> {
        let text = self.netns.ip(&["-o", "address", "show", "dev", &self.device, "scope", "global"])?;
        let usable = text.lines().filter(|line| !line.contains("tentative"));
        Ok(usable
            .filter_map(|line| line.split_whitespace().nth(3)?.split('/').next()?.parse().ok())
            .collect())
    }

    /// Its web server: every port answers with the guest's tenant and name.
    fn server(&self, scope: &Scope) -> Result<Program> {
        let page = format!("{}/{}", self.network, self.name);
        server(scope, &self.server_name(), &self.netns, &page)
    }

    fn stream(&self) -> Program {
        Program::new("iperf3")
            .args(["-s".to_string(), "-p".into(), stream::PORT.to_string()])
            .netns(&self.netns)
    }
}

/// Makes the guests' namespaces, without any device but the loopback.
pub fn make_namespaces(scope: &Scope, guests: &[Guest]) -> Result<()> {
    for guest in guests {
        let short = guest.netns.name().strip_prefix(scope.prefix()).ok_or_else(|| Error::Name {
            name: guest.netns.name().to_string(),
            rule: "attachments of a lab begin with its prefix",
        })?;
        scope.netns(short)?;
        scope.resolv_conf(&guest.netns, "")?;
    }
    Ok(())
}

/// Waits for each guest's device and starts its DHCP client; then waits for all leases.
pub fn configure(scope: &Scope, guests: &[Guest]) -> Result<()> {
    let mut clients = Vec::new();
    for guest in guests {
        guest.wait_carrier()?;
        clients.push(scope.start(&guest.dhcp_name(), &guest.dhcp())?);
    }
    for (guest, client) in guests.iter().zip(&clients) {
        guest.wait_lease().map_err(|error| match error {
            Error::Timeout { what, after_ms, .. } => {
                Error::Timeout { what, after_ms, hint: format!(": see {}", client.log_path().display()) }
            }
            other => other,
        })?;
    }
    Ok(())
}

/// Starts the guests' and the outside's servers, and waits until all listen.
pub fn serve(scope: &Scope, place: Place, guests: &[Guest]) -> Result<()> {
    let mut daemons =
        vec![(scope.start(OUTSIDE_SERVER, &outside_server(scope, place)?)?, place.netns("out"), PORTS[0])];
    for guest in guests {
        let daemon = scope.start(&guest.server_name(), &guest.server(scope)?)?;
        daemons.push((daemon, guest.netns.clone(), PORTS[0]));
        if guest.streams() {
            let daemon = scope.start(&guest.stream_name(), &guest.stream())?;
            daemons.push((daemon, guest.netns.clone(), stream::PORT));
        }
    }
    for (daemon, netns, port) in &daemons {
        let what = format!("{} on port {port}", daemon.name());
        daemon.wait_until(&what, LISTEN_BOUND, || stream::listening(netns, *port))?;
    }
    Ok(())
}

/// The server of the outside.
pub fn outside_server(scope: &Scope, place: Place) -> Result<Program> {
    server(scope, OUTSIDE_SERVER, &place.netns("out"), "outside")
}

/// A guest's program by name.
pub fn program(scope: &Scope, guests: &[Guest], name: &str) -> Result<Option<Program>> {
    for guest in guests {
        if name == guest.dhcp_name() {
            return Ok(Some(guest.dhcp()));
        }
        if name == guest.server_name() {
            return guest.server(scope).map(Some);
        }
        if guest.streams() && name == guest.stream_name() {
            return Ok(Some(guest.stream()));
        }
    }
    Ok(None)
}

/// An nginx in a namespace. `/` answers with the page, `/caller` with the address that the request came from.
fn server(scope: &Scope, name: &str, netns: &Netns, page: &str) -> Result<Program> {
    let folder = scope.folder().join(name);
    make_folder(&folder)?;
    let path = folder.join("nginx.conf");
    std::fs::write(&path, server_config(&folder.display().to_string(), page))
        .map_err(|error| Error::io(format!("write {}", path.display()), error))?;
    // "stderr" also before the configuration is read, since nobody else may write in Debian's log folder.
    Ok(Program::new("nginx").args(["-e", "stderr", "-p"]).arg(&folder).arg("-c").arg(&path).netns(netns))
}

fn server_config(folder: &str, page: &str) -> String {
    let listen: String =
        PORTS.iter().map(|port| format!("    listen {port};\n    listen [::]:{port};\n")).collect();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {folder}/{kind};\n"))
        .collect();
    format!(
        "daemon off;\nmaster_process off;\nuser root;\npid {folder}/nginx.pid;\nerror_log stderr;\n\
         events {{ worker_connections 256; }}\n\
         http {{\n  access_log off;\n  default_type text/plain;\n{temporary}\
         \u{20} server {{\n{listen}    location / {{ return 200 \"{page}\\n\"; }}\n\
         \u{20}   location /caller {{ return 200 \"$remote_addr\\n\"; }}\n  }}\n}}\n"
    )
}
