//! Moves the session's frames: mutual TLS towards a controller, channels towards the link.
//!
//! Nothing here waits for a controller that does not read: its queue is bounded, and when it is full
//! the stream ends and the next session reconciles. When the switch is slow, the controller's stream
//! is not read, so that it slows down too. A frame that was read is held until the switch has room: what
//! the machine says to the switch is never lost while the connection to it lasts.

use super::renewal::{self, LOOK_S, Renewal};
use super::tls::{session_config, split_address};
use super::{CONNECT_TIMEOUT_MS, Input, Output, Report, Session};
use crate::link::LinkEvent;
use crate::shared::{Shared, SwitchSender};
use crate::wire::{read_frame, write_frame};
use rustls::pki_types::ServerName;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncWriteExt, BufReader, BufWriter};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir_model::session::{ToActuator, ToController};

/// Most frames waiting to be sent to the controller.
pub const TO_CONTROLLER_MAX: usize = 1024;
/// Events of the switch are dropped when fewer places than this are left: they are the first to go.
const EVENTS_RESERVE: usize = TO_CONTROLLER_MAX / 2;
/// Frames of the controller that wait here; each may be as long as a frame can be.
const FROM_CONTROLLER_MAX: usize = 4;
/// Places that must be free towards the switch before another frame of the controller is taken.
const SWITCH_ROOM_MIN: usize = 8;
/// How often the switch's queue is looked at while it is full, milliseconds.
const ROOM_CHECK_MS: u64 = 10;
/// A silent stream is probed after so long, seconds.
const KEEPALIVE_S: u64 = 10;
/// Data that is not acknowledged for so long ends the stream, milliseconds.
const USER_TIMEOUT_MS: u32 = 20_000;

enum StreamEvent {
    Connected,
    Closed(String),
    Frame(ToActuator),
}

struct Stream {
    generation: u64,
    sender: mpsc::Sender<ToController>,
    task: JoinHandle<()>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Driver {
    shared: Arc<Shared>,
    session: Session,
    state_dir: PathBuf,
    started: Instant,
    switch: Option<SwitchSender>,
    stream: Option<Stream>,
    generation: u64,
    stream_events: mpsc::Sender<(u64, StreamEvent)>,
    renewal: Renewal,
    /// A session has come about: look at the certificate now.
    look_soon: bool,
}

/// Keeps the session for ever; returns when the link's end of `events` is dropped.
pub async fn run(
    shared: Arc<Shared>,
    session: Session,
    state_dir: PathBuf,
    mut events: mpsc::Receiver<LinkEvent>,
) {
    let (stream_events, mut from_stream) = mpsc::channel(FROM_CONTROLLER_MAX);
    let mut held: Option<(u64, StreamEvent)> = None;
    let renewal = Renewal::new(state_dir.clone(), shared.actuator.clone());
    let mut driver = Driver {
        shared,
        session,
        state_dir,
        started: Instant::now(),
        switch: None,
        stream: None,
        generation: 0,
        stream_events,
        renewal,
        look_soon: false,
    };
    driver.publish_certificate();
    let mut looks = tokio::time::interval(Duration::from_secs(LOOK_S));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let room = driver.switch.as_ref().is_none_or(|switch| switch.capacity() >= SWITCH_ROOM_MIN);
        if room && let Some((generation, event)) = held.take() {
            if driver.stream.as_ref().is_some_and(|stream| stream.generation == generation) {
                driver.stream_event(event);
            }
            continue;
        }
        if std::mem::take(&mut driver.look_soon) {
            driver.renew();
        }
        let tick = driver.session.next_tick_ms().map(|at_ms| driver.started + Duration::from_millis(at_ms));
        tokio::select! {
            event = events.recv() => match event {
                Some(LinkEvent::Up(sender)) => {
                    driver.switch = Some(sender);
                    driver.step(Input::SwitchUp);
                }
                Some(LinkEvent::Down) => {
                    driver.switch = None;
                    driver.step(Input::SwitchDown);
                }
                Some(LinkEvent::Frame(frame)) => driver.step(Input::FromSwitch(frame)),
                None => return,
            },
            // Others fill the switch's queue too, so whether there is room is looked at once more.
            event = from_stream.recv(), if held.is_none() => held = event,
            () = tokio::time::sleep(Duration::from_millis(ROOM_CHECK_MS)), if held.is_some() => {}
            _ = looks.tick() => driver.renew(),
            () = tokio::time::sleep_until(tick.unwrap_or(driver.started).into()), if tick.is_some() => {
                driver.step(Input::Tick);
            }
        }
    }
}

