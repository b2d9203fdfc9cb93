/* Files that one process opens, uses and closes, and nobody else sees: most small ones. The kernel is asked for a descriptor of
 * the directory (O_PATH), which finds the directory by all of the kernel's rules, and takes the number; the file is found or made by
 * its name in the segment (names.h). So neither FUSE nor the daemon is asked.
 *
 * Before anybody could tell the difference, the file's own descriptor takes the place of the directory's under the same number: at
 * fork, exec, dup, passing, locks, maps, and every call that is not served here. A call that is not seen at all (no site that
 * is left makes one, as far as patch.c can tell) fails with EBADF, as no data can be read or written by such a descriptor.
 *
 * Who may open is judged here as the kernel would (mode, owner, group, CAP_DAC_OVERRIDE), for as long as the process does not change who it
 * is; what is not certainly allowed is left to the kernel. What others see in /proc of such a descriptor is the directory.
 */
#include "calls.h"
#include "process.h"

#define CHUNK 64ul
#define CAPABILITIES_VERSION 0x20080522u
#define CAP_DAC_OVERRIDE 2u
#define F_DUPFD 0
#define F_GETFD 1
#define F_GETFL 3
#define F_DUPFD_CLOEXEC 1030
#define F_SETFD 2
#define F_CREATED_QUERY 1028
#define EPOLL_CTL_ADD 1
#define AT_STATX_DONT_SYNC 0x4000u
#define STATX_INO 0x100u
#define SECRET_BYTES 64
/* Commands of ioctl that are about these. */
#define TERMINALS 0x54u
#define ALLOWED (O_ACCMODE | O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_APPEND | O_NONBLOCK | O_LARGEFILE | O_NOFOLLOW | O_CLOEXEC)

struct rights rights;
static u8 inside; /* whether the working directory is: 0 unknown, 1 yes, 2 no */
static u32 standing; /* descriptors that stand in */
static u8 asked_again; /* a child of a fork asked for a place of its own */

/* The number of the file, 0 if it is none of the mount. The kernel is not made to ask the daemon for attributes, which it would then have to
 * be told are old when the next file is made. */
static u64 number_at(i32 folder, const u8 *name, u32 how) {
  u64 s[32];
  const u32 *half = (const u32 *)s;
  if (SYS(NR_statx, folder, name, how | AT_STATX_DONT_SYNC, STATX_INO, s, 0)) return 0;
  u64 device = (half[34] & 0xffful) << 8 | (half[35] & 0xfful) | (half[35] & 0xfff00ul) << 12;
  return device == mount.device ? s[4] : 0;
}

u64 number_of(i32 fd) { return number_at(fd, (const u8 *)"", AT_EMPTY_PATH); }

/* Kept while the descriptor is the same: closing one changes its word, if it is one that was seen. */
static u64 folder_by_descriptor(u32 fd) {
  struct descriptor *d = &descriptors[fd];
  seen(fd);
  u32 word = __atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE);
  lock(d);
  if (!d->folder_known || d->folder_word != word) {
    d->folder = number_of((i32)fd);
    d->folder_is_path = d->folder && SYS(NR_fcntl, fd, F_GETFL, 0, 0, 0, 0) & O_PATH ? 1 : 0;
    d->folder_word = word;
    d->folder_known = 1;
  }
  u64 folder = d->folder;
  unlock(d);
  return folder;
}

u64 folder_of(i32 above) {
  if (above == AT_FDCWD) return number_of(above);
  return above >= 0 && (u32)above < DESCRIPTORS_MAX ? folder_by_descriptor((u32)above) : 0;
}

static int is_ours(i32 fd) { return number_of(fd) != 0; }

