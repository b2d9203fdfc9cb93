#include "names.h"

#define LOAD(p) __atomic_load_n(&(p), __ATOMIC_ACQUIRE)
#define STORE(p, v) __atomic_store_n(&(p), (v), __ATOMIC_RELEASE)
/* No list is longer, unless the segment was damaged. */
#define CHAIN_MAX 65536u

static u64 whole_pages(u64 bytes) { return (bytes + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1); }

/* Twice as many entries as files: some have more than one name. */
static u64 entries_for(u64 records_max) { return 2 * records_max; }

static u64 buckets_for(u64 records_max) {
  u64 buckets = 1;
  while (buckets < records_max) buckets *= 2;
  return buckets;
}

u64 names_bytes(u64 records_max) {
  return whole_pages(sizeof(struct segment_names)) + whole_pages(records_max * sizeof(struct segment_node)) +
         whole_pages(entries_for(records_max) * sizeof(struct segment_name)) + whole_pages(buckets_for(records_max) * sizeof(u32));
}

void names_format(struct segment *s, u64 records_max) {
  struct segment_names *n = segment_names(s);
  n->nodes_offset = s->names_offset + whole_pages(sizeof *n);
  n->entries_offset = n->nodes_offset + whole_pages(records_max * sizeof(struct segment_node));
  n->buckets_offset = n->entries_offset + whole_pages(entries_for(records_max) * sizeof(struct segment_name));
  n->buckets = (u32)buckets_for(records_max);
  n->entries_max = (u32)entries_for(records_max);
  n->next_entry = (u32)records_max;
  n->batch = 1;
}

struct segment_names *segment_names(struct segment *s) {
  return s->names_offset ? (struct segment_names *)((u8 *)s + s->names_offset) : 0;
}

struct segment_node *segment_node_at(struct segment *s, u64 inode) {
  if (inode >= s->records_max) return 0;
  return (struct segment_node *)((u8 *)s + segment_names(s)->nodes_offset) + inode;
}

struct segment_name *segment_name_at(struct segment *s, u64 entry) {
  struct segment_names *n = segment_names(s);
  if (entry >= n->entries_max) return 0;
  return (struct segment_name *)((u8 *)s + n->entries_offset) + entry;
}

int names_lock(const struct segment_caller *c) { return segment_lock_word(c, &segment_names(c->segment)->lock); }
void names_unlock(struct segment *s) { STORE(segment_names(s)->lock, 0); }

u32 *names_bucket(struct segment *s, u64 folder, const u8 *text, u64 bytes) {
  struct segment_names *n = segment_names(s);
  u64 hash = 14695981039346656037ul ^ folder * 0x9e3779b97f4a7c15ul;
  for (u64 i = 0; i < bytes; i++) hash = (hash ^ text[i]) * 1099511628211ul;
  hash ^= hash >> 32;
  return (u32 *)((u8 *)s + n->buckets_offset) + (hash & (n->buckets - 1));
}

static int is(const struct segment_name *e, u64 folder, const u8 *text, u64 bytes) {
  if (e->folder != folder || e->bytes != bytes) return 0;
  for (u64 i = 0; i < bytes; i++)
    if (e->text[i] != text[i]) return 0;
  return 1;
}

/* What points to the entry: of its bucket's list. Null when it is not there. */
static u32 *link_to(struct segment *s, u64 folder, const u8 *text, u64 bytes) {
  u32 *at = names_bucket(s, folder, text, bytes);
  for (u32 turns = 0; *at && turns < CHAIN_MAX; turns++) {
    struct segment_name *e = segment_name_at(s, *at);
    if (!e) return 0;
    if (is(e, folder, text, bytes)) return at;
    at = &e->next;
  }
  return 0;
}

u32 names_find(struct segment *s, u64 folder, const u8 *text, u64 bytes) {
  u32 *at = link_to(s, folder, text, bytes);
  return at ? *at : 0;
}

static void fill(struct segment_name *e, u64 folder, const u8 *text, u64 bytes, u64 inode) {
  for (u64 i = 0; i < bytes; i++) e->text[i] = text[i];
  e->bytes = (u8)bytes;
  e->inode = (u32)inode;
  STORE(e->folder, (u32)folder);
}

static void link_in(struct segment *s, u32 entry, struct segment_name *e) {
  u32 *at = names_bucket(s, e->folder, e->text, e->bytes);
  e->next = *at;
  STORE(*at, entry);
}

