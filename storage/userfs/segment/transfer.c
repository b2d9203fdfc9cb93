/* Reads and writes of files of the mount in its segment, without the kernel. What is not certain goes to the kernel, which is right: see
 * segment.h for how both agree.
 *
 * Most reads are of few bytes that are here, of a file that the kernel holds nothing of: `peek_few` looks at no more than these need,
 * and says nothing of all others, which take the longer way.
 */
#include "process.h"

#define LOAD(p) __atomic_load_n(&(p), __ATOMIC_ACQUIRE)
#define SIZE_MAX_CALL 0x7ffff000ul
#define TRIES 3
#define AT_STATX_FORCE_SYNC 0x2000u
#define STATX_SIZE 0x200u
/* Files up to this size are invalidated whole. */
#define WHOLE_BYTES (256 * 1024ul)

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

/* Whether a read of the record may be served: the kernel has no pages that a map may have changed. */
int kernel_has_none(struct segment_record *r) {
  return __atomic_load_n(&r->fills, __ATOMIC_ACQUIRE) == __atomic_load_n(&r->fills_gone, __ATOMIC_ACQUIRE);
}

/* Whether the file's bytes here are the true ones. What can never be written is so, whatever the kernel holds. */
static int may_read(struct segment_record *r) {
  if (!__atomic_load_n(&r->live, __ATOMIC_ACQUIRE)) return 0;
  return r->partial || (!r->left_to_kernel && kernel_has_none(r));
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

/* What is not here yet of a file that never changes is fetched, once. */
static i64 read_or_fetch(u32 fd, const struct descriptor *d, u64 offset, void *to, u64 bytes, int *served) {
  i64 result = read_at(d, offset, to, bytes, served);
  return *served || !private_fetch(fd, d->record) ? result : read_at(d, offset, to, bytes, served);
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

/* Whether the kernel may have an inode of the file, and so a size of its own. */
int kernel_knows_file(u64 inode) {
  const struct segment_record *r = segment_record_at(segment, inode);
  const struct segment_node *node = segment_names(segment) ? segment_node_at(segment, inode) : 0;
  if (!r) return 1;
  if (node) return LOAD(node->told) || LOAD(r->told) != LOAD(r->told_gone);
  return LOAD(r->told) != 0;
}

/* The file grew to `size` past the kernel, and ends with `last`. The page that the kernel makes for that byte is not a whole one, unless it is the page's
 * first: then it is announced. Either goes at once. */
static void tell_size(struct segment_record *r, u64 inode, u64 size, u8 last, i32 connection) {
  struct {
    u32 length;
    i32 notice;
    u64 unique;
    u64 inode, offset;
    u32 bytes, padding;
    u8 last;
  } out = {.length = 41, .notice = 4, .inode = inode, .offset = size - 1, .bytes = 1, .last = last};
  if (out.offset % PAGE == 0) __atomic_fetch_add(&r->fills, 1, __ATOMIC_SEQ_CST);
  if (SYS(NR_write, connection, &out, out.length, 0, 0, 0) == (i64)out.length) invalidate(connection, inode, (i64)out.offset, 1);
}

/* Where a file grows that the kernel knows it must be told, and cannot be told of a page's first byte without a page. */
static int grows_unsaid(const struct segment_record *r, u64 inode, u64 end) {
  return end > LOAD(r->size) && (end - 1) % PAGE == 0 && kernel_knows_file(inode);
}

/* What a write did to the size. */
struct growth {
  u64 before, after;
  u8 last;
};

/* With the record locked. Whether it was written. */
static int write_locked(const struct segment_caller *c, struct segment_record *r, const struct descriptor *d, u64 *offset, const void *from,
                        u64 bytes, int append, i64 *result, struct growth *growth) {
  if (!r->live || r->left_to_kernel || (append && !kernel_has_none(r))) return 0;
  if (append) *offset = r->size;
  if (grows_unsaid(r, d->record, *offset + bytes)) return 0;
  growth->before = r->size;
  *result = segment_write(c, r, *offset, from, bytes, now_ns());
  growth->after = r->size;
  if (growth->after > growth->before && segment_read(c, r, growth->after - 1, &growth->last, 1) != 1) growth->last = 0;
  return 1;
}

/* With `append`, *offset is where it went. *again: the kernel is to ask for the size. */
static i64 write_at(const struct descriptor *d, u64 *offset, const void *from, u64 bytes, int append, int *served, int *again) {
  struct segment_caller c = caller();
  struct segment_record *r = segment_record_at(segment, d->record);
  struct growth growth = {0};
  i32 connection = -1;
  i64 result = 0;
  *served = *again = 0;
  if (!r || r->left_to_kernel || r->partial || (append && !kernel_has_none(r))) return 0;
  /* Before the bytes are there nothing is lost if the kernel cannot be told. */
  int tells = r->told != r->told_gone || ((append || *offset + bytes > LOAD(r->size)) && kernel_knows_file(d->record));
  if (tells && (connection = kernel()) < 0) return 0;
  if (lock_without_pages(&c, r, d->record, *offset, bytes, &connection)) {
    *served = write_locked(&c, r, d, offset, from, bytes, append, &result, &growth);
    segment_unlock(r);
    if (growth.after > growth.before && kernel_knows_file(d->record)) {
      if (connection < 0) connection = kernel();
      if (connection >= 0) tell_size(r, d->record, growth.after, growth.last, connection);
      /* Whoever made it shorter meanwhile said so before we did. */
      *again = connection < 0 || LOAD(r->size) < growth.after;
    }
    if (*served) tell_kernel(r, d->record, &connection);
  }
  if (connection >= 0) SYS(NR_close, connection, 0, 0, 0, 0, 0);
  return result;
}

void have_size_asked(i32 folder, const u8 *name, u32 how) {
  u64 stat[32];
  SYS(NR_statx, folder, name, how | AT_STATX_FORCE_SYNC, STATX_SIZE, stat, 0);
}

/* The same of the descriptor's file. With `d` locked. */
static void have_it_ask(u32 fd, struct descriptor *d) {
  private_end(fd, d);
  have_size_asked((i32)fd, (const u8 *)"", AT_EMPTY_PATH);
}

static inline void count(int writes, i64 result) {
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
  int served = 0, again = 0;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (__atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE) != word) return pass();
  /* What is longer than any file of this machine's memory the kernel judges by where it is. */
  if (!bytes || bytes > SIZE_MAX_CALL || offset > 1ul << 62) return pass();
  if (writes ? access == 0 || file_limit || (copy.flags & O_APPEND) : access == O_WRONLY) return pass();
  i64 result = writes ? write_at(&copy, &offset, (const void *)call->arguments[1], bytes, 0, &served, &again)
                      : read_or_fetch(fd, &copy, offset, (void *)call->arguments[1], bytes, &served);
  if (!served) return pass();
  if (again) {
    lock(&descriptors[fd]);
    have_it_ask(fd, &descriptors[fd]);
    unlock(&descriptors[fd]);
  }
  count(writes, result);
  call->number = (u64)result;
  return ACT_DONE;
}

/* Bytes inside one of the first blocks, without a lock (see segment_peek); SEGMENT_NOT_HERE when it is not as simple as that. */
static inline i64 peek_few(u64 record, u64 offset, void *to, u64 bytes) {
  u64 number = offset / BLOCK_BYTES, inside = offset % BLOCK_BYTES;
  if (record >= segment->records_max || number >= DIRECT_BLOCKS || inside + bytes > BLOCK_BYTES) return SEGMENT_NOT_HERE;
  struct segment_record *r = (struct segment_record *)((u8 *)segment + segment->records_offset) + record;
  u32 version = LOAD(r->version), block = r->direct[number];
  if (version & 1 || !may_read(r) || offset + bytes > LOAD(r->size) || !block || block > segment->blocks_max) return SEGMENT_NOT_HERE;
  if (weir_copy(to, (u8 *)segment + segment->blocks_offset + block * BLOCK_BYTES + inside, bytes)) return SEGMENT_NOT_HERE;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return LOAD(r->version) == version ? (i64)bytes : SEGMENT_NOT_HERE;
}

/* A read of few bytes at a place of its own; 0 when it is not as simple as that, and nothing is done. */
static inline int read_few_at(struct call *call, u32 fd, u32 word) {
  const struct descriptor *d = &descriptors[fd];
  u64 bytes = call->arguments[2], record = d->record;
  u32 flags = d->flags;
  if (bytes - 1 >= BLOCK_BYTES) return 0;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (LOAD(weir_states[fd]) != word || (flags & O_ACCMODE) == O_WRONLY) return 0;
  i64 result = peek_few(record, call->arguments[3], (void *)call->arguments[1], bytes);
  if (result < 0) return 0;
  count(0, result);
  call->number = (u64)result;
  return 1;
}

/* The same at the position. */
static inline int read_few(struct call *call, u32 fd, u32 word) {
  struct descriptor *d = &descriptors[fd];
  struct cursor *cursor = &cursors[fd];
  u64 bytes = call->arguments[2];
  i64 result = SEGMENT_NOT_HERE;
  if (bytes - 1 >= BLOCK_BYTES || !cursor->private) return 0;
  lock(d);
  if (LOAD(weir_states[fd]) == word && cursor->known && !d->passing && (d->flags & O_ACCMODE) != O_WRONLY)
    result = peek_few(d->record, cursor->position, (void *)call->arguments[1], bytes);
  if (result >= 0) {
    cursor->position += (u64)result;
    cursor->moved = 1;
  }
  unlock(d);
  if (result < 0) return 0;
  count(0, result);
  call->number = (u64)result;
  return 1;
}

/* All that is not as simple. */
static __attribute__((noinline)) u64 transfer_any(struct call *call) {
  u64 number = call->number, bytes = call->arguments[2];
  u32 fd = (u32)call->arguments[0];
  int writes = number == NR_write || number == NR_pwrite, own_offset = number == NR_pread || number == NR_pwrite;
  struct descriptor *d = &descriptors[fd];
  u32 word = LOAD(weir_states[fd]);
  int served = 0, again = 0;
  if (stopped) return ACT_PASS;
  if (weir_figures.sites_left_unknown) {
    stop(SEGMENT_SITES);
    return ACT_PASS;
  }
  if (state(word) != OURS) {
    if (classify(fd, word) != OURS) return ACT_PASS;
    word = LOAD(weir_states[fd]);
  }
  if (state(word) != OURS) return pass();
  if (own_offset) {
    u64 act = transfer_at(call, fd, word, writes);
    if (act == ACT_PASS && cursor_of(d)->stands_in) {
      lock(d);
      private_end(fd, d);
      unlock(d);
    }
    return act;
  }
  if (!cursor_of(d)->private) return pass();
  lock(d);
  if (LOAD(weir_states[fd]) != word) {
    unlock(d);
    return pass();
  }
  u32 access = d->flags & O_ACCMODE;
  int allowed = writes ? access != 0 && !file_limit : access != O_WRONLY;
  if (!allowed || !bytes || bytes > SIZE_MAX_CALL || d->passing || !position(fd, d) || cursor_of(d)->position > 1ul << 62) return pass_position(fd, d);
  u64 offset = cursor_of(d)->position;
  i64 result = writes ? write_at(d, &offset, (const void *)call->arguments[1], bytes, (d->flags & O_APPEND) != 0, &served, &again)
                      : read_or_fetch(fd, d, offset, (void *)call->arguments[1], bytes, &served);
  if (!served) return pass_position(fd, d);
  if (result > 0) {
    cursor_of(d)->position = offset + (u64)result;
    cursor_of(d)->moved = 1;
  }
  if (again) have_it_ask(fd, d);
  unlock(d);
  count(writes, result);
  call->number = (u64)result;
  return ACT_DONE;
}

/* What most calls need stands alone, so that nothing is kept for what the others do. */
u64 transfer(struct call *call) {
  u32 fd = (u32)call->arguments[0], word = LOAD(weir_states[fd]);
  if (state(word) == OURS && !stopped && !weir_figures.sites_left_unknown) {
    if (call->number == NR_pread && read_few_at(call, fd, word)) return ACT_DONE;
    if (call->number == NR_read && read_few(call, fd, word)) return ACT_DONE;
  }
  return transfer_any(call);
}
