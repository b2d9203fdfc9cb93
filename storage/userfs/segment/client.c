/* The client of the interceptor: reads and writes files of a mount in its segment, without the kernel.
 *
 * Descriptors are the kernel's: an open is passed on and gives a descriptor of the FUSE mount. What is ours is
 * found out at the first read or write of it (fstat), and remembered until it is closed.
 *
 * Positions (rows of 4.4.6). A description that this process opened and never handed on is private: its position is kept
 * here, and written to the kernel (lseek) before anybody else could look: fork, dup, descriptor passing, exec,
 * io_uring, and calls that use it in the kernel. A description that others may share keeps its position in the kernel,
 * and calls that use it go there; calls with an offset of their own are served all the same. So a position is
 * always right for everybody, intercepted or not.
 *
 * What is not certain goes to the kernel, which is right: see segment.h for how both agree.
 */
#include "process.h"

#define SIZE_MAX_CALL 0x7ffff000ul
#define TRIES 3
#define F_DUPFD 0
#define F_GETFD 1
#define F_GETFL 3
#define F_SETFL 4
#define F_DUPFD_CLOEXEC 1030
#define CLOCK_REALTIME 0
#define CLOSE_RANGE_UNSHARE 2u
#define CLOSE_RANGE_CLOEXEC 4u
/* Turns of the time stamp counter for which a time that was read is good: under a millisecond. */
#define TIME_TURNS 1000000ul
/* Files up to this size are invalidated whole. */
#define WHOLE_BYTES (256 * 1024ul)

/* Where the segment is mapped, if there is room: between heaps and libraries. */
#define SEGMENT_PLACE 0x200000000000ul

struct mount mount;
struct segment *segment;
struct descriptor *descriptors;
struct segment_process *process;
u32 descriptors_end; /* none from here on was ever seen */
u32 forking; /* the thread that shared all and has not come back */
u32 file_limit;
static u32 stopped;

static u8 state(u32 word) { return (u8)word; }

void set_state(u32 fd, u8 to) {
  u32 word = weir_states[fd];
  while (!__atomic_compare_exchange_n(&weir_states[fd], &word, ((word >> 8) + 1) << 8 | to, 0, __ATOMIC_ACQ_REL,
                                      __ATOMIC_RELAXED)) {}
}

