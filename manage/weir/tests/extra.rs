//! What a scenario adds to the lab: namespaces with a prefix of their own for each kind of lab, networks, endpoints.

use crate::lab::{Lab, added};
use crate::namespaces::wait;
use std::fmt::Write;
use std::net::IpAddr;
use weir_lab::scope::CleanOnDrop;
use weir_lab::{Daemon, Netns, Program, Scope};

/// The DHCP client with its own state, as in a machine of its own, and hooks that tell no service of this one.
const DHCP_SCRIPT: &str = "set -e
for folder in /run/dhcpcd /var/lib/dhcpcd; do
  mkdir -p $folder; mount -t tmpfs tmpfs $folder; chown dhcpcd: $folder
done
exec dhcpcd --nobackground --nodelay --noarp --noipv4ll --env resolvconf=none \\
  -C timezone -C ntp -C ntp.conf -C ntp-common.conf -C timesyncd.conf -C chrony.conf -C openntpd.conf -C ypbind -C wpa_supplicant eth0";

/// Additions that go when this is dropped. Resources go when the next scenario finds the lab.
pub struct Extra {
    scope: CleanOnDrop,
}

impl Extra {
    /// Nothing yet.
    pub fn begin() -> Extra {
        // A program that another test's thread is just starting has our lock for a moment, until it is itself.
        let (name, prefix) = added();
        let mut begun = Scope::begin(&name, prefix);
        wait("the lock of the tests' additions", || {
            if matches!(begun, Err(weir_lab::Error::Busy { .. })) {
                begun = Scope::begin(&name, prefix);
            }
            !matches!(begun, Err(weir_lab::Error::Busy { .. }))
        });
        Extra { scope: begun.unwrap().clean_on_drop() }
    }

    /// A namespace for an endpoint.
    pub fn netns(&self, short: &str) -> Netns {
        let netns = self.scope.netns(short).unwrap();
        self.scope.resolv_conf(&netns, "").unwrap();
        netns
    }

    /// A file of this scenario.
    pub fn file(&self, name: &str) -> String {
        self.scope.folder().join(name).display().to_string()
    }

    /// Starts `dhcpcd` in an endpoint.
    pub fn dhcpcd(&self, netns: &Netns) -> Daemon {
        let name = format!("dhcpcd-{}", netns.name());
        let program =
            Program::new("unshare").args(["--mount", "--uts", "sh", "-c", DHCP_SCRIPT]).netns(netns);
        self.scope.start(&name, &program).unwrap()
    }

    /// Starts a program that stays.
    pub fn start(&self, name: &str, program: &Program) -> Daemon {
        self.scope.start(name, program).unwrap()
    }

    /// The scope.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }
}

/// Text of a network with one subnet `main`; `settings` are more lines of the network.
pub fn network(name: &str, settings: &str, ranges: &str) -> String {
    format!(
        "---\nkind: network\nname: {name}\ningress: allow\n{settings}\n---\n\
         kind: subnet\nnetwork: {name}\nname: main\n{ranges}\n"
    )
}

/// Text of an endpoint with a device `eth0` in a namespace.
pub fn endpoint(network: &str, name: &str, host: &str, addresses: &[&str], netns: &Netns) -> String {
    let mut text =
        format!("---\nkind: endpoint\nnetwork: {network}\nname: {name}\nsubnet: main\nhost: {host}\n");
    let quoted: Vec<String> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    let _ = writeln!(text, "addresses: [{}]", quoted.join(", "));
    let _ = writeln!(text, "attachment: {{netns: {}, device: eth0}}", netns.name());
    text
}

/// Waits until the device of an endpoint carries traffic.
pub fn wait_carrier(netns: &Netns) {
    wait(&format!("carrier in {}", netns.name()), || {
        netns.up("eth0").is_ok()
            && netns.ip(&["-o", "link", "show", "dev", "eth0"]).is_ok_and(|text| text.contains("LOWER_UP"))
    });
}

/// Waits for carrier, and sets address and default route by hand.
pub fn configure(netns: &Netns, address: &str, router: &str) {
    wait_carrier(netns);
    netns.address("eth0", address).unwrap();
    netns.route("default", router).unwrap();
}

/// Waits for an address of a family beyond the link.
pub fn wait_address(netns: &Netns, v6: bool) -> IpAddr {
    let mut found = None;
    let family = if v6 { "-6" } else { "-4" };
    wait(&format!("an address in {}", netns.name()), || {
        let text = netns.ip(&["-o", family, "address", "show", "dev", "eth0", "scope", "global"]).unwrap();
        let usable = text.lines().filter(|line| !line.contains("tentative"));
        found =
            usable.filter_map(|line| line.split_whitespace().nth(3)?.split('/').next()?.parse().ok()).next();
        found.is_some()
    });
    found.unwrap()
}

/// Two endpoints, `a` on h1 and `b` on h2, of a network of their own, configured by hand.
pub struct Pair {
    /// On h1.
    pub a: Netns,
    /// On h2.
    pub b: Netns,
}

/// Makes a pair in a network with more settings.
pub fn pair(lab: &Lab, extra: &Extra, name: &str, settings: &str) -> Pair {
    let (a, b) = (extra.netns(&format!("{name}-a")), extra.netns(&format!("{name}-b")));
    let mut text = network(name, settings, "v4: 10.7.0.0/24\nv6: fd00:7::/64");
    text += &endpoint(name, "a", "h1", &["10.7.0.11", "fd00:7::11"], &a);
    text += &endpoint(name, "b", "h2", &["10.7.0.12", "fd00:7::12"], &b);
    lab.apply(&text);
    for (netns, number) in [(&a, 11), (&b, 12)] {
        configure(netns, &format!("10.7.0.{number}/24"), "10.7.0.1");
        netns.address("eth0", format!("fd00:7::{number}/64")).unwrap();
    }
    Pair { a, b }
}

/// An address of a test.
pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
