/* Calls that name a file by its path: whether it is there, its attributes, another name, no name. Programs that copy trees make a file under one
 * name, look at it, set its times, and give it its own name.
 *
 * They are served for plain files of which the kernel knows nothing (`told` of the node is 0, see names.h), and for names that are not there, which
 * the kernel never keeps. So no cache of it can be stale but the attributes of the directory, which it is told. What it knows, it is asked for; but
 * attributes of directories, which it knows all, are changed here too, and told, and shown here until it asks for them again.
 *
 * The directory is found by the kernel, as in private.c; one that is given as a descriptor is asked for its number once.
 */
#include "process.h"

#define RENAME_NOREPLACE 1u
/* Larger files are given back by the daemon, so that nobody waits for the names meanwhile. */
#define BLOCKS_FREED_HERE 256ul

struct place {
  u64 folder;
  const u8 *name;
  u64 bytes;
  u8 path[PATH_MAX_HERE];
};

struct found {
  u64 inode;
  struct segment_node *node;
  struct segment_record *record;
};

/* For the kernel it is the directory that it was opened in. */
static int stands_in(i32 fd) { return fd >= 0 && (u32)fd < DESCRIPTORS_MAX && cursors[fd].stands_in; }

/* 0 when it is not in the mount, or nobody here can tell. */
static int place_of(i32 above, u64 path, struct place *p) {
  const u8 *folder;
  u64 bytes = copy_path(p->path, path);
  if (!bytes || !may_be_inside(above, p->path)) return 0;
  u8 *name = split(p->path, bytes, &folder);
  if (!name) return 0;
  p->name = name;
  p->bytes = (u64)(p->path + bytes - name);
  p->folder = 0;
  if (name == p->path) {
    p->folder = folder_of(above);
  } else {
    i32 fd = (i32)SYS(NR_openat, above, folder, O_PATH | O_DIRECTORY | O_CLOEXEC, 0, 0, 0);
    if (fd < 0) return 0;
    p->folder = number_of(fd);
    SYS(NR_close, fd, 0, 0, 0, 0, 0);
  }
  return p->folder != 0;
}

#define IS_FOLDER 2

/* With the names locked, as all below. 0, ENOENT, IS_FOLDER, or NOT_HERE. */
static i64 look_for_any(const struct place *p, struct found *f) {
  if (!folder_at(p->folder, MAY_SEARCH)) return NOT_HERE;
  u32 entry = names_find(segment, p->folder, p->name, p->bytes);
  struct segment_name *e = entry ? segment_name_at(segment, entry) : 0;
  if (!entry) return -2;
  f->inode = e ? e->inode : 0;
  f->node = segment_node_at(segment, f->inode);
  f->record = segment_record_at(segment, f->inode);
  if (!f->node || !f->record) return NOT_HERE;
  if ((f->node->mode & S_IFMT) == S_IFDIR) return IS_FOLDER;
  if ((f->node->mode & S_IFMT) != S_IFREG || f->node->mode & S_SET_IDS || f->node->told) return NOT_HERE;
  return f->record->live && (f->record->partial || !f->record->left_to_kernel) ? 0 : NOT_HERE;
}

static i64 look(const struct place *p, struct found *f) {
  i64 result = look_for_any(p, f);
  return result == IS_FOLDER ? NOT_HERE : result;
}

/* A connection if the kernel must be told of a change in the directory; 0 when that cannot be had. */
static int can_tell(const struct segment_record *above, i32 *connection) {
  if (!above) return 0;
  return above->told == __atomic_load_n(&above->told_gone, __ATOMIC_ACQUIRE) || *connection >= 0 || (*connection = kernel()) >= 0;
}

/* What the kernel believes of it is true, and it answers by itself. */
static int kernel_knows(const struct segment_record *r) { return r->told != __atomic_load_n(&r->told_gone, __ATOMIC_ACQUIRE); }

/* A directory by its number, which the kernel has said. */
static i64 with_folder(u64 inode, enum purpose purpose, named_work work, void *with) {
  struct segment_caller c = caller();
  struct segment_record *r = segment_record_at(segment, inode);
  struct segment_node *node = segment_node_at(segment, inode);
  i32 connection = -1;
  i64 result = NOT_HERE;
  if (!r || !node || (purpose == LOOKS ? kernel_knows(r) : !can_tell(r, &connection))) return NOT_HERE;
  if (!names_lock(&c)) {
    if (!segment_names(segment)->lost && (node->mode & S_IFMT) == S_IFDIR && node->links) result = work(inode, with);
    names_unlock(segment);
  }
  if (!result && purpose == CHANGES_IT) tell_kernel(r, inode, &connection);
  if (connection >= 0) SYS(NR_close, connection, 0, 0, 0, 0, 0);
  return result;
}