void private_begin(void) {
  struct {
    u32 version;
    i32 process;
  } head = {CAPABILITIES_VERSION, 0};
  u32 capabilities[6];
  if (!mount.point_bytes || !segment_names(segment)) return;
  if (SYS(NR_capget, &head, capabilities, 0, 0, 0, 0)) return;
  rights.user = (u32)SYS(NR_geteuid, 0, 0, 0, 0, 0, 0);
  rights.group = (u32)SYS(NR_getegid, 0, 0, 0, 0, 0, 0);
  rights.mask = (u32)SYS(NR_umask, 0, 0, 0, 0, 0, 0);
  SYS(NR_umask, rights.mask, 0, 0, 0, 0, 0);
  rights.all = (capabilities[0] & CAP_DAC_OVERRIDE) != 0;
  rights.known = 1;
}

/* A child's descriptors that stand in are rare (another thread opened them while its parent forked), and held by nobody. */
void private_forked(void) { asked_again = 0; }

static u32 slot(void) { return (u32)(process - segment->processes); }

/* Our other groups are not known: of what belongs to neither our user nor our group only that is said which its group and all others may. */
int may(const struct segment_node *n, u32 what) {
  u32 group = n->mode >> 3, others = n->group == rights.group ? group : group & n->mode;
  if (rights.all) return 1;
  return ((n->user == rights.user ? n->mode >> 6 : others) & what) == what;
}

u64 copy_path(u8 *to, u64 from) {
  for (u64 done = 0; done < PATH_MAX_HERE - CHUNK;) {
    u64 part = PAGE - (from + done) % PAGE;
    if (part > CHUNK) part = CHUNK;
    if (weir_copy(to + done, (const void *)(from + done), part)) return 0;
    for (u64 end = done + part; done < end; done++)
      if (!to[done]) return done;
  }
  return 0;
}

/* Whether it is worth asking: the path begins with the mount point, or where it begins is in the mount. Other ways to it (links, second
 * mounts) are the kernel's. */
int may_be_inside(i32 folder, const u8 *path) {
  if (*path == '/') {
    for (u32 i = 0; i < mount.point_bytes; i++)
      if (path[i] != mount.point[i]) return 0;
    return path[mount.point_bytes] == '/';
  }
  if (folder == AT_FDCWD) {
    if (!inside) inside = is_ours(AT_FDCWD) ? 1 : 2;
    return inside == 1;
  }
  return folder_of(folder) != 0;
}

struct wanted {
  u32 flags, mode;
  u64 folder;
  const u8 *name;
  u64 bytes;
  u64 inode; /* what was found or made */
  u32 entry, hold;
  u8 made, emptied;
  u8 shorter; /* than before: the kernel, where it knows the file, is to ask the daemon for its size, which no word of ours makes less */
  u64 known; /* by the kernel, so that another file may be mounted on it: to be looked at */
  u64 bare;  /* on this one nothing is mounted */
};

/* Makes the file. 0, or NOT_HERE. */
static i64 make(struct wanted *w, const struct segment_node *above) {
  u64 now = now_ns();
  struct segment_node node = {.mode = S_IFREG | (w->mode & ~rights.mask), .user = rights.user, .links = 1,
                              .accessed_ns = now, .changed_ns = now, .modified_ns = now};
  node.group = above->mode & S_ISGID ? above->group : rights.group;
  if (w->mode & ~0777u || !may(above, MAY_WRITE | MAY_SEARCH)) return NOT_HERE;
  pages_ready(names_bucket(segment, w->folder, w->name, w->bytes));
  w->entry = names_make(segment, w->folder, w->name, w->bytes, &node);
  w->inode = w->entry;
  w->made = w->inode != 0;
  return w->made ? 0 : NOT_HERE;
}

static i64 empty(struct wanted *w, struct segment_record *r) {
  struct segment_caller c = caller();
  i64 result = NOT_HERE;
  if (segment_lock(&c, r)) return NOT_HERE;
  w->shorter = r->size != 0;
  if (kernel_has_none(r) && !r->left_to_kernel && !segment_resize(&c, r, 0)) {
    __atomic_store_n(&r->modified_ns, now_ns(), __ATOMIC_RELEASE);
    w->emptied = 1;
    result = 0;
  }
  segment_unlock(r);
  return result;
}