void seen(u32 fd) {
  u32 end = descriptors_end;
  while (fd >= end && !__atomic_compare_exchange_n(&descriptors_end, &end, fd + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

void lock(struct descriptor *d) {
  for (u32 turns = 1; __atomic_exchange_n(&d->lock, 1, __ATOMIC_ACQUIRE); turns++) {
    if (turns % 1024) __builtin_ia32_pause();
    else SYS(NR_yield, 0, 0, 0, 0, 0, 0);
  }
}

void unlock(struct descriptor *d) { __atomic_store_n(&d->lock, 0, __ATOMIC_RELEASE); }

static int waited(u32 holder) {
  if (SYS(NR_kill, holder, 0, 0, 0, 0, 0) == -3 /* ESRCH */) return 1;
  SYS(NR_yield, 0, 0, 0, 0, 0, 0);
  return 0;
}

struct segment_caller caller(void) {
  struct segment_caller c = {segment, weir_thread_id(), weir_copy, waited};
  return c;
}

u64 now_ns(void) {
  static u64 at, ns;
  u32 low, high;
  __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
  u64 turns = (u64)high << 32 | low;
  if (turns - __atomic_load_n(&at, __ATOMIC_ACQUIRE) > TIME_TURNS) {
    u64 time[2];
    SYS(NR_clock_gettime, CLOCK_REALTIME, time, 0, 0, 0, 0);
    __atomic_store_n(&ns, time[0] * 1000000000ul + time[1], __ATOMIC_RELEASE);
    __atomic_store_n(&at, turns, __ATOMIC_RELEASE);
  }
  return __atomic_load_n(&ns, __ATOMIC_ACQUIRE);
}

static i32 from_daemon(i32 descriptor) {
  i32 daemon = (i32)SYS(NR_pidfd_open, mount.daemon, 0, 0, 0, 0, 0);
  if (daemon < 0) return daemon;
  i32 got = (i32)SYS(NR_pidfd_getfd, daemon, descriptor, 0, 0, 0, 0);
  SYS(NR_close, daemon, 0, 0, 0, 0, 0);
  return got;
}

/* The FUSE connection, for a moment: a descriptor that stayed could be closed by the program. -1 if it cannot be had. */
i32 kernel(void) {
  u8 stat[144];
  i32 got = from_daemon(mount.kernel_descriptor);
  if (got < 0) return -1;
  /* If the daemon is gone its number may be another's: only a FUSE connection will do (10:229). */
  if (SYS(NR_fstat, got, stat, 0, 0, 0, 0) || *(u64 *)(stat + 40) != (10ul << 8 | 229)) {
    SYS(NR_close, got, 0, 0, 0, 0, 0);
    return -1;
  }
  return got;
}

/* Pages from `offset` on, or with offset -1 only attributes. An inode that the kernel does not know is fine. */
int invalidate(i32 kernel_descriptor, u64 inode, i64 offset, i64 bytes) {
  struct {
    u32 length;
    i32 notice;
    u64 unique;
    u64 inode;
    i64 offset, bytes;
  } out = {40, 2, 0, inode, offset, bytes};
  i64 result = SYS(NR_write, kernel_descriptor, &out, sizeof out, 0, 0, 0);
  __atomic_fetch_add(&segment->invalidations, 1, __ATOMIC_RELAXED);
  return result == (i64)sizeof out || result == -2 /* ENOENT */;
}

static u64 pass(void) {
  __atomic_fetch_add(&segment->passed, 1, __ATOMIC_RELAXED);
  return ACT_PASS;
}

/* Finds out what a descriptor is. */
static u8 classify(u32 fd, u32 word) {
  u8 stat[144], found = FOREIGN;
  struct descriptor *d = &descriptors[fd];
  i64 flags;
  if (SYS(NR_fstat, fd, stat, 0, 0, 0, 0)) return UNKNOWN;
  u32 mode = *(u32 *)(stat + 24);
  lock(d);
  if (*(u64 *)stat == mount.device && (mode & S_IFMT) == S_IFREG && !(mode & S_SET_IDS) &&
      (flags = SYS(NR_fcntl, fd, F_GETFL, 0, 0, 0, 0)) >= 0 && !(flags & (O_PATH | O_DIRECT))) {
    d->flags = (u32)flags;
    d->record = *(u64 *)(stat + 8);
    d->private = state(word) == FRESH && !forking;
    d->known = d->moved = 0;
    d->passing = 0;
    found = OURS;
  }
  u32 expected = word;
  if (!__atomic_compare_exchange_n(&weir_states[fd], &expected, (word & ~0xffu) | found, 0, __ATOMIC_ACQ_REL,
                                   __ATOMIC_RELAXED))
    found = UNKNOWN;
  unlock(d);
  seen(fd);
  if (process) {
    process->sites_patched = (u32)weir_figures.sites_patched;
    process->sites_left = (u32)weir_figures.sites_left;
  }
  return found;
}

/* The kernel's position becomes the true one. Locked. */
static void publish(u32 fd, struct descriptor *d) {
  if (d->moved) SYS(NR_lseek, fd, d->position, 0, 0, 0, 0);
  d->moved = d->known = 0;
}

/* A call that uses the position goes to the kernel; client_after says when it is back. */
static u64 pass_position(u32 fd, struct descriptor *d) {
  private_end(fd, d);
  publish(fd, d);
  d->passing++;
  unlock(d);
  __atomic_fetch_add(&segment->passed, 1, __ATOMIC_RELAXED);
  return ACT_AFTER;
}

static int position(u32 fd, struct descriptor *d) {
  if (d->known) return 1;
  i64 at = SYS(NR_lseek, fd, 0, 1, 0, 0, 0);
  if (at < 0) return 0;
  d->position = (u64)at;
  return d->known = 1;
}

/* The kernel learns the size now, and all who use the file go through it from now on. */
void client_map(u64 descriptor) {
  u8 stat[144];
  if (!segment || stopped || descriptor >= DESCRIPTORS_MAX) return;
  u32 fd = (u32)descriptor, word = __atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE);
  if (state(word) == FOREIGN || (state(word) != OURS && classify(fd, word) != OURS)) return;
  struct segment_caller c = caller();
  struct descriptor *d = &descriptors[fd];
  lock(d);
  private_end(fd, d);
  unlock(d);
  struct segment_record *r = segment_record_at(segment, d->record);
  if (!r || segment_lock(&c, r)) return;
  r->mapped = 1;
  segment_unlock(r);
  SYS(NR_fstat, fd, stat, 0, 0, 0, 0);
}

static void share(u32 fd) {
  struct descriptor *d = &descriptors[fd];
  u8 is = state(weir_states[fd]);
  if (is == OURS) {
    lock(d);
    private_end(fd, d);
    publish(fd, d);
    set_state(fd, UNKNOWN);
    unlock(d);
  } else if (is == FRESH) {
    set_state(fd, UNKNOWN);
  }
}

void client_share_all(void) {
  if (!segment) return;
  forking = weir_thread_id();
  for (u32 fd = 0; fd < descriptors_end; fd++) share(fd);
}

static void stop(u32 why) {
  if (!segment || stopped) return;
  client_share_all();
  stopped = 1;
  if (process) process->state = why;
}

void client_stop(void) { stop(SEGMENT_SANDBOX); }

void client_forked(void) {
  if (!segment) return;
  forking = 0;
  for (u32 fd = 0; fd < descriptors_end; fd++) descriptors[fd].lock = 0;
  process = 0;
  private_forked();
}

/* Whether a read of the record may be served: the kernel has no pages that a map may have changed. */
int kernel_has_none(struct segment_record *r) {
  return __atomic_load_n(&r->fills, __ATOMIC_ACQUIRE) == __atomic_load_n(&r->fills_gone, __ATOMIC_ACQUIRE);
}

/* Whether the file's bytes here are the true ones. What can never be written is so, whatever the kernel holds. */
static int may_read(struct segment_record *r) {
  if (!__atomic_load_n(&r->live, __ATOMIC_ACQUIRE)) return 0;
  return r->partial || (!r->mapped && kernel_has_none(r));
}

static i64 read_at(const struct descriptor *d, u64 offset, void *to, u64 bytes, int *served) {
  struct segment_caller c = caller();
  struct segment_record *r = segment_record_at(segment, d->record);
  *served = 0;
  if (!r || !may_read(r)) return 0;
  i64 result = segment_peek(&c, r, offset, to, bytes);
  if (result == SEGMENT_NOT_HERE) {
    if (segment_lock(&c, r)) return 0;
    result = may_read(r) ? segment_read(&c, r, offset, to, bytes) : SEGMENT_NOT_HERE;
    segment_unlock(r);
  }
  *served = result != SEGMENT_NOT_HERE;
  return result;
}

/* Drops what the kernel holds of the range; 0 if that cannot be done. On success the record is locked and the kernel has
 * nothing of the range. */
static int lock_without_pages(const struct segment_caller *c, struct segment_record *r, u64 inode, u64 offset, u64 bytes,
                              i32 *connection) {
  for (int i = 0; i < TRIES; i++) {
    if (segment_lock(c, r)) return 0;
    u64 fills = __atomic_load_n(&r->fills, __ATOMIC_SEQ_CST);
    if (fills == r->fills_gone) return 1;
    int whole = r->size <= WHOLE_BYTES;
    segment_unlock(r);
    if (*connection < 0 && (*connection = kernel()) < 0) return 0;
    u64 from = offset & ~(PAGE - 1);
    if (!invalidate(*connection, inode, whole ? 0 : (i64)from, whole ? 0 : (i64)(offset + bytes - from))) return 0;
    if (segment_lock(c, r)) return 0;
    if (__atomic_load_n(&r->fills, __ATOMIC_SEQ_CST) == fills) {
      if (whole) __atomic_store_n(&r->fills_gone, fills, __ATOMIC_RELEASE);
      return 1;
    }
    segment_unlock(r);
  }
  return 0;
}

void tell_kernel(struct segment_record *r, u64 inode, i32 *connection) {
  u64 told = __atomic_load_n(&r->told, __ATOMIC_SEQ_CST), gone = __atomic_load_n(&r->told_gone, __ATOMIC_ACQUIRE);
  if (told == gone) return;
  if (*connection < 0) *connection = kernel();
  if (*connection < 0 || !invalidate(*connection, inode, -1, 0)) return;
  while (gone < told && !__atomic_compare_exchange_n(&r->told_gone, &gone, told, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {}
}

/* With `append`, *offset is where it went. */
static i64 write_at(const struct descriptor *d, u64 *offset, const void *from, u64 bytes, int append, int *served) {
  struct segment_caller c = caller();
  struct segment_record *r = segment_record_at(segment, d->record);
  i32 connection = -1;
  i64 result = 0;
  *served = 0;
  if (!r || r->mapped || r->partial || (append && !kernel_has_none(r))) return 0;
  /* Before the bytes are there nothing is lost if the kernel cannot be told. */
  if (r->told != r->told_gone && (connection = kernel()) < 0) return 0;
  if (lock_without_pages(&c, r, d->record, *offset, bytes, &connection)) {
    if (r->live && !r->mapped && !(append && !kernel_has_none(r))) {
      if (append) *offset = r->size;
      result = segment_write(&c, r, *offset, from, bytes, now_ns());
      *served = 1;
    }
    segment_unlock(r);
    if (*served) tell_kernel(r, d->record, &connection);
  }
  if (connection >= 0) SYS(NR_close, connection, 0, 0, 0, 0, 0);
  return result;
}

static void count(int writes, i64 result) {
  u64 bytes = result > 0 ? (u64)result : 0;
  if (process) {
    writes ? process->writes++ : process->reads++;
    *(writes ? &process->bytes_written : &process->bytes_read) += bytes;
    return;
  }
  __atomic_fetch_add(writes ? &segment->writes : &segment->reads, 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(writes ? &segment->bytes_written : &segment->bytes_read, bytes, __ATOMIC_RELAXED);
}

/* pread, pwrite: the position does not matter, so the descriptor's lock does not either. If the word is still the same, what
 * was read of the descriptor belongs to it. */
static u64 transfer_at(struct call *call, u32 fd, u32 word, int writes) {
  struct descriptor copy = {.flags = descriptors[fd].flags, .record = descriptors[fd].record};
  u64 offset = call->arguments[3], bytes = call->arguments[2];
  u32 access = copy.flags & O_ACCMODE;
  int served = 0;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (__atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE) != word) return pass();
  if (bytes > SIZE_MAX_CALL) bytes = SIZE_MAX_CALL;
  if (!bytes || offset > 1ul << 62) return pass();
  if (writes ? access == 0 || file_limit || (copy.flags & O_APPEND) : access == O_WRONLY) return pass();
  i64 result = writes ? write_at(&copy, &offset, (const void *)call->arguments[1], bytes, 0, &served)
                      : read_at(&copy, offset, (void *)call->arguments[1], bytes, &served);
  if (!served) return pass();
  count(writes, result);
  call->number = (u64)result;
  return ACT_DONE;
}

/* read, write, pread, pwrite. */
static u64 transfer(struct call *call) {
  u64 number = call->number, bytes = call->arguments[2];
  u32 fd = (u32)call->arguments[0];
  int writes = number == NR_write || number == NR_pwrite, own_offset = number == NR_pread || number == NR_pwrite;
  struct descriptor *d = &descriptors[fd];
  u32 word = __atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE);
  int served = 0;
  if (stopped) return ACT_PASS;
  if (weir_figures.sites_left_unknown) {
    stop(SEGMENT_SITES);
    return ACT_PASS;
  }
  if (state(word) != OURS) {
    if (classify(fd, word) != OURS) return ACT_PASS;
    word = __atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE);
  }
  if (state(word) != OURS) return pass();
  if (own_offset) {
    u64 act = transfer_at(call, fd, word, writes);
    if (act == ACT_PASS && d->stands_in) {
      lock(d);
      private_end(fd, d);
      unlock(d);
    }
    return act;
  }
  if (!d->private) return pass();
  lock(d);
  if (__atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE) != word) {
    unlock(d);
    return pass();
  }
  u32 access = d->flags & O_ACCMODE;
  int allowed = writes ? access != 0 && !file_limit : access != O_WRONLY;
  if (bytes > SIZE_MAX_CALL) bytes = SIZE_MAX_CALL;
  if (!allowed || !bytes || d->passing || !position(fd, d) || d->position > 1ul << 62) return pass_position(fd, d);
  u64 offset = d->position;
  i64 result = writes ? write_at(d, &offset, (const void *)call->arguments[1], bytes, (d->flags & O_APPEND) != 0, &served)
                      : read_at(d, offset, (void *)call->arguments[1], bytes, &served);
  if (!served) return pass_position(fd, d);
  if (result > 0) {
    d->position = offset + (u64)result;
    d->moved = 1;
  }
  unlock(d);
  count(writes, result);
  call->number = (u64)result;
  return ACT_DONE;
}

static u64 seek(struct call *call) {
  u32 fd = (u32)call->arguments[0];
  struct descriptor *d = &descriptors[fd];
  u32 word = __atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE);
  i64 to = (i64)call->arguments[1];
  if (stopped || state(word) != OURS || !d->private) return ACT_PASS;
  lock(d);
  struct segment_record *r = segment_record_at(segment, d->record);
  i64 base = 0;
  if (__atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE) != word || !r) {
    unlock(d);
    return pass();
  }
  if (d->passing || call->arguments[2] > 2 || !__atomic_load_n(&r->live, __ATOMIC_ACQUIRE) || !position(fd, d)) return pass_position(fd, d);
  if (call->arguments[2] == 1) base = (i64)d->position;
  if (call->arguments[2] == 2) base = (i64)__atomic_load_n(&r->size, __ATOMIC_ACQUIRE);
  if (to > (1l << 62) || to < -(1l << 62) || base + to > (1l << 62)) return pass_position(fd, d);
  to += base;
  if (to >= 0) {
    d->position = (u64)to;
    d->moved = 1;
  }
  unlock(d);
  call->number = to >= 0 ? (u64)to : (u64)-22; /* EINVAL */
  return ACT_DONE;
}

