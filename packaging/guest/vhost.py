"""A virtual machine's side of vhost-user, as small as it can be: lends a memory file with one queue each way at a socket, asks over it who has
an address, sends an echo request there, and waits for the reply. What it says last is what a person reads.

    vhost.py SOCKET|listen:SOCKET MAC OWN-ADDRESS ADDRESS
"""
import mmap, os, select, socket, struct, sys, time

GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE = 1, 2, 3, 5
SET_NUM, SET_ADDR, SET_BASE, SET_KICK, SET_CALL = 8, 9, 10, 12, 13
VERSION_1 = 1 << 32
SIZE, PIECE, HEADER = 64, 2048, 12
MEMORY = 1 << 20
BASE = 0x7000_0000_0000  # where the file is in this one's own addresses, as it says

where, mac, own, peer = sys.argv[1], bytes.fromhex(sys.argv[2].replace(":", "")), *map(socket.inet_aton, sys.argv[3:5])
# Whoever has us checked says how long a check may take.
patience = float(os.environ.get("patience", 120)) / 6
end = time.monotonic() + patience


def connect():
    if where.startswith("listen:"):
        path = where[7:]
        if os.path.exists(path):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(patience)
        return listener.accept()[0]
    found = socket.socket(socket.AF_UNIX)
    found.connect(where)
    return found


wire = connect()
wire.settimeout(patience / 2)


def say(request, body=b"", fds=()):
    message = struct.pack("<III", request, 1, len(body)) + body
    socket.send_fds(wire, [message], list(fds))


def ask(request):
    say(request)
    answer = b""
    while len(answer) < 20:
        got = wire.recv(20 - len(answer))
        if not got:
            sys.exit("the switch closed the connection")
        answer += got
    return struct.unpack("<Q", answer[12:])[0]


class Queue:
    """Descriptors, available and used ring one behind the other, then a buffer for each descriptor."""

    def __init__(self, index, start):
        self.index, self.start = index, start
        self.avail, self.used = start + 16 * SIZE, start + 16 * SIZE + 1024
        self.buffers = start + 4096
        self.kick, self.call = os.eventfd(0), os.eventfd(0)
        self.given = self.taken = 0

    def set_up(self):
        say(SET_NUM, struct.pack("<II", self.index, SIZE))
        say(SET_BASE, struct.pack("<II", self.index, 0))
        places = (BASE + self.start, BASE + self.used, BASE + self.avail, 0)
        say(SET_ADDR, struct.pack("<IIQQQQ", self.index, 0, *places))
        say(SET_CALL, struct.pack("<Q", self.index), [self.call])
        say(SET_KICK, struct.pack("<Q", self.index), [self.kick])

    def give(self, slot, length, writable):
        struct.pack_into("<QIHH", memory, self.start + 16 * slot, self.buffers + PIECE * slot, length, 2 * writable, 0)
        struct.pack_into("<H", memory, self.avail + 4 + 2 * (self.given % SIZE), slot)
        self.given += 1
        struct.pack_into("<H", memory, self.avail + 2, self.given & 0xFFFF)

    def take(self):
        """The slot and length of what came back."""
        if struct.unpack_from("<H", memory, self.used + 2)[0] == self.taken & 0xFFFF:
            return None
        slot, length = struct.unpack_from("<II", memory, self.used + 4 + 8 * (self.taken % SIZE))
        self.taken += 1
        return slot, length


file = os.memfd_create("guest")
os.ftruncate(file, MEMORY)
memory = mmap.mmap(file, MEMORY)
receive, send = Queue(0, 0), Queue(1, MEMORY // 2)

features = ask(GET_FEATURES)
if not features & VERSION_1:
    sys.exit("the switch offers no VIRTIO 1")
say(SET_OWNER)
say(SET_FEATURES, struct.pack("<Q", VERSION_1))
say(SET_MEM_TABLE, struct.pack("<IIQQQQ", 1, 0, 0, MEMORY, BASE, 0), [file])
for queue in (receive, send):
    queue.set_up()
for slot in range(SIZE):
    receive.give(slot, PIECE, 1)
os.eventfd_write(receive.kick, 1)


def put(frame):
    slot = send.given % SIZE
    at = send.buffers + PIECE * slot
    memory[at : at + HEADER + len(frame)] = bytes(HEADER) + frame
    send.give(slot, HEADER + len(frame), 0)
    os.eventfd_write(send.kick, 1)


def frames():
    """What comes, until the interrupt of the queue has been waited for a second."""
    while True:
        came = receive.take()
        if came is None:
            if not select.select([receive.call], [], [], 1)[0]:
                return
            os.eventfd_read(receive.call)
            continue
        slot, length = came
        at = receive.buffers + PIECE * slot
        frame = bytes(memory[at + HEADER : at + length])
        receive.give(slot, PIECE, 1)
        os.eventfd_write(receive.kick, 1)
        yield frame


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def until(put_it, read_it, what):
    while time.monotonic() < end:
        put_it()
        for frame in frames():
            found = read_it(frame)
            if found:
                return found
    sys.exit(f"no {what} within {patience:.0f} s")


question = b"\xff" * 6 + mac + struct.pack(">HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1) + mac + own + bytes(6) + peer
is_answer = lambda frame: frame[22:28] if frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\2" and frame[28:32] == peer else None
hop = until(lambda: put(question), is_answer, "answer to the question who has the address")

echo = struct.pack(">BBHHH", 8, 0, 0, 7, 1) + b"weir" * 8
echo = echo[:2] + struct.pack(">H", checksum(echo)) + echo[4:]
header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(echo), 0, 0, 64, 1, 0) + own + peer
header = header[:10] + struct.pack(">H", checksum(header)) + header[12:]
request = hop + mac + b"\x08\x00" + header + echo
is_reply = lambda frame: frame[12:14] == b"\x08\x00" and frame[26:30] == peer and frame[34:35] == b"\0" and frame[42:74] == b"weir" * 8
until(lambda: put(request), is_reply, "reply to the echo")
print("the echo came back")
