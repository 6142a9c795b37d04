// SPDX-License-Identifier: Apache-2.0
// The two files behind the library: the machine, which others write, and beside it what NVML calls
// changed (`<machine file>.state`), which the library writes, for every process that has it loaded.
#ifndef GPUSLICE_FILES_H
#define GPUSLICE_FILES_H

#include <sys/types.h>
#include <time.h>

#include "machine.h"

struct version {
    ino_t inode;
    off_t size;
    struct timespec changed;
};

// Reads the machine if its file or the one beside it changed since the last call; keeps the last
// good one if the new one makes no sense. Answers 0 while there has been no good one.
int files_refresh(struct machine *machine);
// The version of the machine's file that files_refresh read last.
struct version files_version(void);
// Sleeps until the machine's file is no longer of that version, or the time is over, or a little
// less; takes no lock.
void files_wait(struct version seen, unsigned int timeout_ms);
nvmlReturn_t files_keep_compute_mode(const char *uuid, unsigned int mode);

#endif
