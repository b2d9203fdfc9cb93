//! A server in this process, on loopback, that can go and come back.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use weir_base::world::{RealClock, RealDisk};
use weir_procedure::WasmLoader;
use weir_rpc::Error;
use weir_rpc::access::Identity;
use weir_rpc::client::{Client, ClientSettings};
use weir_rpc::local::{LocalSettings, LocalStore};
use weir_rpc::server::{Authenticate, serve};
use weir_store::{Operation, Outcome, Registry, TableOptions};

pub fn anybody() -> Arc<Authenticate> {
    Arc::new(|_, _| Ok(Identity::admin("anybody")))
}

fn try_open(dir: &Path, settings: LocalSettings) -> Result<Arc<LocalStore>, Error> {
    let registry = Registry::new().with_loader(Arc::new(WasmLoader::new()));
    let disk = Arc::new(RealDisk::open(dir).unwrap());
    LocalStore::open(disk, Arc::new(RealClock::new()), Arc::new(registry), settings).map(Arc::new)
}

pub struct Server {
    pub address: SocketAddr,
    store: Option<Arc<LocalStore>>,
    dir: PathBuf,
    settings: LocalSettings,
    stop: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<()>>,
}

impl Server {
    pub async fn start(dir: &Path) -> Server {
        Server::start_with(dir, LocalSettings::default(), None, anybody()).await
    }

    pub async fn start_with(
        dir: &Path,
        settings: LocalSettings,
        tls: Option<Arc<rustls::ServerConfig>>,
        authenticate: Arc<Authenticate>,
    ) -> Server {
        Server::start_at(None, dir, settings, tls, authenticate).await
    }

    pub async fn start_at(
        address: Option<SocketAddr>,
        dir: &Path,
        settings: LocalSettings,
        tls: Option<Arc<rustls::ServerConfig>>,
        authenticate: Arc<Authenticate>,
    ) -> Server {
        let address = address.unwrap_or((Ipv4Addr::LOCALHOST, 0).into());
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = Some(try_open(dir, settings).unwrap());
        let mut server = Server { address, store, dir: dir.into(), settings, stop: None, served: None };
        server.serve(listener, tls, authenticate);
        server
    }

    fn serve(
        &mut self,
        listener: TcpListener,
        tls: Option<Arc<rustls::ServerConfig>>,
        authenticate: Arc<Authenticate>,
    ) {
        let (stop, stopped) = oneshot::channel::<()>();
        let store = self.store.clone().unwrap();
        let task = tokio::spawn(async move {
            serve(listener, tls, store, authenticate, async { drop(stopped.await) }).await.unwrap();
        });
        (self.stop, self.served) = (Some(stop), Some(task));
    }

    /// Ends all streams and closes the store, then opens it again at the same address.
    pub async fn restart(&mut self) {
        drop(self.stop.take());
        self.served.take().unwrap().await.unwrap();
        let held = self.store.take().unwrap();
        let weak = Arc::downgrade(&held);
        drop(held);
        // The lock of the log goes with the last reference, which the end of a call may hold a moment longer.
        while weak.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let listener = TcpListener::bind(self.address).await.unwrap();
        let (dir, settings) = (self.dir.clone(), self.settings);
        self.store = Some(tokio::task::spawn_blocking(move || reopen(&dir, settings)).await.unwrap());
        self.serve(listener, None, anybody());
    }

    pub fn settings(&self) -> ClientSettings {
        ClientSettings { try_ms: 5_000, ..ClientSettings::new([self.address.to_string()]) }
    }

    pub fn client(&self) -> Client {
        Client::new(self.settings()).unwrap()
    }
}

/// Opens again what is being closed.
fn reopen(dir: &Path, settings: LocalSettings) -> Arc<LocalStore> {
    loop {
        match try_open(dir, settings) {
            Ok(store) => return store,
            Err(Error::Order(weir_order::Error::Locked { .. })) => {
                std::thread::sleep(Duration::from_millis(5))
            }
            Err(error) => panic!("{error}"),
        }
    }
}

pub async fn table(client: &Client, name: &str, options: TableOptions) {
    let outcome = client.submit(Operation::CreateTable { table: name.into(), options }).await.unwrap();
    assert!(matches!(outcome, Outcome::Written { .. }), "{outcome:?}");
}
