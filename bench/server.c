// A scripted model server for benchmarks, fast enough not to be what is measured: one thread, epoll, keep-alive.
//
//     gcc -O2 -o server server.c && ./server PORT [--until-eof]
//
// It listens on 127.0.0.1; port 0 takes a free one. The port is the first line of its output. With --until-eof it leaves
// when its standard input, a pipe, is closed: it does not outlive whoever started it.
//
// What a model says is in the path, so that one process serves every workload:
//
//     /single-0/v1/...              one message at once
//     /single-200/v1/...            one message after 200 ms
//     /single.p2000-0/v1/...        one message that is 2,000 bytes longer
//     /tools4.NAME-0/v1/...         four turns that call the tool NAME once each, then the message
//     /v1/...                       as single-0
//
// It speaks /v1/responses, /v1/chat/completions (JSON, or server-sent events if asked to stream) and /v1/models.
// A turn is known by the tool outputs in the request. GET /stats counts the model calls since /reset.

#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 512
#define LATENCIES 64
#define READ_SIZE 16384
#define LONGEST_PADDING 500000
#define LONGEST_BODY (LONGEST_PADDING + 8192)

static const char ARGUMENTS[] = "{\\\"synonym\\\": \\\"Blur\\\"}";
static const char ANSWER[] =
    "I compared the four options with what the question says. Two of them contradict it at once, and a third would "
    "follow only if something were added that nobody stated. What remains agrees with every sentence, so the answer "
    "is \\\\boxed{B}.";

struct buffer {
    char *data;
    size_t size, capacity;
};

struct connection {
    int fd;
    struct buffer in, out;
    size_t sent;
    bool closing;      // once everything is sent
    bool wants_write;  // the kernel's buffer was full
    bool waiting;      // its answer is written and not yet due
    double due;
    struct latency *latency;
    struct connection *before, *after;  // in its latency's queue
};

// Everything with one latency is due in the order in which it came: a queue is enough, and no heap is needed.
struct latency {
    int ms;
    struct connection *first, *last;
};

struct script {
    int tool_calls;
    char tool[128];
    int padding;
    int latency_ms;
};

struct request {
    const char *path, *body;
    size_t path_size, body_size;
    bool close, chunked;
};

static struct {
    unsigned long long requests, by_status[600], bytes_in;
    double first_request, last_answer;
    long waiting, most_waiting, connections, most_connections;
} stats;

static int epoll;
static struct latency latencies[LATENCIES];
static int latency_count;
static unsigned long long answers;
static char body[LONGEST_BODY];
static char padding[LONGEST_PADDING + 1];
static int listener_mark, input_mark;  // their addresses tell these two from connections in epoll's events

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// Buffers.

static void reserve(struct buffer *buffer, size_t more) {
    if (buffer->capacity - buffer->size >= more) return;
    buffer->capacity = (buffer->size + more) * 2;
    buffer->data = realloc(buffer->data, buffer->capacity);
    if (buffer->data == NULL) fail("memory");
}

static void append(struct buffer *buffer, const char *data, size_t size) {
    reserve(buffer, size);
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
}

// Drops what was read; what follows moves to the front.
static void consume(struct buffer *buffer, size_t size) {
    memmove(buffer->data, buffer->data + size, buffer->size - size);
    buffer->size -= size;
}

// Connections.

static void watch(struct connection *one, int operation) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
    if (one->wants_write) event.events |= EPOLLOUT;
    if (epoll_ctl(epoll, operation, one->fd, &event) < 0) fail("epoll_ctl");
}

static void open_connection(int fd) {
    struct connection *one = calloc(1, sizeof *one);
    if (one == NULL) fail("memory");
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    one->fd = fd;
    watch(one, EPOLL_CTL_ADD);
    if (++stats.connections > stats.most_connections) stats.most_connections = stats.connections;
}

static void leave_queue(struct connection *one) {
    struct latency *latency = one->latency;
    *(one->before ? &one->before->after : &latency->first) = one->after;
    *(one->after ? &one->after->before : &latency->last) = one->before;
    one->before = one->after = NULL;
    one->waiting = false;
    stats.waiting--;
}

