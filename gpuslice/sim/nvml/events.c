// SPDX-License-Identifier: Apache-2.0
// Events: the machine's file numbers them, each set remembers the last one that it has looked at.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "files.h"
#include "state.h"

#define SUPPORTED (NVML_EVENT_SINGLE_BIT_ECC | NVML_EVENT_DOUBLE_BIT_ECC | NVML_EVENT_XID_CRITICAL)
#define LONGEST_MS 500

struct registration {
    nvmlDevice_t device;
    unsigned long long types;
};

struct nvmlEventSet_st {
    unsigned long long cursor;
    struct registration *registrations;
    size_t count;
    struct nvmlEventSet_st *next;
};

static struct nvmlEventSet_st *sets;

// Where the set hangs, so that a waiter whose set was freed by another thread gets an answer.
static struct nvmlEventSet_st **place_of(nvmlEventSet_t set)
{
    struct nvmlEventSet_st **place = &sets;
    while (*place && *place != set)
        place = &(*place)->next;
    return place;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle,
                                                          unsigned long long *types)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS)
        *types = device->parent == NO_PARENT ? SUPPORTED : 0;
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    nvmlReturn_t result = enter(__func__);
    if (result == NVML_SUCCESS) {
        const struct machine *machine = state_machine();
        nvmlEventSet_t fresh = calloc(1, sizeof *fresh);
        if (!fresh)
            return leave(NVML_ERROR_MEMORY);
        for (size_t i = 0; i < machine->event_count; ++i)
            if (machine->events[i].serial > fresh->cursor)
                fresh->cursor = machine->events[i].serial;
        fresh->next = sets;
        *set = sets = fresh;
    }
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types,
                                                  nvmlEventSet_t set)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS && (device->parent != NO_PARENT || types & ~SUPPORTED))
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS && !*place_of(set))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct registration *grown =
            realloc(set->registrations, (set->count + 1) * sizeof *grown);
        if (!grown)
            return leave(NVML_ERROR_MEMORY);
        set->registrations = grown;
        grown[set->count++] = (struct registration){handle, types};
    }
    return leave(result);
}

static int is_registered(const struct nvmlEventSet_st *set, const struct event *event)
{
    for (size_t i = 0; i < set->count; ++i)
        if (!strcmp(set->registrations[i].device->uuid, event->uuid) &&
            set->registrations[i].types & event->type)
            return 1;
    return 0;
}

static int take_event(struct nvmlEventSet_st *set, nvmlEventData_t *data)
{
    const struct machine *machine = state_machine();
    for (size_t i = 0; i < machine->event_count; ++i) {
        const struct event *event = &machine->events[i];
        if (event->serial <= set->cursor)
            continue;
        set->cursor = event->serial;
        if (!is_registered(set, event))
            continue;
        *data = (nvmlEventData_t){state_handle(event->uuid), event->type, event->data,
                                  event->gpu_instance, event->compute_instance};
        return 1;
    }
    return 0;
}

static unsigned long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000;
}

static nvmlReturn_t wait_for(const char *function, nvmlEventSet_t set, nvmlEventData_t *data,
                             unsigned int timeout_ms)
{
    unsigned long long deadline = now_ms() + timeout_ms;
    for (;;) {
        nvmlReturn_t result = enter(function);
        if (result == NVML_SUCCESS && !*place_of(set))
            result = NVML_ERROR_INVALID_ARGUMENT;
        int taken = result == NVML_SUCCESS && take_event(set, data);
        struct version seen = files_version();
        leave(result);
        if (result != NVML_SUCCESS || taken)
            return result;
        unsigned long long now = now_ms();
        if (now >= deadline)
            return NVML_ERROR_TIMEOUT;
        // A set that another thread frees meanwhile is noticed after this.
        files_wait(seen, deadline - now < LONGEST_MS ? (unsigned int)(deadline - now) : LONGEST_MS);
    }
}

NVML_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data,
                                             unsigned int timeout_ms)
{
    return wait_for(__func__, set, data, timeout_ms);
}

NVML_EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data,
                                          unsigned int timeout_ms)
{
    return wait_for(__func__, set, data, timeout_ms);
}

NVML_EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    nvmlReturn_t result = enter(__func__);
    struct nvmlEventSet_st **place = place_of(set);
    if (result == NVML_SUCCESS && !*place)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        *place = set->next;
        free(set->registrations);
        free(set);
    }
    return leave(result);
}
