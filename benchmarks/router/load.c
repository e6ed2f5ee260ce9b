/* A load generator for measuring routers: one thread, epoll, HTTP/1.1 with keep-alive.
 *
 * usage: load closed  PORT KEY CONNECTIONS SECONDS           one request after the other on each connection
 *        load streams PORT KEY STREAMS SECONDS GAP_US        long streams, and beside them a prober that asks for short
 *                                                            ones: the time to the first byte
 *        load stall   PORT KEY ENGINE_PORT SECONDS           a client that stops reading a flood
 *        load leave   PORT KEY ENGINE_PORT TIMES GAP_US      a client that closes in mid-stream, once per try
 *
 * Prints `begin` when everything is warm and the window opens, `end` when it closes, and then its figures as one line of
 * JSON. The engine is the mock beside this file: its /stats are asked directly, and its clock is this one's.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD, LENGTH, SIZE, DATA, DATA_END, TRAILER, DONE }; /* where in an answer the reader is */

struct conn {
    int fd, part, status, is_prober, saw_newline, line_empty;
    long left, events; /* `left`: of a body or a chunk; `events`: blank lines in the decoded body */
    uint64_t sent_ns, first_ns, last_ns;
    size_t head_size;
    char head[4096];
};

struct samples { uint32_t *us; size_t count, room; };

static int epoll_fd, port;
static const char *key;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "cannot go on: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void note(struct samples *s, uint64_t ns) {
    if (s->count == s->room) s->us = realloc(s->us, (s->room = s->room * 2 + 4096) * sizeof *s->us);
    s->us[s->count++] = ns / 1000;
}

static int by_size(const void *a, const void *b) { return (*(uint32_t *)a > *(uint32_t *)b) - (*(uint32_t *)a < *(uint32_t *)b); }

static uint32_t quantile(struct samples *s, double q) {
    if (!s->count) return 0;
    qsort(s->us, s->count, sizeof *s->us, by_size);
    return s->us[(size_t)(q * (s->count - 1))];
}

/* -- requests --------------------------------------------------------------------------------------------------- */

/* A chat of the usual size, about 1 KB: what the engine shall do stands in the last message. */
static size_t chat(char *into, int streamed, const char *wish) {
    static const char padding[] =
        "You are a careful assistant. Answer in the language of the question, in short sentences, and say when something "
        "is not known. Units are metric. Dates are written as year, month and day. ";
    char body[8192];
    int size = sprintf(body,
                       "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"%s%s%s%s\"},"
                       "{\"role\":\"user\",\"content\":\"%s\"}],\"temperature\":0.7,\"max_tokens\":512%s}",
                       padding, padding, padding, padding, wish, streamed ? ",\"stream\":true" : "");
    return sprintf(into,
                   "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n"
                   "Accept: application/json\r\nUser-Agent: bench/1\r\nContent-Type: application/json\r\n"
                   "Content-Length: %d\r\n\r\n%s", port, key, size, body);
}

