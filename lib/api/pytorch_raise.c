/*
 * PyTorch's exceptions, thrown from C: its libc10 exports the constructor, the virtual table and the type of what it throws, and the C++
 * runtime how to throw, all by the names and conventions of the Itanium C++ ABI. So no compiler and no header of PyTorch is needed, and one
 * library serves all its versions. Owns the addresses, found once per process; no lock is held while anything is thrown through here.
 */
#include "api/pytorch.h"

#include "base/base.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

/* c10::SourceLocation. C passes it by value as C++ does. */
typedef struct source_location {
    const char *function, *file;
    uint32_t line;
} source_location;

typedef struct exceptions {
    void *(*allocate)(size_t bytes);
    void (*throw)(void *object, void *type, void (*destroy)(void *));
    void (*make_string)(void *string, const char *text, size_t length, const void *allocator);
    void (*drop_string)(void *string);
    void (*make_error)(void *error, source_location where, void *message);
    void **error_table, **memory_table; /* virtual tables: two words, then complete destructor, deleting destructor, what() */
    void *error_type, *memory_type;
} exceptions;

enum { ERROR_BYTES = 4096, STRING_BYTES = 64 }; /* more than c10::Error and std::string take */

static exceptions found;
static _Atomic int state; /* 0: not looked for, 1: all found */
static pthread_mutex_t find_lock = PTHREAD_MUTEX_INITIALIZER;

/* Two forms of std::string, and with them of names: that of GCC 5 and later, and the one before, which PyTorch's older wheels are built
 * with. */
#define NEW_STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE"
typedef struct string_names {
    const char *make_error, *make_string, *drop_string;
} string_names;
static const string_names forms[] = {
    {"_ZN3c105ErrorC1ENS_14SourceLocationE" NEW_STRING "E", "_Z" NEW_STRING "C1EPKcmRKS3_", "_Z" NEW_STRING "D1Ev"},
    {"_ZN3c105ErrorC1ENS_14SourceLocationESs", "_ZNSsC1EPKcmRKSaIcE", "_ZNSsD1Ev"},
};

/* A symbol of a library that the process has loaded already, whoever can see it. */
static void *symbol_of(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = handle ? dlsym(handle, name) : NULL;
    if (handle) {
        dlclose(handle);
    }
    return symbol;
}

/* Which of PyTorch's libraries has a class's table depends on its version. */
static void *c10_symbol(const char *name)
{
    void *symbol = symbol_of("libc10.so", name);
    return symbol ? symbol : symbol_of("libc10_cuda.so", name);
}

#define ASSIGN(field, address)                        \
    do {                                              \
        void *assigned = (address);                   \
        memcpy(&(field), &assigned, sizeof assigned); \
    } while (0)

static bool find_all(exceptions *to)
{
    const string_names *form = NULL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms && !form; i++) {
        form = c10_symbol(forms[i].make_error) ? &forms[i] : NULL;
    }
    if (!form) {
        return false;
    }
    static const char runtime[] = "libstdc++.so.6";
    ASSIGN(to->allocate, symbol_of(runtime, "__cxa_allocate_exception"));
    ASSIGN(to->throw, symbol_of(runtime, "__cxa_throw"));
    ASSIGN(to->make_string, symbol_of(runtime, form->make_string));
    ASSIGN(to->drop_string, symbol_of(runtime, form->drop_string));
    ASSIGN(to->make_error, c10_symbol(form->make_error));
    ASSIGN(to->error_table, c10_symbol("_ZTVN3c105ErrorE"));
    ASSIGN(to->error_type, c10_symbol("_ZTIN3c105ErrorE"));
    ASSIGN(to->memory_table, c10_symbol("_ZTVN3c1016OutOfMemoryErrorE"));
    ASSIGN(to->memory_type, c10_symbol("_ZTIN3c1016OutOfMemoryErrorE"));
    return to->allocate && to->throw &&to->make_string && to->drop_string && to->error_table && to->error_type && to->memory_table &&
           to->memory_type;
}

int cmpool_torch_can_raise(void)
{
    if (!atomic_load_explicit(&state, memory_order_acquire)) {
        pthread_mutex_lock(&find_lock);
        exceptions all;
        if (!atomic_load_explicit(&state, memory_order_relaxed) && find_all(&all)) {
            found = all;
            atomic_store_explicit(&state, 1, memory_order_release);
        }
        pthread_mutex_unlock(&find_lock);
    }
    return atomic_load_explicit(&state, memory_order_acquire);
}

void cmi_torch_raise(const char *text, bool out_of_memory)
{
    _Alignas(16) unsigned char message[STRING_BYTES];
    if (!cmpool_torch_can_raise()) {
        return;
    }
    void **table = (out_of_memory ? found.memory_table : found.error_table) + 2;
    void (*destroy)(void *);
    memcpy(&destroy, table, sizeof destroy);
    char allocator; /* std::allocator has no members */
    void *error = found.allocate(ERROR_BYTES);
    memset(error, 0, ERROR_BYTES);
    found.make_string(message, text, strlen(text), &allocator);
    found.make_error(error, (source_location){"cmpool_torch_malloc", "libcudamempool", 0}, message);
    found.drop_string(message);
    memcpy(error, &table, sizeof table); /* derived from c10::Error, with nothing of its own but the table */
    found.throw(error, out_of_memory ? found.memory_type : found.error_type, destroy);
}
