/*
 * Call stacks, each kept once and called by a number. Off unless asked for, and then a stack is taken of every allocation or of every Nth.
 * Kept for the life of the process, up to a bound.
 */
#ifndef CMI_STACKS_H
#define CMI_STACKS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { CMI_STACK_FRAMES = 32 };

extern _Atomic uint32_t cmi_stack_every __attribute__((visibility("hidden"))); /* 0: off */

/* Take the stack of every Nth request from now on, in the whole process; 0: of none. What the unwinder has to load is loaded here. */
void cmi_stacks_set(uint32_t every);
/* Number of the calling thread's stack, or 0: not its turn, or no room. No lock held. */
uint32_t cmi_stack_take(void);
static inline uint32_t cmi_stack_here(void)
{
    return __builtin_expect(atomic_load_explicit(&cmi_stack_every, memory_order_relaxed) != 0, 0) ? cmi_stack_take() : 0;
}

/* Stacks so far (numbers 1 to count), and the frames of one: return addresses, innermost first. They never change. */
uint32_t cmi_stack_count(void);
size_t cmi_stack_get(uint32_t stack, void *const **frames);

#endif
