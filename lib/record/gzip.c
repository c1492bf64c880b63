/*
 * gzip members with one stored block each (RFC 1951, 1952). Owns the table of the checksum, made once; no lock. Called by tracer.c.
 */
#include "record/gzip.h"

#include <pthread.h>
#include <string.h>

static uint32_t table[4][256]; /* table[k][b]: the checksum of byte b followed by k zero bytes */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t sum = i;
        for (unsigned bit = 0; bit < 8; bit++) {
            sum = sum >> 1 ^ (sum & 1 ? UINT32_C(0xedb88320) : 0);
        }
        table[0][i] = sum;
    }
    for (unsigned k = 1; k < 4; k++) {
        for (uint32_t i = 0; i < 256; i++) {
            table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
        }
    }
}

static uint32_t checksum(const unsigned char *at, size_t length)
{
    uint32_t sum = UINT32_MAX;
    for (; length >= 4; at += 4, length -= 4) {
        sum ^= at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        sum = table[3][sum & 255] ^ table[2][sum >> 8 & 255] ^ table[1][sum >> 16 & 255] ^ table[0][sum >> 24];
    }
    for (; length; at++, length--) {
        sum = sum >> 8 ^ table[0][(sum ^ *at) & 255];
    }
    return ~sum;
}

static void put(unsigned char *to, uint32_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) {
        to[i] = (unsigned char)(value >> 8 * i);
    }
}

void cmi_gzip_frame(const char *bytes, uint16_t length, unsigned char head[CMI_GZIP_HEAD], unsigned char tail[CMI_GZIP_TAIL])
{
    static const unsigned char fixed[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1}; /* no name, no time; the last block, stored */
    pthread_once(&once, make_table);
    memcpy(head, fixed, sizeof fixed);
    put(head + 11, length, 2);
    put(head + 13, (uint16_t)~length, 2);
    put(tail, checksum((const unsigned char *)bytes, length), 4);
    put(tail + 4, length, 4);
}
