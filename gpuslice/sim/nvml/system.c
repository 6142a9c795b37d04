// SPDX-License-Identifier: Apache-2.0
#include "state.h"

NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return state_init(__func__);
}

NVML_EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return state_init(__func__);
}

NVML_EXPORT nvmlReturn_t nvmlInit(void)
{
    return state_init(__func__);
}

NVML_EXPORT nvmlReturn_t nvmlShutdown(void)
{
    return state_shutdown();
}

NVML_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_OPERATING_SYSTEM: return "The operating system has blocked the request.";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    nvmlReturn_t result = enter(__func__);
    if (result == NVML_SUCCESS)
        result = copy_text(state_machine()->driver, version, length);
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    nvmlReturn_t result = enter(__func__);
    if (result == NVML_SUCCESS)
        result = copy_text(state_machine()->nvml, version, length);
    return leave(result);
}

static nvmlReturn_t cuda_version(const char *function, int *version)
{
    nvmlReturn_t result = enter(function);
    if (result == NVML_SUCCESS)
        *version = state_machine()->cuda;
    return leave(result);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return cuda_version(__func__, version);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuda_version(__func__, version);
}
