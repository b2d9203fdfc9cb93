//! Which proxy leads to a controller, by the environment: `HTTPS_PROXY` (or `ALL_PROXY`; in small letters too) names it, and
//! `NO_PROXY` who is reached without: `*`, names (with all names below them), addresses, prefixes such as `10.0.0.0/8`, each
//! with a port or without, separated by commas. This machine is always reached without.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use std::net::IpAddr;

/// Most entries of `NO_PROXY` that are read.
const ENTRIES_MAX: usize = 1024;
/// Port of a proxy that names none.
const DEFAULT_PORT: u16 = 3128;

/// A proxy for HTTP's CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// `HOST:PORT`.
    pub address: String,
    /// What to say in the header proxy-authorization.
    pub authorization: Option<String>,
    /// The variable that named it.
    pub variable: &'static str,
    url: String,
}

impl Proxy {
    /// As a URL, with what is secret in it.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// A variable names no proxy that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {why}: write http://HOST:PORT")]
pub struct ProxyError {
    /// The variable.
    pub variable: &'static str,
    /// Why it names none.
    pub why: ProxyFault,
}

/// What is wrong with the address of a proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyFault {
    /// It is spoken to in a way that this client does not know.
    #[error("a proxy by '{0}' is not supported")]
    Scheme(String),
    /// Nobody knows where it is.
    #[error("it names no host")]
    NoHost,
    /// Its port is none.
    #[error("it names no port")]
    NoPort,
}

/// What the environment says.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    proxy: Option<Proxy>,
    without: Vec<String>,
}

impl Proxies {
    /// Reads the environment.
    ///
    /// # Errors
    /// What is wrong with a variable, and what would be right.
    pub fn from_environment() -> Result<Proxies, ProxyError> {
        Proxies::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Proxies, ProxyError> {
        let names = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
        let named = names
            .into_iter()
            .find_map(|name| Some((name, variable(name).filter(|value| !value.trim().is_empty())?)));
        let proxy = named.map(|(name, value)| parse(name, value.trim())).transpose()?;
        let list = ["NO_PROXY", "no_proxy"].into_iter().find_map(&variable).unwrap_or_default();
        let entries = list.split([',', ' ']).map(|entry| entry.trim().to_ascii_lowercase());
        let without = entries.filter(|entry| !entry.is_empty()).take(ENTRIES_MAX).collect();
        Ok(Proxies { proxy, without })
    }

    /// The proxy that is named, whatever it leads to.
    pub fn first(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// The proxy that leads to a server, `https://HOST:PORT` or `HOST:PORT`; none when it is reached without.
    pub fn to(&self, server: &str) -> Option<&Proxy> {
        let proxy = self.proxy.as_ref()?;
        let (host, port) = split(server.split_once("://").map_or(server, |(_, rest)| rest));
        (!is_here(host) && !self.without.iter().any(|entry| names(entry, host, port))).then_some(proxy)
    }
}

fn parse(variable: &'static str, value: &str) -> Result<Proxy, ProxyError> {
    let wrong = |why: ProxyFault| ProxyError { variable, why };
    let rest = match value.split_once("://") {
        Some(("http", rest)) => rest,
        Some((scheme, _)) => return Err(wrong(ProxyFault::Scheme(scheme.to_owned()))),
        None => value,
    };
    let rest = rest.split('/').next().unwrap_or_default();
    let (user, address) = rest.rsplit_once('@').map_or((None, rest), |(user, address)| (Some(user), address));
    let (host, port) = split(address);
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(wrong(ProxyFault::NoHost));
    }
    let port = match port {
        Some(port) => port.parse::<u16>().map_err(|_| wrong(ProxyFault::NoPort))?,
        None => DEFAULT_PORT,
    };
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let address = format!("{bracketed}:{port}");
    let url = format!("http://{}{address}", user.map(|user| format!("{user}@")).unwrap_or_default());
    let authorization = user.map(|user| format!("Basic {}", BASE64_STANDARD.encode(user)));
    Ok(Proxy { address, authorization, variable, url })
}

/// Host and port of `HOST:PORT`, `[V6]:PORT`, or without a port.
fn split(text: &str) -> (&str, Option<&str>) {
    let text = text.split('/').next().unwrap_or_default();
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']').unwrap_or((rest, ""));
        return (host, after.strip_prefix(':'));
    }
    match text.rsplit_once(':') {
        // More colons: an IPv6 address without brackets.
        Some((host, port)) if !host.contains(':') => (host, Some(port)),
        _ => (text, None),
    }
}

fn is_here(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether an entry of `NO_PROXY` names a host.
fn names(entry: &str, host: &str, port: Option<&str>) -> bool {
    if entry == "*" {
        return true;
    }
    let host = host.to_ascii_lowercase();
    if let (Some((net, length)), Ok(address)) = (entry.split_once('/'), host.parse::<IpAddr>()) {
        return is_inside(net.trim_matches(['[', ']']), length, address);
    }
    let (name, wanted) = split(entry);
    if wanted.is_some() && wanted != port {
        return false;
    }
    if let (Ok(one), Ok(other)) = (name.parse::<IpAddr>(), host.parse::<IpAddr>()) {
        return one == other;
    }
    let name = name.trim_start_matches("*.").trim_start_matches('.');
    !name.is_empty() && (host == name || host.strip_suffix(name).is_some_and(|before| before.ends_with('.')))
}

fn is_inside(net: &str, length: &str, address: IpAddr) -> bool {
    let (Ok(net), Ok(length)) = (net.parse::<IpAddr>(), length.parse::<u32>()) else { return false };
    let (a, b, bits) = match (net, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(u32::from(a)), u128::from(u32::from(b)), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a), u128::from(b), 128),
        _ => return false,
    };
    length <= bits && (length == 0 || (a ^ b) >> (bits - length) == 0)
}

#[cfg(test)]
mod tests;
