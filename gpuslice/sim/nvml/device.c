// SPDX-License-Identifier: Apache-2.0
// Which GPUs there are, and what each of them is.
#include <stdio.h>
#include <string.h>

#include "state.h"

static nvmlReturn_t count(const char *function, unsigned int *value)
{
    nvmlReturn_t result = enter(function);
    if (result == NVML_SUCCESS)
        *value = (unsigned int)state_gpu_count();
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *value)
{
    return count(__func__, value);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *value)
{
    return count(__func__, value);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle)
{
    struct device *device;
    nvmlReturn_t result = enter(__func__);
    if (result == NVML_SUCCESS) {
        nvmlDevice_t found = state_gpu(index);
        result = found ? state_find(__func__, found, &device) : NVML_ERROR_INVALID_ARGUMENT;
        if (result == NVML_SUCCESS)
            *handle = found;
    }
    return leave(result);
}

static int is_counted(const struct device *device)
{
    const struct machine *machine = state_machine();
    const char *uuid = device->parent == NO_PARENT ? device->uuid
                                                   : machine->devices[device->parent].uuid;
    for (size_t i = 0; i < state_gpu_count(); ++i)
        if (!strcmp(state_gpu(i)->uuid, uuid))
            return 1;
    return 0;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
    nvmlReturn_t result = enter(__func__);
    if (result == NVML_SUCCESS) {
        struct device *device = uuid ? machine_find(state_machine(), uuid) : NULL;
        if (!device || !is_counted(device)) {
            result = NVML_ERROR_NOT_FOUND;
        } else {
            *handle = state_handle(uuid);
            result = state_find(__func__, *handle, &device);
        }
    }
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *handle)
{
    nvmlReturn_t result = enter(__func__);
    unsigned int domain, bus, number;
    if (result == NVML_SUCCESS) {
        struct machine *machine = state_machine();
        result = NVML_ERROR_NOT_FOUND;
        if (!bus_id || sscanf(bus_id, "%x:%x:%x", &domain, &bus, &number) != 3)
            result = NVML_ERROR_INVALID_ARGUMENT;
        for (size_t i = 0; result == NVML_ERROR_NOT_FOUND && i < machine->device_count; ++i) {
            struct device *device = &machine->devices[i];
            if (device->parent == NO_PARENT && is_counted(device) &&
                device->pci_domain == domain && device->pci_bus == bus &&
                device->pci_device == number) {
                *handle = state_handle(device->uuid);
                result = state_find(__func__, *handle, &device);
            }
        }
    }
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS)
        result = copy_text(device->uuid, uuid, length);
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS && device->parent != NO_PARENT) {
        char whole[2 * TEXT_LENGTH + 8];
        snprintf(whole, sizeof whole, "%s MIG %s", state_machine()->devices[device->parent].product,
                 device->product);
        result = copy_text(whole, name, length);
    } else if (result == NVML_SUCCESS) {
        result = copy_text(device->product, name, length);
    }
    return leave(result);
}

// A GPU's place among those counted at init, an instance's among its parent's.
static unsigned int index_of(const struct device *device)
{
    const struct machine *machine = state_machine();
    unsigned int index = 0;
    if (device->parent == NO_PARENT) {
        while (index < state_gpu_count() && strcmp(state_gpu(index)->uuid, device->uuid) != 0)
            ++index;
        return index;
    }
    for (const struct device *other = machine->devices; other != device; ++other)
        index += other->parent == device->parent;
    return index;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index)
{
    struct device *device;
    nvmlReturn_t result = enter_device(__func__, handle, &device);
    if (result == NVML_SUCCESS)
        *index = index_of(device);
    return leave(result);
}

// As enter_device, for what only a physical GPU has.
static nvmlReturn_t enter_physical(const char *function, nvmlDevice_t handle,
                                   struct device **device)
{
    nvmlReturn_t result = enter_device(function, handle, device);
    if (result == NVML_SUCCESS && (*device)->parent != NO_PARENT)
        return NVML_ERROR_NOT_SUPPORTED;
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned int *minor)
{
    struct device *device;
    nvmlReturn_t result = enter_physical(__func__, handle, &device);
    if (result == NVML_SUCCESS)
        *minor = device->minor;
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
    struct device *device;
    nvmlReturn_t result = enter_physical(__func__, handle, &device);
    if (result == NVML_SUCCESS) {
        memset(pci, 0, sizeof *pci);
        pci->domain = device->pci_domain;
        pci->bus = device->pci_bus;
        pci->device = device->pci_device;
        snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xFF,
                 pci->device & 0xFF);
        snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0",
                 pci->domain & 0xFFFF, pci->bus & 0xFF, pci->device & 0xFF);
    }
    return leave(result);
}

// Only for machines whose GPUs are NUMA nodes of their own; the usual ones say this.
NVML_EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t handle, unsigned int *node)
{
    struct device *device;
    nvmlReturn_t result = enter_physical(__func__, handle, &device);
    (void)node;
    return leave(result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned int size,
                                                     unsigned long *nodes, unsigned int scope)
{
    struct device *device;
    const unsigned int bits = 8 * sizeof *nodes;
    nvmlReturn_t result = enter_physical(__func__, handle, &device);
    if (result == NVML_SUCCESS && scope > 1)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && device->numa_node < 0)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS && (unsigned int)device->numa_node >= size * bits)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    if (result == NVML_SUCCESS) {
        unsigned int node = (unsigned int)device->numa_node;
        memset(nodes, 0, size * sizeof *nodes);
        nodes[node / bits] = 1UL << (node % bits);
    }
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major,
                                                            int *minor)
{
    struct device *device;
    nvmlReturn_t result = enter_physical(__func__, handle, &device);
    if (result == NVML_SUCCESS) {
        *major = device->capability_major;
        *minor = device->capability_minor;
    }
    return leave(result);
}
