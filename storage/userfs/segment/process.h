/* What the parts of the client share: client.c (descriptors, positions), transfer.c (bytes), private.c (opens without the kernel's file) and
 * attributes.c (attributes of these), stash.c (positions over exec), pages.c (memory before it is used). */
#ifndef WEIR_PROCESS_H
#define WEIR_PROCESS_H
#include "client.h"
#include "names.h"

#define POINT_BYTES_MAX 1024u

#define O_ACCMODE 3u
#define O_WRONLY 1u
#define O_CREAT 0100u
#define O_EXCL 0200u
#define O_NOCTTY 0400u
#define O_TRUNC 01000u
#define O_APPEND 02000u
#define O_NONBLOCK 04000u
#define O_DIRECT 040000u
#define O_LARGEFILE 0100000u
#define O_DIRECTORY 0200000u
#define O_NOFOLLOW 0400000u
#define O_CLOEXEC 02000000u
#define O_PATH 010000000u
#define S_IFMT 0170000u
#define S_IFREG 0100000u
#define S_IFDIR 0040000u
#define S_SET_IDS 06000u
#define S_ISGID 02000u
#define S_ISVTX 01000u
#define AT_FDCWD (-100)

/* What the daemon says, in struct configuration. */
struct mount {
  u64 device;
  u64 segment_bytes;
  i32 holder;             /* the daemon, or its keeper */
  i32 segment_descriptor; /* of the holder */
  i32 kernel_descriptor;  /* of the holder: the FUSE connection */
  u32 point_bytes;        /* 0: nothing is opened or made past the kernel */
  u8 point[POINT_BYTES_MAX]; /* where it is mounted */
};

struct descriptor {
  u32 lock;
  u32 flags;
  u64 position;
  u64 record;
  u8 private; /* nobody else has the description */
  u8 known;   /* `position` is the true one; else the kernel's is */
  u8 moved;   /* the kernel's is behind */
  u8 stands_in; /* for the kernel it is the directory: see private.c */
  u32 passing; /* calls on it that are in the kernel and use its position */
  u32 entry;   /* of the name by which it was opened, and where it is held; while it stands in */
  u32 hold;
};

extern struct mount mount;
extern struct segment *segment;
extern struct descriptor *descriptors;
extern struct segment_process *process; /* null: there was no room for one more */
extern u32 descriptors_end, forking, file_limit, stopped;

/* Who the process is; while `known` nothing of it has changed. */
struct rights {
  u32 user, group, mask;
  u8 known, all;
};
extern struct rights rights;

/* Low byte of a word of weir_states: of a descriptor of which the program that was here before said something (stash.c), and that nobody
 * has looked at yet. CLOSING: it is being closed; nobody looks at it any more, and when the call is back it is unknown, unless another thread
 * has opened a file of this number meanwhile. */
enum { STASHED = 4, CLOSING = 5 };

static inline u8 state(u32 word) { return (u8)word; }

struct segment_caller caller(void);
u64 now_ns(void);
void set_state(u32 fd, u8 to);
void seen(u32 fd);
void lock(struct descriptor *d);
void unlock(struct descriptor *d);
/* Finds out what a descriptor is; `word` is what its state was. */
u8 classify(u32 fd, u32 word);
/* To the kernel, and counted. */
u64 pass(void);
/* The same of a call that uses the position. With `d` locked, which it unlocks; client_after says when it is back. */
u64 pass_position(u32 fd, struct descriptor *d);
/* Makes the position known. Locked. */
int position(u32 fd, struct descriptor *d);
/* From now on the kernel serves this process; `why` is for status. */
void stop(u32 why);
/* The FUSE connection, to be closed again, or -1. */
i32 kernel(void);
int invalidate(i32 kernel_descriptor, u64 inode, i64 offset, i64 bytes);
/* Attributes of the file changed past the kernel; `connection` is opened if it must be. */
void tell_kernel(struct segment_record *r, u64 inode, i32 *connection);
int kernel_has_none(struct segment_record *r);
/* A place of the segment is about to be written: see pages.c. */
void pages_ready(const void *place);
void pages_forked(void);
/* A place among the segment's processes. */
void join(void);

/* The word of a descriptor's state, which is not STASHED. */
u32 looked_at(u32 fd);

/* stash.c: what came over exec. Of a descriptor whose file is known, 0 for nothing; with `d` locked. */
int stash_of(u32 fd, struct descriptor *d);
void stash_begin(void);
/* To the kernel, as there is no segment. */
void stash_settle(void);

/* transfer.c: read, write, pread, pwrite. */
u64 transfer(struct call *call);

/* attributes.c: a call on a descriptor that stands in. The result, or NOT_HERE. */
#define NOT_HERE 1
#define AT_EMPTY_PATH 0x1000u
i64 serve_attributes(const struct call *call, u32 fd);

/* private.c */
void private_begin(void);
void private_forked(void);
/* Opens without the kernel's file: ACT_DONE, or anything else to go on as ever. */
u64 private_open(struct call *call);
/* Before any other call: serves it (ACT_DONE), or makes the descriptors that it uses the kernel's. */
u64 private_before(struct call *call);
/* With `d` locked: the file's own descriptor takes its place. */
void private_end(u32 fd, struct descriptor *d);
/* The working directory is another. */
void private_moved(void);
/* The descriptor is about to be closed. */
void private_gone(u32 fd);
#endif