/* Of a file that never changes: what is read of it will be here. */
static int can_fetch(const struct segment_record *r) {
  int begun = !r->size || __atomic_load_n(&r->blocks, __ATOMIC_RELAXED);
  return r->size <= FETCH_BYTES_MAX && (begun || !__atomic_load_n(&segment_names(segment)->full, __ATOMIC_RELAXED));
}

/* Takes the file that is there. 0, an error, or NOT_HERE. */
static i64 take(struct wanted *w, const struct segment_node *above, u32 entry) {
  struct segment_name *e = segment_name_at(segment, entry);
  struct segment_node *node = e ? segment_node_at(segment, e->inode) : 0;
  struct segment_record *r = e ? segment_record_at(segment, e->inode) : 0;
  u32 access = w->flags & O_ACCMODE;
  u32 what = access == 0 ? MAY_READ : access == O_WRONLY ? MAY_WRITE : MAY_READ | MAY_WRITE;
  if (!node || !r || (node->mode & S_IFMT) != S_IFREG || node->mode & S_SET_IDS || !r->live) return NOT_HERE;
  if (w->flags & O_CREAT && w->flags & O_EXCL) return -17; /* EEXIST */
  /* fs.protected_regular is the kernel's business. */
  if (w->flags & O_CREAT && above->mode & S_ISVTX) return NOT_HERE;
  /* Its locks go with any descriptor of it. */
  if (r->locked) return NOT_HERE;
  if (!may(node, what) || (r->partial ? !can_fetch(r) : r->left_to_kernel || !kernel_has_none(r))) return NOT_HERE;
  if (__atomic_load_n(&node->told, __ATOMIC_ACQUIRE) && w->bare != e->inode) {
    w->known = e->inode;
    return NOT_HERE;
  }
  w->inode = e->inode;
  w->entry = entry;
  if (!(w->flags & O_TRUNC)) return 0;
  return access ? empty(w, r) : NOT_HERE;
}

struct segment_node *folder_at(u64 folder, u32 what) {
  struct segment_names *n = segment_names(segment);
  struct segment_node *above = segment_node_at(segment, folder);
  if (n->lost || n->unfinished || !above || !above->links || (above->mode & S_IFMT) != S_IFDIR) return 0;
  return may(above, what) ? above : 0;
}

/* With the names locked. */
static i64 find(struct wanted *w) {
  struct segment_node *above = folder_at(w->folder, MAY_SEARCH);
  if (!above) return NOT_HERE;
  i64 hold = names_room(segment, slot());
  if (hold < 0) return NOT_HERE;
  u32 entry = names_find(segment, w->folder, w->name, w->bytes);
  i64 result = entry ? take(w, above, entry) : w->flags & O_CREAT ? make(w, above) : -2; /* ENOENT */
  if (result) return result;
  w->hold = (u32)hold;
  names_hold(segment, slot(), w->hold, (u32)w->inode);
  return 0;
}

/* What was made or emptied must be seen by those who ask the kernel. 0 when it cannot be told; nothing is done then. */
static i64 find_and_tell(struct wanted *w) {
  struct segment_caller c = caller();
  struct segment_record *above = segment_record_at(segment, w->folder);
  i32 connection = -1;
  if (!above) return NOT_HERE;
  if (w->flags & O_CREAT && above->told != __atomic_load_n(&above->told_gone, __ATOMIC_ACQUIRE) && (connection = kernel()) < 0) return NOT_HERE;
  i64 result = NOT_HERE;
  if (!names_lock(&c)) {
    result = find(w);
    names_unlock(segment);
  }
  if (w->made) tell_kernel(above, w->folder, &connection);
  if (w->emptied) tell_kernel(segment_record_at(segment, w->inode), w->inode, &connection);
  if (connection >= 0) SYS(NR_close, connection, 0, 0, 0, 0, 0);
  return result;
}

