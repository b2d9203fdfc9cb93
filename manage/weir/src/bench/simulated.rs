//! Hosts that are simulated up to the gate: real joining, TLS sessions, signatures, journals and acks, but no packets. Each has a session
//! with every controller, as a real one has; what one of them sends is acked to all.

use crate::failure::Failure;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use weir_agent::join::{Applicant, Joined, group_key, identity, join};
use weir_agent::session::tls::session_config;
use weir_api::client::Client;
use weir_api::types::TokenRequest;
use weir_controller::driver::{read_frame, write_frame};
use weir_model::Label;
use weir_model::event::Role;
use weir_model::join::CONTROLLER_DNS_NAME;
use weir_model::local::Answer;
use weir_model::session::{PROTOCOL, STATE_CHUNK_KEYS, ToActuator, ToController};
use weir_trust::batch::Verifier;
use weir_trust::gate::{Gate, take};
use weir_trust::identity::{KeyPair, sign_acks};

/// Frames that wait for one controller; more are dropped, and its session begins anew.
const QUEUE_MAX: usize = 4_096;
/// Between two tries to reach a controller.
const AGAIN: Duration = Duration::from_millis(200);
/// A file system in memory.
const MEMORY_FOLDER: &str = "/dev/shm";

fn wrong(error: impl std::fmt::Display) -> Failure {
    Failure::Input(error.to_string())
}

