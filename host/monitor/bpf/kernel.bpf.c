/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
 *
 * What the kernel tells the monitor: forks, execs, exits, victims of the out-of-memory killer and, where it is asked for,
 * switches of each processor, written into a sensor box (include/weir_sensor.h of weir-sensor) that the monitor has mapped. Also the repair hook: cgroups named in a mapped
 * array are killed from the inside, so that the monitor repairs by one write to memory (Bohra, 3.3: repair hooks).
 *
 * Only tp_btf, raw_tp and perf_event programs: they attach where kprobes and trampolines are switched off. Fields of
 * task_struct are found by the running kernel's own BTF.
 */
typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

#include "weir_sensor.h"
#include "shape.h"

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) value *name
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_F_MMAPABLE 1024
#define SIGKILL 9
#define SIGNAL_GROUP_EXIT 4

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static uint64_t (*bpf_ktime_get_ns)(void) = (void *)5;
static uint32_t (*bpf_get_smp_processor_id)(void) = (void *)8;
static uint64_t (*bpf_get_current_uid_gid)(void) = (void *)15;
static uint64_t (*bpf_get_current_cgroup_id)(void) = (void *)80;
static long (*bpf_send_signal)(uint32_t signal) = (void *)109;
static long (*bpf_probe_read_kernel)(void *to, uint32_t bytes, const void *from) = (void *)113;

struct signal_struct {
	struct {
		int counter;
	} live;
	unsigned int flags;
	int group_exit_code;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid, tgid, exit_code;
	char comm[16];
	struct signal_struct *signal;
} __attribute__((preserve_access_index));

struct kernel_box {
	struct weir_sensor_header header;
	struct weir_sensor_slot sensors[WEIR_KERNEL_SENSORS];
	struct weir_sensor_record ring[WEIR_KERNEL_RECORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, uint32_t);
	__type(value, struct kernel_box);
} box SEC(".maps");

struct hook {
	uint64_t cgroups[WEIR_HOOK_CGROUPS];
	uint64_t signals;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, uint32_t);
	__type(value, struct hook);
} hook SEC(".maps");

/* Processes whose forks come to nothing: one bit each, set by the monitor. */
struct doom {
	uint64_t words[WEIR_DOOM_PROCESSES / 64];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, uint32_t);
	__type(value, struct doom);
} doom SEC(".maps");

static inline __attribute__((always_inline)) uint64_t *doom_of(uint32_t process)
{
	uint32_t zero = 0;
	struct doom *all = bpf_map_lookup_elem(&doom, &zero);

	if (!all || process >= WEIR_DOOM_PROCESSES)
		return 0;
	return &all->words[process / 64];
}

static inline __attribute__((always_inline)) void pardon(uint32_t process)
{
	uint64_t bit = 1ULL << (process & 63), *word = doom_of(process);

	if (word && (*(volatile uint64_t *)word & bit))
		__sync_fetch_and_and(word, ~bit);
}

/* A doomed process that forks is killed, and its child is doomed before it ever runs: so they do not become more. */
static inline __attribute__((always_inline)) void inherit(uint32_t parent, uint32_t child)
{
	uint64_t *of_parent = doom_of(parent), *of_child;

	if (!of_parent || !(*(volatile uint64_t *)of_parent >> (parent & 63) & 1))
		return;
	of_child = doom_of(child);
	if (of_child)
		__sync_fetch_and_or(of_child, 1ULL << (child & 63));
	bpf_send_signal(SIGKILL);
}

static inline __attribute__((always_inline)) struct kernel_box *the_box(void)
{
	uint32_t zero = 0;
	return bpf_map_lookup_elem(&box, &zero);
}

static inline __attribute__((always_inline)) void updated(struct kernel_box *in, uint32_t sensor, uint64_t now)
{
	in->sensors[sensor].time_ns = now;
	__sync_fetch_and_add(&in->sensors[sensor].updates, 1);
	__sync_fetch_and_add(&in->sensors[sensor].value, 1);
}

static inline __attribute__((always_inline)) void publish(struct kernel_box *in, uint32_t sensor, const uint64_t value[5])
{
	uint64_t number = __sync_fetch_and_add(&in->header.head, 1);
	struct weir_sensor_record *record = &in->ring[number & (WEIR_KERNEL_RECORDS - 1)];
	uint64_t before = *(volatile uint64_t *)&record->sequence, writing = number * 2 + 1;
	uint64_t now = bpf_ktime_get_ns();

	if ((before & 1) || before >= writing ||
	    __sync_val_compare_and_swap(&record->sequence, before, writing) != before) {
		__sync_fetch_and_add(&in->header.dropped, 1);
		return;
	}
	record->time_ns = now;
	record->sensor = sensor | (uint64_t)WEIR_SENSOR_VALUE_BYTES << 32;
	record->value[0] = value[0];
	record->value[1] = value[1];
	record->value[2] = value[2];
	record->value[3] = value[3];
	record->value[4] = value[4];
	/* An exchange orders the stores before it on every machine. */
	__sync_lock_test_and_set(&record->sequence, writing + 1);
	updated(in, sensor, now);
}

