/*
 * Names and texts of status codes, from status.def. No state, no lock; called by users and tools.
 */
#include <cudamempool/cudamempool.h>

const char *cmpool_status_name(cmpool_status status)
{
    switch (status) {
#define CMPOOL_STATUS(name, number, text) \
    case CMPOOL_##name:                   \
        return "CMPOOL_" #name;
#include <cudamempool/status.def>
#undef CMPOOL_STATUS
    }
    return "CMPOOL_UNKNOWN";
}

const char *cmpool_status_text(cmpool_status status)
{
    switch (status) {
#define CMPOOL_STATUS(name, number, text) \
    case CMPOOL_##name:                   \
        return text;
#include <cudamempool/status.def>
#undef CMPOOL_STATUS
    }
    return "no such status";
}
