/*
 * What a paused pool's pages held, until they are back. Owns pieces of pinned memory, or one piece and a file that has no name any more,
 * so that it goes with the process; and a checksum of each page where that is asked for. The driver copies between device and pinned
 * memory. Used by one thread at a time: the one that pauses or resumes the pool.
 */
#include "pinned/keep.h"

#include "pinned/pinned.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define PIECE_BYTES (UINT64_C(64) << 20)

typedef struct keep {
    cmi_keeper keeper; /* first: what the pool knows of it */
    const cmi_driver *driver;
    int file; /* -1: pinned memory */
    bool verify;
    uint64_t page_bytes;
    uint32_t page_count, piece_pages; /* pages in a piece */
    uint64_t *pieces;                 /* addresses; with a file the only one is what it is copied through */
    uint32_t piece_count;
    uint64_t check;      /* verify: room for a page that is read back */
    uint64_t *checksums; /* verify: one a page */
} keep;

static uint64_t checksum(const void *bytes, uint64_t count)
{
    const uint64_t *word = bytes, *end = word + count / sizeof *word;
    uint64_t sum = UINT64_C(0x9e3779b97f4a7c15);
    for (; word < end; word++) {
        sum = (sum ^ *word) * UINT64_C(0xff51afd7ed558ccd);
        sum ^= sum >> 32;
    }
    return sum;
}

static cmpool_status pin(cmi_pool *pool, uint64_t bytes, uint64_t *address)
{
    const cmi_pinned_ask ask = {.requested = bytes, .align = CMI_PINNED_STEP, .stream = CMI_NO_STREAM};
    return cmi_pinned_malloc(pool, &ask, address);
}

static uint32_t pieces_wanted(const keep *k)
{
    uint32_t pieces = k->page_count ? cmi_div_up(k->page_count, k->piece_pages) : 0;
    return k->file >= 0 && pieces > 1 ? 1 : pieces;
}

static cmpool_status open_keep(cmi_keeper *keeper, cmi_pool *pool, uint32_t pages)
{
    keep *k = (keep *)keeper;
    if (!pages) {
        return CMPOOL_OK;
    }
    k->driver = pool->device->driver;
    k->page_bytes = pool->device->page_bytes;
    k->page_count = pages;
    k->piece_pages = (uint32_t)cmi_max_u64(PIECE_BYTES / k->page_bytes, 1);
    uint32_t most = pieces_wanted(k);
    k->pieces = cmi_meta_alloc(most * sizeof *k->pieces);
    k->checksums = k->verify ? cmi_meta_alloc(pages * sizeof *k->checksums) : NULL;
    bool ready = k->pieces && (k->checksums || !k->verify);
    cmpool_status status = ready ? CMPOOL_OK : CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    for (uint32_t left = pages; status == CMPOOL_OK && k->piece_count < most; k->piece_count++) {
        uint32_t here = left < k->piece_pages ? left : k->piece_pages;
        status = pin(pool, here * k->page_bytes, &k->pieces[k->piece_count]);
        if (status != CMPOOL_OK) {
            break;
        }
        left -= here;
    }
    return status == CMPOOL_OK && k->verify ? pin(pool, k->page_bytes, &k->check) : status;
}

static void close_keep(cmi_keeper *keeper, cmi_pool *pool)
{
    keep *k = (keep *)keeper;
    for (uint32_t i = 0; i < k->piece_count; i++) {
        (void)cmi_pinned_free(pool, k->pieces[i], CMI_NO_STREAM, NULL);
    }
    if (k->check) {
        (void)cmi_pinned_free(pool, k->check, CMI_NO_STREAM, NULL);
    }
    if (k->file >= 0) {
        close(k->file);
    }
    cmi_meta_free(k->pieces, pieces_wanted(k) * sizeof *k->pieces);
    cmi_meta_free(k->checksums, k->page_count * sizeof *k->checksums);
    cmi_meta_free(k, sizeof *k);
}

/* Host address of a page: its own place, or, with a file, its place in the piece that begins with page `first`. */
static char *place_of(const keep *k, uint32_t first, uint32_t page)
{
    uint32_t piece = k->file >= 0 ? 0 : page / k->piece_pages;
    uint32_t at = k->file >= 0 ? page - first : page % k->piece_pages;
    return (char *)(uintptr_t)(k->pieces[piece] + at * k->page_bytes);
}

