/* Ways in and out: from trampolines, from the kernel's signal frames, into new threads. See weir.h. */
#define CRITICAL   %gs:8
#define DEFERRED   %gs:12
#define USER_STACK %gs:16
#define STACK_TOP  %gs:24
#define THREAD_ID  %gs:32
#define SAVED_MASK %gs:40
#define ALTERNATE  %gs:48
#define PASS       %gs:64
#define EVERY      %gs:72
#define CALLS_MADE %gs:80
#define ALTERNATE_BYTES %gs:144
#define USUAL      %gs:152
#define SCRATCH    88
#define SAVED_MASK_PLACE 40
#define RED_ZONE   128
#define PAGE       4096
#define HOOK_STACK_BYTES 32768
#define FOREIGN    1
#define UC_STACK_BYTES 32
#define UC_MASK    296
#define SIGSYS_BIT 0x40000000
#define FAULTS     0x440

    .text
    .globl weir_boot, weir_boot_end, weir_begin, weir_entry, weir_handler, weir_restorer, weir_copy, weir_copy_words, weir_copy_instruction, weir_copy_end
    .globl weir_clone_stubs, weir_entry_every, weir_pass, weir_pass_every

/* Places in struct told. */
#define INJECTOR 0
#define BLOB     4
#define DEVICE   8
#define INODE    16
#define PLACE    24
#define BYTES    32
#define BEGIN    40
#define ENTRY    48
#define SOCKET_BYTES 152
#define SOCKET   160
/* Below it: struct stat, then a question. */
#define STAT     -160
#define QUESTION -160

    .macro ask number
    mov $\number, %eax
    syscall
    .endm

    .macro begin_program entry
    pushq \entry
    xor %ebx, %ebx; xor %edx, %edx; xor %esi, %esi; xor %edi, %edi; xor %ebp, %ebp
    xor %r8d, %r8d; xor %r9d, %r9d; xor %r10d, %r10d; xor %r12d, %r12d; xor %eax, %eax
    ret
    .endm

/* What runs first, in place of the program's entry, wherever the injector has put it (inject.rs). rbx: struct told, below which there is
 * room; other registers are zero. Maps the blob, from a descriptor of the injector, and goes there; if anything fails the injector is told, and the program
 * begins. */
weir_boot:
    mov INJECTOR(%rbx), %edi
    ask 434                       /* pidfd_open */
    mov %eax, %ebp
    mov %eax, %edi
    mov BLOB(%rbx), %esi
    ask 438                       /* pidfd_getfd */
    mov %eax, %r8d
    mov %eax, %edi
    lea STAT(%rbx), %rsi
    ask 5                         /* fstat: in another namespace the number may be another process's */
    test %eax, %eax
    jnz 1f
    mov STAT(%rbx), %rax
    cmp DEVICE(%rbx), %rax
    jne 1f
    mov STAT+8(%rbx), %rax
    cmp INODE(%rbx), %rax
    jne 1f
    mov PLACE(%rbx), %rdi
    mov BYTES(%rbx), %rsi
    mov $5, %edx                   /* to be read and run */
    mov $2, %r10d                  /* private */
    ask 9                         /* mmap */
    test %rax, %rax
    js 1f
    add BEGIN(%rbx), %rax
    jmp *%rax
1:  movq $-1, QUESTION(%rbx)       /* NOT_BEGUN, and why */
    mov %rbp, QUESTION+8(%rbx)
    mov %r8, QUESTION+16(%rbx)
    mov %r8d, %edi
    ask 3                         /* close */
    mov %ebp, %edi
    ask 3
    mov $1, %edi                   /* AF_UNIX */
    mov $0x80001, %esi             /* a stream, closed at exec */
    xor %edx, %edx
    ask 41                        /* socket */
    mov %eax, %ebp
    mov %eax, %edi
    lea SOCKET(%rbx), %rsi
    mov SOCKET_BYTES(%rbx), %edx
    ask 42                        /* connect */
    test %eax, %eax
    jnz 2f
    mov %ebp, %edi
    lea QUESTION(%rbx), %rsi
    mov $24, %edx
    mov $0x4000, %r10d             /* MSG_NOSIGNAL */
    xor %r8d, %r8d
    xor %r9d, %r9d
    ask 44                        /* sendto */
    mov %ebp, %edi
    lea QUESTION(%rbx), %rsi
    mov $1, %edx
    ask 0                         /* read: until it is over */
2:  mov %ebp, %edi
    ask 3
    begin_program ENTRY(%rbx)
