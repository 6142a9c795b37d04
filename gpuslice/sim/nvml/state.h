// SPDX-License-Identifier: Apache-2.0
// What the library remembers between calls, behind one lock.
#ifndef GPUSLICE_STATE_H
#define GPUSLICE_STATE_H

#include "machine.h"

// A handle outlives the machine that it was made from: it only knows its UUID, and is never freed,
// so that a caller may keep one over the loss and the return of its GPU.
struct nvmlDevice_st {
    char uuid[TEXT_LENGTH];
    struct nvmlDevice_st *next;
};

// Each exported function begins with one of the two and ends with leave(), whatever they answer:
// they take the lock, read a changed file again, and answer the fault that the file asks for.
nvmlReturn_t enter(const char *function);
nvmlReturn_t enter_device(const char *function, nvmlDevice_t handle, struct device **device);
nvmlReturn_t leave(nvmlReturn_t result);

nvmlReturn_t state_init(const char *function);
nvmlReturn_t state_shutdown(void);

// The rest is called between enter and leave.
struct machine *state_machine(void);
nvmlDevice_t state_handle(const char *uuid);
// NVML counts GPUs when it is initialised: one that comes later isn't seen, one that goes is lost.
size_t state_gpu_count(void);
nvmlDevice_t state_gpu(size_t index);
nvmlReturn_t state_find(const char *function, nvmlDevice_t handle, struct device **device);

nvmlReturn_t copy_text(const char *text, char *target, unsigned int length);

#endif
