/* Positions over exec (4.4.4). A program that runs alone and becomes another one that is intercepted too need not write the positions of
 * its descriptors to the kernel, one by one: the injector copies its `cursors` as they are, and puts them into the new program's memory. So
 * nothing is done a descriptor before the exec.
 *
 * The injector knows what becomes of the exec. Where the new program is left alone after all, it writes the positions to the kernel
 * itself (accelerate.rs). If the daemon dies in between, within the millisecond of an exec, nobody does. So the first FEW are written to the kernel
 * too; a program that hands on more goes on at cursors of the others that the kernel knew last.
 *
 * In the new program they are STASHED until they are used: only then is it looked whether the descriptor still is that file's. It is
 * looked before anybody else could see the position: see `share` and `looked_at`.
 */
#include "process.h"

#define FEW 8u

static const struct cursor *told(void) { return (const struct cursor *)weir_configuration.stash; }
static u32 told_count(void) {
  u64 count = weir_configuration.stash_bytes / sizeof(struct cursor);
  return count < DESCRIPTORS_MAX ? (u32)count : DESCRIPTORS_MAX;
}

int client_stash(i32 line, struct question *question) {
  u32 end = descriptors_end;
  if (!segment) return weir_say(line, question, sizeof *question);
  if (stopped || weir_threads || passing_calls) return 0;
  private_end_all();
  while (end && !cursors[end - 1].private) end--;
  for (u32 fd = 0, few = 0; fd < end && few < FEW; fd++) {
    if (!cursors[fd].private) continue;
    looked_at(fd);
    if (!cursors[fd].private) continue;
    if (cursors[fd].moved) SYS(NR_lseek, fd, cursors[fd].position, 0, 0, 0, 0);
    few++;
  }
  question->offset = (u64)cursors;
  question->bytes = end * sizeof *cursors;
  return weir_say(line, question, sizeof *question);
}

/* There is no other thread yet. */
void stash_begin(void) {
  for (u32 fd = 0; fd < told_count(); fd++) {
    const struct cursor *said = &told()[fd];
    if (!said->private || said->stands_in) continue;
    cursors[fd] = *said;
    weir_states[fd] = STASHED;
    descriptors_end = fd + 1;
  }
}

void stash_settle(void) {
  u64 stat[18];
  for (u32 fd = 0; fd < told_count(); fd++) {
    const struct cursor *said = &told()[fd];
    if (!said->private || said->stands_in || !said->known) continue;
    if (SYS(NR_fstat, fd, stat, 0, 0, 0, 0) || stat[0] != mount.device || stat[1] != said->inode) continue;
    SYS(NR_lseek, fd, said->position, 0, 0, 0, 0);
  }
}