static void stand_in(u32 fd, const struct wanted *w) {
  struct descriptor *d = &descriptors[fd];
  lock(d);
  d->flags = w->flags & ~(O_CREAT | O_EXCL | O_TRUNC | O_NOCTTY | O_CLOEXEC);
  d->record = w->inode;
  cursor_of(d)->inode = (u32)w->inode;
  cursor_of(d)->position = 0;
  cursor_of(d)->private = cursor_of(d)->known = cursor_of(d)->stands_in = 1;
  cursor_of(d)->moved = 0;
  d->passing = 0;
  d->entry = w->entry;
  d->hold = w->hold;
  __atomic_fetch_add(&standing, 1, __ATOMIC_SEQ_CST);
  unlock(d);
  seen(fd);
  set_state(fd, OURS);
  d->made = w->made;
  d->made_turn = turn(__atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE));
}

u8 *split(u8 *path, u64 bytes, const u8 **folder) {
  u64 at = bytes;
  while (at && path[at - 1] != '/') at--;
  u64 length = bytes - at;
  u8 *name = path + at;
  if (!length || length > NAME_BYTES_MAX || (*name == '.' && (length == 1 || (length == 2 && name[1] == '.')))) return 0;
  *folder = at == 0 ? (const u8 *)"." : at == 1 ? (const u8 *)"/" : path;
  if (at > 1) path[at - 1] = 0;
  return name;
}

static int wanted_of(const struct call *call, struct wanted *w, i32 *folder, u64 *path) {
  const u64 *a = call->arguments;
  int at = call->number == NR_openat;
  *folder = at ? (i32)a[0] : AT_FDCWD;
  *path = a[at];
  w->flags = call->number == NR_creat ? O_CREAT | O_WRONLY | O_TRUNC : (u32)a[1 + at];
  w->mode = (u32)(call->number == NR_creat ? a[1] : a[2 + at]);
  return call->number != NR_openat2 && !(w->flags & ~ALLOWED) && (w->flags & O_ACCMODE) != O_ACCMODE &&
         !(file_limit && w->flags & O_ACCMODE) && !(mount.read_only && w->flags & (O_ACCMODE | O_CREAT | O_TRUNC));
}

/* One more descriptor of the directory that names are relative to. To open "." the kernel would ask whether it may be searched, and where it was told
 * that attributes are old, the daemon for them; which would then be what the kernel must be told is old when the next file is made. So the
 * descriptor is copied where it is as ours would be, and elsewhere looked at from outside. *number stays 0 when it is not known. */
static i32 same_folder(i32 above, u32 closes, u64 *number) {
  u64 folder = folder_of(above);
  struct segment_record *r = folder ? segment_record_at(segment, folder) : 0;
  if (!r) return -1;
  if (above >= 0 && descriptors[above].folder_is_path) {
    *number = folder;
    return (i32)SYS(NR_fcntl, above, closes ? F_DUPFD_CLOEXEC : F_DUPFD, 0, 0, 0, 0);
  }
  if (above == AT_FDCWD && r->told == __atomic_load_n(&r->told_gone, __ATOMIC_ACQUIRE)) {
    i32 fd = (i32)SYS(NR_open, "/proc/self/cwd", O_PATH | O_DIRECTORY | closes, 0, 0, 0, 0);
    /* What is mounted there may be anything. */
    if (fd >= 0 && number_of(fd) == folder) {
      *number = folder;
      return fd;
    }
    if (fd >= 0) SYS(NR_close, fd, 0, 0, 0, 0, 0);
  }
  return (i32)SYS(NR_openat, above, ".", O_PATH | O_DIRECTORY | closes, 0, 0, 0);
}

