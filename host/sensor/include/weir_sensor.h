/* SPDX-License-Identifier: Apache-2.0
 *
 * Sensor boxes for C (Orion's API: Bohra, tables 3.2 and 3.3). The layout is version 1 of docs/protocol/sensor-box.md;
 * programs for the kernel's virtual machine use the layout alone.
 *
 *     sbparams_t params = { .sensors = 16, .records = 1024, .period_ns = 10000000 };
 *     int box = sbcreate("web", &params);
 *     int requests = addsensor(box, "requests", WEIR_SENSOR_COUNTER);
 *     sbexport(box);
 *     uint64_t one = 1;
 *     updatesensor(box, requests, &one, sizeof one);
 *
 * Functions return a number from 0 on, or a negative errno. Any thread may call updatesensor; creating, adding, removing
 * and destroying are for one thread at a time. Monitors use weir_sensor_reader.h, or the Rust crate weir-sensor.
 */
#ifndef WEIR_SENSOR_H
#define WEIR_SENSOR_H

#ifndef __bpf__
#include <stdint.h>
#endif

#define WEIR_SENSOR_MAGIC 0x0a584f4252494557ULL /* "WEIRBOX\n" */
#define WEIR_SENSOR_VERSION 1
#define WEIR_SENSOR_VALUE_BYTES 40

enum weir_sensor_kind {
	WEIR_SENSOR_COUNTER = 1,
	WEIR_SENSOR_GAUGE = 2,
	WEIR_SENSOR_EVENT = 3,
	WEIR_SENSOR_REFERENCE = 4,
};

struct weir_sensor_header {
	uint64_t magic, version, bytes, sensors, records, period_ns, process, created_ns;
	char name[64];
	uint64_t head, head_line[7];
	uint64_t dropped, dropped_line[7];
	uint64_t closed, rest[479];
};

struct weir_sensor_slot {
	uint64_t kind, zero;
	char name[48];
	uint64_t value, time_ns, updates, line[5];
};

struct weir_sensor_record {
	uint64_t sequence, time_ns, sensor;
	uint64_t value[5];
};

#ifdef __cplusplus
#define WEIR_SENSOR_ASSERT static_assert
#else
#define WEIR_SENSOR_ASSERT _Static_assert
#endif
WEIR_SENSOR_ASSERT(sizeof(struct weir_sensor_header) == 4096, "header");
WEIR_SENSOR_ASSERT(sizeof(struct weir_sensor_slot) == 128, "sensor");
WEIR_SENSOR_ASSERT(sizeof(struct weir_sensor_record) == 64, "record");

#ifndef __bpf__
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef WEIR_SENSOR_BOXES
#define WEIR_SENSOR_BOXES 16 /* most boxes of one program */
#endif

typedef struct {
	uint64_t sensors;   /* slots, 1 to 4096 */
	uint64_t records;   /* of the ring: a power of two, 16 to 1048576 */
	uint64_t period_ns; /* how often the slowest sensor is updated */
	const char *folder; /* where the name is registered; NULL: /run/weir/sensors */
} sbparams_t;

struct weir_sensor_box {
	struct weir_sensor_header *header;
	uint64_t sensors, records;
	int memory;
	char path[512];
};

static struct weir_sensor_box weir_sensor_boxes[WEIR_SENSOR_BOXES];

static inline uint64_t weir_sensor_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static inline struct weir_sensor_box *weir_sensor_box_of(int sbid)
{
	if (sbid < 0 || sbid >= WEIR_SENSOR_BOXES || !weir_sensor_boxes[sbid].header)
		return NULL;
	return &weir_sensor_boxes[sbid];
}

static inline struct weir_sensor_slot *weir_sensor_slots(struct weir_sensor_box *box)
{
	return (struct weir_sensor_slot *)(box->header + 1);
}

