# archives.py FOLDER KIND...: makes what archives_beside.rs reads: FOLDER/tree, and archives in FOLDER/KIND (healthy, odd, broken, refused). Those that are broken are
# of FOLDER/tree. The end of a name says what the archive is, and ".not-bsdtar" in it who reads it another way than its own program.
import bz2, gzip, io, lzma, os, random, struct, sys, tarfile, warnings, zipfile, zlib

warnings.simplefilter('ignore')

OUT, KINDS = sys.argv[1], sys.argv[2:]
R = random.Random(7)
WHEN = 981173106


def put(kind, name, data):
    if kind not in KINDS:
        return
    os.makedirs(os.path.join(OUT, kind), exist_ok=True)
    with open(os.path.join(OUT, kind, name), 'wb') as f:
        f.write(data)


TREE = {
    'noise': R.randbytes(3000),
    'text': b'a line of text\n' * 900,
    'empty': b'',
    'd/e/' + 'n' * 90: b'q' * 700,
    'd/large': b''.join(R.randbytes(500) + b'z' * 4000 for _ in range(40)),
    'd/Gr\u00fc\u00dfe mit Leerzeichen': 'Gr\u00fc\u00dfe'.encode(),
}
for name, data in TREE.items():
    path = os.path.join(OUT, 'tree', name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'wb') as f:
        f.write(data)


# Tars.
def member(name, size=0, kind=tarfile.REGTYPE, **more):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.mtime, info.mode = size, kind, WHEN, 0o755 if kind == tarfile.DIRTYPE else 0o644
    for key, value in more.items():
        setattr(info, key, value)
    return info


def tar(members, form=tarfile.PAX_FORMAT, headers=None):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w', format=form, pax_headers=headers) as t:
        for info, data in members:
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def tree(prefix=''):
    for name in ('d', 'd/e'):
        yield member(prefix + name, kind=tarfile.DIRTYPE), b''
    for name, data in TREE.items():
        yield member(prefix + name, len(data)), data
    yield member(prefix + 'link', kind=tarfile.SYMTYPE, linkname='d/large', mode=0o777), b''
    yield member(prefix + 'again', kind=tarfile.LNKTYPE, linkname=prefix + 'text'), b''


FORMATS = {'ustar': tarfile.USTAR_FORMAT, 'gnu': tarfile.GNU_FORMAT, 'pax': tarfile.PAX_FORMAT}
for form, number in FORMATS.items():
    put('healthy', form + '.tar', tar(tree(), number))
    put('healthy', form + '.tgz', gzip.compress(tar(tree(), number), 6))
    put('odd', form + ' with dots.tar', tar(tree('./'), number))
    put('odd', form + ' with a slash in front.tar', tar([(member('/f', 3), b'abc')], number))
    if form != 'ustar':
        deep = '/'.join(['x' * 120] * 8)
        put('odd', form + ' long names.tar', tar([(member(deep, 3), b'abc'), (member('s', kind=tarfile.SYMTYPE, linkname='y' * 700), b'')], number))
    twice = [(member('f', 5), b'first'), (member('g', 1), b'g'), (member('f', 6), b'second')]
    put('odd', form + ' a name twice.tar', tar(twice, number))
    put('odd', form + ' without its end.tar', tar([(member('f', 512), b'e' * 512)], number)[:1024 if form != 'pax' else 1024])
    put('odd', form + ' with something behind its end.tar', tar([(member('f', 3), b'abc')], number) + b'J' * 3000)
    put('odd', form + ' two behind each other.tar', tar([(member('f', 3), b'abc')], number) + tar([(member('g', 3), b'abc')], number))
    put('odd', form + ' a folder without an entry.tar', tar([(member('a/b/c', 3), b'abc')], number))
