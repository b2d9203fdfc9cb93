/* The workloads of the bench: `work FOLDER WORKLOAD…`. Each line of output is a name, which ends with its unit, and a figure;
 * `switches` are voluntary context switches, of each file or of the whole. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SMALL_FILES 4096
#define SMALL_BYTES 128
#define MIXED_FILES 2048
#define SYNCED_FILES 1024
#define LARGE (128l << 20)
#define MAPPED_READS 1250000
#define CALLS 200000
#define BATCHES 50
#define PROGRAMS 60
#define PASSED_ON 4000
#define STASHES 60
#define FAILURES 20
#define SAYINGS 5
/* What the kernel still does for files that were closed, it does in this time. */
#define SETTLE_US 20000
#define MUST(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

extern char **environ;
static char data[1 << 17];
static const char *self;

struct moment {
  double ns;
  long switches;
};

static struct moment now(void) {
  struct timespec t;
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (struct moment){t.tv_sec * 1e9 + t.tv_nsec, usage.ru_nvcsw};
}

static double own_time_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

/* `unit_ns` is how many nanoseconds the unit has, `times` how often it was done. */
static void tell(const char *name, const char *unit, double unit_ns, struct moment begun, double times) {
  struct moment ended = now();
  printf("%s_%s %f\n%s_switches %f\n", name, unit, (ended.ns - begun.ns) / unit_ns / times, name, (ended.switches - begun.switches) / times);
}

/* From 64 B to 128 KiB in equal steps. */
static long mixed_bytes(int i) { return 64 + (long)i * ((128l << 10) - 64) / (MIXED_FILES - 1); }
static long small_bytes(int i) { return (void)i, SMALL_BYTES; }

static void each(const char *name, const char *folder, int files, long (*bytes)(int), int flags, int synced) {
  char path[64];
  struct moment begun = now();
  for (int i = 0; i < files; i++) {
    sprintf(path, "%s/%d", folder, i);
    int file = open(path, flags, 0644);
    MUST(file >= 0);
    MUST((flags & O_ACCMODE ? write(file, data, bytes(i)) : read(file, data, bytes(i))) == bytes(i));
    if (synced) MUST(!fsync(file));
    MUST(!close(file));
  }
  tell(name, "us", 1e3, begun, files);
}

static void large(const char *name, int flags) {
  int file = open("large", flags, 0644);
  struct moment begun = now();
  MUST(file >= 0);
  for (long done = 0; done < LARGE; done += sizeof data)
    MUST((flags & O_ACCMODE ? write(file, data, sizeof data) : read(file, data, sizeof data)) == (long)sizeof data);
  tell(name, "ms", 1e6, begun, 1);
  MUST(!close(file));
}

static void reads_here_and_there(const char *at) {
  unsigned long place = 88172645463325252ul;
  for (int i = 0; i < MAPPED_READS; i++) {
    place ^= place << 13, place ^= place >> 7, place ^= place << 17;
    MUST(*(const volatile char *)&at[place % LARGE] == 7);
  }
}

/* Of a file that was just mapped: pages come in as they are touched. */
static void mapped(void) {
  int file = open("large", O_RDONLY);
  MUST(file >= 0);
  struct moment begun = now();
  const char *at = mmap(0, LARGE, PROT_READ, MAP_SHARED, file, 0);
  MUST(at != MAP_FAILED);
  reads_here_and_there(at);
  tell("mapped_reads", "ms", 1e6, begun, 1);
  MUST(!munmap((void *)at, LARGE) && !close(file));
}

struct faulted {
  int faults, file;
  char *at;
  long unit;
};