weir_boot_end:

/* In the blob. rbx as above, r8: the descriptor of its memory, ebp: one of the injector. */
weir_begin:
    lea weir_written(%rip), %rdi
    lea weir_image_end(%rip), %rsi
    sub %rdi, %rsi
    mov $3, %edx                   /* to be read and written */
    mov $0x12, %r10d               /* private, here */
    lea weir_blob(%rip), %rax
    mov %rdi, %r9
    sub %rax, %r9
    ask 9                         /* mmap */
    cmp %rdi, %rax
    jne 1b
    mov %r8d, %edi
    ask 3                         /* close */
    lea weir_written+HOOK_STACK_BYTES-PAGE(%rip), %rdi
    lea weir_image_end(%rip), %rsi
    sub %rdi, %rsi
    mov $23, %edx                  /* MADV_POPULATE_WRITE: all is written soon, and a fault each would cost more. Where it is not known they are made */
    ask 28                        /* madvise */
    mov %rsp, %r12
    mov %rbx, %rsp
    mov %r12, %rdi
    mov %rbx, %rsi
    mov %ebp, %edx
    call weir_start
    mov %r12, %rsp
    mov weir_configuration+16(%rip), %rdi
    mov weir_configuration+24(%rip), %rsi
    test %rsi, %rsi
    jz 2f
    ask 11                         /* munmap */
2:
    begin_program weir_configuration+8(%rip)

/* rax: number, rcx: continuation. Free: r11 and flags. */
    .macro entry pass
    mov %eax, %eax
    cmp $512, %eax
    jae \pass
    lea weir_classes(%rip), %r11
    movzbl (%r11, %rax), %r11d
    cmp $1, %r11d
    jb \pass
    ja 2f
    cmp $65536, %rdi
    jae \pass
    mov weir_states(%rip), %r11
    cmpb $FOREIGN, (%r11, %rdi, 4)
    je \pass
2:  cmpl $0, CRITICAL              /* a handler that was not deferred: let the kernel do it */
    jne \pass
    cmpq $0, ALTERNATE_BYTES
    jne alternate_before
    .endm

    .macro to_hook_stack
    movl $1, CRITICAL
    mov %rsp, USER_STACK
    mov STACK_TOP, %rsp
    push %rcx; push %rax; push %r9; push %r8; push %r10; push %rdx; push %rsi; push %rdi
    mov %rsp, %rdi
    .endm

/* Where every call is caught none may be made outside of the blob: it is made here, with the continuation on the caller's stack. A signal that
 * is over has its own there; who gives his stack back has none. */
    .balign 64
weir_pass_every:
    cmp $15, %eax                  /* rt_sigreturn */
    je 1f
    cmp $11, %eax                  /* munmap, of the stack too */
    je 2f
3:  cmp $58, %eax                  /* vfork, clone: of a handler that interrupts what may not be */
    je 4f
    cmp $56, %eax
    je 4f
    lea -RED_ZONE(%rsp), %rsp
    push %rcx
    syscall
    pop %rcx
    lea RED_ZONE(%rsp), %rsp
    lea 2(%rcx), %rcx
    jmp *%rcx
1:  andq $~SIGSYS_BIT, UC_MASK(%rsp)
    syscall
2:  mov %rsp, %r11
    sub %rdi, %r11
    cmp %rsi, %r11
    jae 3b
    mov %rcx, %gs:SCRATCH
    syscall
    mov %gs:SCRATCH, %rcx
    lea 2(%rcx), %rcx
    jmp *%rcx
4:  mov $-11, %rax                 /* EAGAIN */
    lea 2(%rcx), %rcx
    jmp *%rcx

    .balign 64
weir_entry_every:
    incq CALLS_MADE
    entry weir_pass_every
    jmp called

    .balign 64
weir_pass:
    jmp *%rcx
weir_entry:
    entry weir_pass
called:
    to_hook_stack
    call weir_before
leave:
    mov %rax, %r11
    pop %rdi; pop %rsi; pop %rdx; pop %r10; pop %r8; pop %r9; pop %rax; pop %rcx
    mov USER_STACK, %rsp
    movl $0, CRITICAL
    cmpl $0, DEFERRED
    jne flush
act:
    cmp $1, %r11
    jb 1f
    je 3f
    cmp $3, %r11
    jb after
    je on_stack
    jmp *%r11                      /* a clone stub */
1:  jmp *PASS
3:  lea 2(%rcx), %rcx
    jmp *%rcx

