/* Handlers on the alternate stack make calls that are not passed on at once, while other signals come that want the same stack, and with pointers
 * that lead nowhere. What lies on that stack must stay: the handlers' own, and what the kernel goes on with. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(holds) do { if (!(holds)) { dprintf(2, "line %d: %s, errno %d\n", __LINE__, #holds, errno); abort(); } } while (0)
#define OUTER 200
#define CALLS 500

static volatile long outer, inner, faults, steps;
static char stack[1 << 16];

static int is_on_alternate(void) {
  char here;
  stack_t now;
  CHECK(!sigaltstack(0, &now) && now.ss_sp == stack && now.ss_size == sizeof stack);
  int told = now.ss_flags == SS_ONSTACK, is = &here >= stack && &here < stack + sizeof stack;
  CHECK(told == is);
  return is;
}

static void use(int signal) {
  unsigned char own[512], name[16];
  struct sigaction old;
  memset(own, signal, sizeof own);
  __asm__ volatile("" : : "r"(own) : "memory");
  CHECK(!sigaction(SIGUSR1, 0, &old) && old.sa_flags & SA_ONSTACK);
  CHECK(!prctl(PR_GET_NAME, name, 0, 0, 0));
  errno = 0;
  CHECK(syscall(SYS_rt_sigaction, SIGWINCH, (void *)16, 0, 8) == -1 && errno == EFAULT);
  for (size_t i = 0; i < sizeof own; i++) CHECK(own[i] == signal);
}

static void first(int signal) {
  sigset_t before, after;
  CHECK(is_on_alternate() && !sigprocmask(SIG_SETMASK, 0, &before));
  for (int i = 0; i < CALLS; i++) use(signal);
  CHECK(is_on_alternate() && !sigprocmask(SIG_SETMASK, 0, &after) && !memcmp(&before, &after, 8));
  outer++;
}

static void second(int signal) {
  CHECK(is_on_alternate());
  use(signal);
  inner++;
}

/* With all blocked, its own signal too: bad pointers are errors all the same. */
static void fault(int signal) {
  CHECK(is_on_alternate());
  use(signal);
  faults++;
}

static void set(int signal, void (*handler)(int)) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_ONSTACK};
  if (handler == fault) sigfillset(&action.sa_mask);
  CHECK(!sigaction(signal, &action, 0));
}

/* Now and then, so that signals come in the middle of code and not only when a handler returns. */
static void send_all(pid_t to) {
  for (;;) {
    if (kill(to, SIGUSR2) || kill(to, SIGSEGV)) _exit(0);
    for (volatile int i = 0; i < 3000; i++) {}
  }
}

static void in_child(void) {
  pid_t child = fork();
  int status;
  CHECK(child >= 0);
  if (!child) {
    CHECK(is_on_alternate());
    use(SIGHUP);
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void forks(int signal) {
  use(signal);
  in_child();
  CHECK(is_on_alternate());
  outer++;
}

static void step(int signal) {
  (void)signal;
  steps++;
}

/* The processor stops at each instruction, of calls too. */
static void single_steps(void) {
  set(SIGTRAP, step);
  __asm__ volatile("lea -128(%%rsp), %%rsp\n pushf\n orl $0x100, (%%rsp)\n popf\n lea 128(%%rsp), %%rsp" : : : "cc", "memory");
  use(SIGTRAP);
  __asm__ volatile("lea -128(%%rsp), %%rsp\n pushf\n andl $~0x100, (%%rsp)\n popf\n lea 128(%%rsp), %%rsp" : : : "cc", "memory");
  CHECK(steps > 100);
}

int main(void) {
  stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
  sigset_t blocked;
  pid_t self = getpid();
  CHECK(!sigaltstack(&alternate, 0));
  set(SIGUSR1, first);
  set(SIGHUP, forks);
  /* By itself, and with others. */
  CHECK(!raise(SIGUSR1) && outer == 1 && !is_on_alternate());
  CHECK(!raise(SIGHUP) && outer == 2 && !is_on_alternate());
  single_steps();
  set(SIGUSR2, second);
  set(SIGSEGV, fault);
  pid_t child = fork();
  CHECK(child >= 0);
  if (!child) {
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    send_all(self);
  }
  for (int i = 0; i < OUTER; i++) {
    CHECK(!raise(SIGUSR1));
    use(SIGUSR1);
  }
  CHECK(!kill(child, SIGKILL) && waitpid(child, 0, 0) == child);
  CHECK(outer == OUTER + 2 && !is_on_alternate());
  CHECK(!sigprocmask(SIG_SETMASK, 0, &blocked));
  for (int signal = 1; signal < 65; signal++) CHECK(signal == 32 || signal == 33 || !sigismember(&blocked, signal));
  CHECK(inner && faults);
  puts("fine");
  return 0;
}
