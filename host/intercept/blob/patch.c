/* Finds system calls in code and replaces them by jumps. Six patterns, by bytes alone:
 *
 *   A  b8 NR NR 00 00  0f 05            mov $nr,%eax; syscall      the mov becomes a jump
 *   C  48 c7 c0 NR NR 00 00  0f 05      mov $nr,%rax; syscall      the mov becomes a jump, two bytes stay
 *   D  b8 NR NR 00 00  …  0f 05         as A, with a few moves between, which the trampoline repeats
 *   B  0f 05  48 3d IM IM ff ff         syscall; cmp $-4095,%rax   both become a jump, the trampoline compares
 *   E  44 89 c0+  0f 05                 mov %r8d…%r15d,%eax; syscall   both become a jump
 *   F  41 5c  0f 05  41 54  48 3d       pop %r12; syscall; push %r12   all three become a jump: Go's vfork, which keeps its return
 *                                       address from the child, as both use one stack
 *
 * In A, C and D the syscall itself stays: a jump to it from elsewhere makes the call unseen, and right. A site whose number
 * nobody wants is left alone. What matches no pattern stays too, and is counted; `sites_left_unknown` counts those
 * that might make a call which changes descriptors or threads behind our back.
 */
#include "weir.h"

#define TRAMPOLINE_BYTES 56ul
/* Bytes between mov and syscall in D. */
#define BETWEEN_MAX 24u
#define SITES_MAX 4096u
/* How far in front of a syscall its number is looked for. */
#define LOADED_MAX 96u
/* The same of a move from another register, between which and the call only other arguments are moved. */
#define REGISTER_MAX 48u
/* How far a jump reaches, with room to spare. */
#define REACH 0x70000000ul

enum { SITE_NONE = 0, SITE_A = 1, SITE_B = 2, SITE_C = 3, SITE_D = 4, SITE_E = 5, SITE_F = 6 };

static u32 number_at(const u8 *p) { return p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24; }

/* Length of one of the few instructions that may stand between, 0 for any other: moves, lea, xor, add of registers, of
 * memory by registers, of small numbers. Only lea relative to here depends on where it is: `put_between` mends it. */
static int is_relative(const u8 *p) { return (*p & 0xf8) == 0x48 && p[1] == 0x8d && (p[2] & 0xc7) == 5; }

static u64 simple_length(const u8 *p) {
  if (is_relative(p)) return 7;
  u64 prefix = (*p & 0xf0) == 0x40;
  u8 op = p[prefix], mod = p[prefix + 1] >> 6, rm = p[prefix + 1] & 7;
  if (op == 0x83) return mod == 3 ? prefix + 3 : 0;
  if (op == 0xc6 || op == 0xc7) { /* a number into memory by a register, at a distance of 4 bytes */
    if (mod != 2 || rm == 4) return 0;
    return prefix + 6 + (op == 0xc6 ? 1 : 4);
  }
  if (op != 0x89 && op != 0x8b && op != 0x8d && op != 0x31) return 0;
  if (mod == 3) return op == 0x8d ? 0 : prefix + 2;
  if (rm == 4 || (mod == 0 && rm == 5)) return 0; /* a longer form, or relative to here */
  return prefix + 2 + (mod == 1 ? 1 : mod == 2 ? 4 : 0);
}

/* Bytes between the mov of pattern D and the syscall at `p`; 0 when there is no such mov. */
static u64 between(const u8 *p, u64 before) {
  for (u64 gap = 2; gap <= BETWEEN_MAX && gap + 6 <= before; gap++) {
    const u8 *mov = p - gap - 5;
    if (*mov != 0xb8 || (mov[-1] & 0xf0) == 0x40 || number_at(mov + 1) >= CALLS_MAX) continue;
    const u8 *at = mov + 5;
    for (u64 length; at < p && (length = simple_length(at)); at += length) {}
    if (at == p) return gap;
  }
  return 0;
}

