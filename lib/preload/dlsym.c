/*
 * The exported dlsym. Owns the pointer to the next dlsym in search order, found on first use without a lock (each finder finds the
 * same). Called by every look-up in the process, early and under the loader's locks: for names that are not the driver's it only
 * compares three bytes and jumps on.
 *
 * It jumps instead of calling: dlsym(RTLD_NEXT) means "behind the caller", and the caller must stay the program. Compilers do not promise
 * tail calls, so this is assembly. Both versions of the symbol are exported, since a look-up with one version does not see the other, and
 * since other interposers ask for them.
 */
#include "preload/preload.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

typedef void *(*dlsym_function)(void *, const char *);

/* Called from the assembly. */
void *cmi_preload_dlsym_filter(void *handle, const char *name, const void *caller);
extern _Atomic(dlsym_function) cmi_preload_next;
_Atomic(dlsym_function) cmi_preload_next;

#if defined(__x86_64__)
#define OLDEST_VERSION "GLIBC_2.2.5"
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden cmi_preload_dlsym\n"
        ".globl cmi_preload_dlsym\n"
        ".type cmi_preload_dlsym, @function\n"
        "cmi_preload_dlsym:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rsi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    movq 24(%rsp), %rdx\n" /* where the caller goes on */
        "    call cmi_preload_dlsym_filter\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rsi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    testq %rax, %rax\n"
        "    jnz 1f\n"
        "    jmpq *cmi_preload_next(%rip)\n"
        "1:  ret\n"
        "    .cfi_endproc\n"
        ".size cmi_preload_dlsym, .-cmi_preload_dlsym\n");
#elif defined(__aarch64__)
#define OLDEST_VERSION "GLIBC_2.17"
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden cmi_preload_dlsym\n"
        ".globl cmi_preload_dlsym\n"
        ".type cmi_preload_dlsym, %function\n"
        "cmi_preload_dlsym:\n"
        "    .cfi_startproc\n"
        "    hint #34\n" /* bti c */
        "    stp x29, x30, [sp, #-32]!\n"
        "    .cfi_adjust_cfa_offset 32\n"
        "    .cfi_rel_offset x29, 0\n"
        "    .cfi_rel_offset x30, 8\n"
        "    stp x0, x1, [sp, #16]\n"
        "    mov x2, x30\n" /* where the caller goes on */
        "    bl cmi_preload_dlsym_filter\n"
        "    mov x16, x0\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #32\n"
        "    .cfi_adjust_cfa_offset -32\n"
        "    .cfi_restore x29\n"
        "    .cfi_restore x30\n"
        "    cbnz x16, 1f\n"
        "    adrp x16, cmi_preload_next\n"
        "    ldr x16, [x16, :lo12:cmi_preload_next]\n"
        "    br x16\n"
        "1:  mov x0, x16\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size cmi_preload_dlsym, .-cmi_preload_dlsym\n");
#else
#error "the trampoline of dlsym is written for x86-64 and aarch64"
#endif
__asm__(".globl cmi_preload_dlsym_new\n.set cmi_preload_dlsym_new, cmi_preload_dlsym\n.symver cmi_preload_dlsym_new, dlsym@@GLIBC_2.34\n"
        ".globl cmi_preload_dlsym_old\n.set cmi_preload_dlsym_old, cmi_preload_dlsym\n.symver cmi_preload_dlsym_old, dlsym@" OLDEST_VERSION
        "\n");

static dlsym_function next_dlsym(void)
{
    dlsym_function next = atomic_load_explicit(&cmi_preload_next, memory_order_acquire);
    if (!next) {
        void *found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (!found) {
            found = dlvsym(RTLD_NEXT, "dlsym", OLDEST_VERSION);
        }
        dlsym_function libc_dlsym;
        memcpy(&libc_dlsym, &found, sizeof found);
        found = libc_dlsym(RTLD_NEXT, "dlsym"); /* also finds interposers behind this one whose dlsym has no version */
        memcpy(&next, &found, sizeof found);
        atomic_store_explicit(&cmi_preload_next, next, memory_order_release);
    }
    return next;
}

void *cmi_preload_next_dlsym(void *handle, const char *name) { return next_dlsym()(handle, name); }

/* NULL: not a case for this library, jump on. */
void *cmi_preload_dlsym_filter(void *handle, const char *name, const void *caller)
{
    dlsym_function next = next_dlsym();
    if (!name || name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z') {
        return NULL;
    }
    /* In search order this library comes before the driver, so the ordinary answer is ours already. */
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || !cmi_preload_is_hooked(name) || cmi_preload_is_inside(caller)) {
        return NULL;
    }
    void *function = next(handle, name);
    if (!function || !cmi_preload_adopt(function)) {
        return NULL;
    }
    void *replacement = cmi_preload_replacement(function);
    return replacement != function ? replacement : NULL;
}
