/* Attributes of files that are open without the kernel's file (private.c), or that it does not know (named.c): shown and changed in the
 * segment. */
#include "process.h"

#define TCGETS 0x5401
#define F_GETFL 3
#define F_SETFL 4
#define O_ASYNC 020000u
#define O_NOATIME 01000000u
#define STATX_BASIC 0x7ffu
#define UTIME_NOW 0x3fffffff
#define UTIME_OMIT 0x3ffffffe
/* From 1740 to 2200: more does not fit into nanoseconds. */
#define SECONDS_MAX 7258118400l
#define NS 1000000000l
#define STATX_RESERVED 0x80000000u
#define STATX_MNT_ID 0x1000u
#define AT_STATX_DONT_SYNC 0x4000u

struct facts {
  struct segment_node node;
  u64 inode, size, blocks, modified_ns, changed_ns;
};

/* With the names locked. */
static int learn(u64 inode, struct facts *f) {
  struct segment_node *node = segment_node_at(segment, inode);
  struct segment_record *r = segment_record_at(segment, inode);
  if (!node || !r || segment_names(segment)->unfinished) return 0;
  f->node = *node;
  f->inode = inode;
  f->size = node->entries;
  f->blocks = 0;
  f->modified_ns = node->modified_ns;
  f->changed_ns = node->changed_ns;
  if ((node->mode & S_IFMT) == S_IFDIR) return 1;
  f->size = __atomic_load_n(&r->size, __ATOMIC_ACQUIRE);
  f->blocks = __atomic_load_n(&r->blocks, __ATOMIC_RELAXED) * (BLOCK_BYTES / 512);
  if (r->partial) {
    f->blocks = node->held;
    return 1;
  }
  f->modified_ns = __atomic_load_n(&r->modified_ns, __ATOMIC_ACQUIRE);
  /* As mem/mod.rs shows it. */
  if (f->modified_ns != f->node.modified_ns && (i64)f->modified_ns > (i64)f->changed_ns) f->changed_ns = f->modified_ns;
  return 1;
}

static int learn_of(u32 fd, struct facts *f) {
  struct segment_caller c = caller();
  if (names_lock(&c)) return 0;
  int learned = learn(descriptors[fd].record, f);
  names_unlock(segment);
  return learned;
}

/* Times are signed: there were some before 1970. */
static void put_time(u64 *at, u64 ns) {
  i64 seconds = (i64)ns / NS, part = (i64)ns % NS;
  at[0] = (u64)(part < 0 ? seconds - 1 : seconds);
  at[1] = (u64)(part < 0 ? part + NS : part);
}

/* struct stat of x86-64. */
static i64 put_stat(const struct facts *f, u64 to) {
  u64 s[18];
  weir_clear(s, sizeof s);
  s[0] = mount.device;
  s[1] = f->inode;
  s[2] = f->node.links;
  s[3] = (u64)f->node.user << 32 | f->node.mode;
  s[4] = f->node.group;
  s[6] = f->size;
  s[7] = BLOCK_BYTES;
  s[8] = f->blocks;
  put_time(s + 9, f->node.accessed_ns);
  put_time(s + 11, f->modified_ns);
  put_time(s + 13, f->changed_ns);
  return weir_copy((void *)to, s, sizeof s) ? -14 : 0;
}

/* Which mount it is by which the file is reached: that of its folder, as nothing is mounted on files that are served here. 0: not known. */
static u64 mount_of(i32 above, u64 path) {
  u8 text[PATH_MAX_HERE];
  const u8 *folder = (const u8 *)"";
  u64 s[32], bytes = path ? copy_path(text, path) : 0;
  if (bytes && split(text, bytes, &folder) == text) folder = (const u8 *)"";
  return SYS(NR_statx, above, folder, AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, s, 0) ? 0 : s[18];
}

/* struct statx. The kernel says which mount it is whether it is asked for or not. */
static i64 put_statx(const struct facts *f, u64 mount_id, u64 to) {
  u64 s[32];
  u32 *half = (u32 *)s;
  if (!mount_id) return NOT_HERE;
  weir_clear(s, sizeof s);
  half[0] = STATX_BASIC | STATX_MNT_ID;
  s[18] = mount_id;
  half[1] = BLOCK_BYTES;
  half[4] = f->node.links;
  half[5] = f->node.user;
  half[6] = f->node.group;
  half[7] = f->node.mode;
  s[4] = f->inode;
  s[5] = f->size;
  s[6] = f->blocks;
  put_time(s + 8, f->node.accessed_ns);
  put_time(s + 12, f->changed_ns);
  put_time(s + 14, f->modified_ns);
  half[34] = (u32)(mount.device >> 8 & 0xfff);
  half[35] = (u32)((mount.device & 0xff) | (mount.device >> 12 & 0xfff00));
  return weir_copy((void *)to, s, sizeof s) ? -14 : 0;
}