static inline int weir_sensor_name_fits(const char *name, size_t limit)
{
	size_t length = strlen(name);
	if (length == 0 || length > limit)
		return 0;
	for (size_t i = 0; i < length; i++) {
		char c = name[i];
		int letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
		int other = (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
		if (!letter && !(i && other))
			return 0;
	}
	return 1;
}

/* Makes a box. Returns its number. */
static inline int sbcreate(const char *name, const sbparams_t *params)
{
	const unsigned cloexec_sealable = 3;
	uint64_t records = params->records;
	int id = 0;
	if (!weir_sensor_name_fits(name, 63) || params->sensors < 1 || params->sensors > 4096 || records < 16 ||
	    records > (1 << 20) || (records & (records - 1)))
		return -EINVAL;
	while (id < WEIR_SENSOR_BOXES && weir_sensor_boxes[id].header)
		id++;
	if (id == WEIR_SENSOR_BOXES)
		return -ENOSPC;
	struct weir_sensor_box *box = &weir_sensor_boxes[id];
	const char *folder = params->folder ? params->folder : "/run/weir/sensors";
	if ((size_t)snprintf(box->path, sizeof box->path, "%s/%s.box", folder, name) >= sizeof box->path)
		return -ENAMETOOLONG;
	uint64_t bytes = sizeof(struct weir_sensor_header) + params->sensors * sizeof(struct weir_sensor_slot) +
			 records * sizeof(struct weir_sensor_record);
	int memory = (int)syscall(SYS_memfd_create, name, cloexec_sealable);
	if (memory < 0)
		return -errno;
	void *base = MAP_FAILED;
	/* F_ADD_SEALS; F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW */
	if (ftruncate(memory, (off_t)bytes) == 0 && fcntl(memory, 1033, 7) == 0)
		base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	if (base == MAP_FAILED) {
		int error = errno;
		close(memory);
		return -error;
	}
	box->header = (struct weir_sensor_header *)base;
	box->memory = memory;
	box->sensors = params->sensors;
	box->records = records;
	struct weir_sensor_header *header = box->header;
	header->version = WEIR_SENSOR_VERSION;
	header->bytes = bytes;
	header->sensors = params->sensors;
	header->records = records;
	header->period_ns = params->period_ns;
	header->process = (uint64_t)getpid();
	header->created_ns = weir_sensor_now_ns();
	strcpy(header->name, name);
	__atomic_store_n(&header->magic, WEIR_SENSOR_MAGIC, __ATOMIC_RELEASE);
	return id;
}

/* Lets monitors find the box by its name. */
static inline int sbexport(int sbid)
{
	struct weir_sensor_box *box = weir_sensor_box_of(sbid);
	char aside[600], text[64];
	unsigned char random[16];
	if (!box)
		return -EBADF;
	char *slash = strrchr(box->path, '/');
	int folder_bytes = (int)(slash - box->path);
	for (char *at = box->path + 1; at <= slash; at++) {
		if (*at != '/')
			continue;
		*at = 0;
		int made = mkdir(box->path, 0755);
		*at = '/';
		if (made != 0 && errno != EEXIST && errno != EISDIR)
			return -errno;
	}
	/* The folder is everybody's: a name that nobody can know before, and a file that is new. */
	if (syscall(SYS_getrandom, random, sizeof random, 0) != (long)sizeof random)
		return -EIO;
	int at = snprintf(aside, sizeof aside, "%.*s/.%s.", folder_bytes, box->path, slash + 1);
	for (size_t i = 0; i < sizeof random; i++)
		at += snprintf(aside + at, sizeof aside - (size_t)at, "%02x", random[i]);
	int length = snprintf(text, sizeof text, "%d %d\n", (int)getpid(), box->memory);
	int file = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (file < 0)
		return -errno;
	int written = (int)write(file, text, (size_t)length) == length;
	close(file);
	if (written && rename(aside, box->path) == 0)
		return 0;
	int error = errno ? errno : EIO;
	unlink(aside);
	return -error;
}

/* Ends the box. */
static inline int sbdestroy(int sbid)
{
	struct weir_sensor_box *box = weir_sensor_box_of(sbid);
	if (!box)
		return -EBADF;
	uint64_t bytes = box->header->bytes;
	char own[64], found[64];
	__atomic_store_n(&box->header->closed, 1, __ATOMIC_RELEASE);
	/* Another box may have taken the name meanwhile: its registration stays. */
	int length = snprintf(own, sizeof own, "%d %d\n", (int)getpid(), box->memory);
	int file = open(box->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (file >= 0) {
		ssize_t got = read(file, found, sizeof found);
		close(file);
		if (got == length && memcmp(own, found, (size_t)got) == 0)
			unlink(box->path);
	}
	munmap(box->header, bytes);
	close(box->memory);
	box->header = NULL;
	return 0;
}

/* Adds a sensor. Returns its number. */
static inline int addsensor(int sbid, const char *name, enum weir_sensor_kind kind)
{
	struct weir_sensor_box *box = weir_sensor_box_of(sbid);
	if (!box)
		return -EBADF;
	if (!weir_sensor_name_fits(name, 47))
		return -EINVAL;
	for (uint64_t i = 0; i < box->sensors; i++) {
		struct weir_sensor_slot *slot = &weir_sensor_slots(box)[i];
		if (slot->kind != 0)
			continue;
		memset(slot, 0, sizeof *slot);
		strcpy(slot->name, name);
		__atomic_store_n(&slot->kind, (uint64_t)kind, __ATOMIC_RELEASE);
		return (int)i;
	}
	return -ENOSPC;
}

/* Removes a sensor; its number can be used again. */
static inline int rmsensor(int sbid, int sensor)
{
	struct weir_sensor_box *box = weir_sensor_box_of(sbid);
	if (!box || sensor < 0 || (uint64_t)sensor >= box->sensors)
		return -EBADF;
	__atomic_store_n(&weir_sensor_slots(box)[sensor].kind, 0, __ATOMIC_RELEASE);
	return 0;
}

/* Publishes an event of up to 40 bytes. */
static inline int weir_sensor_publish(struct weir_sensor_box *box, int sensor, const void *value, size_t len)
{
	uint64_t number = __atomic_fetch_add(&box->header->head, 1, __ATOMIC_ACQ_REL), writing = number * 2 + 1;
	struct weir_sensor_record *ring = (struct weir_sensor_record *)(weir_sensor_slots(box) + box->sensors);
	struct weir_sensor_record *record = &ring[number & (box->records - 1)];
	uint64_t before = __atomic_load_n(&record->sequence, __ATOMIC_RELAXED), words[5] = { 0 };
	if (before % 2 || before >= writing ||
	    !__atomic_compare_exchange_n(&record->sequence, &before, writing, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
		__atomic_fetch_add(&box->header->dropped, 1, __ATOMIC_RELAXED);
		return -EAGAIN;
	}
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(words, value, len);
	__atomic_store_n(&record->time_ns, weir_sensor_now_ns(), __ATOMIC_RELAXED);
	__atomic_store_n(&record->sensor, (uint64_t)sensor | (uint64_t)len << 32, __ATOMIC_RELAXED);
	for (int i = 0; i < 5; i++)
		__atomic_store_n(&record->value[i], words[i], __ATOMIC_RELAXED);
	__atomic_store_n(&record->sequence, writing + 1, __ATOMIC_RELEASE);
	return 0;
}

/* Updates a sensor: a counter grows by the uint64_t at value, a gauge or reference becomes it, an event is len bytes. */
static inline int updatesensor(int sbid, int sensor, const void *value, size_t len)
{
	struct weir_sensor_box *box = weir_sensor_box_of(sbid);
	uint64_t number;
	if (!box || sensor < 0 || (uint64_t)sensor >= box->sensors)
		return -EBADF;
	struct weir_sensor_slot *slot = &weir_sensor_slots(box)[sensor];
	uint64_t kind = __atomic_load_n(&slot->kind, __ATOMIC_ACQUIRE);
	if (kind == WEIR_SENSOR_EVENT) {
		if (len > WEIR_SENSOR_VALUE_BYTES)
			return -EMSGSIZE;
		int failed = weir_sensor_publish(box, sensor, value, len);
		if (failed)
			return failed;
	} else {
		if (kind == 0 || len != sizeof number)
			return -EINVAL;
		memcpy(&number, value, sizeof number);
		if (kind == WEIR_SENSOR_COUNTER)
			__atomic_fetch_add(&slot->value, number, __ATOMIC_RELAXED);
		else
			__atomic_store_n(&slot->value, number, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&slot->time_ns, weir_sensor_now_ns(), __ATOMIC_RELAXED);
	__atomic_fetch_add(&slot->updates, 1, __ATOMIC_RELEASE);
	return 0;
}
#endif /* __bpf__ */
#endif
