/* Attributes of files that are open without the kernel's file (private.c): shown and changed in the segment. */
#include "process.h"

#define TCGETS 0x5401
#define F_GETFL 3
#define F_SETFL 4
#define O_ASYNC 020000u
#define O_NOATIME 01000000u
#define STATX_BASIC 0x7ffu
#define UTIME_NOW 0x3fffffff
#define UTIME_OMIT 0x3ffffffe
/* Until 2200: more does not fit into nanoseconds. */
#define SECONDS_MAX 7258118400l

struct facts {
  struct segment_node node;
  u64 size, blocks, modified_ns, changed_ns;
};

static int learn(u32 fd, struct facts *f) {
  struct segment_caller c = caller();
  u64 inode = descriptors[fd].record;
  struct segment_node *node = segment_node_at(segment, inode);
  struct segment_record *r = segment_record_at(segment, inode);
  if (!node || !r || names_lock(&c)) return 0;
  u32 unfinished = segment_names(segment)->unfinished;
  f->node = *node;
  names_unlock(segment);
  if (unfinished) return 0;
  f->size = __atomic_load_n(&r->size, __ATOMIC_ACQUIRE);
  f->blocks = __atomic_load_n(&r->blocks, __ATOMIC_RELAXED) * (BLOCK_BYTES / 512);
  f->modified_ns = __atomic_load_n(&r->modified_ns, __ATOMIC_ACQUIRE);
  f->changed_ns = f->node.changed_ns;
  /* As mem/mod.rs shows it. */
  if (f->modified_ns != f->node.modified_ns && f->modified_ns > f->changed_ns) f->changed_ns = f->modified_ns;
  return 1;
}

static void put_time(u64 *at, u64 ns) {
  at[0] = ns / 1000000000;
  at[1] = ns % 1000000000;
}

/* struct stat of x86-64. */
static i64 stat(u32 fd, u64 to) {
  u64 s[18];
  struct facts f;
  if (!learn(fd, &f)) return NOT_HERE;
  weir_clear(s, sizeof s);
  s[0] = mount.device;
  s[1] = descriptors[fd].record;
  s[2] = f.node.links;
  s[3] = (u64)f.node.user << 32 | f.node.mode;
  s[4] = f.node.group;
  s[6] = f.size;
  s[7] = BLOCK_BYTES;
  s[8] = f.blocks;
  put_time(s + 9, f.node.accessed_ns);
  put_time(s + 11, f.modified_ns);
  put_time(s + 13, f.changed_ns);
  return weir_copy((void *)to, s, sizeof s) ? -14 : 0;
}

/* struct statx. */
static i64 statx(u32 fd, u64 to) {
  u64 s[32];
  u32 *half = (u32 *)s;
  struct facts f;
  if (!learn(fd, &f)) return NOT_HERE;
  weir_clear(s, sizeof s);
  half[0] = STATX_BASIC;
  half[1] = BLOCK_BYTES;
  half[4] = f.node.links;
  half[5] = f.node.user;
  half[6] = f.node.group;
  half[7] = f.node.mode;
  s[4] = descriptors[fd].record;
  s[5] = f.size;
  s[6] = f.blocks;
  put_time(s + 8, f.node.accessed_ns);
  put_time(s + 12, f.changed_ns);
  put_time(s + 14, f.modified_ns);
  half[34] = (u32)(mount.device >> 8 & 0xfff);
  half[35] = (u32)((mount.device & 0xff) | (mount.device >> 12 & 0xfff00));
  return weir_copy((void *)to, s, sizeof s) ? -14 : 0;
}

struct change {
  u32 mode;
  u8 sets_mode, sets_accessed, sets_modified;
  u64 accessed_ns, modified_ns;
};