put('odd', 'nothing in it.tar', tar([]))
put('odd', 'deep folders.tar', tar([(member('x/' * 700 + 'f', 3), b'abc')]))
put('odd', 'records for all.tar', tar(tree(), headers={'comment': 'x' * 2000, 'someone.key': 'value'}))
put('odd', 'a size in a record.tar', tar([(member('f', 700, pax_headers={'size': '700', 'mtime': '981173106.5'}), b's' * 700)]))
put('odd', 'before 1970.not-bsdtar.tar', tar([(member('old', 3, mtime=-1000000), b'old')], tarfile.GNU_FORMAT))
for kind in (b'5', b'2', b'1'):
    odd = member('sized', kind=kind, linkname='f' if kind != b'5' else '')
    head = bytearray(odd.tobuf(tarfile.USTAR_FORMAT))
    head[124:136] = b'%011o\0' % 512
    head[148:156] = b' ' * 8
    head[148:156] = b'%06o\0 ' % sum(head)
    whole = tar([(member('f', 3), b'abc')])[:1024] + bytes(head) + tar([(member('g', 3), b'abc')])
    put('odd', 'kind %s with a size.not-bsdtar.tar' % kind.decode(), whole)
put('healthy', 'two members.tgz', (lambda t: gzip.compress(t[:5000]) + gzip.compress(t[5000:]))(tar(tree())))

# Single files.
put('healthy', 'one.gz', gzip.compress(TREE['d/large']))
put('odd', 'several.gz', gzip.compress(b'one') + gzip.compress(b'') + gzip.compress(TREE['text']))
put('odd', 'zeros behind.gz', gzip.compress(TREE['text']) + bytes(1000))
put('odd', 'nothing.gz', gzip.compress(b''))
body = zlib.compressobj(9, 8, -15)
raw = body.compress(TREE['text']) + body.flush()
sums = struct.pack('<II', zlib.crc32(TREE['text']), len(TREE['text']))
full = b'\x1f\x8b\x08\x1f' + struct.pack('<IBB', WHEN, 2, 3) + struct.pack('<H', 4) + b'extr' + b'name\0' + b'a comment\0'
put('odd', 'all fields.gz', full + struct.pack('<H', zlib.crc32(full) & 0xffff) + raw + sums)


# Zips.
class Pipe(io.RawIOBase):
    """Where nobody can go back: sizes and sums come behind the bytes."""

    def __init__(self):
        self.all = b''

    def writable(self):
        return True

    def write(self, data):
        self.all += bytes(data)
        return len(data)


def zipped(members, how, big=False, out=None, comment=b''):
    out = io.BytesIO() if out is None else out
    with zipfile.ZipFile(out, 'w', how) as z:
        z.comment = comment
        for name, mode, data in members:
            info = zipfile.ZipInfo(name, (2001, 2, 3, 4, 5, 6))
            info.compress_type, info.create_system, info.external_attr = how, 3, mode << 16
            with z.open(info, 'w', force_zip64=big) as f:
                f.write(data)
    return out.getvalue() if isinstance(out, io.BytesIO) else out.all


def zip_tree():
    yield 'd/', 0o40755, b''
    for name, data in TREE.items():
        yield name, 0o100644, data
    yield 'link', 0o120777, b'd/large'


WAYS = {'stored': zipfile.ZIP_STORED, 'deflated': zipfile.ZIP_DEFLATED}
for way, how in WAYS.items():
    put('healthy', way + '.zip', zipped(zip_tree(), how))
    put('healthy', way + ' zip64.zip', zipped(zip_tree(), how, True))
    put('healthy', way + ' by a pipe.zip', zipped([m for m in zip_tree() if m[0] != 'link'], how, out=Pipe()))
    put('odd', way + ' with a program in front.not-bsdtar.zip', b'#!/bin/sh\nexec unzip "$0"\n' + zipped(zip_tree(), how))
    put('odd', way + ' with a comment.zip', zipped(zip_tree(), how, comment=b'PK, but not the end' * 20))
    # Which unzip takes for the end, and bsdtar does not.
    put('broken', way + ' with an end in its comment.zip', zipped(zip_tree(), how, comment=b'PK\5\6 not the end' * 20))
    put('odd', way + ' a folder without an entry.zip', zipped([('a/b/c', 0o100644, b'abc')], how))
    put('odd', way + ' a name twice.not-bsdtar.zip', zipped([('f', 0o100644, b'first'), ('f', 0o100644, b'second')], how))
    put('odd', way + ' in dots.zip', zipped([('./f', 0o100644, b'abc'), ('a/./b', 0o100644, b'def')], how))
