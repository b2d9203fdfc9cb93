/* SPDX-License-Identifier: Apache-2.0
 *
 * The monitor's side of sensor boxes for C (Orion's API: Bohra, tables 3.2 and 3.3; docs/protocol/sensor-box.md). The publisher's
 * side is weir_sensor.h; a program may include both.
 *
 *     sbview_t *web;
 *     int failed = sbdiscover(NULL, "web", &web);
 *     int errors = sbfind(web, "errors");
 *     sbassociate(web, errors, on_error, NULL);
 *     sbfetched_t found;
 *     sbfetch(web, &found);                             calls on_error for each record; loss is counted
 *     uint64_t requests;
 *     sbvalue(web, sbfind(web, "requests"), &requests); no system call
 *
 * Functions return a number from 0 on, or a negative errno. One view is for one thread at a time.
 *
 * A reader trusts nothing that the publisher can write: sizes are read once, checked against the real size of the memory, and
 * kept; memory is taken only when it is sealed against shrinking, so that a read cannot fault; a record that is being written,
 * or was overwritten while it was read, is never handed out. Linux; no library but libc.
 */
#ifndef WEIR_SENSOR_READER_H
#define WEIR_SENSOR_READER_H

#include <stdlib.h>

#include "weir_sensor.h"

#define WEIR_SENSOR_SENSORS_MAX 4096
#define WEIR_SENSOR_RECORDS_MAX (1 << 20)
#ifndef WEIR_SENSOR_HANDLERS
#define WEIR_SENSOR_HANDLERS 64 /* most sensors of a view that have a handler */
#endif
/* Fetches in a row that wait for one record whose writer has not finished, before it is given up as lost. */
#define WEIR_SENSOR_PATIENCE 3

/* A record as it was copied out of a box. */
typedef struct {
	uint64_t number, time_ns;
	uint32_t sensor, length; /* length: bytes of the value that count, at most WEIR_SENSOR_VALUE_BYTES */
	unsigned char value[WEIR_SENSOR_VALUE_BYTES];
} sbrecord_t;

/* What a fetch found. */
typedef struct {
	uint64_t records; /* handed out */
	uint64_t lost;    /* published but not seen: overwritten, or given up by their writer */
	uint64_t lies;    /* times that the box said something impossible */
	uint64_t unhandled; /* of the records, those of sensors without a handler */
} sbfetched_t;

/* A sensor as it was read. */
typedef struct {
	char name[48]; /* ends with a zero; bytes that are not printable are '?' */
	enum weir_sensor_kind kind;
	uint64_t value, time_ns, updates;
} sbsensor_t;

typedef void (*sbhandler_t)(const sbrecord_t *record, void *context);

typedef struct {
	const struct weir_sensor_header *header;
	const struct weir_sensor_slot *slots;
	const struct weir_sensor_record *ring;
	uint64_t sensors, records, bytes, next;
	uint32_t waited, handlers;
	struct {
		uint32_t sensor;
		sbhandler_t call;
		void *context;
	} handler[WEIR_SENSOR_HANDLERS];
} sbview_t;

static inline uint64_t weir_sensor_load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Copies a name out of words that may change meanwhile. */
static inline void weir_sensor_text(char *to, const char *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		char c = __atomic_load_n(from + i, __ATOMIC_RELAXED);
		to[i] = c == 0 || (c > ' ' && c < 127) ? c : '?';
		if (c == 0) {
			memset(to + i, 0, bytes - i);
			break;
		}
	}
	to[bytes - 1] = 0;
}

/* Reads a box in memory that another process has made; the descriptor may be closed afterwards. */
static inline int sbview(int memory, sbview_t **found)
{
	struct stat status;
	int seals = fcntl(memory, 1034); /* F_GET_SEALS */
	if (seals < 0 || !(seals & 2))   /* F_SEAL_SHRINK */
		return -EPERM;
	if (fstat(memory, &status) != 0)
		return -errno;
	uint64_t bytes = (uint64_t)status.st_size;
	if (bytes < sizeof(struct weir_sensor_header))
		return -EPROTO;
	void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, memory, 0);
	if (base == MAP_FAILED)
		return -errno;
	const struct weir_sensor_header *header = (const struct weir_sensor_header *)base;
	uint64_t sensors = weir_sensor_load(&header->sensors), records = weir_sensor_load(&header->records);
	uint64_t needed = 0;
	int sound = weir_sensor_load(&header->magic) == WEIR_SENSOR_MAGIC &&
		    weir_sensor_load(&header->version) == WEIR_SENSOR_VERSION && sensors >= 1 &&
		    sensors <= WEIR_SENSOR_SENSORS_MAX && records >= 16 && records <= WEIR_SENSOR_RECORDS_MAX &&
		    (records & (records - 1)) == 0;
	if (sound)
		needed = sizeof *header + sensors * sizeof(struct weir_sensor_slot) +
			 records * sizeof(struct weir_sensor_record);
	sbview_t *view = sound && needed <= bytes ? (sbview_t *)calloc(1, sizeof *view) : NULL;
	if (!view) {
		munmap(base, bytes);
		return sound && needed <= bytes ? -ENOMEM : -EPROTO;
	}
	view->header = header;
	view->slots = (const struct weir_sensor_slot *)(header + 1);
	view->ring = (const struct weir_sensor_record *)(view->slots + sensors);
	view->sensors = sensors;
	view->records = records;
	view->bytes = bytes;
	*found = view;
	return 0;
}

