//! `weir bench failover`: see the module above.

use super::client::{TABLE, key_of, make_table, weir_client};
use super::etcd::Etcd;
use super::servers::{Peer, Servers, runtime};
use crate::failure::Failure;
use clap::Args;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weir_lab::process::{Record, Signal};

/// Callers that write all the time.
const CALLERS: usize = 16;
/// How long they write before the leader goes.
const BEFORE: Duration = Duration::from_millis(700);
/// How long writes may stand still.
const STILL_MAX: Duration = Duration::from_secs(20);
/// etcd's client tries the next member when one does not answer in so long.
const ETCD_TRY: Duration = Duration::from_millis(320);

#[derive(Debug, Args)]
pub struct Failover {
    /// How often the leader goes, in each way
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How often etcd's leader goes
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    etcd_rounds: u32,
}

/// What was acknowledged, and when.
#[derive(Default)]
struct Acked {
    all: Mutex<Vec<(u64, Instant)>>,
    next: AtomicU64,
    stop: AtomicBool,
}

impl Acked {
    fn push(&self, number: u64) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push((number, Instant::now()));
    }

    fn taken(&self) -> Vec<(u64, Instant)> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn next(&self) -> Option<u64> {
        (!self.stop.load(Ordering::Acquire)).then(|| self.next.fetch_add(1, Ordering::Relaxed))
    }
}

fn wrong(error: impl std::fmt::Display) -> Failure {
    Failure::Input(error.to_string())
}

impl Failover {
    /// With the usual options.
    pub fn usual() -> Failover {
        Failover { rounds: 11, etcd_rounds: 5 }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut etcd = Vec::new();
        let mut servers = Servers::start(Peer::Etcd)?;
        for round in 0..self.etcd_rounds {
            etcd.push(round_of(&mut servers, Signal::KILL, u64::from(round))?);
        }
        drop(servers);
        let mut servers = Servers::start(Peer::Weir)?;
        for (name, signal) in [("killed", Signal::KILL), ("stopped", Signal::STOP)] {
            let mut weir = Vec::new();
            for round in 0..self.rounds {
                weir.push(round_of(&mut servers, signal, u64::from(round))?);
            }
            report(name, &weir, &etcd);
        }
        Ok(ExitCode::SUCCESS)
    }
}

struct Round {
    still: Duration,
    acked: usize,
    lost: usize,
}

