/* `cudamempool top`: the pools of all processes that show theirs. Owns the command line. One thread. */
#include "tool.h"
#include "top.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] = "Usage: cudamempool top [OPTION]...\n"
                            "\n"
                            "Shows the pools of all processes that run with the option live:on, and what changes in them.\n"
                            "\n"
                            "  --once            print a table and end\n"
                            "  --json            print one line of JSON with all counters and end\n"
                            "  --sort KEY        live (default), reserved, idle, rate, refusals or process\n"
                            "  --interval S      seconds between two looks, 0.1 to 60 (default 1)\n"
                            "  --help            this text\n"
                            "\n"
                            "Keys: arrows or j and k choose a pool, Enter shows all of it and Escape or Backspace the list again;\n"
                            "l, r, i, a, f and p sort by live, reserved, idle, allocation rate, refusals and process, R turns the order;\n"
                            "Space looks again at once, q ends.\n";

static bool parse_order(const char *word, top_list *list)
{
    for (int i = 0; i < TOP_ORDERS; i++)
        if (strcmp(word, top_order_names[i]) == 0) {
            list->order = (top_order)i;
            return true;
        }
    tool_say(EXIT_BAD_INPUT, "--sort: there is no order '%s'; see 'cudamempool top --help'", word);
    return false;
}

static bool parse_interval(const char *word, double *interval)
{
    char *end;
    double seconds = strtod(word, &end);
    if (end == word || *end != '\0' || !(seconds >= 0.1 && seconds <= 60)) {
        tool_say(EXIT_BAD_INPUT, "--interval takes seconds from 0.1 to 60, not '%s'", word);
        return false;
    }
    *interval = seconds;
    return true;
}

int cmd_top(int argc, char **argv)
{
    tool_words words = {.argv = argv, .argc = argc, .at = 1};
    tool_option option;
    top_list list = {0};
    double interval = 1;
    bool once = false, as_json = false;
    int files = 0;
    while (tool_next_option(&words, &option, argv, &files)) { /* operands gather at the front, over words that have been read */
        const char *value = NULL;
        bool sort = strcmp(option.name, "--sort") == 0, pace = strcmp(option.name, "--interval") == 0;
        if (strcmp(option.name, "--help") == 0 || strcmp(option.name, "-h") == 0)
            return fputs(usage, stdout) < 0 ? EXIT_DEVICE : EXIT_FINE;
        if (strcmp(option.name, "--once") == 0)
            once = true;
        else if (strcmp(option.name, "--json") == 0)
            as_json = true;
        else if (!sort && !pace)
            return tool_say(EXIT_BAD_INPUT, "there is no option '%s'; see 'cudamempool top --help'", option.name);
        else if ((value = tool_option_value(&words, &option)) == NULL || (sort && !parse_order(value, &list)) ||
                 (pace && !parse_interval(value, &interval)))
            return EXIT_BAD_INPUT;
    }
    if (files > 0)
        return tool_say(EXIT_BAD_INPUT, "top takes no files; see 'cudamempool top --help'");
    int code = !top_refresh(&list) ? tool_say(EXIT_DEVICE, "%s: %s", live_folder(), strerror(errno))
               : as_json           ? top_print_json(&list)
               : once              ? top_print(&list)
                                   : top_show(&list, interval);
    top_free(&list);
    return code;
}
