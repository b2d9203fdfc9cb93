/* odd FIRST LAST: calls that take descriptors or paths (segment/calls.h), each with arguments that a case's number chooses; says for each what came of it, and
 * what the file is then. Each is done by a child in a folder of its own below the working directory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../segment/calls.h"

#define FIRST CALLS_FIRST
#define SECOND CALLS_SECOND
#define THIRD CALLS_THIRD
#define FOURTH CALLS_FOURTH
#define FIFTH CALLS_FIFTH

struct call {
  long number;
  const char *name;
  int descriptors, paths;
};

#define ONE(number, name, descriptors, paths, how) {number, #name, descriptors, paths},
static const struct call calls[] = {CALLS_OF_FILES(ONE)};
#define CALLS (sizeof calls / sizeof *calls)

/* What would be done to the machine, begins another program, or has no end. */
static const char *const left_out[] = {"execve",  "execveat", "mount",       "umount2",       "move_mount", "mount_setattr",   "open_tree_attr", "pivot_root",
                                       "chroot",  "swapon",   "swapoff",     "acct",          "setns",      "kexec_file_load", "finit_module",   "uselib",
                                       "syncfs",  "clone",    "quotactl",    "quotactl_fd",   "fsconfig",   "fspick",          "open_tree",      "vmsplice",
                                       "tee",     "mmap",     "close_range", "fanotify_mark", "epoll_ctl"};

static uint64_t state;

static uint64_t below(uint64_t end) {
  state += 0x9e3779b97f4a7c15;
  uint64_t word = state;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
  word = (word ^ word >> 27) * 0x94d049bb133111eb;
  return (word ^ word >> 31) % end;
}

/* At a place that is always the same, as names may be read from anywhere. */
#define PLACE ((char *)0x10000000)
#define PAGE 4096

