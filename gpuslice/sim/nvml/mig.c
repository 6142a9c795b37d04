// SPDX-License-Identifier: Apache-2.0
// MIG: a GPU cut into instances, each with a handle and a UUID of its own.
#include <stdio.h>
#include <string.h>

#include "state.h"

#define MOST_INSTANCES 7

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *current,
                                              unsigned int *pending)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    // GPUs before Ampere don't know MIG.
    if (result == NVML_SUCCESS && (device->parent != NO_PARENT || device->capability_major < 8))
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS) {
        *current = device->mig_mode;
        *pending = device->mig_pending;
    }
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *count)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS)
        *count = device->parent == NO_PARENT && device->capability_major >= 8 ? MOST_INSTANCES : 0;
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle,
                                                             unsigned int index,
                                                             nvmlDevice_t *instance)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS && (!device->mig_mode || index >= MOST_INSTANCES))
        result = device->mig_mode ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS) {
        struct machine *machine = state_machine();
        result = NVML_ERROR_NOT_FOUND;
        for (size_t i = 0; result != NVML_SUCCESS && i < machine->device_count; ++i) {
            struct device *part = &machine->devices[i];
            if (part->parent == NO_PARENT || &machine->devices[part->parent] != device)
                continue;
            if (index-- == 0) {
                *instance = state_handle(part->uuid);
                result = NVML_SUCCESS;
            }
        }
    }
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *is_instance)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS)
        *is_instance = device->parent != NO_PARENT;
    return leave(result);
}

// As enter_device, for what only an instance has.
static nvmlReturn_t enter_instance(const char *function, nvmlDevice_t handle,
                                   struct device **device)
{
    nvmlReturn_t result = enter_device(function, handle, device);
    if (result == NVML_SUCCESS && (*device)->parent == NO_PARENT)
        return NVML_ERROR_NOT_SUPPORTED;
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance,
                                                                      nvmlDevice_t *parent)
{
    struct device *device;
    nvmlReturn_t result = enter_instance(__func__, instance, &device);
    if (result == NVML_SUCCESS)
        *parent = state_handle(state_machine()->devices[device->parent].uuid);
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned int *id)
{
    struct device *device;
    nvmlReturn_t result = enter_instance(__func__, handle, &device);
    if (result == NVML_SUCCESS)
        *id = device->gpu_instance;
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned int *id)
{
    struct device *device;
    nvmlReturn_t result = enter_instance(__func__, handle, &device);
    if (result == NVML_SUCCESS)
        *id = device->compute_instance;
    return leave(result);
}

// The profile's name says how many of the GPU's seven parts an instance has: 3g.20gb, 1c.3g.20gb.
static unsigned int parts_of(const char *profile)
{
    unsigned int compute, parts;
    if (sscanf(profile, "%uc.%ug.", &compute, &parts) == 2 || sscanf(profile, "%ug.", &parts) == 1)
        return parts;
    return 1;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle,
                                                    nvmlDeviceAttributes_t *attributes)
{
    struct device *device;
    nvmlReturn_t result = enter_instance(__func__, handle, &device);
    if (result == NVML_SUCCESS) {
        memset(attributes, 0, sizeof *attributes);
        attributes->gpuInstanceSliceCount = parts_of(device->product);
        attributes->computeInstanceSliceCount = attributes->gpuInstanceSliceCount;
        attributes->multiprocessorCount = 14 * attributes->gpuInstanceSliceCount;
        attributes->sharedCopyEngineCount = attributes->gpuInstanceSliceCount;
        attributes->memorySizeMB = device->total >> 20;
    }
    return leave(result);
}