fn report(name: &str, weir: &[Round], etcd: &[Round]) {
    let at = |rounds: &[Round], share: f64| {
        let mut ms: Vec<f64> = rounds.iter().map(|round| round.still.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        ms[((ms.len() - 1) as f64 * share).ceil() as usize]
    };
    for (metric, share) in [("median", 0.5), ("p95", 0.95)] {
        let (ours, theirs) = (at(weir, share), at(etcd, share));
        say!(
            "RESULT failover {name}_{metric} weir={ours:.0}ms etcd_killed={theirs:.0}ms ratio={:.2}",
            ours / theirs
        );
    }
    let sum = |rounds: &[Round], of: fn(&Round) -> usize| rounds.iter().map(of).sum::<usize>();
    say!(
        "RESULT failover {name}_lost weir={} of {} acknowledged, etcd={} of {}",
        sum(weir, |round| round.lost),
        sum(weir, |round| round.acked),
        sum(etcd, |round| round.lost),
        sum(etcd, |round| round.acked)
    );
}

/// Writes, and meanwhile the leader goes; then it comes back.
fn round_of(servers: &mut Servers, signal: Signal, round: u64) -> Result<Round, Failure> {
    let leader = servers.leader()?;
    let acked = Arc::new(Acked { next: AtomicU64::new(round * 10_000_000), ..Acked::default() });
    let (writing, addresses) = (acked.clone(), servers.addresses());
    let context = if servers.peer.is_weir() { Some(servers.context()?) } else { None };
    // The leader first, as a client that has run for a while has it.
    let order = [&addresses[leader - 1..], &addresses[..leader - 1]].concat();
    let writers = std::thread::spawn(move || {
        runtime()?.block_on(async {
            match context {
                Some(context) => write_weir(weir_client(&context, &order)?, writing).await,
                None => write_etcd(order, writing).await,
            }
        })
    });
    std::thread::sleep(BEFORE);
    let record = servers.pid(leader).and_then(|pid| Record::of(pid as i32, "leader".to_string()).ok());
    let record = record.ok_or_else(|| wrong("the leader ended by itself"))?;
    let gone = Instant::now();
    record.signal(signal)?;
    let after = |acked: &[(u64, Instant)]| {
        // What was on its way is acknowledged within a moment; a leader takes longer to be missed.
        let first = acked.iter().map(|(_, at)| *at).filter(|at| *at > gone + Duration::from_millis(30)).min();
        first.map(|at| at - gone)
    };
    while after(&acked.taken()).is_none() && gone.elapsed() < STILL_MAX && !writers.is_finished() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let still = after(&acked.taken()).ok_or_else(|| wrong("writes did not go on"))?;
    match signal {
        Signal::STOP => drop(record.signal(Signal::CONT)?),
        _ => {
            servers.kill(leader)?;
            servers.begin(leader)?;
        }
    }
    std::thread::sleep(BEFORE);
    acked.stop.store(true, Ordering::Release);
    writers.join().map_err(|_| wrong("the writers failed"))??;
    let acked = acked.taken();
    let lost = lost(servers, &acked)?;
    Ok(Round { still, acked: acked.len(), lost })
}

async fn write_weir(client: weir_rpc::client::Client, acked: Arc<Acked>) -> Result<(), Failure> {
    make_table(&client).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let (client, acked) = (client.clone(), acked.clone());
        tasks.spawn(async move {
            while let Some(number) = acked.next() {
                if client.put(TABLE, &key_of(number), vec![7; 100]).await.is_ok() {
                    acked.push(number);
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(wrong)?;
    }
    Ok(())
}

async fn write_etcd(addresses: Vec<String>, acked: Arc<Acked>) -> Result<(), Failure> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let (addresses, acked) = (addresses.clone(), acked.clone());
        tasks.spawn(async move {
            let mut turn = 0;
            while !acked.stop.load(Ordering::Acquire) {
                let connected = tokio::time::timeout(ETCD_TRY, Etcd::connect(&addresses[turn % 3])).await;
                if let Ok(Ok(mut client)) = connected {
                    while let Some(number) = acked.next() {
                        let put = client.put(key_of(number), vec![7; 100]);
                        match tokio::time::timeout(ETCD_TRY, put).await {
                            Ok(Ok(())) => acked.push(number),
                            _ => break,
                        }
                    }
                }
                turn += 1;
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(wrong)?;
    }
    Ok(())
}

/// How many acknowledged writes are not there.
fn lost(servers: &Servers, acked: &[(u64, Instant)]) -> Result<usize, Failure> {
    let leader = servers.leader_address()?;
    runtime()?.block_on(async {
        let mut lost = 0;
        let mut etcd = match servers.peer {
            Peer::Etcd => Some(Etcd::connect(&leader).await?),
            Peer::Weir | Peer::Bft => None,
        };
        let weir = match servers.peer {
            Peer::Weir | Peer::Bft => Some(weir_client(&servers.context()?, std::slice::from_ref(&leader))?),
            Peer::Etcd => None,
        };
        for (number, _) in acked {
            let found = match (&mut etcd, &weir) {
                (Some(etcd), _) => etcd.get(key_of(*number)).await?,
                (None, Some(weir)) => weir.get(TABLE, &key_of(*number)).await.map_err(wrong)?.is_some(),
                (None, None) => false,
            };
            lost += usize::from(!found);
        }
        Ok(lost)
    })
}