static u32 free_entry(struct segment *s, u64 inode) {
  struct segment_names *n = segment_names(s);
  struct segment_name *own = segment_name_at(s, inode);
  u32 entry = n->free_entry;
  if (own && !own->folder) return (u32)inode;
  if (entry) {
    struct segment_name *e = segment_name_at(s, entry);
    n->free_entry = e ? e->next : 0;
    return e ? entry : 0;
  }
  return n->next_entry < n->entries_max ? n->next_entry++ : 0;
}

void names_put(struct segment *s, u64 folder, const u8 *text, u64 bytes, u64 inode) {
  u32 *there = bytes <= NAME_BYTES_MAX ? link_to(s, folder, text, bytes) : 0, entry;
  if (bytes > NAME_BYTES_MAX) return;
  if (there) {
    segment_name_at(s, *there)->inode = (u32)inode;
    return;
  }
  if (!(entry = free_entry(s, inode))) {
    STORE(segment_names(s)->lost, 1);
    return;
  }
  fill(segment_name_at(s, entry), folder, text, bytes, inode);
  link_in(s, entry, segment_name_at(s, entry));
}

void names_take(struct segment *s, u64 folder, const u8 *text, u64 bytes) {
  struct segment_names *n = segment_names(s);
  u32 *at = bytes <= NAME_BYTES_MAX ? link_to(s, folder, text, bytes) : 0;
  if (!at) return;
  u32 entry = *at;
  struct segment_name *e = segment_name_at(s, entry);
  STORE(*at, e->next);
  STORE(e->folder, 0);
  if (entry < s->records_max) return;
  e->next = n->free_entry;
  n->free_entry = entry;
}

/* `more` events can be put down. */
static int has_room(const struct segment_names *n, u32 more) { return n->events_count <= EVENTS_MAX - more; }

/* Fills in the `place`th event from here on; counted later. */
static void note(struct segment_names *n, u32 place, const struct segment_event *event) {
  struct segment_event *to = &n->events[n->events_count + place];
  to->at_ns = event->at_ns;
  to->kind = event->kind;
  to->inode = event->inode;
  to->folder = event->folder;
  to->bytes = event->bytes;
  for (u32 i = 0; i < event->bytes; i++) to->text[i] = event->text[i];
}

static void name_event(struct segment_event *e, u64 folder, const u8 *text, u64 bytes) {
  e->folder = (u32)folder;
  e->bytes = (u8)bytes;
  for (u64 i = 0; i < bytes; i++) e->text[i] = text[i];
}

/* As the daemon does it when it learns of the event. */
static void folder_changed(struct segment *s, u64 folder, u32 more, u64 now_ns) {
  struct segment_node *node = segment_node_at(s, folder);
  if (!node) return;
  node->entries += more;
  node->modified_ns = node->changed_ns = now_ns;
}

int names_change(struct segment *s, u64 inode, u64 now_ns) {
  struct segment_names *n = segment_names(s);
  struct segment_node *node = segment_node_at(s, inode);
  struct segment_event event;
  if (!node) return 0;
  /* Of a directory the order with what is made and removed in it matters. */
  int many = (node->mode & 0170000) == 0040000;
  if (node->listed == n->batch && !many) return 1;
  if (!has_room(n, 1)) return 0;
  event.kind = EVENT_CHANGED;
  event.inode = (u32)inode;
  event.at_ns = now_ns;
  event.folder = 0;
  event.bytes = 0;
  note(n, 0, &event);
  node->listed = n->batch;
  STORE(n->events_count, n->events_count + 1);
  return 1;
}

int names_remove(struct segment *s, u64 folder, const u8 *text, u64 bytes, u64 inode, u64 now_ns) {
  struct segment_names *n = segment_names(s);
  struct segment_node *node = segment_node_at(s, inode);
  struct segment_event event;
  if (!node || bytes > NAME_BYTES_MAX || !has_room(n, 1)) return 0;
  event.kind = EVENT_REMOVED;
  event.inode = (u32)inode;
  event.at_ns = now_ns;
  name_event(&event, folder, text, bytes);
  STORE(n->unfinished, 1);
  note(n, 0, &event);
  STORE(n->events_count, n->events_count + 1);
  names_take(s, folder, text, bytes);
  folder_changed(s, folder, (u32)-1, now_ns);
  node->links--;
  node->changed_ns = now_ns;
  STORE(n->unfinished, 0);
  return 1;
}

