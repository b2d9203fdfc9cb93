/* Code that runs inside foreign processes. No libc, no allocation but whole mappings, no thread-local storage, no
 * vector or floating-point registers (-mgeneral-regs-only), no relocations: it is copied anywhere and started.
 *
 * Words: a site is a place of the program that makes a system call, replaced by a jump to its trampoline. A trampoline
 * sets what the site set, and goes to weir_entry (by the thread's block, so that it is the same in all processes) with the address of its own `syscall` in rcx (the continuation): so a
 * call that is passed on is made by the trampoline, on the caller's stack, and nothing of ours is on any stack while
 * the kernel has it. Returning to the continuation + 2 skips the call.
 *
 * Invariants
 * - While `critical` is set, the thread is on its hook stack, no handler of the program runs on it (signals.c defers
 *   them), and no call that may block is made.
 * - While `critical` or `deferred` is set no handler of the program runs; while `deferred` is, faults are the only signals that come.
 * - The kernel puts a signal's frame on top of the alternate stack unless the stack pointer is on that already; on the hook stack it is not. So
 *   while a call of a handler that is there is looked at, the kernel knows of no such stack.
 * - All registers but rax, rcx and r11 are what they were, as after a system call.
 * - GS leads to the thread's block. A thread gets its own before it runs any instruction of the program.
 */
#ifndef WEIR_H
#define WEIR_H

/* So that addresses of what assembly defines are computed, not loaded from a table that nobody fills. */
#pragma GCC visibility push(hidden)

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef int i32;
typedef long i64;

#define PAGE 4096ul
#define HOOK_STACK_BYTES (32 * 1024ul)
_Static_assert(PAGE == 4096 && HOOK_STACK_BYTES == 32768, "entry.S says how much");
/* Where what is known of files is mapped, if there is room; the blob itself (inject.rs) is below. */
#define TABLE_PLACE 0x201000040000ul
/* From here on our own memory. All lies close together: each page of the kernel's page tables costs a new program what a page costs. */
#define OWN_PLACE 0x201000080000ul
/* Descriptors that are watched; higher ones are always passed on. */
#define DESCRIPTORS_MAX 65536u
#define CALLS_MAX 512

enum { CALL_PASS = 0, CALL_FILE = 1, CALL_ALWAYS = 2 };
/* ACT_ON_STACK: as every.c has put it on the program's stack. Anything greater: the address of a clone stub. */
enum { ACT_PASS = 0, ACT_DONE = 1, ACT_AFTER = 2, ACT_ON_STACK = 3 };

/* As sigaltstack(2) has it. */
struct kernel_stack {
  u64 begin;
  i32 flags, reserved;
  u64 bytes;
};

/* Faults that somebody sent while we are critical: one of each kind, as of those that wait in the kernel. */
enum { KEPT_SEGV = 0, KEPT_BUS = 1, KEPT = 2 };
#define SIGINFO_BYTES 128

