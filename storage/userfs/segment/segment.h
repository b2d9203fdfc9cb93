/* Shared memory that holds the bytes of files: one record a file, blocks of 4 KiB, a free list.
 *
 * The daemon and every accelerated process map the same memory and use this one implementation: the daemon
 * as ordinary code, the blob in foreign processes with general registers only. So nothing here allocates,
 * calls a library, keeps a pointer into the segment across calls, or uses floating point.
 *
 * Invariants
 * - A record is used by its holder only: `lock` is the thread id of who holds it, 0 for nobody. A holder that
 *   died is found by its thread id, and its lock is taken over; a write that it was in is then partly there,
 *   as after a kill in the middle of any write.
 * - `version` is odd while a holder changes blocks or size, and another even number afterwards. Who finds the same even
 *   number before and after it copied without the lock has read what was there at one moment. A holder that dies leaves
 *   it odd, until the next change is done: readers take the lock meanwhile.
 * - Bytes of a block beyond `size` are zero: who shrinks a file clears them, so that growing it again shows none.
 * - `size` never passes what the block map can address.
 * - A block belongs to one record or to one of the two free lists, or to who gives its memory back, or (after a kill at the wrong moment) to nobody until
 *   the segment goes away.
 * - `fills` counts the moments at which the kernel may have begun to cache data of the file, `told` those at which
 *   it may have begun to cache attributes. Both count before what they announce is read: see coherence below.
 *
 * Coherence with the kernel's page cache
 * - The daemon adds to `fills` before it reads data for the kernel, and after a write of the kernel's.
 * - Who writes past the kernel compares `fills` with `fills_gone` (as of the last complete invalidation). If
 *   they differ the kernel may hold pages: the writer first invalidates (which writes dirty mapped pages out to
 *   the daemon), and then writes only if `fills` is still what it was before the invalidation. So no page of
 *   the kernel is older than a byte that was written past it, and no dirty page can land on such a byte.
 * - What an accelerated process maps leaves the acceleration (`left_to_kernel`): the kernel does not look at the size again when a
 *   page behind the end that it knows is touched, and would kill the process. So does what got capabilities (security.capability) or
 *   set-user-id and set-group-id bits: whoever changes the file takes them away, which the kernel does by asking the daemon.
 * - Who reads past the kernel while they differ takes the kernel's way: a map may have changed pages there.
 * - The kernel looks at its own size, and asks nobody, when it splices, copies between files, locks from the end on, or has a map touched. So where
 *   it knows a file, who made that grow past it tells it the new size before the call is over, by the last byte (FUSE_NOTIFY_STORE; the
 *   page that comes into being with that goes at once). Who makes one shorter that it knows has it ask the daemon.
 * - Who changed size or times past the kernel, and then finds `told` to differ from `told_gone`, invalidates attributes, and
 *   only then sets `told_gone` to what `told` was. So whoever finds them equal knows that it is done.
 */
#ifndef WEIR_SEGMENT_H
#define WEIR_SEGMENT_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef long i64;

#define SEGMENT_MAGIC 0x3247455352494557ul /* "WEIRSEG2" */
#define BLOCK_BYTES 4096ul
#define DIRECT_BLOCKS 10u
#define BLOCKS_IN_INDEX 1024ul
/* What direct, single, double and triple index address. */
#define FILE_BLOCKS_MAX (DIRECT_BLOCKS + BLOCKS_IN_INDEX + BLOCKS_IN_INDEX * BLOCKS_IN_INDEX + \
                         BLOCKS_IN_INDEX * BLOCKS_IN_INDEX * BLOCKS_IN_INDEX)

struct segment_record {
  u32 lock;
  u32 live; /* 1 while the file exists or is open */
  u64 size;
  u64 modified_ns;
  u64 blocks; /* blocks that the file holds, index blocks too */
  u64 fills;
  u64 fills_gone;
  u64 told;      /* how often the kernel may have been told attributes */
  u64 told_gone; /* as of the last invalidation of attributes */
  u32 direct[DIRECT_BLOCKS];
  u32 index[3]; /* single, double, triple */
  u32 left_to_kernel; /* an accelerated process has mapped it, or it got capabilities or set-id bits: from now on all go through the kernel */
  u16 partial; /* a block that is not there is not known here, instead of zero: only what is there is read; nothing is written */
  u16 locked; /* some process locked ranges of it: see locks.c */
  u32 version; /* odd while contents change: see segment_peek */
};
_Static_assert(sizeof(struct segment_record) == 128, "a record");

