mod suite;

use super::given::lock;
use super::*;
use weir_model::Label;
use weir_model::event::Role;
use weir_model::join::to_hex;

pub(super) fn config(dir: &Path) -> SwitchConfig {
    SwitchConfig {
        name: Label::new("h1").unwrap(),
        domain: Label::new("lab").unwrap(),
        role: Role::Host,
        underlay: "127.0.0.1".parse().unwrap(),
        geneve_port: 6081,
        vxlan_port: 4789,
        run_dir: dir.join("run"),
        state_dir: dir.join("state"),
        trust_file: dir.join("trust.json"),
        identity_file: dir.join("identity.seed"),
        external: None,
        underlay_from: Vec::new(),
        idle_reader: None,
        engine: crate::config::EngineConfig::default(),
    }
}

fn write_secrets(config: &SwitchConfig, domain: &str) {
    let trust = TrustFile {
        domain: Label::new(domain).unwrap(),
        group_key: to_hex(&[1; 32]),
        epoch: 1,
        dataplane_secret: to_hex(&[2; 16]),
    };
    std::fs::write(&config.trust_file, serde_json::to_string(&trust).unwrap()).unwrap();
    std::fs::write(&config.identity_file, format!("{}\n", to_hex(&[3; 32]))).unwrap();
}

#[test]
fn secrets_are_read_and_wrong_ones_named() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    write_secrets(&config, "lab");
    let secrets = read_secrets(&config).ok().unwrap();
    assert_eq!((secrets.dataplane, secrets.group_key), ([2; 16], GroupKey::Single([1; 32])));
    let failure = || read_secrets(&config).err().unwrap().to_string();
    std::fs::write(&config.identity_file, "abc").unwrap();
    assert!(failure().contains("64 hex digits"), "{}", failure());
    write_secrets(&config, "other");
    assert!(failure().contains("domain 'other'"), "{}", failure());
    std::fs::write(&config.trust_file, "{}").unwrap();
    assert!(failure().contains("trust.json"), "{}", failure());
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let right = config(dir.path());
    assert_eq!(right.problem(), None);
    let mut cases = vec![right; 10];
    cases[0].geneve_port = 4789;
    cases[1].engine.source_ports = 0;
    cases[2].underlay = "0.0.0.0".parse().unwrap();
    let external = crate::config::ExternalConfig {
        device: "wext0".into(),
        mtu: 1500,
        addresses: Vec::new(),
        first_port: 9,
        last_port: 8,
        guarded: Vec::new(),
        reachable: Vec::new(),
    };
    cases[3].external = Some(external.clone());
    cases[4].role = Role::Gateway;
    cases[4].external = Some(external);
    cases[5].engine.always_poll = true;
    cases[6].engine.batch = 65;
    cases[7].engine.flows_max = 0;
    cases[8].engine.urgent_nice = 1;
    cases[9].engine.guest_touched_bytes_max = 1;
    let fields = [
        "genevePort",
        "sourcePorts",
        "underlay",
        "gateway",
        "firstPort",
        "engine.cpu",
        "batch",
        "flowsMax",
        "urgentNice",
        "guestTouchedBytesMax",
    ];
    for (case, field) in cases.iter().zip(fields) {
        let problem = case.problem().unwrap();
        assert!(problem.contains(field), "{field}: {problem}");
    }
}

#[test]
fn unknown_settings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut value = serde_json::to_value(config(dir.path())).unwrap();
    assert!(serde_json::from_value::<SwitchConfig>(value.clone()).is_ok());
    value["engine"]["bussy_poll_us"] = 1.into();
    let error = serde_json::from_value::<SwitchConfig>(value).unwrap_err().to_string();
    assert!(error.contains("bussy_poll_us"), "{error}");
}

#[test]
fn the_usual_underlay_is_not_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    let value = serde_json::to_value(&config).unwrap();
    assert_eq!(value["engine"].get("underlay"), None, "a switch of an older release reads it");
    config.engine.underlay = crate::config::UnderlayBy::AfXdp;
    let value = serde_json::to_value(&config).unwrap();
    assert_eq!(value["engine"]["underlay"], "af-xdp");
    assert_eq!(serde_json::from_value::<SwitchConfig>(value).unwrap(), config);
}

#[test]
fn the_lock_is_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let first = lock(dir.path()).unwrap();
    assert!(matches!(lock(dir.path()), Err(SwitchError::Running(_))));
    drop(first);
    assert!(lock(dir.path()).is_ok());
}

#[test]
fn the_settings_of_the_switch_that_runs_can_be_compared() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    std::fs::create_dir_all(&config.run_dir).unwrap();
    assert_eq!(running_settings(&config.run_dir), None, "one of an older release says nothing");
    write_settings(&config);
    assert_eq!(running_settings(&config.run_dir), Some(config.clone()));
    config.underlay_from = vec!["192.0.2.0/24".parse().unwrap()];
    assert_ne!(running_settings(&config.run_dir), Some(config.clone()));
    write_settings(&config);
    assert_eq!(running_settings(&config.run_dir), Some(config));
}
