/* Handlers that make calls, on alternate stacks, from a timer, while threads and vforks come and go. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long ticks, caught;
static sigjmp_buf back;

static void tick(int signal) {
  char byte[64];
  int null = open("/dev/zero", O_RDONLY);
  (void)signal;
  if (null < 0 || read(null, byte, sizeof byte) != sizeof byte || close(null)) abort();
  ticks++;
}

static void fault(int signal, siginfo_t *info, void *context) {
  (void)signal; (void)context;
  if (info->si_addr != (void *)16) abort();
  caught++;
  siglongjmp(back, 1);
}

static void once(int signal) { (void)signal; caught += 100; }

static void *work(void *of) {
  for (long i = 0; i < 3000; i++) {
    int file = open("/proc/self/comm", O_RDONLY);
    char name[16];
    if (file < 0 || read(file, name, sizeof name) < 1) abort();
    if (lseek(file, 0, SEEK_SET) || close(file)) abort();
  }
  return of;
}

int main(void) {
  static char stack[65536];
  stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
  struct sigaction action = {.sa_handler = tick, .sa_flags = SA_ONSTACK | SA_RESTART}, old;
  struct itimerval every = {{0, 200}, {0, 200}};
  pthread_t threads[6];
  sigaltstack(&alternate, 0);
  sigaction(SIGALRM, &action, 0);
  sigaction(SIGALRM, 0, &old);
  if (old.sa_handler != tick || (old.sa_flags & ~0x04000000) != (SA_ONSTACK | SA_RESTART)) abort();
  sigaction(SIGSEGV, 0, &old);
  if (old.sa_handler != SIG_DFL) abort();
  memset(&action, 0, sizeof action);
  action.sa_sigaction = fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &old);
  if (old.sa_handler != SIG_DFL) abort();
  action.sa_handler = once;
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGUSR2, &action, 0);
  setitimer(ITIMER_REAL, &every, 0);
  for (int i = 0; i < 6; i++) pthread_create(&threads[i], 0, work, &threads[i]);
  for (int i = 0; i < 100; i++) {
    if (!sigsetjmp(back, 1)) *(volatile int *)16 = 1;
    pid_t child = vfork();
    if (!child) { execl("/bin/true", "true", (char *)0); _exit(9); }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status) abort();
  }
  for (int i = 0; i < 6; i++) {
    void *of;
    pthread_join(threads[i], &of);
    if (of != &threads[i]) abort();
  }
  raise(SIGUSR2);
  sigaction(SIGUSR2, 0, &old);
  if (caught != 200 || old.sa_handler != SIG_DFL || !ticks) abort();
  puts("fine");
  return 0;
}
