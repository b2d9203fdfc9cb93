/* What a client of the interceptor offers: it serves calls on descriptors that are its own. none.c serves nothing. */
#ifndef WEIR_CLIENT_H
#define WEIR_CLIENT_H
#include "weir.h"

/* Low byte of a word of weir_states. UNKNOWN is 0. Calls on FOREIGN ones are passed on without coming here. The
 * upper bytes count: they change with every open and close, so that what was found out about a descriptor is not
 * written down for its successor. */
enum { UNKNOWN = 0, FOREIGN = 1, FRESH = 2, OURS = 3 };

void client_begin(void);
/* A call of class CALL_FILE or CALL_ALWAYS that core.c does not handle itself. ACT_PASS, ACT_AFTER, or ACT_DONE with the
 * result in call->number. */
u64 client_before(struct call *call);
void client_after(struct call *call, u64 number, i64 result);
/* So much of a file is about to be mapped. */
void client_map(u64 descriptor, u64 offset, u64 bytes);
/* Descriptors will be shared with another process from now on (fork, descriptor passing). */
void client_share_all(void);
/* The process becomes another program, which is intercepted too: the question goes to the injector by `line`, with the place of what that one must
 * know. 0 when nothing was said; then all is shared. The program may go on if the exec fails. */
int client_stash(i32 line, struct question *question);
/* So many calls were made since it was said last, and so many of them were caught (see every.c). */
void client_counted(u64 caught, u64 calls);
/* There is code whose calls go unseen, and that may hurt. */
void client_unseen(void);
/* The process can no longer be helped safely (seccomp, …): only pass on from now on. */
void client_stop(void);
/* This is the child of a fork; no other thread lives. */
void client_forked(void);
#endif