u64 private_open(struct call *call) {
  u8 path[PATH_MAX_HERE];
  const u8 *folder;
  u64 from;
  i32 above;
  struct wanted w = {0};
  if (!rights.known || forking || !wanted_of(call, &w, &above, &from)) return ACT_AFTER;
  if (weir_figures.sites_left_unknown || weir_figures.sites_left_confusing) return ACT_AFTER;
  u64 bytes = copy_path(path, from);
  if (!bytes || !may_be_inside(above, path)) return ACT_AFTER;
  if (!process && !asked_again) {
    asked_again = 1;
    join();
  }
  w.name = split(path, bytes, &folder);
  if (!process || !w.name) return ACT_AFTER;
  w.bytes = (u64)(path + bytes - w.name);
  i32 fd = w.name == path ? same_folder(above, w.flags & O_CLOEXEC, &w.folder)
                          : (i32)SYS(NR_openat, above, folder, O_PATH | O_DIRECTORY | (w.flags & O_CLOEXEC), 0, 0, 0);
  if (fd < 0) return ACT_AFTER;
  i64 result = NOT_HERE;
  if (!w.folder) w.folder = number_of(fd);
  if ((u32)fd < DESCRIPTORS_MAX && w.folder) result = find_and_tell(&w);
  /* Not with the names locked: the kernel may ask the daemon. */
  if (result == NOT_HERE && w.known && number_at(fd, w.name, AT_SYMLINK_NOFOLLOW) == w.known) {
    w.bare = w.known;
    result = find_and_tell(&w);
  }
  if (!result && w.shorter && kernel_knows_file(w.inode)) have_size_asked(fd, w.name, AT_SYMLINK_NOFOLLOW);
  if (result) SYS(NR_close, fd, 0, 0, 0, 0, 0);
  else stand_in((u32)fd, &w);
  if (result == NOT_HERE) return ACT_AFTER;
  call->number = (u64)(result ? result : fd);
  return ACT_DONE;
}

/* `number`, and a zero byte. */
static void put_number(u8 *to, u32 number) {
  u32 digits = 1;
  for (u32 rest = number; rest >= 10; rest /= 10) digits++;
  to[digits] = 0;
  for (; digits--; number /= 10) to[digits] = (u8)('0' + number % 10);
}

/* By what a path was found to be: then nothing else is opened, and the flags that the program sees are its own. */
static i32 open_found(i32 found, const struct descriptor *d) {
  u8 path[32] = "/proc/self/fd/";
  put_number(path + sizeof "/proc/self/fd/" - 1, (u32)found);
  return (i32)SYS(NR_open, path, (d->flags & ~O_NOFOLLOW) | O_CLOEXEC, 0, 0, 0, 0);
}

static i32 open_again(i32 folder, const u8 *name, const struct descriptor *d) {
  i32 fd = -1, found = d->flags & O_NOFOLLOW ? -1 : (i32)SYS(NR_openat, folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0, 0, 0);
  if (found >= 0) {
    if (number_of(found) == d->record) fd = open_found(found, d);
    SYS(NR_close, found, 0, 0, 0, 0, 0);
  }
  /* Also where there is no /proc. */
  if (fd < 0) fd = (i32)SYS(NR_openat, folder, name, d->flags | O_NOFOLLOW | O_CLOEXEC, 0, 0, 0);
  if (fd >= 0 && number_of(fd) != d->record) {
    SYS(NR_close, fd, 0, 0, 0, 0, 0);
    return -1;
  }
  return fd;
}

/* By the name by which it was opened, if it still has it. */
static i32 open_by_name(u32 fd, const struct descriptor *d) {
  struct segment_caller c = caller();
  struct segment_name *e = segment_name_at(segment, d->entry);
  u8 name[NAME_BYTES_MAX + 1];
  u64 bytes = 0;
  if (!e || names_lock(&c)) return -1;
  if (e->folder && e->inode == d->record && e->bytes <= NAME_BYTES_MAX)
    for (; bytes < e->bytes; bytes++) name[bytes] = e->text[bytes];
  names_unlock(segment);
  name[bytes] = 0;
  return bytes ? open_again((i32)fd, name, d) : -1;
}

static u8 *put_hex(u8 *to, u64 number, u32 digits) {
  while (digits--) *to++ = (u8)"0123456789abcdef"[number >> (4 * digits) & 15];
  return to;
}