/* What every.c put there: other arguments of the call, and then the registers, and its number. */
on_stack:
    syscall
    mov 24(%rsp), %rdi
    mov 32(%rsp), %rsi
    mov 40(%rsp), %r10
    mov 48(%rsp), %r8
    mov 56(%rsp), %r9
    mov 64(%rsp), %rcx
    mov 72(%rsp), %r11
    lea 80+RED_ZONE(%rsp), %rsp
    jmp is_back

/* The call is made here, because something is to be done when it is back. */
after:
    lea -RED_ZONE(%rsp), %rsp
    push %rcx
    push %rax
    syscall
    pop %r11
    pop %rcx
    lea RED_ZONE(%rsp), %rsp
is_back:
    cmpl $0, CRITICAL
    jne 3b
    cmpq $0, ALTERNATE_BYTES
    jne alternate_after
over:
    to_hook_stack
    mov %r11, %rsi
    mov %rax, %rdx
    call weir_after
    mov $1, %eax
    jmp leave

/* Handlers run on an alternate stack. Is the caller there, nothing may come before the kernel knows of it no more. It knows again when signals
 * that wait are let in (flush). */
alternate_before:
    mov %rsp, %r11
    sub ALTERNATE, %r11
    cmp ALTERNATE_BYTES, %r11
    ja called
    lea -RED_ZONE(%rsp), %rsp
    call block_all
    lea RED_ZONE(%rsp), %rsp
    to_hook_stack
    call weir_before_on_alternate
    jmp leave

alternate_after:
    lea -RED_ZONE(%rsp), %rsp
    push %r11
    lea RED_ZONE+8(%rsp), %r11
    sub ALTERNATE, %r11
    cmp ALTERNATE_BYTES, %r11
    ja 1f
    call block_all
    pop %r11
    lea RED_ZONE(%rsp), %rsp
    to_hook_stack
    mov %r11, %rsi
    mov %rax, %rdx
    call weir_after_on_alternate
    mov $1, %eax
    jmp leave
1:  pop %r11
    lea RED_ZONE(%rsp), %rsp
    jmp over

/* All signals wait from here on. */
block_all:
    push %rcx; push %rax; push %rdi; push %rsi; push %rdx; push %r10
    pushq $-1
    mov $2, %edi                   /* SIG_SETMASK */
    mov %rsp, %rsi
    mov %gs:0, %rdx
    lea SAVED_MASK_PLACE(%rdx), %rdx
    mov $8, %r10d
    ask 14                         /* rt_sigprocmask */
    movl $1, DEFERRED
    lea 8(%rsp), %rsp
    pop %r10; pop %rdx; pop %rsi; pop %rdi; pop %rax; pop %rcx
    ret

/* Signals came while we were critical. They wait, as all are blocked but faults, and those are kept while DEFERRED is set (see signals.c). Now all are
 * blocked, so that nothing comes while that ends: with the mask that was, they are delivered, on the program's own stack. */
flush:
    lea -RED_ZONE(%rsp), %rsp
    push %rcx; push %rax; push %r11; push %rdi; push %rsi; push %rdx; push %r10; push %r9; push %r8
    pushq $-1
    mov $2, %edi                   /* SIG_SETMASK */
    mov %rsp, %rsi
    xor %edx, %edx
    mov $8, %r10d
    ask 14                         /* rt_sigprocmask */
    mov %rsp, USER_STACK
    mov STACK_TOP, %rsp
    call weir_flush
    mov USER_STACK, %rsp
    mov %rax, (%rsp)
    mov $2, %edi
    mov %rsp, %rsi
    xor %edx, %edx
    mov $8, %r10d
    ask 14
    lea 8(%rsp), %rsp
    pop %r8; pop %r9; pop %r10; pop %rdx; pop %rsi; pop %rdi; pop %r11; pop %rax; pop %rcx
    lea RED_ZONE(%rsp), %rsp
    jmp act

/* The handler that the kernel knows for every signal that the program handles. */
weir_handler:
    cmpq $0, CRITICAL              /* and DEFERRED */
    jne 4f
    cmpq $0, UC_STACK_BYTES(%rdx)
    jne 4f
    lea weir_actions(%rip), %rax
    mov %edi, %ecx
    shl $5, %rcx
    add %rcx, %rax
    testl $0xc0000000, 8(%rax)     /* SA_RESETHAND, SA_NODEFER: done by us */
    jne 4f
    testl $FAULTS, 24(%rax)        /* what it blocks, and what it returns to: to be noted */
    jne 4f
    testl $FAULTS, UC_MASK(%rdx)
    jne 4f
    mov $FAULTS, %r8d
    lea -1(%rdi), %ecx
    bt %rcx, %r8
    jc 4f
    mov (%rax), %rax
    cmp $1, %rax
    jbe 4f
    jmp *%rax