static void close_connection(struct connection *one) {
    if (one->waiting) leave_queue(one);
    close(one->fd);
    stats.connections--;
    free(one->in.data);
    free(one->out.data);
    free(one);
}

// False when the connection is to be closed.
static bool flush_out(struct connection *one) {
    while (one->sent < one->out.size) {
        ssize_t count = send(one->fd, one->out.data + one->sent, one->out.size - one->sent, MSG_NOSIGNAL);
        if (count < 0 && errno != EAGAIN) return false;
        if (count < 0) break;
        one->sent += (size_t)count;
    }
    bool rest = one->sent < one->out.size;
    if (!rest) one->sent = one->out.size = 0;
    if (rest != one->wants_write) {
        one->wants_write = rest;
        watch(one, EPOLL_CTL_MOD);
    }
    return rest || !one->closing;
}

// Latency.

static struct latency *latency_of(int ms) {
    for (int i = 0; i < latency_count; i++)
        if (latencies[i].ms == ms) return &latencies[i];
    if (latency_count == LATENCIES) return NULL;
    latencies[latency_count].ms = ms;
    return &latencies[latency_count++];
}

static void wait_for(struct connection *one, struct latency *latency) {
    one->latency = latency;
    one->due = now(CLOCK_MONOTONIC) + latency->ms * 1e-3;
    one->waiting = true;
    one->before = latency->last;
    *(latency->last ? &latency->last->after : &latency->first) = one;
    latency->last = one;
    if (++stats.waiting > stats.most_waiting) stats.most_waiting = stats.waiting;
}

// Milliseconds until the next answer is due, rounded up; -1 if none waits.
static int next_due(void) {
    double time = now(CLOCK_MONOTONIC);
    int soonest = -1;
    for (int i = 0; i < latency_count; i++) {
        struct connection *first = latencies[i].first;
        if (first == NULL) continue;
        int left = first->due > time ? (int)((first->due - time) * 1e3) + 1 : 0;
        if (soonest < 0 || left < soonest) soonest = left;
    }
    return soonest;
}

// What the path asks for.

static const char *find(const char *text, size_t size, const char *word) {
    return memmem(text, size, word, strlen(word));
}

static int count(const char *text, size_t size, const char *word) {
    int found = 0;
    for (const char *at = text, *end = text + size; (at = find(at, (size_t)(end - at), word)); at += strlen(word)) found++;
    return found;
}

// "tools4.get_weather-200" or "single.p2000-0". False for anything else.
static bool read_script(const char *text, size_t size, struct script *script) {
    char copy[200];
    *script = (struct script){.tool = "get_synonym_value"};
    if (size == 0) return true;
    if (size >= sizeof copy) return false;
    memcpy(copy, text, size);
    copy[size] = 0;
    char *dash = strrchr(copy, '-');
    if (dash == NULL) return false;
    *dash = 0;
    script->latency_ms = atoi(dash + 1);
    char *dot = strchr(copy, '.');
    if (dot != NULL) *dot++ = 0;
    if (strcmp(copy, "single") == 0) {
        if (dot != NULL && *dot == 'p') script->padding = atoi(dot + 1);
        return script->padding >= 0 && script->padding <= LONGEST_PADDING;
    }
    if (strncmp(copy, "tools", 5) != 0) return false;
    script->tool_calls = atoi(copy + 5);
    if (dot != NULL) snprintf(script->tool, sizeof script->tool, "%s", dot);
    return true;
}

// What the model says. Each writes `body` and returns its size.

static size_t put(size_t at, const char *format, ...) __attribute__((format(printf, 2, 3)));

static size_t put(size_t at, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(body + at, sizeof body - at, format, arguments);
    va_end(arguments);
    return at + (size_t)size;
}

static const char *padded(const struct script *script) {
    return padding + LONGEST_PADDING - script->padding;
}

