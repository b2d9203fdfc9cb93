/* A pointer that leads nowhere is an error, whatever signals are blocked: by calls, while handlers run, while a call waits, in children and threads, and in what
 * is begun with them blocked. Faults that somebody sent wait all the same, and are handled once. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(holds) do { if (!(holds)) { dprintf(2, "line %d: %s, errno %d\n", __LINE__, #holds, errno); abort(); } } while (0)

static volatile int handled, code, came;
static char alternate[1 << 16];
static sigset_t faults, none;

/* Also with one that no processor takes for an address. */
static void use(void) {
  errno = 0;
  CHECK(syscall(SYS_rt_sigaction, SIGWINCH, (void *)16, 0, 8) == -1 && errno == EFAULT);
  CHECK(syscall(SYS_rt_sigaction, SIGWINCH, 0, (void *)0xdead00000000beef, 8) == -1 && errno == EFAULT);
}

static int blocks(int signal) {
  sigset_t now;
  CHECK(!sigprocmask(SIG_SETMASK, 0, &now));
  return sigismember(&now, signal);
}

static int waits(int signal) {
  sigset_t now;
  CHECK(!sigpending(&now));
  return sigismember(&now, signal);
}

static void set(int signal, void (*handler)(int, siginfo_t *, void *), int flags, const sigset_t *mask) {
  struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags, .sa_mask = *mask};
  CHECK(!sigaction(signal, &action, 0));
}

static void count(int signal, siginfo_t *info, void *context) {
  (void)context;
  CHECK(signal == SIGSEGV || signal == SIGBUS);
  use();
  CHECK(blocks(signal));
  code = info->si_code;
  handled++;
}

static void fault(int signal, siginfo_t *info, void *context) {
  (void)info;
  use();
  CHECK(blocks(signal));
  ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
  handled++;
}

static void plain(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)info, (void)context;
  use();
  came++;
}

/* Lets faults in itself: what it returns to blocks them again. */
static void opens(int signal, siginfo_t *info, void *context) {
  CHECK(!sigprocmask(SIG_UNBLOCK, &faults, 0));
  for (int i = 0; i < 3; i++) use();
  CHECK(!blocks(SIGSEGV) && !blocks(SIGBUS));
  plain(signal, info, context);
}

static void by_a_call(void) {
  CHECK(!sigprocmask(SIG_BLOCK, &faults, 0));
  for (int i = 0; i < 3; i++) use();
  CHECK(blocks(SIGSEGV) && blocks(SIGBUS) && !blocks(SIGUSR1));
  errno = 0;
  CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, (void *)16, 0, 8) == -1 && errno == EFAULT);
  CHECK(blocks(SIGSEGV) && blocks(SIGBUS));
  set(SIGUSR1, opens, 0, &none);
  CHECK(!raise(SIGUSR1));
  for (int i = 0; i < 3; i++) use();
  CHECK(blocks(SIGSEGV) && blocks(SIGBUS));
  CHECK(!sigprocmask(SIG_UNBLOCK, &faults, 0));
  for (int i = 0; i < 3; i++) use();
  CHECK(!blocks(SIGSEGV) && !blocks(SIGBUS));
}

/* Sent while blocked: it is not handled before it is let in, and then once, with what was said. */
static void send(int signal, int with) {
  siginfo_t info = {.si_signo = signal, .si_code = with};
  handled = 0;
  set(signal, count, 0, &none);
  CHECK(!sigprocmask(SIG_BLOCK, &faults, 0));
  CHECK(!syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), signal, &info));
  for (int i = 0; i < 3; i++) use();
  CHECK(!handled && waits(signal) && blocks(signal));
  CHECK(!sigprocmask(SIG_UNBLOCK, &faults, 0));
  CHECK(handled == 1 && code == with && !waits(signal) && !blocks(signal));
  struct sigaction old;
  CHECK(!sigaction(signal, 0, &old) && old.sa_sigaction == count);
}

