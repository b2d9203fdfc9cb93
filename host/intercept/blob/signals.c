/* Handlers of the program. The kernel knows weir_handler for each; it goes on to the program's at once, unless the thread
 * is critical: then the signal waits until it is not. Faults while bytes are copied become errors, as in the kernel.
 *
 * A signal that waits is the kernel's: it is sent to the thread again, which has all blocked until entry.S restores the mask. So any number of
 * them waits, as handlers of ours interrupt each other, each kind in the order in which it came. Faults must not be blocked meanwhile, as the
 * kernel ends a program that makes one then: those that somebody sent are kept here, and sent again when nothing else can come.
 *
 * A call of a handler that is on the alternate stack is looked at with all blocked and that stack taken from the kernel: see weir.h. It costs
 * some calls more, and waits are over as if a signal had come. */
#include "weir.h"

/* For FAULTS the kernel has weir_handler though the program may have none. */
struct kernel_sigaction weir_actions[SIGNALS];

static int is_fault(u64 signal) { return signal == SIGSEGV || signal == SIGBUS; }

/* Whether an instruction made it: then it is not to be sent again, as it comes again when that is tried again. Memory that was found to be broken is
 * told with such a code too, at any time. */
static int is_made_here(u64 signal, const u8 *info) {
  i32 code = *(const i32 *)(info + SI_CODE);
  return is_fault(signal) && code > 0 && !(signal == SIGBUS && code == BUS_MCEERR_AO);
}

/* The same while ours runs. A thread may have sent itself one with any code while it had it blocked: it comes when ours lets faults in, right behind
 * a system call, where nothing of ours makes one. */
static int is_made_by_us(u64 signal, const u8 *info, u64 rip) {
  const u8 *before = (const u8 *)rip - 2;
  return is_made_here(signal, info) && !(rip >= (u64)weir_blob && rip < (u64)weir_written && before[0] == 0x0f && before[1] == 0x05);
}

void weir_send_again(u64 signal, const u8 *info) {
  SYS(NR_tgsigqueueinfo, SYS(NR_getpid, 0, 0, 0, 0, 0, 0), SYS(NR_gettid, 0, 0, 0, 0, 0, 0), signal, info, 0, 0);
}

static i64 set(u64 signal, const struct kernel_sigaction *action, struct kernel_sigaction *old) {
  return SYS(NR_sigaction, signal, action, old, 8, 0, 0);
}

/* Each signal waits while ours begins for it: as many frames as there are kinds may lie on the hook stack, not as many as come. */
static struct kernel_sigaction for_kernel(const struct kernel_sigaction *action) {
  struct kernel_sigaction real = *action;
  int every = weir_thread()->every != 0;
  real.handler = (u64)weir_handler;
  real.flags = (real.flags & ~(SA_RESETHAND | SA_NODEFER)) | SA_SIGINFO | SA_RESTORER;
  if (every || !(action->flags & SA_RESTORER)) real.restorer = (u64)weir_restorer;
  if (every) real.mask &= ~SIGNAL_BIT(SIGSYS);
  return real;
}

static const struct kernel_sigaction watch = {.flags = SA_ONSTACK};

void weir_signals_begin(void) {
  for (u64 signal = SIGBUS; signal <= SIGSEGV; signal += SIGSEGV - SIGBUS) {
    struct kernel_sigaction real = for_kernel(&watch);
    set(signal, 0, &weir_actions[signal]);
    set(signal, &real, 0);
  }
}

