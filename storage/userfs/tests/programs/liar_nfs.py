# An NFSv3 server (with MOUNT at the same port) that lies: names say how. Says its port, and serves until its input ends.
import socket, struct, sys, threading

SIZE = 300000
FOLDER, FILE = 2, 1
FOLDERS = [b'same', b'round', b'back', b'hollow', b'names', b'endless', b'record']
NAMES = ['honest', 'halves', 'toomuch', 'empty', 'early', 'drops', 'counted', 'giant']


def true(at, n):
    return bytes((k * 7 + k // 251) % 256 for k in range(at, min(at + n, SIZE)))


def opaque(b):
    return struct.pack('>I', len(b)) + b + b'\0' * (-len(b) % 4)


def attributes(kind, size, number):
    return struct.pack('>5I', kind, 0o755, 1, 0, 0) + struct.pack('>QQIIQQ', size, size, 0, 0, 7, number) + struct.pack('>6I', 1, 0, 1, 0, 1, 0)


def attributes_of(handle):
    if handle == b'root' or handle in FOLDERS:
        return attributes(FOLDER, 4096, 2)
    size = 2**63 + 5 if handle == b'giant' else SIZE
    return attributes(FILE, size, 10 + (NAMES.index(handle.decode()) if handle.decode() in NAMES else 99))


def maybe(handle):
    return struct.pack('>I', 1) + attributes_of(handle)


def take(b):
    n, = struct.unpack('>I', b[:4])
    return b[4:4 + n], b[4 + n + (-n % 4):]


def read(handle, rest):
    at, n = struct.unpack('>QI', rest[:12])
    right, count, end = true(at, n), None, at + n >= SIZE
    lie = handle.decode()
    if lie == 'toomuch':
        right = right + b'M' * 100
    elif lie == 'empty':
        right, end = b'', False
    elif lie == 'early' and at + n > 200000:
        right, end = right[:max(0, 200000 - at)], True
    elif lie == 'drops':
        right, end = right[:len(right) // 2], True
    elif lie == 'counted':
        count = len(right) + 8
    elif lie == 'halves' and n > 1000:
        right, end = right[:n // 2], False
    return struct.pack('>I', 0) + maybe(handle) + struct.pack('>II', len(right) if count is None else count, int(end)) + opaque(right)


def listing(rest):
    cookie, = struct.unpack('>Q', rest[:8])
    body = struct.pack('>I', 0) + maybe(b'root') + b'verifier'
    names = ['ok', '..', '.', '', '../up', 'a/b', 'n\0ul', 'L' * 300] if not cookie else []
    for i, name in enumerate(names):
        body += struct.pack('>IQ', 1, 5) + opaque(name.encode()) + struct.pack('>Q', cookie + i + 1)
        body += maybe(b'honest') + struct.pack('>I', 1) + opaque(b'honest')
    return body + struct.pack('>II', 0, 1)


def page(cookies, names):
    body = struct.pack('>I', 0) + maybe(b'root') + b'verifier'
    for cookie, name in zip(cookies, names):
        body += struct.pack('>IQ', 1, 5) + opaque(name) + struct.pack('>QII', cookie, 0, 0)
    return body + struct.pack('>II', 0, 0)


# Names that no file can have are told fast: nobody asks for their attributes.
ODD = [b'a/%d' % number for number in range(40000)]
GIANT = [b'L' * 60000] * 16


# Listings without an end, by their handles.
def endless(folder, rest):
    cookie, = struct.unpack('>Q', rest[:8])
    if folder == b'same':
        return page([7], [b'honest'])
    if folder == b'round':
        return page([cookie % 3 + 1], [b'honest'])
    if folder == b'back':
        return page([0], [b'honest'])
    if folder == b'hollow':
        return page([], [])
    names = GIANT if folder == b'names' else ODD
    return page(range(cookie + 1, cookie + 1 + len(names)), names)


def answer(program, procedure, body):
    if procedure == 0:
        return b''
    if program == 100005:
        return struct.pack('>I', 0) + opaque(b'root') + struct.pack('>II', 1, 1) if procedure == 1 else b''
    handle, rest = take(body)
    if procedure == 1:
        return struct.pack('>I', 0) + attributes_of(handle)
    if procedure == 3:
        name = take(rest)[0]
        if name.decode() not in NAMES and name not in FOLDERS:
            return struct.pack('>I', 2) + maybe(b'root')
        return struct.pack('>I', 0) + opaque(name) + maybe(name) + maybe(b'root')
    if procedure == 6:
        return read(handle, rest)
    if procedure == 17:
        return endless(handle, rest) if handle in FOLDERS else listing(rest)
    if procedure == 19:
        return struct.pack('>I', 0) + maybe(handle) + struct.pack('>7I', 65536, 65536, 1, 65536, 65536, 1, 65536) + \
            struct.pack('>Q', 2**40) + struct.pack('>III', 0, 1, 27)
    return struct.pack('>I', 10004)


def serve(line):
    with line:
        stream = line.makefile('rb')
        while True:
            head = stream.read(4)
            if len(head) < 4:
                return
            call = stream.read(struct.unpack('>I', head)[0] & 0x7fffffff)
            number, _, _, program, _, procedure = struct.unpack('>6I', call[:24])
            _, rest = take(call[28:])
            _, rest = take(rest[4:])
            if program == 100003 and procedure == 17 and take(rest)[0] == b'record':
                # The mark of a record that would be 2 GB, and its begin.
                line.sendall(struct.pack('>I', 0xffffffff) + b'\0' * 4096)
                continue
            told = struct.pack('>6I', number, 1, 0, 0, 0, 0) + answer(program, procedure, rest)
            line.sendall(struct.pack('>I', len(told) | 0x80000000) + told)


def listen(listener):
    while True:
        line, _ = listener.accept()
        threading.Thread(target=serve, args=(line,), daemon=True).start()


listener = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=listen, args=(listener,), daemon=True).start()
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
