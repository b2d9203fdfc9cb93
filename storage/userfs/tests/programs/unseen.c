/* Reads a file over and over by calls whose places have no known form. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

long raw(long number, long a, long b, long c);
__asm__(".text\nraw:\n mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n nop\n syscall\n ret\n");

int main(int count, char **arguments) {
  unsigned char bytes[128];
  unsigned long sum = 0;
  if (count < 2) return 2;
  for (int turn = 0; turn < 200; turn++) {
    long file = raw(SYS_open, (long)arguments[1], O_RDWR, 0), got;
    if (file < 0) return 3;
    while ((got = raw(SYS_read, file, (long)bytes, sizeof bytes)) > 0)
      for (long i = 0; i < got; i++) sum += bytes[i];
    if (got || raw(SYS_lseek, file, 0, SEEK_SET) || raw(SYS_write, file, (long)"b", 1) != 1 || raw(SYS_close, file, 0, 0)) return 4;
  }
  printf("%lu\n", sum);
  return 0;
}
