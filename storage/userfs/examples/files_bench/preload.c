/* What a library for LD_PRELOAD would be: the same segment, names and descriptors kept in the process, calls of libc taken over by
 * their names. Enough for the workloads, and wrong for all that the workloads do not do: a fork, an exec, a map, a second process, a
 * program that is static. */
#define _GNU_SOURCE
#include "../../segment/segment.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define FIRST 1000000
#define OPEN_MAX_HERE 64
#define FILES 16384
#define NAME_MAX_HERE 64
#define BLOCKS (512ul << 20 >> 12)

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static struct segment *segment;
static struct { char name[NAME_MAX_HERE]; } names[FILES];
static struct { u64 record, position; int open; } table[OPEN_MAX_HERE];

static u64 copy(void *to, const void *from, u64 bytes) { return memcpy(to, from, bytes), 0; }
static int waited(u32 holder) { return (void)holder, 0; }
static void ready(const void *place) { (void)place; }

static struct segment_caller caller(void) { return (struct segment_caller){segment, 1, copy, waited, ready}; }

__attribute__((constructor)) static void begin(void) {
  u64 bytes = segment_bytes(FILES, BLOCKS, 0);
  segment = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  segment_format(segment, FILES, BLOCKS, 0);
}

/* The number of the file, or of the free place where it would be. */
static u64 find(const char *name) {
  u64 hash = 14695981039346656037ul;
  for (const char *p = name; *p; p++) hash = (hash ^ (u8)*p) * 1099511628211ul;
  u64 at = hash % FILES;
  while (names[at].name[0] && strcmp(names[at].name, name)) at = (at + 1) % FILES;
  return at;
}

int open(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  int mode = flags & O_CREAT ? va_arg(more, int) : 0, place = 0;
  va_end(more);
  REAL(open);
  if (*path == '/' || strlen(path) >= NAME_MAX_HERE) return real(path, flags, mode);
  struct segment_caller c = caller();
  u64 number = find(path);
  struct segment_record *r = segment_record_at(segment, number);
  if (!names[number].name[0]) {
    if (!(flags & O_CREAT)) return errno = ENOENT, -1;
    strcpy(names[number].name, path);
    r->live = 1;
  } else if (flags & O_TRUNC) {
    segment_resize(&c, r, 0);
  }
  while (place < OPEN_MAX_HERE && table[place].open) place++;
  if (place == OPEN_MAX_HERE) return errno = EMFILE, -1;
  table[place].record = number, table[place].position = 0, table[place].open = 1;
  return FIRST + place;
}

#define OURS(fd) ((fd) >= FIRST && (fd) < FIRST + OPEN_MAX_HERE)
static ssize_t transfer(int fd, void *data, size_t bytes, u64 offset, int writes) {
  struct segment_caller c = caller();
  struct segment_record *r = segment_record_at(segment, table[fd - FIRST].record);
  struct timespec t = {0};
  if (writes) clock_gettime(CLOCK_REALTIME_COARSE, &t);
  segment_lock(&c, r);
  i64 done = writes ? segment_write(&c, r, offset, data, bytes, (u64)t.tv_sec * 1000000000ul + (u64)t.tv_nsec)
                    : segment_read(&c, r, offset, data, bytes);
  segment_unlock(r);
  return done < 0 ? (errno = (int)-done, -1) : done;
}

static ssize_t at_position(int fd, void *data, size_t bytes, int writes) {
  ssize_t done = transfer(fd, data, bytes, table[fd - FIRST].position, writes);
  if (done > 0) table[fd - FIRST].position += (u64)done;
  return done;
}

ssize_t read(int fd, void *data, size_t bytes) {
  REAL(read);
  return OURS(fd) ? at_position(fd, data, bytes, 0) : real(fd, data, bytes);
}
ssize_t write(int fd, const void *data, size_t bytes) {
  REAL(write);
  return OURS(fd) ? at_position(fd, (void *)data, bytes, 1) : real(fd, data, bytes);
}
ssize_t pread(int fd, void *data, size_t bytes, off_t offset) {
  REAL(pread);
  return OURS(fd) ? transfer(fd, data, bytes, (u64)offset, 0) : real(fd, data, bytes, offset);
}
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
  REAL(pwrite);
  return OURS(fd) ? transfer(fd, (void *)data, bytes, (u64)offset, 1) : real(fd, data, bytes, offset);
}
off_t lseek(int fd, off_t offset, int whence) {
  REAL(lseek);
  if (!OURS(fd)) return real(fd, offset, whence);
  if (whence == SEEK_SET) table[fd - FIRST].position = (u64)offset;
  return (off_t)table[fd - FIRST].position;
}
int fsync(int fd) {
  REAL(fsync);
  return OURS(fd) ? 0 : real(fd);
}
int close(int fd) {
  REAL(close);
  if (!OURS(fd)) return real(fd);
  table[fd - FIRST].open = 0;
  return 0;
}
