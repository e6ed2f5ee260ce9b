/* A mock inference engine for measuring routers: one thread, epoll, HTTP/1.1 with keep-alive.
 *
 * What a request wants stands in its prompt, because routers may drop fields that they do not know:
 *   chunks=N  events of a streamed answer        gap_us=G  pause between events; 0: push without pause
 *   bytes=B   content of an event                wait_ms=W  silence before the first byte
 * GET /stats says what it did: requests, chunks, bytes of streams taken by the kernel, streams open, and how many
 * clients left in mid-answer with the time (CLOCK_MONOTONIC) at which the last was seen to go.
 *
 * usage: engine PORT    (0: any; the first line of output is the port)
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { IDLE, WAITING, STREAMING };

struct conn {
    int fd, state, streamed, wants_usage, more_wanted;
    char *in, *out;
    size_t in_size, in_room, out_size, out_room;
    long chunks, sent, bytes;
    uint64_t gap_ns, due_ns;
    int heap_at; /* place among the timers, -1: none */
};

static int epoll_fd;
static struct conn **timers;
static int timer_count, timer_room;
static struct { long requests, chunks, pushed, open, left; uint64_t left_at_ns; } stats;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

/* -- timers: a binary heap by due time -------------------------------------------------------------------------- */

static void put(int at, struct conn *c) { timers[at] = c; c->heap_at = at; }

static void sift(int at, struct conn *c) {
    while (at > 0 && timers[(at - 1) / 2]->due_ns > c->due_ns) { put(at, timers[(at - 1) / 2]); at = (at - 1) / 2; }
    for (;;) {
        int child = 2 * at + 1;
        if (child >= timer_count) break;
        if (child + 1 < timer_count && timers[child + 1]->due_ns < timers[child]->due_ns) child++;
        if (timers[child]->due_ns >= c->due_ns) break;
        put(at, timers[child]);
        at = child;
    }
    put(at, c);
}

static void set_timer(struct conn *c, uint64_t due_ns) {
    c->due_ns = due_ns;
    if (c->heap_at >= 0) { sift(c->heap_at, c); return; }
    if (timer_count == timer_room) timers = realloc(timers, (timer_room = timer_room * 2 + 64) * sizeof *timers);
    sift(timer_count++, c);
}

static void clear_timer(struct conn *c) {
    if (c->heap_at < 0) return;
    int at = c->heap_at;
    struct conn *last = timers[--timer_count];
    c->heap_at = -1;
    if (last != c) sift(at, last);
}

/* -- output ----------------------------------------------------------------------------------------------------- */

