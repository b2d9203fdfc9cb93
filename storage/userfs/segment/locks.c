/* Locks of ranges by fcntl are the kernel's. It knows where a range is that begins at the position only if it knows that, and where one is that
 * begins at the end as it knows the size (transfer.c).
 *
 * Such a lock goes when its process closes any descriptor of the file, and that of another file for one that stands in. So a file that was
 * locked once is marked: whoever has it standing in closes it by the file's own descriptor, and nobody opens it so any more. The mark is the
 * segment's, as locks stay over exec.
 *
 * Putting the file's own descriptor in the place of one that stands in opens the file and closes it (private_end): it would take the locks away too
 * that the process has by another descriptor. So before the first lock all that stand in for the file in this process get the file's own; the mark
 * comes before that, so none comes behind it. (A thread that opens the file in that moment may be missed: its program cannot tell whether it
 * was first.) Locks of a description (F_OFD_SETLK, flock) go with that, which is the kernel's.
 */
#include "process.h"

enum { F_GETLK = 5, F_SETLK = 6, F_SETLKW = 7, F_OFD_GETLK = 36, F_OFD_SETLK = 37, F_OFD_SETLKW = 38 };

int is_lock(u64 command) { return (command >= F_GETLK && command <= F_SETLKW) || (command >= F_OFD_GETLK && command <= F_OFD_SETLKW); }

int has_locks(u64 record) {
  const struct segment_record *r = segment_record_at(segment, record);
  return r && __atomic_load_n(&r->locked, __ATOMIC_ACQUIRE);
}

static void mark(u64 record) {
  struct segment_record *r = segment_record_at(segment, record);
  if (r) __atomic_store_n(&r->locked, 1, __ATOMIC_RELEASE);
}

/* The position stays ours, and the kernel's is the same. */
static void tell_position(u32 fd, u32 word) {
  struct descriptor *d = &descriptors[fd];
  lock(d);
  struct cursor *cursor = cursor_of(d);
  if (__atomic_load_n(&weir_states[fd], __ATOMIC_ACQUIRE) == word && cursor->private && cursor->moved) {
    SYS(NR_lseek, fd, cursor->position, 0, 0, 0, 0);
    cursor->moved = 0;
  }
  unlock(d);
}

void lock_by_kernel(u32 fd, u64 command) {
  if (fd >= DESCRIPTORS_MAX || stopped) return;
  u32 word = looked_at(fd);
  int ours = state(word) == OURS;
  if (ours) tell_position(fd, word);
  if (command != F_SETLK && command != F_SETLKW) return;
  u64 record = ours ? descriptors[fd].record : number_of((i32)fd);
  if (!record) return;
  mark(record);
  private_end_of(record);
}