static uint32_t pages_together(const keep *k, uint32_t page, uint32_t count)
{
    uint32_t room = k->file >= 0 ? k->piece_pages : k->piece_pages - page % k->piece_pages;
    return count < room ? count : room;
}

/* All of it to or from the file. */
static cmpool_status transfer(const keep *k, bool write, char *bytes, uint64_t count, uint64_t offset)
{
    while (count) {
        ssize_t moved = write ? pwrite(k->file, bytes, count, (off_t)offset) : pread(k->file, bytes, count, (off_t)offset);
        if (moved <= 0 && !(moved < 0 && errno == EINTR)) {
            return CMPOOL_ERR_FILE;
        }
        if (moved > 0) {
            bytes += moved;
            count -= (uint64_t)moved;
            offset += (uint64_t)moved;
        }
    }
    return CMPOOL_OK;
}

static cmpool_status save(cmi_keeper *keeper, uint64_t address, uint32_t first, uint32_t count)
{
    keep *k = (keep *)keeper;
    cmpool_status status = CMPOOL_OK;
    for (uint32_t page = first, some; page < first + count && status == CMPOOL_OK; page += some) {
        some = pages_together(k, page, first + count - page);
        char *host = place_of(k, page, page);
        CUresult code = k->driver->MemcpyDtoH(host, address + (page - first) * k->page_bytes, some * k->page_bytes);
        if (code != CUDA_SUCCESS) {
            return cmi_driver_status("cuMemcpyDtoH", code);
        }
        for (uint32_t i = 0; i < some && k->verify; i++) {
            k->checksums[page + i] = checksum(host + i * k->page_bytes, k->page_bytes);
        }
        if (k->file >= 0) {
            status = transfer(k, true, host, some * k->page_bytes, page * k->page_bytes);
        }
    }
    return status;
}

/* What was saved, and what has arrived on the device. */
static cmpool_status verify_page(const keep *k, const char *host, uint64_t address, uint32_t page)
{
    char *check = (char *)(uintptr_t)k->check;
    if (checksum(host, k->page_bytes) != k->checksums[page]) {
        return CMPOOL_ERR_CONTENTS;
    }
    CUresult code = k->driver->MemcpyDtoH(check, address, k->page_bytes);
    if (code != CUDA_SUCCESS) {
        return cmi_driver_status("cuMemcpyDtoH", code);
    }
    return checksum(check, k->page_bytes) == k->checksums[page] ? CMPOOL_OK : CMPOOL_ERR_CONTENTS;
}

static cmpool_status restore(cmi_keeper *keeper, uint64_t address, uint32_t first, uint32_t count)
{
    const keep *k = (const keep *)keeper;
    cmpool_status status = CMPOOL_OK;
    for (uint32_t page = first, some; page < first + count && status == CMPOOL_OK; page += some) {
        some = pages_together(k, page, first + count - page);
        char *host = place_of(k, page, page);
        uint64_t to = address + (page - first) * k->page_bytes;
        if (k->file >= 0) {
            status = transfer(k, false, host, some * k->page_bytes, page * k->page_bytes);
        }
        if (status == CMPOOL_OK) {
            status = cmi_driver_status("cuMemcpyHtoD", k->driver->MemcpyHtoD(to, host, some * k->page_bytes));
        }
        for (uint32_t i = 0; i < some && k->verify && status == CMPOOL_OK; i++) {
            status = verify_page(k, host + i * k->page_bytes, to + i * k->page_bytes, page + i);
        }
    }
    return status;
}

cmpool_status cmi_keep_new(cmi_keeper **keeper, const char *file, bool verify)
{
    keep *k = cmi_meta_alloc(sizeof *k);
    if (!k) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    *k = (keep){.keeper = {open_keep, save, restore, close_keep}, .file = -1, .verify = verify};
    if (file) {
        k->file = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (k->file < 0) {
            cmi_meta_free(k, sizeof *k);
            return CMPOOL_ERR_FILE;
        }
        unlink(file);
    }
    *keeper = &k->keeper;
    return CMPOOL_OK;
}