struct thread {
  struct thread *self;    /* 0 */
  u32 critical;           /* 8 */
  u32 deferred;           /* 12: whether signals wait until it is not */
  u64 user_stack;         /* 16 */
  u64 stack_top;          /* 24 */
  u32 id;                 /* 32: 0 until asked */
  u32 passive;            /* 36: a vfork child: its descriptors are not its parent's, its memory is */
  u64 saved_mask;         /* 40: of blocked signals, while some wait */
  u64 alternate;          /* 48: the alternate stack on which a handler began last, */
  u64 entry;              /* 56: weir_entry or weir_entry_every, for trampolines */
  u64 pass;               /* 64: where a call is passed on that the client has seen */
  u64 every;              /* 72: whether every call is caught */
  u64 calls;              /* 80: made since it was told last, where every call is caught */
  u64 scratch[7];         /* 88: registers of a child, and of a call that has no stack */
  u64 alternate_bytes;    /* 144: of that stack, 0 while none did */
  u32 usual;              /* 152: nothing is to be seen to before a call is looked at: id is known, not passive, `masked` is 0 */
  u32 masked;             /* why faults may be blocked, see masks.c; 0 when they are not */
  u64 opened;             /* what was blocked before faults were let in; of it only faults count */
  u32 kept;               /* a bit for each of `kept_infos` that waits */
  u32 stack_taken;        /* whether the kernel is to get `stack` back, as the alternate one */
  struct kernel_stack stack;
  u8 kept_infos[KEPT][SIGINFO_BYTES];
  struct thread *vfork_child; /* block for the child of a vfork, kept for the next one */
  struct thread *next_free;
  i32 exec_line; /* what the injector was asked by while an exec is tried, -1 for none */
};
#define THREAD_ENTRY 56
/* As entry.S has them. */
#define PLACE_OF(member, place) _Static_assert(__builtin_offsetof(struct thread, member) == (place), "entry.S says where it is")
PLACE_OF(critical, 8);
PLACE_OF(deferred, 12);
PLACE_OF(user_stack, 16);
PLACE_OF(stack_top, 24);
PLACE_OF(id, 32);
PLACE_OF(saved_mask, 40);
PLACE_OF(alternate, 48);
PLACE_OF(entry, THREAD_ENTRY);
PLACE_OF(pass, 64);
PLACE_OF(every, 72);
PLACE_OF(calls, 80);
PLACE_OF(scratch, 88);
PLACE_OF(alternate_bytes, 144);
PLACE_OF(usual, 152);
/* Flags of a question and of what is told: calls from places that are of no known form are caught too. See every.c. */
#define EVERY_CALL 1ul

/* As pushed by entry.S. */
struct call {
  u64 arguments[6];
  u64 number; /* on the way back: the result, for ACT_DONE */
  u64 continuation;
};

struct kernel_sigaction {
  u64 handler;
  u64 flags;
  u64 restorer;
  u64 mask;
};

/* What the injector tells a process by itself: entry.S has the first places. It lies below the program's stack, or in memory of its own. */
struct told {
  i32 injector;        /* who has the descriptors */
  i32 blob;            /* of the blob's memory; what it is, so that it is no other */
  u64 device, inode;
  u64 place, bytes, begin; /* where it is mapped, if there is room; where in it it begins */
  u64 entry;           /* where the program would have begun */
  u64 flags;
  i32 table, reserved; /* descriptor of what is known of files */
  u64 table_inode, table_bytes;
  u64 program[5];      /* of the program's file: as in struct part */
  u64 memory, memory_bytes; /* to be given back, if this is not on the stack */
  u64 stash_bytes;     /* which follow */
  u64 socket_bytes;    /* of the injector's address, where it is told if this does not work */
  u8 socket[112];
};
_Static_assert(sizeof(struct told) == 272, "inject.rs and entry.S say where what is");

/* Filled in by the injector, and when the program begins. */
struct configuration {
  u64 magic;
  u64 program_entry;  /* where the program would have begun */
  u64 memory, memory_bytes; /* 16: of struct told */
  u64 reserved[4];
  u8 injector[112];   /* name of the injector's socket (abstract, without the leading zero), empty for none */
  u32 injector_bytes;
  u32 client_bytes;
  u8 client[2048];    /* the client's own */
  u64 flags;          /* of struct told */
  u64 images;         /* what the injector knows of files: `struct image`, one behind the other */
  u64 images_bytes;
  u64 stash; /* what the client of the program that was here before said (client_stash), for client_begin */
  u64 stash_bytes;
};
extern struct configuration weir_configuration;
/* The image in memory (blob.ld): code and constants, from `weir_written` on what is written to; places come behind its end. */
extern u8 weir_blob[], weir_written[], weir_image_end[];

/* A part of a file as the injector changed it. A file that was changed has other times: what is said here of it is true, or not found.
 * `descriptor` is the injector's, of memory with trampolines and then the part, which is sealed; -1: nothing is to be changed. The trampolines
 * belong `distance` below the part. */
struct image {
  u64 device, inode, size, modified_ns, changed_ns;
  u64 offset, bytes; /* the part that is mapped, whole pages */
  u64 number;        /* of the memory's inode: a descriptor that was closed may be another's */
  u64 trampolines_bytes, distance;
  i32 process, descriptor;
  u32 sites_patched, sites_left, sites_left_confusing, sites_left_unknown;
};

