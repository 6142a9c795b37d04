// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "files.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_VARIABLE "GPUSLICE_SIM_MACHINE"
#define FILE_NAME "gpuslice-machine.conf"
#define LOOK_EVERY_MS 20

static char machine_path[PATH_MAX], state_path[PATH_MAX + 16], lock_path[PATH_MAX + 32];
static struct version machine_seen, state_seen;
static int have_machine;

// The variable wins; else the file lies in the library's own folder, so that each driver root has
// its machine and a process needs to be told nothing but the root.
static void find_paths(void)
{
    const char *named = getenv(PATH_VARIABLE);
    Dl_info info;
    if (named && *named) {
        snprintf(machine_path, sizeof machine_path, "%s", named);
    } else if (dladdr((void *)(size_t)files_refresh, &info) && info.dli_fname) {
        const char *slash = strrchr(info.dli_fname, '/');
        int folder = slash ? (int)(slash - info.dli_fname) : 0;
        snprintf(machine_path, sizeof machine_path, "%.*s/%s", folder, info.dli_fname, FILE_NAME);
    }
    snprintf(state_path, sizeof state_path, "%s.state", machine_path);
    snprintf(lock_path, sizeof lock_path, "%s.lock", state_path);
}

static int same(const struct version *a, const struct version *b)
{
    return a->inode == b->inode && a->size == b->size && a->changed.tv_sec == b->changed.tv_sec &&
           a->changed.tv_nsec == b->changed.tv_nsec;
}

static struct version look(const char *path)
{
    struct stat status;
    struct version version = {0};
    if (stat(path, &status) == 0) {
        version.inode = status.st_ino;
        version.size = status.st_size;
        version.changed = status.st_ctim;
    }
    return version;
}

static char *read_all(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    size_t length = 0, room = 4096, got;
    char *text = malloc(room);
    while (text && (got = fread(text + length, 1, room - length - 1, file)) > 0) {
        length += got;
        if (length + 1 == room) {
            char *grown = realloc(text, room *= 2);
            if (!grown)
                free(text);
            text = grown;
        }
    }
    fclose(file);
    if (text)
        text[length] = '\0';
    return text;
}

static void apply_state(struct machine *machine)
{
    char *text = read_all(state_path);
    char *rest = NULL;
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest)) {
        char uuid[TEXT_LENGTH];
        unsigned int mode;
        struct device *device;
        if (sscanf(line, "compute-mode %95s %u", uuid, &mode) == 2 &&
            (device = machine_find(machine, uuid)))
            device->compute_mode = mode;
    }
    free(text);
}

int files_refresh(struct machine *machine)
{
    if (!machine_path[0])
        find_paths();
    struct version machine_now = look(machine_path), state_now = look(state_path);
    if (same(&machine_now, &machine_seen) && same(&state_now, &state_seen))
        return have_machine;
    machine_seen = machine_now;
    state_seen = state_now;
    char *text = read_all(machine_path);
    if (!text)
        return have_machine;
    struct machine fresh;
    int bad_line = machine_parse(text, &fresh);
    free(text);
    if (bad_line) {
        fprintf(stderr, "gpuslice's libnvidia-ml: %s:%d: not understood\n", machine_path, bad_line);
        machine_free(&fresh);
        return have_machine;
    }
    apply_state(&fresh);
    machine_free(machine);
    *machine = fresh;
    return have_machine = 1;
}

struct version files_version(void)
{
    return machine_seen;
}

// By inotify, so that an idle waiter costs nothing; by looking again where no more of those are
// to be had.
void files_wait(struct version seen, unsigned int timeout_ms)
{
    int changes = inotify_init1(IN_CLOEXEC);
    if (changes >= 0 &&
        inotify_add_watch(changes, machine_path, IN_ATTRIB | IN_MODIFY | IN_DELETE_SELF) >= 0) {
        // A file replaced by a rename changes too: its link count falls. One replaced before the
        // watch began is noticed now.
        struct version now = look(machine_path);
        struct pollfd waited = {changes, POLLIN, 0};
        if (same(&now, &seen))
            poll(&waited, 1, (int)timeout_ms);
    } else {
        unsigned int pause_ms = timeout_ms < LOOK_EVERY_MS ? timeout_ms : LOOK_EVERY_MS;
        struct timespec pause = {0, (long)pause_ms * 1000000L};
        nanosleep(&pause, NULL);
    }
    if (changes >= 0)
        close(changes);
}

// Line by line from the old state to the new one; the caller holds the lock file.
static int write_state(FILE *target, const char *uuid, unsigned int mode)
{
    char *text = read_all(state_path);
    char *rest = NULL;
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest)) {
        char other[TEXT_LENGTH];
        if (sscanf(line, "compute-mode %95s", other) == 1 && strcmp(other, uuid) != 0)
            fprintf(target, "%s\n", line);
    }
    free(text);
    return fprintf(target, "compute-mode %s %u\n", uuid, mode) > 0;
}

nvmlReturn_t files_keep_compute_mode(const char *uuid, unsigned int mode)
{
    char fresh_path[PATH_MAX + 32];
    snprintf(fresh_path, sizeof fresh_path, "%s.new", state_path);
    int lock = open(lock_path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (lock < 0)
        return errno == EACCES || errno == EROFS ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_UNKNOWN;
    int kept = 0;
    while (flock(lock, LOCK_EX) != 0 && errno == EINTR)
        ;
    FILE *file = fopen(fresh_path, "we");
    if (file) {
        kept = write_state(file, uuid, mode);
        kept = fclose(file) == 0 && kept && rename(fresh_path, state_path) == 0;
    }
    close(lock);
    return kept ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