SEC("tp_btf/sched_process_fork")
int on_fork(uint64_t *context)
{
	struct task_struct *parent = (void *)context[0], *child = (void *)context[1];
	struct kernel_box *in = the_box();
	uint64_t value[5] = { 0 };

	if (!in)
		return 0;
	if (child->pid != child->tgid) {
		updated(in, WEIR_KERNEL_THREADS, bpf_ktime_get_ns());
		return 0;
	}
	inherit(parent->tgid, child->tgid);
	value[0] = (uint32_t)parent->tgid | (uint64_t)(uint32_t)child->tgid << 32;
	value[1] = (uint32_t)bpf_get_current_uid_gid();
	value[2] = bpf_get_current_cgroup_id();
	bpf_probe_read_kernel(&value[3], 16, &child->comm);
	publish(in, WEIR_KERNEL_FORK, value);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int on_exec(uint64_t *context)
{
	struct task_struct *task = (void *)context[0];
	struct kernel_box *in = the_box();
	uint64_t value[5] = { 0 };

	if (!in)
		return 0;
	/* It is another program now, perhaps one that must not be touched: the monitor judges anew. */
	pardon(task->tgid);
	value[0] = (uint64_t)(uint32_t)task->tgid << 32;
	value[1] = (uint32_t)bpf_get_current_uid_gid();
	value[2] = bpf_get_current_cgroup_id();
	bpf_probe_read_kernel(&value[3], 16, &task->comm);
	publish(in, WEIR_KERNEL_EXEC, value);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(uint64_t *context)
{
	struct task_struct *task = (void *)context[0];
	struct kernel_box *in = the_box();
	uint64_t value[5] = { 0 };

	/* A process ends with its last thread. */
	if (!in || task->signal->live.counter > 0)
		return 0;
	/* Its number is another's soon. */
	pardon(task->tgid);
	/* How it ended, as wait() tells its parent. */
	value[0] = (uint32_t)task->exit_code;
	if (task->signal->flags & SIGNAL_GROUP_EXIT)
		value[0] = (uint32_t)task->signal->group_exit_code;
	value[0] |= (uint64_t)(uint32_t)task->tgid << 32;
	value[2] = bpf_get_current_cgroup_id();
	publish(in, WEIR_KERNEL_EXIT, value);
	return 0;
}

SEC("tp_btf/mark_victim")
int on_victim(uint64_t *context)
{
	struct task_struct *task = (void *)context[0];
	struct kernel_box *in = the_box();
	uint64_t value[5] = { 0 };

	if (!in)
		return 0;
	value[0] = (uint64_t)(uint32_t)task->tgid << 32;
	publish(in, WEIR_KERNEL_VICTIM, value);
	return 0;
}

SEC("tp_btf/sched_switch")
int on_switch(uint64_t *context)
{
	struct kernel_box *in = the_box();
	uint32_t processor = bpf_get_smp_processor_id();
	volatile struct weir_sensor_slot *own;

	(void)context;
	if (!in || processor >= WEIR_KERNEL_SENSORS - WEIR_KERNEL_SWITCHES)
		return 0;
	/* Only this processor writes it, with interrupts off: no atomic addition is needed. */
	own = &in->sensors[WEIR_KERNEL_SWITCHES + processor];
	own->time_ns = bpf_ktime_get_ns();
	own->value = own->value + 1;
	own->updates = own->updates + 1;
	return 0;
}

static inline __attribute__((always_inline)) int strike(void)
{
	uint32_t zero = 0;
	struct hook *named = bpf_map_lookup_elem(&hook, &zero);
	uint64_t own;

	if (!named)
		return 0;
	own = bpf_get_current_cgroup_id();
#pragma unroll
	for (int i = 0; i < WEIR_HOOK_CGROUPS; i++) {
		if (named->cgroups[i] && named->cgroups[i] == own) {
			bpf_send_signal(SIGKILL);
			__sync_fetch_and_add(&named->signals, 1);
			return 0;
		}
	}
	return 0;
}

SEC("raw_tp/sys_enter")
int hook_call(void *context)
{
	(void)context;
	return strike();
}

SEC("perf_event")
int hook_tick(void *context)
{
	(void)context;
	return strike();
}

char program_license[] SEC("license") = "Dual BSD/GPL";