static i64 stat(u32 fd, u64 to) {
  struct facts f;
  return learn_of(fd, &f) ? put_stat(&f, to) : NOT_HERE;
}

static i64 statx(u32 fd, u64 to) {
  struct facts f;
  return learn_of(fd, &f) ? put_statx(&f, mount_of((i32)fd, 0), to) : NOT_HERE;
}

struct change {
  u32 mode, user, group; /* owners are only what they are, or ~0 */
  u8 sets_mode, sets_accessed, sets_modified;
  u64 accessed_ns, modified_ns;
};

/* By its owner. With the names locked; 0, or NOT_HERE. */
static i64 alter_locked(u64 inode, const struct change *change) {
  struct segment_node *node = segment_node_at(segment, inode);
  struct segment_record *r = segment_record_at(segment, inode);
  u64 now = now_ns();
  if (!node || !r || r->left_to_kernel || node->user != rights.user || segment_names(segment)->unfinished) return NOT_HERE;
  if ((change->user != ~0u && change->user != node->user) || (change->group != ~0u && change->group != node->group)) return NOT_HERE;
  if (!names_change(segment, inode, now)) return NOT_HERE;
  if (change->sets_mode) node->mode = (node->mode & S_IFMT) | change->mode;
  if (change->sets_accessed) node->accessed_ns = change->accessed_ns;
  if (change->sets_modified) {
    node->modified_ns = change->modified_ns;
    if ((node->mode & S_IFMT) == S_IFREG) __atomic_store_n(&r->modified_ns, change->modified_ns, __ATOMIC_RELEASE);
  }
  node->changed_ns = now;
  return 0;
}

