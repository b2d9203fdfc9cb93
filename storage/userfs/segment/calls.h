/* Every system call of the kernel's table for x86-64: what it takes that may be a descriptor or the name of one, and how the client makes that true.
 *
 * A descriptor that stands in (private.c) is another file for the kernel. So each call that takes one, wherever it takes it, is served here or
 * finds the file's own there; one that takes a path finds it too where the path leads to a descriptor (/proc/self/fd/N, a link to it). What is not
 * in this table takes all descriptors for all that is known: they become the kernel's. A test compares it with the kernel's headers.
 *
 * - PLAIN: what the columns say is all.
 * - MOVES: bytes or the position of the first descriptor (transfer.c, client.c).
 * - SHARES: descriptors are made, closed, handed on or used by others, also where nothing stands in (client.c).
 * - TELLS: who the process is, or descriptors that lie in memory (private.c).
 * - CORE: the interceptor's own (host/intercept/blob/core.c).
 */
#ifndef WEIR_CALLS_H
#define WEIR_CALLS_H

enum { CALLS_FIRST = 1, CALLS_SECOND = 2, CALLS_THIRD = 4, CALLS_FOURTH = 8, CALLS_FIFTH = 16 };
enum { CALLS_PLAIN = 1, CALLS_MOVES = 2, CALLS_SHARES = 3, CALLS_TELLS = 4, CALLS_CORE = 5 };

/* Which of its arguments are descriptors, and which paths; and how it is seen to, 0 where it is not known. */
struct call_kind {
  unsigned char descriptors, paths, how;
};

#define CALLS_MAX_KNOWN 512
extern const struct call_kind call_kinds[CALLS_MAX_KNOWN];

