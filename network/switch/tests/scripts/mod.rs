//! Small programs that run in endpoints.

/// Receives connections for ever; of each prints the SHA-256 of what came. Argument: port.
pub const TCP_SINK: &str = r#"
import socket, hashlib, sys
v6 = len(sys.argv) > 2
s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("::" if v6 else "0.0.0.0", int(sys.argv[1]))); s.listen(16)
print("ready", flush=True)
while True:
    c, _ = s.accept()
    h = hashlib.sha256(); n = 0
    while True:
        d = c.recv(1 << 20)
        if not d: break
        h.update(d); n += len(d)
    c.sendall(h.hexdigest().encode()); c.close()
"#;

/// Sends so many MB of random bytes in so many chunks with pauses, and checks the hash that comes back.
/// Arguments: address, port, megabytes, pause in seconds after each megabyte.
pub const TCP_SOURCE: &str = r#"
import socket, hashlib, sys, os, time
address, port, megabytes, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
s = socket.create_connection((address, port), 30)
s.settimeout(60)
h = hashlib.sha256()
for n in range(megabytes):
    d = os.urandom(1 << 20)
    h.update(d); s.sendall(d)
    if pause: time.sleep(pause)
s.shutdown(socket.SHUT_WR)
got = s.recv(64, socket.MSG_WAITALL).decode()
assert got == h.hexdigest(), (got, h.hexdigest())
print("equal")
"#;

/// Sends back every datagram. Argument: port.
pub const UDP_ECHO: &str = r#"
import socket, sys
v6 = len(sys.argv) > 2
s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("::" if v6 else "0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
while True:
    d, a = s.recvfrom(65536)
    s.sendto(d, a)
"#;

/// Sends a datagram of every size and checks what comes back. Arguments: address, port, first, last, step.
pub const UDP_SIZES: &str = r#"
import socket, sys, os
address, port, first, last, step = sys.argv[1], *map(int, sys.argv[2:6])
s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
s.connect((address, port)); s.settimeout(1)
for size in list(range(first, last, step)) + [last]:
    d = os.urandom(size)
    for attempt in range(20):
        s.send(d)
        try:
            got = s.recv(65536)
        except TimeoutError:
            continue
        if got == d: break
    else:
        raise SystemExit(f"{size} bytes did not come back")
print("equal")
"#;

/// Sends one segmented datagram train (UDP_SEGMENT) and checks that every piece comes back in its size.
/// Arguments: address, port, bytes of a piece, number of whole pieces, bytes of the last.
pub const UDP_TRAIN: &str = r#"
import socket, sys, os
address, port, size, count, last = sys.argv[1], *map(int, sys.argv[2:6])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((address, port)); s.settimeout(2)
s.send(b"first"); assert s.recv(100) == b"first"
s.setsockopt(17, 103, size)
d = os.urandom(size * count + last)
s.send(d)
want = {d[at:at + size] for at in range(0, len(d), size)}
got = set()
while got != want:
    piece = s.recv(65536)
    assert piece in want, len(piece)
    got.add(piece)
print("equal")
"#;

/// Watches Geneve packets of a host's device; prints the types of their class 0xff57 options, sorted, as
/// `source type ...` lines each time a line can be read. Argument: device.
pub const GENEVE_OPTIONS: &str = r#"
import socket, sys, select
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
s.bind((sys.argv[1], 0))
print("ready", flush=True)
seen = {}
while True:
    ready, _, _ = select.select([s, sys.stdin], [], [])
    if s in ready:
        d = s.recv(2048)
        if len(d) > 50 and d[12:14] == b"\x08\x00" and d[23] == 17 and d[36:38] == b"\x17\xc1":
            kinds = seen.setdefault(socket.inet_ntoa(d[26:30]), set())
            at, end = 50, 50 + (d[42] & 63) * 4
            while at < end:
                if d[at:at + 2] == b"\xff\x57": kinds.add(d[at + 2])
                at += 4 + (d[at + 3] & 31) * 4
    elif sys.stdin in ready:
        break
for source, kinds in sorted(seen.items()):
    print(source, *("%02x" % kind for kind in sorted(kinds)))
"#;