impl Driver {
    fn stream_event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Connected => self.step(Input::Connected),
            StreamEvent::Closed(reason) => {
                self.stream = None;
                self.step(Input::Closed(reason));
            }
            StreamEvent::Frame(frame) => {
                self.shared.metrics.session_frames_in.count();
                self.step(Input::FromController(frame));
            }
        }
    }

    fn step(&mut self, input: Input) {
        let mut out = Vec::new();
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let now_ms = self.started.elapsed().as_millis() as u64;
            self.session.step(now_ms, input, &mut out);
            for output in out.drain(..) {
                if let Some(reason) = self.act(output) {
                    self.stream = None;
                    inputs = vec![Input::Closed(reason)];
                }
            }
        }
        self.publish();
    }

    /// Does what the machine wants; a text means that the stream is over.
    fn act(&mut self, output: Output) -> Option<String> {
        match output {
            Output::Connect(controller) => self.connect(controller),
            Output::Close => self.stream = None,
            Output::ToController(frame) => {
                let stream = self.stream.as_ref()?;
                if matches!(frame, ToController::Event(_)) && stream.sender.capacity() < EVENTS_RESERVE {
                    self.session.counters.dropped_events += 1;
                    return None;
                }
                match stream.sender.try_send(frame) {
                    Ok(()) => self.shared.metrics.session_frames_out.count(),
                    Err(TrySendError::Full(_)) => {
                        self.shared.metrics.session_queue_full.count();
                        return Some(format!("it has left {TO_CONTROLLER_MAX} frames unread"));
                    }
                    // The stream has ended, and why is on its way here.
                    Err(TrySendError::Closed(_)) => {}
                }
            }
            Output::ToSwitch(frame) => {
                let taken = self.switch.as_ref().is_some_and(|switch| switch.try_send(frame).is_ok());
                if !taken {
                    return Some("the switch does not take frames".into());
                }
            }
            Output::ResetSwitch => self.shared.reset_switch.notify_one(),
            Output::Report(report @ Report::Established { .. }) => {
                tracing::info!("{report}");
                self.look_soon = true;
            }
            Output::Certificate(pem) => self.keep_certificate(&pem),
            Output::Report(report @ Report::NotRenewed { .. }) => {
                self.shared.metrics.renewals_failed.count();
                tracing::warn!("{report}");
            }
            Output::Report(report @ Report::Lost { .. }) => tracing::warn!("{report}"),
        }
        None
    }

    /// Asks for a new certificate when it is time.
    fn renew(&mut self) {
        if !self.session.established() {
            return;
        }
        match self.renewal.request(SystemTime::now()) {
            Ok(None) => {}
            Ok(Some(csr_pem)) => self.step(Input::Renew(csr_pem)),
            Err(error) => tracing::warn!(%error, "the certificate cannot be renewed"),
        }
    }

    fn keep_certificate(&mut self, pem: &str) {
        match self.renewal.keep(pem, SystemTime::now()) {
            Ok(life) => {
                self.shared.metrics.renewals_done.count();
                tracing::info!(until_s = life.until_s, "the certificate is renewed");
            }
            Err(error) => {
                self.shared.metrics.renewals_failed.count();
                tracing::warn!(%error, "the certificate is not renewed: the present one stays");
            }
        }
        self.publish_certificate();
    }

    fn publish_certificate(&self) {
        if let Ok(life) = renewal::life(&self.state_dir) {
            self.shared.metrics.certificate_until_s.set(life.until_s.max(0) as u64);
        }
    }

    fn connect(&mut self, controller: String) {
        self.generation += 1;
        let generation = self.generation;
        let (sender, receiver) = mpsc::channel(TO_CONTROLLER_MAX);
        let events = self.stream_events.clone();
        let state_dir = self.state_dir.clone();
        let task = tokio::spawn(async move {
            let reason = match open(&controller, &state_dir).await {
                Ok(stream) => {
                    if events.send((generation, StreamEvent::Connected)).await.is_err() {
                        return;
                    }
                    serve(stream, generation, &events, receiver).await
                }
                Err(reason) => reason,
            };
            let _ = events.send((generation, StreamEvent::Closed(reason))).await;
        });
        self.stream = Some(Stream { generation, sender, task });
    }

    fn publish(&self) {
        let (metrics, counters) = (&self.shared.metrics, &self.session.counters);
        metrics.session_up.set(u64::from(self.session.established()));
        metrics.session_connects.set(counters.connects);
        metrics.session_closes.set(counters.closes);
        metrics.session_protocol_errors.set(counters.protocol_errors);
        metrics.session_dropped_acks.set(counters.dropped_acks);
        metrics.session_dropped_events.set(counters.dropped_events);
        metrics.session_dropped_answers.set(counters.dropped_answers);
        metrics.session_questions_refused.set(counters.questions_refused);
        metrics.session_questions_expired.set(counters.questions_expired);
        metrics.session_switch_resets.set(counters.switch_resets);
    }
}

/// Connects and shakes hands. Certificates are read each time, so that renewed ones are used.
async fn open(controller: &str, state_dir: &Path) -> Result<TlsStream<TcpStream>, String> {
    let (host, port) = split_address(controller)?;
    let name = ServerName::try_from(host.to_string()).map_err(|error| error.to_string())?;
    if renewal::is_over(state_dir, SystemTime::now()).map_err(|error| error.to_string())? {
        return Err("the certificate of this actuator is over: start it once with --join and a new token \
                    ('weir token' makes one)"
            .to_string());
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
        .map_err(|error| format!("TLS: {error}"))
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
    events: &mpsc::Sender<(u64, StreamEvent)>,
    mut frames: mpsc::Receiver<ToController>,
) -> String {
    let (read, write) = tokio::io::split(stream);
    let reader = async {
        let mut read = BufReader::new(read);
        loop {
            match read_frame::<ToActuator>(&mut read).await {
                Ok(frame) => {
                    if events.send((generation, StreamEvent::Frame(frame))).await.is_err() {
                        return "the agent ends".to_string();
                    }
                }
                Err(error) => return error.to_string(),
            }
        }
    };
    let writer = async {
        let mut write = BufWriter::new(write);
        while let Some(frame) = frames.recv().await {
            if let Err(error) = write_frame(&mut write, &frame).await {
                return error.to_string();
            }
            if frames.is_empty()
                && let Err(error) = write.flush().await
            {
                return error.to_string();
            }
        }
        "the agent ends the session".to_string()
    };
    tokio::select! {
        reason = reader => reason,
        reason = writer => reason,
    }
}
