use super::*;
use crate::testing::{allow_in, ip, label, rule};
use weir_model::entry::PolicyEntry;

fn compile(rules: Vec<Rule>) -> (Policy, Tags) {
    let mut tags = Tags::default();
    let entry = PolicyEntry { default_ingress: Action::Deny, default_egress: Action::Allow, rules };
    (Policy::compile(&entry, &mut tags), tags)
}

fn query(peer: &str, protocol: u8, ports: Ports) -> Query {
    Query { peer: ip(peer), protocol, ports }
}

fn ask(rules: Vec<Rule>, query: Query) -> Judgement {
    let (policy, tags) = compile(rules);
    policy.judge(Direction::Ingress, &[], &tags, &query)
}

#[test]
fn the_first_rule_that_matches_decides_then_the_default() {
    let deny =
        Rule { ports: vec![PortRange { first: 22, last: 22 }], ..allow_in("no-ssh", Protocol::TCP, None) };
    let deny = Rule { action: Action::Deny, ..deny };
    let rules = vec![deny, allow_in("tcp", Protocol::TCP, None)];
    let ssh = ask(rules.clone(), query("10.0.0.9", TCP, Ports::Destination(22)));
    assert_eq!((ssh.action, ssh.rule), (Action::Deny, Some(0)));
    let web = ask(rules.clone(), query("10.0.0.9", TCP, Ports::Destination(80)));
    assert_eq!((web.action, web.rule, web.stateful), (Action::Allow, Some(1), true));
    let other = ask(rules, query("10.0.0.9", UDP, Ports::Destination(80)));
    assert_eq!((other.action, other.rule), (Action::Deny, None));
}

#[test]
fn protocols_and_ports_match_as_written() {
    let icmp = vec![allow_in("ping", Protocol::Icmp, None)];
    assert_eq!(ask(icmp.clone(), query("10.0.0.9", 1, Ports::None)).rule, Some(0));
    assert_eq!(ask(icmp.clone(), query("fd00::9", 58, Ports::None)).rule, Some(0));
    assert_eq!(ask(icmp.clone(), query("10.0.0.9", 58, Ports::None)).rule, None);
    assert_eq!(ask(icmp, query("fd00::9", 1, Ports::None)).rule, None);
    let any = vec![allow_in("any", Protocol::Any, None)];
    assert_eq!(ask(any, query("10.0.0.9", 132, Ports::None)).rule, Some(0));
    let gre = vec![allow_in("gre", Protocol::Number(47), None)];
    assert_eq!(ask(gre, query("10.0.0.9", 47, Ports::None)).rule, Some(0));
    let range = PortRange { first: 8000, last: 8080 };
    let ranged = vec![Rule { ports: vec![range], ..allow_in("range", Protocol::UDP, None) }];
    for (port, rule) in [(7999, None), (8000, Some(0)), (8080, Some(0)), (8081, None)] {
        assert_eq!(
            ask(ranged.clone(), query("10.0.0.9", UDP, Ports::Destination(port))).rule,
            rule,
            "{port}"
        );
    }
    assert_eq!(ask(ranged, query("10.0.0.9", 47, Ports::None)).rule, None);
}

#[test]
fn a_fragment_passes_no_port_that_is_denied() {
    let allow = vec![allow_in("web", Protocol::TCP, Some(80))];
    assert_eq!(ask(allow, query("10.0.0.9", TCP, Ports::Unseen)).action, Action::Deny);
    let deny = Rule { action: Action::Deny, ..allow_in("no-ssh", Protocol::TCP, Some(22)) };
    let rules = vec![deny, allow_in("tcp", Protocol::TCP, None)];
    assert_eq!(ask(rules, query("10.0.0.9", TCP, Ports::Unseen)).rule, Some(0));
    let open = vec![allow_in("tcp", Protocol::TCP, None)];
    assert_eq!(ask(open, query("10.0.0.9", TCP, Ports::Unseen)).action, Action::Allow);
}

#[test]
fn peers_match_by_prefix_or_tag_and_targets_by_the_ports_tags() {
    let by_prefix = Rule {
        peers: vec![Peer::Prefix("10.0.0.0/30".parse().unwrap())],
        ..allow_in("near", Protocol::Any, None)
    };
    assert_eq!(ask(vec![by_prefix.clone()], query("10.0.0.3", 6, Ports::Destination(1))).rule, Some(0));
    assert_eq!(ask(vec![by_prefix.clone()], query("10.0.0.4", 6, Ports::Destination(1))).rule, None);
    assert_eq!(ask(vec![by_prefix], query("fd00::1", 6, Ports::Destination(1))).rule, None);

    let tagged = Rule {
        peers: vec![Peer::Tag(label("web"))],
        targets: vec![label("db")],
        ..allow_in("web-to-db", Protocol::Any, None)
    };
    let (policy, mut tags) = compile(vec![tagged]);
    let (web, db) = (tags.find(&label("web")).unwrap(), tags.find(&label("db")).unwrap());
    tags.set_bucket(&label("web"), 3, &[ip("10.0.0.5")]);
    let judge = |peer: &str, port_tags: &[TagId]| {
        policy.judge(Direction::Ingress, port_tags, &tags, &query(peer, 6, Ports::Destination(1))).rule
    };
    assert_eq!(judge("10.0.0.5", &[db]), Some(0));
    assert_eq!(judge("10.0.0.5", &[web]), None);
    assert_eq!(judge("10.0.0.6", &[db]), None);
    assert!(policy.selects_peers_by(web) && !policy.selects_peers_by(db));
}

#[test]
fn each_direction_has_its_own_rules() {
    let (policy, tags) = compile(vec![
        rule("out", Direction::Egress, Action::Deny),
        rule("in", Direction::Ingress, Action::Allow),
    ]);
    let query = query("10.0.0.9", 6, Ports::Destination(1));
    assert_eq!(policy.judge(Direction::Egress, &[], &tags, &query).action, Action::Deny);
    assert_eq!(policy.judge(Direction::Ingress, &[], &tags, &query).action, Action::Allow);
}

#[test]
fn a_policy_lets_go_of_its_tags() {
    let tagged = Rule {
        peers: vec![Peer::Tag(label("a")), Peer::Tag(label("b"))],
        targets: vec![label("a")],
        ..allow_in("r", Protocol::Any, None)
    };
    let (policy, mut tags) = compile(vec![tagged]);
    assert_eq!(tags.len(), 2);
    policy.release(&mut tags);
    assert!(tags.is_empty());
}
