//! The stream to a controller: mutual TLS, frames both ways.

use super::CONNECT_TIMEOUT_MS;
use super::conduct::Pace;
use super::given::{Place, Room};
use super::renewal;
use super::tls::{clock_words, session_config, split_address};
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::wire::{read_counted, write_frame};
use rustls::pki_types::ServerName;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncWriteExt, BufReader, BufWriter};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir_base::codec::CodecError;
use weir_model::session::{ToActuator, ToController};

/// Most frames waiting to be sent to a controller.
pub const TO_CONTROLLER_MAX: usize = 1024;
/// A silent stream is probed after so long, seconds.
const KEEPALIVE_S: u64 = 10;
/// Data that is not acknowledged for so long ends the stream, milliseconds.
const USER_TIMEOUT_MS: u32 = 20_000;

pub(super) enum StreamEvent {
    Connected,
    Closed(String),
    /// It ended because what came is no frame.
    Garbage(String),
    /// A frame, and the place that it has on its way to the switch if it is one of updates.
    Frame(ToActuator, Option<Place>),
}

/// Dropping it ends it.
pub(super) struct Stream {
    pub generation: u64,
    pub sender: mpsc::Sender<ToController>,
    task: JoinHandle<()>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stream {
    /// Begins to make a stream; what becomes of it comes by `events`.
    pub fn begin(
        generation: u64,
        controller: String,
        state_dir: std::path::PathBuf,
        events: mpsc::Sender<(u64, StreamEvent)>,
        shared: Arc<Shared>,
    ) -> Stream {
        let (sender, receiver) = mpsc::channel(TO_CONTROLLER_MAX);
        let task = tokio::spawn(async move {
            let end = match open(&controller, &state_dir, &shared.metrics).await {
                Ok(stream) => {
                    if events.send((generation, StreamEvent::Connected)).await.is_err() {
                        return;
                    }
                    serve(stream, generation, (&events, &shared.metrics), receiver).await
                }
                Err(reason) => StreamEvent::Closed(reason),
            };
            let _ = events.send((generation, end)).await;
        });
        Stream { generation, sender, task }
    }
}

/// Connects and shakes hands. Certificates are read each time, so that renewed ones are used.
async fn open(controller: &str, state_dir: &Path, metrics: &Metrics) -> Result<TlsStream<TcpStream>, String> {
    let (host, port) = split_address(controller).map_err(|error| error.to_string())?;
    let name = ServerName::try_from(host.to_string()).map_err(|error| error.to_string())?;
    if let Some(days) =
        renewal::over_for_days(state_dir, SystemTime::now()).map_err(|error| error.to_string())?
    {
        metrics.session_clock_faults.count();
        return Err(format!(
            "the certificate of this actuator is over, since {days} days by the clock of this machine: set the clock right if it is \
             wrong; else start it once with a new token (WEIR_JOIN_TOKEN) ('weir token' makes one)"
        ));
    }
    let config = session_config(state_dir).map_err(|error| error.to_string())?;
    let limit = Duration::from_millis(CONNECT_TIMEOUT_MS);
    let stream = tokio::time::timeout(limit, TcpStream::connect((host, port)))
        .await
        .map_err(|_| "it does not answer".to_string())?
        .map_err(|error| error.to_string())?;
    keep_alive(&stream).map_err(|error| error.to_string())?;
    tokio::time::timeout(limit, TlsConnector::from(config).connect(name, stream))
        .await
        .map_err(|_| "it does not finish the TLS handshake".to_string())?
        .map_err(|error| told(clock_words(&error), &format!("TLS: {error}"), metrics))
}

/// Why there is no session, with the clock named where it is that.
fn told(clock: Option<String>, other: &str, metrics: &Metrics) -> String {
    let Some(words) = clock else { return other.to_owned() };
    metrics.session_clock_faults.count();
    words
}

fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(KEEPALIVE_S))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(KEEPALIVE_S / 2))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
    sockopt::set_tcp_nodelay(stream, true)
}

/// Moves frames until one side ends, and tells why.
async fn serve(
    stream: TlsStream<TcpStream>,
    generation: u64,
    (events, metrics): (&mpsc::Sender<(u64, StreamEvent)>, &Metrics),
    mut frames: mpsc::Receiver<ToController>,
) -> StreamEvent {
    let (read, write) = tokio::io::split(stream);
    let reader = async {
        let mut read = BufReader::new(read);
        let room = Room::default();
        let mut pace = Pace::new(Instant::now());
        loop {
            match read_counted::<ToActuator>(&mut read).await {
                Ok((frame, bytes)) => {
                    let place = match &frame {
                        ToActuator::Updates(updates) if !updates.updates.is_empty() => {
                            Some(room.place().await)
                        }
                        _ => None,
                    };
                    if events.send((generation, StreamEvent::Frame(frame, place))).await.is_err() {
                        return StreamEvent::Closed("the agent ends".to_string());
                    }
                    if let Some(until) = pace.read(Instant::now(), bytes) {
                        metrics.session_paced.count();
                        tokio::time::sleep_until(until.into()).await;
                    }
                }
                // What the other side finds wrong with our certificate comes behind the handshake.
                Err(CodecError::Io(error)) => {
                    return StreamEvent::Closed(told(clock_words(&error), &error.to_string(), metrics));
                }
                Err(error @ CodecError::Closed) => return StreamEvent::Closed(error.to_string()),
                Err(error) => return StreamEvent::Garbage(format!("what it sends is no frame: {error}")),
            }
        }
    };
    let writer = async {
        let mut write = BufWriter::new(write);
        while let Some(frame) = frames.recv().await {
            if let Err(error) = write_frame(&mut write, &frame).await {
                return StreamEvent::Closed(error.to_string());
            }
            if frames.is_empty()
                && let Err(error) = write.flush().await
            {
                return StreamEvent::Closed(error.to_string());
            }
        }
        StreamEvent::Closed("the agent ends the session".to_string())
    };
    tokio::select! {
        end = reader => end,
        end = writer => end,
    }
}
