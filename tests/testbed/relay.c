/* A wire between two network namespaces with a rate and a delay. Built and run, as root, by `network.shaped`.

   usage: relay BITS_PER_S DELAY_S NAMESPACE DEVICE NAMESPACE DEVICE

   Each namespace has one TAP device, whose frames this process carries to the other: a frame waits until those before
   it have left at the rate, then for the delay. The devices are gone with this process; when stdin closes, which it
   does when whoever started it dies, the namespaces are removed as well.

   In C because a frame then takes a core some microseconds: what a wire took of the cores that train would be gone from
   a step that exchanges less, and on no real wire is. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LARGEST_FRAME = 1 << 16 };

struct frame {
    struct frame *next;
    double due;
    ssize_t size;
    char bytes[];
};

/* Frames on their way from one descriptor to the other. */
struct way {
    int source, target;
    double free_at;
    struct frame *first, **last;
};

static double bytes_per_s, delay_s;
static char **places; /* namespace, device, namespace, device */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int ip(const char *const words[])
{
    pid_t child = fork();
    if (child == 0) {
        execvp("ip", (char *const *)words);
        _exit(127);
    }
    int status = -1;
    return child < 0 || waitpid(child, &status, 0) < 0 || status != 0;
}

static int tap(const char *namespace, const char *device)
{
    struct ifreq request = {0};
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    /* Until it is moved, its name is one among all devices of the machine. */
    snprintf(request.ifr_name, sizeof request.ifr_name, "%sp%d", device, (int)getpid());
    int descriptor = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (descriptor < 0 || ioctl(descriptor, TUNSETIFF, &request) < 0) {
        perror("/dev/net/tun");
        exit(1);
    }
    if (ip((const char *[]){"ip", "link", "set", request.ifr_name, "netns", namespace, "name", device, NULL}))
        exit(1);
    return descriptor;
}

/* Every frame that is there. */
static void take(struct way *way)
{
    static char bytes[LARGEST_FRAME];
    ssize_t size;
    while ((size = read(way->source, bytes, sizeof bytes)) > 0) {
        struct frame *frame = malloc(sizeof *frame + size);
        if (frame == NULL)
            continue; /* lost, as on any wire */
        double at = now();
        way->free_at = (way->free_at > at ? way->free_at : at) + size / bytes_per_s;
        *frame = (struct frame){.due = way->free_at + delay_s, .size = size};
        memcpy(frame->bytes, bytes, size);
        *way->last = frame;
        way->last = &frame->next;
    }
}

/* Every frame whose time has come. */
static void deliver(struct way *way)
{
    while (way->first != NULL && way->first->due <= now()) {
        struct frame *frame = way->first;
        if (write(way->target, frame->bytes, frame->size) < 0) {
            /* nobody listens, or its queue is full: lost, as on any wire */
        }
        way->first = frame->next;
        if (way->first == NULL)
            way->last = &way->first;
        free(frame);
    }
}

static double wait_s(const struct way *ways)
{
    double wait = 1.0, at = now();
    for (int i = 0; i < 2; i++)
        if (ways[i].first != NULL && ways[i].first->due - at < wait)
            wait = ways[i].first->due - at;
    return wait > 0 ? wait : 0;
}

/* Until stdin closes. */
static void carry(int one, int other)
{
    struct way ways[] = {{one, other, 0, NULL, &ways[0].first}, {other, one, 0, NULL, &ways[1].first}};
    struct pollfd ends[] = {{one, POLLIN, 0}, {other, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    for (;;) {
        double wait = wait_s(ways);
        struct timespec timeout = {(time_t)wait, (long)((wait - (time_t)wait) * 1e9)};
        if (ppoll(ends, 3, &timeout, NULL) < 0 && errno != EINTR)
            return;
        char word;
        if (ends[2].revents && read(STDIN_FILENO, &word, 1) <= 0)
            return;
        for (int i = 0; i < 2; i++) {
            take(&ways[i]);
            deliver(&ways[i]);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fputs("usage: relay BITS_PER_S DELAY_S NAMESPACE DEVICE NAMESPACE DEVICE\n", stderr);
        return 2;
    }
    bytes_per_s = atof(argv[1]) / 8;
    delay_s = atof(argv[2]);
    places = argv + 3;
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 10}); /* late frames would be latency */
    int one = tap(places[0], places[1]), other = tap(places[2], places[3]);
    puts("ready");
    fflush(stdout);
    carry(one, other);
    for (int i = 0; i < 4; i += 2)
        ip((const char *[]){"ip", "netns", "delete", places[i], NULL});
    return 0;
}
