#include "names.h"

#define LOAD(p) __atomic_load_n(&(p), __ATOMIC_ACQUIRE)
#define STORE(p, v) __atomic_store_n(&(p), (v), __ATOMIC_RELEASE)
#define ADD(p, v) __atomic_fetch_add(&(p), (v), __ATOMIC_RELAXED)

/* Turns of a spinning waiter between two looks at the holder. */
#define SPINS_BEFORE_LOOK 20000

/* Head and records. */
static u64 head_bytes(u64 records_max) {
  u64 head = HEAD_BLOCKS * BLOCK_BYTES + records_max * sizeof(struct segment_record);
  return (head + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1);
}

static u64 links_bytes(u64 blocks_max) { return ((blocks_max + 1) * sizeof(u32) + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1); }

u64 segment_bytes(u64 records_max, u64 blocks_max, int named) {
  return head_bytes(records_max) + (named ? names_bytes(records_max) : 0) + links_bytes(blocks_max) + (blocks_max + 1) * BLOCK_BYTES;
}

void segment_format(struct segment *s, u64 records_max, u64 blocks_max, int named) {
  s->records_max = records_max;
  s->blocks_max = blocks_max;
  s->records_offset = HEAD_BLOCKS * BLOCK_BYTES;
  s->bytes = segment_bytes(records_max, blocks_max, named);
  s->blocks_offset = s->bytes - (blocks_max + 1) * BLOCK_BYTES;
  s->links_offset = s->blocks_offset - links_bytes(blocks_max);
  s->next_block = 1;
  if (named) {
    s->names_offset = head_bytes(records_max);
    names_format(s, records_max);
  }
  STORE(s->magic, SEGMENT_MAGIC);
}

struct segment_record *segment_record_at(struct segment *s, u64 number) {
  if (number >= s->records_max) return 0;
  return (struct segment_record *)((u8 *)s + s->records_offset) + number;
}

static u8 *block_at(struct segment *s, u32 block) {
  return (u8 *)s + s->blocks_offset + block * BLOCK_BYTES;
}

static void clear(void *to, u64 bytes) {
  u64 words = bytes / 8, rest = bytes % 8;
  __asm__ volatile("rep stosq" : "+D"(to), "+c"(words) : "a"(0ul) : "memory");
  __asm__ volatile("rep stosb" : "+D"(to), "+c"(rest) : "a"(0ul) : "memory");
}

