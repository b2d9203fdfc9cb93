/* Names and attributes of files in the segment, so that an accelerated process opens, makes, renames and removes files without the daemon.
 *
 * The daemon's tree decides; what is here is what a process must know of it to do so. All of it is read and changed by the holder of
 * `names->lock` only.
 *
 * - Every name of at most NAME_BYTES_MAX bytes is in the table, so what is not found is not there. `lost` says that the table was
 *   too small for that: then nobody opens by it any more.
 * - What a process does it puts down in `events`, in order, and the daemon does it in its tree before it does anything else with the lock. Where a
 *   node's attributes are read for an event, they are those of now: so there is one event for many changes (`listed`).
 * - A process makes a file in three steps: entry and node are filled in, the event is put down (from here on the file is there), the
 *   entry is linked. It gets the number from `spare`, numbers that the daemon set aside.
 * - A process that changes names sets `unfinished` meanwhile. If it dies, nobody uses names until the daemon has made those right of
 *   which the events tell.
 * - `told` of a node says how often the kernel was told the file and has not forgotten it. While it is 0 the kernel has neither a name nor
 *   attributes of it, nothing is mounted on it, and nobody has it open but processes that are counted in `opens`: so only then its names change
 *   past the kernel (named.c).
 * - The kernel looks a name up, does not find it, and has the daemon make it. Where a process made it in between the daemon has the kernel look once
 *   more, and sets `held_back` until it did: then no process makes a name, so that the kernel is not met a second time.
 * - The entry of a file's first name has the file's number; others have numbers from `records_max` on.
 * - The daemon may die with the lock, in the middle of a change: `unfinished` says so, and then nobody opens by it until the daemon's successor
 *   has made all names anew. Events stay until the daemon has written down elsewhere what they say.
 * - Of a tree that never changes (archives) all of it is written before anybody maps it, but for `told`, `opens` and `full`. Its records are partial: what is
 *   not here yet of a file of at most FETCH_BYTES_MAX bytes the daemon is asked for once, by a look at a name that only processes know which map the
 *   segment (private.c), and puts down whole. Where there is no room for more (`full`) such files are the kernel's from then on.
 * - `opens` of a node counts descriptors that only one process knows (private.c). The file lives as long as one does; for the kernel
 *   it need not. Which process has them is in `holds`, so that those of a dead one are found.
 */
#ifndef WEIR_NAMES_H
#define WEIR_NAMES_H
#include "segment.h"

#define NAME_BYTES_MAX 115u
#define HOLDS_MAX 512u
#define SPARES_MAX 1024u
#define EVENTS_MAX 4096u
#define FETCH_BYTES_MAX (1ul << 20)

struct segment_node {
  u32 mode, user, group, links;
  u64 accessed_ns, changed_ns;
  u64 modified_ns; /* as the daemon knows it; of contents the record has the real one */
  u32 opens;
  u32 told;
  u32 listed; /* an event of this batch has the daemon read the attributes */
  u32 entries; /* names in a directory */
  u64 held; /* of a partial file: blocks of 512 bytes that it takes where it is whole */
};
_Static_assert(sizeof(struct segment_node) == 64, "a node");

struct segment_name {
  u32 next;
  u32 folder; /* 0: the entry is free */
  u32 inode;
  u8 bytes;
  u8 text[NAME_BYTES_MAX];
};
_Static_assert(sizeof(struct segment_name) == 128, "a name");

/* MOVED is followed by MOVED_TO, which has the new name. */
enum { EVENT_MADE = 1, EVENT_CHANGED = 2, EVENT_REMOVED = 3, EVENT_MOVED = 4, EVENT_MOVED_TO = 5 };

struct segment_event {
  u64 at_ns;
  u32 kind, inode, folder;
  u8 bytes;
  u8 text[NAME_BYTES_MAX];
};
_Static_assert(sizeof(struct segment_event) == 136, "an event");

struct segment_names {
  u32 lock;
  u32 lost;
  u32 buckets; /* a power of two */
  u32 entries_max;
  u32 next_entry; /* those from here on were never used */
  u32 free_entry; /* 0 for none */
  u64 token; /* nobody else can guess: see private.c */
  u64 nodes_offset, entries_offset, buckets_offset; /* from the segment's beginning */
  u64 made_here; /* files that processes made */
  u32 events_count, spare_count;
  u32 batch; /* of events: another one when the daemon took them */
  u32 unfinished; /* they are being changed: who has the lock got it from somebody who died, and leaves them to the daemon, or its successor */
  u32 held_back; /* the kernel looks at a name once more: nobody else makes one meanwhile */
  u32 full; /* nothing more is fetched */
  struct segment_event events[EVENTS_MAX];
  u32 spare[SPARES_MAX];
  u32 holds[SEGMENT_PROCESSES_MAX][HOLDS_MAX]; /* numbers of files, 0 for none */
};

/* Bytes for the names of `records_max` files. */
u64 names_bytes(u64 records_max);
void names_format(struct segment *s, u64 records_max);
/* Null in a segment without names. */
struct segment_names *segment_names(struct segment *s);
struct segment_node *segment_node_at(struct segment *s, u64 inode);
struct segment_name *segment_name_at(struct segment *s, u64 entry);
int names_lock(const struct segment_caller *c);
void names_unlock(struct segment *s);
/* All below: with the lock held. */
u32 *names_bucket(struct segment *s, u64 folder, const u8 *text, u64 bytes); /* where the list of its entry begins */
u32 names_find(struct segment *s, u64 folder, const u8 *text, u64 bytes); /* an entry, 0 for none */
void names_put(struct segment *s, u64 folder, const u8 *text, u64 bytes, u64 inode);
void names_take(struct segment *s, u64 folder, const u8 *text, u64 bytes);
/* Makes an empty file; 0 when only the daemon can, or names are held back. */
u32 names_make(struct segment *s, u64 folder, const u8 *text, u64 bytes, const struct segment_node *node);
/* All three: 0 when only the daemon can. The caller knows that it may be done, and that the kernel does not know the file. */
int names_change(struct segment *s, u64 inode, u64 now_ns);
int names_remove(struct segment *s, u64 folder, const u8 *text, u64 bytes, u64 inode, u64 now_ns);
/* In place of `replaced`, if that is not 0. */
int names_move(struct segment *s, const struct segment_event *from, const struct segment_event *to, u64 replaced);
/* A place in `holds` for one more descriptor of process `slot`, or -1 when there are too many; and counts it there. */
i64 names_room(struct segment *s, u32 slot);
void names_hold(struct segment *s, u32 slot, u32 hold, u32 inode);
/* Without the lock: gives it back. */
void names_release(struct segment *s, u32 slot, u32 hold);
/* No name is there any more; what is open stays so. No file's number is `until` or more. */
void names_clear(struct segment *s, u64 until);
/* Gives back all that process `slot` holds. */
void names_release_all(struct segment *s, u32 slot);

#endif