/* Of a descriptor of which is known, or asked for once, that it is a directory. */
i64 of_folder(i32 fd, enum purpose purpose, named_work work, void *with) {
  if (fd < 0 || (u32)fd >= DESCRIPTORS_MAX || (mount.read_only && purpose == CHANGES_IT)) return NOT_HERE;
  u32 word = __atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE);
  const struct descriptor *d = &descriptors[fd];
  int known = d->folder_known && d->folder_word == word;
  /* Most that are looked at are files. */
  if (state(word) == OURS || state(word) == STASHED || (purpose == LOOKS && !known && !d->opened_as_path)) return NOT_HERE;
  u64 folder = folder_of(fd);
  return folder ? with_folder(folder, purpose, work, with) : NOT_HERE;
}

/* The descriptor that is named by /proc/self/fd/N, or -1. */
static i32 named_descriptor(u64 path) {
  static const u8 begins[] = "/proc/self/fd/";
  u8 text[PATH_MAX_HERE];
  u64 bytes = copy_path(text, path), at = sizeof begins - 1;
  i32 fd = 0;
  if (bytes <= at || bytes > at + 5) return -1;
  for (u64 i = 0; i < at; i++)
    if (text[i] != begins[i]) return -1;
  for (; at < bytes; at++) {
    if (text[at] < '0' || text[at] > '9') return -1;
    fd = fd * 10 + (text[at] - '0');
  }
  return fd;
}

/* Another file system may be mounted there, so the kernel says which it is. */
static i64 by_path(i32 above, u64 path, enum purpose purpose, named_work work, void *with) {
  i32 fd = (i32)SYS(NR_openat, above, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, 0, 0);
  if (fd < 0) return NOT_HERE;
  u64 inode = number_of(fd);
  SYS(NR_close, fd, 0, 0, 0, 0, 0);
  return inode ? with_folder(inode, purpose, work, with) : NOT_HERE;
}

i64 by_name(i32 above, u64 path, enum purpose purpose, named_work work, void *with) {
  struct segment_caller c = caller();
  struct place p;
  struct found f;
  i64 result = NOT_HERE;
  if (mount.read_only && purpose == CHANGES_IT) return NOT_HERE;
  if (!place_of(above, path, &p)) {
    i32 fd = purpose == CHANGES_IT ? named_descriptor(path) : -1;
    return fd < 0 || stands_in(fd) ? NOT_HERE : of_folder(fd, purpose, work, with);
  }
  if (names_lock(&c)) return NOT_HERE;
  result = look_for_any(&p, &f);
  int asks = result == IS_FOLDER && (purpose == CHANGES_IT || !kernel_knows(f.record));
  if (!result) result = work(f.inode, with);
  names_unlock(segment);
  if (asks) return by_path(above, path, purpose, work, with);
  return result == IS_FOLDER ? NOT_HERE : result;
}

/* A name of the file can go: what would be nobody's is small. */
static int may_lose_a_name(const struct found *f) {
  return f->node->links > 1 || __atomic_load_n(&f->node->opens, __ATOMIC_SEQ_CST) || f->record->blocks <= BLOCKS_FREED_HERE;
}

/* The daemon would give its blocks back only when it looks. */
static void lost_a_name(const struct found *f) {
  struct segment_caller c = caller();
  if (f->node->links || __atomic_load_n(&f->node->opens, __ATOMIC_SEQ_CST) || segment_lock(&c, f->record)) return;
  segment_resize(&c, f->record, 0);
  segment_unlock(f->record);
}

static int may_change(const struct segment_node *above) {
  return above && may(above, MAY_WRITE | MAY_SEARCH) && !(above->mode & S_ISVTX);
}

static i64 remove_locked(const struct place *p) {
  struct found f;
  i64 result = look(p, &f);
  if (result) return result;
  if (!may_change(folder_at(p->folder, MAY_SEARCH)) || !may_lose_a_name(&f)) return NOT_HERE;
  if (!names_remove(segment, p->folder, p->name, p->bytes, f.inode, now_ns())) return NOT_HERE;
  lost_a_name(&f);
  return 0;
}