/// A folder for what simulated hosts keep: in memory where there is such a place, since so many hosts have as many disks, and not this
/// machine's one. It goes with this.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// One of its own.
    ///
    /// # Errors
    /// [`Failure`]: it cannot be made.
    pub fn new(name: &str) -> Result<Folder, Failure> {
        let memory = Path::new(MEMORY_FOLDER);
        let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let path = parent.join(format!("weir-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(Failure::io(path.display().to_string()))?;
        Ok(Folder(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left for a look.
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

/// See the module.
pub struct Host {
    name: Label,
    role: Role,
    underlay: IpAddr,
    dir: PathBuf,
    key: KeyPair,
    gate: Mutex<Gate>,
    sessions: Mutex<Vec<mpsc::Sender<ToController>>>,
}

impl Host {
    /// Joins a domain, with the state of the host below `folder`. Its address on the underlay, where nothing is sent, comes of its number.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn join(
        (name, role, number): (Label, Role, u32),
        client: &Client,
        folder: &Path,
        runtime: &tokio::runtime::Runtime,
    ) -> Result<Arc<Host>, Failure> {
        let dir = folder.join(name.as_str());
        let underlay = IpAddr::from([198, 18, (number / 250) as u8, (number % 250) as u8 + 1]);
        let applicant = Applicant { name: name.clone(), role, underlay };
        let request = TokenRequest {
            name: name.clone(),
            role,
            valid_s: None,
            underlay: Some(underlay.to_string()),
            key: None,
        };
        let token = client.token(&request)?.token;
        let joined = runtime.block_on(join(&dir, &applicant, &token, false)).map_err(wrong)?;
        let (Joined::Now(member) | Joined::Before(member)) = joined;
        let group = group_key(&dir).ok_or_else(|| wrong(format!("{name} was told no key of the group")))?;
        let key = identity(&dir).map_err(wrong)?;
        let gate = Gate::open(name.clone(), Verifier::new(member.domain, group), &dir.join("gate"));
        let gate = Mutex::new(gate.map_err(Failure::io(dir.display().to_string()))?);
        Ok(Arc::new(Host { name, role, underlay, dir, key, gate, sessions: Mutex::default() }))
    }

    /// Keeps a session with each of these controllers, until the runtime ends.
    pub fn serve(self: &Arc<Host>, controllers: &[String], runtime: &tokio::runtime::Runtime) {
        for address in controllers {
            let (host, address) = (self.clone(), address.clone());
            runtime.spawn(async move {
                loop {
                    if let Err(reason) = host.session(&address).await {
                        tracing::debug!(host = %host.name, address, reason, "a session of a simulated host ended");
                    }
                    tokio::time::sleep(AGAIN).await;
                }
            });
        }
    }

    async fn session(&self, address: &str) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let tls = session_config(&self.dir).map_err(|error| text(&error))?;
        let stream = TcpStream::connect(address).await.map_err(|error| text(&error))?;
        stream.set_nodelay(true).map_err(|error| text(&error))?;
        let name = CONTROLLER_DNS_NAME.try_into().map_err(|_| "no server name".to_string())?;
        let stream = TlsConnector::from(tls).connect(name, stream).await.map_err(|error| text(&error))?;
        let (mut read, mut write) = tokio::io::split(stream);
        let hello = ToController::Hello {
            protocol: PROTOCOL,
            actuator: self.name.clone(),
            role: self.role,
            software: env!("CARGO_PKG_VERSION").to_string(),
            identity: self.key.public(),
            underlay: self.underlay,
            digest: self.locked().digest(),
        };
        write_frame(&mut write, &hello).await.map_err(|error| text(&error))?;
        let (sender, mut queue) = mpsc::channel::<ToController>(QUEUE_MAX);
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(sender.clone());
        let writes = async {
            while let Some(frame) = queue.recv().await {
                write_frame(&mut write, &frame).await.map_err(|error| text(&error))?;
            }
            Ok::<(), String>(())
        };
        let reads = self.reads(&mut read, &sender);
        let ended: Result<(), String> = tokio::select! { ended = writes => ended, ended = reads => ended };
        self.sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|other| !other.same_channel(&sender));
        ended
    }

    /// Takes what a controller sends, until that ends.
    async fn reads(
        &self,
        read: &mut (impl tokio::io::AsyncRead + Unpin),
        sender: &mpsc::Sender<ToController>,
    ) -> Result<(), String> {
        loop {
            let frame: ToActuator = read_frame(read).await.map_err(|error| error.to_string())?;
            if let ToActuator::Updates(updates) = &frame {
                let acks =
                    take(&mut self.locked(), updates, |_| Ok(())).map_err(|error| error.to_string())?;
                self.tell_all(&ToController::Acks(sign_acks(&self.key, &self.name, acks)));
                continue;
            }
            for answer in self.answer(frame)? {
                sender.try_send(answer).map_err(|error| error.to_string())?;
            }
        }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_all(&self, frame: &ToController) {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        // One that does not read is compared when it comes again.
        sessions.iter().for_each(|session| drop(session.try_send(frame.clone())));
    }

    fn answer(&self, frame: ToActuator) -> Result<Vec<ToController>, String> {
        Ok(match frame {
            ToActuator::Refused(reason) => return Err(reason),
            ToActuator::SendState => {
                let gate = self.locked();
                let all: Vec<_> = gate.iter().map(|(key, value)| (key.clone(), value.version)).collect();
                let parts = all.chunks(STATE_CHUNK_KEYS).map(<[_]>::to_vec);
                let mut frames: Vec<ToController> =
                    parts.map(|entries| ToController::State { entries, last: false }).collect();
                match frames.last_mut() {
                    Some(ToController::State { last, .. }) => *last = true,
                    _ => frames.push(ToController::State { entries: Vec::new(), last: true }),
                }
                frames
            }
            ToActuator::Ask { id, .. } => {
                vec![ToController::Answer { id, answer: Answer::Error("a simulated host".into()) }]
            }
            ToActuator::Ping { id } => vec![ToController::Pong { id }],
            // Controllers put signatures together here; keys and certificates stay as they are.
            ToActuator::Welcome { .. }
            | ToActuator::Updates(_)
            | ToActuator::Unsigned(_)
            | ToActuator::Share(_)
            | ToActuator::Endorsement(_)
            | ToActuator::Renewed { .. }
            | ToActuator::NotRenewed(_)
            | ToActuator::Controllers { .. }
            | ToActuator::RotateKeys
            | ToActuator::Rotated { .. }
            | ToActuator::Settled { .. }
            | ToActuator::NotRotated(_) => Vec::new(),
        })
    }
}
