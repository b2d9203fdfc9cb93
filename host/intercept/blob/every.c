/* Calls from places that match no pattern, and from code that is made while the program runs, where that was asked for: the kernel sends
 * SIGSYS for every call that is not made by the blob (syscall user dispatch).
 *
 * The handler makes no call of the program: it only has the program go on at the entry that trampolines use, so all that may be in
 * between (clone, a signal, rt_sigreturn) is as if the place were changed. All signals are blocked while it runs: one that came with it would else
 * have its handler run first, on top of ours, and find SIGSYS blocked.
 *
 * Invariants
 * - SIGSYS is never blocked while code of the program runs: a call that is caught then ends the process. So no set of blocked signals
 *   that the kernel gets has it: of a call, of an action. (A handler may still block it in what it returns to; none does.)
 * - Every call of ours is made by the blob, restorers too.
 * - Each thread and child begins without; it is armed before its first instruction (entry.S).
 */
#include "client.h"

#define CAUGHT 2 /* SYS_USER_DISPATCH */
#define RED_ZONE 128ul
#define PR_SET_DISPATCH 59

/* Of somebody who sent it, or of a filter. */
static void other(u64 signal, u8 *info, u8 *context) {
  static const struct kernel_sigaction none;
  struct kernel_sigaction *action = &weir_actions[SIGSYS];
  u64 mask = (*(u64 *)(context + UC_MASK) | action->mask) & ~SIGNAL_BIT(SIGSYS);
  if (action->handler > 1) {
    weir_note_stack(context);
    weir_note_mask(weir_thread(), mask, context);
    SYS(NR_sigprocmask, SIG_SETMASK, &mask, 0, 8, 0, 0);
    ((void (*)(u64, u8 *, u8 *))action->handler)(signal, info, context);
    return;
  }
  if (action->handler == 1) return;
  SYS(NR_sigaction, SIGSYS, &none, 0, 8, 0, 0);
  weir_send_again(SIGSYS, info);
}

static void caught(u64 signal, u8 *info, u8 *context) {
  if (*(i32 *)(info + SI_CODE) != CAUGHT) {
    other(signal, info, context);
    return;
  }
  u64 *rip = (u64 *)(context + UC_RIP);
  struct thread *t = weir_thread();
  *(u64 *)(context + UC_RCX) = *rip - 2;
  *rip = (u64)weir_entry_every;
  __atomic_fetch_add(&weir_figures.caught, 1, __ATOMIC_RELAXED);
  client_counted(1, t->calls + 1);
  t->calls = (u64)-1; /* the entry counts it */
}

int weir_hidden(struct call *call) {
  struct kernel_sigaction new, old = weir_actions[SIGSYS];
  const u64 *a = call->arguments;
  if (!weir_thread()->every) return 0;
  if (call->number == NR_exit || call->number == NR_exit_group) {
    client_counted(0, weir_thread()->calls);
    weir_thread()->calls = 0;
    return 0;
  }
  if (call->number == NR_prctl && a[0] == PR_SET_DISPATCH) {
    call->number = (u64)-22; /* EINVAL, as where there is none */
    return 1;
  }
  if (call->number != NR_sigaction || a[0] != SIGSYS || a[3] != 8) return 0;
  call->number = (u64)-14; /* EFAULT */
  if (a[1] && weir_copy(&new, (const void *)a[1], sizeof new)) return 1;
  if (a[2] && weir_copy((void *)a[2], &old, sizeof old)) return 1;
  /* A child of vfork shares our memory, and not what is done with signals: it asks for the default, as after all it becomes another program. */
  if (a[1] && !weir_thread()->passive) weir_actions[SIGSYS] = new;
  call->number = 0;
  return 1;
}

void weir_every_begin(void) {
  static const struct kernel_sigaction action = {.flags = SA_SIGINFO | SA_RESTORER | SA_ONSTACK, .mask = ~0ul};
  struct kernel_sigaction ours = action;
  u64 mask = SIGNAL_BIT(SIGSYS);
  ours.handler = (u64)caught;
  ours.restorer = (u64)weir_restorer;
  if (SYS(NR_sigaction, SIGSYS, &ours, &weir_actions[SIGSYS], 8, 0, 0)) return;
  SYS(NR_sigprocmask, SIG_UNBLOCK, &mask, 0, 8, 0, 0);
  struct thread *t = weir_thread();
  t->entry = (u64)weir_entry_every;
  t->pass = (u64)weir_pass_every;
  t->every = 1;
  weir_want(NR_exit_group, CALL_ALWAYS);
  SYS(NR_prctl, PR_SET_DISPATCH, 1, weir_blob, weir_written - weir_blob, 0, 0);
}

/* On the program's stack, below its red zone, for on_stack of entry.S. */
struct on_stack {
  u64 mask;
  const u64 *set; /* with `bytes`: as pselect6 has it */
  u64 bytes;
  u64 rdi, rsi, r10, r8, r9, continuation, number;
};

u64 weir_unblocked(struct call *call) {
  struct thread *t = weir_thread();
  u64 *a = call->arguments, argument, place, bytes = 8;
  if (!t->every) return ACT_PASS;
  switch (call->number) {
    case NR_sigprocmask: argument = 1; break;
    case NR_sigsuspend: argument = 0; break;
    case NR_ppoll: argument = 3; break;
    case NR_epoll_pwait: case NR_epoll_pwait2: argument = 4; break;
    case NR_pselect: case NR_io_pgetevents: argument = 5; break;
    default: return ACT_PASS;
  }
  int both = argument == 5;
  if (!(place = weir_place_of_mask(call)) || (both && weir_copy(&bytes, (const void *)(a[argument] + sizeof place), sizeof bytes))) return ACT_PASS;
  struct on_stack new = {.bytes = bytes, .rdi = a[0], .rsi = a[1], .r10 = a[3], .r8 = a[4], .r9 = a[5], .continuation = call->continuation,
                         .number = call->number};
  struct on_stack *on = (struct on_stack *)(t->user_stack - RED_ZONE - sizeof new);
  if (weir_copy(&new.mask, (const void *)place, sizeof new.mask) || !(new.mask & SIGNAL_BIT(SIGSYS))) return ACT_PASS;
  new.mask &= ~SIGNAL_BIT(SIGSYS);
  new.set = &on->mask;
  if (weir_copy(on, &new, sizeof new)) return ACT_PASS;
  t->user_stack = (u64)on;
  a[argument] = both ? (u64)&on->set : (u64)&on->mask;
  return ACT_ON_STACK;
}