static i64 alter(u32 fd, const struct change *change) {
  struct segment_caller c = caller();
  u64 inode = descriptors[fd].record;
  struct segment_record *r = segment_record_at(segment, inode);
  i32 connection = -1;
  i64 result = NOT_HERE;
  if (!rights.known || !r || mount.read_only) return NOT_HERE;
  if (r->told != __atomic_load_n(&r->told_gone, __ATOMIC_ACQUIRE) && (connection = kernel()) < 0) return NOT_HERE;
  if (!names_lock(&c)) {
    result = alter_locked(inode, change);
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
  if (time[0] < -SECONDS_MAX || time[0] > SECONDS_MAX || time[1] < 0 || time[1] >= NS) return 0;
  *ns = (u64)(time[0] * NS + time[1]);
  return 1;
}

#define NO_CHANGE {.user = ~0u, .group = ~0u}

static int times_to_set(u64 from, struct change *change) {
  i64 times[4] = {0, UTIME_NOW, 0, UTIME_NOW};
  if (from && weir_copy(times, (const void *)from, sizeof times)) return 0;
  return take_time(times, &change->sets_accessed, &change->accessed_ns) && take_time(times + 2, &change->sets_modified, &change->modified_ns) &&
         (change->sets_accessed || change->sets_modified);
}

static int mode_to_set(u32 mode, struct change *change) {
  change->sets_mode = 1;
  change->mode = mode & 0777;
  return !(mode & ~0777u);
}

static i64 set_times(u32 fd, u64 from) {
  struct change change = NO_CHANGE;
  return times_to_set(from, &change) ? alter(fd, &change) : NOT_HERE;
}

static i64 set_mode(u32 fd, u64 mode) {
  struct change change = NO_CHANGE;
  return mode_to_set((u32)mode, &change) ? alter(fd, &change) : NOT_HERE;
}

static i64 set_owner(u32 fd, u32 user, u32 group) {
  struct change change = {.user = user, .group = group};
  return alter(fd, &change);
}

/* The kernel has no description of the file yet, so these are ours; those of which more depends are the kernel's. */
static i64 set_flags(u32 fd, u64 to) {
  struct descriptor *d = &descriptors[fd];
  if (to & (O_ASYNC | O_DIRECT | O_NOATIME)) return NOT_HERE;
  lock(d);
  int here = cursor_of(d)->stands_in;
  if (here) d->flags = (d->flags & ~(O_APPEND | O_NONBLOCK)) | ((u32)to & (O_APPEND | O_NONBLOCK));
  unlock(d);
  return here ? 0 : NOT_HERE;
}

static int is_empty(u64 path) {
  u8 first;
  return !weir_copy(&first, (const void *)path, 1) && !first;
}

/* What more is asked for only the kernel knows: the mount, when a file was made, and which words are wrong. */
static int knows_all(u64 flags, u64 mask) {
  return (flags & AT_STATX_SYNC_TYPE) != AT_STATX_SYNC_TYPE && !((u32)mask & (~STATX_BASIC | STATX_RESERVED));
}

i64 serve_attributes(const struct call *call, u32 fd) {
  const u64 *a = call->arguments;
  switch (call->number) {
    case NR_fstat: return stat(fd, a[1]);
    case NR_newfstatat: return a[3] & AT_EMPTY_PATH && is_empty(a[1]) ? stat(fd, a[2]) : NOT_HERE;
    case NR_statx: return a[2] & AT_EMPTY_PATH && is_empty(a[1]) && knows_all(a[2], a[3]) ? statx(fd, a[4]) : NOT_HERE;
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

static i64 learn_named(u64 inode, void *facts) { return learn(inode, facts) ? 0 : NOT_HERE; }
static i64 alter_named(u64 inode, void *change) { return alter_locked(inode, change); }

static i64 shown(i32 above, u64 path, u32 flags, struct facts *f) {
  if (flags & ~(AT_FLAGS | AT_STATX_SYNC_TYPE)) return NOT_HERE;
  if (flags & AT_EMPTY_PATH && is_empty(path)) return of_folder(above, LOOKS, learn_named, f);
  return by_name(above, path, LOOKS, learn_named, f);
}

/* A descriptor that is only a path (O_PATH) changes nothing. */
static i64 alter_open(i32 fd, struct change *change) {
  if (folder_of(fd) && descriptors[fd].folder_is_path) return NOT_HERE;
  return of_folder(fd, CHANGES_IT, alter_named, change);
}

i64 serve_attributes_by_name(const struct call *call) {
  const u64 *a = call->arguments;
  struct change change = NO_CHANGE;
  struct facts f;
  i64 result;
  switch (call->number) {
    case NR_fstat: result = of_folder((i32)a[0], LOOKS, learn_named, &f); return result ? result : put_stat(&f, a[1]);
    case NR_stat: case NR_lstat: result = shown(AT_FDCWD, a[0], 0, &f); return result ? result : put_stat(&f, a[1]);
    case NR_newfstatat: result = shown((i32)a[0], a[1], (u32)a[3], &f); return result ? result : put_stat(&f, a[2]);
    case NR_statx:
      if (!knows_all(a[2], a[3])) return NOT_HERE;
      result = shown((i32)a[0], a[1], (u32)a[2], &f);
      return result ? result : put_statx(&f, mount_of((i32)a[0], a[1]), a[4]);
    case NR_utimensat:
      if ((u32)a[3] & ~AT_SYMLINK_NOFOLLOW || !times_to_set(a[2], &change)) return NOT_HERE;
      return a[1] ? by_name((i32)a[0], a[1], CHANGES_IT, alter_named, &change) : alter_open((i32)a[0], &change);
    case NR_chmod: return mode_to_set((u32)a[1], &change) ? by_name(AT_FDCWD, a[0], CHANGES_IT, alter_named, &change) : NOT_HERE;
    case NR_fchmod: return mode_to_set((u32)a[1], &change) ? alter_open((i32)a[0], &change) : NOT_HERE;
    case NR_fchmodat: return mode_to_set((u32)a[2], &change) ? by_name((i32)a[0], a[1], CHANGES_IT, alter_named, &change) : NOT_HERE;
    case NR_chown: case NR_lchown:
      change.user = (u32)a[1];
      change.group = (u32)a[2];
      return by_name(AT_FDCWD, a[0], CHANGES_IT, alter_named, &change);
    case NR_fchown:
      change.user = (u32)a[1];
      change.group = (u32)a[2];
      return alter_open((i32)a[0], &change);
    case NR_fchownat:
      change.user = (u32)a[2];
      change.group = (u32)a[3];
      return (u32)a[4] & ~AT_SYMLINK_NOFOLLOW ? NOT_HERE : by_name((i32)a[0], a[1], CHANGES_IT, alter_named, &change);
  }
  return NOT_HERE;
}