/* The kernel forgets the name at once, so that nothing keeps the file when it is closed. */
static void forget_name(u64 folder, const u8 *name, u32 bytes) {
  struct {
    u32 length;
    i32 notice;
    u64 unique;
    u64 folder;
    u32 bytes, flags;
    u8 name[SECRET_BYTES];
  } out = {.length = 32 + bytes + 1, .notice = 3, .folder = folder, .bytes = bytes};
  i32 connection = kernel();
  if (connection < 0) return;
  for (u32 i = 0; i < bytes; i++) out.name[i] = name[i];
  SYS(NR_write, connection, &out, out.length, 0, 0, 0);
  SYS(NR_close, connection, 0, 0, 0, 0, 0);
}

static u8 *put_text(u8 *to, const char *text) {
  while (*text) *to++ = (u8)*text++;
  return to;
}

/* A name that only we know; its end. */
static u8 *put_secret(u8 *name, u64 number) {
  u8 *end = put_hex(put_text(name, ".weir-"), segment_names(segment)->token, 16);
  end = put_hex(put_text(end, "-"), number, 8);
  *end = 0;
  return end;
}

/* The name is never there, so nothing is left of it. */
int private_fetch(u32 fd, u64 record) {
  const struct segment_record *r = segment_record_at(segment, record);
  u8 name[SECRET_BYTES];
  if (!cursors[fd].stands_in || !r || !r->partial || __atomic_load_n(&segment_names(segment)->full, __ATOMIC_RELAXED)) return 0;
  *put_text(put_secret(name, record), "-fetch") = 0;
  number_at((i32)fd, name, AT_SYMLINK_NOFOLLOW);
  return 1;
}

/* A file that was renamed or removed, by a name that only we know: the backend finds the file of that number. In the root, which is always
 * there. */
static i32 open_by_number(const struct descriptor *d) {
  u8 name[SECRET_BYTES], *end = put_secret(name, d->record);
  i32 root = (i32)SYS(NR_open, mount.point, O_PATH | O_DIRECTORY | O_CLOEXEC, 0, 0, 0, 0);
  if (root < 0) return -1;
  i32 fd = is_ours(root) ? open_again(root, name, d) : -1;
  SYS(NR_close, root, 0, 0, 0, 0, 0);
  if (fd >= 0) forget_name(1, name, (u32)(end - name));
  return fd;
}

void private_end(u32 fd, struct descriptor *d) {
  if (!cursor_of(d)->stands_in) return;
  i32 real = open_by_name(fd, d);
  if (real < 0) real = open_by_number(d);
  if (real < 0) return; /* no descriptors are left: it stays, and the kernel says EBADF */
  if (cursor_of(d)->position) SYS(NR_lseek, real, cursor_of(d)->position, 0, 0, 0, 0);
  i64 closes = SYS(NR_fcntl, fd, F_GETFD, 0, 0, 0, 0);
  SYS(NR_dup3, real, fd, closes == 1 ? O_CLOEXEC : 0, 0, 0, 0);
  SYS(NR_close, real, 0, 0, 0, 0, 0);
  cursor_of(d)->moved = 0;
  cursor_of(d)->stands_in = 0;
  __atomic_fetch_sub(&standing, 1, __ATOMIC_SEQ_CST);
  if (process) names_release(segment, slot(), d->hold);
}

void private_moved(void) { inside = 0; }

void private_gone(u32 fd) {
  struct descriptor *d = &descriptors[fd];
  if (!__atomic_load_n(&standing, __ATOMIC_SEQ_CST) || !cursor_of(d)->stands_in) return;
  lock(d);
  if (cursor_of(d)->stands_in && has_locks(d->record)) private_end(fd, d);
  if (cursor_of(d)->stands_in) {
    cursor_of(d)->stands_in = 0;
    __atomic_fetch_sub(&standing, 1, __ATOMIC_SEQ_CST);
    if (process) names_release(segment, slot(), d->hold);
  }
  unlock(d);
}

