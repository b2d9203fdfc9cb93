/* The table of calls.h by number. */
#include "calls.h"

#define FIRST CALLS_FIRST
#define SECOND CALLS_SECOND
#define THIRD CALLS_THIRD
#define FOURTH CALLS_FOURTH
#define FIFTH CALLS_FIFTH
#define X(number, name, descriptors, paths, how) [number] = {descriptors, paths, CALLS_##how},
#define Y(number, name) [number] = {0, 0, CALLS_PLAIN},

const struct call_kind call_kinds[CALLS_MAX_KNOWN] = {CALLS_OF_FILES(X) CALLS_OF_OTHERS(Y)};
