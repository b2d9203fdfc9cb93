//! Packets between endpoints of two hosts.
use crate::lab::{CONFIG_VARIABLE, Lab, missing};
use crate::plain::PlainMind;
use weir_model::resource::Encapsulation;
use weir_switch::config::SwitchConfig;
use weir_switch::process;

/// Started with settings in the environment, this test is a switch: see `Host::start`.
#[test]
fn a_switch_without_its_files_says_what_is_missing() {
    if let Some(path) = std::env::var_os(CONFIG_VARIABLE) {
        tracing_subscriber::fmt().with_writer(std::io::stderr).init();
        let text = std::fs::read_to_string(path).expect("settings");
        let config: SwitchConfig = serde_json::from_str(&text).expect("settings");
        match process::run_with(&config, PlainMind::new) {
            Ok(()) => std::process::exit(0),
            Err(error) => {
                eprintln!("{error}");
                std::process::exit(1)
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        r#"{{"name":"h1","domain":"d","role":"host","underlay":"127.0.0.1","run_dir":"{0}/run",
            "state_dir":"{0}/state","trust_file":"{0}/trust.json","identity_file":"{0}/seed"}}"#,
        dir.path().display()
    );
    let config: SwitchConfig = serde_json::from_str(&text).unwrap();
    let error = process::run_with(&config, PlainMind::new).unwrap_err();
    assert!(error.to_string().contains("trust.json"), "{error}");
}

fn lab(name: &str, hosts: usize, format: Encapsulation, v6: bool, mtu: u16) -> Option<Lab> {
    match missing() {
        None => Some(Lab::new(hosts, format, v6, mtu)),
        Some(reason) => {
            println!("NOT RUN {name}: {reason}");
            None
        }
    }
}

#[test]
fn ping_passes() {
    let Some(mut lab) = lab("ping_passes", 2, Encapsulation::Geneve, false, 1500) else { return };
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
}
