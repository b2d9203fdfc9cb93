/* Threads on one position, faults as errors, handlers that use the file they interrupt. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define RECORDS 4096
#define CHECK(what) do { if (!(what)) { printf("%d: %s (%s)\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static int file;
static int seen[RECORDS];
static volatile int ticks;

static void *reader(void *unused) {
  struct { int number; char rest[60]; } record;
  while (read(file, &record, sizeof record) == sizeof record) __atomic_fetch_add(&seen[record.number], 1, __ATOMIC_RELAXED);
  return unused;
}

static void tick(int signal) {
  char byte;
  (void)signal;
  if (pread(file, &byte, 1, 64) != 1) abort();
  ticks++;
}

/* Of which the first page is there, and the second is not. */
static void bad_memory(char *bad) {
  CHECK(pread(file, bad + 4096, 10, 0) == -1 && errno == EFAULT);
  CHECK(pwrite(file, bad + 4096, 10, 0) == -1 && errno == EFAULT);
  CHECK(pread(file, bad + 4000, 200, 0) <= 96);
  CHECK(pwrite(file, (void *)(size_t)8, 10, 0) == -1 && errno == EFAULT);
  CHECK(open((void *)8, O_RDONLY) == -1 && errno == EFAULT);
  CHECK(pread(file, bad, 64, 64) == 64 && *(int *)bad == 1);
}

static char *volatile touched;

static void mend(int signal) {
  (void)signal;
  bad_memory(touched);
  CHECK(mmap(touched + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == touched + 4096);
}

/* Of the fault itself. */
static void in_handler(char *bad) {
  struct sigaction action = {.sa_handler = mend}, old;
  touched = bad;
  CHECK(!sigaction(SIGSEGV, &action, &old));
  *(volatile char *)(bad + 4096) = 1;
  CHECK(!sigaction(SIGSEGV, &old, 0) && bad[4096] == 1);
}

int main(void) {
  struct { int number; char rest[60]; } record = {0};
  pthread_t threads[4];
  char *bad = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  file = open("records", O_RDWR | O_CREAT | O_TRUNC, 0644);
  CHECK(file >= 0);
  for (record.number = 0; record.number < RECORDS; record.number++)
    CHECK(write(file, &record, sizeof record) == sizeof record);
  CHECK(lseek(file, 0, SEEK_SET) == 0);
  for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], 0, reader, 0));
  for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], 0));
  for (int i = 0; i < RECORDS; i++) CHECK(seen[i] == 1);

  /* The same between processes. */
  CHECK(lseek(file, 0, SEEK_SET) == 0);
  int shared[2];
  CHECK(!pipe(shared));
  for (int i = 0; i < 3; i++)
    if (!fork()) {
      while (read(file, &record, sizeof record) == sizeof record) CHECK(write(shared[1], &record.number, 4) == 4);
      exit(0);
    }
  close(shared[1]);
  int number, count = 0;
  while (read(shared[0], &number, 4) == 4) { seen[number]++; count++; }
  while (wait(0) > 0) {}
  CHECK(count == RECORDS);
  for (int i = 0; i < RECORDS; i++) CHECK(seen[i] == 2);

  /* Memory that is not there is an error, not a fault, and also where the signals of faults are blocked. */
  munmap(bad + 4096, 4096);
  bad_memory(bad);
  CHECK(read(file, bad, 10) == 0);
  sigset_t faults, before;
  sigemptyset(&faults), sigaddset(&faults, SIGSEGV), sigaddset(&faults, SIGBUS);
  CHECK(!sigprocmask(SIG_BLOCK, &faults, 0));
  bad_memory(bad);
  CHECK(!sigprocmask(SIG_SETMASK, 0, &before) && sigismember(&before, SIGSEGV) && sigismember(&before, SIGBUS));
  CHECK(!sigprocmask(SIG_UNBLOCK, &faults, 0));
  bad_memory(bad);
  in_handler(bad);

  /* Handlers that use the file in whose middle they come. */
  struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
  struct itimerval every = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
  static char big[1 << 20];
  CHECK(!sigaction(SIGALRM, &action, 0));
  CHECK(!setitimer(ITIMER_REAL, &every, 0));
  for (int i = 0; i < 300 || ticks < 20; i++) {
    CHECK(pwrite(file, big, sizeof big, 0) == sizeof big);
    CHECK(pread(file, big, sizeof big, 0) == sizeof big);
  }
  CHECK(!setitimer(ITIMER_REAL, &never, 0));

  /* Descriptors come and go between threads. */
  for (int i = 0; i < 2000; i++) {
    int a = open("records", O_RDONLY), b = open("other", O_RDWR | O_CREAT | O_TRUNC, 0600);
    char byte[2];
    CHECK(a >= 0 && b >= 0 && read(a, byte, 1) == 1 && write(b, "xy", 2) == 2);
    CHECK(dup2(b, a) == a && lseek(a, 0, SEEK_SET) == 0 && read(a, byte, 2) == 2 && byte[0] == 'x');
    CHECK(!close(a) && !close(b));
    CHECK(read(a, byte, 1) == -1 && errno == EBADF);
  }
  struct stat stat;
  CHECK(!fstat(file, &stat) && stat.st_size == sizeof big);
  puts("fine");
  return 0;
}
