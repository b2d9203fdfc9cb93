/* Handlers of the program. The kernel knows weir_handler for each; it goes on to the program's at once, unless the thread
 * is critical: then the signal waits until it is not. Faults while bytes are copied become errors, as in the kernel.
 *
 * A signal that waits is the kernel's: it is sent to the thread again, which has all blocked until entry.S restores the mask. So any number of
 * them waits, as handlers of ours interrupt each other, each kind in the order in which it came. */
#include "weir.h"

struct kernel_sigaction weir_actions[SIGNALS];
/* Those for which the kernel has weir_handler though the program has none. */
#define FAULTS (SIGNAL_BIT(SIGSEGV) | SIGNAL_BIT(SIGBUS))

static int is_fault(u64 signal) { return signal == SIGSEGV || signal == SIGBUS; }

/* Whether an instruction made it: then it is not to be sent again, as it comes again when that is tried again. */
static int is_made_here(u64 signal, const u8 *info) { return is_fault(signal) && *(const i32 *)(info + SI_CODE) > 0; }

void weir_send_again(u64 signal, const u8 *info) {
  SYS(NR_tgsigqueueinfo, SYS(NR_getpid, 0, 0, 0, 0, 0, 0), SYS(NR_gettid, 0, 0, 0, 0, 0, 0), signal, info, 0, 0);
}

static i64 set(u64 signal, const struct kernel_sigaction *action, struct kernel_sigaction *old) {
  return SYS(NR_sigaction, signal, action, old, 8, 0, 0);
}

static struct kernel_sigaction for_kernel(const struct kernel_sigaction *action) {
  struct kernel_sigaction real = *action;
  int every = weir_thread()->every != 0;
  real.handler = (u64)weir_handler;
  real.flags = (real.flags & ~SA_RESETHAND) | SA_SIGINFO | SA_RESTORER;
  if (every || !(action->flags & SA_RESTORER)) real.restorer = (u64)weir_restorer;
  if (every) real.mask &= ~SIGNAL_BIT(SIGSYS);
  return real;
}

static const struct kernel_sigaction watch = {.flags = SA_ONSTACK | SA_NODEFER};

void weir_signals_begin(void) {
  for (u64 signal = SIGBUS; signal <= SIGSEGV; signal += SIGSEGV - SIGBUS) {
    struct kernel_sigaction real = for_kernel(&watch);
    set(signal, 0, &weir_actions[signal]);
    set(signal, &real, 0);
  }
}

/* Does rt_sigaction; 0 to pass it on. */
i64 weir_sigaction(struct call *call) {
  u64 signal = call->arguments[0];
  const void *given = (const void *)call->arguments[1];
  void *wanted = (void *)call->arguments[2];
  struct kernel_sigaction new, old;
  if (signal == 0 || signal >= SIGNALS || call->arguments[3] != 8) return 0;
  old = weir_actions[signal];
  int ours = old.handler > 1 || is_fault(signal);
  if (given && weir_copy(&new, given, sizeof new)) goto fault;
  if (!given) {
    if (!ours) return 0;
  } else if (new.handler > 1 || is_fault(signal)) {
    struct kernel_sigaction real = for_kernel(new.handler > 1 ? &new : &watch), before;
    /* The table first: a signal may come as soon as the kernel knows. */
    weir_actions[signal] = new;
    i64 result = set(signal, &real, &before);
    if (result) {
      weir_actions[signal] = old;
      call->number = (u64)result;
      return 1;
    }
    if (!ours) old = before;
  } else {
    struct kernel_sigaction before;
    i64 result = set(signal, &new, &before);
    if (result) {
      call->number = (u64)result;
      return 1;
    }
    weir_actions[signal] = new;
    if (!ours) old = before;
  }
  if (wanted && weir_copy(wanted, &old, sizeof old)) goto fault;
  call->number = 0;
  return 1;
fault:
  call->number = (u64)-14;
  return 1;
}

/* The program has no handler for a signal for which we have one, or has none any more since it came: what the kernel would have done. */
static u64 default_action(u64 signal, const u8 *info) {
  static const struct kernel_sigaction none;
  int made_here = is_made_here(signal, info);
  if (weir_actions[signal].handler == 1 && !made_here) return 0; /* ignored */
  set(signal, &none, 0);
  if (!made_here) weir_send_again(signal, info);
  return 0;
}

/* The signal waits. Faults stay deliverable, as those of ours are no errors for good; but one that somebody sent is blocked too.
 * The mask of the frame that came first is part of those of all others: so it is what they have in common, in whatever order they come here. */
static void defer(struct thread *t, u64 signal, const u8 *info, u64 *mask) {
  t->waiting |= SIGNAL_BIT(signal);
  u64 all = ~FAULTS | t->waiting;
  SYS(NR_sigprocmask, SIG_SETMASK, &all, 0, 8, 0, 0);
  t->saved_mask = t->deferred ? t->saved_mask & *mask : *mask;
  t->deferred = 1;
  weir_send_again(signal, info);
  *mask = ~FAULTS | t->waiting;
}

/* Where to go on: a handler of the program, or 0 to return from the signal. */
u64 weir_signal(u64 signal, const u8 *info, u8 *context) {
  static const struct kernel_sigaction none;
  struct thread *t = weir_thread();
  struct kernel_sigaction *action = &weir_actions[signal];
  /* A thread of which we do not know has the block of the one that made it. A new one's number is not there yet. */
  if (t->critical && (!t->id || t->id == (u32)SYS(NR_gettid, 0, 0, 0, 0, 0, 0))) {
    u64 *rip = (u64 *)(context + UC_RIP);
    if (is_made_here(signal, info)) {
      if (*rip >= (u64)weir_copy_words && *rip < (u64)weir_copy_instruction) *rip = (u64)weir_copy_instruction;
      else if (*rip == (u64)weir_copy_instruction) *rip = (u64)weir_copy_end;
      else set(signal, &none, 0);
      return 0;
    }
    defer(t, signal, info, (u64 *)(context + UC_MASK));
    return 0;
  }
  if (action->handler <= 1) return default_action(signal, info);
  u64 handler = action->handler;
  if (action->flags & SA_RESETHAND) {
    if (is_fault(signal)) action->handler = 0;
    else if (!set(signal, &none, 0)) *action = none;
  }
  return handler;
}
