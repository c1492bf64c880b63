/* PyTorch's exceptions as its headers declare them, as far as they matter to who throws and who catches: names, bases, constructor. */
#ifndef FAKE_C10_H
#define FAKE_C10_H

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace c10
{
struct SourceLocation {
    const char *function;
    const char *file;
    uint32_t line;
};

class __attribute__((visibility("default"))) Error : public std::exception
{
    std::string message;
    std::vector<std::string> context;
    std::string shown;

  public:
    Error(SourceLocation where, std::string text);
    const char *what() const noexcept override;
};

class __attribute__((visibility("default"))) OutOfMemoryError : public Error
{
    using Error::Error;
};

} // namespace c10

#endif