static int is_nothing(u64 from) {
  u8 first;
  return weir_copy(&first, (const void *)from, 1) || !first;
}

static void end(u64 argument) {
  if (argument >= DESCRIPTORS_MAX || !cursors[argument].stands_in) return;
  struct descriptor *d = &descriptors[argument];
  lock(d);
  private_end((u32)argument, d);
  unlock(d);
}

void private_end_all(void) {
  for (u64 fd = 0; fd < descriptors_end && standing; fd++) end(fd);
}

void private_end_of(u64 record) {
  for (u64 fd = 0; fd < descriptors_end && standing; fd++)
    if (cursors[fd].stands_in && descriptors[fd].record == record) end(fd);
}

/* Names of descriptors: below /proc, /dev/fd, /dev/stdin and its like, and numbers, which they are in a folder of those. */
static int is_number_of_descriptor(const u8 *path, u64 bytes) {
  u64 at = bytes;
  while (at && path[at - 1] >= '0' && path[at - 1] <= '9') at--;
  if (at < bytes && (!at || path[at - 1] == '/')) return 1;
  if (path[0] != '/') return 0;
  while (path[1] == '/') path++;
  if (path[1] == 'p') return path[2] == 'r' && path[3] == 'o' && path[4] == 'c';
  return path[1] == 'd' && path[2] == 'e' && path[3] == 'v' && path[4] == '/' && (path[5] == 'f' || path[5] == 's');
}

/* What is never followed where a path ends. */
static int follows(u64 number) {
  switch (number) {
    case NR_lstat: case NR_readlink: case NR_readlinkat: case NR_unlink: case NR_unlinkat: case NR_rmdir: case NR_rename: case NR_renameat:
    case NR_renameat2: case NR_symlink: case NR_symlinkat: case NR_mkdir: case NR_mkdirat: case NR_mknod: case NR_mknodat: case NR_lchown:
    case NR_lsetxattr: case NR_lgetxattr: case NR_llistxattr: case NR_lremovexattr: return 0;
  }
  return 1;
}

/* Whether the path may lead to a descriptor: also what is a link, which may lead anywhere. */
static int leads_to_descriptor(i32 above, u64 from, int followed) {
  u8 path[PATH_MAX_HERE], target[8];
  u64 bytes = copy_path(path, from);
  if (!bytes) return !is_nothing(from);
  if (is_number_of_descriptor(path, bytes)) return 1;
  return followed && SYS(NR_readlinkat, above, path, target, sizeof target, 0, 0) > 0;
}

void private_named(const struct call *call) {
  const struct call_kind *kind = &call_kinds[call->number];
  const u64 *a = call->arguments;
  if (!kind->paths || !__atomic_load_n(&standing, __ATOMIC_RELAXED)) return;
  int followed = follows(call->number);
  for (u32 i = 0; i < 6; i++) {
    if (!(kind->paths >> i & 1) || !a[i]) continue;
    int relative = i && kind->descriptors >> (i - 1) & 1 && call->number != NR_inotify_add_watch;
    if (!leads_to_descriptor(relative ? (i32)a[i - 1] : AT_FDCWD, a[i], followed)) continue;
    private_end_all();
    return;
  }
}

/* Of poll: eight bytes each, of which the first four are the descriptor. */
static void end_polled(u64 at, u64 count) {
  for (u64 i = 0; i < count && standing; i++) {
    i32 fd;
    if (weir_copy(&fd, (const void *)(at + i * 8), sizeof fd)) return;
    if (fd >= 0) end((u64)fd);
  }
}

/* Of select: three sets of bits. */
static void end_selected(const u64 *arguments) {
  for (int set = 1; set <= 3; set++) {
    u64 word;
    if (!arguments[set]) continue;
    for (u64 fd = 0; fd < arguments[0] && fd < DESCRIPTORS_MAX && standing; fd += 64) {
      if (weir_copy(&word, (const void *)(arguments[set] + fd / 8), sizeof word)) break;
      for (u64 bit = 0; bit < 64 && word; bit++)
        if (word >> bit & 1) end(fd + bit);
    }
  }
}

