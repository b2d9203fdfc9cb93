//! Names and addresses of a lab: everything is derived from the lab's name and the number of the instance, so that
//! several can run beside each other and each can be found again.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use weir_lab::{Error, Netns};

/// Highest number of an instance.
pub const INSTANCE_MAX: u8 = 9;
/// MTU of the underlay, bytes: room for the overlay's headers around the largest tenant MTU that labs use.
pub const UNDERLAY_MTU_BYTES: u32 = 9200;
/// Port of the controller's API.
pub const API_PORT: u16 = 7443;
/// Where each agent serves metrics, in its own namespace.
pub const METRICS_ADDRESS: &str = "127.0.0.1:9471";
/// Port of the controller's sessions.
pub const SESSION_PORT: u16 = 7444;
/// Port where a controller of a group is reached by the others.
pub const REPLICA_PORT: u16 = 7445;

/// Makes a folder, and those above it.
pub(super) fn make_folder(path: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(path).map_err(|error| Error::io(format!("make {}", path.display()), error))
}

/// A process of Weir with a namespace of its own on the underlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Name of the program, and of the host or gateway in Weir.
    pub name: &'static str,
    /// What follows the prefix in its namespace's name.
    pub netns: &'static str,
    /// Its number in the underlay's ranges.
    pub number: u8,
}

/// The controller of a lab with one.
pub const CONTROLLER: Member = Member { name: "controller", netns: "ctl", number: 1 };
/// The controllers of labs with a group: each has as many as it needs.
pub const CONTROLLERS: [Member; 7] = [
    Member { name: "c1", netns: "c1", number: 1 },
    Member { name: "c2", netns: "c2", number: 2 },
    Member { name: "c3", netns: "c3", number: 3 },
    Member { name: "c4", netns: "c4", number: 4 },
    Member { name: "c5", netns: "c5", number: 5 },
    Member { name: "c6", netns: "c6", number: 6 },
    Member { name: "c7", netns: "c7", number: 7 },
];
/// How many of them found a group that survives a crash.
pub const FOUNDERS: usize = 3;
/// The hosts.
pub const HOSTS: [Member; 3] = [
    Member { name: "h1", netns: "h1", number: 11 },
    Member { name: "h2", netns: "h2", number: 12 },
    Member { name: "h3", netns: "h3", number: 13 },
];
/// The gateway.
pub const GATEWAY: Member = Member { name: "g1", netns: "gw", number: 21 };
/// The caller's own namespace on the underlay, so that commands reach the controller.
pub const CALLER_NUMBER: u8 = 254;

/// The gateway's side of the link to the outside.
pub const GATEWAY_OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The outside's side.
pub const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The gateway's side, IPv6.
pub const GATEWAY_OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1);
/// The outside's side, IPv6.
pub const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 2);
/// The address that the outside sees of all tenants.
pub const EXTERNAL_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
/// The address that the outside sees of all tenants, IPv6.
pub const EXTERNAL_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 0x10);

/// Which lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One controller.
    TwoTenants,
    /// The same with a group of three.
    ThreeControllers,
    /// The same with a group of four, of which one may lie.
    FourControllers,
    /// The same with a group of seven, of which two may lie.
    SevenControllers,
}

impl Kind {
    /// All, in the order in which they are listed.
    pub const ALL: [Kind; 4] =
        [Kind::TwoTenants, Kind::ThreeControllers, Kind::FourControllers, Kind::SevenControllers];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::TwoTenants => "two-tenants",
            Kind::ThreeControllers => "three-controllers",
            Kind::FourControllers => "four-controllers",
            Kind::SevenControllers => "seven-controllers",
        }
    }

    /// The lab of a name.
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What it is.
    pub fn what(self) -> &'static str {
        match self {
            Kind::TwoTenants => "a controller, three hosts, a gateway; two tenants with the same addresses",
            Kind::ThreeControllers => "the same with a group of three controllers, and one more to add",
            Kind::FourControllers => {
                "the same with a group of four controllers, of which one may lie, and one more to add"
            }
            Kind::SevenControllers => "the same with a group of seven controllers, of which two may lie",
        }
    }
}

/// One instance of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    kind: Kind,
    instance: u8,
}

impl Place {
    /// The instance of a number from 0, the usual one, to [`INSTANCE_MAX`].
    pub fn new(kind: Kind, instance: u8) -> Place {
        assert!(instance <= INSTANCE_MAX, "the command line allows no higher instance");
        Place { kind, instance }
    }

    /// What a command of `weir lab` must say to mean it, behind a space.
    pub fn arguments(self) -> String {
        let lab = self.kind.name();
        match self.instance {
            0 if self.grouped() => format!(" {lab}"),
            0 => String::new(),
            number => format!(" {lab} --instance {number}"),
        }
    }

    /// Whether its controllers are a group.
    pub fn grouped(self) -> bool {
        self.kind != Kind::TwoTenants
    }

    /// Whether its group goes on when one of it lies.
    pub fn byzantine(self) -> bool {
        matches!(self.kind, Kind::FourControllers | Kind::SevenControllers)
    }

    /// Its controllers, in the order in which they start; the last of a group is started by whoever adds it.
    pub fn controllers(self) -> &'static [Member] {
        match self.kind {
            Kind::TwoTenants => std::slice::from_ref(&CONTROLLER),
            Kind::ThreeControllers => &CONTROLLERS[..FOUNDERS + 1],
            Kind::FourControllers => &CONTROLLERS[..FOUNDERS + 2],
            Kind::SevenControllers => &CONTROLLERS,
        }
    }

    /// Those that run from the beginning.
    pub fn founders(self) -> &'static [Member] {
        let all = self.controllers();
        let founders = match self.kind {
            Kind::TwoTenants => 1,
            Kind::ThreeControllers => FOUNDERS,
            Kind::FourControllers => FOUNDERS + 1,
            Kind::SevenControllers => all.len(),
        };
        &all[..founders]
    }

    /// Whether it is one that commands with `--lab` find.
    pub fn is_usual(self) -> bool {
        self.instance == 0
    }

    /// Name of the scope, below `/run/weir-lab`.
    pub fn name(self) -> String {
        match self.instance {
            0 => self.kind.name().to_string(),
            number => format!("{}-{number}", self.kind.name()),
        }
    }

    /// What the names of its namespaces and links begin with.
    pub fn prefix(self) -> String {
        let lab = match self.kind {
            Kind::TwoTenants => "wl",
            Kind::ThreeControllers => "wg",
            Kind::FourControllers => "wf",
            Kind::SevenControllers => "wv",
        };
        match self.instance {
            0 => format!("{lab}-"),
            number => format!("{lab}{number}-"),
        }
    }

    /// A namespace of it.
    pub fn netns(self, short: &str) -> Netns {
        Netns::existing(format!("{}{short}", self.prefix()))
    }

    /// An address of the underlay.
    pub fn v4(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, 77 + self.range(), number)
    }

    /// An IPv6 address of the underlay.
    pub fn v6(self, number: u8) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, u16::from(self.range()), 0, 0, 0, 0, 0, u16::from(number))
    }

    /// Number of its underlay, which no other instance of any lab has.
    fn range(self) -> u8 {
        let nth = match self.kind {
            Kind::TwoTenants => 0,
            Kind::ThreeControllers => 1,
            Kind::FourControllers => 2,
            Kind::SevenControllers => 3,
        };
        self.instance + nth * (INSTANCE_MAX + 1)
    }

    /// The resources with the names of this instance's namespaces.
    pub fn resources(self, text: &str) -> String {
        text.replace("netns: wl-", &format!("netns: {}", self.prefix()))
    }
}