/* X(number, name, descriptors, paths, how) */
#define CALLS_OF_FILES(X) \
  X(0, read, FIRST, 0, MOVES) \
  X(1, write, FIRST, 0, MOVES) \
  X(2, open, 0, FIRST, SHARES) \
  X(3, close, FIRST, 0, SHARES) \
  X(4, stat, 0, FIRST, PLAIN) \
  X(5, fstat, FIRST, 0, PLAIN) \
  X(6, lstat, 0, FIRST, PLAIN) \
  X(7, poll, 0, 0, TELLS) \
  X(8, lseek, FIRST, 0, MOVES) \
  X(9, mmap, FIFTH, 0, CORE) \
  X(13, rt_sigaction, 0, 0, CORE) \
  X(14, rt_sigprocmask, 0, 0, CORE) \
  X(16, ioctl, FIRST, 0, SHARES) \
  X(17, pread64, FIRST, 0, MOVES) \
  X(18, pwrite64, FIRST, 0, MOVES) \
  X(19, readv, FIRST, 0, MOVES) \
  X(20, writev, FIRST, 0, MOVES) \
  X(21, access, 0, FIRST, PLAIN) \
  X(23, select, 0, 0, TELLS) \
  X(32, dup, FIRST, 0, SHARES) \
  X(33, dup2, FIRST, 0, SHARES) \
  X(40, sendfile, FIRST | SECOND, 0, SHARES) \
  X(46, sendmsg, 0, 0, SHARES) \
  X(56, clone, 0, 0, CORE) \
  X(57, fork, 0, 0, CORE) \
  X(58, vfork, 0, 0, CORE) \
  X(59, execve, 0, FIRST, CORE) \
  X(60, exit, 0, 0, CORE) \
  X(72, fcntl, FIRST, 0, MOVES) \
  X(73, flock, FIRST, 0, PLAIN) \
  X(74, fsync, FIRST, 0, PLAIN) \
  X(75, fdatasync, FIRST, 0, PLAIN) \
  X(76, truncate, 0, FIRST, PLAIN) \
  X(77, ftruncate, FIRST, 0, PLAIN) \
  X(78, getdents, FIRST, 0, PLAIN) \
  X(80, chdir, 0, FIRST, PLAIN) \
  X(81, fchdir, FIRST, 0, PLAIN) \
  X(82, rename, 0, FIRST | SECOND, PLAIN) \
  X(83, mkdir, 0, FIRST, PLAIN) \
  X(84, rmdir, 0, FIRST, PLAIN) \
  X(85, creat, 0, FIRST, SHARES) \
  X(86, link, 0, FIRST | SECOND, PLAIN) \
  X(87, unlink, 0, FIRST, PLAIN) \
  X(88, symlink, 0, SECOND, PLAIN) \
  X(89, readlink, 0, FIRST, PLAIN) \
  X(90, chmod, 0, FIRST, PLAIN) \
  X(91, fchmod, FIRST, 0, PLAIN) \
  X(92, chown, 0, FIRST, PLAIN) \
  X(93, fchown, FIRST, 0, PLAIN) \
  X(94, lchown, 0, FIRST, PLAIN) \
  X(95, umask, 0, 0, TELLS) \
  X(105, setuid, 0, 0, TELLS) \
  X(106, setgid, 0, 0, TELLS) \
  X(113, setreuid, 0, 0, TELLS) \
  X(114, setregid, 0, 0, TELLS) \
  X(116, setgroups, 0, 0, TELLS) \
  X(117, setresuid, 0, 0, TELLS) \
  X(119, setresgid, 0, 0, TELLS) \
  X(122, setfsuid, 0, 0, TELLS) \
  X(123, setfsgid, 0, 0, TELLS) \
  X(126, capset, 0, 0, TELLS) \
  X(130, rt_sigsuspend, 0, 0, CORE) \
  X(132, utime, 0, FIRST, PLAIN) \
  X(133, mknod, 0, FIRST, PLAIN) \
  X(134, uselib, 0, FIRST, PLAIN) \
  X(137, statfs, 0, FIRST, PLAIN) \
  X(138, fstatfs, FIRST, 0, PLAIN) \
  X(155, pivot_root, 0, FIRST | SECOND, PLAIN) \
  X(157, prctl, 0, 0, CORE) \
  X(160, setrlimit, 0, 0, SHARES) \
  X(161, chroot, 0, FIRST, PLAIN) \
  X(163, acct, 0, FIRST, PLAIN) \
  X(165, mount, 0, FIRST | SECOND, PLAIN) \
  X(166, umount2, 0, FIRST, PLAIN) \
  X(167, swapon, 0, FIRST, PLAIN) \
  X(168, swapoff, 0, FIRST, PLAIN) \
  X(179, quotactl, 0, SECOND, PLAIN) \
  X(187, readahead, FIRST, 0, PLAIN) \
  X(188, setxattr, 0, FIRST, PLAIN) \
  X(189, lsetxattr, 0, FIRST, PLAIN) \
  X(190, fsetxattr, FIRST, 0, PLAIN) \
  X(191, getxattr, 0, FIRST, PLAIN) \
  X(192, lgetxattr, 0, FIRST, PLAIN) \
  X(193, fgetxattr, FIRST, 0, PLAIN) \
  X(194, listxattr, 0, FIRST, PLAIN) \
  X(195, llistxattr, 0, FIRST, PLAIN) \
  X(196, flistxattr, FIRST, 0, PLAIN) \
  X(197, removexattr, 0, FIRST, PLAIN) \
  X(198, lremovexattr, 0, FIRST, PLAIN) \
  X(199, fremovexattr, FIRST, 0, PLAIN) \
  X(206, io_setup, 0, 0, TELLS) \
  X(217, getdents64, FIRST, 0, PLAIN) \
  X(221, fadvise64, FIRST, 0, PLAIN) \
  X(233, epoll_ctl, FIRST | THIRD, 0, TELLS) \
  X(235, utimes, 0, FIRST, PLAIN) \
  X(254, inotify_add_watch, FIRST, SECOND, PLAIN) \
  X(257, openat, FIRST, SECOND, SHARES) \
  X(258, mkdirat, FIRST, SECOND, PLAIN) \
  X(259, mknodat, FIRST, SECOND, PLAIN) \
  X(260, fchownat, FIRST, SECOND, TELLS) \
  X(261, futimesat, FIRST, SECOND, PLAIN) \
  X(262, newfstatat, FIRST, SECOND, PLAIN) \
  X(263, unlinkat, FIRST, SECOND, TELLS) \
  X(264, renameat, FIRST | THIRD, SECOND | FOURTH, PLAIN) \
  X(265, linkat, FIRST | THIRD, SECOND | FOURTH, PLAIN) \
  X(266, symlinkat, SECOND, THIRD, PLAIN) \
  X(267, readlinkat, FIRST, SECOND, PLAIN) \
  X(268, fchmodat, FIRST, SECOND, TELLS) \
  X(269, faccessat, FIRST, SECOND, PLAIN) \
  X(270, pselect6, 0, 0, TELLS) \
  X(271, ppoll, 0, 0, TELLS) \
  X(272, unshare, 0, 0, SHARES) \
  X(275, splice, FIRST | THIRD, 0, SHARES) \
  X(276, tee, FIRST | SECOND, 0, PLAIN) \
  X(277, sync_file_range, FIRST, 0, PLAIN) \
  X(278, vmsplice, FIRST, 0, PLAIN) \
  X(280, utimensat, FIRST, SECOND, TELLS) \
  X(281, epoll_pwait, 0, 0, CORE) \
  X(285, fallocate, FIRST, 0, PLAIN) \
  X(292, dup3, FIRST, 0, SHARES) \
  X(295, preadv, FIRST, 0, PLAIN) \
  X(296, pwritev, FIRST, 0, PLAIN) \
  X(301, fanotify_mark, FIRST | FOURTH, FIFTH, TELLS) \
  X(302, prlimit64, 0, 0, SHARES) \
  X(303, name_to_handle_at, FIRST, SECOND, PLAIN) \
  X(304, open_by_handle_at, FIRST, 0, PLAIN) \
  X(306, syncfs, FIRST, 0, PLAIN) \
  X(307, sendmmsg, 0, 0, SHARES) \
  X(308, setns, FIRST, 0, TELLS) \
  X(313, finit_module, FIRST, 0, PLAIN) \
  X(316, renameat2, FIRST | THIRD, SECOND | FOURTH, PLAIN) \
  X(317, seccomp, 0, 0, CORE) \
  X(320, kexec_file_load, FIRST | SECOND, 0, PLAIN) \
  X(322, execveat, FIRST, SECOND, CORE) \
  X(326, copy_file_range, FIRST | THIRD, 0, SHARES) \
  X(327, preadv2, FIRST, 0, MOVES) \
  X(328, pwritev2, FIRST, 0, MOVES) \
  X(332, statx, FIRST, SECOND, PLAIN) \
  X(333, io_pgetevents, 0, 0, CORE) \
  X(425, io_uring_setup, 0, 0, SHARES) \
  X(426, io_uring_enter, 0, 0, CORE) \
  X(428, open_tree, FIRST, SECOND, PLAIN) \
  X(429, move_mount, FIRST | THIRD, SECOND | FOURTH, PLAIN) \
  X(431, fsconfig, FIRST | FIFTH, 0, PLAIN) \
  X(433, fspick, FIRST, SECOND, PLAIN) \
  X(435, clone3, 0, 0, CORE) \
  X(436, close_range, 0, 0, SHARES) \
  X(437, openat2, FIRST, SECOND, SHARES) \
  X(439, faccessat2, FIRST, SECOND, PLAIN) \
  X(441, epoll_pwait2, 0, 0, CORE) \
  X(442, mount_setattr, FIRST, SECOND, PLAIN) \
  X(443, quotactl_fd, FIRST, 0, PLAIN) \
  X(445, landlock_add_rule, 0, 0, TELLS) \
  X(446, landlock_restrict_self, 0, 0, TELLS) \
  X(451, cachestat, FIRST, 0, PLAIN) \
  X(452, fchmodat2, FIRST, SECOND, PLAIN) \
  X(463, setxattrat, FIRST, SECOND, PLAIN) \
  X(464, getxattrat, FIRST, SECOND, PLAIN) \
  X(465, listxattrat, FIRST, SECOND, PLAIN) \
  X(466, removexattrat, FIRST, SECOND, PLAIN) \
  X(467, open_tree_attr, FIRST, SECOND, PLAIN) \
  X(468, file_getattr, FIRST, SECOND, PLAIN) \
  X(469, file_setattr, FIRST, SECOND, PLAIN)