static void watch(struct conn *c, int output) {
    if (c->more_wanted == output) return;
    c->more_wanted = output;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | (output ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static void end_connection(struct conn *c) {
    if (c->state != IDLE) {
        stats.left++;
        stats.left_at_ns = now_ns();
        stats.open -= c->state == STREAMING;
    }
    clear_timer(c);
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

static void add(struct conn *c, const char *data, size_t size) {
    if (c->out_size + size > c->out_room) c->out = realloc(c->out, c->out_room = (c->out_size + size) * 2);
    memcpy(c->out + c->out_size, data, size);
    c->out_size += size;
}

static void flush(struct conn *c) {
    size_t done = 0;
    while (done < c->out_size) {
        ssize_t n = send(c->fd, c->out + done, c->out_size - done, MSG_NOSIGNAL);
        if (n <= 0) break; /* full, or gone: the event that follows tells which */
        done += n;
    }
    if (c->state == STREAMING) stats.pushed += done;
    memmove(c->out, c->out + done, c->out_size -= done);
    watch(c, c->out_size > 0);
}

static void add_event(struct conn *c, const char *data, size_t size) {
    char head[32];
    add(c, head, snprintf(head, sizeof head, "%zx\r\n", size + 8));
    add(c, "data: ", 6);
    add(c, data, size);
    add(c, "\n\n\r\n", 4);
}

#define CHUNK "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1750000000,\"model\":\"m\","
#define USAGE "\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":%ld,\"total_tokens\":%ld}}"

static void stream_one(struct conn *c) {
    static char event[70000];
    int size = sprintf(event, CHUNK "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"");
    memset(event + size, 'x', c->bytes);
    size += c->bytes;
    size += sprintf(event + size, "\"},\"finish_reason\":null}]}");
    add_event(c, event, size);
    c->sent++;
    stats.chunks++;
    if (c->sent < c->chunks) return;
    add_event(c, event, sprintf(event, CHUNK "\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}"));
    if (c->wants_usage) add_event(c, event, sprintf(event, CHUNK "\"choices\":[]," USAGE, c->sent, 12 + c->sent));
    add_event(c, "[DONE]", 6);
    add(c, "0\r\n\r\n", 5);
}

/* Push what is due; a flood goes on until the kernel takes no more. A slow client's chunks are late, never lost. */
static void stream(struct conn *c) {
    do {
        if (c->out_size == 0 && c->sent < c->chunks) stream_one(c);
        flush(c);
    } while (c->gap_ns == 0 && c->out_size == 0 && c->sent < c->chunks);
    if (c->sent >= c->chunks) { /* the end may still wait in `out`; the next request comes only after it */
        c->state = IDLE;
        stats.open--;
        clear_timer(c);
    } else if (c->gap_ns) {
        uint64_t now = now_ns(), next = c->due_ns + c->gap_ns;
        set_timer(c, next > now ? next : now);
    }
}

static void answer(struct conn *c, const char *status, const char *body) {
    char head[256];
    add(c, head, sprintf(head, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", status,
                         strlen(body)));
    add(c, body, strlen(body));
    flush(c);
}

static void begin_answer(struct conn *c) {
    clear_timer(c);
    if (!c->streamed) {
        c->state = IDLE;
        answer(c, "200 OK",
               "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1750000000,\"model\":\"m\","
               "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The mock engine says this "
               "sentence whatever it is asked, so that every router passes on the same bytes.\"},\"logprobs\":null,"
               "\"finish_reason\":\"stop\"}],"
               "\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":20,\"total_tokens\":32}}");
        return;
    }
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n";
    c->state = STREAMING;
    stats.open++;
    c->due_ns = now_ns();
    add(c, head, sizeof head - 1);
    stream_one(c); /* head and first chunk in one write, as engines do */
    flush(c);
    if (c->sent < c->chunks && c->gap_ns) set_timer(c, c->due_ns + c->gap_ns);
    else stream(c);
}

/* -- input ------------------------------------------------------------------------------------------------------ */

static long asked(const char *body, const char *name, long otherwise) {
    const char *at = strstr(body, name);
    return at ? atol(at + strlen(name)) : otherwise;
}

static int is_true(const char *body, const char *name) {
    const char *at = strstr(body, name);
    if (!at) return 0;
    at += strlen(name);
    while (*at == ' ' || *at == ':') at++;
    return strncmp(at, "true", 4) == 0;
}

static void serve_get(struct conn *c, const char *path) {
    char text[512];
    if (!strncmp(path, "/stats ", 7)) {
        snprintf(text, sizeof text,
                 "{\"requests\":%ld,\"chunks\":%ld,\"pushed\":%ld,\"open\":%ld,\"left\":%ld,\"left_at_ns\":%llu}",
                 stats.requests, stats.chunks, stats.pushed, stats.open, stats.left,
                 (unsigned long long)stats.left_at_ns);
        answer(c, "200 OK", text);
    } else if (!strncmp(path, "/v1/models ", 11)) {
        answer(c, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"owned_by\":\"mock\"}]}");
    } else if (!strncmp(path, "/health", 7) || !strncmp(path, "/plain ", 7)) {
        answer(c, "200 OK", "{}");
    } else {
        answer(c, "404 Not Found", "{}");
    }
}

/* Serve one whole request from the input; its size, 0 when it is not whole yet, -1 when it can't be read. */
static long serve_one(struct conn *c) {
    char *end = memmem(c->in, c->in_size, "\r\n\r\n", 4);
    if (!end) return c->in_size > 65536 ? -1 : 0;
    char saved = end[2];
    end[2] = 0;
    char *length_at = strcasestr(c->in, "\r\ncontent-length:");
    long head = end + 4 - c->in, length = length_at ? atol(length_at + 17) : 0;
    int chunked = strcasestr(c->in, "\r\ntransfer-encoding:") != NULL;
    end[2] = saved;
    if (chunked || length < 0) return -1;
    if ((long)c->in_size < head + length) return 0;
    if (!strncmp(c->in, "GET ", 4)) {
        serve_get(c, c->in + 4);
        return head + length;
    }
    char *body = c->in + head, after = body[length]; /* `in` has room for one byte more */
    body[length] = 0;
    stats.requests++;
    c->streamed = is_true(body, "\"stream\"");
    c->wants_usage = is_true(body, "\"include_usage\"");
    c->chunks = asked(body, "chunks=", 16);
    c->gap_ns = asked(body, "gap_us=", 0) * 1000ull;
    c->bytes = asked(body, "bytes=", 5);
    if (c->bytes < 0 || c->bytes > 65536) c->bytes = 65536;
    c->sent = 0;
    long wait_ms = asked(body, "wait_ms=", 0);
    body[length] = after;
    c->state = WAITING;
    if (wait_ms) set_timer(c, now_ns() + wait_ms * 1000000ull);
    else begin_answer(c);
    return head + length;
}

static int take_input(struct conn *c) {
    for (;;) {
        if (c->in_room - c->in_size < 4096) c->in = realloc(c->in, (c->in_room = c->in_room * 2 + 8192) + 1);
        size_t room = c->in_room - c->in_size;
        ssize_t n = recv(c->fd, c->in + c->in_size, room, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return -1;
        if (n < 0) return 0;
        c->in_size += n;
        while (c->in_size && c->state == IDLE) {
            long used = serve_one(c);
            if (used < 0) return -1;
            if (used == 0) break;
            memmove(c->in, c->in + used, c->in_size -= used);
        }
        if ((size_t)n < room) return 0;
    }
}

/* -- the loop --------------------------------------------------------------------------------------------------- */

static void accept_all(int listener) {
    int fd, yes = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->heap_at = -1;
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

int main(int argc, char **argv) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    address.sin_port = htons(argc > 1 ? atoi(argv[1]) : 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (void *)&address, size) || listen(listener, 4096)) {
        perror("cannot listen");
        return 1;
    }
    getsockname(listener, (void *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    signal(SIGPIPE, SIG_IGN);
    epoll_fd = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int pause_ms = -1;
        if (timer_count) {
            int64_t left = (int64_t)(timers[0]->due_ns - now_ns());
            pause_ms = left <= 0 ? 0 : left / 1000000 + 1;
        }
        int count = epoll_wait(epoll_fd, events, 256, pause_ms);
        for (int i = 0; i < count; i++) {
            struct conn *c = events[i].data.ptr;
            if (!c) { accept_all(listener); continue; }
            if (events[i].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) { end_connection(c); continue; }
            if ((events[i].events & EPOLLIN) && take_input(c) < 0) { end_connection(c); continue; }
            if (events[i].events & EPOLLOUT) {
                flush(c);
                if (c->state == STREAMING && c->gap_ns == 0 && c->out_size == 0) stream(c);
            }
        }
        for (uint64_t now = now_ns(); timer_count && timers[0]->due_ns <= now;) {
            struct conn *c = timers[0];
            if (c->state == WAITING) begin_answer(c);
            else stream(c);
        }
    }
}
