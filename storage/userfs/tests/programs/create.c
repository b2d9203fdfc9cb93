/* Processes that want the same names at the same moment: create WAY NAMES PROCESSES NUMBER MEETING
 * WAY is `open` (without O_EXCL: all get the file, and all write to the same), `new` (with it: one gets it), `again` (number 0
 * removes each file meanwhile: all others still get one). MEETING is a file elsewhere in which they meet before each name. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NAMES_MAX 100000
#define CHECK(what) do { if (!(what)) { printf("%d: name %d: %s (%s)\n", __LINE__, name, #what, strerror(errno)); exit(1); } } while (0)

struct meeting {
  long came;
  int won[NAMES_MAX];
};

int main(int count, char **words) {
  int name = -1;
  CHECK(count == 6);
  int names = atoi(words[2]), processes = atoi(words[3]), number = atoi(words[4]);
  int line = open(words[5], O_RDWR);
  CHECK(names <= NAMES_MAX && line >= 0);
  struct meeting *meeting = mmap(0, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED, line, 0);
  CHECK(meeting != MAP_FAILED);
  for (name = 0; name < names; name++) {
    char path[64], own = (char)('a' + number);
    snprintf(path, sizeof path, "%s-%d", words[1], name);
    __atomic_fetch_add(&meeting->came, 1, __ATOMIC_SEQ_CST);
    for (int turns = 1; __atomic_load_n(&meeting->came, __ATOMIC_SEQ_CST) < (long)(name + 1) * processes; turns++)
      if (turns % 256 == 0) sched_yield();
    if (*words[1] == 'a' && !number) {
      CHECK(!unlink(path) || errno == ENOENT);
      continue;
    }
    int file = open(path, O_RDWR | O_CREAT | (*words[1] == 'n' ? O_EXCL : 0), 0644);
    if (*words[1] == 'n' && file < 0) {
      CHECK(errno == EEXIST);
      continue;
    }
    CHECK(file >= 0);
    CHECK(__atomic_fetch_add(&meeting->won[name], 1, __ATOMIC_SEQ_CST) == 0 || *words[1] != 'n');
    CHECK(pwrite(file, &own, 1, number) == 1);
    CHECK(!close(file));
  }
  for (name = 0; name < names && *words[1] == 'n'; name++)
    while (!__atomic_load_n(&meeting->won[name], __ATOMIC_SEQ_CST)) sched_yield();
  puts("fine");
  return 0;
}
