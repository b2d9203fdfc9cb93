/* Before a program is replaced, the injector is asked to be there when the new one begins: it seizes this thread, and
 * says so. Set-user-id and set-group-id files and those with capabilities are left alone: a tracer would cost them
 * their rights. Whatever fails, the program is just not accelerated. */
#include "client.h"

#define S_ISUID 04000
#define S_ISGID 02000
#define CLONE_VM 0x100ul
#define CLONE_FS 0x200ul
#define CLONE_FILES 0x400ul
#define CLONE_VFORK 0x4000ul
#define WAIT_ALL 0x40000000ul
/* How often a child is tried to be made. */
#define TRIES 1000

static int loses_rights(const struct call *call) {
  u8 stat[256];
  u64 path = call->arguments[0];
  u8 value[64];
  if (call->number != NR_execve) return 1; /* by descriptor or folder: cannot be judged in one look */
  if (SYS(NR_statx, -100, path, 0, 2 /* mode */, stat, 0)) return 1; /* it will fail */
  if (*(u16 *)(stat + 28) & (S_ISUID | S_ISGID)) return 1;
  return SYS(NR_getxattr, path, "security.capability", value, sizeof value, 0, 0) >= 0;
}

int weir_say(i32 line, const void *what, u64 bytes) {
  for (const u8 *at = what; bytes;) {
    i64 done = SYS(NR_sendto, line, at, bytes, 0x4000 /* MSG_NOSIGNAL */, 0, 0);
    if (done <= 0) return 0;
    at += done;
    bytes -= (u64)done;
  }
  return 1;
}

int weir_exec_before(struct call *call) {
  struct thread *t = weir_thread();
  struct question question = {.thread = (i32)SYS(NR_gettid, 0, 0, 0, 0, 0, 0), .flags = (u32)weir_configuration.flags};
  u8 answer = 0;
  t->exec_line = -1;
  if (loses_rights(call)) return 0;
  i32 line = weir_ask_injector(0);
  if (line < 0) return 0;
  int said = t->passive ? 0 : client_stash(line, &question);
  if ((said || weir_say(line, &question, sizeof question)) && SYS(NR_read, line, &answer, 1, 0, 0, 0) == 1 && answer == 'y') {
    t->exec_line = line;
    return said;
  }
  SYS(NR_close, line, 0, 0, 0, 0, 0);
  return 0;
}

/* The injector, if it is still there, lets go when it sees the end of a child with this register: a stop that nobody waits for who is not
 * traced. The child shares our stack, and uses none; and our descriptors, as copies of many would cost more than all else. */
static i64 child(void) {
  i64 result;
  register u64 r10 __asm__("r10") = 0;
  register u64 r8 __asm__("r8") = EXEC_FAILED;
  __asm__ volatile("syscall\n test %%rax, %%rax\n jnz 1f\n mov %5, %%eax\n xor %%edi, %%edi\n syscall\n1:"
                   : "=a"(result)
                   : "a"(NR_clone), "D"(CLONE_VM | CLONE_VFORK | CLONE_FS | CLONE_FILES), "S"(0ul), "d"(0ul), "i"(NR_exit), "r"(r10), "r"(r8)
                   : "rcx", "r11", "memory");
  return result;
}

void weir_exec_failed(void) {
  struct thread *t = weir_thread();
  if (t->exec_line < 0) return;
  SYS(NR_close, t->exec_line, 0, 0, 0, 0, 0);
  t->exec_line = -1;
  for (int tries = 0; tries < TRIES; tries++) {
    i64 made = child();
    if (made > 0) {
      SYS(NR_wait4, made, 0, WAIT_ALL, 0, 0, 0);
      return;
    }
    SYS(NR_yield, 0, 0, 0, 0, 0, 0);
  }
}