/* Reads a registration: "PROCESS DESCRIPTOR" and a newline. */
static inline int weir_sensor_registration(const char *path, unsigned *process, unsigned *descriptor, uid_t *user)
{
	char text[65], rest;
	struct stat status;
	int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (file < 0)
		return -errno;
	ssize_t length = -1;
	if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size < (off_t)sizeof text)
		length = read(file, text, sizeof text - 1);
	close(file);
	if (length <= 0)
		return -EPROTO;
	*user = status.st_uid;
	text[length] = 0;
	for (ssize_t i = 0; i < length; i++)
		if (!((text[i] >= '0' && text[i] <= '9') || text[i] == ' ' || text[i] == '\n'))
			return -EPROTO;
	/* At most nine digits each, so that neither can overflow. */
	if (sscanf(text, "%9u %9u%c", process, descriptor, &rest) != 3 || rest != '\n' || *process == 0)
		return -EPROTO;
	return 0;
}

/* Whether an open file, or that of another process, is memory and no file of a file system, which may keep whoever looks at it waiting. */
static inline int weir_sensor_is_memory(const char *path)
{
	char name[16];
	return readlink(path, name, sizeof name) >= 7 && memcmp(name, "/memfd:", 7) == 0;
}

/* Finds a box by its name and maps it: the publisher is whom the kernel says, so its process and its memory must be those of the user who
 * registered it (root may vouch for any process). folder NULL: /run/weir/sensors. */
static inline int sbdiscover(const char *folder, const char *name, sbview_t **found)
{
	char path[512];
	unsigned process = 0, descriptor = 0;
	uid_t user = 0;
	struct stat status;
	if (!weir_sensor_name_fits(name, 63))
		return -EINVAL;
	if (!folder)
		folder = "/run/weir/sensors";
	if ((size_t)snprintf(path, sizeof path, "%s/%s.box", folder, name) >= sizeof path)
		return -ENAMETOOLONG;
	int failed = weir_sensor_registration(path, &process, &descriptor, &user);
	if (failed)
		return failed;
	/* What is opened below stays this process's, whatever follows under its number. 010000000 is O_PATH. */
	snprintf(path, sizeof path, "/proc/%u", process);
	int folder_of = open(path, 010000000 | O_DIRECTORY | O_CLOEXEC);
	if (folder_of < 0)
		return -errno;
	if (fstat(folder_of, &status) != 0 || (user != 0 && status.st_uid != user)) {
		close(folder_of);
		return -EPERM;
	}
	snprintf(path, sizeof path, "/proc/self/fd/%d/fd/%u", folder_of, descriptor);
	/* What is there may be a pipe or a device, which must not be opened: look first. */
	int place = weir_sensor_is_memory(path) ? open(path, 010000000 | O_CLOEXEC) : -1;
	close(folder_of);
	if (place < 0)
		return -EPROTO;
	snprintf(path, sizeof path, "/proc/self/fd/%d", place);
	if (!weir_sensor_is_memory(path) || fstat(place, &status) != 0 || !S_ISREG(status.st_mode) ||
	    status.st_uid != user) {
		close(place);
		return -EPROTO;
	}
	int memory = open(path, O_RDONLY | O_CLOEXEC);
	failed = memory < 0 ? -errno : 0;
	close(place);
	if (memory >= 0) {
		failed = sbview(memory, found);
		close(memory);
	}
	return failed;
}

/* Ends a view. */
static inline void sbclose(sbview_t *view)
{
	if (!view)
		return;
	munmap((void *)(uintptr_t)view->header, view->bytes);
	free(view);
}

/* Whether the publisher has destroyed the box. */
static inline int sbclosed(const sbview_t *view)
{
	return weir_sensor_load(&view->header->closed) != 0;
}

/* The sensor in a slot. -ENOENT: the slot is free. */
static inline int sbsensor(const sbview_t *view, int sensor, sbsensor_t *found)
{
	if (sensor < 0 || (uint64_t)sensor >= view->sensors)
		return -EINVAL;
	const struct weir_sensor_slot *slot = &view->slots[sensor];
	uint64_t kind = weir_sensor_load(&slot->kind);
	if (kind < WEIR_SENSOR_COUNTER || kind > WEIR_SENSOR_REFERENCE)
		return -ENOENT;
	weir_sensor_text(found->name, slot->name, sizeof found->name);
	found->kind = (enum weir_sensor_kind)kind;
	found->value = weir_sensor_load(&slot->value);
	found->time_ns = weir_sensor_load(&slot->time_ns);
	found->updates = weir_sensor_load(&slot->updates);
	return 0;
}