/* By its owner, and told to the daemon by `changed`. 0, or NOT_HERE. */
static i64 alter(u32 fd, const struct change *change) {
  struct segment_caller c = caller();
  u64 inode = descriptors[fd].record, now = now_ns();
  struct segment_names *n = segment_names(segment);
  struct segment_node *node = segment_node_at(segment, inode);
  struct segment_record *r = segment_record_at(segment, inode);
  i32 connection = -1;
  i64 result = NOT_HERE;
  if (!rights.known || !node || !r) return NOT_HERE;
  if (r->told != __atomic_load_n(&r->told_gone, __ATOMIC_ACQUIRE) && (connection = kernel()) < 0) return NOT_HERE;
  if (!names_lock(&c)) {
    if (node->user == rights.user && n->changed_count < EXCHANGE_MAX && !n->unfinished) {
      if (change->sets_mode) node->mode = (node->mode & ~0777u) | change->mode;
      if (change->sets_accessed) node->accessed_ns = change->accessed_ns;
      if (change->sets_modified) {
        node->modified_ns = change->modified_ns;
        __atomic_store_n(&r->modified_ns, change->modified_ns, __ATOMIC_RELEASE);
      }
      node->changed_ns = now;
      n->changed[n->changed_count] = (u32)inode;
      __atomic_store_n(&n->changed_count, n->changed_count + 1, __ATOMIC_RELEASE);
      result = 0;
    }
    names_unlock(segment);
  }
  if (!result) tell_kernel(r, inode, &connection);
  if (connection >= 0) SYS(NR_close, connection, 0, 0, 0, 0, 0);
  return result;
}

/* One time of utimensat: whether it is understood. */
static int take_time(const i64 *time, u8 *sets, u64 *ns) {
  *sets = time[1] != UTIME_OMIT;
  *ns = now_ns();
  if (time[1] == UTIME_OMIT || time[1] == UTIME_NOW) return 1;
  if (time[0] < 0 || time[0] > SECONDS_MAX || time[1] < 0 || time[1] > 999999999) return 0;
  *ns = (u64)time[0] * 1000000000 + (u64)time[1];
  return 1;
}

static i64 set_times(u32 fd, u64 from) {
  struct change change = {0};
  i64 times[4] = {0, UTIME_NOW, 0, UTIME_NOW};
  if (from && weir_copy(times, (const void *)from, sizeof times)) return NOT_HERE;
  if (!take_time(times, &change.sets_accessed, &change.accessed_ns)) return NOT_HERE;
  if (!take_time(times + 2, &change.sets_modified, &change.modified_ns)) return NOT_HERE;
  return change.sets_accessed || change.sets_modified ? alter(fd, &change) : NOT_HERE;
}

static i64 set_mode(u32 fd, u64 mode) {
  struct change change = {.sets_mode = 1, .mode = (u32)mode & 0777};
  return mode & ~0777ul ? NOT_HERE : alter(fd, &change);
}

/* Only to what they are. */
static i64 set_owner(u32 fd, u32 user, u32 group) {
  struct change change = {0};
  const struct segment_node *node = segment_node_at(segment, descriptors[fd].record);
  if (!node || (user != ~0u && user != node->user) || (group != ~0u && group != node->group)) return NOT_HERE;
  return alter(fd, &change);
}

/* The kernel has no description of the file yet, so these are ours; those of which more depends are the kernel's. */
static i64 set_flags(u32 fd, u64 to) {
  struct descriptor *d = &descriptors[fd];
  if (to & (O_ASYNC | O_DIRECT | O_NOATIME)) return NOT_HERE;
  lock(d);
  int here = d->stands_in;
  if (here) d->flags = (d->flags & ~(O_APPEND | O_NONBLOCK)) | ((u32)to & (O_APPEND | O_NONBLOCK));
  unlock(d);
  return here ? 0 : NOT_HERE;
}

static int is_empty(u64 path) {
  u8 first;
  return !weir_copy(&first, (const void *)path, 1) && !first;
}

i64 serve_attributes(const struct call *call, u32 fd) {
  const u64 *a = call->arguments;
  switch (call->number) {
    case NR_fstat: return stat(fd, a[1]);
    case NR_newfstatat: return a[3] & AT_EMPTY_PATH && is_empty(a[1]) ? stat(fd, a[2]) : NOT_HERE;
    case NR_statx: return a[2] & AT_EMPTY_PATH && is_empty(a[1]) ? statx(fd, a[4]) : NOT_HERE;
    case NR_ioctl: return a[1] == TCGETS ? -25 : NOT_HERE; /* ENOTTY */
    case NR_fsync: case NR_fdatasync: return 0;
    case NR_fchmod: return set_mode(fd, (u32)a[1]);
    case NR_fchown: return set_owner(fd, (u32)a[1], (u32)a[2]);
    case NR_utimensat: return !a[1] && !a[3] ? set_times(fd, a[2]) : NOT_HERE;
    case NR_fcntl:
      if (a[1] == F_SETFL) return set_flags(fd, a[2]);
      return a[1] == F_GETFL ? (i64)(descriptors[fd].flags | O_LARGEFILE) : NOT_HERE;
  }
  return NOT_HERE;
}
