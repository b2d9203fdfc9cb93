# An SFTP server that lies, in place of ssh: names say how.
import struct, sys

i, o = sys.stdin.buffer, sys.stdout.buffer
SIZE = 300000
DIRS = [b'/srv', b'/srv/endless', b'/srv/odd', b'/srv/nothing', b'/srv/bare']


def text(b):
    return struct.pack('>I', len(b)) + b


def send(kind, b):
    o.write(struct.pack('>IB', len(b) + 1, kind) + b)
    o.flush()


def attributes(mode=0o100644, size=SIZE, at=1):
    return struct.pack('>IQIIIII', 15, size, 0, 0, mode, at, at)


def status(number, code):
    send(101, struct.pack('>II', number, code) + text(b'x') + text(b''))


def names(number, all):
    send(104, struct.pack('>II', number, len(all)) + b''.join(text(n) + text(n) + a for n, a in all))


def take(n):
    b = i.read(n)
    if len(b) < n:
        sys.exit()
    return b


def true(at, n):
    return bytes((k * 7 + k // 251) % 256 for k in range(at, min(at + n, SIZE)))


MANY = [(b'e%d_' % j + b'x' * 230, attributes()) for j in range(1000)]
ENDLESS = struct.pack('>I', len(MANY)) + b''.join(text(n) + text(b'') + a for n, a in MANY)
handles, pages, count = {}, {}, 0
while True:
    length, = struct.unpack('>I', take(4))
    packet = take(length)
    kind = packet[0]
    if kind == 1:
        send(2, struct.pack('>I', 3))
        continue
    number, = struct.unpack('>I', packet[1:5])
    n, = struct.unpack('>I', packet[5:9])
    x, rest = packet[9:9 + n], packet[9 + n:]
    name = x.split(b'/')[-1]
    if kind == 16:
        names(number, [(b'/srv', attributes(0o40755))])
    elif kind in (17, 7):
        if x in DIRS:
            send(105, struct.pack('>I', number) + attributes(0o40755))
        elif name == b'sizeless':
            send(105, struct.pack('>IIII', number, 4, 0o100644, 0)[:12])
        elif name == b'giant':
            send(105, struct.pack('>I', number) + attributes(size=2**63 + 5))
        elif name == b'nowhere':
            status(number, 2)
        else:
            send(105, struct.pack('>I', number) + attributes())
    elif kind == 8:
        send(105, struct.pack('>I', number) + attributes())
    elif kind == 11:
        count += 1
        handle = b'd%d' % count
        handles[handle], pages[handle] = x, 0
        send(102, struct.pack('>I', number) + text(handle))
    elif kind == 12:
        folder = handles.get(x, b'')
        pages[x] = pages.get(x, 0) + 1
        if folder.endswith(b'endless'):
            send(104, struct.pack('>I', number) + ENDLESS)
        elif folder.endswith(b'nothing'):
            names(number, [])
        elif pages[x] > 1:
            status(number, 1)
        elif folder.endswith(b'odd'):
            odd = [b'ok', b'..', b'.', b'', b'../up', b'/etc/passwd', b'a/b', b'n\0ul', b'L' * 256, b'L' * 5000]
            names(number, [(q, attributes()) for q in odd])
        elif folder.endswith(b'bare'):
            names(number, [(b'honest', struct.pack('>I', 0)), (b'nowhere', struct.pack('>I', 0))])
        else:
            names(number, [(b'honest', attributes())])
    elif kind == 3:
        count += 1
        handles[b'h%d' % count] = x
        send(102, struct.pack('>I', number) + text(b'h%d' % count))
    elif kind == 5:
        at, n = struct.unpack('>QI', rest)
        lie = handles.get(x, b'').split(b'/')[-1]
        right = true(at, n)
        if lie == b'toomuch':
            send(103, struct.pack('>I', number) + text(b'M' * (n + 100)))
        elif lie == b'empty':
            send(103, struct.pack('>I', number) + text(b''))
        elif lie == b'early' and at + n > 200000:
            status(number, 1) if at >= 200000 else send(103, struct.pack('>I', number) + text(right[:200000 - at]))
        elif lie == b'drops':
            send(103, struct.pack('>I', number) + text(b'1'))
        elif lie == b'fine':
            status(number, 0)
        elif lie == b'framed':
            send(103, struct.pack('>I', number) + struct.pack('>I', n + 5000) + b'Z' * n)
        elif lie == b'halves' and n > 1000:
            send(103, struct.pack('>I', number) + text(right[:n // 2]))
        elif not right:
            status(number, 1)
        else:
            send(103, struct.pack('>I', number) + text(right))
    elif kind == 4:
        handles.pop(x, None)
        status(number, 0)
    else:
        status(number, 0 if kind == 6 else 8)