/* What kind of site the `syscall` at `p` belongs to. At least `before` bytes are in front of it, `behind` from it on. */
u32 weir_site_kind(const u8 *p, u64 before, u64 behind) {
  if (before >= 7 && p[-7] == 0x48 && p[-6] == 0xc7 && p[-5] == 0xc0 && number_at(p - 4) < CALLS_MAX) return SITE_C;
  /* 41 b8 and others with a prefix set another register. */
  if (before >= 6 && p[-5] == 0xb8 && (p[-6] & 0xf0) != 0x40 && number_at(p - 4) < CALLS_MAX) return SITE_A;
  if (behind >= 8 && p[2] == 0x48 && p[3] == 0x3d && p[5] == 0xf0 && p[6] == 0xff && p[7] == 0xff && p[4] <= 1)
    return SITE_B;
  if (before >= 2 && behind >= 6 && p[-2] == 0x41 && p[-1] == 0x5c && p[2] == 0x41 && p[3] == 0x54 && p[4] == 0x48 && p[5] == 0x3d)
    return SITE_F;
  if (before >= 3 && p[-3] == 0x44 && p[-2] == 0x89 && (p[-1] & 0xc7) == 0xc0) return SITE_E;
  return between(p, before) ? SITE_D : SITE_NONE;
}

/* The number that a site sets itself, CALLS_MAX if it does not. */
static u32 site_number(const u8 *p, u32 kind, u64 before) {
  if (kind == SITE_B || kind == SITE_E || kind == SITE_F) return CALLS_MAX;
  return number_at(kind == SITE_D ? p - between(p, before) - 4 : p - 4);
}

static void put32(u8 *at, i64 value) {
  for (int i = 0; i < 4; i++) at[i] = (u8)(value >> (8 * i));
}

static void jump(u8 *at, const u8 *at_runtime, const u8 *to) {
  at[0] = 0xe9;
  put32(at + 1, to - (at_runtime + 5));
}

/* Repeats the instructions from `from` up to `end` at `to`; gives where they end. */
static u8 *put_between(u8 *to, const u8 *from, const u8 *end) {
  while (from < end) {
    u64 length = simple_length(from);
    for (u64 i = 0; i < length; i++) to[i] = from[i];
    if (is_relative(from)) put32(to + 3, (i64)(i32)number_at(from + 3) + (from - to));
    from += length;
    to += length;
  }
  return to;
}

/* Writes the trampoline `t` of the site whose syscall is at `site`, and the jump to it. Both may be elsewhere than they will run, as far
 * from each other as there. */
void weir_write_site(u8 *site, u32 kind, u64 before, u8 *t) {
  u8 *p = t;
  u64 length = kind == SITE_B ? 8 : kind == SITE_F ? 4 : 2, gap = kind == SITE_D ? between(site, before) : 0;
  if (kind == SITE_E || kind == SITE_F) {
    for (int i = kind == SITE_E ? -3 : -2; i < 0; i++) *p++ = site[i];
  } else if (kind != SITE_B) {
    *p++ = 0xb8;
    const u8 *number = site - gap - 4;
    for (int i = 0; i < 4; i++) *p++ = number[i];
    p = put_between(p, number + 4, site);
  }
  *p++ = 0x48; *p++ = 0x8d; *p++ = 0x0d; /* lea 8(%rip), %rcx: behind the jump that follows */
  put32(p, 8);
  p += 4;
  *p++ = 0x65; *p++ = 0xff; *p++ = 0x24; *p++ = 0x25; /* jmp *%gs:THREAD_ENTRY */
  put32(p, THREAD_ENTRY);
  p += 4;
  *p++ = 0x0f; *p++ = 0x05; /* the continuation */
  if (kind == SITE_B || kind == SITE_F)
    for (u64 i = 2; i < length; i++) *p++ = site[i];
  jump(p, p, site + length);
  u8 *from = kind == SITE_B ? site : kind == SITE_C ? site - 7 : kind == SITE_E ? site - 3 : kind == SITE_F ? site - 2 : site - 5 - gap;
  jump(from, from, t);
  if (kind == SITE_F) site[3] = 0x90;
  if (kind == SITE_B) { site[5] = 0x0f; site[6] = 0x1f; site[7] = 0x00; }
}

/* Whether these bytes are no instruction but lie in the distance of a jump, a call, or a place relative to here. */
static int is_distance(const u8 *p) {
  for (i64 back = 0; back < 4; back++) {
    const u8 *d = p - back; /* where the four bytes of the distance would begin */
    if (d[-1] == 0xe8 || d[-1] == 0xe9) return 1;
    if (d[-2] == 0x0f && (d[-1] & 0xf0) == 0x80) return 1;
    /* 0xff: a call or a jump by a table of addresses. */
    if ((d[-1] & 0xc7) == 5 && (d[-2] == 0x8d || d[-2] == 0x8b || d[-2] == 0x89 || d[-2] == 0x3b || d[-2] == 0x39 || d[-2] == 0xff)) return 1;
  }
  return 0;
}

