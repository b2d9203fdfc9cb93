/* Descriptors of files where others than read and write use them: poll, select, epoll, io_uring. Prints what each says, for comparison. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("%d: %s (%s)\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static int made(const char *name) {
  int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
  CHECK(file >= 0 && write(file, "0123456789", 10) == 10 && lseek(file, 3, SEEK_SET) == 3);
  return file;
}

static void polled(void) {
  int file = made("polled");
  struct pollfd one = {.fd = file, .events = POLLIN | POLLOUT};
  CHECK(poll(&one, 1, 0) == 1);
  printf("poll: %x\n", one.revents);
  close(file);
  file = made("selected");
  fd_set reads, writes;
  FD_ZERO(&reads);
  FD_ZERO(&writes);
  FD_SET(file, &reads);
  FD_SET(file, &writes);
  CHECK(select(file + 1, &reads, &writes, 0, 0) == 2 && FD_ISSET(file, &reads) && FD_ISSET(file, &writes));
  char two[2];
  CHECK(read(file, two, 2) == 2 && !memcmp(two, "34", 2));
  close(file);
}

static void watched(void) {
  int file = made("watched"), set = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.fd = file}, got;
  int added = epoll_ctl(set, EPOLL_CTL_ADD, file, &event);
  printf("epoll_ctl: %d %s\n", added, added ? strerror(errno) : "");
  if (!added) {
    CHECK(epoll_wait(set, &got, 1, 0) == 1);
    printf("epoll_wait: %x\n", got.events);
    CHECK(got.data.fd == file);
  }
  char two[2];
  CHECK(read(file, two, 2) == 2 && !memcmp(two, "34", 2));
  /* Flags of a descriptor that is alone, and appending from then on. */
  CHECK(!fcntl(file, F_SETFL, O_APPEND | O_NONBLOCK) && (fcntl(file, F_GETFL) & (O_APPEND | O_NONBLOCK | O_ACCMODE)) == (O_APPEND | O_NONBLOCK | O_RDWR));
  CHECK(write(file, "end", 3) == 3 && lseek(file, 0, SEEK_CUR) == 13);
  CHECK(!fcntl(file, F_SETFL, 0) && lseek(file, 1, SEEK_SET) == 1 && write(file, "x", 1) == 1);
  char all[16];
  CHECK(pread(file, all, 16, 0) == 13 && !memcmp(all, "0x23456789end", 13));
  close(file);
  close(set);
}

/* A ring of our own: a library's calls for it could be unseen, and then nothing of this program would be accelerated. */
struct ring {
  int file;
  unsigned *sent, *send_mask, *order, *seen, *come_mask;
  struct io_uring_sqe *wanted;
  struct io_uring_cqe *done;
};

static int open_ring(struct ring *r) {
  struct io_uring_params p = {0};
  r->file = (int)syscall(SYS_io_uring_setup, 8, &p);
  if (r->file < 0) return 0;
  size_t bytes = p.sq_off.array + p.sq_entries * sizeof(unsigned), done = p.cq_off.cqes + p.cq_entries * sizeof *r->done;
  char *sends = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->file, IORING_OFF_SQ_RING);
  char *comes = mmap(0, done, PROT_READ | PROT_WRITE, MAP_SHARED, r->file, IORING_OFF_CQ_RING);
  r->wanted = mmap(0, p.sq_entries * sizeof *r->wanted, PROT_READ | PROT_WRITE, MAP_SHARED, r->file, IORING_OFF_SQES);
  CHECK(sends != MAP_FAILED && comes != MAP_FAILED && r->wanted != MAP_FAILED);
  r->sent = (unsigned *)(sends + p.sq_off.tail);
  r->send_mask = (unsigned *)(sends + p.sq_off.ring_mask);
  r->order = (unsigned *)(sends + p.sq_off.array);
  r->seen = (unsigned *)(comes + p.cq_off.head);
  r->come_mask = (unsigned *)(comes + p.cq_off.ring_mask);
  r->done = (struct io_uring_cqe *)(comes + p.cq_off.cqes);
  return 1;
}

static int by_ring(struct ring *r, int what, int file, const void *at, unsigned bytes, long long offset) {
  unsigned slot = *r->sent & *r->send_mask;
  r->wanted[slot] = (struct io_uring_sqe){.opcode = (unsigned char)what, .fd = file, .addr = (unsigned long)at, .len = bytes,
                                          .off = (unsigned long long)offset};
  if (what == IORING_OP_OPENAT) r->wanted[slot].open_flags = O_RDWR | O_CREAT;
  r->order[slot] = slot;
  __atomic_store_n(r->sent, *r->sent + 1, __ATOMIC_RELEASE);
  CHECK(syscall(SYS_io_uring_enter, r->file, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
  int result = r->done[*r->seen & *r->come_mask].res;
  __atomic_store_n(r->seen, *r->seen + 1, __ATOMIC_RELEASE);
  return result;
}

static void ringed(void) {
  struct ring ring;
  char bytes[16] = {0};
  int before = made("before");
  if (!open_ring(&ring)) {
    printf("io_uring: %s\n", strerror(errno));
    return;
  }
  int after = made("after");
  for (int i = 0; i < 2; i++) {
    int file = i ? after : before;
    CHECK(by_ring(&ring, IORING_OP_READ, file, bytes, 4, 2) == 4 && !memcmp(bytes, "2345", 4));
    CHECK(by_ring(&ring, IORING_OP_WRITE, file, "ring", 4, 8) == 4);
    CHECK(pread(file, bytes, 16, 0) == 12 && !memcmp(bytes, "01234567ring", 12));
    CHECK(by_ring(&ring, IORING_OP_READ, file, bytes, 2, -1) == 2 && !memcmp(bytes, "34", 2));
    CHECK(read(file, bytes, 2) == 2 && !memcmp(bytes, "56", 2));
    CHECK(pwrite(file, "AB", 2, 0) == 2);
    CHECK(by_ring(&ring, IORING_OP_READ, file, bytes, 2, 0) == 2 && !memcmp(bytes, "AB", 2));
    CHECK(!by_ring(&ring, IORING_OP_FSYNC, file, 0, 0, 0));
  }
  int opened = by_ring(&ring, IORING_OP_OPENAT, AT_FDCWD, "opened", 0644, 0);
  CHECK(opened >= 0 && write(opened, "by ring", 7) == 7 && pread(opened, bytes, 16, 0) == 7);
  CHECK(!by_ring(&ring, IORING_OP_CLOSE, opened, 0, 0, 0) && write(opened, "x", 1) == -1 && errno == EBADF);
  puts("io_uring: fine");
}

int main(void) {
  polled();
  watched();
  ringed();
  puts("fine");
  return 0;
}