static void prepare(void) {
  if (mmap(PLACE, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) exit(2);
  struct iovec *vector = (struct iovec *)PLACE;
  for (int i = 0; i < 4; i++) vector[i] = (struct iovec){PLACE + 2 * PAGE, (size_t)(5 * i)};
  strcpy(PLACE + PAGE, "user.k");
  strcpy(PLACE + PAGE + 16, "value");
  strcpy(PLACE + PAGE + 32, "user.");
  strcpy(PLACE + PAGE + 48, "nobody.k");
  memset(PLACE + 2 * PAGE, 'm', 64);
}

static long number_here(const char *name) {
  static const long wanted[] = {0, 1, 2, 3, 5, 6, 7, 9, 15, 16, 1024, 1030, 1033, 1034, 36, 4};
  static const long asked[] = {0x5401, 0x541b, 2, 0x5450, 0x5451, 0x40049409, 0x12, 0x80081270};
  static const uint64_t any[] = {0, 0, 1, 2, 3, 10, 100, 4096, 0x1000, 0x100, 0xffffffff, (uint64_t)-1, (uint64_t)-2, 0x7fffffffffffffff, 0x80000000};
  int what = (int)below(20);
  if (!strcmp(name, "fcntl") && what < 12) return wanted[below(sizeof wanted / sizeof *wanted)];
  if (!strcmp(name, "ioctl") && what < 12) return asked[below(sizeof asked / sizeof *asked)];
  switch (what) {
    case 0: case 1: return (long)PLACE;
    case 2: case 3: return (long)PLACE + PAGE;
    case 4: return (long)PLACE + PAGE + 16 * (1 + (long)below(3));
    case 5: return (long)PLACE + 3 * PAGE;
    case 6: return 8; /* where nothing is */
    case 7: return (long)PLACE + 4 * PAGE - 3;
    default: return (long)any[below(sizeof any / sizeof *any)];
  }
}

static long path_here(int fd) {
  static char paths[][64] = {"f", "f", "f", "g", "d", "none", "none/x", "f/", "f/x", "d/../f", "", ".", "/proc/self/fd/", "l", "d/new"};
  static char by_number[64], longest[5000];
  uint64_t what = below(19);
  if (what == 16) return 0;
  if (what == 17) return 8;
  if (what == 18) {
    memset(longest, 'x', sizeof longest - 1);
    return (long)longest;
  }
  if (what == 12 || what == 15) {
    snprintf(by_number, sizeof by_number, "/proc/self/fd/%d", fd);
    return (long)by_number;
  }
  return (long)paths[what];
}

static unsigned sum_of(int fd) {
  char bytes[400];
  unsigned sum = 0;
  ssize_t got = pread(fd, bytes, sizeof bytes, 0);
  for (ssize_t i = 0; i < got; i++) sum = sum * 31 + (unsigned char)bytes[i];
  return got < 0 ? (unsigned)-errno : sum;
}

static void one(const struct call *call, long number, int told) {
  char name[32], text[400];
  long a[6];
  struct stat s = {0};
  snprintf(name, sizeof name, "c%ld", number);
  if (mkdir(name, 0777) || chdir(name) || mkdir("d", 0755) || symlink("f", "l")) _exit(3);
  prepare();
  state = (uint64_t)number * 1000003;
  static const int flags[] = {O_RDWR, O_RDWR, O_RDWR, O_RDONLY, O_WRONLY, O_RDWR | O_APPEND};
  int first = open("f", O_RDWR | O_CREAT, 0644);
  if (write(first, "0123456789abcdefghijklmnopqrstuvwxyz", 36) != 36) _exit(4);
  close(first);
  int fd = open("f", flags[below(6)]), other = open("g", O_RDWR | O_CREAT, 0600), folder = open("d", O_RDONLY | O_DIRECTORY);
  lseek(fd, (off_t)below(40), SEEK_SET);
  for (int i = 0; i < 6; i++) {
    if (call->descriptors >> i & 1) {
      const long any[] = {fd, fd, fd, other, folder, -1, AT_FDCWD, 99};
      a[i] = any[below(8)];
      /* A name is relative to it. */
      if (call->paths >> (i + 1) & 1) a[i] = below(3) ? AT_FDCWD : any[below(8)];
    } else if (call->paths >> i & 1) {
      a[i] = path_here(fd);
    } else {
      a[i] = number_here(call->name);
    }
  }
  /* Whose process it is, is nobody's. */
  if (!strcmp(call->name, "fcntl") && a[1] == F_SETOWN) a[1] = F_GETFD;
  alarm(5);
  errno = 0;
  long result = syscall(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
  int error = errno;
  /* A link in /proc is as long as the way to the folder. */
  if (!strncmp(call->name, "readlink", 8) && result > 8) result = 8;
  fstat(fd, &s);
  int length = snprintf(text, sizeof text, "%ld %s: %ld %s, then %ld bytes, mode %o, links %ld, at %ld, sum %u\n", number, call->name, result,
                        result == -1 ? strerrorname_np(error) : "", (long)s.st_size, s.st_mode, (long)s.st_nlink, (long)lseek(fd, 0, SEEK_CUR), sum_of(fd));
  if (write(told, text, (size_t)length) != length) _exit(5);
  _exit(0);
}

static int gone(const char *path, const struct stat *s, int kind, struct FTW *at) {
  (void)s, (void)kind, (void)at;
  return remove(path);
}

int main(int count, char **arguments) {
  if (count < 3) return 2;
  int told = dup(1);
  for (long number = atol(arguments[1]); number <= atol(arguments[2]); number++) {
    const struct call *call = &calls[(unsigned long)number % CALLS];
    int out = !call->descriptors && !call->paths, status = 0;
    for (unsigned i = 0; i < sizeof left_out / sizeof *left_out; i++) out |= !strcmp(call->name, left_out[i]);
    if (out) continue;
    pid_t child = fork();
    if (!child) one(call, number, told);
    if (child < 0 || waitpid(child, &status, 0) != child) return 3;
    char name[32];
    snprintf(name, sizeof name, "c%ld", number);
    nftw(name, gone, 16, FTW_DEPTH | FTW_PHYS);
    if (status) dprintf(told, "%ld %s: ended with %#x\n", number, call->name, status);
  }
  return 0;
}