/* Any other call that uses the position of a descriptor in the kernel. */
static u64 by_kernel(u64 argument) {
  if (argument >= DESCRIPTORS_MAX) return ACT_PASS;
  u32 fd = (u32)argument;
  struct descriptor *d = &descriptors[fd];
  u32 word = __atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE);
  if (state(word) != OURS || !d->private) return ACT_PASS;
  lock(d);
  if (__atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE) == word) return pass_position(fd, d);
  unlock(d);
  return ACT_PASS;
}

static void gone(u64 first, u64 last) {
  for (u64 fd = first; fd <= last && fd < descriptors_end; fd++) {
    private_gone((u32)fd);
    set_state((u32)fd, UNKNOWN);
  }
}

/* Two descriptors at once (sendfile, …): their positions become the kernel's for good. */
static void share_both(u64 one, u64 other) {
  if (one < DESCRIPTORS_MAX) share((u32)one);
  if (other < DESCRIPTORS_MAX) share((u32)other);
}

u64 client_before(struct call *call) {
  const u64 *a = call->arguments;
  u32 cast = (u32)a[0];
  if (forking && forking == weir_thread_id()) forking = 0;
  if (call->number > NR_pwrite || call->number == NR_fstat || call->number == NR_poll || call->number == NR_open ||
      call->number == NR_stat || call->number == NR_lstat || call->number == NR_ioctl) {
    if (private_before(call) == ACT_DONE) return ACT_DONE;
  }
  switch (call->number) {
    case NR_read: case NR_write: case NR_pread: case NR_pwrite: return transfer(call);
    case NR_lseek: return seek(call);
    case NR_readv: case NR_writev: case NR_preadv2: case NR_pwritev2: case NR_ioctl: return by_kernel(a[0]);
    case NR_fcntl:
      if (a[1] == F_DUPFD || a[1] == F_DUPFD_CLOEXEC || a[1] == F_SETFL) share_both(a[0], ~0ul);
      return ACT_PASS;
    case NR_open: case NR_openat: case NR_openat2: case NR_creat: return stopped ? ACT_PASS : private_open(call);
    case NR_close: gone(cast, cast); return ACT_AFTER;
    case NR_close_range:
      if (a[2] & CLOSE_RANGE_UNSHARE) client_share_all();
      if (a[2] & CLOSE_RANGE_CLOEXEC) return ACT_PASS;
      gone(cast, (u32)a[1]);
      return ACT_AFTER;
    case NR_dup: share_both(cast, ~0ul); return ACT_PASS;
    case NR_dup2: case NR_dup3:
      /* What fails closes nothing. */
      if (SYS(NR_fcntl, cast, F_GETFD, 0, 0, 0, 0) < 0 || cast == (u32)a[1] || (call->number == NR_dup3 && a[2] & ~(u64)O_CLOEXEC))
        return ACT_PASS;
      share_both(cast, ~0ul);
      gone((u32)a[1], (u32)a[1]);
      return ACT_AFTER;
    case NR_sendfile: share_both((u32)a[0], (u32)a[1]); return ACT_PASS;
    case NR_splice: case NR_copy_file_range: share_both((u32)a[0], (u32)a[2]); return ACT_PASS;
    case NR_sendmsg: case NR_sendmmsg: client_share_all(); return ACT_PASS;
    case NR_io_uring_setup: stop(SEGMENT_RING); return ACT_PASS;
    case NR_landlock_restrict_self: stop(SEGMENT_SANDBOX); return ACT_PASS;
    case NR_unshare: client_share_all(); return ACT_PASS;
    case NR_chdir: case NR_fchdir: case NR_chroot: case NR_pivot_root: return ACT_AFTER;
    case NR_prlimit: /* of file size: from now on the kernel judges writes */
      if (a[1] == 1 && a[2]) file_limit = 1;
      return ACT_PASS;
  }
  return ACT_PASS;
}

