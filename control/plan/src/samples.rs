//! Changes for tests: the papers' figures.

use crate::network::{Network, Switch};
use crate::policy::{Action, Flow, FlowPolicy, Policy, Versions};
use crate::{Change, topology};

pub(crate) fn switch(network: &Network, name: &str) -> Switch {
    network.find(name).unwrap_or_else(|| panic!("no switch {name}"))
}

/// A flow from rules written as `s1>s2 s2>s5 s5!`, where `!` delivers and `x` drops.
pub(crate) fn flow(network: &Network, rules: &str, sources: &[(&str, u64)]) -> FlowPolicy {
    let rule = |word: &str| match word.split_once('>') {
        Some((from, to)) => (switch(network, from), Action::Forward(switch(network, to))),
        None => match word.strip_suffix('!') {
            Some(at) => (switch(network, at), Action::Deliver),
            None => (switch(network, word.trim_end_matches('x')), Action::Drop),
        },
    };
    FlowPolicy {
        rules: rules.split_whitespace().map(rule).collect(),
        sources: sources.iter().map(|(at, rate)| (switch(network, at), *rate)).collect(),
        ..FlowPolicy::default()
    }
}

pub(crate) fn policy(flows: impl IntoIterator<Item = FlowPolicy>) -> Policy {
    Policy { flows: (1..).map(Flow).zip(flows).collect() }
}

pub(crate) fn change(network: Network, old: Policy, new: Policy) -> Change {
    Change { network, old, new, versions: Versions::new() }
}

/// Fig 2.2: the link from s4 to s5 fails; s2, s3 and s4 turn round. If s3 turns before s2, they loop.
pub(crate) fn figure_2_2() -> Change {
    let mut network = topology::parse("s1 s2\ns2 s3\ns3 s4\ns4 s5\ns2 s5").unwrap();
    let sources = [("s1", 1), ("s2", 1), ("s3", 1), ("s4", 1)];
    let old = flow(&network, "s1>s2 s2>s3 s3>s4 s4>s5 s5!", &sources);
    let new = flow(&network, "s1>s2 s2>s5 s3>s2 s4>s3 s5!", &sources);
    let (s4, s5) = (switch(&network, "s4"), switch(&network, "s5"));
    network.fail_link(s4, s5);
    change(network, policy([old]), policy([new]))
}

/// Fig 3.1: packets from s1 must pass the firewall s3. s1 shall send by s2; if it does so before s2 sends
/// to s3, they go around the firewall by s4.
pub(crate) fn figure_3_1() -> Change {
    let network = topology::parse("s1 s2\ns1 s3\ns2 s3\ns2 s4\ns3 s5\ns4 s5").unwrap();
    let mut old = flow(&network, "s1>s3 s2>s4 s3>s5 s4>s5 s5!", &[("s1", 1)]);
    let mut new = flow(&network, "s1>s2 s2>s3 s3>s5 s4>s5 s5!", &[("s1", 1)]);
    for policy in [&mut old, &mut new] {
        policy.waypoints.insert(switch(&network, "s3"));
    }
    change(network, policy([old]), policy([new]))
}

/// Fig 3.2: the link from s4 to s5 is taken out while it still carries: nobody may be cut off, and nothing
/// may loop, on the way round by s1.
pub(crate) fn figure_3_2() -> Change {
    let network = topology::parse("s1 s2\ns2 s3\ns3 s4\ns4 s5\ns1 s5").unwrap();
    let sources = [("s2", 1), ("s3", 1), ("s4", 1)];
    let old = flow(&network, "s1>s5 s2>s3 s3>s4 s4>s5 s5!", &sources);
    let new = flow(&network, "s1>s5 s2>s1 s3>s2 s4>s3 s5!", &sources);
    change(network, policy([old]), policy([new]))
}

/// Fig 3.3: the flow of s1 shall leave s3 and take the link from s4 to s5, which the flow of s2 leaves. If
/// s1 moves before s2, the link is over-provisioned.
pub(crate) fn figure_3_3() -> Change {
    let network = topology::parse("s1 s3 10\ns1 s4 10\ns2 s4 10\ns2 s5 10\ns3 s5 10\ns4 s5 10").unwrap();
    let of = |rules: &str, source: &str| flow(&network, rules, &[(source, 8)]);
    let old = policy([of("s1>s3 s3>s5 s4>s5 s5!", "s1"), of("s2>s4 s4>s5 s5!", "s2")]);
    let new = policy([of("s1>s4 s3>s5 s4>s5 s5!", "s1"), of("s2>s5 s4>s5 s5!", "s2")]);
    change(network, old, new)
}