/* Whether these bytes lie in a number. 1295, mostly that of a line of source: no call is followed by such zeros, which would write to where its
 * result points. Or one with which eax is compared before a jump. */
static int is_number(const u8 *p, u64 behind) {
  if (behind < 6) return 0;
  if (!p[2] && !p[3]) return 1;
  if (p[-1] != 0xa9 && p[-1] != 0x3d) return 0;
  return p[4] >> 4 == 7 || (p[4] == 0x0f && (p[5] >> 4 == 8 || p[5] >> 4 == 9 || p[5] >> 4 == 4));
}

static u8 any_harm(const u8 *unseen) {
  u8 most = 0;
  for (u32 i = 0; i < CALLS_MAX; i++)
    if (unseen[i] > most) most = unseen[i];
  return most;
}

/* Whether rax gets its number from another register at `p`. */
static int is_from_register(const u8 *p) { return p[0] == 0x48 && p[1] == 0x89 && (p[2] & 0xc7) == 0xc0 && p[2] != 0xc0; }

/* Whether al is loaded at `p`, in rax that was cleared right before. */
static int is_short_load(const u8 *p, u64 before) { return *p == 0xb0 && before >= 2 && p[-2] == 0x31 && p[-1] == 0xc0; }

/* What a call does that a site makes which no pattern fits: it is looked up if the register from which the number
 * comes was last loaded with one that is wanted. Where it comes from another register (a libc's one place for many calls) it is any. A number that
 * comes from memory (setxid of all threads, for one) or from afar is not found, and taken for harmless. */
static u8 harm(const u8 *p, u64 before, u64 behind, const u8 *unseen) {
  u8 source = 0, high = 0; /* eax */
  if (before < 8 || is_distance(p) || is_number(p, behind)) return 0;
  if (p[-2] == 0x89 && (p[-1] & 0xc7) == 0xc0) {
    source = p[-1] >> 3 & 7;
    high = (p[-3] & 0xf4) == 0x44;
  }
  for (u64 back = 2; back <= LOADED_MAX && back < before; back++) {
    const u8 *load = p - back;
    if (!source && !high && is_short_load(load, before - back)) return unseen[load[1]];
    if (!source && !high && back >= 3 && back <= REGISTER_MAX && is_from_register(load)) return any_harm(unseen);
    if (back < 5) continue;
    if (*load != 0xb8 + source || ((load[-1] & 0xf1) == 0x41) != high || number_at(load + 1) >= CALLS_MAX) continue;
    return unseen[number_at(load + 1)];
  }
  return 0;
}

u32 weir_find_sites(const u8 *code, u64 bytes, const u8 *classes, const u8 *unseen, struct figures *figures, u32 *sites, u32 max) {
  u32 found = 0;
  for (u64 at = weir_next_call(code, 0, bytes); at + 1 < bytes; at = weir_next_call(code, at + 1, bytes)) {
    const u8 *p = code + at;
    u32 kind = weir_site_kind(p, at, bytes - at);
    if (kind == SITE_NONE) {
      u8 does = harm(p, at, bytes - at, unseen);
      figures->sites_left++;
      figures->sites_left_confusing += does == UNSEEN_CONFUSES;
      figures->sites_left_unknown += does == UNSEEN_HURTS;
      continue;
    }
    u32 number = site_number(p, kind, at);
    if (number < CALLS_MAX && !classes[number]) continue;
    if (found == max) {
      figures->sites_left_unknown++;
      continue;
    }
    sites[found++] = (u32)at;
  }
  return found;
}

/* Memory that the code at `near` can jump to: below it, as heaps grow upwards. */
static u8 *map_near(u64 near, u64 bytes) {
  for (u64 away = bytes + 16 * PAGE; away < REACH && away + 0x10000 < near; away += 64 * PAGE) {
    i64 at = SYS(NR_mmap, (near - away) & ~(PAGE - 1), bytes, 3, 0x100022, -1, 0); /* MAP_FIXED_NOREPLACE */
    if (at > 0 && (u64)at == ((near - away) & ~(PAGE - 1))) return (u8 *)at;
    if (at > 0) SYS(NR_munmap, at, bytes, 0, 0, 0, 0);
  }
  return 0;
}

/* Where every call is caught all are wanted, as each place that is left costs; none that is left goes unseen. */
static const u8 all[CALLS_MAX] = {[0 ... CALLS_MAX - 1] = CALL_FILE};
static const u8 none[CALLS_MAX];