static size_t write_response(const struct request *request, const struct script *script) {
    bool calls = count(request->body, request->body_size, "\"function_call_output\"") < script->tool_calls;
    size_t at = put(0,
        "{\"id\":\"resp_%016llx\",\"object\":\"response\",\"created_at\":%ld,\"status\":\"completed\",\"background\":false,"
        "\"error\":null,\"incomplete_details\":null,\"instructions\":null,\"max_output_tokens\":null,"
        "\"max_tool_calls\":null,\"metadata\":{},\"model\":\"mock\",\"output\":[", answers, (long)time(NULL));
    if (calls)
        at = put(at,
            "{\"id\":\"fc_%016llx\",\"type\":\"function_call\",\"status\":\"completed\",\"call_id\":\"call_%016llx\","
            "\"name\":\"%s\",\"arguments\":\"%s\"}", answers, answers, script->tool, ARGUMENTS);
    else
        at = put(at,
            "{\"id\":\"msg_%016llx\",\"type\":\"message\",\"status\":\"completed\",\"role\":\"assistant\",\"content\":"
            "[{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":\"%s%s\"}]}",
            answers, padded(script), ANSWER);
    return put(at,
        "],\"parallel_tool_calls\":true,\"previous_response_id\":null,\"reasoning\":{\"effort\":null,\"summary\":null},"
        "\"service_tier\":\"default\",\"store\":true,\"temperature\":1.0,\"text\":{\"format\":{\"type\":\"text\"},"
        "\"verbosity\":\"medium\"},\"tool_choice\":\"auto\",\"tools\":[],\"top_logprobs\":0,\"top_p\":1.0,"
        "\"truncation\":\"disabled\",\"usage\":{\"input_tokens\":312,\"input_tokens_details\":{\"cached_tokens\":0},"
        "\"output_tokens\":48,\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":360},\"user\":null}");
}

static bool wants_tool(const struct request *request, const struct script *script) {
    int turn = count(request->body, request->body_size, "\"role\":\"tool\"");
    return turn + count(request->body, request->body_size, "\"role\": \"tool\"") < script->tool_calls;
}

static bool wants_stream(const struct request *request) {
    return find(request->body, request->body_size, "\"stream\":true") ||
           find(request->body, request->body_size, "\"stream\": true");
}

static size_t put_chat_call(size_t at, const struct script *script) {
    return put(at,
        "\"content\":null,\"tool_calls\":[{\"index\":0,\"id\":\"call_%016llx\",\"type\":\"function\",\"function\":"
        "{\"name\":\"%s\",\"arguments\":\"%s\"}}]", answers, script->tool, ARGUMENTS);
}

static const char CHAT_USAGE[] = "{\"prompt_tokens\":312,\"completion_tokens\":48,\"total_tokens\":360}";

static size_t write_chat(const struct request *request, const struct script *script) {
    bool calls = wants_tool(request, script);
    size_t at = put(0,
        "{\"id\":\"chatcmpl-%016llx\",\"object\":\"chat.completion\",\"created\":%ld,\"model\":\"mock\",\"choices\":"
        "[{\"index\":0,\"message\":{\"role\":\"assistant\",", answers, (long)time(NULL));
    at = calls ? put_chat_call(at, script) : put(at, "\"content\":\"%s%s\"", padded(script), ANSWER);
    return put(at,
        ",\"refusal\":null,\"annotations\":[]},\"logprobs\":null,\"finish_reason\":\"%s\"}],\"usage\":%s,"
        "\"service_tier\":\"default\",\"system_fingerprint\":null}", calls ? "tool_calls" : "stop", CHAT_USAGE);
}

static size_t put_chunk(size_t at) {
    return put(at,
        "data: {\"id\":\"chatcmpl-%016llx\",\"object\":\"chat.completion.chunk\",\"created\":%ld,\"model\":\"mock\",",
        answers, (long)time(NULL));
}

