/*
 * Public functions that show what is there: snapshots, and names for what a thread allocates. Argument checks, then lib/inspect, which
 * takes the device locks itself. Owns nothing.
 */
#include "api/inspect.h"

#include "api/registry.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

cmpool_status cmi_inspect_snapshot(int file, cmi_snapshot_reason reason)
{
    cmi_device *devices[CMI_MAX_DEVICES];
    unsigned count = 0;
    for (int i = 0; i < CMI_MAX_DEVICES; i++) {
        devices[count] = cmi_registry_device(i);
        count += devices[count] != NULL;
    }
    int error = cmi_snapshot_write(file, devices, count, reason);
    return error == 0 ? CMPOOL_OK : error == ENOMEM ? CMPOOL_ERR_OUT_OF_HOST_MEMORY : CMPOOL_ERR_FILE;
}

cmpool_status cmi_inspect_snapshot_to(const char *pattern, const unsigned *number, cmi_snapshot_reason reason)
{
    char path[CMI_TEXT_BYTES];
    if (!cmi_path_fill(path, sizeof path, pattern, &(cmi_path_values){.process = true, .number = number})) {
        return CMPOOL_ERR_INVALID_ARGUMENT;
    }
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) {
        return CMPOOL_ERR_FILE;
    }
    cmpool_status status = cmi_inspect_snapshot(file, reason);
    return close(file) == 0 ? status : CMPOOL_ERR_FILE;
}

cmpool_status cmpool_snapshot_write(const char *path)
{
    cmpool_status status = cmi_registry_usable();
    if (status == CMPOOL_OK) {
        status = path && path[0] ? cmi_inspect_snapshot_to(path, NULL, CMI_SNAPSHOT_CALL) : CMPOOL_ERR_INVALID_ARGUMENT;
    }
    return cmi_registry_finish(status, "cmpool_snapshot_write");
}

cmpool_status cmpool_snapshot_write_fd(int file)
{
    cmpool_status status = cmi_registry_usable();
    if (status == CMPOOL_OK) {
        int flags = fcntl(file, F_GETFL);
        bool open_for_writing = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
        status = open_for_writing ? cmi_inspect_snapshot(file, CMI_SNAPSHOT_CALL) : CMPOOL_ERR_INVALID_ARGUMENT;
    }
    return cmi_registry_finish(status, "cmpool_snapshot_write_fd");
}

cmpool_status cmpool_tag_push(const char *name)
{
    cmpool_status status = cmi_registry_usable();
    if (status == CMPOOL_OK) {
        status = !name || !name[0] ? CMPOOL_ERR_INVALID_ARGUMENT : cmi_tag_push(name) ? CMPOOL_OK : CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    return cmi_registry_finish(status, "cmpool_tag_push");
}

cmpool_status cmpool_tag_pop(void)
{
    cmpool_status status = cmi_registry_usable();
    if (status == CMPOOL_OK && !cmi_tag_pop()) {
        status = CMPOOL_ERR_INVALID_ARGUMENT;
    }
    return cmi_registry_finish(status, "cmpool_tag_pop");
}
