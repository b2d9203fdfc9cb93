//! How long a client waits when FileWall is killed and a second one takes over, which the paper leaves as future work. The client
//! makes folders one after the other, and sends what it has no answer to again, as clients of NFSv3 do: each of them must be
//! made once.

use super::client::Connection;
use super::place::{self, CALLER, Place};
use super::{Failure, median};
use std::time::{Duration, Instant};
use weir_filewall::wire::build::Record;
use weir_filewall::wire::nfs3::{Handle, Op};

const ROUNDS: usize = 9;
/// How long a client may wait: the goal, ms.
const GOAL_MS: f64 = 2000.0;
/// Folders that are made before a FileWall is killed, and until it counts as over.
const FOLDERS: usize = 50;
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(5);
const BOUND: Duration = Duration::from_secs(20);

struct Client {
    port: u16,
    root: Handle,
    connection: Option<Connection>,
    made: usize,
}

impl Client {
    /// Makes a folder, however often it must be asked for; how long that took, ms.
    fn make(&mut self) -> Result<f64, Failure> {
        self.made += 1;
        let name = format!("folder-{}", self.made);
        let call = Record::nfs3(0, Op::Mkdir, &CALLER).opaque(self.root.as_bytes()).opaque(name.as_bytes());
        // Mode 0755, nothing else set.
        let call = call.u32(1).u32(0o755).u32(0).u32(0).u32(0).u32(0).u32(0).finish();
        let since = Instant::now();
        loop {
            if let Some(connection) = &mut self.connection {
                match connection.again(&call, self.made as u32) {
                    Ok(()) => return Ok(since.elapsed().as_secs_f64() * 1000.0),
                    Err(failure) if since.elapsed() > BOUND => return Err(failure),
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
            self.connection = Connection::open(place::behind_wall(self.port).nfs()).ok();
            if self.connection.is_none() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// The longest of some waits, ms.
    fn longest(&mut self) -> Result<f64, Failure> {
        (0..FOLDERS).try_fold(0f64, |longest, _| Ok(longest.max(self.make()?)))
    }
}

/// Prints how long a client waits.
pub fn waits(place: &mut Place, port: u16, policy: &str) -> Result<(), Failure> {
    let folder = place.policies("takeover", policy)?;
    let context = place.path("context").display().to_string();
    let port_text = port.to_string();
    let words = ["wall", &port_text, &folder, &context];
    let mut first = place.role(&words)?;
    let root = place::mount(&place::behind_wall(port))?;
    let mut client = Client { port, root, connection: None, made: 0 };
    let mut waits = Vec::new();
    for _ in 0..ROUNDS {
        let second = place.role(&words)?;
        client.longest()?;
        place.kill(first)?;
        waits.push(client.longest()?);
        first = second;
    }
    let made = std::fs::read_dir(place.export()).map_err(super::failed("read the export"))?.flatten();
    let made = made.filter(|entry| entry.file_name().to_string_lossy().starts_with("folder-")).count();
    if made != client.made {
        return Err(Failure(format!("{made} folders were made of {}", client.made)));
    }
    let longest = waits.iter().copied().fold(0.0, f64::max);
    for (metric, wait) in [("takeover_wait", median(&waits)), ("takeover_wait_longest", longest)] {
        println!("RESULT filewall {metric} weir={wait:.0}ms goal={GOAL_MS:.0}ms ratio={:.2}", wait / GOAL_MS);
    }
    Ok(())
}