/* A part of a file that is in memory. */
struct part {
  u64 device, inode, size, modified_ns, changed_ns; /* as of struct image; inode 0 when they are not known */
  u64 offset;
  i32 descriptor; /* of the file, to be shown to the injector, or -1 */
  const char *path; /* or its name */
};

/* What a call does that goes unseen: nothing, it takes a descriptor for what it is not (see a client that has such ones), or it
 * changes descriptors or threads behind our back. */
enum { UNSEEN_HARMLESS = 0, UNSEEN_CONFUSES = 1, UNSEEN_HURTS = 2 };

/* What is wanted of each call: its class, and from bit UNSEEN_SHIFT on what it does unseen. The injector reads these tables too: bits
 * above those are the client's own. */
#define UNSEEN_SHIFT 2
extern const u8 weir_calls[CALLS_MAX];
extern const u8 client_calls[CALLS_MAX];
void weir_want(u64 number, u8 call);

struct figures {
  /* Of those that are left: which might confuse, and which might hurt. */
  u64 sites_patched, sites_left, sites_left_confusing, sites_left_unknown;
  u64 caught; /* calls by SIGSYS */
};
extern struct figures weir_figures;
extern u8 weir_classes[CALLS_MAX];
extern u8 weir_unseen[CALLS_MAX];
extern u32 *weir_states; /* a word a descriptor, see client.h; null until a client wants CALL_FILE */

/* Whether more than one thread may run in this memory: a child of vfork does not run beside its parent. */
extern u32 weir_threads;

/* entry.S */
void weir_entry(void);
void weir_entry_every(void);
void weir_pass(void);
void weir_pass_every(void);
void weir_handler(void);
void weir_restorer(void);
u64 weir_copy(void *to, const void *from, u64 bytes); /* bytes not copied, because of a fault */
extern u8 weir_copy_words[], weir_copy_instruction[], weir_copy_end[];
extern u8 weir_clone_stubs[];
extern u8 weir_boot[], weir_boot_end[];

/* core.c */
struct thread *weir_thread(void);
u32 weir_thread_id(void);
void *weir_map(u64 bytes);
void weir_clear(void *to, u64 bytes);

/* patch.c */
/* `program`: what its file is, as in struct part. */
void weir_patch_program(const u64 *stack, const u64 *program);
void weir_patch_range(u64 begin, u64 bytes, const struct part *part);

/* The sites of a part of code that are wanted by these tables, at most `max`; what is left is counted. */
u32 weir_find_sites(const u8 *code, u64 bytes, const u8 *classes, const u8 *unseen, struct figures *figures, u32 *sites, u32 max);
u32 weir_site_kind(const u8 *p, u64 before, u64 behind);
/* Writes the trampoline of a site, and the jump to it. */
void weir_write_site(u8 *site, u32 kind, u64 before, u8 *trampoline);

/* find.c */
u64 weir_next_call(const u8 *code, u64 from, u64 bytes);

/* images.c */
void weir_identify(struct part *part, const u8 *stat);
const struct image *weir_image(const struct part *part, u64 bytes);
/* Maps it in place of the part, whose beginning is at `begin`; 0 when that cannot be. */
int weir_take_image(const struct image *image, u64 begin);
/* A descriptor of the injector while the program begins, -1 afterwards. */
extern i32 weir_injector;
void weir_show_file(const struct part *part, u64 bytes);
/* What the injector told of files, by a descriptor of its process. */
void weir_take_table(i32 injector, const struct told *told);
/* A connection to the injector with `flags` of socket(2), or -1. */
i32 weir_ask_injector(u32 flags);

