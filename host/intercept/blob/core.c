/* Beginning, threads, and what every intercepted call goes through. */
#include "client.h"

struct configuration weir_configuration __attribute__((section(".configuration"))) = {.magic = 0x31424f4c42524557ul};
struct figures weir_figures;
u8 weir_classes[CALLS_MAX];
u8 weir_unseen[CALLS_MAX];
u32 *weir_states;
u32 weir_forked;
u32 weir_threads;

struct clone {
  struct thread *block; /* of the child; null for a fork, which has a copy of its parent's */
  u64 continuation;
  u32 users; /* who still has to pass: parent and child */
  u32 reserved[3];
};
struct clone weir_clones[64];

/* Of the thread that begins. */
static struct {
  u8 stack[HOOK_STACK_BYTES - sizeof(struct thread)];
  struct thread thread;
} first __attribute__((section(".stack"), aligned(PAGE)));

static struct thread *free_blocks;
static u32 blocks_lock;

struct thread *weir_thread(void) {
  struct thread *self;
  __asm__("mov %%gs:0, %0" : "=r"(self));
  return self;
}

u32 weir_thread_id(void) {
  struct thread *t = weir_thread();
  if (!t->id) t->id = (u32)SYS(NR_gettid, 0, 0, 0, 0, 0, 0);
  return t->id;
}

/* Far from where the kernel puts libraries: in front of each belong its trampolines (images.rs), and what stood there would cost a search
 * through the loader at every exec. */
void *weir_map(u64 bytes) {
  static u64 taken;
  u64 place = OWN_PLACE + __atomic_fetch_add(&taken, (bytes + PAGE - 1) & ~(PAGE - 1), __ATOMIC_RELAXED);
  i64 at = SYS(NR_mmap, place, bytes, 3, 0x22, -1, 0);
  return at < 0 && at > -4096 ? 0 : (void *)at;
}

void weir_clear(void *to, u64 bytes) {
  __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(0) : "memory");
}

static void begin_block(struct thread *t) {
  t->self = t;
  t->exec_line = -1;
  t->stack_top = (u64)t;
  t->entry = (u64)weir_entry;
  t->pass = (u64)weir_pass;
  t->masked = MASK_ASKED;
}

/* A block with its hook stack, and a page below it that nobody may touch. Null when there is no memory. */
static struct thread *make_block(void) {
  struct thread *t = 0;
  while (__atomic_exchange_n(&blocks_lock, 1, __ATOMIC_ACQUIRE)) __builtin_ia32_pause();
  if ((t = free_blocks)) free_blocks = t->next_free;
  __atomic_store_n(&blocks_lock, 0, __ATOMIC_RELEASE);
  if (!t) {
    u8 *at = weir_map(PAGE + HOOK_STACK_BYTES + PAGE);
    if (!at) return 0;
    SYS(NR_mprotect, at, PAGE, 0, 0, 0, 0);
    t = (struct thread *)(at + PAGE + HOOK_STACK_BYTES);
  }
  weir_clear(t, sizeof *t);
  begin_block(t);
  return t;
}

static void free_block(struct thread *t) {
  while (__atomic_exchange_n(&blocks_lock, 1, __ATOMIC_ACQUIRE)) __builtin_ia32_pause();
  t->next_free = free_blocks;
  free_blocks = t;
  __atomic_store_n(&blocks_lock, 0, __ATOMIC_RELEASE);
}

#define CLONE_VM 0x100ul
#define CLONE_FILES 0x400ul
#define CLONE_VFORK 0x4000ul