/* Fills what is touched, so many bytes at once, by userfaultfd. */
static void *fill(void *argument) {
  const struct faulted *f = argument;
  static char piece[1 << 17] __attribute__((aligned(4096)));
  struct uffd_msg message;
  while (read(f->faults, &message, sizeof message) == sizeof message) {
    unsigned long from = (message.arg.pagefault.address - (unsigned long)f->at) / f->unit * f->unit;
    MUST(pread(f->file, piece, f->unit, from) == f->unit);
    struct uffdio_copy copy = {.dst = (unsigned long)f->at + from, .src = (unsigned long)piece, .len = f->unit};
    /* Two pages of a piece that is touched by one thread only come one after the other: it is not there yet. */
    MUST(!ioctl(f->faults, UFFDIO_COPY, &copy));
  }
  return 0;
}

/* A private map that a thread fills from the file as it is touched. */
static void faulted(const char *name, long unit) {
  struct faulted f = {.file = open("large", O_RDONLY), .unit = unit};
  struct uffdio_api api = {.api = UFFD_API};
  pthread_t thread;
  MUST(f.file >= 0);
  struct moment begun = now();
  MUST((f.faults = syscall(SYS_userfaultfd, O_CLOEXEC)) >= 0 && !ioctl(f.faults, UFFDIO_API, &api));
  MUST((f.at = mmap(0, LARGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
  struct uffdio_register all = {.range = {(unsigned long)f.at, LARGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  MUST(!ioctl(f.faults, UFFDIO_REGISTER, &all) && !pthread_create(&thread, 0, fill, &f));
  reads_here_and_there(f.at);
  tell(name, "ms", 1e6, begun, 1);
  MUST(!pthread_cancel(thread) && !pthread_join(thread, 0) && !munmap(f.at, LARGE) && !close(f.faults) && !close(f.file));
}

/* A private map that is filled when it is made. */
static void copied(void) {
  int file = open("large", O_RDONLY);
  struct moment begun = now();
  char *at = mmap(0, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MUST(file >= 0 && at != MAP_FAILED && read(file, at, LARGE) == LARGE);
  reads_here_and_there(at);
  tell("copied_reads", "ms", 1e6, begun, 1);
  MUST(!munmap(at, LARGE) && !close(file));
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median of batches: a batch in which another program had the processor says nothing of a call. */
#define IN_BATCHES(name, count, call)                                                     \
  do {                                                                                    \
    static double taken[BATCHES];                                                         \
    struct moment all = now();                                                            \
    for (int batch = 0; batch < BATCHES; batch++) {                                       \
      struct moment begun = now();                                                        \
      for (int i = 0; i < (count) / BATCHES; i++) call;                                   \
      taken[batch] = (now().ns - begun.ns) / ((count) / BATCHES);                         \
    }                                                                                     \
    qsort(taken, BATCHES, sizeof *taken, by_size);                                        \
    printf("%s_ns %f\n%s_switches %f\n", name, taken[BATCHES / 2], name,                  \
           (double)(now().switches - all.switches) / (count));                            \
  } while (0)

static void read_on(int file, int i) {
  if (i % 32 == 0) MUST(lseek(file, 0, SEEK_SET) == 0);
  MUST(read(file, data, 128) == 128);
}

static void calls(void) {
  int file = open("calls", O_RDWR | O_CREAT, 0644), none = open("/dev/null", O_WRONLY);
  MUST(file >= 0 && write(file, data, 4096) == 4096 && write(none, data, 1) == 1);
  IN_BATCHES("pread128", CALLS, MUST(pread(file, data, 128, 256) == 128));
  IN_BATCHES("pwrite128", CALLS / 8, MUST(pwrite(file, data, 128, 256) == 128));
  IN_BATCHES("read128", CALLS, read_on(file, i));
  IN_BATCHES("passed_on", CALLS, MUST(write(none, data, 1) == 1));
  MUST(!close(none) && !close(file));
}

static double begin_and_wait(char *const arguments[]) {
  struct moment begun = now();
  pid_t child;
  int status;
  MUST(!posix_spawn(&child, arguments[0], 0, 0, arguments, environ));
  MUST(waitpid(child, &status, 0) == child && status == 0);
  return now().ns - begun.ns;
}

static double median_of(char *const arguments[], int times) {
  static double taken[PROGRAMS];
  for (int i = 0; i < times; i++) taken[i] = begin_and_wait(arguments);
  qsort(taken, times, sizeof *taken, by_size);
  return taken[times / 2];
}

static void programs(void) {
  printf("exec_dynamic_us %f\n", median_of((char *[]){"/bin/true", 0}, PROGRAMS) / 1e3);
  printf("exec_static_us %f\n", median_of((char *[]){"/bin/busybox", "true", 0}, PROGRAMS) / 1e3);
}

/* What it costs to become another program with so many descriptors out of PASSED_ON, each read from here, and read on there (microseconds of its
 * processor, from before the exec to the new program's first line: it stays the same process). A lock is asked for, so that the
 * kernel has each file. */
static void open_many(int count, int *first, int *last) {
  for (int i = 0; i < PASSED_ON; i++) {
    struct flock asked = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
    char path[64];
    sprintf(path, "small/%d", i);
    int file = open(path, O_RDONLY);
    MUST(file >= 0 && !fcntl(file, F_GETLK, &asked) && read(file, data, 64) == 64);
    if (i >= count) {
      MUST(!close(file));
      continue;
    }
    *first = i ? *first : file;
    *last = file;
  }
  usleep(SETTLE_US);
}

/* What `of` gives in a child that has so many descriptors, which says it by its end of a pipe. */
static double in_child(int count, void (*of)(int count, int line)) {
  int line[2];
  double taken;
  MUST(!pipe(line));
  pid_t child = fork();
  MUST(child >= 0);
  if (child) {
    int status;
    MUST(!close(line[1]) && read(line[0], &taken, sizeof taken) == sizeof taken && !close(line[0]));
    MUST(waitpid(child, &status, 0) == child && status == 0);
    return taken;
  }
  of(count, line[1]);
  exit(1);
}

static void hand_on(int count, int line) {
  int first = 0, last = -1;
  char words[5][24];
  open_many(count, &first, &last);
  sprintf(words[0], "%d", first);
  sprintf(words[1], "%d", last);
  sprintf(words[2], "%d", count);
  sprintf(words[3], "%d", line);
  sprintf(words[4], "%.0f", own_time_ns());
  execv(self, (char *[]){(char *)self, ".", "inherited", words[0], words[1], words[2], words[3], words[4], 0});
}

static double handed_on(int count) { return in_child(count, hand_on); }

/* An exec that fails when all is said: as the process stays the same it can be done often. Microseconds of the processor, or (`waited`) that pass, the median
 * of batches. */
static double (*say_clock)(void) = own_time_ns;

static double wall_ns(void) { return now().ns; }

static void say(int count, int line) {
  static double taken[BATCHES];
  int first, last;
  open_many(count, &first, &last);
  for (int batch = 0; batch < BATCHES; batch++) {
    double begun = say_clock();
    for (int i = 0; i < FAILURES; i++) MUST(execv("no program", (char *[]){"none", 0}) && errno == ENOEXEC);
    taken[batch] = (say_clock() - begun) / FAILURES / 1e3;
  }
  qsort(taken, BATCHES, sizeof *taken, by_size);
  MUST(write(line, &taken[BATCHES / 2], sizeof *taken) == sizeof *taken);
  _exit(0); /* what is to be printed is its parent's */
}

static double said(int count) { return in_child(count, say); }

/* Whatever else happens takes time and gives none, so the least of many is what it costs. */
static void say_all(const char *name, const int counts[4]) {
  double least[4];
  for (int j = 0; j < 4; j++) {
    least[j] = 1e9;
    for (int i = 0; i < SAYINGS; i++) {
      double taken = said(counts[j]);
      if (taken < least[j]) least[j] = taken;
    }
  }
  printf("%s_descriptor_ns %f\n%s_descriptor_of_1000_ns %f\n", name, (least[3] - least[1]) * 1e3 / (PASSED_ON - 1), name,
         (least[2] - least[1]) * 1e3 / 999);
  printf("%s_first_us %f\n%s_none_us %f\n", name, least[1] - least[0], name, least[0]);
}

static void stash(void) {
  static const int counts[] = {0, 1, 1000, PASSED_ON};
  double least[4] = {1e9, 1e9, 1e9, 1e9};
  struct rlimit files;
  MUST(!getrlimit(RLIMIT_NOFILE, &files));
  files.rlim_cur = files.rlim_max;
  MUST(!setrlimit(RLIMIT_NOFILE, &files));
  for (int i = 0; i < STASHES; i++)
    for (int j = 0; j < 4; j++) {
      double taken = handed_on(counts[j]);
      if (taken < least[j]) least[j] = taken;
    }
  printf("stash_descriptor_ns %f\nstash_descriptor_of_1000_ns %f\n", (least[3] - least[1]) * 1e3 / (PASSED_ON - 1),
         (least[2] - least[1]) * 1e3 / 999);
  printf("stash_first_us %f\nstash_none_us %f\n", least[1] - least[0], least[0]);
  int file = open("no program", O_WRONLY | O_CREAT, 0755);
  MUST(file >= 0 && write(file, "\1\2\3", 3) == 3 && !close(file));
  say_all("stash_said", counts);
  say_clock = wall_ns;
  say_all("stash_waited", counts);
}

/* Between these descriptors so many are where they were left. */
static void inherited(char **words) {
  int first = atoi(words[1]), last = atoi(words[2]), count = atoi(words[3]), line = atoi(words[4]);
  double taken = (own_time_ns() - atof(words[5])) / 1e3;
  for (int file = first; file <= last; file++) count -= lseek(file, 0, SEEK_CUR) == 64;
  MUST(!count && write(line, &taken, sizeof taken) == sizeof taken);
}

static void workload(const char *name, char **arguments) {
#define IS(what) !strcmp(name, #what)
  if (IS(small_write)) each(name, "small", SMALL_FILES, small_bytes, O_WRONLY | O_CREAT | O_TRUNC, 0);
  else if (IS(small_read)) each(name, "small", SMALL_FILES, small_bytes, O_RDONLY, 0);
  else if (IS(small_rewrite)) each(name, "small", SMALL_FILES, small_bytes, O_WRONLY, 0);
  else if (IS(mixed_write)) each(name, "mixed", MIXED_FILES, mixed_bytes, O_WRONLY | O_CREAT | O_TRUNC, 0);
  else if (IS(mixed_read)) each(name, "mixed", MIXED_FILES, mixed_bytes, O_RDONLY, 0);
  else if (IS(synced_write)) each(name, "synced", SYNCED_FILES, small_bytes, O_WRONLY | O_CREAT | O_TRUNC, 1);
  else if (IS(large_write)) large(name, O_WRONLY | O_CREAT | O_TRUNC);
  else if (IS(large_read)) large(name, O_RDONLY);
  else if (IS(mapped_reads)) mapped();
  else if (IS(faulted_reads)) faulted(name, 4096);
  else if (IS(faulted_far_reads)) faulted(name, 1 << 17);
  else if (IS(copied_reads)) copied();
  else if (IS(calls)) calls();
  else if (IS(exec)) programs();
  else if (IS(stash)) stash();
  else if (IS(inherited)) inherited(arguments);
  else if (IS(folders)) MUST(!mkdir("small", 0755) && !mkdir("mixed", 0755) && !mkdir("synced", 0755));
  else MUST(!"a workload of this name");
}

int main(int count, char **arguments) {
  self = arguments[0];
  MUST(count > 2 && !chdir(arguments[1]));
  memset(data, 7, sizeof data);
  for (int i = 2; i < count; i++) {
    workload(arguments[i], arguments + i);
    if (!strcmp(arguments[i], "inherited")) return 0;
  }
  return 0;
}