/* Y(number, name): neither. */
#define CALLS_OF_OTHERS(Y) \
  Y(10, mprotect) Y(11, munmap) Y(12, brk) Y(15, rt_sigreturn) Y(22, pipe) Y(24, sched_yield) Y(25, mremap) \
  Y(26, msync) Y(27, mincore) Y(28, madvise) Y(29, shmget) Y(30, shmat) Y(31, shmctl) Y(34, pause) Y(35, nanosleep) \
  Y(36, getitimer) Y(37, alarm) Y(38, setitimer) Y(39, getpid) Y(41, socket) Y(42, connect) Y(43, accept) \
  Y(44, sendto) Y(45, recvfrom) Y(47, recvmsg) Y(48, shutdown) Y(49, bind) Y(50, listen) Y(51, getsockname) \
  Y(52, getpeername) Y(53, socketpair) Y(54, setsockopt) Y(55, getsockopt) Y(61, wait4) Y(62, kill) Y(63, uname) \
  Y(64, semget) Y(65, semop) Y(66, semctl) Y(67, shmdt) Y(68, msgget) Y(69, msgsnd) Y(70, msgrcv) Y(71, msgctl) \
  Y(79, getcwd) Y(96, gettimeofday) Y(97, getrlimit) Y(98, getrusage) Y(99, sysinfo) Y(100, times) Y(101, ptrace) \
  Y(102, getuid) Y(103, syslog) Y(104, getgid) Y(107, geteuid) Y(108, getegid) Y(109, setpgid) Y(110, getppid) \
  Y(111, getpgrp) Y(112, setsid) Y(115, getgroups) Y(118, getresuid) Y(120, getresgid) Y(121, getpgid) Y(124, getsid) \
  Y(125, capget) Y(127, rt_sigpending) Y(128, rt_sigtimedwait) Y(129, rt_sigqueueinfo) Y(131, sigaltstack) \
  Y(135, personality) Y(136, ustat) Y(139, sysfs) Y(140, getpriority) Y(141, setpriority) Y(142, sched_setparam) \
  Y(143, sched_getparam) Y(144, sched_setscheduler) Y(145, sched_getscheduler) Y(146, sched_get_priority_max) \
  Y(147, sched_get_priority_min) Y(148, sched_rr_get_interval) Y(149, mlock) Y(150, munlock) Y(151, mlockall) \
  Y(152, munlockall) Y(153, vhangup) Y(154, modify_ldt) Y(156, _sysctl) Y(158, arch_prctl) Y(159, adjtimex) \
  Y(162, sync) Y(164, settimeofday) Y(169, reboot) Y(170, sethostname) Y(171, setdomainname) Y(172, iopl) \
  Y(173, ioperm) Y(174, create_module) Y(175, init_module) Y(176, delete_module) Y(177, get_kernel_syms) \
  Y(178, query_module) Y(180, nfsservctl) Y(181, getpmsg) Y(182, putpmsg) Y(183, afs_syscall) Y(184, tuxcall) \
  Y(185, security) Y(186, gettid) Y(200, tkill) Y(201, time) Y(202, futex) Y(203, sched_setaffinity) \
  Y(204, sched_getaffinity) Y(205, set_thread_area) Y(207, io_destroy) Y(208, io_getevents) Y(209, io_submit) \
  Y(210, io_cancel) Y(211, get_thread_area) Y(212, lookup_dcookie) Y(213, epoll_create) Y(214, epoll_ctl_old) \
  Y(215, epoll_wait_old) Y(216, remap_file_pages) Y(218, set_tid_address) Y(219, restart_syscall) Y(220, semtimedop) \
  Y(222, timer_create) Y(223, timer_settime) Y(224, timer_gettime) Y(225, timer_getoverrun) Y(226, timer_delete) \
  Y(227, clock_settime) Y(228, clock_gettime) Y(229, clock_getres) Y(230, clock_nanosleep) Y(231, exit_group) \
  Y(232, epoll_wait) Y(234, tgkill) Y(236, vserver) Y(237, mbind) Y(238, set_mempolicy) Y(239, get_mempolicy) \
  Y(240, mq_open) Y(241, mq_unlink) Y(242, mq_timedsend) Y(243, mq_timedreceive) Y(244, mq_notify) \
  Y(245, mq_getsetattr) Y(246, kexec_load) Y(247, waitid) Y(248, add_key) Y(249, request_key) Y(250, keyctl) \
  Y(251, ioprio_set) Y(252, ioprio_get) Y(253, inotify_init) Y(255, inotify_rm_watch) Y(256, migrate_pages) \
  Y(273, set_robust_list) Y(274, get_robust_list) Y(279, move_pages) Y(282, signalfd) Y(283, timerfd_create) \
  Y(284, eventfd) Y(286, timerfd_settime) Y(287, timerfd_gettime) Y(288, accept4) Y(289, signalfd4) Y(290, eventfd2) \
  Y(291, epoll_create1) Y(293, pipe2) Y(294, inotify_init1) Y(297, rt_tgsigqueueinfo) Y(298, perf_event_open) \
  Y(299, recvmmsg) Y(300, fanotify_init) Y(305, clock_adjtime) Y(309, getcpu) Y(310, process_vm_readv) \
  Y(311, process_vm_writev) Y(312, kcmp) Y(314, sched_setattr) Y(315, sched_getattr) Y(318, getrandom) \
  Y(319, memfd_create) Y(321, bpf) Y(323, userfaultfd) Y(324, membarrier) Y(325, mlock2) Y(329, pkey_mprotect) \
  Y(330, pkey_alloc) Y(331, pkey_free) Y(334, rseq) Y(335, uretprobe) Y(424, pidfd_send_signal) \
  Y(427, io_uring_register) Y(430, fsopen) Y(432, fsmount) Y(434, pidfd_open) Y(438, pidfd_getfd) \
  Y(440, process_madvise) Y(444, landlock_create_ruleset) Y(447, memfd_secret) Y(448, process_mrelease) \
  Y(449, futex_waitv) Y(450, set_mempolicy_home_node) Y(453, map_shadow_stack) Y(454, futex_wake) Y(455, futex_wait) \
  Y(456, futex_requeue) Y(457, statmount) Y(458, listmount) Y(459, lsm_get_self_attr) Y(460, lsm_set_self_attr) \
  Y(461, lsm_list_modules) Y(462, mseal)

#endif
