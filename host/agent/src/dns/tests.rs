use super::cache::{ANSWERS_MAX, SCOPES_MAX};
use super::directory::{decide_for_agent, only_of_network};
use super::message::{
    Carrier, PAYLOAD_BYTES_MAX, Received, encode_answer, match_answer, own_query, parse_query,
};
use super::*;
use crate::mirror::Mirror;
use crate::testing::{VNI, context, label, location, network, port_entry};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query as Asked};
use hickory_proto::rr::rdata::{A, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_model::entry::{GatewayEntry, UnderlaysEntry, member_bucket};
use weir_model::{Entry, Key, Version};

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn question(text: &str, kind: RecordType) -> Question {
    Question { name: name(text), kind }
}

fn mirror() -> Mirror {
    let mut mirror = Mirror::default();
    let mut put = |key: Key, entry: Entry| assert!(mirror.apply(&key, Version(1), Some(&entry)).any);
    put(Key::Network { vni: VNI }, Entry::Network(network("red")));
    put(Key::Network { vni: Vni(8) }, Entry::Network(network("blue")));
    put(Key::Port { vni: VNI, endpoint: label("web") }, Entry::Port(port_entry(&["10.0.0.5", "fd00:a::5"])));
    let at = |vni, address: &str| Key::Location { vni, address: address.parse().unwrap() };
    put(at(VNI, "10.0.0.9"), Entry::Location(location("db")));
    put(at(Vni(8), "10.0.0.77"), Entry::Location(location("secret")));
    mirror
}

fn texts(answer: &Answer) -> Vec<String> {
    answer.records.iter().map(|record| record.data.to_string()).collect()
}

fn on_host(text: &str, kind: RecordType) -> Decision {
    decide(&mirror(), Role::Host, &context(), &question(text, kind))
}

fn answered(decision: Decision) -> Answer {
    match decision {
        Decision::Answer(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn own_names_are_answered_from_the_mirror() {
    let a = answered(on_host("web.red.weir.internal.", RecordType::A));
    assert_eq!((a.code, texts(&a)), (ResponseCode::NoError, vec!["10.0.0.5".to_string()]));
    let aaaa = answered(on_host("web.red.weir.internal.", RecordType::AAAA));
    assert_eq!(texts(&aaaa), ["fd00:a::5"]);
    let other = answered(on_host("db.red.weir.internal.", RecordType::A));
    assert_eq!(texts(&other), ["10.0.0.9"]);
    let none = answered(on_host("web.red.weir.internal.", RecordType::TXT));
    assert_eq!((none.code, none.records.len(), none.authority.len()), (ResponseCode::NoError, 0, 1));
    let soa = answered(on_host("red.weir.internal.", RecordType::SOA));
    assert_eq!(soa.records.len(), 1);
}

#[test]
fn reverse_names_are_of_the_own_network_only() {
    let web = answered(on_host("5.0.0.10.in-addr.arpa.", RecordType::PTR));
    assert_eq!(texts(&web), ["web.red.weir.internal."]);
    let v6 = format!("5.{}a.0.0.0.0.0.d.f.ip6.arpa.", "0.".repeat(23));
    let long = answered(on_host(&v6, RecordType::PTR));
    assert_eq!(texts(&long), ["web.red.weir.internal."]);
    let Decision::Gateway { ask } = on_host("77.0.0.10.in-addr.arpa.", RecordType::PTR) else { panic!() };
    assert_eq!(ask.name, name("77.0.0.10.in-addr.arpa.red.weir.internal."));
    let private = answered(on_host("1.1.168.192.in-addr.arpa.", RecordType::PTR));
    assert_eq!(private.code, ResponseCode::NXDomain);
    assert_eq!(on_host("8.8.8.8.in-addr.arpa.", RecordType::PTR), Decision::Upstream);
}

#[test]
fn another_networks_names_do_not_exist() {
    for text in
        ["secret.blue.weir.internal.", "blue.weir.internal.", "weir.internal.", "a.b.red.weir.internal."]
    {
        let answer = answered(on_host(text, RecordType::A));
        assert_eq!((answer.code, answer.records.len()), (ResponseCode::NXDomain, 0), "{text}");
    }
}

#[test]
fn what_a_host_does_not_know_is_asked_of_a_gateway() {
    for (text, kind) in
        [("nobody.red.weir.internal.", RecordType::A), ("db.red.weir.internal.", RecordType::AAAA)]
    {
        let wanted = Decision::Gateway { ask: question(text, kind) };
        assert_eq!(on_host(text, kind), wanted);
        let gateway = decide(&mirror(), Role::Gateway, &context(), &question(text, kind));
        assert!(answered(gateway).records.is_empty(), "a gateway knows that there is none");
    }
    assert_eq!(on_host("example.com.", RecordType::A), Decision::Upstream);
}

#[test]
fn a_gateway_tells_agents_of_every_network_by_its_name() {
    let ask = |text: &str, kind| decide_for_agent(&mirror(), &question(text, kind));
    let texts_of = |text: &str, kind| texts(&ask(text, kind).unwrap());
    assert_eq!(texts_of("secret.blue.weir.internal.", RecordType::A), ["10.0.0.77"]);
    assert_eq!(
        texts_of("77.0.0.10.in-addr.arpa.blue.weir.internal.", RecordType::PTR),
        ["secret.blue.weir.internal."]
    );
    let other = ask("77.0.0.10.in-addr.arpa.red.weir.internal.", RecordType::PTR).unwrap();
    assert_eq!(other.code, ResponseCode::NXDomain);
    assert_eq!(ask("x.green.weir.internal.", RecordType::A).unwrap().code, ResponseCode::NXDomain);
    assert_eq!(ask("example.com.", RecordType::A), None);
}

#[test]
fn of_a_gateways_answer_only_what_can_be_true_is_kept() {
    let asked = question("db.red.weir.internal.", RecordType::A);
    let record = |owner: &str, address: &str| {
        Record::from_rdata(name(owner), 3600, RData::A(A(address.parse().unwrap())))
    };
    let answer = Answer {
        records: vec![
            record("db.red.weir.internal.", "10.0.0.9"),
            record("db.red.weir.internal.", "192.0.2.66"),
            record("www.example.com.", "10.0.0.9"),
            Record::from_rdata(asked.name.clone(), 1, RData::TXT(TXT::new(vec!["x".into()]))),
        ],
        ..Answer::code(ResponseCode::NoError)
    };
    let kept = only_of_network(&context(), &asked, &asked, answer);
    assert_eq!(texts(&kept), ["10.0.0.9"]);
    assert_eq!(kept.records[0].ttl, ZONE_TTL_S);
}

fn query_bytes(text: &str, kind: RecordType, payload: Option<u16>) -> Vec<u8> {
    let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Asked::query(name(text), kind));
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

fn many(count: u8) -> Answer {
    let records = (0..count)
        .map(|n| Record::from_rdata(name("web.red.weir.internal."), 5, RData::A(A([10, 0, 0, n].into()))))
        .collect();
    Answer { records, ..Answer::code(ResponseCode::NoError) }
}

#[test]
fn an_answer_fits_what_the_asker_takes() {
    let size = |payload: Option<u16>, count: u8| {
        let query = parse_query(&query_bytes("web.red.weir.internal.", RecordType::A, payload)).unwrap();
        let (bytes, cut) = encode_answer(&query, &many(count)).unwrap();
        let message = Message::from_vec(&bytes).unwrap();
        assert_eq!(message.metadata.truncation, cut);
        assert_eq!(message.edns.is_some(), payload.is_some());
        assert_eq!((message.metadata.id, message.metadata.recursion_desired), (0x1234, true));
        (bytes.len(), cut)
    };
    assert!(!size(None, 20).1);
    assert!(size(None, 40).1, "512 bytes without EDNS");
    assert!(!size(Some(1232), 40).1);
    assert!(size(Some(600), 40).1);
    assert!(size(Some(65_535), 120).1, "never over our own limit");
    assert!(size(Some(1), 20).0 <= 512);
}

#[test]
fn odd_queries_get_their_code_and_answers_get_nothing() {
    let good = query_bytes("web.red.weir.internal.", RecordType::A, None);
    let code = |bytes: &[u8]| match parse_query(bytes) {
        Err(Refused::Reply(reply)) => {
            let message = Message::from_vec(&reply).unwrap();
            assert_eq!((message.metadata.id, message.metadata.message_type), (0x1234, MessageType::Response));
            Some(message.metadata.response_code)
        }
        Err(Refused::Drop) => None,
        Ok(_) => panic!("this is not to be answered"),
    };
    let mut response = good.clone();
    response[2] |= 0x80;
    assert_eq!(code(&response), None);
    assert_eq!(code(&good[..11]), None);
    let mut many_questions = good.clone();
    many_questions[4..6].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(code(&many_questions), Some(ResponseCode::FormErr));
    assert_eq!(code(&good[..20]), Some(ResponseCode::FormErr));
    let mut status = good.clone();
    status[2] |= 0x10;
    assert_eq!(code(&status), Some(ResponseCode::NotImp));
    let mut chaos = good.clone();
    let at = chaos.len() - 1;
    chaos[at] = 3;
    assert_eq!(code(&chaos), Some(ResponseCode::Refused));
    assert_eq!(code(&query_bytes("red.weir.internal.", RecordType::AXFR, None)), Some(ResponseCode::NotImp));
    let mut version = query_bytes("web.red.weir.internal.", RecordType::A, Some(1232));
    let at = version.len() - 5;
    version[at] = 1;
    assert_eq!(code(&version).map(u16::from), Some(16), "BADVERS");
}

#[test]
fn only_the_answer_to_the_own_query_matches() {
    let asked = question("db.red.weir.internal.", RecordType::A);
    let bytes = own_query(77, &asked, false).unwrap();
    let query = parse_query(&bytes).unwrap();
    let (reply, _) = encode_answer(&query, &many(1)).unwrap();
    let received = |bytes: &[u8], id, asked: &Question| match_answer(bytes, id, asked);
    assert!(matches!(received(&reply, 77, &asked), Received::Answer(_)));
    assert_eq!(received(&reply, 78, &asked), Received::Other);
    let other = |text, kind| received(&reply, 77, &question(text, kind));
    assert_eq!(other("db.red.weir.internal.", RecordType::AAAA), Received::Other);
    assert_eq!(other("dc.red.weir.internal.", RecordType::A), Received::Other);
    assert_eq!(received(&bytes, 77, &asked), Received::Other, "a query is no answer");
    let (cut, truncated) = encode_answer(&query, &many(200)).unwrap();
    assert!(truncated && received(&cut, 77, &asked) == Received::Cut);
}

#[test]
fn the_cache_is_bounded_apart_and_forgets() {
    let mut cache = Cache::default();
    let asked = question("db.red.weir.internal.", RecordType::A);
    let scope = Scope::Network(VNI);
    cache.put(scope, &asked, &many(1), 10_000);
    assert_eq!(cache.get(scope, &asked, 12_500).unwrap().records[0].ttl, 3);
    assert_eq!(cache.get(Scope::Network(Vni(8)), &asked, 10_000), None);
    assert_eq!(cache.get(Scope::Outside, &asked, 10_000), None);
    assert_eq!(cache.get(scope, &asked, 15_000), None);
    cache.put(scope, &asked, &Answer::code(ResponseCode::ServFail), 20_000);
    assert_eq!(cache.get(scope, &asked, 20_000), None, "a failure is not kept");
    cache.put(scope, &asked, &Answer::code(ResponseCode::NXDomain), 20_000);
    assert_eq!(cache.get(scope, &asked, 20_999).unwrap().code, ResponseCode::NXDomain);
    assert_eq!(cache.get(scope, &asked, 21_000), None);
    for n in 0..ANSWERS_MAX + 10 {
        cache.put(scope, &question(&format!("n{n}.red.weir.internal."), RecordType::A), &many(1), 0);
    }
    assert_eq!(cache.len(), ANSWERS_MAX);
    for n in 0..SCOPES_MAX as u32 + 10 {
        cache.put(Scope::Network(Vni(n + 100)), &asked, &many(1), 0);
    }
    assert!(cache.len() <= ANSWERS_MAX + SCOPES_MAX);
}

/// A service on a host whose gateway is `gateway`.
fn service(gateway: SocketAddr, upstream: Vec<SocketAddr>) -> Service {
    let shared = Shared::new(label("host-1"));
    let mut mirror = mirror();
    let gateways = vec![GatewayEntry { name: label("gw"), underlay: gateway.ip() }];
    mirror.apply(&Key::Gateways, Version(1), Some(&Entry::Gateways(gateways)));
    shared.change_mirror(|old| *old = mirror);
    shared.set_synced();
    let (role, gateway_port) = (Role::Host, gateway.port());
    Service::new(Arc::new(shared), Settings { role, gateway_port, underlay: None, upstream })
}

async fn resolve(service: &Service, text: &str, kind: RecordType) -> Message {
    let bytes = match service.begin(&context(), &query_bytes(text, kind, Some(1232)), Carrier::Datagram) {
        Begun::Now(bytes) => bytes,
        Begun::Later(pending) => service.finish(pending).await.unwrap(),
        Begun::Nothing => panic!("dropped"),
    };
    assert!(bytes.len() <= usize::from(PAYLOAD_BYTES_MAX));
    Message::from_vec(&bytes).unwrap()
}

#[tokio::test]
async fn a_gateways_listener_answers_through_a_host_and_is_asked_once() {
    let shared = Arc::new(Shared::new(label("gw-1")));
    let mut all = mirror();
    let key = Key::Location { vni: VNI, address: "10.0.0.42".parse().unwrap() };
    all.apply(&key, Version(9), Some(&Entry::Location(location("far"))));
    shared.change_mirror(|old| *old = all);
    shared.set_synced();
    let probe = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    drop(probe);
    let listener = tokio::spawn(listener::run(shared.clone(), address));
    let host = service(address, vec![]);
    let mut reply = resolve(&host, "far.red.weir.internal.", RecordType::A).await;
    while reply.metadata.response_code == ResponseCode::ServFail {
        reply = resolve(&host, "far.red.weir.internal.", RecordType::A).await;
    }
    assert_eq!(reply.answers[0].data.to_string(), "10.0.0.42");
    let served = shared.metrics.dns_served.get();
    resolve(&host, "far.red.weir.internal.", RecordType::A).await;
    assert_eq!((shared.metrics.dns_served.get(), host.metrics().dns_cached.get()), (served, 1));
    let reverse = resolve(&host, "42.0.0.10.in-addr.arpa.", RecordType::PTR).await;
    assert_eq!(reverse.answers[0].data.to_string(), "far.red.weir.internal.");
    assert_eq!(reverse.answers[0].name, name("42.0.0.10.in-addr.arpa."));
    let missing = resolve(&host, "nobody.red.weir.internal.", RecordType::A).await;
    assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(host.metrics().dns_outstanding.get(), 0);
    listener.abort();
}

#[tokio::test]
async fn a_gateways_listener_answers_switches_only_once_it_knows_where_they_are() {
    let shared = Arc::new(Shared::new(label("gw-1")));
    let (known, stranger): (IpAddr, IpAddr) = ("127.0.0.7".parse().unwrap(), "127.0.0.8".parse().unwrap());
    shared.change_mirror(|mirror| {
        mirror.apply(
            &Key::Switches { bucket: member_bucket(known) },
            Version(2),
            Some(&Entry::Switches(vec![known])),
        );
    });
    shared.set_synced();
    let probe = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    drop(probe);
    let listener = tokio::spawn(listener::run(shared.clone(), address));
    let asks = async |from: IpAddr| {
        let socket = tokio::net::UdpSocket::bind((from, 0)).await.unwrap();
        socket.connect(address).await.unwrap();
        let mut buffer = [0; 2048];
        for _ in 0..20 {
            let query = query_bytes("nobody.red.weir.internal.", RecordType::A, None);
            let refused = socket.send(&query).await.is_err();
            let wait = std::time::Duration::from_millis(500);
            // Until the listener runs the port is unreachable.
            match tokio::time::timeout(wait, socket.recv(&mut buffer)).await {
                Ok(Ok(_)) => return true,
                Ok(Err(_)) => tokio::time::sleep(wait / 10).await,
                Err(_) if !refused => return false,
                Err(_) => {}
            }
        }
        false
    };
    // A list that is not whole yet shuts nobody out.
    assert!(asks(known).await && asks(stranger).await);
    let whole = Entry::Underlays(UnderlaysEntry::default());
    shared.change_mirror(|mirror| {
        mirror.apply(&Key::Underlays, Version(3), Some(&whole));
    });
    assert!(asks(known).await && !asks(stranger).await);
    assert_eq!(shared.metrics.dns_strangers.get(), 1);
    // A host that left is a stranger.
    shared.change_mirror(|mirror| {
        mirror.apply(&Key::Switches { bucket: member_bucket(known) }, Version(4), None);
    });
    assert!(!asks(known).await);
    listener.abort();
}

#[tokio::test]
async fn without_a_resolver_names_outside_are_refused_and_a_dead_gateway_fails() {
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let host = service(silent.local_addr().unwrap(), vec![]);
    let outside = resolve(&host, "example.com.", RecordType::A).await;
    assert_eq!(outside.metadata.response_code, ResponseCode::Refused);
    let dead = resolve(&host, "far.red.weir.internal.", RecordType::A).await;
    assert_eq!(dead.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(resolve(&host, "web.red.weir.internal.", RecordType::A).await.answers.len(), 1);
}

#[tokio::test]
async fn what_no_datagram_holds_is_asked_over_tcp_and_given_whole_on_a_stream() {
    let datagrams = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = datagrams.local_addr().unwrap();
    let streams = tokio::net::TcpListener::bind(address).await.unwrap();
    let server = tokio::spawn(async move {
        let mut buffer = [0; 2048];
        let (length, asker) = datagrams.recv_from(&mut buffer).await.unwrap();
        let query = parse_query(&buffer[..length]).unwrap();
        let (cut, truncated) = encode_answer(&query, &many(200)).unwrap();
        assert!(truncated);
        datagrams.send_to(&cut, asker).await.unwrap();
        let (mut stream, _) = streams.accept().await.unwrap();
        let mut bytes = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut bytes).await.unwrap();
        let query = parse_query(&bytes).unwrap().carried_by(Carrier::Stream);
        let (whole, truncated) = encode_answer(&query, &many(200)).unwrap();
        assert!(!truncated);
        stream.write_all(&framing::frame(&whole).unwrap()).await.unwrap();
    });
    let host = service("127.0.0.1:9".parse().unwrap(), vec![address]);
    let query = query_bytes("www.example.com.", RecordType::A, Some(1232));
    let Begun::Later(pending) = host.begin(&context(), &query, Carrier::Stream) else { panic!() };
    let whole = Message::from_vec(&host.finish(pending).await.unwrap()).unwrap();
    assert_eq!((whole.answers.len(), whole.metadata.truncation), (200, false));
    assert_eq!((host.metrics().dns_upstream_streams.get(), host.metrics().dns_truncated.get()), (1, 0));
    server.await.unwrap();
}

#[tokio::test]
async fn a_forged_answer_is_passed_over() {
    let resolver = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = resolver.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let mut buffer = [0; 2048];
        let (length, asker) = resolver.recv_from(&mut buffer).await.unwrap();
        let query = parse_query(&buffer[..length]).unwrap();
        let (good, _) = encode_answer(&query, &many(1)).unwrap();
        let mut forged = good.clone();
        forged[0] ^= 0xff;
        resolver.send_to(&forged, asker).await.unwrap();
        resolver.send_to(b"noise", asker).await.unwrap();
        resolver.send_to(&good, asker).await.unwrap();
    });
    let host = service("127.0.0.1:9".parse().unwrap(), vec![address]);
    let reply = resolve(&host, "www.example.com.", RecordType::A).await;
    assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 1));
    assert_eq!(host.metrics().dns_mismatched.get(), 2);
    server.await.unwrap();
}