// The whole message as one delta: what is measured is the client, not the patience of a reader.
static size_t write_chat_stream(const struct request *request, const struct script *script) {
    bool calls = wants_tool(request, script);
    size_t at = put(put_chunk(0), "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",");
    at = calls ? put_chat_call(at, script) : put(at, "\"content\":\"%s%s\"", padded(script), ANSWER);
    at = put(put_chunk(put(at, "},\"finish_reason\":null}]}\n\n")),
        "\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"%s\"}]}\n\n", calls ? "tool_calls" : "stop");
    return put(put_chunk(at), "\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", CHAT_USAGE);
}

static size_t write_stats(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                 (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    size_t at = put(0, "{\"requests\":%llu,\"by_status\":{", stats.requests);
    const char *comma = "";
    for (int status = 0; status < 600; status++) {
        if (stats.by_status[status] == 0) continue;
        at = put(at, "%s\"%d\":%llu", comma, status, stats.by_status[status]);
        comma = ",";
    }
    return put(at,
        "},\"first_request\":%.6f,\"last_answer\":%.6f,\"bytes_in\":%llu,\"waiting\":%ld,\"most_waiting\":%ld,"
        "\"connections\":%ld,\"most_connections\":%ld,\"cpu_s\":%.4f}",
        stats.first_request, stats.last_answer, stats.bytes_in, stats.waiting, stats.most_waiting, stats.connections,
        stats.most_connections, cpu);
}

static size_t reset_stats(void) {
    long waiting = stats.waiting, connections = stats.connections;
    memset(&stats, 0, sizeof stats);
    stats.waiting = stats.most_waiting = waiting;
    stats.connections = stats.most_connections = connections;
    return put(0, "{}");
}

// HTTP.

static bool is(const char *text, size_t size, const char *word) {
    return size == strlen(word) && memcmp(text, word, size) == 0;
}

static void send_answer(struct connection *one, int status, const char *type, size_t size) {
    const char *reason = status == 200 ? "OK" : status == 404 ? "Not Found" : "Length Required";
    char head[256];
    int length = snprintf(head, sizeof head,
        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nx-request-id: req_%llx\r\nContent-Length: %zu\r\n\r\n",
        status, reason, type, answers, size);
    append(&one->out, head, (size_t)length);
    append(&one->out, body, size);
}

static void note_call(int status, size_t size) {
    if (stats.requests++ == 0) stats.first_request = now(CLOCK_REALTIME);
    stats.by_status[status]++;
    stats.bytes_in += size;
}

static void refuse(struct connection *one, int status, const char *why) {
    note_call(status, 0);
    send_answer(one, status, "application/json", put(0, "{\"error\":{\"message\":\"%s\"}}", why));
}

static void answer_call(struct connection *one, const struct request *request, const char *route, size_t route_size) {
    struct script script;
    size_t prefix = (size_t)(route - request->path);
    if (!read_script(request->path + (prefix > 0), prefix - (prefix > 0), &script)) {
        refuse(one, 404, "no such script");
        return;
    }
    bool chat = is(route, route_size, "/v1/chat/completions");
    if (!chat && !is(route, route_size, "/v1/responses")) {
        refuse(one, 404, "no such route");
        return;
    }
    bool stream = chat && wants_stream(request);
    size_t size = stream ? write_chat_stream(request, &script)
                : chat   ? write_chat(request, &script)
                         : write_response(request, &script);
    note_call(200, request->body_size);
    send_answer(one, 200, stream ? "text/event-stream" : "application/json", size);
    struct latency *latency = script.latency_ms > 0 ? latency_of(script.latency_ms) : NULL;
    if (latency != NULL)
        wait_for(one, latency);
    else
        stats.last_answer = now(CLOCK_REALTIME);
}

static void answer(struct connection *one, const struct request *request) {
    answers++;
    const char *path = request->path;
    size_t size = request->path_size;
    const char *route = find(path, size, "/v1/");
    size_t route_size = route ? size - (size_t)(route - path) : 0;
    if (request->chunked)
        refuse(one, 411, "give a Content-Length");
    else if (is(path, size, "/stats"))
        send_answer(one, 200, "application/json", write_stats());
    else if (is(path, size, "/reset"))
        send_answer(one, 200, "application/json", reset_stats());
    else if (route != NULL && is(route, route_size, "/v1/models"))
        send_answer(one, 200, "application/json",
            put(0, "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"owned_by\":\"mock\"}]}"));
    else if (route == NULL)
        refuse(one, 404, "no such route");
    else
        answer_call(one, request, route, route_size);
}

static bool begins(const char *line, size_t size, const char *word) {
    return size >= strlen(word) && strncasecmp(line, word, strlen(word)) == 0;
}

// The first request in these bytes; its size, or 0 while some of it is missing.
static size_t read_request(const char *data, size_t size, struct request *request) {
    const char *end = find(data, size, "\r\n\r\n");
    if (end == NULL) return 0;
    *request = (struct request){.body = end + 4};
    for (const char *line = data; line < end;) {
        const char *next = find(line, (size_t)(end + 2 - line), "\r\n");
        size_t length = (size_t)(next - line);
        if (line == data) {
            const char *space = memchr(line, ' ', length);
            request->path = space ? space + 1 : line;
            request->path_size = strcspn(request->path, " ?\r");
        } else if (begins(line, length, "content-length:"))
            request->body_size = strtoul(line + strlen("content-length:"), NULL, 10);
        else if (begins(line, length, "transfer-encoding:"))
            request->chunked = request->close = true;  // its end is not looked for
        else if (begins(line, length, "connection: close"))
            request->close = true;
        line = next + 2;
    }
    size_t whole = (size_t)(request->body - data) + request->body_size;
    return whole <= size ? whole : 0;
}

// Answers what has arrived whole. Until an answer is due and sent, what follows it waits unread.
static bool serve(struct connection *one) {
    struct request request;
    size_t size;
    while (one->out.size == 0 && (size = read_request(one->in.data, one->in.size, &request)) > 0) {
        one->closing = request.close;
        answer(one, &request);
        consume(&one->in, size);
        if (!one->waiting && !flush_out(one)) return false;
    }
    return true;
}

static void answer_what_is_due(void) {
    // epoll counts whole milliseconds; what is due within a fraction of one is due.
    double time = now(CLOCK_MONOTONIC) + 2e-4;
    for (int i = 0; i < latency_count; i++) {
        struct connection *one;
        while ((one = latencies[i].first) != NULL && one->due <= time) {
            leave_queue(one);
            stats.last_answer = now(CLOCK_REALTIME);
            if (!flush_out(one) || !serve(one)) close_connection(one);
        }
    }
}

// False when the other side has gone.
static bool receive(struct connection *one) {
    for (;;) {
        reserve(&one->in, READ_SIZE);
        size_t room = one->in.capacity - one->in.size;
        ssize_t count = recv(one->fd, one->in.data + one->in.size, room, 0);
        if (count == 0) return false;
        if (count < 0) return errno == EAGAIN;
        one->in.size += (size_t)count;
        if ((size_t)count < room) return true;
    }
}

static void accept_all(int listener) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) open_connection(fd);
}

