/* Memory of the segment before it is written. A page that is touched for the first time by a process costs a fault, even when it has contents:
 * some microseconds where the machine is itself a guest. So the pages around it are made ready with it, by one call: a twentieth of that
 * each. Blocks are given out one after the other, so the next files will use them.
 *
 * Pages that have contents are mapped as if they were to be read: the kernel then maps those around each as well, and writable, as it keeps
 * no account of who writes to shared memory. For new ones that is one more look each.
 *
 * A process that writes little is spared: making pages ready that have no contents yet costs their memory and clearing it.
 */
#include "process.h"

#define AROUND (128 * 1024ul)
#define MADV_POPULATE_READ 22
/* Places that a process writes before it is one that writes much. */
#define FEW 8u

static u64 *made_ready; /* a bit for each AROUND bytes of the segment */
static u32 first_places;
static u8 is_childs; /* the bits are of the parent: pages that are shared are not handed on by fork */

static u64 words(void) { return mount.segment_bytes / AROUND / 64 + 1; }

void pages_forked(void) { is_childs = 1; }

/* Null when there is no memory. */
static u64 *bits(void) {
  u64 *now = __atomic_load_n(&made_ready, __ATOMIC_ACQUIRE), *fresh = now ? now : weir_map(words() * sizeof(u64));
  if (now || !fresh) return now;
  if (__atomic_compare_exchange_n(&made_ready, &now, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return fresh;
  SYS(NR_munmap, fresh, words() * sizeof(u64), 0, 0, 0, 0);
  return now;
}

void pages_ready(const void *place) {
  u64 part = (u64)((const u8 *)place - (const u8 *)segment) / AROUND, bit = 1ul << part % 64;
  /* Counted without a lock: one more or less is all the same. */
  if (first_places < FEW) {
    first_places++;
    return;
  }
  u64 *ready = bits();
  if (!ready) return;
  if (__builtin_expect(is_childs, 0)) {
    is_childs = 0;
    weir_clear(ready, words() * sizeof(u64));
  }
  if (__builtin_expect((__atomic_load_n(&ready[part / 64], __ATOMIC_RELAXED) & bit) != 0, 1)) return;
  __atomic_fetch_or(&ready[part / 64], bit, __ATOMIC_RELAXED);
  u64 from = part * AROUND, bytes = mount.segment_bytes - from;
  u64 unused = segment->blocks_offset + __atomic_load_n(&segment->next_block, __ATOMIC_RELAXED) * BLOCK_BYTES;
  /* Where it fails, each page is made ready when it is touched. */
  SYS(NR_madvise, (u8 *)segment + from, bytes < AROUND ? bytes : AROUND,
      from + AROUND > unused ? MADV_POPULATE_WRITE : MADV_POPULATE_READ, 0, 0, 0);
}
