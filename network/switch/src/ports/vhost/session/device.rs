//! The device as its monitor sets it up: what the messages of the protocol mean.

use super::{Tell, Told, absent};
use crate::ports::vhost::guest::{Guest, Pair};
use crate::ports::vhost::memory::{Lent, Memory};
use crate::ports::vhost::offered::{self, Event};
use crate::ports::vhost::ring::{Addresses, Queue};
use crate::ports::vhost::touched::{TooMuch, Touched};
use crate::ports::vhost::{Socket, feature};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result as Reply, VhostUserBackendReqHandlerMut};

/// How long the engine may keep queues that are asked for. It lets go of them in its next turn; should it be stuck, the
/// guest's memory stays mapped for it.
const LET_GO_BOUND: Duration = Duration::from_secs(10);

/// Growth of lent memory that is told, bytes.
const GROWN_TOLD: u64 = 256 << 20;

/// Settings of one queue.
#[derive(Debug, Default)]
pub(super) struct Setting {
    pub(super) size: u16,
    pub(super) addresses: Option<Addresses>,
    pub(super) kick: Option<Event>,
    pub(super) call: Option<Event>,
    pub(super) enabled: bool,
}

/// The device as the monitor sets it up.
pub(super) struct Device {
    tell: Tell,
    touched: Arc<Touched>,
    pairs: u16,
    pub(super) features: u64,
    pub(super) protocol_features: u64,
    pub(super) memory: Option<Arc<Memory>>,
    pub(super) settings: Vec<Setting>,
    /// The pairs that the engine works with, and what ends when it has let go of them.
    pub(super) running: Option<(Vec<usize>, Receiver<()>)>,
    /// Whether nothing was changed since the pairs were last looked at.
    pub(super) settled: bool,
    /// Why the last message was refused, or its queues cannot run.
    pub(super) problem: Option<String>,
    /// By how many bytes the memory had grown when that was told.
    grown_told: u64,
}

impl Device {
    pub(super) fn new(socket: &Socket, tell: Tell, touched: Arc<Touched>) -> Device {
        let settings = (0..2 * socket.pairs).map(|_| Setting::default()).collect();
        Device {
            tell,
            touched,
            pairs: socket.pairs,
            features: 0,
            protocol_features: 0,
            memory: None,
            settings,
            running: None,
            settled: true,
            problem: None,
            grown_told: 0,
        }
    }

    fn offered(&self) -> u64 {
        if self.pairs > 1 { feature::OFFERED | feature::MQ } else { feature::OFFERED }
    }

    fn refuse<T>(&mut self, problem: impl Into<String>) -> Reply<T> {
        self.problem = Some(problem.into());
        Err(Error::InvalidParam)
    }

    /// Bytes by which the lent memory has grown, each time that it is [`GROWN_TOLD`] more.
    pub(super) fn grown(&mut self) -> Option<u64> {
        let grown = self.memory.as_ref().map_or(0, |memory| memory.grown_bytes());
        let is_more = grown >= self.grown_told + GROWN_TOLD;
        is_more.then(|| std::mem::replace(&mut self.grown_told, grown)).map(|_| grown)
    }

    /// Looks how much of the lent memory the switch was the first to touch.
    ///
    /// # Errors
    /// As much as it may.
    pub(super) fn look_at_memory(&self) -> Result<(), TooMuch> {
        self.memory.as_ref().map_or(Ok(()), |memory| self.touched.look(memory))
    }

    /// Maps memory that is lent.
    pub(super) fn borrow(&mut self, lent: Vec<(Lent, OwnedFd)>) -> io::Result<()> {
        let memory = Memory::map(lent)?;
        self.touched.lent(&memory, Instant::now())?;
        self.memory = Some(Arc::new(memory));
        Ok(())
    }

    /// Takes the queues back from the engine, and waits until it has let go of them.
    pub(super) fn withdraw(&mut self) {
        self.settled = false;
        let Some((_, let_go)) = self.running.take() else { return };
        (self.tell)(Told::Waits(absent::SETTING_UP.into()));
        if let_go.recv_timeout(LET_GO_BOUND) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("the engine does not let go of a virtual machine's queues");
        }
    }

    /// The settings of a queue, to be changed. If it runs, it runs no more.
    fn change(&mut self, index: u32) -> Reply<&mut Setting> {
        let runs = |pairs: &Vec<usize>| pairs.contains(&(index as usize / 2));
        if self.running.as_ref().is_some_and(|(pairs, _)| runs(pairs)) {
            self.withdraw();
        }
        self.settled = false;
        match offered::queue_index(index, self.settings.len()) {
            Ok(index) => Ok(&mut self.settings[index]),
            Err(problem) => self.refuse(problem.to_string()),
        }
    }

    /// Gives the engine what can run, if that is more than what runs. Returns whether that was anything.
    pub(super) fn settle(&mut self) -> bool {
        if std::mem::replace(&mut self.settled, true) {
            return false;
        }
        let Some(memory) = self.memory.clone() else { return false };
        let ready: Vec<usize> = (0..usize::from(self.pairs)).filter(|pair| self.is_ready(*pair)).collect();
        let runs = self.running.as_ref().map(|(pairs, _)| pairs.clone()).unwrap_or_default();
        if ready == runs {
            return false;
        }
        self.withdraw();
        self.settled = true;
        if ready.is_empty() {
            return true;
        }
        match ready.iter().map(|pair| self.pair(*pair, &memory)).collect::<Result<Vec<_>, String>>() {
            Ok(pairs) => {
                let (held, let_go) = channel();
                self.running = Some((ready, let_go));
                match Guest::new(memory, pairs, self.features, Some(held)) {
                    Ok(guest) => (self.tell)(Told::Runs(Box::new(guest))),
                    Err(error) => (self.running, self.problem) = (None, Some(error.to_string())),
                }
            }
            Err(problem) => self.problem = Some(problem),
        }
        true
    }

    fn is_ready(&self, pair: usize) -> bool {
        // Without the protocol's features a queue is enabled as soon as it can be kicked.
        let always = self.features & feature::PROTOCOL_FEATURES == 0;
        let ready = |setting: &Setting| {
            setting.size > 0
                && setting.addresses.is_some()
                && setting.kick.is_some()
                && (always || setting.enabled)
        };
        ready(&self.settings[2 * pair]) && ready(&self.settings[2 * pair + 1])
    }

    fn pair(&self, pair: usize, memory: &Arc<Memory>) -> Result<Pair, String> {
        let [receive, transmit] = [&self.settings[2 * pair], &self.settings[2 * pair + 1]];
        let queue = |setting: &Setting| {
            let addresses = setting.addresses.unwrap_or_default();
            Queue::new(memory, setting.size, addresses, self.features & feature::EVENT_IDX != 0)
        };
        let Some(transmit_kick) = transmit.kick.clone() else { return Err("a queue has no kick".into()) };
        Ok(Pair {
            receive: queue(receive)?,
            receive_call: receive.call.clone(),
            transmit: queue(transmit)?,
            transmit_call: transmit.call.clone(),
            transmit_kick,
        })
    }

    fn reset(&mut self) {
        self.withdraw();
        self.settings = (0..2 * self.pairs).map(|_| Setting::default()).collect();
    }

    fn event(&mut self, file: Option<File>) -> Reply<Option<Event>> {
        offered::event(file).or_else(|error| self.refuse(error.to_string()))
    }
}

