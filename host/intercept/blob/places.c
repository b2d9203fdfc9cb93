/* What the injector knows of files: where their system calls are. It gives that with the blob. A part of a file of which nothing is
 * known is searched here, and shown to the injector for the next process. The injector believes no process: it gets the
 * file's descriptor and looks for itself. */
#include "weir.h"

#define SCM_RIGHTS_HEADER_BYTES 16ul
#define O_RDONLY_CLOEXEC_NONBLOCK 02004000u

/* As fstat(2) says on x86-64. */
void weir_identify(struct part *part, const u8 *stat) {
  const u64 *words = (const u64 *)stat;
  part->device = words[0];
  part->inode = words[1];
  part->size = words[6];
  part->modified_ns = words[11] * 1000000000ul + words[12];
  part->changed_ns = words[13] * 1000000000ul + words[14];
}

const struct places *weir_places(const struct part *part, u64 bytes) {
  u64 at = weir_configuration.places, end = at + weir_configuration.places_bytes;
  if (!part->inode) return 0;
  while (at + sizeof(struct places) <= end) {
    const struct places *p = (const struct places *)at;
    if (p->inode == part->inode && p->device == part->device && p->size == part->size && p->offset == part->offset &&
        p->bytes == bytes && p->modified_ns == part->modified_ns && p->changed_ns == part->changed_ns)
      return p;
    at += sizeof *p + ((p->count + 1) & ~1ul) * sizeof(u32);
  }
  return 0;
}

i32 weir_ask_injector(u32 flags) {
  struct {
    u16 family;
    u8 name[110];
  } address = {.family = 1};
  u32 bytes = weir_configuration.injector_bytes;
  if (!bytes || bytes > 107) return -1;
  for (u32 i = 0; i < bytes; i++) address.name[1 + i] = weir_configuration.injector[i];
  i32 socket = (i32)SYS(NR_socket, 1, 0x80001 | flags, 0, 0, 0, 0);
  if (socket < 0) return -1;
  if (!SYS(NR_connect, socket, &address, 3 + bytes, 0, 0, 0)) return socket;
  SYS(NR_close, socket, 0, 0, 0, 0, 0);
  return -1;
}

/* Waits for nobody: an injector that is busy hears it from another process later. */
void weir_places_missing(const struct part *part, u64 bytes) {
  struct {
    u32 none, reserved; /* no thread: see server.rs */
    u64 offset, bytes;
  } words = {.offset = part->offset, .bytes = bytes};
  struct {
    u64 length;
    i32 level, type;
    i32 descriptor, reserved;
  } control = {.length = SCM_RIGHTS_HEADER_BYTES + sizeof(i32), .level = 1, .type = 1};
  struct {
    void *at;
    u64 length;
  } vector = {&words, sizeof words};
  struct {
    void *name;
    u64 name_length;
    void *vectors;
    u64 vectors_count;
    void *control;
    u64 control_length;
    u64 flags;
  } message = {.vectors = &vector, .vectors_count = 1, .control = &control, .control_length = sizeof control};
  if (!part->inode) return;
  i32 file = part->descriptor;
  if (file < 0) file = (i32)SYS(NR_openat, -100, part->path, O_RDONLY_CLOEXEC_NONBLOCK, 0, 0, 0);
  if (file < 0) return;
  control.descriptor = file;
  i32 socket = weir_ask_injector(04000 /* SOCK_NONBLOCK */);
  if (socket >= 0) {
    SYS(NR_sendmsg, socket, &message, 0x4000 /* MSG_NOSIGNAL */, 0, 0, 0);
    SYS(NR_close, socket, 0, 0, 0, 0, 0);
  }
  if (part->descriptor < 0) SYS(NR_close, file, 0, 0, 0, 0, 0);
}
