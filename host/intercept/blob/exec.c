/* Before a program is replaced, the injector is asked to be there when the new one begins: it seizes this thread, and
 * says so. Set-user-id and set-group-id files and those with capabilities are left alone: a tracer would cost them
 * their rights. Whatever fails, the program is just not accelerated. */
#include "weir.h"

#define S_ISUID 04000
#define S_ISGID 02000

static int loses_rights(const struct call *call) {
  u8 stat[256];
  u64 path = call->arguments[0];
  u8 value[64];
  if (call->number != NR_execve) return 1; /* by descriptor or folder: cannot be judged in one look */
  if (SYS(NR_statx, -100, path, 0, 2 /* mode */, stat, 0)) return 1; /* it will fail */
  if (*(u16 *)(stat + 28) & (S_ISUID | S_ISGID)) return 1;
  return SYS(NR_getxattr, path, "security.capability", value, sizeof value, 0, 0) >= 0;
}

void weir_exec_before(struct call *call) {
  u32 tid = (u32)SYS(NR_gettid, 0, 0, 0, 0, 0, 0);
  u8 answer = 0;
  struct thread *t = weir_thread();
  t->exec_line = -1;
  if (loses_rights(call)) return;
  i32 socket = weir_ask_injector(0);
  if (socket < 0) return;
  if (SYS(NR_write, socket, &tid, 4, 0, 0, 0) != 4 ||
      SYS(NR_read, socket, &answer, 1, 0, 0, 0) != 1 || answer != 'y') {
    SYS(NR_close, socket, 0, 0, 0, 0, 0);
    return;
  }
  t->exec_line = socket;
}

/* The injector lets go, and says so. */
void weir_exec_failed(void) {
  u8 word = 'f';
  i32 line = weir_thread()->exec_line;
  if (line < 0) return;
  if (SYS(NR_write, line, &word, 1, 0, 0, 0) == 1) SYS(NR_read, line, &word, 1, 0, 0, 0);
  SYS(NR_close, line, 0, 0, 0, 0, 0);
  weir_thread()->exec_line = -1;
}
