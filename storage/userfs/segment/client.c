/* The client of the interceptor: descriptors and positions of files of a mount. Bytes are moved in transfer.c.
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
#include "calls.h"
#include "process.h"

#define TRANSFERS (1ul << NR_read | 1ul << NR_write | 1ul << NR_pread | 1ul << NR_pwrite)
#define F_DUPFD 0
#define F_GETFD 1
#define F_GETFL 3
#define F_SETFL 4
#define F_DUPFD_CLOEXEC 1030
#define CLOCK_REALTIME 0
#define RLIMIT_FSIZE 1
#define CLOSE_RANGE_UNSHARE 2u
#define CLOSE_RANGE_CLOEXEC 4u
/* Turns of the time stamp counter for which a time that was read is good: under a millisecond. */
#define TIME_TURNS 1000000ul

/* Maps up to this size are fetched when they are made, by pieces that the kernel takes as a whole. */
#define FETCHED_MAX (256ul << 20)
#define FETCHED_AT_ONCE (512 * 1024ul)

/* Where the segment is mapped, if there is room: between heaps and libraries. */
#define SEGMENT_PLACE 0x200000000000ul

struct mount mount;
struct segment *segment;
struct descriptor *descriptors;
struct cursor *cursors;
struct segment_process *process;
u32 descriptors_end; /* none from here on was ever seen */
u32 forking; /* the thread that shared all and has not come back */
u32 file_limit;
u32 stopped;
u32 passing_calls;

void set_state(u32 fd, u8 to) {
  u32 word = weir_states[fd];
  if (to != OURS && may_be_private(word)) cursors[fd].private = 0;
  while (!__atomic_compare_exchange_n(&weir_states[fd], &word, ((word >> 8) + 1) << 8 | to, 0, __ATOMIC_ACQ_REL,
                                      __ATOMIC_RELAXED)) {}
}

