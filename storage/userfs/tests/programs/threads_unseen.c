/* Two threads that are made as musl makes them, by a place of no known form, and whose calls are made by places that have one. Each writes a file of its
 * own over and over, and reads it back. Built without libraries. */
#define OPEN_FLAGS 01102 /* O_RDWR | O_CREAT | O_TRUNC */
#define ROUNDS 1500
#define BYTES 2000

typedef unsigned long u64;

#define CALL(number, a, b, c, d)                                                                                                   \
  ({                                                                                                                               \
    long result_;                                                                                                                  \
    register long r10_ __asm__("r10") = (long)(d);                                                                                 \
    __asm__ volatile("mov %1, %%eax\n syscall" : "=&a"(result_) : "i"(number), "D"(a), "S"(b), "d"(c), "r"(r10_) : "rcx", "r11", "memory"); \
    result_;                                                                                                                       \
  })

static char stacks[2][65536] __attribute__((aligned(16)));
static volatile int done, bad;
static char names[2][3] = {"t0", "t1"};

static void work(long which) {
  char out[BYTES], in[BYTES];
  for (int round = 0; round < ROUNDS; round++) {
    long f = CALL(2, names[which], OPEN_FLAGS, 0644, 0);
    char byte = (char)('a' + (round + which * 7) % 26);
    for (int i = 0; i < BYTES; i++) {
      out[i] = byte;
      in[i] = 0;
    }
    if (f < 0 || CALL(1, f, out, BYTES, 0) != BYTES || CALL(8, f, 0, 0, 0) || CALL(0, f, in, BYTES, 0) != BYTES) __atomic_fetch_add(&bad, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < BYTES; i++)
      if (in[i] != byte) {
        __atomic_fetch_add(&bad, 1, __ATOMIC_SEQ_CST);
        break;
      }
    CALL(3, f, 0, 0, 0);
  }
  __atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST);
}

/* start(stack, which): as musl's __clone, which loads the number into al. What is called in the thread has nothing to return to. */
long start(void *stack, long which);
__asm__(".text\nstart:\n xor %eax, %eax\n mov $56, %al\n mov %rsi, %r12\n mov %rdi, %rsi\n mov $0x10f00, %edi\n xor %edx, %edx\n xor %r10d, %r10d\n"
        " xor %r8d, %r8d\n xor %r9d, %r9d\n syscall\n test %eax, %eax\n jnz 1f\n mov %r12, %rdi\n"
        " call run\n1: ret\n");

__attribute__((used)) void run(long which) {
  work(which);
  for (;;) CALL(60, 0, 0, 0, 0);
}

__attribute__((used)) void begin(void) {
  for (long i = 0; i < 2; i++) start(stacks[i] + sizeof stacks[i] - 64, i);
  while (__atomic_load_n(&done, __ATOMIC_SEQ_CST) < 2) CALL(24, 0, 0, 0, 0);
  CALL(231, bad ? 1 : 0, 0, 0, 0);
}

__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n and $-16, %rsp\n call begin\n");