4:  push %rdi; push %rsi; push %rdx
    call weir_signal
    pop %rdx; pop %rsi; pop %rdi
    test %rax, %rax
    jz 5f
    jmp *%rax
5:  ret

/* What a handler has the program go on with may block all but the signal of caught calls. */
weir_restorer:
    cmpq $0, EVERY
    je 5f
    andq $~SIGSYS_BIT, UC_MASK(%rsp)
5:  mov $15, %rax
    syscall

/* Few bytes are copied by words, as rep movsb takes longer to begin than they do. A fault there goes on with rep movsb, at the
 * words that were not done; it leaves rcx true when it faults, and signals.c then goes on behind it. */
#define FEW 512
    .balign 32
weir_copy:
    mov %rdx, %rcx
    cmp $FEW, %rdx
    ja weir_copy_instruction
weir_copy_words:
    cmp $32, %rcx
    jb 11f
10: mov (%rsi), %rax
    mov 8(%rsi), %rdx
    mov 16(%rsi), %r8
    mov 24(%rsi), %r9
    mov %rax, (%rdi)
    mov %rdx, 8(%rdi)
    mov %r8, 16(%rdi)
    mov %r9, 24(%rdi)
    add $32, %rsi
    add $32, %rdi
    sub $32, %rcx
    cmp $32, %rcx
    jae 10b
11: cmp $8, %rcx
    jb 12f
    mov (%rsi), %rax
    mov %rax, (%rdi)
    add $8, %rsi
    add $8, %rdi
    sub $8, %rcx
    jmp 11b
12: test %rcx, %rcx
    jz weir_copy_end
    movzbl (%rsi), %eax
    mov %al, (%rdi)
    inc %rsi
    inc %rdi
    dec %rcx
    jmp 12b
weir_copy_instruction:
    rep movsb
weir_copy_end:
    mov %rcx, %rax
    ret

/* 64 places to make a clone from: rcx afterwards tells parent and child which one it was, without a stack. */
    .balign 8
weir_clone_stubs:
    .rept 64
    .balign 8
    syscall
    jmp clone_back
    .endr
    .balign 8
clone_back:
    lea weir_clone_stubs(%rip), %r11
    sub %r11, %rcx
    shr $3, %rcx
    shl $5, %rcx
    lea weir_clones(%rip), %r11
    add %rcx, %r11
    test %rax, %rax
    jz 6f
    mov 8(%r11), %rcx
    jns 7f
    movl $0, 16(%r11)              /* there is no child */
    jmp 8f
6:  mov (%r11), %rcx
    test %rcx, %rcx
    jz 9f
    wrgsbase %rcx
    mov 8(%r11), %rcx
    jmp 10f
9:  movl $0, THREAD_ID             /* a fork: another thread id, and the only thread */
    movl $0, USUAL
    movl $1, weir_forked(%rip)
    mov 8(%r11), %rcx
10: cmpq $0, EVERY
    je 7f
    jmp catch_every
7:  lock decl 16(%r11)
8:  add $2, %rcx
    jmp *%rcx

/* A child begins without it. r11 and rcx are not the program's; others stay, without a stack. */
catch_every:
    mov %rdi, %gs:SCRATCH; mov %rsi, %gs:SCRATCH+8; mov %rdx, %gs:SCRATCH+16; mov %r10, %gs:SCRATCH+24; mov %r8, %gs:SCRATCH+32
    mov %rcx, %gs:SCRATCH+40
    mov %r11, %gs:SCRATCH+48
    mov $59, %edi                  /* PR_SET_SYSCALL_USER_DISPATCH, on, but for the blob */
    mov $1, %esi
    lea weir_blob(%rip), %rdx
    lea weir_written(%rip), %r10
    sub %rdx, %r10
    xor %r8d, %r8d
    ask 157                        /* prctl */
    mov %gs:SCRATCH, %rdi; mov %gs:SCRATCH+8, %rsi; mov %gs:SCRATCH+16, %rdx; mov %gs:SCRATCH+24, %r10; mov %gs:SCRATCH+32, %r8
    mov %gs:SCRATCH+40, %rcx
    mov %gs:SCRATCH+48, %r11
    xor %eax, %eax
    jmp 7b

    .section .note.GNU-stack, "", @progbits