static u64 before_clone(struct call *call) {
  struct thread *own = weir_thread();
  u64 flags = call->number == NR_clone ? call->arguments[0] : call->number == NR_vfork ? CLONE_VM | CLONE_VFORK : 0;
  struct thread *block = 0;
  if (!(flags & CLONE_FILES)) client_share_all();
  if (flags & CLONE_VM) {
    int vfork = (flags & CLONE_VFORK) != 0;
    block = vfork && own->vfork_child ? own->vfork_child : make_block();
    if (!block) {
      call->number = (u64)-12; /* ENOMEM */
      return ACT_DONE;
    }
    if (vfork) own->vfork_child = block;
    else weir_threads = 1;
    block->critical = block->deferred = block->id = block->kept = block->stack_taken = block->usual = 0;
    block->opened = 0;
    block->masked = own->masked ? MASK_ASKED : 0;
    block->alternate = own->alternate;
    block->alternate_bytes = vfork ? own->alternate_bytes : 0; /* a thread begins without */
    block->passive = own->passive || !(flags & CLONE_FILES);
    block->entry = own->entry;
    block->pass = own->pass;
    block->every = own->every;
  }
  for (u64 i = 0;; i = (i + 1) % 64) {
    u32 none = 0;
    if (!__atomic_compare_exchange_n(&weir_clones[i].users, &none, block ? 2 : 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      continue;
    weir_clones[i].block = block;
    weir_clones[i].continuation = call->continuation;
    return (u64)(weir_clone_stubs + i * 8);
  }
}

#define PR_SET_SECCOMP 22
#define PROT_READ_EXEC 5
#define MAP_SHARING 3
#define MAP_PRIVATE 2
#define MAP_ANONYMOUS 0x20

/* There is code that makes threads behind our back, or descriptors. Such a thread has the block of the one that made it, and two on one hook stack
 * would not do: so from here on no call comes to it. What is patched stays, and passes all on. */
static void leave_alone(void) {
  client_unseen();
  for (u64 i = 0; i < CALLS_MAX; i++) __atomic_store_n(&weir_classes[i], CALL_PASS, __ATOMIC_RELAXED);
}

/* A private map of a file to run: nobody else sees what is patched. */
static int code_comes_in(const struct call *call) {
  u64 flags = call->arguments[3];
  return call->arguments[2] == PROT_READ_EXEC && (flags & MAP_SHARING) == MAP_PRIVATE && !(flags & MAP_ANONYMOUS);
}

/* Behind the end of the file there is nothing to read. */
static void patch_map(const struct call *call, u64 begin) {
  u8 stat[144];
  u64 bytes = call->arguments[1], offset = call->arguments[5];
  if (SYS(NR_fstat, call->arguments[4], stat, 0, 0, 0, 0)) return;
  struct part part = {.offset = offset, .descriptor = (i32)call->arguments[4]};
  weir_identify(&part, stat);
  if (offset >= part.size) return;
  weir_patch_range(begin, bytes < part.size - offset ? bytes : part.size - offset, &part);
  if (weir_figures.sites_left_unknown) leave_alone();
}

static void begin_in_fork(struct thread *t) {
  weir_forked = weir_threads = 0;
  t->calls = 0;
  blocks_lock = 0;
  for (u64 i = 0; i < 64; i++) weir_clones[i].users = 0;
  client_forked();
}

/* A call that nobody else wants: what is to be done for the sake of signals. */
static u64 pass_masks(struct call *call) {
  int masks = weir_masks_faults(call);
  u64 act = weir_unblocked(call);
  return masks && act == ACT_PASS ? ACT_AFTER : act;
}

static u64 before(struct thread *t, struct call *call) {
  switch (call->number) {
    case NR_clone: case NR_fork: case NR_vfork: return before_clone(call);
    case NR_clone3:
      call->number = (u64)-38; /* ENOSYS: every libc then takes clone */
      return ACT_DONE;
    case NR_execve: case NR_execveat:
      if (!weir_exec_before(call) && !t->passive) client_share_all();
      return ACT_AFTER;
    case NR_exit: {
      u64 code = call->arguments[0], all = ~0ul;
      weir_hidden(call);
      if (t->passive) return ACT_PASS;
      /* From here on the block and its stack are another thread's: no handler may run on it. */
      SYS(NR_sigprocmask, SIG_SETMASK, &all, 0, 8, 0, 0);
      free_block(t);
      SYS(NR_exit, code, 0, 0, 0, 0, 0);
    }
  }
  if (weir_hidden(call)) return ACT_DONE;
  if (t->passive) return pass_masks(call);
  switch (call->number) {
    case NR_sigaction: return weir_sigaction(call) ? ACT_DONE : ACT_PASS;
    case NR_mmap:
      if (!(call->arguments[3] & MAP_ANONYMOUS)) client_map(call->arguments[4], call->arguments[5], call->arguments[1]);
      return code_comes_in(call) ? ACT_AFTER : ACT_PASS;
    case NR_sigprocmask: case NR_sigsuspend: case NR_epoll_pwait: case NR_epoll_pwait2: case NR_io_pgetevents: case NR_io_uring_enter:
      return pass_masks(call); /* no client's */
    case NR_seccomp: client_stop(); return ACT_PASS;
    case NR_prctl:
      if (call->arguments[0] == PR_SET_SECCOMP) client_stop();
      return ACT_PASS;
  }
  u64 act = client_before(call);
  return act == ACT_PASS ? pass_masks(call) : act;
}

static __attribute__((noinline)) u64 before_any(struct thread *t, struct call *call) {
  weir_thread_id();
  if (weir_forked) begin_in_fork(t);
  if (t->masked && weir_is_mask_only(t, call)) return weir_masks_unread(t, call) ? ACT_AFTER : ACT_PASS;
  weir_open_faults(t);
  u64 act = before(t, call);
  weir_close_faults(t);
  t->usual = !t->passive && !t->masked;
  return act;
}

/* Called on the hook stack for every call that is not passed on at once. */
u64 weir_before(struct call *call) {
  struct thread *t = weir_thread();
  /* Most of all calls, and those that shall cost least. A class of its own for them would cost the others more. */
  if (t->usual && call->number <= NR_pwrite && weir_classes[call->number] == CALL_FILE) return client_before(call);
  return before_any(t, call);
}

static void after(struct call *call, u64 number, i64 result) {
  switch (number) {
    case NR_execve: case NR_execveat: weir_exec_failed(); return;
    case NR_mmap:
      if (result > 0 || result < -4095) patch_map(call, (u64)result);
      return;
  }
  client_after(call, number, result);
}

void weir_after(struct call *call, u64 number, i64 result) {
  struct thread *t = weir_thread();
  if (weir_says_mask(number)) {
    weir_unmasked(t);
    return;
  }
  weir_open_faults(t);
  after(call, number, result);
  weir_close_faults(t);
}

#define ALWAYS (CALL_ALWAYS | UNSEEN_HURTS << UNSEEN_SHIFT)
/* Unseen they cost a program that blocks faults what masks.c says. */
#define MASKS (CALL_ALWAYS | UNSEEN_HARMLESS << UNSEEN_SHIFT)
const u8 weir_calls[CALLS_MAX] = {
    [NR_clone] = ALWAYS, [NR_fork] = ALWAYS, [NR_vfork] = ALWAYS, [NR_clone3] = ALWAYS, [NR_execve] = ALWAYS,
    [NR_execveat] = ALWAYS, [NR_sigaction] = ALWAYS, [NR_mmap] = ALWAYS, [NR_seccomp] = ALWAYS, [NR_prctl] = ALWAYS,
    [NR_sigprocmask] = MASKS, [NR_sigsuspend] = MASKS, [NR_ppoll] = MASKS, [NR_pselect] = MASKS, [NR_epoll_pwait] = MASKS,
    [NR_epoll_pwait2] = MASKS, [NR_io_pgetevents] = MASKS, [NR_io_uring_enter] = MASKS,
    [NR_exit] = CALL_ALWAYS | UNSEEN_HARMLESS << UNSEEN_SHIFT, /* leaves a thread's block behind */
};

void weir_want(u64 number, u8 call) {
  if (!call) return;
  weir_classes[number] = call & 3;
  weir_unseen[number] = call >> UNSEEN_SHIFT & 3;
}

/* Before the first instruction of the program. `injector` is a descriptor of it. */
void weir_start(const u64 *stack, const struct told *told, i32 injector) {
  struct thread *t = &first.thread;
  begin_block(t);
  __asm__ volatile("wrgsbase %0" : : "r"(t));
  weir_configuration.program_entry = told->entry;
  weir_configuration.flags = told->flags;
  weir_configuration.stash = (u64)(told + 1);
  weir_configuration.stash_bytes = told->stash_bytes;
  weir_take_table(injector, told);
  weir_injector = injector;
  for (u64 i = 0; i < CALLS_MAX; i++) weir_want(i, weir_calls[i]);
  client_begin();
  /* The program's stack will be where it is told. */
  weir_configuration.stash_bytes = 0;
  weir_signals_begin();
  weir_patch_program(stack, told->program);
  weir_injector = -1;
  SYS(NR_close, injector, 0, 0, 0, 0, 0);
  if (weir_configuration.flags & EVERY_CALL) weir_every_begin();
  if (weir_figures.sites_left_unknown) {
    leave_alone();
    weir_signals_end();
  }
  /* Our stack is in it: entry.S gives it back. */
  weir_configuration.memory = told->memory;
  weir_configuration.memory_bytes = told->memory_bytes;
}
