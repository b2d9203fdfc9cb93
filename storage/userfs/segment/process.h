/* What the parts of the client share: client.c (descriptors, positions), transfer.c (bytes), private.c (opens without the kernel's file) and
 * attributes.c (attributes of these), stash.c (positions over exec), pages.c (memory before it is used), locks.c (locks of ranges), calls.c (what
 * each call takes). */
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
#define AT_SYMLINK_NOFOLLOW 0x100u
#define AT_NO_AUTOMOUNT 0x800u
#define AT_EMPTY_PATH 0x1000u
#define AT_FLAGS (AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH)
#define AT_STATX_SYNC_TYPE 0x6000u
#define PATH_MAX_HERE 1024u
#define MADV_POPULATE_WRITE 23
#define MAY_READ 4u
#define MAY_WRITE 2u
#define MAY_SEARCH 1u

/* Which weir.h does not have. */
enum { NR_rename = 82, NR_unlink = 87, NR_chmod = 90, NR_chown = 92, NR_lchown = 94, NR_rmdir = 84, NR_mkdir = 83, NR_mknod = 133, NR_symlink = 88,
       NR_link = 86, NR_lsetxattr = 189, NR_lgetxattr = 192, NR_llistxattr = 195, NR_lremovexattr = 198, NR_setrlimit = 160, NR_inotify_add_watch = 254,
       NR_landlock_add_rule = 445, NR_mount = 165 };

/* What the daemon says, in struct configuration. */
struct mount {
  u64 device;
  u64 segment_bytes;
  i32 holder;             /* the daemon, or its keeper */
  i32 segment_descriptor; /* of the holder */
  i32 kernel_descriptor;  /* of the holder: the FUSE connection */
  u32 point_bytes;        /* 0: nothing is opened or made past the kernel */
  u8 point[POINT_BYTES_MAX]; /* where it is mounted */
  u64 read_only; /* what is not a look is the kernel's, which says why not */
};

/* The place of a descriptor in its file, by its number. This is what goes over exec as it is (stash.c), so it is of a file of ours only while
 * `private`, which `set_state` takes back. */
struct cursor {
  u64 position;
  u32 inode;    /* of the descriptor's file */
  u8 private;   /* nobody else has the description */
  u8 known;     /* `position` is the true one; else the kernel's is */
  u8 moved;     /* the kernel's is behind */
  u8 stands_in; /* for the kernel it is the directory: see private.c */
};
_Static_assert(sizeof(struct cursor) == 16, "accelerate.rs says where what is");

struct descriptor {
  u32 lock;
  u32 flags;
  u64 record;
  u32 passing; /* calls on it that are in the kernel and use its position */
  u32 entry;   /* of the name by which it was opened, and where it is held; while it stands in */
  u32 hold;
  u32 folder_word;
  u64 folder;  /* its number as a directory of the mount, 0 if it is none; while its word is `folder_word` */
  u8 folder_known;
  u8 folder_is_path; /* opened with O_PATH */
  u8 opened_as_path; /* the same, when it was opened: it is worth asking whether it is a directory */
  u8 made;           /* the open that gave it made the file, past the kernel: while `made_turn` is the turn of its word */
  u32 made_turn;
} __attribute__((aligned(64)));

extern struct mount mount;
extern struct segment *segment;
extern struct descriptor *descriptors;
extern struct cursor *cursors;
extern struct segment_process *process; /* null: there was no room for one more */
extern u32 descriptors_end, forking, file_limit, stopped;
/* Calls that are in the kernel and use a position. */
extern u32 passing_calls;

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

static inline struct cursor *cursor_of(const struct descriptor *d) { return &cursors[d - descriptors]; }
static inline u8 state(u32 word) { return (u8)word; }
/* Which changes when the number is another descriptor's, and at other times. */
static inline u32 turn(u32 word) { return word >> 8; }
/* In no other state a descriptor's cursor is private: most programs use no file of ours, and then its page and that of `descriptors` are never touched. */
static inline int may_be_private(u32 word) { return state(word) == OURS || state(word) == STASHED; }

