/* Where the bytes of a `syscall` instruction are in code. Used in the process that is patched and, as ordinary code, by the
 * injector, which looks once a file for all processes: so both find the same. */
#include "weir.h"

#define OF_EACH(byte) (0x0101010101010101ul * (byte))
typedef u64 word __attribute__((may_alias, aligned(1)));

/* The first place from `from` on of 0f 05, `bytes` if there is none. Eight bytes without 05 are passed over at once. */
u64 weir_next_call(const u8 *code, u64 from, u64 bytes) {
  u64 at = from;
  while (at + 1 < bytes) {
    if (at + 9 <= bytes) {
      u64 second = *(const word *)(code + at + 1) ^ OF_EACH(0x05);
      if (!((second - OF_EACH(1)) & ~second & OF_EACH(0x80))) {
        at += 8;
        continue;
      }
    }
    for (u64 end = at + 8; at < end && at + 1 < bytes; at++)
      if (code[at] == 0x0f && code[at + 1] == 0x05) return at;
  }
  return bytes;
}
