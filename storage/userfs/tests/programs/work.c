/* The work of the bench: each line of output is a name and a figure. The folder is the first argument. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FILES 4096
#define LARGE (128l << 20)
#define CALLS 200000
#define MUST(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

static long switches(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nvcsw;
}

static char data[1 << 17];

static void small(const char *name, int flags, int write_it) {
  char path[64];
  double begun = now_ns();
  long before = switches();
  for (int i = 0; i < FILES; i++) {
    sprintf(path, "small/%d", i);
    int file = open(path, flags, 0644);
    MUST(file >= 0);
    MUST((write_it ? write(file, data, 128) : read(file, data, 128)) == 128);
    MUST(!close(file));
  }
  printf("%s_us %f\n%s_switches %f\n", name, (now_ns() - begun) / 1000 / FILES, name, (double)(switches() - before) / FILES);
}

static void large(const char *name, int flags, int write_it) {
  int file = open("large", flags, 0644);
  double begun = now_ns();
  long before = switches();
  MUST(file >= 0);
  for (long done = 0; done < LARGE; done += sizeof data)
    MUST((write_it ? write(file, data, sizeof data) : read(file, data, sizeof data)) == (long)sizeof data);
  printf("%s_ms %f\n%s_switches %f\n", name, (now_ns() - begun) / 1e6, name, (double)(switches() - before));
  MUST(!close(file));
}

int main(int count, char **arguments) {
  MUST(count == 2 && !chdir(arguments[1]));
  MUST(!system("rm -rf small large calls; mkdir small"));
  memset(data, 7, sizeof data);
  small("small_write", O_WRONLY | O_CREAT | O_TRUNC, 1);
  small("small_read", O_RDONLY, 0);
  small("small_rewrite", O_WRONLY, 1);
  large("large_write", O_WRONLY | O_CREAT | O_TRUNC, 1);
  large("large_read", O_RDONLY, 0);
  int file = open("calls", O_RDWR | O_CREAT, 0644);
  MUST(file >= 0 && write(file, data, 4096) == 4096);
  double begun = now_ns();
  for (int i = 0; i < CALLS; i++) MUST(pread(file, data, 128, 256) == 128);
  printf("pread128_ns %f\n", (now_ns() - begun) / CALLS);
  begun = now_ns();
  for (int i = 0; i < CALLS / 8; i++) MUST(pwrite(file, data, 128, 256) == 128);
  printf("pwrite128_ns %f\n", (now_ns() - begun) / (CALLS / 8));
  MUST(lseek(file, 0, SEEK_SET) == 0);
  begun = now_ns();
  for (int i = 0; i < CALLS; i++) {
    if (i % 32 == 0) MUST(lseek(file, 0, SEEK_SET) == 0);
    MUST(read(file, data, 128) == 128);
  }
  printf("read128_ns %f\n", (now_ns() - begun) / CALLS);
  int zero = open("/dev/null", O_WRONLY);
  MUST(write(zero, data, 1) == 1);
  begun = now_ns();
  for (int i = 0; i < CALLS; i++) MUST(write(zero, data, 1) == 1);
  printf("passed_ns %f\n", (now_ns() - begun) / CALLS);
  return 0;
}
