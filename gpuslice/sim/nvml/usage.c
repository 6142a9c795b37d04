// SPDX-License-Identifier: Apache-2.0
// What changes while a GPU works: memory, processes, utilization, ECC counters, compute mode.
#include "files.h"
#include "state.h"

static int belongs(const struct device *owner, const struct device *part)
{
    const struct machine *machine = state_machine();
    return part == owner || (part->parent != NO_PARENT && &machine->devices[part->parent] == owner);
}

static unsigned long long used_by_processes(const struct device *device)
{
    const struct machine *machine = state_machine();
    unsigned long long used = 0;
    for (size_t i = 0; i < machine->device_count; ++i) {
        const struct device *part = &machine->devices[i];
        for (size_t j = 0; belongs(device, part) && j < part->process_count; ++j)
            if (part->processes[j].used != NVML_NOT_AVAILABLE_64)
                used += part->processes[j].used;
    }
    return used;
}

static nvmlReturn_t memory_of(const struct device *device, nvmlMemory_v2_t *memory)
{
    unsigned long long used = used_by_processes(device);
    unsigned long long sellable = device->total - device->reserved;
    if (device->memory_na) {
        memory->total = memory->reserved = memory->free = memory->used = NVML_NOT_AVAILABLE_64;
        return NVML_SUCCESS;
    }
    memory->total = device->total;
    memory->reserved = device->reserved;
    memory->used = used < sellable ? used : sellable;
    memory->free = sellable - memory->used;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS && memory->version != NVML_MEMORY_V2)
        result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result == NVML_SUCCESS)
        result = memory_of(device, memory);
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS) {
        nvmlMemory_v2_t whole;
        result = memory_of(device, &whole);
        memory->total = whole.total;
        memory->free = whole.free;
        memory->used = device->memory_na ? whole.used : whole.used + whole.reserved;
    }
    return leave(result);
}

static nvmlReturn_t processes(const char *function, nvmlDevice_t handle, unsigned int *count,
                              nvmlProcessInfo_t *infos)
{
    struct device *device;
    nvmlReturn_t result = enter_device(function, handle, &device);
    if (result != NVML_SUCCESS)
        return leave(result);
    const struct machine *machine = state_machine();
    unsigned int found = 0, room = infos ? *count : 0;
    for (size_t i = 0; i < machine->device_count; ++i) {
        const struct device *part = &machine->devices[i];
        for (size_t j = 0; belongs(device, part) && j < part->process_count; ++j, ++found) {
            int whole = part->parent == NO_PARENT;
            if (found < room)
                infos[found] = (nvmlProcessInfo_t){
                    part->processes[j].pid, part->processes[j].used,
                    whole ? NVML_NOT_AVAILABLE_32 : part->gpu_instance,
                    whole ? NVML_NOT_AVAILABLE_32 : part->compute_instance};
        }
    }
    *count = found;
    return leave(found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle,
                                                                 unsigned int *count,
                                                                 nvmlProcessInfo_t *infos)
{
    return processes(__func__, handle, count, infos);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle,
                                                                 unsigned int *count,
                                                                 nvmlProcessInfo_t *infos)
{
    return processes(__func__, handle, count, infos);
}

// The processes of this machine all compute, and none is a client of MPS.
static nvmlReturn_t no_processes(const char *function, nvmlDevice_t handle, unsigned int *count)
{
    struct device *device;
    nvmlReturn_t result = enter_device(function, handle, &device);
    if (result == NVML_SUCCESS)
        *count = 0;
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle,
                                                                  unsigned int *count,
                                                                  nvmlProcessInfo_t *infos)
{
    (void)infos;
    return no_processes(__func__, handle, count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle,
                                                                    unsigned int *count,
                                                                    nvmlProcessInfo_t *infos)
{
    (void)infos;
    return no_processes(__func__, handle, count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle,
                                                       nvmlUtilization_t *utilization)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS && device->parent != NO_PARENT)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS)
        *utilization = device->utilization;
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t handle, unsigned int *mode)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS)
        *mode = device->compute_mode;
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t handle, unsigned int mode)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS && device->parent != NO_PARENT)
        result = NVML_ERROR_NOT_SUPPORTED;
    // 1, exclusive per thread, was taken out of NVML.
    if (result == NVML_SUCCESS && (mode > 3 || mode == 1))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        result = files_keep_compute_mode(device->uuid, mode);
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, unsigned int *current,
                                              unsigned int *pending)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS)
        *current = *pending = device->ecc_enabled;
    return leave(result);
}

static nvmlReturn_t ecc_errors(const char *function, nvmlDevice_t handle, unsigned int kind,
                               unsigned long long *count)
{
    struct device *device;
    nvmlReturn_t result = enter_device(function, handle, &device);
    if (result == NVML_SUCCESS && (!device->ecc_enabled || device->parent != NO_PARENT))
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS && kind > 1)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *count = kind == 0 ? device->ecc_corrected : device->ecc_uncorrected;
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned int kind,
                                                     unsigned int counter,
                                                     unsigned long long *count)
{
    (void)counter;
    return ecc_errors(__func__, handle, kind, count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t handle, unsigned int kind,
                                                         unsigned int counter,
                                                         unsigned int location,
                                                         unsigned long long *count)
{
    (void)counter;
    (void)location;
    return ecc_errors(__func__, handle, kind, count);
}
