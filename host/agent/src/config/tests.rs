use super::*;

fn parse(text: &str) -> Result<NodeConfig<NoSwitch>, String> {
    NodeConfig::parse(text).map_err(|error| error.to_string())
}

const MINIMAL: &str = "name: host-1\nunderlay: 192.0.2.1\n";

#[test]
fn a_small_file_has_defaults_for_the_rest() {
    let config = parse(MINIMAL).unwrap();
    assert_eq!((config.role, config.agent.dns.gateway_port), (Role::Host, 4053));
    assert_eq!(config.agent().state_dir, Path::new("/var/lib/weir"));
    assert!(!config.supervisor.stop_switch);
    assert_eq!(config.supervisor.switch_answer_ms, 10_000);
}

#[test]
fn a_full_file_is_read() {
    let config = parse(
        "name: gw-1\nrole: gateway\nunderlay: 2001:db8::1\nstateDir: /s\nrunDir: /r\n\
         controllers: ['[2001:db8::2]:7444', 'control.example:7444']\n\
         agent: {netnsDir: /n, metrics: '127.0.0.1:9471', dns: {gatewayPort: 53, upstream: ['192.0.2.53:53']}}\n\
         supervisor: {stopSwitch: true, switchAnswerMs: 0}\nswitch: {}\n",
    )
    .unwrap();
    assert_eq!(
        (config.role, config.controllers.len(), config.agent.dns.upstream.len()),
        (Role::Gateway, 2, 1)
    );
    assert!(config.supervisor.stop_switch);
}

#[test]
fn a_wrong_file_names_the_field_and_what_is_allowed() {
    let cases = [
        ("name: host-1\n", "underlay"),
        ("name: Host_1\nunderlay: 192.0.2.1\n", "'Host_1' is not a name"),
        ("name: h\nunderlay: 0.0.0.0\n", "underlay: '0.0.0.0'"),
        ("name: h\nunderlay: here\n", "IP address"),
        ("name: h\nunderlay: 192.0.2.1\nrole: router\n", "router"),
        ("name: h\nunderlay: 192.0.2.1\ncontroller: x\n", "there is no field 'controller'"),
        ("name: h\nunderlay: 192.0.2.1\ncontrollers: [nowhere]\n", "controllers: 'nowhere'"),
        ("name: h\nunderlay: 192.0.2.1\nstateDir: var\n", "stateDir: 'var'"),
        ("name: h\nunderlay: 192.0.2.1\nagent: {dns: {upstream: ['0.0.0.0:53']}}\n", "agent.dns.upstream"),
        ("name: h\nunderlay: 192.0.2.1\nagent: {dns: {gatewayPort: 0}}\n", "agent.dns.gatewayPort"),
        ("name: h\nunderlay: 192.0.2.1\nagent: {dns: {port: 1}}\n", "there is no field 'port'"),
        ("name: h\nunderlay: 192.0.2.1\nagent: {backoffMinMs: 9, backoffMaxMs: 3}\n", "agent.backoffMinMs"),
        ("name: h\nunderlay: 192.0.2.1\nsupervisor: {switchAnswerMs: 5}\n", "supervisor.switchAnswerMs: '5'"),
        ("name: h\nunderlay: 192.0.2.1\nswitch: {cores: 2}\n", "there is no field 'cores'"),
    ];
    for (text, part) in cases {
        let error = parse(text).unwrap_err();
        assert!(error.contains(part), "{text:?}: {error}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = NodeConfig::<NoSwitch>::read(Path::new("/nowhere/weir.yaml")).unwrap_err().to_string();
    assert!(error.contains("/nowhere/weir.yaml"), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "name: [").unwrap();
    let error = NodeConfig::<NoSwitch>::read(file.path()).unwrap_err().to_string();
    assert!(error.contains(file.path().to_str().unwrap()), "{error}");
}
