//! Where links come from: a controller, page by page, or a file.

use super::Whose;
use crate::cli::written::{Force, Readers};
use crate::failure::Failure;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::rc::Rc;
use weir_api::client::Client;
use weir_controller::audit::Link;

/// A line of an exported chain.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exported {
    controller: String,
    number: u64,
    link: String,
}

enum From {
    Controller { client: Rc<Client>, server: String, next: u64, waiting: VecDeque<Vec<u8>> },
    File { name: String, lines: Lines<BufReader<File>>, line: u64 },
}

/// The links of a chain, in order.
pub(super) struct Chain {
    from: From,
    controller: String,
}

fn wrong(name: &str, line: u64, error: impl std::fmt::Display) -> Failure {
    Failure::Input(format!("{name}: line {line}: {error}; 'weir audit export' writes such files"))
}

/// The base address of a controller that a person named, or of the one that is asked first.
pub(super) fn server_of(client: &Client, controller: Option<&str>) -> String {
    match controller {
        None => client.server(),
        Some(address) if address.contains("://") => address.trim_end_matches('/').to_owned(),
        Some(address) => format!("https://{address}"),
    }
}

impl Chain {
    pub(super) fn of(whose: &Whose, connect: impl Fn() -> Result<Client, Failure>) -> Result<Chain, Failure> {
        match &whose.file {
            Some(path) => Chain::of_file(path),
            None => {
                let client = connect()?;
                let server = server_of(&client, whose.controller.as_deref());
                Ok(Chain::of_controller(Rc::new(client), server))
            }
        }
    }

    pub(super) fn of_controller(client: Rc<Client>, server: String) -> Chain {
        let controller = server.clone();
        Chain { from: From::Controller { client, server, next: 0, waiting: VecDeque::new() }, controller }
    }

    fn of_file(path: &Path) -> Result<Chain, Failure> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(Failure::io(name.clone()))?;
        let lines = BufReader::new(file).lines();
        Ok(Chain { controller: name.clone(), from: From::File { name, lines, line: 0 } })
    }

    /// Whose chain it is, as far as it said so.
    pub(super) fn controller(&self) -> &str {
        &self.controller
    }

    /// The next link's number and bytes; none at the end.
    pub(super) fn next_bytes(&mut self) -> Result<Option<(u64, Vec<u8>)>, Failure> {
        match &mut self.from {
            From::File { name, lines, line } => {
                let Some(text) = lines.next() else { return Ok(None) };
                *line += 1;
                let text = text.map_err(Failure::io(name.clone()))?;
                let exported: Exported =
                    serde_json::from_str(&text).map_err(|error| wrong(name, *line, error))?;
                let bytes =
                    BASE64_STANDARD.decode(&exported.link).map_err(|error| wrong(name, *line, error))?;
                self.controller = exported.controller;
                Ok(Some((exported.number, bytes)))
            }
            From::Controller { client, server, next, waiting } => {
                if waiting.is_empty() {
                    let page = client.audit(server, *next)?;
                    self.controller.clone_from(&page.controller);
                    *next = page.from;
                    for link in &page.links {
                        let bytes = BASE64_STANDARD.decode(link);
                        waiting.push_back(bytes.map_err(|error| {
                            Failure::Input(format!("{server} answers what is no link: {error}"))
                        })?);
                    }
                }
                Ok(waiting.pop_front().map(|bytes| {
                    *next += 1;
                    (*next - 1, bytes)
                }))
            }
        }
    }

    /// The next link, read; none at the end.
    pub(super) fn next_link(&mut self) -> Result<Option<(u64, Link)>, Failure> {
        let Some((number, bytes)) = self.next_bytes()? else { return Ok(None) };
        let link = Link::from_bytes(&bytes).map_err(|error| {
            Failure::Input(format!(
                "link {number} cannot be read: {error}; 'weir audit verify' checks the chain"
            ))
        })?;
        Ok(Some((number, link)))
    }
}

/// Writes the chain of a controller to a file, whole or not at all; tells how many links.
pub(super) fn export(
    client: &Client,
    controller: Option<&str>,
    out: &Path,
    force: Force,
) -> Result<u64, Failure> {
    let server = server_of(client, controller);
    let name = out.display().to_string();
    force.write(out, Readers::Anybody, |writer| {
        let (mut next, mut count) = (0, 0);
        loop {
            let page = client.audit(&server, next)?;
            if page.links.is_empty() {
                return Ok(count);
            }
            next = page.from;
            for link in page.links {
                let line = Exported { controller: page.controller.clone(), number: next, link };
                let mut text =
                    serde_json::to_vec(&line).map_err(|error| Failure::Input(error.to_string()))?;
                text.push(b'\n');
                writer.write_all(&text).map_err(Failure::io(name.clone()))?;
                (next, count) = (next + 1, count + 1);
            }
        }
    })
}