void seen(u32 fd) {
  u32 end = descriptors_end;
  while (fd >= end && !__atomic_compare_exchange_n(&descriptors_end, &end, fd + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

void lock_among_threads(struct descriptor *d) {
  for (u32 turns = 1; __atomic_exchange_n(&d->lock, 1, __ATOMIC_ACQUIRE); turns++) {
    if (turns % 1024) __builtin_ia32_pause();
    else SYS(NR_yield, 0, 0, 0, 0, 0, 0);
  }
}

static int waited(u32 holder) {
  if (SYS(NR_kill, holder, 0, 0, 0, 0, 0) == -3 /* ESRCH */) return 1;
  SYS(NR_yield, 0, 0, 0, 0, 0, 0);
  return 0;
}

struct segment_caller caller(void) {
  struct segment_caller c = {segment, weir_thread_id(), weir_copy, waited, pages_ready};
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

static i32 from_holder(i32 descriptor) {
  i32 holder = (i32)SYS(NR_pidfd_open, mount.holder, 0, 0, 0, 0, 0);
  if (holder < 0) return holder;
  i32 got = (i32)SYS(NR_pidfd_getfd, holder, descriptor, 0, 0, 0, 0);
  SYS(NR_close, holder, 0, 0, 0, 0, 0);
  return got;
}

/* The FUSE connection, for a moment: a descriptor that stayed could be closed by the program. -1 if it cannot be had. */
i32 kernel(void) {
  u8 stat[144];
  i32 got = from_holder(mount.kernel_descriptor);
  if (got < 0) return -1;
  /* If the holder is gone its number may be another's: only a FUSE connection will do (10:229). */
  if (SYS(NR_fstat, got, stat, 0, 0, 0, 0) || *(u64 *)(stat + 40) != (10ul << 8 | 229)) {
    SYS(NR_close, got, 0, 0, 0, 0, 0);
    return -1;
  }
  return got;
}

u64 pass(void) {
  __atomic_fetch_add(&segment->passed, 1, __ATOMIC_RELAXED);
  return ACT_PASS;
}

/* It is `found`, unless it is another descriptor by now. */
static u8 settle(u32 fd, u32 word, u8 found) {
  u32 expected = word;
  if (!__atomic_compare_exchange_n(&weir_states[fd], &expected, (word & ~0xffu) | found, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    found = UNKNOWN;
  seen(fd);
  if (process) {
    process->sites_patched = (u32)weir_figures.sites_patched;
    process->sites_left = (u32)weir_figures.sites_left;
  }
  return found;
}

/* Finds out what a descriptor is. */
u8 classify(u32 fd, u32 word) {
  u8 stat[144], found = FOREIGN;
  struct descriptor *d = &descriptors[fd];
  i64 flags;
  if (state(word) == CLOSING) return FOREIGN;
  if (SYS(NR_fstat, fd, stat, 0, 0, 0, 0)) return UNKNOWN;
  u32 mode = *(u32 *)(stat + 24);
  int is_file = *(u64 *)stat == mount.device && (mode & S_IFMT) == S_IFREG;
  if (!is_file && !may_be_private(word)) return settle(fd, word, FOREIGN);
  lock(d);
  u8 said = state(word) == STASHED && cursor_of(d)->private && cursor_of(d)->inode == *(u64 *)(stat + 8);
  cursor_of(d)->private = 0;
  if (is_file && !(mode & S_SET_IDS) &&
      (flags = SYS(NR_fcntl, fd, F_GETFL, 0, 0, 0, 0)) >= 0 && !(flags & (O_PATH | O_DIRECT))) {
    d->flags = (u32)flags;
    d->record = *(u64 *)(stat + 8);
    cursor_of(d)->inode = (u32)d->record;
    if (!said) cursor_of(d)->known = cursor_of(d)->moved = 0;
    cursor_of(d)->private = said || (state(word) == FRESH && !forking);
    d->passing = 0;
    found = OURS;
  }
  found = settle(fd, word, found);
  if (found == UNKNOWN) cursor_of(d)->private = 0;
  unlock(d);
  return found;
}

/* The kernel's position becomes the true one. Locked. */
static void publish(u32 fd, struct descriptor *d) {
  if (cursor_of(d)->moved) SYS(NR_lseek, fd, cursor_of(d)->position, 0, 0, 0, 0);
  cursor_of(d)->moved = cursor_of(d)->known = 0;
}

/* A call that uses the position goes to the kernel; client_after says when it is back. */
u64 pass_position(u32 fd, struct descriptor *d) {
  private_end(fd, d);
  publish(fd, d);
  d->passing++;
  __atomic_fetch_add(&passing_calls, 1, __ATOMIC_RELAXED);
  unlock(d);
  __atomic_fetch_add(&segment->passed, 1, __ATOMIC_RELAXED);
  return ACT_AFTER;
}

int position(u32 fd, struct descriptor *d) {
  if (cursor_of(d)->known) return 1;
  i64 at = SYS(NR_lseek, fd, 0, 1, 0, 0, 0);
  if (at < 0) return 0;
  cursor_of(d)->position = (u64)at;
  return cursor_of(d)->known = 1;
}

/* The kernel has no page of the file, and after a hundred that are touched here and there it would ask the daemon for each by itself: it is told to
 * begin with all of them. */
static void fetch(u32 fd, u64 offset, u64 bytes, u64 size) {
  if (offset >= size || bytes > FETCHED_MAX) return;
  if (bytes > size - offset) bytes = size - offset;
  for (u64 done = 0; done < bytes; done += FETCHED_AT_ONCE)
    if (SYS(NR_fadvise, fd, offset + done, bytes - done < FETCHED_AT_ONCE ? bytes - done : FETCHED_AT_ONCE, 3 /* WILLNEED */, 0, 0)) return;
}

/* The kernel learns the size now, and all who use the file go through it from now on. */
void client_map(u64 descriptor, u64 offset, u64 bytes) {
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
  int first = !r->left_to_kernel && kernel_has_none(r);
  u64 size = r->size;
  r->left_to_kernel = 1;
  segment_unlock(r);
  SYS(NR_fstat, fd, stat, 0, 0, 0, 0);
  if (first) fetch(fd, offset, bytes, size);
}

u32 looked_at(u32 fd) {
  u32 word = __atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE);
  if (state(word) != STASHED) return word;
  classify(fd, word);
  return __atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE);
}

int has_made(u32 fd) {
  if (fd >= DESCRIPTORS_MAX || !descriptors[fd].made) return 0;
  return descriptors[fd].made_turn == turn(__atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE));
}

static void share(u32 fd) {
  struct descriptor *d = &descriptors[fd];
  u8 is = state(looked_at(fd));
  int made = has_made(fd);
  if (is == OURS) {
    lock(d);
    private_end(fd, d);
    publish(fd, d);
    set_state(fd, UNKNOWN);
    d->made_turn = made ? turn(__atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE)) : d->made_turn;
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

void stop(u32 why) {
  if (!segment || stopped) return;
  client_share_all();
  stopped = 1;
  if (process) process->state = (u16)why;
}

void client_stop(void) { stop(SEGMENT_SANDBOX); }

void client_counted(u64 caught, u64 calls) {
  if (!segment) return;
  __atomic_fetch_add(&segment->caught, caught, __ATOMIC_RELAXED);
  __atomic_fetch_add(&segment->calls, calls, __ATOMIC_RELAXED);
}

void client_unseen(void) { stop(SEGMENT_SITES); }

void client_forked(void) {
  if (!segment) return;
  forking = 0;
  for (u32 fd = 0; fd < descriptors_end; fd++) descriptors[fd].lock = 0;
  process = 0;
  passing_calls = 0;
  private_forked();
  pages_forked();
}

static u64 seek(struct call *call) {
  u32 fd = (u32)call->arguments[0];
  struct descriptor *d = &descriptors[fd];
  if (stopped) return ACT_PASS;
  u32 word = looked_at(fd);
  i64 to = (i64)call->arguments[1];
  if (state(word) != OURS || !cursor_of(d)->private) return ACT_PASS;
  lock(d);
  struct segment_record *r = segment_record_at(segment, d->record);
  i64 base = 0;
  if (__atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE) != word || !r) {
    unlock(d);
    return pass();
  }
  if (d->passing || call->arguments[2] > 2 || !__atomic_load_n(&r->live, __ATOMIC_ACQUIRE) || !position(fd, d)) return pass_position(fd, d);
  if (call->arguments[2] == 1) base = (i64)cursor_of(d)->position;
  if (call->arguments[2] == 2) base = (i64)__atomic_load_n(&r->size, __ATOMIC_ACQUIRE);
  if (to > (1l << 62) || to < -(1l << 62) || base + to > (1l << 62)) return pass_position(fd, d);
  to += base;
  if (to >= 0) {
    cursor_of(d)->position = (u64)to;
    cursor_of(d)->moved = 1;
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
  u32 word = looked_at(fd);
  if (state(word) != OURS || !cursor_of(d)->private) return ACT_PASS;
  lock(d);
  if (__atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE) == word) return pass_position(fd, d);
  unlock(d);
  return ACT_PASS;
}

/* Before and after a call that closes them. In between, another thread may open a file and get such a number. */
static void closes(u64 first, u64 last) {
  for (u64 fd = first; fd <= last && fd < descriptors_end; fd++) {
    private_gone((u32)fd);
    set_state((u32)fd, CLOSING);
  }
}

static void closed(u64 first, u64 last) {
  for (u64 fd = first; fd <= last && fd < descriptors_end; fd++) {
    u32 word = __atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE);
    if (state(word) == CLOSING)
      __atomic_compare_exchange_n(&weir_states[fd], &word, ((word >> 8) + 1) << 8 | UNKNOWN, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  }
}

/* Two descriptors at once (sendfile, …): their positions become the kernel's for good. */
static void share_both(u64 one, u64 other) {
  if (one < DESCRIPTORS_MAX) share((u32)one);
  if (other < DESCRIPTORS_MAX) share((u32)other);
}

/* Whether these flags change nothing that is kept of the descriptor: waiting or not is all the same to a file. */
static int is_same(u32 fd, u64 flags) {
  if (fd >= DESCRIPTORS_MAX || state(looked_at(fd)) != OURS) return 0;
  return cursors[fd].private && !((descriptors[fd].flags ^ flags) & (O_APPEND | O_DIRECT));
}

static __attribute__((noinline)) u64 before_any(struct call *call) {
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
      if (is_lock(a[1])) lock_by_kernel(cast, a[1]);
      if (a[1] == F_DUPFD || a[1] == F_DUPFD_CLOEXEC || (a[1] == F_SETFL && !is_same(cast, a[2]))) share_both(a[0], ~0ul);
      return ACT_PASS;
    case NR_open: case NR_openat: case NR_openat2: case NR_creat: {
      if (stopped) return ACT_PASS;
      u64 act = private_open(call);
      if (act == ACT_AFTER) private_named(call);
      return act;
    }
    case NR_close: closes(cast, cast); return ACT_AFTER;
    case NR_close_range:
      if (a[2] & CLOSE_RANGE_UNSHARE) client_share_all();
      if (a[2] & CLOSE_RANGE_CLOEXEC) return ACT_PASS;
      closes(cast, (u32)a[1]);
      return ACT_AFTER;
    case NR_dup: share_both(cast, ~0ul); return ACT_PASS;
    case NR_dup2: case NR_dup3:
      /* What fails closes nothing. */
      if (SYS(NR_fcntl, cast, F_GETFD, 0, 0, 0, 0) < 0 || cast == (u32)a[1] || (call->number == NR_dup3 && a[2] & ~(u64)O_CLOEXEC))
        return ACT_PASS;
      share_both(cast, ~0ul);
      closes((u32)a[1], (u32)a[1]);
      return ACT_AFTER;
    case NR_sendfile: share_both((u32)a[0], (u32)a[1]); return ACT_PASS;
    case NR_splice: case NR_copy_file_range: share_both((u32)a[0], (u32)a[2]); return ACT_PASS;
    case NR_sendmsg: case NR_sendmmsg: client_share_all(); return ACT_PASS;
    case NR_io_uring_setup: stop(SEGMENT_RING); return ACT_PASS;
    case NR_landlock_restrict_self: stop(SEGMENT_SANDBOX); return ACT_PASS;
    case NR_unshare: client_share_all(); return ACT_PASS;
    case NR_chdir: case NR_fchdir: case NR_chroot: case NR_pivot_root: return ACT_AFTER;
    /* Of file size: from now on the kernel judges writes. */
    case NR_prlimit:
      if (a[1] == RLIMIT_FSIZE && a[2]) file_limit = 1;
      return ACT_PASS;
    case NR_setrlimit:
      if (a[0] == RLIMIT_FSIZE) file_limit = 1;
      return ACT_PASS;
  }
  return ACT_PASS;
}

u64 client_before(struct call *call) {
  if (call->number < 64 && TRANSFERS >> call->number & 1 && !forking) return transfer(call);
  return before_any(call);
}

/* Before the first such descriptor there is nothing to take back. */
static void note_path(u32 fd, int is_path) {
  static u32 any;
  if (is_path) any = 1;
  if (any) descriptors[fd].opened_as_path = is_path != 0;
}

void client_after(struct call *call, u64 number, i64 result) {
  const u64 *a = call->arguments;
  switch (number) {
    case NR_open: case NR_openat: case NR_openat2: case NR_creat:
      if (result < 0 || result >= (i64)DESCRIPTORS_MAX) return;
      seen((u32)result);
      note_path((u32)result, number == NR_openat ? (a[2] & O_PATH) != 0 : number == NR_open && a[1] & O_PATH);
      set_state((u32)result, forking ? UNKNOWN : FRESH);
      return;
    case NR_close: closed((u32)a[0], (u32)a[0]); return;
    case NR_close_range: closed((u32)a[0], (u32)a[1]); return;
    case NR_dup2: case NR_dup3: closed((u32)a[1], (u32)a[1]); return;
    case NR_chdir: case NR_fchdir: case NR_chroot: case NR_pivot_root: private_moved(); return;
  }
  struct descriptor *d = &descriptors[(u32)a[0]];
  lock(d);
  if (d->passing) d->passing--;
  if (passing_calls) __atomic_fetch_sub(&passing_calls, 1, __ATOMIC_RELAXED);
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
    if (p->holds && segment_names(segment)) names_release_all(segment, i);
    p->holds = 0;
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

#define MOVES (CALL_FILE | UNSEEN_HURTS << UNSEEN_SHIFT)
#define SHARES (CALL_ALWAYS | UNSEEN_HURTS << UNSEEN_SHIFT)
#define TAKES (CALL_FILE | UNSEEN_CONFUSES << UNSEEN_SHIFT | ONLY_NAMED)
#define TELLS (CALL_ALWAYS | UNSEEN_CONFUSES << UNSEEN_SHIFT | ONLY_NAMED)
#define NAMES (CALL_ALWAYS | UNSEEN_HARMLESS << UNSEEN_SHIFT | ONLY_NAMED)
/* Only where files are opened by names in the segment. */
#define ONLY_NAMED 0x10
#define FIRST CALLS_FIRST
#define SECOND CALLS_SECOND
#define THIRD CALLS_THIRD
#define FOURTH CALLS_FOURTH
#define FIFTH CALLS_FIFTH
#define CLASS_MOVES(descriptors, paths) MOVES
#define CLASS_SHARES(descriptors, paths) SHARES
#define CLASS_TELLS(descriptors, paths) TELLS
#define CLASS_CORE(descriptors, paths) 0
#define CLASS_PLAIN(descriptors, paths) ((paths) ? NAMES : (descriptors) == FIRST ? TAKES : TELLS)
#define CLASS(number, name, descriptors, paths, how) [number] = CLASS_##how(descriptors, paths),
const u8 client_calls[CALLS_MAX] = {CALLS_OF_FILES(CLASS)};

/* By descriptors' numbers; in one map, as each costs. */
struct tables {
  u32 states[DESCRIPTORS_MAX];
  struct cursor cursors[DESCRIPTORS_MAX];
  struct descriptor descriptors[DESCRIPTORS_MAX];
};

/* Maps the segment, and makes the tables. */
static int have_segment(void) {
  i32 memory = from_holder(mount.segment_descriptor);
  if (memory < 0) return 0;
  /* Far from code: trampolines must find room near it. */
  i64 at = SYS(NR_mmap, SEGMENT_PLACE, mount.segment_bytes, 3, 0x4001, memory, 0); /* shared, no reserve */
  SYS(NR_close, memory, 0, 0, 0, 0, 0);
  if (at < 0 && at > -4096) return 0;
  struct tables *tables = weir_map(sizeof *tables);
  if (!tables || ((struct segment *)at)->magic != SEGMENT_MAGIC) return 0;
  /* It is read, and then written, by nearly every program. */
  SYS(NR_madvise, tables->states, PAGE, MADV_POPULATE_WRITE, 0, 0, 0);
  weir_states = tables->states;
  cursors = tables->cursors;
  descriptors = tables->descriptors;
  segment = (struct segment *)at;
  return 1;
}

void client_begin(void) {
  u64 limit[2];
  const u8 *told = weir_configuration.client;
  if (weir_configuration.client_bytes != sizeof mount) return;
  _Static_assert(sizeof mount % sizeof(u64) == 0, "by words");
  for (u64 i = 0; i < sizeof mount / sizeof(u64); i++) ((volatile u64 *)&mount)[i] = ((const u64 *)told)[i];
  if (!have_segment()) {
    stash_settle();
    return;
  }
  stash_begin();
  if (!SYS(NR_prlimit, 0, RLIMIT_FSIZE, 0, limit, 0, 0) && limit[0] != ~0ul) file_limit = 1;
  int named = mount.point_bytes && segment_names(segment);
  for (u64 i = 0; i < CALLS_MAX; i++)
    if (named || !(client_calls[i] & ONLY_NAMED)) weir_want(i, client_calls[i]);
  join();
  if (named) private_begin();
}
