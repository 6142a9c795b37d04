// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *grow(void *items, size_t *count, size_t size)
{
    char *grown = realloc(items, (*count + 1) * size);
    if (!grown)
        abort();
    memset(grown + *count * size, 0, size);
    ++*count;
    return grown;
}

static int read_text(const char *value, char *target)
{
    size_t length = strlen(value);
    if (length == 0 || length >= TEXT_LENGTH)
        return 0;
    memcpy(target, value, length + 1);
    return 1;
}

static int read_fault(const char *value, struct faults *faults)
{
    char function[TEXT_LENGTH];
    int code;
    unsigned int delay_ms;
    if (sscanf(value, "%95s %d %u", function, &code, &delay_ms) != 3)
        return 0;
    faults->items = grow(faults->items, &faults->count, sizeof *faults->items);
    struct fault *fault = &faults->items[faults->count - 1];
    memcpy(fault->function, function, sizeof function);
    fault->code = (nvmlReturn_t)code;
    fault->delay_ms = delay_ms;
    return 1;
}

static int read_event(const char *value, struct machine *machine)
{
    struct event event = {0};
    if (sscanf(value, "%llu %95s %llu %llu %u %u", &event.serial, event.uuid, &event.type,
               &event.data, &event.gpu_instance, &event.compute_instance) != 6)
        return 0;
    machine->events = grow(machine->events, &machine->event_count, sizeof event);
    machine->events[machine->event_count - 1] = event;
    return 1;
}

static int read_process(const char *value, struct device *device)
{
    struct process process;
    if (sscanf(value, "%u %llu", &process.pid, &process.used) != 2)
        return 0;
    device->processes = grow(device->processes, &device->process_count, sizeof process);
    device->processes[device->process_count - 1] = process;
    return 1;
}

// A line that starts a GPU, or a MIG instance of the GPU before it.
static int start_device(const char *uuid, struct machine *machine, int is_instance)
{
    size_t parent = NO_PARENT;
    if (is_instance) {
        if (machine->device_count == 0)
            return 0;
        struct device *last = &machine->devices[machine->device_count - 1];
        parent = last->parent == NO_PARENT ? machine->device_count - 1 : last->parent;
    }
    machine->devices = grow(machine->devices, &machine->device_count, sizeof *machine->devices);
    struct device *device = &machine->devices[machine->device_count - 1];
    device->parent = parent;
    device->numa_node = -1;
    return read_text(uuid, device->uuid);
}

static int read_machine_line(const char *key, const char *value, struct machine *machine)
{
    if (!strcmp(key, "driver"))
        return read_text(value, machine->driver);
    if (!strcmp(key, "nvml"))
        return read_text(value, machine->nvml);
    if (!strcmp(key, "cuda"))
        return sscanf(value, "%d", &machine->cuda) == 1;
    return 0;
}

static int read_device_line(const char *key, const char *value, struct device *device)
{
    if (!strcmp(key, "product") || !strcmp(key, "profile"))
        return read_text(value, device->product);
    if (!strcmp(key, "memory"))
        return sscanf(value, "%llu %llu", &device->total, &device->reserved) == 2;
    if (!strcmp(key, "pci"))
        return sscanf(value, "%x:%x:%x.0", &device->pci_domain, &device->pci_bus,
                      &device->pci_device) == 3;
    if (!strcmp(key, "minor"))
        return sscanf(value, "%u", &device->minor) == 1;
    if (!strcmp(key, "numa"))
        return sscanf(value, "%d", &device->numa_node) == 1;
    if (!strcmp(key, "compute-mode"))
        return sscanf(value, "%u", &device->compute_mode) == 1;
    if (!strcmp(key, "mig-mode"))
        return sscanf(value, "%u %u", &device->mig_mode, &device->mig_pending) == 2;
    if (!strcmp(key, "capability"))
        return sscanf(value, "%d %d", &device->capability_major, &device->capability_minor) == 2;
    if (!strcmp(key, "utilization"))
        return sscanf(value, "%u %u", &device->utilization.gpu, &device->utilization.memory) == 2;
    if (!strcmp(key, "ecc"))
        return sscanf(value, "%u %llu %llu", &device->ecc_enabled, &device->ecc_corrected,
                      &device->ecc_uncorrected) == 3;
    if (!strcmp(key, "instance"))
        return sscanf(value, "%u %u", &device->gpu_instance, &device->compute_instance) == 2;
    if (!strcmp(key, "lost"))
        return sscanf(value, "%u", &device->lost) == 1;
    if (!strcmp(key, "missing"))
        return sscanf(value, "%u", &device->missing) == 1;
    if (!strcmp(key, "memory-na"))
        return sscanf(value, "%u", &device->memory_na) == 1;
    if (!strcmp(key, "process"))
        return read_process(value, device);
    return 0;
}

static int read_line(const char *key, const char *value, struct machine *machine)
{
    if (!strcmp(key, "gpu") || !strcmp(key, "mig"))
        return start_device(value, machine, key[0] == 'm');
    if (!strcmp(key, "event"))
        return read_event(value, machine);
    struct device *device =
        machine->device_count ? &machine->devices[machine->device_count - 1] : NULL;
    if (!strcmp(key, "fail"))
        return read_fault(value, device ? &device->faults : &machine->faults);
    return device ? read_device_line(key, value, device) : read_machine_line(key, value, machine);
}

int machine_parse(char *text, struct machine *machine)
{
    memset(machine, 0, sizeof *machine);
    int number = 0;
    for (char *line = text, *next; line && *line; line = next) {
        ++number;
        if ((next = strchr(line, '\n')))
            *next++ = '\0';
        line += strspn(line, " ");
        if (*line == '\0' || *line == '#')
            continue;
        char *value = strchr(line, ' ');
        if (!value)
            return number;
        *value++ = '\0';
        if (!read_line(line, value, machine))
            return number;
    }
    return 0;
}

void machine_free(struct machine *machine)
{
    for (size_t i = 0; i < machine->device_count; ++i) {
        free(machine->devices[i].processes);
        free(machine->devices[i].faults.items);
    }
    free(machine->faults.items);
    free(machine->devices);
    free(machine->events);
    memset(machine, 0, sizeof *machine);
}

struct device *machine_find(struct machine *machine, const char *uuid)
{
    for (size_t i = 0; i < machine->device_count; ++i)
        if (!strcmp(machine->devices[i].uuid, uuid))
            return &machine->devices[i];
    return NULL;
}
