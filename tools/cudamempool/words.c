/*
 * Owns the walk over the command line: options in any order between files, "--" ends them, "--name=value" and "--name value" alike.
 * No locks; one thread. Called by the subcommands.
 */
#include "tool.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tool_say(int status, const char *format, ...)
{
    va_list list;
    fputs("cudamempool: ", stderr);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    return status;
}

int tool_say_plain(int status, const char *line)
{
    fprintf(stderr, "%s\n", line);
    return status;
}

bool tool_next_option(tool_words *words, tool_option *option, char **files, int *file_count)
{
    while (words->at < words->argc) {
        char *word = words->argv[words->at++];
        if (words->only_files || word[0] != '-' || word[1] == '\0') {
            files[(*file_count)++] = word;
        } else if (strcmp(word, "--") == 0) {
            words->only_files = true;
        } else {
            char *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
            if (equals != NULL)
                *equals = '\0';
            *option = (tool_option){word, equals != NULL ? equals + 1 : NULL};
            return true;
        }
    }
    return false;
}

const char *tool_option_value(tool_words *words, const tool_option *option)
{
    if (option->value != NULL)
        return option->value;
    if (words->at < words->argc)
        return words->argv[words->at++];
    tool_say(EXIT_BAD_INPUT, "%s needs a value", option->name);
    return NULL;
}

bool tool_parse_count(const char *option, const char *text, uint64_t most, uint64_t *value)
{
    char *end;
    unsigned long long number = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : (end = (char *)(uintptr_t)text, 0);
    if (end == text || *end != '\0' || number > most) {
        tool_say(EXIT_BAD_INPUT, "%s takes a number from 0 to %llu, not '%s'", option, (unsigned long long)most, text);
        return false;
    }
    *value = number;
    return true;
}