static void in_handlers(int flags) {
  handled = came = 0;
  set(SIGSEGV, fault, flags, &none);
  /* Of two bytes: what the handler passes over. */
  __asm__ volatile("mov (%0), %%al" : : "D"(16ul) : "rax", "memory");
  CHECK(handled == 1 && !blocks(SIGSEGV));
  use();
  for (int once = 0; once < 2; once++) {
    set(SIGUSR1, plain, flags | (once ? SA_RESETHAND : 0), &faults);
    CHECK(!raise(SIGUSR1) && came == once + 1);
    use();
  }
}

static void while_it_waits(void) {
  sigset_t block, all;
  struct timespec none_ns = {0};
  int queue = epoll_create1(0);
  struct epoll_event event;
  CHECK(queue >= 0);
  sigemptyset(&block), sigaddset(&block, SIGUSR1);
  sigfillset(&all), sigdelset(&all, SIGUSR1);
  set(SIGUSR1, opens, 0, &none);
  for (int how = 0; how < 4; how++) {
    came = 0;
    CHECK(!sigprocmask(SIG_BLOCK, &block, 0) && !raise(SIGUSR1) && !came);
    errno = 0;
    int result = how == 0 ? sigsuspend(&all)
                 : how == 1 ? ppoll(0, 0, 0, &all)
                 : how == 2 ? pselect(0, 0, 0, 0, 0, &all)
                            : epoll_pwait(queue, &event, 1, -1, &all);
    CHECK(result == -1 && errno == EINTR && came == 1);
    for (int i = 0; i < 3; i++) use();
    CHECK(!blocks(SIGSEGV) && !sigprocmask(SIG_UNBLOCK, &block, 0));
  }
  CHECK(ppoll(0, 0, &none_ns, &all) == 0 && !close(queue));
  use();
}

static void *in_thread(void *blocked) {
  CHECK(blocks(SIGSEGV) == (blocked != 0));
  for (int i = 0; i < 3; i++) use();
  return 0;
}

static void threads_and_children(const char *self) {
  for (long blocked = 0; blocked < 2; blocked++) {
    pthread_t thread;
    int status;
    if (blocked) CHECK(!sigprocmask(SIG_BLOCK, &faults, 0));
    CHECK(!pthread_create(&thread, 0, in_thread, (void *)blocked) && !pthread_join(thread, 0));
    for (int kind = 0; kind < 3; kind++) {
      pid_t child = kind == 2 ? vfork() : fork();
      CHECK(child >= 0);
      if (!child) {
        if (kind == 0) in_thread((void *)blocked), _exit(0);
        execl(self, self, blocked ? "blocked" : "open", (char *)0);
        _exit(9);
      }
      CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    use();
  }
  CHECK(!sigprocmask(SIG_UNBLOCK, &faults, 0));
}

int main(int count_of, char **arguments) {
  stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
  sigemptyset(&none), sigemptyset(&faults);
  sigaddset(&faults, SIGSEGV), sigaddset(&faults, SIGBUS);
  if (count_of > 1) return in_thread(strcmp(arguments[1], "open") ? "blocked" : 0), 0;
  by_a_call();
  for (int turn = 0; turn < 2; turn++) {
    static const int codes[] = {SI_QUEUE, SEGV_MAPERR, SI_TKILL, BUS_MCEERR_AO};
    for (int i = 0; i < 4; i++) {
      send(SIGBUS, codes[i]);
      if (codes[i] != BUS_MCEERR_AO) send(SIGSEGV, codes[i]);
    }
    in_handlers(0);
    in_handlers(SA_ONSTACK);
    while_it_waits();
    by_a_call();
    /* The second time handlers are on a stack of their own. */
    CHECK(!sigaltstack(&stack, 0));
  }
  threads_and_children(arguments[0]);
  puts("fine");
  return 0;
}
