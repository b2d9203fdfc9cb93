# What a partner of beside.rs and kernel.rs can do with files: descriptors have names of their own.
import ctypes, fcntl, mmap, os, resource, signal, struct, threading

S = {}
C = ctypes.CDLL(None, use_errno=True)
LOCK = 'hhqqi4x'


def fd(s):
    if s not in S:
        raise OSError(9, 'no such descriptor')
    return S[s]


def by_proc(s):
    return '/proc/self/fd/%d' % fd(s)


def op_open(s, name, flags):
    if s in S:
        os.close(S.pop(s))
    S[s] = os.open(name, flags, 0o644)


def op_reopen(s, t, flags):
    g = os.open(by_proc(s), flags)
    if t in S:
        os.close(S.pop(t))
    S[t] = g


def op_close(s):
    f = fd(s)
    del S[s]
    os.close(f)


def op_dup(s, t):
    g = os.dup(fd(s))
    if t in S:
        os.close(S.pop(t))
    S[t] = g


def op_dup2(s, t):
    if s != t:
        os.dup2(fd(s), fd(t))


def op_write(s, c, n):
    return os.write(fd(s), bytes([c]) * n)


def op_pwrite(s, c, n, at):
    return os.pwrite(fd(s), bytes([c]) * n, at)


def op_writev(s, c, n):
    return os.writev(fd(s), [bytes([c]) * n, bytes([c + 1]) * 3])


def brief(b):
    return len(b), hash_of(b)


def hash_of(b):
    h = 0
    for i in range(0, len(b), 7):
        h = (h * 31 + b[i]) % 1000003
    return h


def op_read(s, n):
    return brief(os.read(fd(s), n))


def op_pread(s, n, at):
    return brief(os.pread(fd(s), n, at))


def op_seek(s, at, whence):
    return os.lseek(fd(s), at, whence)


def op_truncate(s, n):
    os.ftruncate(fd(s), n)


def shown(s):
    return s.st_size, s.st_mode, s.st_nlink


def op_stat(s):
    return shown(os.fstat(fd(s)))


def op_stat_name(name):
    return shown(os.stat(name))


def op_send(s, t, n, at):
    return os.sendfile(fd(t), fd(s), at, n)


def op_copy(s, t, n, at, to):
    return os.copy_file_range(fd(s), fd(t), n, at, to)


def op_splice(s, n, at):
    r, w = os.pipe()
    try:
        got = os.splice(fd(s), w, n, offset_src=at)
        return got, brief(os.read(r, 65536)) if got else 0
    finally:
        os.close(r)
        os.close(w)


def op_lock(s, kind, whence, start, length):
    fcntl.fcntl(fd(s), fcntl.F_SETLK, struct.pack(LOCK, kind, whence, start, length, 0))


def op_lock_here(s, at, length):
    os.lseek(fd(s), at, 0)
    op_lock(s, fcntl.F_WRLCK, 1, 0, length)


def op_glance(name):
    os.close(os.open(name, os.O_RDONLY))


def op_ofd_lock(s, kind, whence, start, length):
    fcntl.fcntl(fd(s), 37, struct.pack(LOCK, kind, whence, start, length, 0))


def op_lockf(s, command, length):
    """By libc, from the position on: 0 unlocks, 2 tries to lock, 3 asks."""
    return C.lockf(fd(s), command, ctypes.c_long(length)) and -ctypes.get_errno()


def op_flock(s, how):
    fcntl.flock(fd(s), how | fcntl.LOCK_NB)


def op_child_closes(s):
    """A child has descriptors of the same descriptions, and no locks of ranges."""
    child = os.fork()
    if not child:
        os.close(fd(s))
        os._exit(0)
    return os.waitpid(child, 0)[1]


def op_locks_of_all(places):
    """Place by place, as others may lock over each other: what would hinder this process, and whether that is a process's or a description's."""
    return all_of(lambda s: runs([asked(s, at) for at in range(places)] + [asked(s, 10000)]))


def asked(s, at):
    found = struct.unpack(LOCK, fcntl.fcntl(fd(s), fcntl.F_GETLK, struct.pack(LOCK, fcntl.F_WRLCK, 0, at, 1, 0)))
    return '-' if found[0] == fcntl.F_UNLCK else ('r' if found[0] == fcntl.F_RDLCK else 'w') + ('d' if found[4] == -1 else '')


def runs(all):
    found = []
    for one in all:
        if found and found[-1][1] == one:
            found[-1][0] += 1
        else:
            found.append([1, one])
    return found


def op_locked(s, start, length):
    found = struct.unpack(LOCK, fcntl.fcntl(fd(s), fcntl.F_GETLK, struct.pack(LOCK, fcntl.F_WRLCK, 0, start, length, 0)))
    return 'free' if found[0] == fcntl.F_UNLCK else found[:1] + found[2:4]


def all_of(one):
    found = []
    for s in sorted(S):
        try:
            found.append((s, one(s)))
        except OSError as e:
            found.append((s, -e.errno))
    return found


def op_look_locks():
    return all_of(lambda s: op_locked(s, 0, 0))


def op_look_sizes():
    """As the kernel has them, which asks nobody for a splice."""
    return all_of(lambda s: op_splice(s, 60000, 0))


def op_flags(s, append):
    now = fcntl.fcntl(fd(s), fcntl.F_GETFL)
    fcntl.fcntl(fd(s), fcntl.F_SETFL, now | os.O_APPEND if append else now & ~os.O_APPEND)
    return fcntl.fcntl(fd(s), fcntl.F_GETFL)


def op_proc_chmod(s, mode):
    os.chmod(by_proc(s), mode)
    return shown(os.fstat(fd(s))), os.stat('.').st_mode