/* Changes the code where it is: pages that are changed become this process's own. */
static void patch_here(u8 *code, u64 bytes) {
  u32 *sites = weir_map(SITES_MAX * sizeof(u32));
  if (!sites) {
    weir_figures.sites_left_unknown++;
    return;
  }
  int every = (weir_configuration.flags & EVERY_CALL) != 0;
  struct figures figures = {0};
  u32 found = weir_find_sites(code, bytes, every ? all : weir_classes, every ? none : weir_unseen, &figures, sites, SITES_MAX);
  weir_figures.sites_left += figures.sites_left;
  weir_figures.sites_left_confusing += figures.sites_left_confusing;
  if (!every) weir_figures.sites_left_unknown += figures.sites_left_unknown;
  u64 area = (found * TRAMPOLINE_BYTES + PAGE - 1) & ~(PAGE - 1);
  u8 *near = found ? map_near((u64)code, area) : 0;
  if (near && !SYS(NR_mprotect, code, bytes, 3, 0, 0, 0)) {
    for (u32 i = 0; i < found; i++) {
      u8 *site = code + sites[i];
      weir_write_site(site, weir_site_kind(site, sites[i], bytes - sites[i]), sites[i], near + i * TRAMPOLINE_BYTES);
    }
    weir_figures.sites_patched += found;
    SYS(NR_mprotect, code, bytes, 5, 0, 0, 0);
    SYS(NR_mprotect, near, area, 5, 0, 0, 0);
  } else if (found) {
    weir_figures.sites_left += found;
    if (!every) weir_figures.sites_left_unknown += found;
  }
  SYS(NR_munmap, sites, SITES_MAX * sizeof(u32), 0, 0, 0, 0);
}

void weir_patch_range(u64 begin, u64 bytes, const struct part *part) {
  bytes = (bytes + PAGE - 1) & ~(PAGE - 1);
  const struct image *known = weir_image(part, bytes);
  if (!known || (known->descriptor >= 0 && !weir_take_image(known, begin))) {
    patch_here((u8 *)begin, bytes);
    if (!known) weir_show_file(part, bytes);
    return;
  }
  weir_figures.sites_patched += known->sites_patched;
  weir_figures.sites_left += known->sites_left;
  if (weir_configuration.flags & EVERY_CALL) return;
  weir_figures.sites_left_confusing += known->sites_left_confusing;
  weir_figures.sites_left_unknown += known->sites_left_unknown;
}

struct program_header {
  u32 type, flags;
  u64 offset, address, physical, file_bytes, memory_bytes, align;
};

static void patch_headers(const struct program_header *h, u64 count, u64 base, struct part *part) {
  for (u64 i = 0; i < count; i++) {
    if (h[i].type != 1 || !(h[i].flags & 1) || (h[i].flags & 2)) continue;
    u64 begin = (base + h[i].address) & ~(PAGE - 1);
    part->offset = h[i].offset & ~(PAGE - 1);
    weir_patch_range(begin, base + h[i].address + h[i].memory_bytes - begin, part);
  }
}

static struct part part_of(const char *path) {
  u8 stat[144];
  struct part part = {.descriptor = -1, .path = path};
  if (path && !SYS(NR_newfstatat, -100, path, stat, 0, 0, 0)) weir_identify(&part, stat);
  return part;
}

/* The program and its loader, found by the auxiliary vector. */
void weir_patch_program(const u64 *stack, const u64 *file) {
  const u64 *p = stack + 1 + stack[0] + 1;
  u64 values[10] = {0};
  while (*p++) {}
  for (; *p; p += 2)
    if (*p < 10) values[*p] = p[1];
  const struct program_header *h = (const struct program_header *)values[3];
  const char *loader_path = 0;
  u64 base = 0;
  if (h) {
    struct part program = {.device = file[0], .inode = file[1], .size = file[2], .modified_ns = file[3], .changed_ns = file[4],
                           .descriptor = -1, .path = "/proc/self/exe"};
    for (u64 i = 0; i < values[5]; i++)
      if (h[i].type == 6) base = values[3] - h[i].address;
    for (u64 i = 0; i < values[5]; i++)
      if (h[i].type == 3) loader_path = (const char *)(base + h[i].address);
    patch_headers(h, values[5], base, &program);
  }
  const u8 *loader = (const u8 *)values[7];
  if (loader) {
    struct part part = part_of(loader_path);
    patch_headers((const struct program_header *)(loader + *(const u64 *)(loader + 32)), *(const u16 *)(loader + 56),
                  (u64)loader, &part);
  }
}
