//! `curl` against `nginx`: a whole HTTP request by name or address.

use crate::{Daemon, Error, Netns, Program, Result, Scope, system};
use std::time::Duration;

/// How long nginx may take to listen.
const LISTEN_BOUND: Duration = Duration::from_secs(10);

/// Starts nginx in `netns` on `port`, for both protocols, answering every request with `body`. Its files are in the
/// scope's run directory; the system's service is neither used nor touched.
pub fn server(scope: &Scope, name: &str, netns: &Netns, port: u16, body: &str) -> Result<Daemon> {
    let folder = scope.folder().join(name);
    let www = folder.join("www");
    let root = folder.display();
    // One process: ending it by its pid leaves no worker behind.
    let settings = format!(
        "daemon off; master_process off; pid {root}/pid; error_log stderr;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; client_body_temp_path {root}/t1; proxy_temp_path {root}/t2;\n\
         fastcgi_temp_path {root}/t3; uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;\n\
         server {{ listen {port}; listen [::]:{port}; root {root}/www; location / {{ try_files /body =404; }} }} }}\n"
    );
    std::fs::create_dir_all(&www)
        .and_then(|()| std::fs::write(www.join("body"), body))
        .and_then(|()| std::fs::write(folder.join("nginx.conf"), settings))
        .map_err(|error| Error::io(format!("write into {root}"), error))?;
    let settings = folder.join("nginx.conf");
    let program = Program::new("nginx")
        .netns(netns)
        .args(["-e", "stderr", "-p"])
        .arg(folder.as_os_str())
        .arg("-c")
        .arg(settings.as_os_str());
    let daemon = scope.start(name, &program)?;
    daemon.wait_until("nginx", LISTEN_BOUND, || super::stream::listening(netns, port))?;
    Ok(daemon)
}

/// What `curl` saw.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The server answered.
    Answered {
        /// HTTP status.
        status: u16,
        /// Length of the body.
        body_bytes: u64,
        /// From start to end.
        time_ms: f64,
        /// The server's address.
        address: String,
    },
    /// The name was not found.
    NameUnknown,
    /// The connection was refused, reset or had no route.
    Refused,
    /// Nothing came back in time: what a silent drop looks like.
    Silent,
    /// Something else, by curl's exit code.
    Failed {
        /// curl's exit code.
        code: i32,
        /// curl's words.
        reason: String,
    },
}

impl Outcome {
    /// True if the server answered with status 200.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Answered { status: 200, .. })
    }
}

/// Gets `url` from `netns`, giving up after `limit_s` seconds.
pub fn run(netns: &Netns, url: &str, limit_s: u32) -> Result<Outcome> {
    let program = Program::new("curl").netns(netns).args([
        "--silent",
        "--show-error",
        "--noproxy",
        "*",
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code} %{size_download} %{time_total} %{remote_ip}",
        "--max-time",
        &limit_s.to_string(),
        url,
    ]);
    let output = system::run_output(program.command(), Duration::from_secs(u64::from(limit_s) + 10))?;
    let code = output.status.code().unwrap_or(-1);
    match code {
        0 => parse(&String::from_utf8_lossy(&output.stdout)),
        6 => Ok(Outcome::NameUnknown),
        7 => Ok(Outcome::Refused),
        28 => Ok(Outcome::Silent),
        _ => Ok(Outcome::Failed { code, reason: system::error_text(&output) }),
    }
}

/// Reads the line that our `--write-out` asks for.
pub fn parse(text: &str) -> Result<Outcome> {
    let wrong = |what: &str| Error::Output { program: "curl", reason: format!("no {what} in {text:?}") };
    let mut words = text.split_whitespace();
    let status = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| wrong("status"))?;
    let body_bytes = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| wrong("length"))?;
    let time_s: f64 = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| wrong("time"))?;
    let address = words.next().unwrap_or_default().to_string();
    Ok(Outcome::Answered { status, body_bytes, time_ms: time_s * 1e3, address })
}
