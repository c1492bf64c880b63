/* The frame that makes a gzip member of bytes as they are (one stored block), so that no compressor is needed in the library. */
#ifndef CMI_GZIP_H
#define CMI_GZIP_H

#include <stddef.h>
#include <stdint.h>

enum { CMI_GZIP_HEAD = 15, CMI_GZIP_TAIL = 8 };

/* What goes before and behind `length` bytes. Members one behind the other are a gzip file. */
void cmi_gzip_frame(const char *bytes, uint16_t length, unsigned char head[CMI_GZIP_HEAD], unsigned char tail[CMI_GZIP_TAIL]);

#endif
