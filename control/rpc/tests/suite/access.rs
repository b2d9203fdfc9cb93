use super::server::{Server, table};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use std::collections::BTreeSet;
use std::sync::Arc;
use tonic::Status;
use weir_rpc::Error;
use weir_rpc::access::{Identity, May, Namespaces};
use weir_rpc::client::{Client, ClientSettings, WatchFilter};
use weir_rpc::local::LocalSettings;
use weir_rpc::server::Authenticate;
use weir_rpc::tls::Peer;
use weir_store::{Answer, Query, Refusal, Select, TableOptions};

struct Made {
    certificate: rustls::pki_types::CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    roots: Arc<RootCertStore>,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        Authority { issuer: Issuer::new(params, key), roots: Arc::new(roots) }
    }

    fn make(&self, name: &str) -> Made {
        self.make_from(name, 1975)
    }

    /// Good from the first day of a year on.
    fn make_from(&self, name: &str, year: i32) -> Made {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        Made { certificate, key: PrivatePkcs8KeyDer::from(key.serialize_der()).into() }
    }

    fn server(&self) -> Arc<rustls::ServerConfig> {
        self.server_showing(self.make("store.test"))
    }

    fn server_showing(&self, Made { certificate, key }: Made) -> Arc<rustls::ServerConfig> {
        let verifier =
            WebPkiClientVerifier::builder_with_provider(self.roots.clone(), provider()).build().unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier);
        Arc::new(config.with_single_cert(vec![certificate], key).unwrap())
    }

    fn client(&self, name: &str) -> Arc<rustls::ClientConfig> {
        let Made { certificate, key } = self.make(name);
        let config = rustls::ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone());
        Arc::new(config.with_client_auth_cert(vec![certificate], key).unwrap())
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Who has a certificate may use the namespace that its bearer token names; nobody else anything.
fn by_token() -> Arc<Authenticate> {
    Arc::new(|extensions, metadata| {
        let shown = extensions.get::<Peer>().is_some_and(|peer| peer.certificate.is_some());
        let token = metadata.get("authorization").and_then(|value| value.to_str().ok());
        match token.and_then(|token| token.strip_prefix("Bearer ")) {
            Some("admin") if shown => Ok(Identity::admin("admin")),
            Some(namespace) if shown => {
                let only = BTreeSet::from([namespace.to_owned()]);
                let may = May::Everything;
                Ok(Identity { name: namespace.into(), namespaces: Namespaces::Only(only), may })
            }
            _ => Err(Status::unauthenticated("show a certificate and a token")),
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_namespaces_keep_tenants_apart() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let settings = LocalSettings::default();
    let server = Server::start_with(dir.path(), settings, Some(authority.server()), by_token()).await;
    let as_whom = |token: Option<&str>| ClientSettings {
        tls: Some(authority.client("somebody")),
        server_name: Some("store.test".into()),
        token: token.map(Into::into),
        give_up_ms: 10_000,
        ..server.settings()
    };
    let connect = |token| Client::new(as_whom(token)).unwrap();
    let (red, blue, admin) = (connect(Some("red")), connect(Some("blue")), connect(Some("admin")));
    table(&red, "red/a", TableOptions::default()).await;
    table(&admin, "blue/a", TableOptions::default()).await;
    red.put("red/a", b"k", *b"secret").await.unwrap();
    for error in [
        blue.put("red/a", b"k", *b"mine").await.unwrap_err(),
        blue.get("red/a", b"k").await.unwrap_err(),
        blue.call("red/f", vec![]).await.unwrap_err(),
        blue.get("resource", b"k").await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, Error::Refused(Refusal::Invalid { problem }) if problem.contains("may not use")),
            "{error}"
        );
    }
    let list = blue.read(Query::Tables { namespace: String::new() }, 0).await.unwrap().1;
    assert!(matches!(list, Answer::Refused(_)), "{list:?}");
    let apps = Query::Get { table: "resource".into(), key: b"k".into(), select: Select::Whole };
    assert_eq!(admin.read(apps, 0).await.unwrap().1, Answer::Absent { hops: 0 });
    // Nothing of another's tables is in a watch, asked for by name or not.
    let filter = WatchFilter { table: "red/a".into(), key_prefix: vec![] };
    let mut watches = [blue.watch(None, vec![]), blue.watch(None, vec![filter])];
    for watch in &mut watches {
        watch.next().await.unwrap();
    }
    red.put("red/a", b"k", *b"more").await.unwrap();
    let last = blue.put("blue/a", b"k", *b"own").await.unwrap();
    for watch in &mut watches {
        while watch.version().unwrap() < last {
            let changes = watch.next().await.unwrap();
            assert!(changes.iter().flat_map(|c| &c.writes).all(|w| &*w.table == "blue/a"));
        }
    }
    let error = connect(None).put("red/a", b"k", *b"1").await.unwrap_err();
    assert!(matches!(&error, Error::Denied(text) if text.contains("show a certificate")), "{error}");
    // No certificate of this authority: TLS itself refuses.
    let stranger =
        ClientSettings { tls: Some(Authority::new().client("x")), give_up_ms: 50, ..as_whom(Some("admin")) };
    let error = Client::new(stranger).unwrap().put("red/a", b"k", *b"1").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whose_clock_makes_a_certificate_bad_is_told_so_within_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    // By the clock of this machine; as if that were years behind.
    let tls = authority.server_showing(authority.make_from("store.test", 3000));
    let server = Server::start_with(dir.path(), LocalSettings::default(), Some(tls), by_token()).await;
    let client = Client::new(ClientSettings {
        tls: Some(authority.client("somebody")),
        server_name: Some("store.test".into()),
        token: Some("admin".into()),
        give_up_ms: 200,
        ..server.settings()
    });
    let client = client.unwrap();
    let written = client.put("t/a", b"k", *b"1").await.unwrap_err();
    let watched = client.watch(None, vec![]).next().await.unwrap_err();
    for error in [written, watched] {
        let is_told =
            |text: &str| text.contains("is not valid yet, for") && text.contains("set this clock right");
        assert!(matches!(&error, Error::Unavailable(text) if is_told(text)), "{error}");
    }
}