struct segment_caller caller(void);
u64 now_ns(void);
void set_state(u32 fd, u8 to);
void seen(u32 fd);
void lock_among_threads(struct descriptor *d);
static inline void lock(struct descriptor *d) {
  if (weir_threads) lock_among_threads(d);
  else d->lock = 1; /* no handler comes in between: the thread is critical */
}
static inline void unlock(struct descriptor *d) { __atomic_store_n(&d->lock, 0, __ATOMIC_RELEASE); }
/* Finds out what a descriptor is; `word` is what its state was. */
u8 classify(u32 fd, u32 word);
/* Whether the descriptor was given by an open that made its file past the kernel, which so knows nothing of it (F_CREATED_QUERY). */
int has_made(u32 fd);
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
int kernel_knows_file(u64 inode);
/* The kernel asks the daemon for the size, and whatever else it shows. With nothing locked that the daemon needs. */
void have_size_asked(i32 folder, const u8 *name, u32 how);
/* A place of the segment is about to be written: see pages.c. */
void pages_ready(const void *place);
void pages_forked(void);
/* A place among the segment's processes. */
void join(void);

/* The word of a descriptor's state, which is not STASHED. */
u32 looked_at(u32 fd);

/* stash.c: what came over exec. */
void stash_begin(void);
/* To the kernel, as there is no segment. */
void stash_settle(void);

/* locks.c */
/* Whether this command of fcntl is about locks of ranges. */
int is_lock(u64 command);
/* Such a call goes to the kernel, which must know where the descriptor is. */
void lock_by_kernel(u32 fd, u64 command);
/* Whether some process may have locked ranges of the file. */
int has_locks(u64 record);

/* transfer.c: read, write, pread, pwrite. */
u64 transfer(struct call *call);

/* attributes.c: a call on a descriptor that stands in. The result, or NOT_HERE. */
#define NOT_HERE 1
i64 serve_attributes(const struct call *call, u32 fd);
/* The same of a call that names its file. */
i64 serve_attributes_by_name(const struct call *call);

/* named.c: a call that names its file by a path. The result, or NOT_HERE. */
i64 serve_named(const struct call *call);
/* Finds a file that the kernel does not know, or a directory, and does `work` with it while the names are locked. */
typedef i64 (*named_work)(u64 inode, void *with);
enum purpose { LOOKS, CHANGES_IT };
i64 by_name(i32 above, u64 path, enum purpose purpose, named_work work, void *with);
/* The same with what is open, if it is a directory. */
i64 of_folder(i32 fd, enum purpose purpose, named_work work, void *with);

/* private.c */
/* The number of the file, 0 if it is none of the mount. */
u64 number_of(i32 fd);
/* The same of what names are relative to. */
u64 folder_of(i32 above);
/* Copies a path of at most PATH_MAX_HERE bytes; its length, 0 when it is longer or not there. */
u64 copy_path(u8 *to, u64 from);
/* Whether it is worth asking. */
int may_be_inside(i32 above, const u8 *path);
/* Splits at the last slash: the name, or null when it is none that a file can have. */
u8 *split(u8 *path, u64 bytes, const u8 **folder);
int may(const struct segment_node *node, u32 what);
/* With the names locked: a directory that is there, in which we may do `what`; null also when names are not to be used. */
struct segment_node *folder_at(u64 folder, u32 what);
void private_begin(void);
void private_forked(void);
/* What is not here of a file that stands in, and never changes, is here now: the daemon was asked for it. */
int private_fetch(u32 fd, u64 record);
/* Opens without the kernel's file: ACT_DONE, or anything else to go on as ever. */
u64 private_open(struct call *call);
/* Before any other call: serves it (ACT_DONE), or makes the descriptors that it uses the kernel's. */
u64 private_before(struct call *call);
/* The same of the descriptors that its paths may lead to. */
void private_named(const struct call *call);
/* With `d` locked: the file's own descriptor takes its place. */
void private_end(u32 fd, struct descriptor *d);
/* The same for all. */
void private_end_all(void);
void private_end_of(u64 record); /* all of a file */
/* The working directory is another. */
void private_moved(void);
/* The descriptor is about to be closed. */
void private_gone(u32 fd);
#endif
