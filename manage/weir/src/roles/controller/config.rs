//! Settings of a controller: a YAML file, options of the command line over it, defaults below it.
//!
//! ```yaml
//! domain: prod                          # name of the domain; cannot change later
//! stateDir: /var/lib/weir/controller    # log, keys and certificates
//! api: 0.0.0.0:7443                     # where people and tools connect
//! session: 0.0.0.0:7444                 # where hosts and gateways connect
//! advertise: 192.0.2.10                 # address under which they reach this machine
//! certificateDays: 90                   # life of a host's certificate; it renews by itself
//! ```
//!
//! An unknown field is an error, and each error names field, value and what is allowed.

use crate::cli::Failure;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use weir_model::Label;

/// Lives of certificates that are allowed, days.
const CERTIFICATE_DAYS: std::ops::RangeInclusive<u32> = 1..=3650;
/// Life of a host's certificate unless told otherwise, days.
const CERTIFICATE_DAYS_DEFAULT: u32 = 90;

/// Settings that may be absent, from the file or from the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Given {
    /// Name of the domain.
    pub domain: Option<String>,
    /// Directory of the log, keys and certificates.
    pub state_dir: Option<PathBuf>,
    /// Where the API listens.
    pub api: Option<String>,
    /// Where sessions listen.
    pub session: Option<String>,
    /// Address under which hosts reach this machine.
    pub advertise: Option<String>,
    /// Life of a host's certificate, days.
    pub certificate_days: Option<u32>,
}

/// Settings of a controller, whole and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Name of the domain.
    pub domain: Label,
    /// Directory of the log, keys and certificates.
    pub state_dir: PathBuf,
    /// Where the API listens.
    pub api: SocketAddr,
    /// Where sessions listen.
    pub session: SocketAddr,
    /// Address under which hosts reach this machine.
    pub advertise: IpAddr,
    /// Life of a host's certificate, days.
    pub certificate_days: u32,
}

fn wrong(field: &str, value: impl std::fmt::Display, allowed: &str) -> Failure {
    Failure::Input(format!("{field}: '{value}' is not allowed: {allowed}"))
}

impl Given {
    /// Reads a file.
    ///
    /// # Errors
    /// The file, the field, its value, and what is allowed.
    pub fn read(path: &Path) -> Result<Given, Failure> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::Missing(format!(
                "{name}: there is no such file; packaging/examples/controller.yaml is one to begin with"
            )),
            _ => Failure::io(name.clone())(error),
        })?;
        let in_file = |error: String| Failure::Input(format!("{name}: {error}"));
        let given: Given = serde_saphyr::from_str(&text).map_err(|error| in_file(error.to_string()))?;
        // What is wrong in the file is told with the file, also where an option stands over it.
        given.fields().map_err(|error| in_file(error.to_string()))?;
        Ok(given)
    }

    /// These settings, and `below` where they are absent.
    pub fn over(self, below: Given) -> Given {
        Given {
            domain: self.domain.or(below.domain),
            state_dir: self.state_dir.or(below.state_dir),
            api: self.api.or(below.api),
            session: self.session.or(below.session),
            advertise: self.advertise.or(below.advertise),
            certificate_days: self.certificate_days.or(below.certificate_days),
        }
    }

    /// With the defaults, and without a check that spans several fields.
    fn fields(&self) -> Result<(ControllerConfig, bool), Failure> {
        let listen = |field: &str, text: &Option<String>, default: &str| {
            let text = text.as_deref().unwrap_or(default);
            let address = text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
            address.ok_or_else(|| wrong(field, text, "use ADDRESS:PORT, such as 0.0.0.0:7443 or [::]:7443"))
        };
        let domain = self.domain.clone().unwrap_or_else(|| "weir".to_string());
        let domain = Label::new(domain).map_err(|error| Failure::Input(format!("domain: {error}")))?;
        let state_dir = self.state_dir.clone().unwrap_or_else(|| "/var/lib/weir/controller".into());
        let api = listen("api", &self.api, "0.0.0.0:7443")?;
        let session = listen("session", &self.session, "0.0.0.0:7444")?;
        let advertise = match &self.advertise {
            None => api.ip(),
            Some(text) => {
                text.parse().ok().filter(|address: &IpAddr| !address.is_unspecified()).ok_or_else(|| {
                    wrong("advertise", text, "use the one address under which hosts reach this machine")
                })?
            }
        };
        let certificate_days = self.certificate_days.unwrap_or(CERTIFICATE_DAYS_DEFAULT);
        if !CERTIFICATE_DAYS.contains(&certificate_days) {
            return Err(wrong("certificateDays", certificate_days, "use 1 to 3650 days"));
        }
        let config = ControllerConfig { domain, state_dir, api, session, advertise, certificate_days };
        Ok((config, self.advertise.is_some()))
    }

    /// The settings, with defaults for what is absent.
    ///
    /// # Errors
    /// The field, its value, and what is allowed.
    pub fn check(&self) -> Result<ControllerConfig, Failure> {
        let (config, advertised) = self.fields()?;
        if !advertised && config.api.ip().is_unspecified() {
            return Err(Failure::Input(format!(
                "api: {} listens on every address: say with --advertise, or 'advertise' in the file, under \
                 which one hosts reach this machine",
                config.api
            )));
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests;