def op_proc_truncate(s, n):
    os.truncate(by_proc(s), n)
    return shown(os.fstat(fd(s)))


def op_proc_utime(s):
    os.utime(by_proc(s), ns=(5000000007, -7000000009))
    found = os.fstat(fd(s))
    return found.st_mtime_ns, found.st_atime_ns


def op_proc_attribute(s):
    os.setxattr(by_proc(s), 'user.k', b'v')
    return os.getxattr(fd(s), 'user.k'), os.listxattr('.')


def op_proc_link(s, name):
    if os.path.exists(name):
        os.unlink(name)
    os.link(by_proc(s), name, follow_symlinks=True)
    return shown(os.stat(name))


def op_proc_by_link(s, mode):
    os.symlink(by_proc(s), 'way')
    try:
        os.chmod('way', mode)
        return shown(os.fstat(fd(s)))
    finally:
        os.unlink('way')


def op_child(s, c, n):
    child = os.fork()
    if not child:
        try:
            os.write(fd(s), bytes([c]) * n)
        except OSError:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    return os.lseek(fd(s), 0, 1)


def op_threads(s, c, n):
    def one(i):
        try:
            os.pwrite(fd(s), bytes([c + i]) * n, i * n)
        except OSError:
            pass

    if access(s) != os.O_RDWR or appends(s):
        return 0  # whose order is nobody's
    all = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for t in all:
        t.start()
    for t in all:
        t.join()
    return brief(os.pread(fd(s), 4 * n, 0))


def access(s):
    return fcntl.fcntl(fd(s), fcntl.F_GETFL) & os.O_ACCMODE


def appends(s):
    return fcntl.fcntl(fd(s), fcntl.F_GETFL) & os.O_APPEND


def op_whole(name):
    with open(name, 'rb') as f:
        return brief(f.read())


def op_clone_of(s, t):
    """FICLONE: a descriptor in the argument of an ioctl."""
    fcntl.ioctl(fd(t), 0x40049409, fd(s))


def op_write_all_memory(s):
    b = ctypes.create_string_buffer(70000)
    return C.write(fd(s), b, ctypes.c_size_t(-1 % 2**64)), ctypes.get_errno()


def op_limited(s, legacy):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if legacy:
        assert C.syscall(160, resource.RLIMIT_FSIZE, struct.pack('QQ', 10000, 2**64 - 1)) == 0
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10000, resource.RLIM_INFINITY))
    first = os.write(fd(s), b'x' * 20000)
    try:
        return first, os.write(fd(s), b'x' * 20000)
    except OSError as e:
        return first, e.errno


def op_as_nobody(s):
    os.setresuid(65534, 65534, -1)
    try:
        os.fchmod(fd(s), 0o777)
    except OSError as e:
        return e.errno, os.fstat(fd(s)).st_mode, os.pread(fd(s), 3, 0)


def op_statx(s, flags, mask):
    b = ctypes.create_string_buffer(256)
    C.syscall.restype = ctypes.c_long
    r = C.syscall(332, fd(s), b'', 0x1000 | flags, mask, b)
    return r, ctypes.get_errno() if r else struct.unpack('I', b.raw[:4])[0] & 0x7ff


def op_mount_ids(s, name):
    """By the descriptor, by the name, and by the folder and the name: the mount's, whatever is asked for."""
    C.syscall.restype = ctypes.c_long
    found = []
    for above, path, flags in (fd(s), b'', 0x1000), (-100, name, 0), (-100, os.path.join(os.getcwdb(), name), 0):
        b = ctypes.create_string_buffer(256)
        assert C.syscall(332, above, path, flags, 0, b) == 0
        found.append((struct.unpack('I', b.raw[:4])[0] & 0x1000, struct.unpack('Q', b.raw[144:152])[0]))
    here = os.open('.', os.O_RDONLY)
    with open('/proc/self/fdinfo/%d' % here) as f:
        right = [int(line.split()[1]) for line in f if line.startswith('mnt_id:')][0]
    os.close(here)
    return found == [(0x1000, right)] * 3 or (found, right)


def op_created(s, t):
    """F_CREATED_QUERY of what made the file, of what opened it, and of the first again once others could have it."""
    ask = lambda f: fcntl.fcntl(f, 1028, 0)
    op_open(s, 'made', os.O_RDWR | os.O_CREAT)
    op_open(t, 'made', os.O_RDWR | os.O_CREAT)
    first = ask(fd(s)), ask(fd(t))
    op_write(s, 65, 3)
    os.fchmod(fd(s), 0o4755)
    os.close(os.dup(fd(s)))
    second = ask(fd(s)), ask(fd(t))
    os.close(S.pop(s))
    again = os.open('made', os.O_RDWR)
    os.unlink('made')
    return first, second, ask(again), os.close(again)


def op_mapped(name, at):
    """In a child, which a place behind the end would end: what is at each place when it is touched."""
    go, told = os.pipe(), os.pipe()
    f = os.open(name, os.O_RDWR)
    C.mmap.restype = ctypes.c_void_p
    C.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    child = os.fork()
    if not child:
        m = C.mmap(None, 1 << 20, mmap.PROT_READ, mmap.MAP_SHARED, f, 0)
        ctypes.string_at(m, 1)
        os.write(told[1], b'mapped')
        os.read(go[0], 1)
        os.write(told[1], ctypes.string_at(m + at, 1))
        os._exit(0)
    os.close(told[1])
    assert os.read(told[0], 6) == b'mapped'
    S['child'], S['go'], S['told'] = child, go[1], told[0]


def op_touched():
    os.write(S['go'], b'g')
    found = os.read(S['told'], 1)
    return found, os.waitpid(S['child'], 0)[1]
