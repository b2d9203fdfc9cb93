//! A server that takes calls and does not answer them.

use super::*;
use std::io::Read;
use std::net::TcpListener;

#[test]
fn a_look_has_one_time_however_many_connections_were_kept() {
    const KEPT: usize = 8;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server {
        address: address.ip(),
        nfs_port: address.port(),
        mount_port: Some(address.port()),
        path: "/".into(),
    };
    let member = Member::new(0, server, Duration::from_millis(100));
    let mut kept = Vec::new();
    for _ in 0..KEPT {
        member.idle.lock().unwrap().push(TcpStream::connect(address).unwrap());
        kept.push(listener.accept().unwrap().0);
    }
    let error = member.look(&Handle::new(b"root").unwrap(), None).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
    // The others were asked nothing, and are there for the next call.
    assert_eq!(member.idle.lock().unwrap().len(), KEPT - 1);
    let mut asked = 0;
    for stream in &mut kept {
        stream.set_nonblocking(true).unwrap();
        asked += usize::from(stream.read(&mut [0; 512]).is_ok_and(|bytes| bytes > 0));
    }
    assert_eq!(asked, 1);
}
