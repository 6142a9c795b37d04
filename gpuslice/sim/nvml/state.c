// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "state.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "files.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct machine machine;
static unsigned int initialised;
static struct nvmlDevice_st *handles;
static nvmlDevice_t *gpus;
static size_t gpu_count;

static int names(const char *pattern, const char *function)
{
    size_t length = strlen(pattern);
    if (length && pattern[length - 1] == '*')
        return strncmp(pattern, function, length - 1) == 0;
    return strcmp(pattern, function) == 0;
}

// The lock is let go during a delay: a slow GPU must not slow down the others.
static nvmlReturn_t fault_of(const struct faults *faults, const char *function)
{
    for (size_t i = 0; i < faults->count; ++i) {
        if (!names(faults->items[i].function, function))
            continue;
        struct fault fault = faults->items[i];
        if (fault.delay_ms) {
            struct timespec delay = {fault.delay_ms / 1000, fault.delay_ms % 1000 * 1000000L};
            pthread_mutex_unlock(&lock);
            nanosleep(&delay, NULL);
            pthread_mutex_lock(&lock);
        }
        return fault.code;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t enter(const char *function)
{
    pthread_mutex_lock(&lock);
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    files_refresh(&machine);
    return fault_of(&machine.faults, function);
}

nvmlReturn_t leave(nvmlReturn_t result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t state_find(const char *function, nvmlDevice_t handle, struct device **device)
{
    if (!handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct device *found = machine_find(&machine, handle->uuid);
    if (!found)
        return strncmp(handle->uuid, "MIG-", 4) ? NVML_ERROR_GPU_IS_LOST
                                                : NVML_ERROR_INVALID_ARGUMENT;
    struct device *physical =
        found->parent == NO_PARENT ? found : &machine.devices[found->parent];
    if (physical->lost || physical->missing)
        return NVML_ERROR_GPU_IS_LOST;
    nvmlReturn_t fault = fault_of(&found->faults, function);
    // The file may have been read again during a delay.
    *device = machine_find(&machine, handle->uuid);
    return *device ? fault : NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t enter_device(const char *function, nvmlDevice_t handle, struct device **device)
{
    nvmlReturn_t result = enter(function);
    return result == NVML_SUCCESS ? state_find(function, handle, device) : result;
}

static void count_gpus(void)
{
    free(gpus);
    gpus = calloc(machine.device_count + 1, sizeof *gpus);
    gpu_count = 0;
    for (size_t i = 0; gpus && i < machine.device_count; ++i) {
        struct device *device = &machine.devices[i];
        if (device->parent == NO_PARENT && !device->missing)
            gpus[gpu_count++] = state_handle(device->uuid);
    }
}

nvmlReturn_t state_init(const char *function)
{
    pthread_mutex_lock(&lock);
    if (!files_refresh(&machine))
        return leave(NVML_ERROR_DRIVER_NOT_LOADED);
    nvmlReturn_t result = fault_of(&machine.faults, function);
    if (result == NVML_SUCCESS && initialised++ == 0)
        count_gpus();
    return leave(result);
}

nvmlReturn_t state_shutdown(void)
{
    pthread_mutex_lock(&lock);
    if (!initialised)
        return leave(NVML_ERROR_UNINITIALIZED);
    --initialised;
    return leave(NVML_SUCCESS);
}

struct machine *state_machine(void)
{
    return &machine;
}

nvmlDevice_t state_handle(const char *uuid)
{
    for (nvmlDevice_t handle = handles; handle; handle = handle->next)
        if (!strcmp(handle->uuid, uuid))
            return handle;
    nvmlDevice_t handle = calloc(1, sizeof *handle);
    if (!handle)
        abort();
    strncpy(handle->uuid, uuid, TEXT_LENGTH - 1);
    handle->next = handles;
    return handles = handle;
}

size_t state_gpu_count(void)
{
    return gpu_count;
}

nvmlDevice_t state_gpu(size_t index)
{
    return index < gpu_count ? gpus[index] : NULL;
}


nvmlReturn_t copy_text(const char *text, char *target, unsigned int length)
{
    size_t needed = strlen(text) + 1;
    if (!target)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (needed > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(target, text, needed);
    return NVML_SUCCESS;
}
