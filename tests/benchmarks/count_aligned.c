/* Counts what is allocated by posix_memalign and not freed, in every thread: on Linux torch allocates the tensors of a
 * CPU by it (c10/core/impl/alloc_cpu.cpp), oneDNN its primitives, and hardly anything else. Loaded with LD_PRELOAD.
 * At its end a process with RANK in its environment writes the most that was alive at once, in bytes, to the file
 * COUNT_ALIGNED.RANK.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { SLOTS = 1 << 20 };
static struct {
    uintptr_t at;
    size_t size;
} table[SLOTS]; /* open addressing, linear probing; at: 0 empty, 1 removed */
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static size_t alive, most;

static size_t slot_of(uintptr_t at) { return (at >> 6) * 0x9E3779B97F4A7C15ull % SLOTS; }

int posix_memalign(void **found, size_t alignment, size_t size) {
    static int (*real)(void **, size_t, size_t);
    if (!real) real = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    int failed = real(found, alignment, size);
    if (failed) return failed;
    pthread_mutex_lock(&guard);
    size_t slot = slot_of((uintptr_t)*found);
    while (table[slot].at > 1) slot = (slot + 1) % SLOTS;
    table[slot].at = (uintptr_t)*found;
    table[slot].size = size;
    alive += size;
    if (alive > most) most = alive;
    pthread_mutex_unlock(&guard);
    return 0;
}

void free(void *gone) {
    static void (*real)(void *);
    if (!real) real = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    if (gone && !((uintptr_t)gone & 63)) {
        pthread_mutex_lock(&guard);
        for (size_t slot = slot_of((uintptr_t)gone); table[slot].at; slot = (slot + 1) % SLOTS) {
            if (table[slot].at == (uintptr_t)gone) {
                table[slot].at = 1;
                alive -= table[slot].size;
                break;
            }
        }
        pthread_mutex_unlock(&guard);
    }
    real(gone);
}

__attribute__((destructor)) static void write_most(void) {
    const char *file = getenv("COUNT_ALIGNED"), *rank = getenv("RANK");
    if (!file || !rank) return;
    char name[4096];
    snprintf(name, sizeof name, "%s.%s", file, rank);
    FILE *sink = fopen(name, "w");
    if (sink) {
        fprintf(sink, "%zu\n", most);
        fclose(sink);
    }
}
