/* Whether a thread has faults blocked: then a bad pointer that ours meets would end the program, where the kernel says EFAULT. What ours reads and writes for the program
 * it does with faults let in, and puts them back: two calls of the kernel, which nobody pays who does not block them.
 *
 * That they may be blocked is known by what can bring it about: a call that says so, a handler that begins, what a program begins with and what a
 * thread inherits. That they are not any more is not: the kernel is asked by the call that lets them in, when next something is to be read.
 *
 * Invariants
 * - While `masked` is 0 the thread does not block faults when a call of it is looked at.
 * - MASK_ASKED goes when the kernel says that they are not blocked. The others stay: MASK_WAITS while a call may go on to block them (a handler may come before it
 *   does, or in the middle of it, and find that they are not), MASK_RETURNS once a handler has begun where they were blocked, as its end blocks them again and is not seen. That
 *   costs such a thread a call of the kernel each time, for good: nobody says whether the handler's frame is still there.
 * - A fault that somebody sent, and that comes because they are let in, is kept as if another signal waited (signals.c).
 *
 * What is not known: that a handler blocks them in what it returns to, and calls from places that are of no known form (with every call caught there are none).
 */
#include "weir.h"

#define SIGNAL_BYTES 8
#define IORING_ENTER_EXT_ARG 8u

void weir_doubt(struct thread *t, u32 why) {
  t->masked |= why;
  t->usual = 0;
}

void weir_open_faults(struct thread *t) {
  static const u64 faults = FAULTS;
  /* On an alternate stack they are let in already. */
  if (!t->masked || t->opened & FAULTS) return;
  /* The kernel says it before one comes that was sent. */
  SYS(NR_sigprocmask, SIG_UNBLOCK, &faults, &t->opened, SIGNAL_BYTES, 0, 0);
  if (!(t->opened & FAULTS)) t->masked &= ~(u32)MASK_ASKED;
}

void weir_close_faults(struct thread *t) {
  u64 faults = t->opened & FAULTS;
  if (!faults) return;
  SYS(NR_sigprocmask, SIG_BLOCK, &faults, 0, SIGNAL_BYTES, 0, 0);
  t->opened = 0;
}

int weir_says_mask(u64 number) {
  switch (number) {
    case NR_sigprocmask: case NR_sigsuspend: case NR_ppoll: case NR_pselect: case NR_epoll_pwait: case NR_epoll_pwait2: case NR_io_pgetevents:
    case NR_io_uring_enter: return 1;
  }
  return 0;
}

/* Where the kernel takes a pointer to the pointer. */
static u64 pointed(u64 at) {
  u64 place;
  return at && !weir_copy(&place, (const void *)at, sizeof place) ? place : 0;
}

u64 weir_place_of_mask(const struct call *call) {
  const u64 *a = call->arguments;
  switch (call->number) {
    case NR_sigprocmask: return a[1];
    case NR_sigsuspend: return a[0];
    case NR_ppoll: return a[3];
    case NR_epoll_pwait: case NR_epoll_pwait2: return a[4];
    case NR_pselect: case NR_io_pgetevents: return pointed(a[5]);
    case NR_io_uring_enter: return a[3] & IORING_ENTER_EXT_ARG ? pointed(a[4]) : a[4];
  }
  return 0;
}

int weir_masks_faults(const struct call *call) {
  u64 place, mask;
  if (!weir_says_mask(call->number) || (call->number == NR_sigprocmask && call->arguments[0] == SIG_UNBLOCK)) return 0;
  if (!(place = weir_place_of_mask(call)) || weir_copy(&mask, (const void *)place, sizeof mask) || !(mask & FAULTS)) return 0;
  weir_doubt(weir_thread(), MASK_ASKED | MASK_WAITS);
  return 1;
}

/* Where every call is caught it must be read for the sake of SIGSYS. */
int weir_is_mask_only(const struct thread *t, const struct call *call) {
  return !t->every && (call->number == NR_sigprocmask || call->number == NR_sigsuspend);
}

/* Programs block all signals for a moment, and then put back what was: letting faults in for that would cost more than it. */
int weir_masks_unread(struct thread *t, const struct call *call) {
  if (call->number == NR_sigprocmask && (call->arguments[0] == SIG_UNBLOCK || !call->arguments[1])) return 0;
  weir_doubt(t, MASK_ASKED | MASK_WAITS);
  return 1;
}

/* A handler in between may have found that they are not. */
void weir_unmasked(struct thread *t) {
  weir_doubt(t, MASK_ASKED);
  t->masked &= ~(u32)MASK_WAITS;
}