put('odd', 'nothing in it.not-unzip.zip', zipped([], zipfile.ZIP_STORED))
put('odd', 'more than 65535 members.zip', zipped([('m/%d' % i, 0o100644, b'') for i in range(66000)], zipfile.ZIP_STORED))

# What is not read here.
put('refused', 'a.bz2', bz2.compress(TREE['text']))
put('refused', 'a.tar.bz2', bz2.compress(tar(tree())))
put('refused', 'a.xz', lzma.compress(TREE['text']))
put('refused', 'a.tar.xz', lzma.compress(tar(tree())))
put('refused', 'a.lzma', lzma.compress(tar(tree()), lzma.FORMAT_ALONE))
put('refused', 'a.tar.zst', b'\x28\xb5\x2f\xfd\x04\x00' + R.randbytes(900))
put('refused', 'a.7z', b"7z\xbc\xaf\x27\x1c\0\4" + R.randbytes(900))
put('refused', 'newc.cpio', b'070701' + b'0' * 88 + b'00000006' + b'00000000' + b'hello\0' + bytes(900))
put('refused', 'odc.cpio', b'070707' + b'0' * 53 + b'000006' + b'00000000000' + b'hello\0' + bytes(900))
put('refused', 'old.cpio', b'\xc7\x71' + bytes(900))
put('refused', 'empty', b'')
put('refused', 'text', TREE['text'])


# Broken ones.
def flips(name, data, count):
    for i in range(count):
        b = bytearray(data)
        # Half of them where names and sizes are, at the beginning and the end.
        at = R.randrange(len(b)) if i % 2 else R.choice([R.randrange(min(len(b), 600)), len(b) - 1 - R.randrange(min(len(b), 900))])
        b[at] ^= 1 << R.randrange(8)
        put('broken', 'flip %03d at %06d of %s' % (i, at, name), bytes(b))


def cuts(name, data, count):
    for i in range(count):
        at = len(data) * i // count if i % 2 else max(0, len(data) - 1 - R.randrange(3000))
        put('broken', 'cut %03d at %06d of %s' % (i, at, name), data[:at])


for way, how in WAYS.items():
    flips(way + '.zip', zipped(zip_tree(), how), 150)
    flips(way + ' zip64.zip', zipped(zip_tree(), how, True), 80)
    cuts(way + '.zip', zipped(zip_tree(), how), 30)
for form, number in FORMATS.items():
    whole = tar(tree(), number)
    cuts(form + '.tar', whole, 30)
    with tarfile.open(fileobj=io.BytesIO(whole)) as t:
        heads = [info.offset for info in t.getmembers()]
    # Nobody could tell a wrong byte of a file.
    for i in range(60):
        b, at = bytearray(whole), R.choice(heads) + R.randrange(257)
        b[at] ^= 1 << R.randrange(7)
        put('broken', 'flip %03d at %06d of %s.tar' % (i, at, form), bytes(b))
    for at in heads:
        put('broken', 'no header at %06d of %s.tar' % (at, form), whole[:at] + bytes(512) + whole[at + 512:])
        put('broken', 'junk at %06d of %s.tar' % (at, form), whole[:at] + R.randbytes(512) + whole[at:])
    packed = gzip.compress(whole)
    flips(form + '.tgz', packed, 60)
    cuts(form + '.tgz', packed, 30)
flips('one.gz', gzip.compress(TREE['d/large']), 60)
cuts('one.gz', gzip.compress(TREE['d/large']), 30)