static i64 remove_name(i32 above, u64 path) {
  struct segment_caller c = caller();
  struct place p;
  i32 connection = -1;
  i64 result = NOT_HERE;
  if (mount.read_only || !place_of(above, path, &p)) return NOT_HERE;
  struct segment_record *folder = segment_record_at(segment, p.folder);
  if (can_tell(folder, &connection) && !names_lock(&c)) {
    result = remove_locked(&p);
    names_unlock(segment);
    if (!result) tell_kernel(folder, p.folder, &connection);
  }
  if (connection >= 0) SYS(NR_close, connection, 0, 0, 0, 0, 0);
  return result;
}

static void fill(struct segment_event *e, u32 kind, const struct place *p, u64 inode, u64 now) {
  e->at_ns = now;
  e->kind = kind;
  e->inode = (u32)inode;
  e->folder = (u32)p->folder;
  e->bytes = (u8)p->bytes;
  for (u64 i = 0; i < p->bytes; i++) e->text[i] = p->name[i];
}

static i64 move_locked(const struct place *from, const struct place *to, u32 flags) {
  struct segment_event events[2];
  struct found moved, other = {0};
  i64 result = look(from, &moved), there;
  u64 now = now_ns();
  if (result) return result;
  if (!may_change(folder_at(from->folder, MAY_SEARCH)) || !may_change(folder_at(to->folder, MAY_SEARCH))) return NOT_HERE;
  if ((there = look(to, &other)) == NOT_HERE) return NOT_HERE;
  if (there == 0 && flags & RENAME_NOREPLACE) return -17; /* EEXIST */
  if (there == 0 && (other.inode == moved.inode || !may_lose_a_name(&other))) return NOT_HERE;
  fill(&events[0], EVENT_MOVED, from, moved.inode, now);
  fill(&events[1], EVENT_MOVED_TO, to, moved.inode, now);
  if (!names_move(segment, &events[0], &events[1], there == 0 ? other.inode : 0)) return NOT_HERE;
  if (there == 0) lost_a_name(&other);
  return 0;
}

static i64 move(i32 above, u64 path, i32 new_above, u64 new_path, u32 flags) {
  struct segment_caller c = caller();
  struct place from, to;
  i32 connection = -1;
  i64 result = NOT_HERE;
  if (mount.read_only || flags & ~RENAME_NOREPLACE || !place_of(above, path, &from) || !place_of(new_above, new_path, &to)) return NOT_HERE;
  struct segment_record *old = segment_record_at(segment, from.folder), *new = segment_record_at(segment, to.folder);
  if (can_tell(old, &connection) && can_tell(new, &connection) && !names_lock(&c)) {
    result = move_locked(&from, &to, flags);
    names_unlock(segment);
    if (!result) {
      tell_kernel(old, from.folder, &connection);
      tell_kernel(new, to.folder, &connection);
    }
  }
  if (connection >= 0) SYS(NR_close, connection, 0, 0, 0, 0, 0);
  return result;
}

i64 serve_named(const struct call *call) {
  const u64 *a = call->arguments;
  if (!rights.known || forking || stopped || weir_figures.sites_left_unknown || weir_figures.sites_left_confusing) return NOT_HERE;
  switch (call->number) {
    case NR_stat: case NR_lstat: case NR_chmod: case NR_chown: case NR_lchown: return serve_attributes_by_name(call);
    case NR_newfstatat: case NR_statx: case NR_utimensat: case NR_fchmodat: case NR_fchownat: case NR_fstat: case NR_fchmod: case NR_fchown:
      return stands_in((i32)a[0]) ? NOT_HERE : serve_attributes_by_name(call);
    case NR_unlink: return remove_name(AT_FDCWD, a[0]);
    case NR_unlinkat: return a[2] || stands_in((i32)a[0]) ? NOT_HERE : remove_name((i32)a[0], a[1]);
    case NR_rename: return move(AT_FDCWD, a[0], AT_FDCWD, a[1], 0);
    case NR_renameat: case NR_renameat2:
      if (stands_in((i32)a[0]) || stands_in((i32)a[2])) return NOT_HERE;
      return move((i32)a[0], a[1], (i32)a[2], a[3], call->number == NR_renameat ? 0 : (u32)a[4]);
  }
  return NOT_HERE;
}
