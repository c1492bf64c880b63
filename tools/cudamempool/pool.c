/*
 * Owns how --conf becomes a pool. Options are strict here, those of the environment too: a figure measured with half of the options is not
 * what was asked for. No state. Called by the subcommands, the check in the first process, the opening in that of the run.
 */
#include "pool.h"
#include "base/options.h"
#include "tool.h"
#include <stdio.h>
#include <stdlib.h>

int pool_conf_check(pool_conf *conf, const device_words *words)
{
    cmi_options options;
    cmi_options_default(&options);
    int faults = cmi_options_parse(&options, getenv("CUDAMEMPOOL_CONF"), "CUDAMEMPOOL_CONF", NULL, 0);
    faults += cmi_options_parse(&options, conf->text, "--conf", NULL, 0);
    if (faults > 0)
        return EXIT_BAD_INPUT;
    conf->page_bytes = options.page_size > words->page_bytes ? options.page_size : words->page_bytes;
    conf->limit_bytes = options.limit;
    conf->headroom_bytes = options.headroom;
    return EXIT_FINE;
}

int pool_open(const pool_conf *conf, const device_words *words, const char *file, cmpool_t *pool)
{
    cmpool_config config = {.struct_size = sizeof config, .device = words->ordinal, .options = conf->text};
    cmpool_status status = cmpool_create(pool, &config);
    if (status == CMPOOL_OK)
        return EXIT_FINE;
    const cmpool_error *error = cmpool_last_error();
    int code = status == CMPOOL_ERR_BAD_OPTION || status == CMPOOL_ERR_INVALID_ARGUMENT ? EXIT_BAD_INPUT : EXIT_DEVICE;
    if (error->driver_code != 0)
        return tool_say(code, "%s: no pool: %s (%s gave %d)", file, cmpool_status_text(status), error->driver_call, error->driver_code);
    return tool_say(code, "%s: no pool: %s", file, cmpool_status_text(status));
}
