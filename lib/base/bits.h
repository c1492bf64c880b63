/* Bit tricks on unsigned integers. All inline, no state. */
#ifndef CMI_BITS_H
#define CMI_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CMI_ARRAY_LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static inline unsigned cmi_log2_floor(uint64_t x) { return 63u - (unsigned)__builtin_clzll(x); } /* x > 0 */
static inline unsigned cmi_lowest_bit(uint64_t x) { return (unsigned)__builtin_ctzll(x); }       /* x > 0 */
static inline bool cmi_is_power2(uint64_t x) { return x != 0 && (x & (x - 1)) == 0; }
static inline uint64_t cmi_round_up(uint64_t x, uint64_t power2) { return (x + power2 - 1) & ~(power2 - 1); }
static inline uint64_t cmi_round_down(uint64_t x, uint64_t power2) { return x & ~(power2 - 1); }
static inline uint64_t cmi_div_up(uint64_t x, uint64_t y) { return x / y + (x % y != 0); }
static inline uint64_t cmi_min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t cmi_max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

#endif
