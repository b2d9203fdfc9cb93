/* Positions over exec (4.4.4). A program that runs alone and becomes another one that is intercepted too need not write the positions of
 * its descriptors to the kernel, one by one: they go to the injector in one piece, which puts them into the new program's memory.
 *
 * The injector knows what becomes of the exec. Where the new program is left alone after all, it writes the positions to the kernel
 * itself (accelerate.rs). If the daemon dies in between, within the millisecond of an exec, nobody does. So the first FEW are written to the kernel
 * too; a program that hands on more goes on at places of the others that the kernel knew last.
 *
 * In the new program they are STASHED until they are used: only then is it looked whether the descriptor still is that file's. It is
 * looked before anybody else could see the position: see `share` and `looked_at`.
 */
#include "process.h"

/* Descriptors that are written to the injector at once: half of the hook's stack. Fewer would wake it more often. */
#define AT_ONCE 1024u
#define FEW 8u
#define KNOWN 0x80000000u

struct stashed {
  u32 fd; /* with KNOWN: `position` is the true one; else the kernel's is */
  u32 inode;
  u64 position;
};

static const struct stashed *told(void) { return (const struct stashed *)weir_configuration.stash; }
static u64 told_count(void) { return weir_configuration.stash_bytes / sizeof(struct stashed); }

/* They come in the order of their numbers. */
static const struct stashed *find(u32 fd) {
  u64 low = 0, high = told_count();
  while (low < high) {
    u64 middle = (low + high) / 2;
    u32 there = told()[middle].fd & ~KNOWN;
    if (there == fd) return &told()[middle];
    if (there < fd) low = middle + 1;
    else high = middle;
  }
  return 0;
}

int stash_of(u32 fd, struct descriptor *d) {
  const struct stashed *s = find(fd);
  if (!s || s->inode != d->record) return 0;
  d->known = d->moved = (s->fd & KNOWN) != 0;
  d->position = s->position;
  return 1;
}

/* What is to be said of a descriptor; 0 for nothing. */
static int take(u32 fd, struct stashed *to) {
  const struct descriptor *d = &descriptors[fd];
  u8 is = state(weir_states[fd]);
  if (is == STASHED) {
    const struct stashed *s = find(fd);
    if (s) *to = *s;
    return s != 0;
  }
  if (is != OURS || !d->private || d->stands_in) return 0;
  *to = (struct stashed){fd | (d->known ? KNOWN : 0), (u32)d->record, d->position};
  return 1;
}

int client_stash(i32 line, struct question *question) {
  struct stashed some[AT_ONCE];
  u64 count = 0, seen_count = 0;
  if (!segment) return weir_say(line, question, sizeof *question);
  if (stopped || weir_threads) return 0;
  for (u32 fd = 0; fd < descriptors_end; fd++) {
    struct descriptor *d = &descriptors[fd];
    if (state(weir_states[fd]) == OURS && d->passing) {
      question->bytes = 0;
      return 0;
    }
    if (seen_count < FEW) looked_at(fd);
    private_end(fd, d);
    if (!take(fd, some)) continue;
    question->bytes += sizeof *some;
    if (seen_count++ < FEW && d->moved) SYS(NR_lseek, fd, d->position, 0, 0, 0, 0);
  }
  /* What is said in part is not heard: the injector does not answer. */
  if (!weir_say(line, question, sizeof *question)) return 0;
  for (u32 fd = 0; fd < descriptors_end; fd++) {
    count += (u64)take(fd, some + count);
    if (count == AT_ONCE) {
      if (!weir_say(line, some, sizeof some)) return 0;
      count = 0;
    }
  }
  return weir_say(line, some, count * sizeof *some);
}

/* There is no other thread yet. */
void stash_begin(void) {
  for (u64 i = 0; i < told_count(); i++) {
    u32 fd = told()[i].fd & ~KNOWN;
    if (fd >= DESCRIPTORS_MAX) return;
    weir_states[fd] = STASHED;
    descriptors_end = fd + 1;
  }
}

void stash_settle(void) {
  u64 stat[18];
  for (u64 i = 0; i < told_count(); i++) {
    const struct stashed *s = &told()[i];
    u32 fd = s->fd & ~KNOWN;
    if (!(s->fd & KNOWN) || SYS(NR_fstat, fd, stat, 0, 0, 0, 0) || stat[0] != mount.device || stat[1] != s->inode) continue;
    SYS(NR_lseek, fd, s->position, 0, 0, 0, 0);
  }
}