#define SEGMENT_PROCESSES_MAX 120u
enum { SEGMENT_ACCELERATED = 1, SEGMENT_SITES = 2, SEGMENT_SANDBOX = 3, SEGMENT_FILE_LIMIT = 4, SEGMENT_RING = 5 };

/* A process that maps the segment, for status. Whoever takes a slot of a process that is gone overwrites it. */
struct segment_process {
  u32 id;
  u16 state;
  u16 holds; /* whether it may hold descriptors that only it knows (names.h): they need not be looked for where it does not */
  u32 sites_patched;
  u32 sites_left;
  u8 name[16];
  /* Counted without a lock by the process's threads, so a few may be missed. Whoever takes the slot over adds them to the
   * segment's own. */
  u64 reads, writes, bytes_read, bytes_written;
};

struct segment {
  u64 magic;
  u64 records_max;
  u64 blocks_max;
  u64 records_offset;
  u64 blocks_offset;
  u64 bytes;
  u64 free_block;   /* tag << 32 | block, 0 for none: a stack without lock */
  u64 next_block;   /* blocks from here on were never used; block 0 is none */
  u64 blocks_used;
  u64 locks_taken_over;
  u64 reads, writes, bytes_read, bytes_written; /* of accelerated processes that are gone, or have no slot */
  u64 invalidations;
  u64 passed; /* accelerated processes had to take the kernel's way */
  u64 names_offset; /* of struct segment_names (names.h); 0 where names are the daemon's alone */
  u64 links_offset; /* of a u32 a block: the next one that is free. Not in the block itself, whose memory may be given back meanwhile */
  u64 bare_block;   /* as free_block, of blocks whose memory was given back */
  u64 bare_count;
  u64 caught, calls; /* where every call is caught: of these so many needed a signal */
  struct segment_process processes[SEGMENT_PROCESSES_MAX];
};
#define HEAD_BLOCKS 2ul
_Static_assert(sizeof(struct segment) <= HEAD_BLOCKS * BLOCK_BYTES, "the head is two blocks");

/* Copies `bytes`; gives how many could not be copied because of a fault. The daemon's never faults. */
typedef u64 (*segment_copy)(void *to, const void *from, u64 bytes);

struct segment_caller {
  struct segment *segment;
  u32 thread;
  segment_copy copy;
  /* A lock is held for long: 0 to go on waiting, 1 if the holder is gone. */
  int (*waited)(u32 holder);
  /* This place of the segment is about to be written. */
  void (*ready)(const void *place);
};

enum { SEGMENT_NOT_HERE = -61, SEGMENT_NO_SPACE = -28, SEGMENT_TOO_BIG = -27, SEGMENT_FAULT = -14, SEGMENT_DEADLOCK = -35 };

/* `named`: with room for names (names.h). */
u64 segment_bytes(u64 records_max, u64 blocks_max, int named);
void segment_format(struct segment *s, u64 records_max, u64 blocks_max, int named);
struct segment_record *segment_record_at(struct segment *s, u64 number);
/* A word that is the thread id of its holder, or 0. */
int segment_lock_word(const struct segment_caller *c, u32 *word);
int segment_lock(const struct segment_caller *c, struct segment_record *r);
void segment_unlock(struct segment_record *r);
/* Reads without the lock. SEGMENT_NOT_HERE when it changed meanwhile, or (partial) not all of it is here: what was copied
 * is then to be copied over. */
i64 segment_peek(const struct segment_caller *c, struct segment_record *r, u64 offset, void *to, u64 bytes);
/* All below: with the record locked. */
i64 segment_read(const struct segment_caller *c, struct segment_record *r, u64 offset, void *to, u64 bytes);
i64 segment_write(const struct segment_caller *c, struct segment_record *r, u64 offset, const void *from, u64 bytes,
                  u64 now_ns);
i64 segment_resize(const struct segment_caller *c, struct segment_record *r, u64 size);
/* Gives all blocks back; the size stays. */
void segment_drop(const struct segment_caller *c, struct segment_record *r);
i64 segment_punch(const struct segment_caller *c, struct segment_record *r, u64 offset, u64 bytes);
/* Without a record: takes up to `most` free blocks whose memory is there, to give it back; gives how many. Each goes to segment_bare, or, where that
 * failed, to segment_free. */
u64 segment_take_free(struct segment *s, u32 *blocks, u64 most);
void segment_bare(struct segment *s, u32 block);
void segment_free(struct segment *s, u32 block);
/* The first offset from `offset` on that is data (hole = 0) or a hole (hole = 1); `size` if there is none. */
u64 segment_seek(const struct segment_caller *c, struct segment_record *r, u64 offset, int hole);

#endif