/* As before weir_signals_begin; there is no handler of the program yet. */
void weir_signals_end(void) {
  for (u64 signal = SIGBUS; signal <= SIGSEGV; signal += SIGSEGV - SIGBUS) set(signal, &weir_actions[signal], 0);
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

/* What is blocked while signals wait of a thread that blocked `mask`: as much and more, so that what follows from frames' masks is right. */
static u64 all_but_faults(u64 mask) { return mask | ~FAULTS; }

static const u64 kept_signals[KEPT] = {[KEPT_SEGV] = SIGSEGV, [KEPT_BUS] = SIGBUS};

/* As in the kernel, one that comes while one of its kind waits is the same. */
static void keep(struct thread *t, u64 signal, const u8 *info) {
  u32 which = signal == SIGSEGV ? KEPT_SEGV : KEPT_BUS;
  if (t->kept & 1u << which) return;
  weir_copy(t->kept_infos[which], info, SIGINFO_BYTES);
  t->kept |= 1u << which;
}

/* The signal waits. Faults stay deliverable, as those of ours are no errors for good.
 * The mask of the frame that came first is part of those of all others: so it is what they have in common, in whatever order they come here. */
static void defer(struct thread *t, u64 signal, const u8 *info, u64 *mask) {
  u64 all = all_but_faults(*mask), here = all | SIGNAL_BIT(signal), was = *mask | (t->opened & FAULTS);
  SYS(NR_sigprocmask, SIG_SETMASK, &here, 0, 8, 0, 0);
  t->saved_mask = t->deferred ? t->saved_mask & was : was;
  t->deferred = 1;
  if (is_fault(signal)) keep(t, signal, info);
  else weir_send_again(signal, info);
  *mask = all;
}

/* All signals are blocked, and will be what this gives. */
u64 weir_flush(void) {
  struct thread *t = weir_thread();
  for (u32 i = 0; i < KEPT; i++)
    if (t->kept & 1u << i) weir_send_again(kept_signals[i], t->kept_infos[i]);
  t->kept = 0;
  if (t->stack_taken) SYS(NR_sigaltstack, &t->stack, 0, 0, 0, 0, 0);
  t->stack_taken = 0;
  t->opened = 0;
  t->deferred = 0;
  return t->saved_mask;
}

void weir_note_stack(const u8 *context) {
  struct thread *t = weir_thread();
  const struct kernel_stack *stack = (const struct kernel_stack *)(context + UC_STACK);
  if ((u64)context - stack->begin >= stack->bytes) return;
  t->alternate = stack->begin;
  t->alternate_bytes = stack->bytes;
}

/* Its handler blocks these too. What it returns to may block more than it does itself by then. */
void weir_note_mask(struct thread *t, u64 mask, const u8 *context) {
  if (*(const u64 *)(context + UC_MASK) & FAULTS) weir_doubt(t, MASK_RETURNS);
  else if (mask & FAULTS) weir_doubt(t, MASK_ASKED);
}

/* All signals are blocked. If the program has another such stack by now the caller's is one as any other. */
static void take_stack(void) {
  static const struct kernel_stack none = {.flags = SS_DISABLE};
  struct thread *t = weir_thread();
  t->stack_taken = !SYS(NR_sigaltstack, &none, &t->stack, 0, 0, 0, 0);
  if (t->stack.begin != t->alternate || t->stack.bytes != t->alternate_bytes) t->alternate_bytes = 0;
  u64 all = all_but_faults(0);
  t->opened = t->saved_mask;
  SYS(NR_sigprocmask, SIG_SETMASK, &all, 0, 8, 0, 0);
}

u64 weir_before_on_alternate(struct call *call) {
  take_stack();
  return weir_before(call);
}

void weir_after_on_alternate(struct call *call, u64 number, i64 result) {
  take_stack();
  weir_after(call, number, result);
}

/* Where to go on: a handler of the program, or 0 to return from the signal. */
u64 weir_signal(u64 signal, const u8 *info, u8 *context) {
  static const struct kernel_sigaction none;
  struct thread *t = weir_thread();
  struct kernel_sigaction *action = &weir_actions[signal];
  /* A thread of which we do not know has the block of the one that made it. A new one's number is not there yet. */
  if ((t->critical || t->deferred) && (!t->id || t->id == (u32)SYS(NR_gettid, 0, 0, 0, 0, 0, 0))) {
    u64 *rip = (u64 *)(context + UC_RIP);
    /* A program that has the processor stop at each instruction sees a call as one. */
    if (signal == SIGTRAP && *(const i32 *)(info + SI_CODE) == TRAP_TRACE) return 0;
    if (t->critical && is_made_by_us(signal, info, *rip)) {
      if (*rip >= (u64)weir_copy_words && *rip < (u64)weir_copy_instruction) *rip = (u64)weir_copy_instruction;
      else if (*rip == (u64)weir_copy_instruction) *rip = (u64)weir_copy_end;
      else set(signal, &none, 0);
      return 0;
    }
    if (t->critical || !is_made_here(signal, info)) {
      defer(t, signal, info, (u64 *)(context + UC_MASK));
      return 0;
    }
  }
  if (action->handler <= 1) return default_action(signal, info);
  u64 handler = action->handler, blocks = action->mask | SIGNAL_BIT(signal);
  int opens = action->flags & SA_NODEFER && !(action->mask & SIGNAL_BIT(signal));
  if (action->flags & SA_RESETHAND) {
    if (is_fault(signal)) action->handler = 0;
    else if (!set(signal, &none, 0)) *action = none;
  }
  weir_note_stack(context);
  weir_note_mask(t, blocks, context);
  if (opens) {
    u64 mask = SIGNAL_BIT(signal);
    SYS(NR_sigprocmask, SIG_UNBLOCK, &mask, 0, 8, 0, 0);
  }
  return handler;
}