void client_after(struct call *call, u64 number, i64 result) {
  const u64 *a = call->arguments;
  switch (number) {
    case NR_open: case NR_openat: case NR_openat2: case NR_creat:
      if (result < 0 || result >= (i64)DESCRIPTORS_MAX) return;
      seen((u32)result);
      set_state((u32)result, forking ? UNKNOWN : FRESH);
      return;
    case NR_close: gone((u32)a[0], (u32)a[0]); return;
    case NR_close_range: gone((u32)a[0], (u32)a[1]); return;
    case NR_dup2: case NR_dup3: gone((u32)a[1], (u32)a[1]); return;
    case NR_chdir: case NR_fchdir: case NR_chroot: case NR_pivot_root: private_moved(); return;
  }
  struct descriptor *d = &descriptors[(u32)a[0]];
  lock(d);
  if (d->passing) d->passing--;
  unlock(d);
}

void join(void) {
  u32 own = (u32)SYS(NR_getpid, 0, 0, 0, 0, 0, 0);
  for (u32 i = 0; i < SEGMENT_PROCESSES_MAX; i++) {
    struct segment_process *p = &segment->processes[i];
    u32 old = __atomic_load_n(&p->id, __ATOMIC_RELAXED);
    if (old && old != own && SYS(NR_kill, old, 0, 0, 0, 0, 0) != -3) continue;
    if (!__atomic_compare_exchange_n(&p->id, &old, own, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
    /* Of who had it before, or of us before an exec. */
    if (segment_names(segment)) names_release_all(segment, i);
    SYS(NR_prctl, 16 /* PR_GET_NAME */, p->name, 0, 0, 0, 0);
    p->state = SEGMENT_ACCELERATED;
    u64 *own_counts = &p->reads, *all = &segment->reads;
    for (int count = 0; count < 4; count++) {
      __atomic_fetch_add(all + count, own_counts[count], __ATOMIC_RELAXED);
      own_counts[count] = 0;
    }
    process = p;
    return;
  }
}

static void want(const u16 *numbers, u64 bytes, u8 class, u8 unseen) {
  for (u64 i = 0; i < bytes / sizeof *numbers; i++) {
    weir_classes[numbers[i]] = class;
    weir_unseen[numbers[i]] = unseen;
  }
}

void client_begin(void) {
  static const u16 file[] = {NR_read, NR_write, NR_pread, NR_pwrite, NR_lseek, NR_readv, NR_writev,
                             NR_preadv2, NR_pwritev2, NR_ioctl, NR_fcntl};
  /* For private.c: that take a descriptor first, and must not find a directory there; that take it elsewhere, or change who the
   * process is; and that have paths, by which descriptors can be named. */
  static const u16 takes[] = {NR_fstat, NR_preadv, NR_pwritev, NR_flock, NR_fsync, NR_fdatasync, NR_ftruncate, NR_getdents, NR_getdents64,
                              NR_fchmod, NR_fchown, NR_fstatfs, NR_readahead, NR_fsetxattr, NR_fgetxattr, NR_flistxattr,
                              NR_fremovexattr, NR_fadvise, NR_futimesat, NR_mknodat, NR_mkdirat, NR_unlinkat, NR_fchownat,
                              NR_fchmodat, NR_sync_file_range, NR_tee, NR_vmsplice, NR_utimensat, NR_fallocate, NR_syncfs,
                              NR_name_to_handle_at, NR_fchmodat2, NR_cachestat};
  static const u16 changes[] = {NR_poll, NR_ppoll, NR_select, NR_pselect, NR_io_setup, NR_epoll_ctl, NR_fanotify_mark, NR_umask,
                                NR_setuid, NR_setgid, NR_setreuid, NR_setregid, NR_setresuid, NR_setresgid, NR_setfsuid,
                                NR_setfsgid, NR_setgroups, NR_capset, NR_setns, NR_landlock_restrict_self};
  static const u16 names[] = {NR_stat, NR_lstat, NR_access, NR_readlink, NR_newfstatat, NR_statx, NR_readlinkat, NR_faccessat,
                              NR_faccessat2, NR_renameat, NR_renameat2, NR_linkat, NR_symlinkat, NR_chdir, NR_fchdir, NR_chroot,
                              NR_pivot_root};
  static const u16 always[] = {NR_open, NR_openat, NR_openat2, NR_creat, NR_close, NR_close_range, NR_dup, NR_dup2, NR_dup3,
                               NR_sendfile, NR_splice, NR_copy_file_range, NR_sendmsg, NR_sendmmsg, NR_io_uring_setup,
                               NR_unshare, NR_prlimit};
  u64 limit[2];
  const u8 *told = weir_configuration.client;
  if (weir_configuration.client_bytes != sizeof mount) return;
  for (u64 i = 0; i < sizeof mount; i++) ((volatile u8 *)&mount)[i] = told[i];
  i32 memory = from_daemon(mount.segment_descriptor);
  if (memory < 0) return;
  /* Far from code: trampolines must find room near it. */
  i64 at = SYS(NR_mmap, SEGMENT_PLACE, mount.segment_bytes, 3, 0x4001, memory, 0); /* shared, no reserve */
  SYS(NR_close, memory, 0, 0, 0, 0, 0);
  if (at < 0 && at > -4096) return;
  weir_states = weir_map(DESCRIPTORS_MAX * sizeof(u32));
  descriptors = weir_map(DESCRIPTORS_MAX * sizeof(struct descriptor));
  if (!weir_states || !descriptors || ((struct segment *)at)->magic != SEGMENT_MAGIC) return;
  segment = (struct segment *)at;
  if (!SYS(NR_prlimit, 0, 1 /* RLIMIT_FSIZE */, 0, limit, 0, 0) && limit[0] != ~0ul) file_limit = 1;
  want(file, sizeof file, CALL_FILE, UNSEEN_HURTS);
  want(always, sizeof always, CALL_ALWAYS, UNSEEN_HURTS);
  join();
  if (!mount.point_bytes || !segment_names(segment)) return;
  want(takes, sizeof takes, CALL_FILE, UNSEEN_CONFUSES);
  want(changes, sizeof changes, CALL_ALWAYS, UNSEEN_CONFUSES);
  want(names, sizeof names, CALL_ALWAYS, UNSEEN_HARMLESS);
  private_begin();
}
