//! Network namespaces and what is in them, configured with iproute2.
//!
//! A namespace is named `<prefix><short>`, and appears below `/run/netns` as for any user of `ip netns`, so a
//! person can look into a lab with the tools they know.

use crate::{Result, private, system};
use std::fmt::Display;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A named network namespace. The value is a handle: dropping it leaves the namespace alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// A handle on a namespace that exists already, by full name.
    pub fn existing(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }

    /// Creates the namespace, with its loopback up. Use [`crate::Scope::netns`], which checks the name.
    pub(crate) fn create(name: String) -> Result<Self> {
        system::run("ip", &["netns", "add", &name])?;
        let netns = Self { name };
        netns.up("lo")?;
        Ok(netns)
    }

    /// Full name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `/run/netns/<name>`, to open for `setns`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// True if it exists now.
    pub fn exists(&self) -> bool {
        self.path().exists()
    }

    /// `ip -n <name> args`.
    pub fn ip(&self, args: &[&str]) -> Result<String> {
        let mut all = vec!["-n", &self.name];
        all.extend_from_slice(args);
        system::run("ip", &all)
    }

    /// The processes in it, as `ip netns pids` finds them; without our own.
    pub fn processes(&self) -> Vec<i32> {
        let identity = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let Some(this) = identity(&self.path()) else { return Vec::new() };
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != std::process::id() as i32)
            .filter(|pid| identity(Path::new(&format!("/proc/{pid}/ns/net"))) == Some(this))
            .collect()
    }

    /// A command that will run in this namespace; `/etc/netns/<name>/` is mounted over `/etc` for it, and the rest of `/etc` is its own.
    pub fn command(&self, program: &str) -> Command {
        let words = private::words(&self.name);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    /// Runs a short program in this namespace to its end.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = self.command(program);
        command.args(args);
        system::run_ok(command, system::CONFIGURE_BOUND)
    }

    /// A veth pair, one end here and the other in `peer_netns`. Both ends are left down.
    pub fn veth(&self, link: &str, peer_netns: &Netns, peer_link: &str) -> Result<()> {
        let args = [
            "link",
            "add",
            "name",
            link,
            "type",
            "veth",
            "peer",
            "name",
            peer_link,
            "netns",
            peer_netns.name.as_str(),
        ];
        self.ip(&args)?;
        Ok(())
    }

    /// A bridge, up, that never ages or learns by itself what the caller does not want: plain defaults.
    pub fn bridge(&self, link: &str) -> Result<()> {
        self.ip(&["link", "add", "name", link, "type", "bridge"])?;
        self.up(link)
    }

    /// Makes `link` a port of `bridge`.
    pub fn attach(&self, link: &str, bridge: &str) -> Result<()> {
        self.ip(&["link", "set", "dev", link, "master", bridge])?;
        Ok(())
    }

    /// Sets a link up.
    pub fn up(&self, link: &str) -> Result<()> {
        self.ip(&["link", "set", "dev", link, "up"])?;
        Ok(())
    }

    /// Sets a link down.
    pub fn down(&self, link: &str) -> Result<()> {
        self.ip(&["link", "set", "dev", link, "down"])?;
        Ok(())
    }

    /// Sets the MTU of a link, in bytes.
    pub fn mtu(&self, link: &str, mtu_bytes: u32) -> Result<()> {
        self.ip(&["link", "set", "dev", link, "mtu", &mtu_bytes.to_string()])?;
        Ok(())
    }

    /// Adds an address with its prefix length (`10.0.0.1/24`, `fd00::1/64`). IPv6 addresses skip duplicate
    /// detection, so that they can be used at once.
    pub fn address(&self, link: &str, address: impl Display) -> Result<()> {
        let address = address.to_string();
        let mut args = vec!["address", "add", address.as_str(), "dev", link];
        if address.contains(':') {
            args.push("nodad");
        }
        self.ip(&args)?;
        Ok(())
    }

    /// Adds or replaces a route (`default` or a prefix) by way of a next hop.
    pub fn route(&self, destination: &str, next_hop: impl Display) -> Result<()> {
        let next_hop = next_hop.to_string();
        let family = if next_hop.contains(':') { "-6" } else { "-4" };
        self.ip(&[family, "route", "replace", destination, "via", &next_hop])?;
        Ok(())
    }

    /// A permanent neighbour entry, so that a measurement holds no address resolution.
    pub fn neighbour(&self, link: &str, address: impl Display, mac: &str) -> Result<()> {
        self.ip(&["neigh", "replace", &address.to_string(), "lladdr", mac, "dev", link, "nud", "permanent"])?;
        Ok(())
    }

    /// The MAC address of a link, as `aa:bb:cc:dd:ee:ff`.
    pub fn mac(&self, link: &str) -> Result<String> {
        let text = self.ip(&["-o", "link", "show", "dev", link])?;
        text.split_whitespace()
            .skip_while(|word| *word != "link/ether")
            .nth(1)
            .map(str::to_string)
            .ok_or_else(|| crate::Error::Output {
                program: "ip link",
                reason: format!("no MAC address of {link} in {text:?}"),
            })
    }

    /// Sets the MAC address of a link.
    pub fn set_mac(&self, link: &str, mac: &str) -> Result<()> {
        self.ip(&["link", "set", "dev", link, "address", mac])?;
        Ok(())
    }

    /// Moves a link of this namespace into another.
    pub fn move_link(&self, link: &str, to: &Netns) -> Result<()> {
        self.ip(&["link", "set", "dev", link, "netns", to.name.as_str()])?;
        Ok(())
    }

    /// Switches checksum, segmentation and receive offloads of a link off. Needed where a link's other end is
    /// read by a program that does not understand unfinished checksums.
    pub fn offloads_off(&self, link: &str) -> Result<()> {
        self.run("ethtool", &["-K", link, "tx", "off", "gso", "off", "tso", "off", "gro", "off"])?;
        Ok(())
    }

    /// Sets one sysctl of this namespace, such as `net.ipv4.ip_forward`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.run("sysctl", &["-qw", &format!("{key}={value}")])?;
        Ok(())
    }
}

/// The namespaces that exist now and whose name begins with `prefix`.
pub fn list(prefix: &str) -> Vec<Netns> {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return Vec::new() };
    let mut found: Vec<Netns> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .map(Netns::existing)
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}
