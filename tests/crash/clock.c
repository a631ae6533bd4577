/* A wall clock that is set forward and back by CLOCK_STEP_S seconds, in turns, every CLOCK_EVERY_S seconds.

   Preloaded into the command; the monotonic clock is left alone. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*real_gettime)(clockid_t, struct timespec *);
static double began, step_s, every_s = 1;

static double monotonic(void) {
    struct timespec now;
    real_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double taken(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text ? atof(text) : otherwise;
}

__attribute__((constructor)) static void begin(void) {
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    step_s = taken("CLOCK_STEP_S", 0);
    every_s = taken("CLOCK_EVERY_S", 1);
    began = monotonic();
}

/* 0, +step, 0, -step, 0, ... */
static long offset(void) {
    switch ((long)((monotonic() - began) / every_s) % 4) {
        case 1: return (long)step_s;
        case 3: return -(long)step_s;
        default: return 0;
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = real_gettime(clock, now);
    if (!result && clock == CLOCK_REALTIME) now->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec real;
    int result = clock_gettime(CLOCK_REALTIME, &real);
    now->tv_sec = real.tv_sec;
    now->tv_usec = real.tv_nsec / 1000;
    return result;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
