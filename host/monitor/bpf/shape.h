/* SPDX-License-Identifier: Apache-2.0
 * The shape of the kernel's box and its sensors. src/kernel/mod.rs says the same, and a test compares them.
 */
#define WEIR_KERNEL_SENSORS 128
#define WEIR_KERNEL_RECORDS 16384

#define WEIR_KERNEL_FORK 0
#define WEIR_KERNEL_EXEC 1
#define WEIR_KERNEL_EXIT 2
#define WEIR_KERNEL_VICTIM 3
#define WEIR_KERNEL_THREADS 4
/* Switches between tasks, one sensor for each processor, from this slot on. */
#define WEIR_KERNEL_SWITCHES 5

#define WEIR_HOOK_CGROUPS 8
/* One bit for each number that a process may have (PID_MAX_LIMIT). */
#define WEIR_DOOM_PROCESSES 4194304
