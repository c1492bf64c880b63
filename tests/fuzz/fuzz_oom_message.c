/* libFuzzer target: any text given to the reader of out-of-memory messages ends in messages whose lines and figures make sense. */
#include "trace/oom_message.h"
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cmi_oom_message *messages;
    size_t lines = 1, count = cmi_oom_messages_find((const char *)data, size, &messages);
    for (size_t i = 0; i < size; i++)
        lines += data[i] == '\n';
    if (count == SIZE_MAX || (count > 0) != (messages != NULL))
        abort();
    for (size_t i = 0; i < count; i++) {
        const cmi_shortage *figures = &messages[i].figures;
        cmi_verdict verdict = cmi_verdict_of(figures);
        if (messages[i].line == 0 || messages[i].line > lines || messages[i].format >= CMI_OOM_FORMATS || messages[i].device < -1)
            abort();
        if ((messages[i].format == CMI_OOM_BARE && figures->idle != CMI_FIGURE_UNKNOWN) || cmi_verdict_key(verdict) == NULL)
            abort();
        if (verdict == CMI_VERDICT_PACKING && cmi_shortage_bytes(figures) != 0)
            abort(); /* nothing may be missing where only the packing is bad */
    }
    free(messages);
    return 0;
}
