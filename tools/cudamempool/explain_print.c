/* Owns how an answer of `explain` is written: as text and as members of a JSON object. No state. Called by cmd_explain.c and cmd_inspect.c.
 */
#include "explain.h"
#include <stdio.h>

static void put_lines(json *out, const char *key, const explain_lines *lines)
{
    json_begin_array(out, key);
    for (size_t i = 0; i < lines->count; i++)
        json_string(out, NULL, lines->text[i]);
    json_end_array(out);
}

void explain_put(json *out, const cmi_oom_message *message, const explain_answer *answer)
{
    const cmi_shortage *figures = &message->figures;
    json_figure(out, "line", message->line != 0 ? message->line : CMI_FIGURE_UNKNOWN);
    json_string(out, "format", message->from_snapshot ? "snapshot" : cmi_oom_format_name(message->format));
    json_figure(out, "device", message->device >= 0 ? (uint64_t)message->device : CMI_FIGURE_UNKNOWN);
    json_string(out, "verdict", cmi_verdict_key(answer->verdict));
    json_string(out, "sentence", cmi_verdict_sentence(answer->verdict));
    json_figure(out, "request_bytes", figures->request);
    json_figure(out, "live_bytes", figures->live);
    json_figure(out, "idle_bytes", figures->idle);
    json_figure(out, "driver_free_bytes", figures->driver_free);
    json_figure(out, "total_bytes", figures->total);
    json_figure(out, "limit_bytes", figures->limit);
    json_figure(out, "outside_bytes", figures->outside);
    json_figure(out, "private_pool_bytes", figures->private_live);
    json_figure(out, "short_by_bytes", answer->short_by);
    json_integer(out, "doubt_bytes", figures->doubt);
    put_lines(out, "advice", &answer->helps);
    put_lines(out, "does_not_help", &answer->useless);
    put_lines(out, "missing", &answer->missing);
}

static void print_figure(const char *what, uint64_t bytes)
{
    char text[32];
    if (bytes != CMI_FIGURE_UNKNOWN)
        printf("  %-22s %12s\n", what, explain_size(bytes, text));
}

static void print_lines(const char *title, const explain_lines *lines)
{
    if (lines->count > 0)
        printf("  %s\n", title);
    for (size_t i = 0; i < lines->count; i++)
        printf("  - %s\n", lines->text[i]);
}

void explain_print(const char *file, const cmi_oom_message *message, const explain_answer *answer)
{
    const cmi_shortage *figures = &message->figures;
    char device[32] = "", text[32];
    if (message->device >= 0)
        snprintf(device, sizeof device, ", GPU %d", message->device);
    if (message->from_snapshot)
        printf("%s: snapshot%s: %s\n", file, device, cmi_verdict_key(answer->verdict));
    else
        printf("%s:%zu: %s%s: %s\n", file, message->line, cmi_oom_format_name(message->format), device, cmi_verdict_key(answer->verdict));
    printf("  %s%s.\n", answer->verdict == CMI_VERDICT_UNCLEAR ? "cannot tell: " : "", cmi_verdict_sentence(answer->verdict));
    print_figure("asked for", figures->request);
    print_figure("live", figures->live);
    print_figure("in private pools", figures->private_live);
    print_figure("idle in the allocator", figures->idle);
    print_figure("of that, pending", figures->pending);
    print_figure("free on the device", figures->driver_free);
    print_figure("held by others, about", figures->outside);
    print_figure("the device", figures->total);
    print_figure("the allocator's limit", figures->limit);
    if (answer->short_by != CMI_FIGURE_UNKNOWN && answer->short_by > 0)
        printf("  %-22s %12s%s\n", "short by", explain_size(answer->short_by, text),
               figures->doubt > 0 ? ", as far as the message rounds" : "");
    print_lines("missing:", &answer->missing);
    print_lines("what helps:", &answer->helps);
    print_lines("what does not:", &answer->useless);
    printf("\n");
}