/* The number of the first sensor of a name, or -ENOENT. */
static inline int sbfind(const sbview_t *view, const char *name)
{
	sbsensor_t sensor;
	for (int i = 0; (uint64_t)i < view->sensors; i++)
		if (sbsensor(view, i, &sensor) == 0 && strcmp(sensor.name, name) == 0)
			return i;
	return -ENOENT;
}

/* The value of a sensor: one load. References are not followed. */
static inline int sbvalue(const sbview_t *view, int sensor, uint64_t *value)
{
	if (sensor < 0 || (uint64_t)sensor >= view->sensors)
		return -EINVAL;
	*value = weir_sensor_load(&view->slots[sensor].value);
	return 0;
}

/* Calls a handler for the records of a sensor from now on; the newest association of a sensor holds, NULL takes it away. */
static inline int sbassociate(sbview_t *view, int sensor, sbhandler_t call, void *context)
{
	uint32_t at = 0;
	if (sensor < 0 || (uint64_t)sensor >= view->sensors)
		return -EINVAL;
	while (at < view->handlers && view->handler[at].sensor != (uint32_t)sensor)
		at++;
	if (at == WEIR_SENSOR_HANDLERS)
		return -ENOSPC;
	if (!call) {
		if (at < view->handlers)
			view->handler[at] = view->handler[--view->handlers];
		return 0;
	}
	if (at == view->handlers)
		view->handlers++;
	view->handler[at].sensor = (uint32_t)sensor;
	view->handler[at].call = call;
	view->handler[at].context = context;
	return 0;
}

/* Copies record number `number`: 1 whole, 0 not written yet, -1 overwritten. */
static inline int weir_sensor_copy(const sbview_t *view, uint64_t number, sbrecord_t *record)
{
	const struct weir_sensor_record *at = &view->ring[number & (view->records - 1)];
	uint64_t whole = number * 2 + 2, words[5];
	/* Numbers that would not fit are a publisher's lie: no sequence can match then. */
	if (number > (UINT64_MAX - 2) / 2)
		return -1;
	uint64_t before = weir_sensor_load(&at->sequence);
	if (before != whole)
		return before > whole ? -1 : 0;
	for (int i = 0; i < 5; i++)
		words[i] = __atomic_load_n(&at->value[i], __ATOMIC_RELAXED);
	uint64_t time_ns = __atomic_load_n(&at->time_ns, __ATOMIC_RELAXED);
	uint64_t who = __atomic_load_n(&at->sensor, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (__atomic_load_n(&at->sequence, __ATOMIC_RELAXED) != whole)
		return -1;
	record->number = number;
	record->time_ns = time_ns;
	record->sensor = (uint32_t)who;
	record->length = (uint32_t)(who >> 32);
	memcpy(record->value, words, sizeof record->value);
	return 1;
}

static inline void weir_sensor_dispatch(sbview_t *view, const sbrecord_t *record, sbfetched_t *found)
{
	found->records++;
	for (uint32_t i = 0; i < view->handlers; i++) {
		if (view->handler[i].sensor == record->sensor) {
			view->handler[i].call(record, view->handler[i].context);
			return;
		}
	}
	found->unhandled++;
}

/* Hands out the records that came since the last fetch, oldest first, each once: at most a whole ring, so that the time of a
 * fetch has a bound whatever the publisher does. */
static inline int sbfetch(sbview_t *view, sbfetched_t *found)
{
	sbrecord_t record;
	uint64_t head = weir_sensor_load(&view->header->head);
	memset(found, 0, sizeof *found);
	if (head < view->next) {
		/* A head never goes back. */
		found->lies++;
		view->next = head;
		view->waited = 0;
		return 0;
	}
	if (head - view->next > view->records) {
		found->lost += head - view->next - view->records;
		view->next = head - view->records;
		view->waited = 0;
	}
	while (view->next < head) {
		int got = weir_sensor_copy(view, view->next, &record);
		if (got == 0 && view->waited < WEIR_SENSOR_PATIENCE) {
			view->waited++;
			return 0;
		}
		if (got == 1 && record.length <= WEIR_SENSOR_VALUE_BYTES)
			weir_sensor_dispatch(view, &record, found);
		else if (got == 1)
			found->lies++;
		else
			found->lost++;
		view->waited = 0;
		view->next++;
	}
	return 0;
}

/* Forgets what was published up to now. Returns how many records were not read. */
static inline uint64_t sbflush(sbview_t *view)
{
	uint64_t head = weir_sensor_load(&view->header->head);
	uint64_t skipped = head > view->next ? head - view->next : 0;
	view->next = head;
	view->waited = 0;
	return skipped;
}
#endif