static void handle(struct connection *one, unsigned events) {
    bool alive = true;
    if (events & EPOLLOUT) alive = flush_out(one) && serve(one);
    if (alive && events & (EPOLLIN | EPOLLHUP | EPOLLERR)) alive = receive(one) && serve(one);
    if (!alive) close_connection(one);
}

// Starting.

static int listen_at(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((unsigned short)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, (struct sockaddr *)&address, size) < 0) fail("bind");
    if (listen(fd, 16384) < 0) fail("listen");
    getsockname(fd, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void allow_many_files(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void listen_for(int fd, void *mark) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = mark};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) fail(fd == 0 ? "standard input is no pipe" : "epoll_ctl");
}

static void leave_at_eof(void) {
    char ignored[256];
    if (read(0, ignored, sizeof ignored) <= 0) exit(0);
}

int main(int argc, char **argv) {
    bool until_eof = argc == 3 && strcmp(argv[2], "--until-eof") == 0;
    if (argc < 2 || (argc > 2 && !until_eof)) {
        fprintf(stderr, "usage: %s PORT [--until-eof]\n", argv[0]);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    allow_many_files();
    memset(padding, 'x', LONGEST_PADDING);
    epoll = epoll_create1(0);
    int listener = listen_at(atoi(argv[1]));
    listen_for(listener, &listener_mark);
    if (until_eof) listen_for(0, &input_mark);
    for (;;) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(epoll, events, EVENTS, next_due());
        for (int i = 0; i < ready; i++) {
            void *who = events[i].data.ptr;
            if (who == &listener_mark)
                accept_all(listener);
            else if (who == &input_mark)
                leave_at_eof();
            else
                handle(who, events[i].events);
        }
        answer_what_is_due();
    }
}