/* signals.c */
#define SIGTRAP 5
#define SIGBUS 7
#define SIGSEGV 11
#define SIGSYS 31
#define SIGNALS 65
#define SIGNAL_BIT(signal) (1ul << ((signal) - 1))
#define SA_SIGINFO 4ul
#define SA_RESTORER 0x04000000ul
#define SA_ONSTACK 0x08000000ul
#define SA_NODEFER 0x40000000ul
#define SA_RESETHAND 0x80000000ul
#define SIG_BLOCK 0
#define SIG_UNBLOCK 1
#define SIG_SETMASK 2
#define SS_DISABLE 2
#define TRAP_TRACE 2
#define BUS_MCEERR_AO 5
/* Places in siginfo_t and ucontext_t on x86-64. */
#define SI_CODE 8
#define UC_RCX (40 + 14 * 8)
#define UC_RIP (40 + 16 * 8)
#define UC_STACK 16
#define UC_MASK 296
/* What bad pointers are found by. entry.S has them too. */
#define FAULTS (SIGNAL_BIT(SIGSEGV) | SIGNAL_BIT(SIGBUS))
_Static_assert(FAULTS == 0x440, "entry.S says which they are");

/* What the program wants done with signals; the kernel knows handlers of ours. */
extern struct kernel_sigaction weir_actions[SIGNALS];
void weir_signals_begin(void);
void weir_signals_end(void);
i64 weir_sigaction(struct call *call);
/* To this thread. */
void weir_send_again(u64 signal, const u8 *info);
/* A handler of the program begins: where it has an alternate stack and is there, calls are looked at otherwise. */
void weir_note_stack(const u8 *context);
/* The same of what it blocks. */
void weir_note_mask(struct thread *t, u64 mask, const u8 *context);
u64 weir_flush(void);
u64 weir_before(struct call *call);
void weir_after(struct call *call, u64 number, i64 result);
u64 weir_before_on_alternate(struct call *call);
void weir_after_on_alternate(struct call *call, u64 number, i64 result);

/* masks.c */
enum { MASK_ASKED = 1, MASK_WAITS = 2, MASK_RETURNS = 4 };
/* Faults of this thread may be blocked from now on. */
void weir_doubt(struct thread *t, u32 why);
/* Before and after ours reads what the program points to: faults come in between, whatever it blocks. */
void weir_open_faults(struct thread *t);
void weir_close_faults(struct thread *t);
/* Whether a call of this number may say which signals are blocked. */
int weir_says_mask(u64 number);
/* Where the call has that set, 0 when it says none. */
u64 weir_place_of_mask(const struct call *call);
/* Whether from this call on, or while it waits, faults may be blocked: weir_unmasked is to hear when it is back. */
int weir_masks_faults(const struct call *call);
void weir_unmasked(struct thread *t);
/* Of a thread that may block faults already: whether the call does nothing but say what is blocked, and the same as weir_masks_faults, without reading that. */
int weir_is_mask_only(const struct thread *t, const struct call *call);
int weir_masks_unread(struct thread *t, const struct call *call);

/* every.c */
void weir_every_begin(void);
/* Sees to it that the signal of caught calls is never blocked. ACT_PASS when there is nothing to do. */
u64 weir_unblocked(struct call *call);
/* Does the calls by which a program would get in the way of it; 0 for all others. */
int weir_hidden(struct call *call);

/* exec.c */
/* What the injector is asked: to wait for this thread's next program, of what kind (struct told), and to tell it what lies in the asking one's memory.
 * Or, with no thread, it is shown a part of a file, whose descriptor comes along. */
struct question {
  i32 thread; /* NOT_BEGUN of server.rs: the program began without us, and waits until the injector has heard it */
  u32 flags;
  u64 offset; /* of the part; or where it lies; or what pidfd_open gave */
  u64 bytes;  /* of the part; or of what lies there; or what pidfd_getfd gave */
};
/* Of the child by which the injector sees that an exec failed; as in trace.rs. */
#define EXEC_FAILED 0x64656c6961662072ul
int weir_say(i32 line, const void *what, u64 bytes);
/* Whether the program needs no more to say to the one that it becomes. */
int weir_exec_before(struct call *call);
void weir_exec_failed(void);

