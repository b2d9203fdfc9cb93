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

/// Echoes what connections say, and says `hello` first to those that ask for it. Argument: port.
pub const ECHO_SERVER: &str = r#"
import socket, sys, threading
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", int(sys.argv[1]))); s.listen(512)
print("ready", flush=True)
def serve(c):
    while True:
        d = c.recv(4096)
        if not d: return
        c.sendall(d)
while True:
    c, _ = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
"#;

/// Opens connections; for each line of input has all of them say something and hear it again. Arguments: address, port, number.
pub const CONVERSATIONS: &str = r#"
import socket, sys
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
all = [socket.create_connection((address, port), 60) for _ in range(count)]
for c in all: c.settimeout(60)
print("ready", count, flush=True)
number = 0
for line in sys.stdin:
    number += 1
    for index, c in enumerate(all):
        c.sendall(b"%08d%08d" % (index, number))
    equal = 0
    for index, c in enumerate(all):
        equal += c.recv(16, socket.MSG_WAITALL) == b"%08d%08d" % (index, number)
    print("equal", equal, flush=True)
"#;

/// Sends numbered datagrams for ever. Arguments: address, port, pause in seconds.
pub const UDP_SEQUENCE: &str = r#"
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], int(sys.argv[2])))
pause, number, due = float(sys.argv[3]), 0, time.monotonic()
while True:
    s.send(b"%012d" % number); number += 1
    due += pause
    time.sleep(max(0, due - time.monotonic()))
"#;

/// Sends a datagram to each of some ports of each of some addresses, again and again, without haste. Arguments: the first three numbers of the
/// addresses with their dots, the first last number, how many addresses, how many ports.
pub const SCATTER: &str = r#"
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 7000))
prefix, first, addresses, ports = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
to = [(prefix + str(first + a), 8000 + p) for p in range(ports) for a in range(addresses)]
while True:
    for at in range(0, len(to), 32):
        for one in to[at:at + 32]:
            try: s.sendto(b"", one)
            except OSError: pass
        time.sleep(0.004)
"#;

/// Counts numbered datagrams until its input ends; prints how many were sent and lost up to the highest, and the longest gap
/// between two. Argument: port.
pub const UDP_SEQUENCE_SINK: &str = r#"
import socket, sys, select, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
s.bind(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
seen, gap, last = set(), 0.0, None
while True:
    ready, _, _ = select.select([s, sys.stdin], [], [])
    if s in ready:
        number = int(s.recv(100)); now = time.monotonic()
        seen.add(number)
        if last is not None: gap = max(gap, now - last)
        last = now
    elif sys.stdin in ready:
        break
first, end = min(seen), max(seen) + 1
print("sent=%d lost=%d gap_ms=%.1f" % (end - first, end - first - len(seen), gap * 1000), flush=True)
"#;

/// Takes over from a switch so far as it is told, without ever serving. Arguments: socket, hello as hexadecimal digits, step.
pub const HALF_UPGRADE: &str = r#"
import socket, sys, time, struct
path, hello, step = sys.argv[1], bytes.fromhex(sys.argv[2]), sys.argv[3]
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(30)
s.connect(path)
def kind():
    data, fds, _, _ = socket.recv_fds(s, 1 << 17, 200)
    return struct.unpack("<H", data[:2])[0] if data else 0
def until(wanted, word):
    while True:
        got = kind()
        if got == wanted: print(word, flush=True); return
        if got in (0, 3): print("no", flush=True); sys.exit()
say = lambda kind: s.send(struct.pack("<HH", kind, 1))
s.send(hello)
until(2, "welcome")
if step == "hello": sys.exit()
if step == "nonsense": s.send(b"xyz" * 1000); time.sleep(0.1); sys.exit()
say(4); until(7, "copied")
if step == "copy": sys.exit()
say(8); until(16, "frozen")
if step == "freeze": sys.exit()
if step == "refuse": s.send(struct.pack("<HH", 3, 1) + b"\x02no"); time.sleep(10); sys.exit()
time.sleep(60)
"#;