/* Which changes who the process is, or where it finds files. What it opened it may not be allowed to open again, so that is done now. */
static void notice(u64 number) {
  switch (number) {
    case NR_setuid: case NR_setgid: case NR_setreuid: case NR_setregid: case NR_setresuid: case NR_setresgid:
    case NR_setfsuid: case NR_setfsgid: case NR_setgroups: case NR_capset: case NR_unshare: case NR_setns:
      rights.known = 0;
      private_end_all();
      return;
    case NR_chroot: case NR_pivot_root: private_end_all();
  }
}

/* Calls that name descriptors in memory. Those of terminals, by which most are, name none. */
static int names_in_memory(const struct call *call) {
  u64 command = call->arguments[1];
  switch (call->number) {
    case NR_ioctl: return (u32)command >> 8 != TERMINALS;
    /* What is done by such a context is not seen, so nothing stands in from now on. */
    case NR_io_setup: rights.known = 0; return 1;
    case NR_landlock_add_rule: return 1;
  }
  return !call_kinds[call->number].how;
}

/* Whether it is a file of the mount, which nobody can wait for. */
static int is_file(u64 fd) {
  if (fd >= DESCRIPTORS_MAX) return 0;
  u32 word = looked_at((u32)fd);
  return state(word) == OURS || (state(word) == FRESH && classify((u32)fd, word) == OURS);
}

u64 private_before(struct call *call) {
  const u64 *a = call->arguments;
  notice(call->number);
  if (call->number == NR_fcntl && a[1] == F_CREATED_QUERY && has_made((u32)a[0])) {
    call->number = 1;
    return ACT_DONE;
  }
  /* As on any other file system. By the kernel's side of FUSE it would be watched, and programs that try (Go's) then use it as they would a
   * socket. */
  if (call->number == NR_epoll_ctl && a[1] == EPOLL_CTL_ADD && is_file(a[2])) {
    call->number = (u64)-1; /* EPERM */
    return ACT_DONE;
  }
  if (call->number == NR_umask) rights.mask = (u32)a[0] & 0777;
  i64 served = serve_named(call);
  if (served != NOT_HERE) {
    call->number = (u64)served;
    return ACT_DONE;
  }
  if (!__atomic_load_n(&standing, __ATOMIC_RELAXED) && call->number != NR_io_setup) return ACT_PASS;
  if (names_in_memory(call)) private_end_all();
  const struct call_kind *kind = &call_kinds[call->number];
  for (u32 i = 1; i < 6; i++)
    if (kind->descriptors >> i & 1) end(a[i]);
  switch (call->number) {
    /* What private_open does not serve is looked at then. */
    case NR_open: case NR_creat: return ACT_PASS;
    case NR_openat: case NR_openat2: break;
    case NR_poll: case NR_ppoll: end_polled(a[0], a[1]); return ACT_PASS;
    case NR_select: case NR_pselect: end_selected(a); return ACT_PASS;
    case NR_read: case NR_write: case NR_pread: case NR_pwrite: case NR_lseek: case NR_close: case NR_close_range: case NR_dup2:
    case NR_dup3: return ACT_PASS; /* client.c knows what they leave behind */
    case NR_fcntl:
      if (a[1] == F_GETFD || a[1] == F_SETFD) return ACT_PASS;
      break;
    default: private_named(call);
  }
  if (!(kind->descriptors & CALLS_FIRST) || a[0] >= DESCRIPTORS_MAX || !cursors[a[0]].stands_in) return ACT_PASS;
  served = serve_attributes(call, (u32)a[0]);
  if (served == NOT_HERE) {
    end(a[0]);
    return ACT_PASS;
  }
  call->number = (u64)served;
  return ACT_DONE;
}