static inline i64 syscall6(i64 n, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
  i64 result;
  register u64 r10 __asm__("r10") = d;
  register u64 r8 __asm__("r8") = e;
  register u64 r9 __asm__("r9") = f;
  __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
#define SYS(n, a, b, c, d, e, f) syscall6((n), (u64)(a), (u64)(b), (u64)(c), (u64)(d), (u64)(e), (u64)(f))

enum {
  NR_read = 0, NR_write = 1, NR_open = 2, NR_close = 3, NR_fstat = 5, NR_lseek = 8, NR_mmap = 9, NR_mprotect = 10,
  NR_munmap = 11, NR_madvise = 28, NR_sigaction = 13, NR_sigprocmask = 14, NR_sigreturn = 15, NR_ioctl = 16, NR_pread = 17, NR_pwrite = 18, NR_readv = 19, NR_writev = 20,
  NR_yield = 24, NR_dup = 32, NR_dup2 = 33, NR_getpid = 39, NR_sendfile = 40, NR_socket = 41, NR_connect = 42,
  NR_sendto = 44, NR_sendmsg = 46, NR_clone = 56, NR_fork = 57, NR_vfork = 58, NR_execve = 59, NR_exit = 60, NR_wait4 = 61, NR_kill = 62,
  NR_fcntl = 72, NR_ftruncate = 77, NR_creat = 85, NR_prctl = 157, NR_gettid = 186, NR_clock_gettime = 228,
  NR_openat = 257, NR_newfstatat = 262, NR_unshare = 272, NR_splice = 275, NR_fallocate = 285, NR_dup3 = 292,
  NR_preadv = 295, NR_pwritev = 296, NR_tgsigqueueinfo = 297, NR_prlimit = 302, NR_sendmmsg = 307, NR_seccomp = 317,
  NR_execveat = 322, NR_copy_file_range = 326, NR_preadv2 = 327, NR_pwritev2 = 328, NR_io_uring_setup = 425,
  NR_sigsuspend = 130, NR_exit_group = 231, NR_epoll_pwait = 281, NR_epoll_pwait2 = 441, NR_pidfd_open = 434, NR_clone3 = 435, NR_close_range = 436, NR_openat2 = 437, NR_pidfd_getfd = 438, NR_statx = 332,
  NR_sigaltstack = 131, NR_io_pgetevents = 333, NR_io_uring_enter = 426, NR_poll = 7, NR_getxattr = 191, NR_stat = 4, NR_lstat = 6, NR_access = 21, NR_select = 23, NR_flock = 73, NR_fsync = 74,
  NR_fdatasync = 75, NR_getdents = 78, NR_chdir = 80, NR_fchdir = 81, NR_readlink = 89, NR_fchmod = 91, NR_fchown = 93,
  NR_umask = 95, NR_setuid = 105, NR_setgid = 106, NR_geteuid = 107, NR_getegid = 108, NR_setreuid = 113, NR_setregid = 114,
  NR_setgroups = 116, NR_setresuid = 117, NR_setresgid = 119, NR_setfsuid = 122, NR_setfsgid = 123, NR_capget = 125,
  NR_capset = 126, NR_fstatfs = 138, NR_pivot_root = 155, NR_chroot = 161, NR_readahead = 187, NR_fsetxattr = 190,
  NR_fgetxattr = 193, NR_flistxattr = 196, NR_fremovexattr = 199, NR_io_setup = 206, NR_getdents64 = 217, NR_fadvise = 221,
  NR_epoll_ctl = 233, NR_mkdirat = 258, NR_mknodat = 259, NR_fchownat = 260, NR_futimesat = 261, NR_unlinkat = 263,
  NR_renameat = 264, NR_linkat = 265, NR_symlinkat = 266, NR_readlinkat = 267, NR_fchmodat = 268, NR_faccessat = 269,
  NR_pselect = 270, NR_ppoll = 271, NR_tee = 276, NR_sync_file_range = 277, NR_vmsplice = 278, NR_utimensat = 280,
  NR_fanotify_mark = 301, NR_name_to_handle_at = 303, NR_syncfs = 306, NR_setns = 308, NR_renameat2 = 316,
  NR_faccessat2 = 439, NR_landlock_restrict_self = 446, NR_cachestat = 451, NR_fchmodat2 = 452,
};

#endif