fn unsupported<T>() -> Reply<T> {
    Err(Error::InvalidOperation("this is a network device, which has no such thing"))
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Reply<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Reply<()> {
        self.reset();
        Ok(())
    }

    fn reset_device(&mut self) -> Reply<()> {
        self.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Reply<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Reply<()> {
        self.withdraw();
        match offered::features(features, self.offered()) {
            Ok(features) => self.features = features,
            Err(problem) => return self.refuse(problem.to_string()),
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Reply<Option<Vec<u64>>> {
        self.withdraw();
        // What was touched of it is looked at before it goes.
        let _ = self.look_at_memory();
        (self.memory, self.grown_told) = (None, 0);
        let lent = |region: &VhostUserMemoryRegion| Lent {
            guest: region.guest_phys_addr,
            user: region.user_addr,
            length: region.memory_size,
            offset: region.mmap_offset,
        };
        let lent = regions.iter().map(lent).zip(files.into_iter().map(OwnedFd::from)).collect();
        self.touched.gone();
        match self.borrow(lent) {
            Ok(()) => Ok(None),
            Err(error) => self.refuse(error.to_string()),
        }
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Reply<()> {
        match offered::queue_size(index, num) {
            Ok(size) => self.change(index).map(|setting| setting.size = size),
            Err(problem) => self.refuse(problem.to_string()),
        }
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Reply<()> {
        let addresses = Addresses { descriptors, available, used };
        self.change(index).map(|setting| setting.addresses = Some(addresses))
    }

    fn set_vring_base(&mut self, index: u32, _base: u32) -> Reply<()> {
        // Frames are done with in order, so what the guest's memory says was given back is the base; after a
        // restart of either side it is the only number that is right.
        self.change(index).map(drop)
    }

    fn get_vring_base(&mut self, index: u32) -> Reply<VhostUserVringState> {
        let setting = self.change(index)?;
        setting.kick = None;
        let (size, addresses) = (setting.size, setting.addresses);
        let position = match (&self.memory, addresses) {
            (Some(memory), Some(addresses)) => Queue::position(memory, size, addresses).unwrap_or(0),
            _ => 0,
        };
        Ok(VhostUserVringState::new(index, u32::from(position)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Reply<()> {
        let Some(kick) = self.event(fd)? else {
            return self.refuse("a queue without a kick is wanted to be looked at all the time: give it one");
        };
        self.change(index.into()).map(|setting| setting.kick = Some(kick))
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Reply<()> {
        let call = self.event(fd)?;
        self.change(index.into()).map(|setting| setting.call = call)
    }

    fn set_vring_err(&mut self, _index: u8, _fd: Option<File>) -> Reply<()> {
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Reply<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK)
    }

    fn set_protocol_features(&mut self, features: u64) -> Reply<()> {
        self.protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Reply<u64> {
        // The protocol's number for network devices is that of pairs.
        Ok(u64::from(self.pairs))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Reply<()> {
        // What it is already interrupts nobody.
        if self.settings.get(index as usize).is_some_and(|setting| setting.enabled == enable) {
            return Ok(());
        }
        self.change(index).map(|setting| setting.enabled = enable)
    }

    fn get_config(&mut self, _offset: u32, _size: u32, _flags: VhostUserConfigFlags) -> Reply<Vec<u8>> {
        unsupported()
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Reply<()> {
        unsupported()
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Reply<()> {
        unsupported()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Reply<File> {
        unsupported()
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Reply<(VhostUserInflight, File)> {
        unsupported()
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Reply<()> {
        unsupported()
    }

    fn get_max_mem_slots(&mut self) -> Reply<u64> {
        unsupported()
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _fd: File,
        _postcopy_listening: Option<bool>,
    ) -> Reply<Option<u64>> {
        unsupported()
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Reply<()> {
        unsupported()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Reply<Option<File>> {
        unsupported()
    }

    fn check_device_state(&mut self) -> Reply<()> {
        unsupported()
    }

    fn get_shmem_config(&mut self) -> Reply<VhostUserShMemConfig> {
        unsupported()
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Reply<()> {
        unsupported()
    }
}
