// SPDX-License-Identifier: Apache-2.0
// The machine that the library serves, as read from its text file (machine.py has the grammar).
#ifndef GPUSLICE_MACHINE_H
#define GPUSLICE_MACHINE_H

#include <stddef.h>

#include "nvml.h"

#define TEXT_LENGTH 96
#define NO_PARENT ((size_t)-1)

struct fault {
    char function[TEXT_LENGTH];  // an exported name, or a prefix of some that ends in '*'
    nvmlReturn_t code;
    unsigned int delay_ms;
};

struct faults {
    struct fault *items;
    size_t count;
};

struct process {
    unsigned int pid;
    unsigned long long used;
};

// A physical GPU or, with a parent, a MIG instance.
struct device {
    char uuid[TEXT_LENGTH];
    char product[TEXT_LENGTH];  // a MIG instance: its profile
    size_t parent;
    unsigned long long total, reserved;
    unsigned int lost, missing, memory_na;
    struct faults faults;
    struct process *processes;
    size_t process_count;
    // physical GPUs only
    unsigned int pci_domain, pci_bus, pci_device, minor;
    int numa_node;
    unsigned int compute_mode, mig_mode, mig_pending;
    int capability_major, capability_minor;
    nvmlUtilization_t utilization;
    unsigned int ecc_enabled;
    unsigned long long ecc_corrected, ecc_uncorrected;
    // MIG instances only
    unsigned int gpu_instance, compute_instance;
};

struct event {
    unsigned long long serial;
    char uuid[TEXT_LENGTH];
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
};

struct machine {
    char driver[TEXT_LENGTH], nvml[TEXT_LENGTH];
    int cuda;
    struct faults faults;
    struct device *devices;
    size_t device_count;
    struct event *events;
    size_t event_count;
};

// Answers 0, or the number of the first line that makes no sense. The machine can be freed either
// way.
int machine_parse(char *text, struct machine *machine);
void machine_free(struct machine *machine);
struct device *machine_find(struct machine *machine, const char *uuid);

#endif