int segment_lock_word(const struct segment_caller *c, u32 *word) {
  for (u64 turns = 1;; turns++) {
    u32 holder = 0;
    if (__atomic_compare_exchange_n(word, &holder, c->thread, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return 0;
    if (holder == c->thread) return SEGMENT_DEADLOCK;
    __builtin_ia32_pause();
    if (turns % SPINS_BEFORE_LOOK) continue;
    if (c->waited(holder) &&
        __atomic_compare_exchange_n(word, &holder, c->thread, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      ADD(c->segment->locks_taken_over, 1);
      return 0;
    }
  }
}

int segment_lock(const struct segment_caller *c, struct segment_record *r) { return segment_lock_word(c, &r->lock); }
void segment_unlock(struct segment_record *r) { STORE(r->lock, 0); }

/* A block number that came from the segment may be damaged by a foreign process: never follow one outside. */
static u32 sound(struct segment *s, u32 block) { return block <= s->blocks_max ? block : 0; }

/* What is free is in a stack without lock: its first block, with a tag above it that changes each time. */
static volatile u32 *link_of(struct segment *s, u32 block) { return (u32 *)((u8 *)s + s->links_offset) + block; }

static u32 pop(struct segment *s, u64 *stack) {
  u64 head = LOAD(*stack);
  while (sound(s, (u32)head)) {
    u64 next = *link_of(s, (u32)head) | ((head >> 32) + 1) << 32;
    if (__atomic_compare_exchange_n(stack, &head, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return (u32)head;
  }
  return 0;
}

static void push(struct segment *s, u64 *stack, u32 block) {
  u64 head = LOAD(*stack), next;
  do {
    *link_of(s, block) = (u32)head;
    next = block | ((head >> 32) + 1) << 32;
  } while (!__atomic_compare_exchange_n(stack, &head, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
}

/* A block with unknown contents, or 0. Those that have memory first. */
static u32 take_block(struct segment *s) {
  u32 block = pop(s, &s->free_block);
  if (!block && (block = pop(s, &s->bare_block))) ADD(s->bare_count, (u64)-1);
  u64 fresh = LOAD(s->next_block);
  while (!block && fresh <= s->blocks_max)
    if (__atomic_compare_exchange_n(&s->next_block, &fresh, fresh + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) block = (u32)fresh;
  if (block) ADD(s->blocks_used, 1);
  return block;
}

static void give_block(struct segment *s, u32 block) {
  push(s, &s->free_block, block);
  ADD(s->blocks_used, (u64)-1);
}

u64 segment_take_free(struct segment *s, u32 *blocks, u64 most) {
  u64 count = 0;
  while (count < most && (blocks[count] = pop(s, &s->free_block))) count++;
  return count;
}

void segment_bare(struct segment *s, u32 block) {
  ADD(s->bare_count, 1);
  push(s, &s->bare_block, block);
}

void segment_free(struct segment *s, u32 block) { push(s, &s->free_block, block); }

/* Where the number of a file's block is kept. With `make`, index blocks on the way are made; 0 when there is none. */
static u32 *slot(struct segment *s, struct segment_record *r, u64 number, int make) {
  if (number < DIRECT_BLOCKS) return &r->direct[number];
  number -= DIRECT_BLOCKS;
  u64 covered = BLOCKS_IN_INDEX;
  u32 depth = 0;
  while (number >= covered) {
    number -= covered;
    covered *= BLOCKS_IN_INDEX;
    if (++depth == 3) return 0;
  }
  u32 *at = &r->index[depth];
  for (u32 level = 0; level <= depth; level++) {
    u32 block = sound(s, *at);
    if (!block) {
      if (!make || !(block = take_block(s))) return 0;
      clear(block_at(s, block), BLOCK_BYTES);
      STORE(*at, block);
      r->blocks++;
    }
    covered /= BLOCKS_IN_INDEX;
    at = (u32 *)block_at(s, block) + number / covered;
    number %= covered;
  }
  return at;
}

static u64 least(u64 a, u64 b) { return a < b ? a : b; }

static void change_begins(struct segment_record *r) {
  __atomic_store_n(&r->version, r->version | 1, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static void change_ends(struct segment_record *r) { STORE(r->version, (r->version | 1) + 1); }

static int all_here(const struct segment_caller *c, struct segment_record *r, u64 offset, u64 bytes) {
  for (u64 number = offset / BLOCK_BYTES; number <= (offset + bytes - 1) / BLOCK_BYTES; number++) {
    u32 *kept = slot(c->segment, r, number, 0);
    if (!kept || !*kept) return 0;
  }
  return 1;
}

i64 segment_peek(const struct segment_caller *c, struct segment_record *r, u64 offset, void *to, u64 bytes) {
  u32 version = LOAD(r->version);
  if (version & 1) return SEGMENT_NOT_HERE;
  i64 result = segment_read(c, r, offset, to, bytes);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return LOAD(r->version) == version ? result : SEGMENT_NOT_HERE;
}

i64 segment_read(const struct segment_caller *c, struct segment_record *r, u64 offset, void *to, u64 bytes) {
  static const u8 zeros[BLOCK_BYTES];
  u64 size = LOAD(r->size), done = 0;
  if (offset >= size) return 0;
  bytes = least(bytes, size - offset);
  if (r->partial && bytes && !all_here(c, r, offset, bytes)) return SEGMENT_NOT_HERE;
  while (done < bytes) {
    u64 at = offset + done, inside = at % BLOCK_BYTES;
    u64 part = least(bytes - done, BLOCK_BYTES - inside);
    u32 *kept = slot(c->segment, r, at / BLOCK_BYTES, 0);
    u32 block = kept ? sound(c->segment, *kept) : 0;
    const u8 *from = block ? block_at(c->segment, block) + inside : zeros;
    u64 left = c->copy((u8 *)to + done, from, part);
    done += part - left;
    if (left) return done ? (i64)done : SEGMENT_FAULT;
  }
  return (i64)done;
}

i64 segment_write(const struct segment_caller *c, struct segment_record *r, u64 offset, const void *from, u64 bytes,
                  u64 now_ns) {
  u64 done = 0;
  i64 failed = 0;
  if (offset >= FILE_BLOCKS_MAX * BLOCK_BYTES) return SEGMENT_TOO_BIG;
  bytes = least(bytes, FILE_BLOCKS_MAX * BLOCK_BYTES - offset);
  change_begins(r);
  while (done < bytes && !failed) {
    u64 at = offset + done, inside = at % BLOCK_BYTES;
    u64 part = least(bytes - done, BLOCK_BYTES - inside);
    u32 *kept = slot(c->segment, r, at / BLOCK_BYTES, 1);
    u32 block = kept ? sound(c->segment, *kept) : 0, fresh = 0;
    if (!block) {
      if (!kept || !(block = fresh = take_block(c->segment))) {
        failed = SEGMENT_NO_SPACE;
        break;
      }
      c->ready(block_at(c->segment, block));
      if (part < BLOCK_BYTES) clear(block_at(c->segment, block), BLOCK_BYTES);
    } else {
      c->ready(block_at(c->segment, block));
    }
    u64 left = c->copy(block_at(c->segment, block) + inside, (const u8 *)from + done, part);
    if (left) failed = SEGMENT_FAULT;
    if (fresh && left) clear(block_at(c->segment, block) + inside + part - left, left);
    if (fresh) {
      STORE(*kept, fresh);
      r->blocks++;
    }
    done += part - left;
  }
  if (done) {
    if (offset + done > r->size) STORE(r->size, offset + done);
    STORE(r->modified_ns, now_ns);
  }
  change_ends(r);
  return done ? (i64)done : failed;
}

/* The first block number behind `number` that may be there, when `number` has no index block: a sparse file of
 * terabytes is not walked block by block. */
static u64 behind_gap(u64 number, const u32 *kept) {
  if (kept || number < DIRECT_BLOCKS) return number + 1;
  return ((number - DIRECT_BLOCKS) / BLOCKS_IN_INDEX + 1) * BLOCKS_IN_INDEX + DIRECT_BLOCKS;
}

/* Gives back every block of the subtree below `at` whose number is `keep` or more. `covered` is how many blocks of
 * the file one entry of this level stands for. */
static void drop_from(struct segment *s, struct segment_record *r, u32 *at, u32 level, u64 covered, u64 keep) {
  u32 block = sound(s, *at);
  if (!block) return;
  if (level) {
    u32 *entries = (u32 *)block_at(s, block);
    u64 below = covered / BLOCKS_IN_INDEX;
    for (u64 i = BLOCKS_IN_INDEX; i-- > keep / below;)
      drop_from(s, r, entries + i, level - 1, below, i * below < keep ? keep - i * below : 0);
  }
  if (keep) return;
  STORE(*at, 0);
  r->blocks--;
  give_block(s, block);
}

/* The last first: they are taken from the free list the other way round, so that the next file lies in a row again. */
static void drop_blocks(struct segment *s, struct segment_record *r, u64 keep) {
  static const u64 covered[3] = {BLOCKS_IN_INDEX, BLOCKS_IN_INDEX * BLOCKS_IN_INDEX, BLOCKS_IN_INDEX * BLOCKS_IN_INDEX * BLOCKS_IN_INDEX};
  u64 before = DIRECT_BLOCKS + covered[0] + covered[1];
  for (u32 depth = 3; depth-- > 0; before -= depth ? covered[depth - 1] : 0) {
    u64 kept = keep > before ? keep - before : 0;
    if (kept < covered[depth]) drop_from(s, r, &r->index[depth], depth + 1, covered[depth], kept);
  }
  for (u64 i = DIRECT_BLOCKS; i-- > keep;) drop_from(s, r, &r->direct[i], 0, 1, 0);
}

static void clear_inside(struct segment *s, struct segment_record *r, u64 offset, u64 bytes) {
  u32 *kept = slot(s, r, offset / BLOCK_BYTES, 0);
  u32 block = kept ? sound(s, *kept) : 0;
  if (block) clear(block_at(s, block) + offset % BLOCK_BYTES, bytes);
}

i64 segment_resize(const struct segment_caller *c, struct segment_record *r, u64 size) {
  if (size > FILE_BLOCKS_MAX * BLOCK_BYTES) return SEGMENT_TOO_BIG;
  change_begins(r);
  if (size < r->size) {
    STORE(r->size, size);
    drop_blocks(c->segment, r, (size + BLOCK_BYTES - 1) / BLOCK_BYTES);
    if (size % BLOCK_BYTES) clear_inside(c->segment, r, size, BLOCK_BYTES - size % BLOCK_BYTES);
  }
  STORE(r->size, size);
  change_ends(r);
  return 0;
}

void segment_drop(const struct segment_caller *c, struct segment_record *r) {
  change_begins(r);
  drop_blocks(c->segment, r, 0);
  change_ends(r);
}

i64 segment_punch(const struct segment_caller *c, struct segment_record *r, u64 offset, u64 bytes) {
  u64 end = offset + least(bytes, FILE_BLOCKS_MAX * BLOCK_BYTES - least(offset, FILE_BLOCKS_MAX * BLOCK_BYTES));
  end = least(end, (r->size + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1));
  change_begins(r);
  while (offset < end) {
    u64 part = least(end - offset, BLOCK_BYTES - offset % BLOCK_BYTES);
    if (part == BLOCK_BYTES) {
      u32 *kept = slot(c->segment, r, offset / BLOCK_BYTES, 0);
      if (kept) drop_from(c->segment, r, kept, 0, 1, 0);
      else part = behind_gap(offset / BLOCK_BYTES, kept) * BLOCK_BYTES - offset;
    } else {
      clear_inside(c->segment, r, offset, part);
    }
    offset += part;
  }
  change_ends(r);
  return 0;
}

u64 segment_seek(const struct segment_caller *c, struct segment_record *r, u64 offset, int hole) {
  while (offset < r->size) {
    u32 *kept = slot(c->segment, r, offset / BLOCK_BYTES, 0);
    if ((kept && *kept) != hole) return offset;
    offset = behind_gap(offset / BLOCK_BYTES, kept) * BLOCK_BYTES;
  }
  return r->size;
}
