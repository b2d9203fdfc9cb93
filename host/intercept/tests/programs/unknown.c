/* Makes its calls from places of no known form, and from code that it makes itself: in threads, children, handlers on alternate stacks in a storm
 * of signals, with signals blocked. Each call must do what it does without us. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CHECK(holds) do { if (!(holds)) { dprintf(2, "line %d: %s, errno %d\n", __LINE__, #holds, errno); abort(); } } while (0)

/* number, then arguments. What is kept over a call must be kept. */
long raw(long number, ...);
long raw_vfork(void);
__asm__(".text\n.globl raw, raw_vfork\n"
        "raw:\n mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n mov %r8, %r10\n mov %r9, %r8\n mov 8(%rsp), %r9\n"
        " movabs $0x1122334455667788, %r11\n mov %r11, -8(%rsp)\n mov %r11, -120(%rsp)\n nop\n syscall\n"
        " movabs $0x1122334455667788, %r11\n cmp %r11, -8(%rsp)\n jne 1f\n cmp %r11, -120(%rsp)\n jne 1f\n ret\n1: ud2\n"
        "raw_vfork:\n pop %rdx\n push $58\n pop %rax\n nop\n syscall\n push %rdx\n ret\n");

static volatile long ticks, longest, jumped, io, told;
static int pipes[2];
static sigjmp_buf back;

static void use(void) {
  char byte[64];
  long file = raw(SYS_open, "/dev/zero", O_RDONLY);
  CHECK(file >= 0 && raw(SYS_read, file, byte, sizeof byte) == sizeof byte && raw(SYS_close, file) == 0);
}

static void tick(int signal) {
  (void)signal;
  use();
  ticks++;
}

/* Nested, and left by a jump. */
static void fault(int signal) {
  (void)signal;
  use();
  raise(SIGUSR1);
  siglongjmp(back, 1);
}

static void nested(int signal) {
  (void)signal;
  use();
  jumped++;
}

static void input(int signal) {
  char byte[256];
  long got;
  (void)signal;
  while ((got = raw(SYS_read, pipes[0], byte, sizeof byte)) > 0) io += got;
}

static void sys(int signal, siginfo_t *info, void *context) {
  (void)context;
  CHECK(signal == SIGSYS && info->si_code <= 0);
  use();
  told++;
}

/* Has the program go on with all signals blocked. */
static void blocking(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)info;
  sigfillset(&((ucontext_t *)context)->uc_sigmask);
}

static void set(int signal, void (*handler)(int), int flags) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
  sigfillset(&action.sa_mask);
  if (flags & SA_NODEFER) sigemptyset(&action.sa_mask);
  CHECK(!sigaction(signal, &action, 0));
}

static void *work(void *of) {
  stack_t alternate = {.ss_sp = malloc(65536), .ss_size = 65536};
  CHECK(!sigaltstack(&alternate, 0));
  for (int i = 0; i < 2000; i++) use();
  alternate.ss_flags = SS_DISABLE;
  CHECK(!sigaltstack(&alternate, 0));
  free(alternate.ss_sp);
  return of;
}

static int ended(pid_t child) {
  int status;
  while (waitpid(child, &status, 0) != child) CHECK(errno == EINTR);
  return status;
}

static void children(void) {
  for (int i = 0; i < 20; i++) {
    pid_t child = (pid_t)raw(SYS_fork);
    if (!child) {
      use();
      raw(SYS_exit_group, 7);
    }
    CHECK(ended(child) == 7 << 8);
    child = (pid_t)raw_vfork();
    if (!child) {
      use();
      execl("/bin/true", "true", (char *)0);
      _exit(9);
    }
    CHECK(child > 0 && ended(child) == 0);
    CHECK(system("exit 3") == 3 << 8);
  }
}