int names_move(struct segment *s, const struct segment_event *from, const struct segment_event *to, u64 replaced) {
  struct segment_names *n = segment_names(s);
  struct segment_node *node = segment_node_at(s, from->inode), *other = replaced ? segment_node_at(s, replaced) : 0;
  if (!node || (replaced && !other) || LOAD(n->held_back) || !has_room(n, 2)) return 0;
  STORE(n->unfinished, 1);
  note(n, 0, from);
  note(n, 1, to);
  STORE(n->events_count, n->events_count + 2);
  /* First away: a name has the entry of its file's number if that is free. */
  if (other) {
    names_take(s, to->folder, to->text, to->bytes);
    other->links--;
    other->changed_ns = to->at_ns;
  }
  names_take(s, from->folder, from->text, from->bytes);
  names_put(s, to->folder, to->text, to->bytes, from->inode);
  folder_changed(s, from->folder, (u32)-1, from->at_ns);
  folder_changed(s, to->folder, other ? 0 : 1, to->at_ns);
  node->changed_ns = to->at_ns;
  STORE(n->unfinished, 0);
  return 1;
}

u32 names_make(struct segment *s, u64 folder, const u8 *text, u64 bytes, const struct segment_node *node) {
  struct segment_names *n = segment_names(s);
  struct segment_event event;
  if (bytes > NAME_BYTES_MAX || LOAD(n->held_back) || !n->spare_count || n->spare_count > SPARES_MAX || !has_room(n, 1)) return 0;
  u32 inode = n->spare[n->spare_count - 1];
  struct segment_record *r = segment_record_at(s, inode);
  struct segment_name *e = segment_name_at(s, inode);
  if (!r || !e || e->folder || r->live) return 0;
  *segment_node_at(s, inode) = *node;
  segment_node_at(s, inode)->listed = n->batch;
  event.kind = EVENT_MADE;
  event.inode = inode;
  event.at_ns = node->changed_ns;
  name_event(&event, folder, text, bytes);
  note(n, 0, &event);
  fill(e, folder, text, bytes, inode);
  STORE(r->size, 0);
  STORE(r->left_to_kernel, 0);
  STORE(r->locked, 0);
  STORE(r->modified_ns, node->changed_ns);
  /* A number is free when the kernel has let go of its last file: what it held then, it holds no more. */
  STORE(r->fills_gone, LOAD(r->fills));
  STORE(r->told_gone, LOAD(r->told));
  STORE(r->live, 1);
  STORE(n->unfinished, 1);
  n->spare_count--;
  STORE(n->events_count, n->events_count + 1);
  link_in(s, inode, e);
  folder_changed(s, folder, 1, node->changed_ns);
  STORE(n->unfinished, 0);
  n->made_here++;
  return inode;
}

void names_clear(struct segment *s, u64 until) {
  struct segment_names *n = segment_names(s);
  u32 *buckets = (u32 *)((u8 *)s + n->buckets_offset);
  for (u32 i = 0; i < n->buckets; i++) buckets[i] = 0;
  for (u64 i = 0; i < until && i < s->records_max; i++) segment_name_at(s, i)->folder = 0;
  for (u64 i = s->records_max; i < n->next_entry && i < n->entries_max; i++) segment_name_at(s, i)->folder = 0;
  n->next_entry = (u32)s->records_max;
  n->free_entry = 0;
  STORE(n->lost, 0);
  STORE(n->held_back, 0);
}

i64 names_room(struct segment *s, u32 slot) {
  struct segment_names *n = segment_names(s);
  for (u32 hold = 0; slot < SEGMENT_PROCESSES_MAX && hold < HOLDS_MAX; hold++)
    if (!LOAD(n->holds[slot][hold])) return hold;
  return -1;
}

void names_hold(struct segment *s, u32 slot, u32 hold, u32 inode) {
  struct segment_node *node = segment_node_at(s, inode);
  if (!node) return;
  STORE(s->processes[slot].holds, 1);
  __atomic_fetch_add(&node->opens, 1, __ATOMIC_SEQ_CST);
  STORE(segment_names(s)->holds[slot][hold], inode);
}

void names_release(struct segment *s, u32 slot, u32 hold) {
  struct segment_names *n = segment_names(s);
  u32 inode = slot < SEGMENT_PROCESSES_MAX && hold < HOLDS_MAX ? __atomic_exchange_n(&n->holds[slot][hold], 0, __ATOMIC_SEQ_CST) : 0;
  struct segment_node *node = inode ? segment_node_at(s, inode) : 0;
  if (node) __atomic_fetch_sub(&node->opens, 1, __ATOMIC_SEQ_CST);
}

void names_release_all(struct segment *s, u32 slot) {
  for (u32 hold = 0; hold < HOLDS_MAX; hold++)
    if (LOAD(segment_names(s)->holds[slot][hold])) names_release(s, slot, hold);
}