static int dial(int to) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(to), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (fd < 0 || connect(fd, (void *)&address, sizeof address)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

static void dial_watched(struct conn *c) {
    c->fd = dial(port);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
}

static void ask(struct conn *c, const char *request, size_t size) {
    c->part = HEAD;
    c->head_size = c->events = c->saw_newline = c->status = 0;
    c->first_ns = 0;
    c->sent_ns = now_ns();
    if (send(c->fd, request, size, MSG_NOSIGNAL) != (ssize_t)size) fail("send");
}

/* -- answers ---------------------------------------------------------------------------------------------------- */

static const char *read_head(struct conn *c, const char *at, const char *end) {
    while (at < end && c->head_size < sizeof c->head - 1) {
        c->head[c->head_size++] = *at++;
        if (c->head_size < 4 || memcmp(c->head + c->head_size - 4, "\r\n\r\n", 4)) continue;
        c->head[c->head_size] = 0;
        c->status = atoi(c->head + 9);
        char *length = strcasestr(c->head, "\r\ncontent-length:");
        if (c->status == 100) { c->head_size = 0; continue; }
        c->left = length ? atol(length + 17) : 0;
        c->part = length ? (c->left ? LENGTH : DONE) : SIZE;
        return at;
    }
    if (at < end) fail("an answer's head is too long");
    return at;
}

static void count_events(struct conn *c, const char *at, long size) {
    for (const char *end = at + size; at < end; at++) {
        if (*at != '\n') {
            const char *next = memchr(at, '\n', end - at);
            c->saw_newline = 0;
            if (!next) return;
            at = next;
        }
        c->events += c->saw_newline;
        c->saw_newline = !c->saw_newline;
    }
}

static void take(struct conn *c, const char *at, long size) {
    const char *end = at + size;
    if (!c->first_ns) c->first_ns = now_ns();
    while (at < end && c->part != DONE) {
        long n = c->left < end - at ? c->left : end - at;
        switch (c->part) {
        case HEAD: at = read_head(c, at, end); break;
        case LENGTH:
        case DATA:
            count_events(c, at, n);
            at += n;
            if (!(c->left -= n)) c->part = c->part == LENGTH ? DONE : DATA_END;
            break;
        case DATA_END: /* CR LF after a chunk */
            if (*at++ == '\n') { c->part = SIZE; c->left = 0; }
            break;
        case SIZE: {
            char digit = *at++;
            if (digit == '\n') { c->part = c->left ? DATA : TRAILER; c->line_empty = 1; }
            else if (digit >= '0' && digit <= '9') c->left = c->left * 16 + digit - '0';
            else if ((digit | 32) >= 'a' && (digit | 32) <= 'f') c->left = c->left * 16 + (digit | 32) - 'a' + 10;
            break;
        }
        case TRAILER:
            if (*at == '\n' && c->line_empty) c->part = DONE;
            c->line_empty = *at == '\n' || (*at == '\r' && c->line_empty);
            at++;
        }
    }
}

static char buffer[262144];

/* Read what is there; the number of bytes, 0 when the other side closed. */
static long receive(struct conn *c) {
    long n = recv(c->fd, buffer, sizeof buffer, 0);
    if (n <= 0) return 0;
    take(c, buffer, n);
    return n;
}

static void say(const char *word) { puts(word); fflush(stdout); }

/* -- closed: one request after the other ------------------------------------------------------------------------- */

static void closed(int connections, double seconds) {
    char request[8192];
    size_t size = chat(request, 0, "Say something.");
    struct conn *all = calloc(connections, sizeof *all);
    struct samples took = {0};
    struct epoll_event events[256];
    long requests = 0, errors = 0, reconnects = 0;
    for (int i = 0; i < connections; i++) { dial_watched(&all[i]); ask(&all[i], request, size); }
    uint64_t opens = now_ns() + 3e8, from = 0, until = 0;
    while (!until || now_ns() < until) {
        int count = epoll_wait(epoll_fd, events, 256, 100);
        for (int i = 0; i < count; i++) {
            struct conn *c = events[i].data.ptr;
            if (!receive(c)) { /* closed between two requests is allowed, in an answer it is an error */
                errors += c->part != HEAD || c->head_size;
                reconnects++;
                close(c->fd);
                dial_watched(c);
                ask(c, request, size);
            } else if (c->part == DONE) {
                uint64_t now = now_ns();
                if (from) {
                    requests++;
                    errors += c->status != 200;
                    note(&took, now - c->sent_ns);
                }
                ask(c, request, size);
            }
        }
        if (!from && now_ns() >= opens) { from = now_ns(); until = from + seconds * 1e9; say("begin"); }
    }
    double window = (now_ns() - from) / 1e9;
    say("end");
    printf("{\"requests\":%ld,\"errors\":%ld,\"reconnects\":%ld,\"seconds\":%.4f,\"p50_us\":%u,\"p99_us\":%u}\n", requests,
           errors, reconnects, window, quantile(&took, .5), quantile(&took, .99));
}

/* -- streams, and a prober beside them --------------------------------------------------------------------------- */

static void streams(int wanted, double seconds, long gap_us) {
    char request[8192], probe[8192], wish[64];
    sprintf(wish, "chunks=100000000 gap_us=%ld", gap_us);
    size_t size = chat(request, 1, wish), probe_size = chat(probe, 1, "chunks=2 gap_us=1000");
    struct conn *all = calloc(wanted + 1, sizeof *all), *prober = &all[wanted];
    struct samples gaps = {0}, firsts = {0};
    struct epoll_event events[256];
    long chunks = 0, errors = 0, probes = 0;
    int open = 0;
    /* Opened over one second, so that their chunks do not all come at once; then half a second to settle. */
    uint64_t began = now_ns(), settled = began + 15e8, from = 0, until = 0, next_probe = settled;
    prober->is_prober = 1;
    while (!until || now_ns() < until) {
        for (uint64_t now = now_ns(); open < wanted && now >= began + open * 1e9 / wanted; open++) {
            dial_watched(&all[open]);
            ask(&all[open], request, size);
        }
        if (from && now_ns() >= next_probe && (prober->fd == 0 || prober->part == DONE)) {
            if (prober->fd == 0) dial_watched(prober);
            ask(prober, probe, probe_size);
            next_probe = now_ns() + 20e6; /* few: they are work too */
        }
        int count = epoll_wait(epoll_fd, events, 256, 1);
        for (int i = 0; i < count; i++) {
            struct conn *c = events[i].data.ptr;
            long before = c->events, seen = c->first_ns;
            if (!receive(c)) {
                errors++;
                epoll_ctl(epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
                continue;
            }
            if (c->is_prober) {
                if (!seen) note(&firsts, c->first_ns - c->sent_ns);
                probes += c->part == DONE;
                errors += c->part == DONE && c->status != 200;
                continue;
            }
            uint64_t now = now_ns();
            errors += c->part == DONE;
            if (from && c->last_ns && c->events > before) note(&gaps, now - c->last_ns);
            if (from) chunks += c->events - before;
            c->last_ns = now;
        }
        if (!from && now_ns() >= settled) { from = now_ns(); until = from + seconds * 1e9; say("begin"); }
    }
    double window = (now_ns() - from) / 1e9;
    say("end");
    int streaming = 0;
    for (int i = 0; i < wanted; i++) streaming += all[i].events > 0 && all[i].part != DONE;
    printf("{\"streams\":%d,\"chunks\":%ld,\"errors\":%ld,\"seconds\":%.4f,\"gap_p50_us\":%u,\"gap_p99_us\":%u,"
           "\"probes\":%ld,\"first_p50_us\":%u,\"first_p99_us\":%u}\n", streaming, chunks, errors, window,
           quantile(&gaps, .5), quantile(&gaps, .99), probes, quantile(&firsts, .5), quantile(&firsts, .99));
}

/* -- what the engine saw ----------------------------------------------------------------------------------------- */

static void ask_stats(int fd, char *text, size_t room) {
    static const char request[] = "GET /stats HTTP/1.1\r\nHost: x\r\n\r\n";
    if (send(fd, request, sizeof request - 1, MSG_NOSIGNAL) < 0) fail("send");
    long n = recv(fd, text, room - 1, 0); /* small and written at once */
    if (n <= 0) fail("the engine's stats");
    text[n] = 0;
}

static long long stat_of(const char *text, const char *name) {
    char *at = strstr(text, name);
    if (!at) fail(name);
    return atoll(at + strlen(name) + 2);
}

static void stall(int engine_port, double seconds) {
    char request[8192], text[2048];
    int engine = dial(engine_port);
    ask_stats(engine, text, sizeof text);
    long long before = stat_of(text, "pushed");
    struct conn c = {.fd = dial(port)};
    ask(&c, request, chat(request, 1, "chunks=20000 gap_us=0 bytes=16384"));
    long read = receive(&c);
    say("begin");
    usleep(seconds * 1e6);
    ask_stats(engine, text, sizeof text);
    say("end");
    printf("{\"status\":%d,\"ahead_bytes\":%lld}\n", c.status, stat_of(text, "pushed") - before - read);
}

/* A try counts as missed when the engine has not seen it after a second; after three of them no more are made. */
static void leave(int engine_port, int times, long gap_us) {
    char request[8192], text[2048], wish[64];
    int engine = dial(engine_port), missed = 0, tries = 0;
    struct samples took = {0};
    sprintf(wish, "chunks=100000000 gap_us=%ld", gap_us);
    for (uint64_t patience = now_ns() + 5e9; now_ns() < patience; usleep(10000)) { /* earlier loads' clients */
        ask_stats(engine, text, sizeof text);
        if (stat_of(text, "\"open") == 0) break;
    }
    say("begin");
    for (; tries < times && missed < 3; tries++) {
        struct conn c = {.fd = dial(port)};
        ask(&c, request, chat(request, 1, wish));
        while (!c.events && receive(&c)) {}
        if (c.status != 200) fail("no stream to leave");
        usleep(20000);
        uint64_t closed_ns = now_ns(), seen_ns;
        close(c.fd);
        do {
            usleep(1000);
            ask_stats(engine, text, sizeof text);
            seen_ns = stat_of(text, "left_at_ns");
        } while (seen_ns < closed_ns && now_ns() < closed_ns + 1e9);
        if (seen_ns < closed_ns) missed++;
        else note(&took, seen_ns - closed_ns);
    }
    say("end");
    printf("{\"times\":%d,\"missed\":%d,\"p50_us\":%u,\"max_us\":%u}\n", tries, missed, quantile(&took, .5),
           quantile(&took, 1));
}

int main(int argc, char **argv) {
    if (argc < 6) { fprintf(stderr, "usage: see the head of load.c\n"); return 2; }
    const char *mode = argv[1];
    port = atoi(argv[2]);
    key = argv[3];
    epoll_fd = epoll_create1(0);
    if (!strcmp(mode, "closed")) closed(atoi(argv[4]), atof(argv[5]));
    else if (!strcmp(mode, "streams") && argc > 6) streams(atoi(argv[4]), atof(argv[5]), atol(argv[6]));
    else if (!strcmp(mode, "stall")) stall(atoi(argv[4]), atof(argv[5]));
    else if (!strcmp(mode, "leave") && argc > 6) leave(atoi(argv[4]), atoi(argv[5]), atol(argv[6]));
    else { fprintf(stderr, "cannot run mode %s\n", mode); return 2; }
    return 0;
}
