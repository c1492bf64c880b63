/*
 * `cudamempool serve-metrics`: an exporter for Prometheus, by libmicrohttpd. Owns the command line and the listening socket. One thread,
 * which answers requests and, between them, asks the processes each second to write what they have. Called by main.c.
 */
#include "metrics.h"
#include "tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: cudamempool serve-metrics --listen ADDRESS:PORT | --once\n"
    "\n"
    "Serves the figures of all processes that run with the option live:on to Prometheus, at /metrics.\n"
    "\n"
    "  --listen A:P      address, in numbers, and port: 127.0.0.1:9466, [::1]:9466; port 0 is a free one, which is printed\n"
    "  --once            print them and end, such as for the text files that node_exporter collects\n"
    "  --help            this text\n";

static int print_once(void)
{
    live_view view = {0};
    if (!live_read(&view))
        return tool_say(EXIT_DEVICE, "%s: %s", live_folder(), strerror(errno));
    metrics_write(&view, stdout);
    live_free(&view);
    return fflush(stdout) == 0 ? EXIT_FINE : tool_say(EXIT_DEVICE, "the output cannot be written");
}

#ifndef TOOL_MICROHTTPD

static int serve(const char *where)
{
    (void)where;
    return tool_say(EXIT_DEVICE, "built without libmicrohttpd: nothing can be served, but serve-metrics --once works");
}

#else

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

static volatile sig_atomic_t ended;

static void on_end(int number)
{
    (void)number;
    ended = 1;
}

/* ---- answers ------------------------------------------------------------------------------------------ */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type, char *text, size_t bytes,
                              enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(bytes, text, mode);
    if (response == NULL)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, MHD_HTTP_METHOD_GET);
    enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result say(struct MHD_Connection *connection, unsigned code, const char *type, const char *text)
{
    return answer(connection, code, type, (char *)(uintptr_t)text, strlen(text), MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result send_metrics(struct MHD_Connection *connection)
{
    live_view view = {0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = live_read(&view) ? open_memstream(&text, &bytes) : NULL;
    if (out != NULL)
        metrics_write(&view, out);
    bool whole = out != NULL && fclose(out) == 0;
    live_free(&view);
    if (whole)
        return answer(connection, MHD_HTTP_OK, METRICS_TYPE, text, bytes, MHD_RESPMEM_MUST_FREE);
    free(text);
    return say(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "text/plain", "the pages cannot be read\n");
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
                                  const char *upload, size_t *upload_bytes, void **seen)
{
    static int mark;
    (void)user;
    (void)version;
    (void)upload;
    if (*seen == NULL) { /* headers are there: the answer comes when the request is whole */
        *seen = &mark;
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        *upload_bytes = 0;
        return MHD_YES;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return say(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "text/plain", "only GET\n");
    if (strcmp(url, "/metrics") == 0)
        return send_metrics(connection);
    if (strcmp(url, "/") == 0)
        return say(connection, MHD_HTTP_OK, "text/html",
                   "<!DOCTYPE html><title>cudamempool</title><p><a href=\"/metrics\">metrics</a></p>\n");
    return say(connection, MHD_HTTP_NOT_FOUND, "text/plain", "there is /metrics\n");
}

/* ---- the socket --------------------------------------------------------------------------------------- */

/* A socket that listens where "ADDRESS:PORT" says, in numbers; -1 with a message. */
static int listen_at(const char *where)
{
    char address[64];
    const char *colon = strrchr(where, ':');
    size_t length = colon != NULL ? (size_t)(colon - where) : 0;
    bool bracketed = length > 2 && where[0] == '[' && where[length - 1] == ']';
    if (length == 0 || length >= sizeof address || colon[1] == '\0') {
        tool_say(EXIT_BAD_INPUT, "--listen takes ADDRESS:PORT, not '%s'", where);
        return -1;
    }
    snprintf(address, sizeof address, "%.*s", (int)(bracketed ? length - 2 : length), where + bracketed);
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    int error = getaddrinfo(address, colon + 1, &hints, &found);
    if (error != 0) {
        tool_say(EXIT_BAD_INPUT, "--listen '%s': %s", where, gai_strerror(error));
        return -1;
    }
    const int yes = 1;
    int file = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file >= 0)
        setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (file < 0 || bind(file, found->ai_addr, found->ai_addrlen) != 0 || listen(file, SOMAXCONN) != 0) {
        tool_say(EXIT_DEVICE, "%s: %s", where, strerror(errno));
        if (file >= 0)
            close(file);
        file = -1;
    }
    freeaddrinfo(found);
    return file;
}

static void say_where(int file)
{
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    char host[64] = "", port[16] = "";
    if (getsockname(file, (struct sockaddr *)&bound, &length) == 0)
        getnameinfo((struct sockaddr *)&bound, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    printf(strchr(host, ':') != NULL ? "http://[%s]:%s/metrics\n" : "http://%s:%s/metrics\n", host, port);
    fflush(stdout);
}

static int serve(const char *where)
{
    enum { MOST_CONNECTIONS = 64, IDLE_SECONDS = 30, WAIT_MS = 1000 };
    const struct sigaction end = {.sa_handler = on_end};
    int file = listen_at(where);
    if (file < 0)
        return EXIT_BAD_INPUT;
    struct MHD_Daemon *daemon =
        MHD_start_daemon(MHD_NO_FLAG, 0, NULL, NULL, on_request, NULL, MHD_OPTION_LISTEN_SOCKET, file, MHD_OPTION_CONNECTION_LIMIT,
                         (unsigned)MOST_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_END);
    if (daemon == NULL) {
        close(file);
        return tool_say(EXIT_DEVICE, "%s: the server does not start", where);
    }
    sigaction(SIGTERM, &end, NULL);
    sigaction(SIGINT, &end, NULL);
    signal(SIGPIPE, SIG_IGN);
    say_where(file);
    live_view view = {0};
    while (!ended) { /* reading asks, so that the next answer is no older than this */
        live_read(&view);
        if (MHD_run_wait(daemon, WAIT_MS) == MHD_NO && errno != EINTR)
            break;
    }
    live_free(&view);
    MHD_stop_daemon(daemon);
    return ended ? EXIT_FINE : tool_say(EXIT_DEVICE, "%s: the server stopped", where);
}

#endif

int cmd_serve_metrics(int argc, char **argv)
{
    tool_words words = {.argv = argv, .argc = argc, .at = 1};
    tool_option option;
    const char *where = NULL;
    bool once = false;
    int files = 0;
    while (tool_next_option(&words, &option, argv, &files)) { /* operands gather at the front, over words that have been read */
        if (strcmp(option.name, "--help") == 0 || strcmp(option.name, "-h") == 0)
            return fputs(usage, stdout) < 0 ? EXIT_DEVICE : EXIT_FINE;
        if (strcmp(option.name, "--once") == 0)
            once = true;
        else if (strcmp(option.name, "--listen") != 0)
            return tool_say(EXIT_BAD_INPUT, "there is no option '%s'; see 'cudamempool serve-metrics --help'", option.name);
        else if ((where = tool_option_value(&words, &option)) == NULL)
            return EXIT_BAD_INPUT;
    }
    if (files > 0 || once == (where != NULL))
        return tool_say(EXIT_BAD_INPUT, "serve-metrics needs --listen or --once, and no files; see 'cudamempool serve-metrics --help'");
    return once ? print_once() : serve(where);
}