#[tokio::test]
async fn one_port_cannot_take_all_places() {
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let host = service(silent.local_addr().unwrap(), vec![]);
    let ask = |n: usize| {
        host.begin(
            &context(),
            &query_bytes(&format!("n{n}.red.weir.internal."), RecordType::A, None),
            Carrier::Datagram,
        )
    };
    let mut pending = Vec::new();
    for n in 0..OUTSTANDING_PER_PORT_MAX {
        match ask(n) {
            Begun::Later(one) => pending.push(one),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(ask(1000), Begun::Now(_)), "an error at once");
    assert_eq!(host.metrics().dns_busy.get(), 1);
    let other = PortContext { endpoint: label("db"), ..context() };
    assert!(matches!(
        host.begin(&other, &query_bytes("x.red.weir.internal.", RecordType::A, None), Carrier::Datagram),
        Begun::Later(_)
    ));
}

#[test]
fn any_datagram_is_answered_or_dropped() {
    let host = service("127.0.0.1:9".parse().unwrap(), vec![]);
    let seed = query_bytes("web.red.weir.internal.", RecordType::A, Some(1232));
    let asked = question("web.red.weir.internal.", RecordType::A);
    // A panic ends the test, so nobody sees what it left.
    let host = std::panic::AssertUnwindSafe(host);
    bolero::check!().for_each(|bytes: &[u8]| {
        let host = &host;
        let mutated: Vec<u8> =
            seed.iter().zip(bytes.iter().chain(std::iter::repeat(&0))).map(|(a, b)| a ^ b).collect();
        for payload in [bytes, &mutated, &[&seed[..12], bytes].concat()] {
            if let Begun::Now(reply) = host.begin(&context(), payload, Carrier::Datagram) {
                assert!(reply.len() <= usize::from(PAYLOAD_BYTES_MAX));
                assert_eq!(reply[..2], payload[..2]);
            }
            let _ = listener::answer(&host.shared, payload);
            let _ = match_answer(payload, 0x1234, &asked);
        }
    });
}