/* Signals that are blocked in every way: calls go on all the same. */
static void blocked(void) {
  sigset_t all, before;
  struct timespec soon = {0, 1000000};
  struct epoll_event event;
  sigfillset(&all);
  CHECK(!sigprocmask(SIG_SETMASK, &all, &before));
  use();
  struct { const void *set; size_t bytes; } both = {&all, 8};
  CHECK(raw(SYS_ppoll, 0, 0, &soon, &all, 8) == 0);
  CHECK(ppoll(0, 0, &soon, &all) == 0);
  CHECK(raw(SYS_pselect6, 0, 0, 0, 0, &soon, &both) == 0);
  CHECK(pselect(0, 0, 0, 0, &soon, &all) == 0);
  int poll = epoll_create1(0);
  CHECK(epoll_pwait(poll, &event, 1, 1, &all) == 0);
  CHECK(raw(SYS_rt_sigprocmask, SIG_BLOCK, &all, 0, 8) == 0);
  use();
  close(poll);
  sigset_t none = before;
  sigdelset(&none, SIGALRM);
  CHECK(sigsuspend(&none) == -1 && errno == EINTR);
  CHECK(!sigprocmask(SIG_SETMASK, &before, 0));
  struct sigaction action = {.sa_sigaction = blocking, .sa_flags = SA_SIGINFO};
  CHECK(!sigaction(SIGUSR2, &action, 0) && !raise(SIGUSR2));
  use();
  CHECK(!sigprocmask(SIG_SETMASK, &before, &all) && sigismember(&all, SIGUSR2) == 1);
}

static void made_code(void) {
  static const unsigned char code[] = {0x89, 0xf8, 0x90, 0x0f, 0x05, 0xc3}; /* mov %edi, %eax; nop; syscall; ret */
  unsigned char *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy(page, code, sizeof code);
  CHECK(((long (*)(long))(uintptr_t)page)(SYS_getpid) == getpid());
}

static void hidden(void) {
  struct sigaction action = {.sa_flags = SA_SIGINFO}, old;
  CHECK(!sigaction(SIGSYS, 0, &old) && old.sa_handler == SIG_DFL);
  action.sa_sigaction = sys;
  CHECK(!sigaction(SIGSYS, &action, 0) && !sigaction(SIGSYS, 0, &old) && old.sa_sigaction == sys);
  CHECK(!raise(SIGSYS) && told == 1);
  set(SIGSYS, SIG_IGN, 0);
  CHECK(!raise(SIGSYS) && told == 1);
  set(SIGSYS, SIG_DFL, 0);
  pid_t child = fork();
  if (!child) {
    raise(SIGSYS);
    _exit(1);
  }
  int status = ended(child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

/* A child writes, and each piece is told by a signal. */
static void storm(void) {
  CHECK(!pipe2(pipes, O_NONBLOCK));
  set(SIGIO, input, SA_RESTART | SA_ONSTACK);
  CHECK(fcntl(pipes[0], F_SETOWN, getpid()) == 0 && fcntl(pipes[0], F_SETFL, O_NONBLOCK | O_ASYNC) == 0);
  pid_t child = fork();
  if (!child) {
    char bytes[64] = {0};
    long done = 0;
    signal(SIGALRM, SIG_IGN);
    while (done < 100000) {
      long wrote = raw(SYS_write, pipes[1], bytes, sizeof bytes);
      if (wrote > 0) done += wrote;
      else CHECK(wrote == -EAGAIN || wrote == -EINTR);
    }
    _exit(done == 100032 ? 0 : 1);
  }
  struct timeval soon;
  int status;
  pid_t over;
  while ((over = waitpid(child, &status, WNOHANG)) != child) {
    CHECK(over == 0 || errno == EINTR);
    soon = (struct timeval){0, 1000};
    CHECK(select(0, 0, 0, 0, &soon) == 0 || errno == EINTR);
    use();
  }
  input(0);
  CHECK(status == 0 && io == 100032);
  close(pipes[0]);
  close(pipes[1]);
}

int main(int count, char **arguments) {
  static char stack[65536];
  stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
  struct itimerval every = {{0, 150}, {0, 150}};
  pthread_t threads[6];
  CHECK(!sigaltstack(&alternate, 0));
  if (count > 1 && !strcmp(arguments[1], "storm")) {
    storm();
    puts("fine");
    return 0;
  }
  hidden();
  made_code();
  set(SIGALRM, tick, SA_ONSTACK | SA_RESTART);
  set(SIGSEGV, fault, SA_ONSTACK | SA_NODEFER);
  set(SIGUSR1, nested, SA_ONSTACK);
  setitimer(ITIMER_REAL, &every, 0);
  for (int i = 0; i < 6; i++) CHECK(!pthread_create(&threads[i], 0, work, 0));
  children();
  for (int i = 0; i < 100; i++)
    if (!sigsetjmp(back, 1)) *(volatile int *)16 = 1;
  for (int i = 0; i < 20; i++) blocked();
  for (int i = 0; i < 6; i++) CHECK(!pthread_join(threads[i], 0));
  storm();
  CHECK(jumped == 100 && ticks);
  puts("fine");
  return 0;
}
