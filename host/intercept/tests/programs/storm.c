/* Signals of several kinds come all the time, with handlers that others may interrupt, while the program makes calls that are not passed on at
 * once. Each that was sent must be handled once, in the order in which those of its kind were sent, and none may be left blocked. */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(holds) do { if (!(holds)) { dprintf(2, "line %d: %s, errno %d\n", __LINE__, #holds, errno); abort(); } } while (0)
#define KINDS 4
#define EACH 4000

static volatile long handled[KINDS], ticks, sent_faults;
static sigjmp_buf back;

/* Calls of both sorts: seen, and passed on. */
static void use(void) {
  struct sigaction old;
  char name[16];
  CHECK(!sigaction(SIGUSR2, 0, &old) && old.sa_handler == SIG_DFL);
  CHECK(!prctl(PR_GET_NAME, name, 0, 0, 0));
  CHECK(getppid() > 0);
}

static void queued(int signal, siginfo_t *info, void *context) {
  int kind = signal - SIGRTMIN;
  (void)context;
  CHECK(info->si_code == SI_QUEUE && info->si_value.sival_int == handled[kind]);
  handled[kind]++;
  use();
}

static void tick(int signal) {
  (void)signal;
  ticks++;
  use();
}

static void fault(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)context;
  /* Its own, and no other: to go back from that of a handler whose stack was lost would hide it. */
  if (info->si_code > 0) CHECK(info->si_addr == (void *)16);
  if (info->si_code > 0) siglongjmp(back, 1);
  sent_faults++;
}

static void set(int signal, void (*handler)(int, siginfo_t *, void *), int flags) {
  struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_RESTART | SA_ONSTACK | SA_SIGINFO | flags};
  CHECK(!sigaction(signal, &action, 0));
}

/* Sends `EACH` of the kind, as fast as they are taken. */
static void send_all(pid_t to, int kind) {
  for (int i = 0; i < EACH; i++)
    while (sigqueue(to, SIGRTMIN + kind, (union sigval){.sival_int = i})) CHECK(errno == EAGAIN);
  for (int i = 0; kind == 0 && i < 50; i++) CHECK(!kill(to, SIGSEGV));
  _exit(0);
}

static long all(void) {
  long sum = 0;
  for (int kind = 0; kind < KINDS; kind++) sum += handled[kind];
  return sum;
}

int main(void) {
  static char stack[1 << 18];
  stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
  struct itimerval every = {{0, 60}, {0, 60}}, off = {0};
  struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
  pid_t self = getpid(), children[KINDS];
  sigset_t blocked, pending;
  int running = KINDS, status;
  CHECK(!sigaltstack(&alternate, 0));
  for (int kind = 0; kind < KINDS; kind++) set(SIGRTMIN + kind, queued, 0);
  set(SIGSEGV, fault, SA_NODEFER);
  CHECK(!sigaction(SIGALRM, &action, 0));
  for (int kind = 0; kind < KINDS; kind++) {
    children[kind] = fork();
    CHECK(children[kind] >= 0);
    if (!children[kind]) send_all(self, kind);
  }
  CHECK(!setitimer(ITIMER_REAL, &every, 0));
  while (running) {
    use();
    void *page = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED && !munmap(page, 4096));
    /* What cannot be read is an error, whatever waits. */
    errno = 0;
    CHECK(syscall(SYS_rt_sigaction, SIGUSR2, (void *)16, 0, 8) == -1 && errno == EFAULT);
    if (!sigsetjmp(back, 1)) *(volatile int *)16 = 1;
    for (int kind = 0; kind < KINDS; kind++) {
      if (!children[kind] || waitpid(children[kind], &status, WNOHANG) != children[kind]) continue;
      CHECK(status == 0);
      children[kind] = 0;
      running--;
    }
  }
  /* On a busy machine the others may be through before the first tick, and of all sent faults a real one may have taken the place. */
  for (long tries = 0; !ticks && tries < 100 * 1000 * 1000; tries++) use();
  if (!sent_faults) CHECK(!kill(self, SIGSEGV));
  CHECK(!setitimer(ITIMER_REAL, &off, 0));
  CHECK(!sigprocmask(SIG_SETMASK, 0, &blocked) && !sigpending(&pending));
  for (int signal = 1; signal < 65; signal++) {
    if (signal == 32 || signal == 33) continue;
    CHECK(sigismember(&blocked, signal) == 0 && sigismember(&pending, signal) == 0);
  }
  if (all() != KINDS * EACH) dprintf(2, "%ld of %d signals were handled\n", all(), KINDS * EACH);
  CHECK(all() == KINDS * EACH && ticks && sent_faults);
  puts("fine");
  return 0;
}
