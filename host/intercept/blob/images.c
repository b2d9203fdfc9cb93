/* What the injector knows of files: parts of them with all sites changed, ready to be mapped. Then nothing is searched or written in this
 * process, no page of code is its own, and the kernel shares them. A part of which nothing is known is searched here, and shown to the
 * injector for the next process. The injector believes no process: it gets the file's descriptor and looks for itself. */
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

const struct image *weir_image(const struct part *part, u64 bytes) {
  const struct image *image = (const struct image *)weir_configuration.images;
  if (!part->inode) return 0;
  for (u64 left = weir_configuration.images_bytes / sizeof *image; left; left--, image++)
    if (image->inode == part->inode && image->device == part->device && image->size == part->size && image->offset == part->offset &&
        image->bytes == bytes && image->modified_ns == part->modified_ns && image->changed_ns == part->changed_ns)
      return image;
  return 0;
}

i32 weir_injector = -1;

/* Memory of the injector, or -1: what has its number now must be what is meant. */
static i32 open_memory(i32 injector, i32 descriptor, u64 inode, u64 bytes) {
  u64 stat[18];
  i32 memory = (i32)SYS(NR_pidfd_getfd, injector, descriptor, 0, 0, 0, 0);
  if (memory < 0) return -1;
  if (!SYS(NR_fstat, memory, stat, 0, 0, 0, 0) && stat[1] == inode && stat[6] == bytes) return memory;
  SYS(NR_close, memory, 0, 0, 0, 0, 0);
  return -1;
}

static i32 open_image(const struct image *image) {
  i32 process = weir_injector;
  if (process < 0) process = (i32)SYS(NR_pidfd_open, image->process, 0, 0, 0, 0, 0);
  if (process < 0) return -1;
  i32 memory = open_memory(process, image->descriptor, image->number, image->trampolines_bytes + image->bytes);
  if (process != weir_injector) SYS(NR_close, process, 0, 0, 0, 0, 0);
  return memory;
}

void weir_take_table(i32 injector, const struct told *told) {
  if (!told->table_bytes) return;
  i32 memory = open_memory(injector, told->table, told->table_inode, told->table_bytes);
  if (memory < 0) return;
  i64 at = SYS(NR_mmap, TABLE_PLACE, told->table_bytes, 1, 2 /* private */, memory, 0);
  SYS(NR_close, memory, 0, 0, 0, 0, 0);
  if (at < 0 && at > -4096) return;
  weir_configuration.images = (u64)at;
  weir_configuration.images_bytes = told->table_bytes;
}

int weir_take_image(const struct image *image, u64 begin) {
  u64 near = begin - image->distance;
  i64 at = -1;
  if (begin < image->distance) return 0;
  i32 memory = open_image(image);
  if (memory < 0) return 0;
  if (SYS(NR_mmap, near, image->trampolines_bytes, 5, 0x100002, memory, 0) == (i64)near) { /* private, at no place that is taken */
    at = SYS(NR_mmap, begin, image->bytes, 5, 0x12, memory, image->trampolines_bytes); /* private, in place of what is there */
    if (at != (i64)begin) SYS(NR_munmap, near, image->trampolines_bytes, 0, 0, 0, 0);
  }
  SYS(NR_close, memory, 0, 0, 0, 0, 0);
  return at == (i64)begin;
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
void weir_show_file(const struct part *part, u64 bytes) {
  struct question words = {.flags = (u32)weir_configuration.flags, .offset = part->offset, .bytes = bytes};
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
