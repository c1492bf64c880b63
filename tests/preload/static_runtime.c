/*
 * A program with NVIDIA's own runtime linked in, as nvcc links by default. It cannot run on the simulated driver, whose private tables are
 * not imitated, but it looks everything up before it finds out. What it then holds, in its own data and heap, must be the replacements.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int cudaFree(void *pointer);

enum { MOST = 64 };

static const char *const hooked[] = {
#define PRELOAD_HOOK(name, params) #name,
#include "preload/hooks.def"
};
enum { COUNT = sizeof hooked / sizeof *hooked };
_Static_assert(sizeof hooked / sizeof *hooked < MOST, "");

/* Addresses are kept inverted, so that this program's own copies are not found. */
static uintptr_t ours[MOST], the_drivers[MOST];
static int held[MOST], missed[MOST];

static void look(const uintptr_t *from, const uintptr_t *end)
{
    for (; from < end; from++) {
        for (int i = 0; i < COUNT; i++) {
            held[i] += *from == ~ours[i];
            missed[i] += *from == ~the_drivers[i];
        }
    }
}

/* The program's writable segments and its heap: lines of the map that name the program or the heap, and what follows the program's last. */
static void look_everywhere(const char *program)
{
    char line[1024];
    FILE *map = fopen("/proc/self/maps", "r");
    const char *slash = strrchr(program, '/');
    int behind = 0;
    while (map && fgets(line, sizeof line, map)) {
        unsigned long from, end;
        char rights[8];
        int mine = strstr(line, slash ? slash : program) != NULL;
        int nameless = strchr(line, '/') == NULL && strchr(line, '[') == NULL;
        if (sscanf(line, "%lx-%lx %7s", &from, &end, rights) == 3 && rights[0] == 'r' && rights[1] == 'w' &&
            (mine || (behind && nameless) || strstr(line, "[heap]"))) {
            look((const uintptr_t *)from, (const uintptr_t *)end);
        }
        behind = mine;
    }
    if (map) {
        fclose(map);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    void *c_library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    void *found = c_library ? dlvsym(c_library, "dlsym", "GLIBC_2.34") : NULL, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!found || !driver) {
        return 77;
    }
    void *(*original)(void *, const char *);
    memcpy(&original, &found, sizeof found);
    printf("cudaFree: %d\n", cudaFree(NULL));
    for (int i = 0; i < COUNT; i++) {
        ours[i] = ~(uintptr_t)dlsym(driver, hooked[i]);
        the_drivers[i] = ~(uintptr_t)original(driver, hooked[i]);
    }
    look_everywhere(argv[0]);
    int all = 0, wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        all += held[i] != 0;
        wrong += missed[i] != 0;
        if (missed[i]) {
            printf("%s is the driver's own\n", hooked[i]);
        }
    }
    printf("%d replacements are held, %d functions of the driver that should be\n", all, wrong);
    return all < 20 || wrong;
}
