/* Stands for libc10.so: built once for each of libstdc++'s two forms of std::string. */
#include "fake_c10.h"

namespace c10
{
Error::Error(SourceLocation where, std::string text) : message(std::move(text)), context{where.function, where.file}
{
    shown = message + " (" + context[0] + ")";
}

const char *Error::what() const noexcept { return shown.c_str(); }

/* Its own use of the class puts table and type into the library, as in the real one. */
extern "C" __attribute__((visibility("default"))) void c10_throw(const char *text)
{
    throw OutOfMemoryError({__func__, __FILE__, 0}, text);
}
} // namespace c10
