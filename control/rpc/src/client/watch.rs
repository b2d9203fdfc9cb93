//! A watch that goes on where it was when its connection broke.
//!
//! It waits for changes as long as it takes, and not for servers: when it has reached none for [`ClientSettings::give_up_ms`], it says so. It
//! goes on where it was when it is asked again.

use super::ClientSettings;
use super::pause::Pause;
use crate::Error;
use crate::convert::change;
use crate::proto::store_client::StoreClient;
use crate::proto::{self as p};
use crate::server::MESSAGE_BYTES_MAX;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Code, Request, Streaming};
use weir_model::Version;
use weir_store::Change;

/// So long a watch asks servers that are not as far as it.
const AHEAD_MAX: Duration = Duration::from_secs(30);

/// What a watch is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchFilter {
    /// A table.
    pub table: String,
    /// Only keys that begin so.
    pub key_prefix: Vec<u8>,
}

/// See the module.
pub struct Watch {
    settings: Arc<ClientSettings>,
    filters: Vec<WatchFilter>,
    /// None: now.
    from: Option<Version>,
    stream: Option<Streaming<p::WatchReply>>,
    endpoint: usize,
    /// Since when no server is as far as it.
    ahead: Option<Instant>,
    /// Since when no server is reached.
    without: Option<Instant>,
    trouble: String,
    pause: Pause,
}

impl Watch {
    pub(super) fn new(
        settings: Arc<ClientSettings>,
        from: Option<Version>,
        filters: Vec<WatchFilter>,
    ) -> Watch {
        let trouble = "no server was tried yet".to_owned();
        let (stream, pause) = (None, Pause::new());
        Watch { settings, filters, from, stream, endpoint: 0, ahead: None, without: None, trouble, pause }
    }

    /// Where to resume from; `None` before the first answer of a watch from now on.
    pub fn version(&self) -> Option<Version> {
        self.from
    }

    /// The next changes in order; none when others than those asked for changed, or when the watch begins. Not
    /// cancel-safe while it connects; what is lost then is asked for again.
    ///
    /// # Errors
    /// [`Error::WatchTooOld`]: read the tables, and watch from the version of that read. [`Error::WatchAhead`]: no server is as far, for
    /// long: this is no version of this domain. [`Error::Denied`]. [`Error::Unavailable`]: no server is reached, for long; asked again, it goes
    /// on where it was.
    pub async fn next(&mut self) -> Result<Vec<Change>, Error> {
        loop {
            let reply = match &mut self.stream {
                Some(stream) => stream.message().await,
                None => {
                    self.stream = self.open().await?;
                    continue;
                }
            };
            match reply {
                Ok(Some(reply)) => {
                    self.from = Some(Version(reply.version));
                    (self.ahead, self.without) = (None, None);
                    self.pause.over();
                    return Ok(reply.changes.into_iter().map(change).collect());
                }
                Ok(None) => {}
                Err(status) => self.ended(&status)?,
            }
            self.stream = None;
            self.next_server().await?;
        }
    }

    /// Turns to the next server after a while, unless none was reached for long.
    async fn next_server(&mut self) -> Result<(), Error> {
        let limit = Duration::from_millis(self.settings.give_up_ms);
        if self.without.get_or_insert_with(Instant::now).elapsed() >= limit {
            self.without = None;
            return Err(Error::Unavailable(self.trouble.clone()));
        }
        self.endpoint = (self.endpoint + 1) % self.settings.endpoints.len();
        tokio::time::sleep(self.pause.next()).await;
        Ok(())
    }

    async fn open(&mut self) -> Result<Option<Streaming<p::WatchReply>>, Error> {
        let filter = |filter: &WatchFilter| p::WatchFilter {
            table: filter.table.clone(),
            key_prefix: filter.key_prefix.clone().into(),
        };
        let (now, from_version) = (self.from.is_none(), self.from.map_or(0, |from| from.0));
        let filters = self.filters.iter().map(filter).collect();
        let mut request = Request::new(p::WatchRequest { from_version, now, filters });
        if let Some(authorization) = self.settings.authorization()? {
            request.metadata_mut().insert("authorization", authorization);
        }
        let endpoint = self.settings.endpoints[self.endpoint].clone();
        let limit = Duration::from_millis(self.settings.try_ms);
        let late = |_| tonic::Status::unavailable(format!("{endpoint} does not answer"));
        let begun = async {
            let channel = match self.settings.channel(&endpoint).await {
                Ok(channel) => channel,
                Err(Error::Unavailable(reason)) => return Ok(Err(tonic::Status::unavailable(reason))),
                Err(other) => return Err(other),
            };
            let mut client = StoreClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
            Ok(client.watch(request).await)
        };
        let begun = match tokio::time::timeout(2 * limit, begun).await {
            Ok(begun) => begun?,
            Err(over) => Err(late(over)),
        };
        match begun {
            Ok(stream) => return Ok(Some(stream.into_inner())),
            Err(status) => self.ended(&status)?,
        }
        self.next_server().await?;
        Ok(None)
    }

    /// Whether it can be tried again.
    fn ended(&mut self, status: &tonic::Status) -> Result<(), Error> {
        self.trouble = status.message().to_owned();
        match status.code() {
            Code::OutOfRange => Err(Error::WatchTooOld(status.message().into())),
            Code::FailedPrecondition if self.ahead.is_some_and(|since| since.elapsed() > AHEAD_MAX) => {
                Err(Error::WatchAhead(status.message().into()))
            }
            // A server that was behind, or has just begun, is as far in a moment.
            Code::FailedPrecondition => {
                self.ahead.get_or_insert_with(Instant::now);
                self.without = None;
                Ok(())
            }
            Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument => {
                Err(Error::Denied(status.message().into()))
            }
            _ => Ok(()),
        }
    }
}
