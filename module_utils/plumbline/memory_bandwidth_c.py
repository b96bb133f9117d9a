"""The C source of the memory bandwidth kernel.

A string in a module, because Ansible ships to the node what a module imports and nothing else: the kernel needs no copy task of its own
and is always of the version that reads its output.
"""

from __future__ import annotations

SOURCE = r"""/* Plumbline's memory bandwidth kernel: read, copy and triad over arrays far larger than any cache.
 *
 * usage: membw BYTES REPETITIONS SECONDS KERNELS CPUS [TOUCH_CPUS|node:N]
 *
 * BYTES        of each array
 * REPETITIONS  so many passes must go by without a figure that is 1 % better, so a noisy machine is measured for longer;
 *              fewer when SECONDS pass first (writing the arrays included), but at least 3. One that warms up comes before them
 * KERNELS      letters: r (s += a[i]), c (c[i] = a[i]), t (c[i] = a[i] + q * b[i])
 * CPUS         comma-separated; one thread is pinned to each
 * TOUCH_CPUS   threads pinned to these write the arrays first, so that the pages lie in the memory next to them;
 *              node:N binds the pages to a node that has memory and no CPU. Without it each thread touches its own part.
 *
 * Prints one JSON object. Bytes are counted as STREAM does (read 1, copy 2, triad 3 arrays); stores are non-temporal, so
 * that no line is read before it is written and what is counted is what the memory moves.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define ISA "AVX-512"
#define NON_TEMPORAL 1
#define LANES 8
typedef __m512d vec;
#define LOAD(p) _mm512_load_pd(p)
#define STREAM(p, v) _mm512_stream_pd(p, v)
#define ADD(a, b) _mm512_add_pd(a, b)
#define SET1(x) _mm512_set1_pd(x)
#define MULADD(a, b, c) _mm512_fmadd_pd(b, c, a)
#define FENCE() _mm_sfence()
#elif defined(__AVX__)
#include <immintrin.h>
#define ISA "AVX"
#define NON_TEMPORAL 1
#define LANES 4
typedef __m256d vec;
#define LOAD(p) _mm256_load_pd(p)
#define STREAM(p, v) _mm256_stream_pd(p, v)
#define ADD(a, b) _mm256_add_pd(a, b)
#define SET1(x) _mm256_set1_pd(x)
#define MULADD(a, b, c) _mm256_add_pd(a, _mm256_mul_pd(b, c))
#define FENCE() _mm_sfence()
#elif defined(__SSE2__)
#include <emmintrin.h>
#define ISA "SSE2"
#define NON_TEMPORAL 1
#define LANES 2
typedef __m128d vec;
#define LOAD(p) _mm_load_pd(p)
#define STREAM(p, v) _mm_stream_pd(p, v)
#define ADD(a, b) _mm_add_pd(a, b)
#define SET1(x) _mm_set1_pd(x)
#define MULADD(a, b, c) _mm_add_pd(a, _mm_mul_pd(b, c))
#define FENCE() _mm_sfence()
#else
/* GCC has no intrinsic for a non-temporal store here: plain ones, and the result says so. */
#define ISA "generic"
#define NON_TEMPORAL 0
#define LANES 2
typedef double vec __attribute__((vector_size(16)));
#define LOAD(p) (*(const vec *)(p))
#define STREAM(p, v) (*(vec *)(p) = (v))
#define ADD(a, b) ((a) + (b))
#define SET1(x) ((vec){x, x})
#define MULADD(a, b, c) ((a) + (b) * (c))
#define FENCE() __sync_synchronize()
#endif

/* A step is four cache lines of 64 bytes of each array. */
#define STEP 32
#define VECTORS (STEP / LANES)
#define ALIGNMENT (2UL << 20)
#define REPETITIONS_MAX 1000
#define REPETITIONS_MIN 3
#define CPUS_MAX 8192
#define SCALE 3.0
/* The read kernel goes through several streams at once and asks for lines so many bytes ahead, into the second-level cache:
 * a thread then keeps more misses in flight than one stream of loads does. */
#define STREAMS 4
#define AHEAD 1024

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int parse_cpus(const char *text, int *cpus)
{
    int count = 0;
    while (*text && count < CPUS_MAX) {
        char *end;
        long cpu = strtol(text, &end, 10);
        if (end == text || cpu < 0 || cpu >= CPUS_MAX)
            return -1;
        cpus[count++] = (int)cpu;
        text = *end == ',' ? end + 1 : end;
    }
    return count;
}

static int pin(int cpu)
{
    size_t size = CPU_ALLOC_SIZE(CPUS_MAX);
    cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
    if (!set)
        return -1;
    CPU_ZERO_S(size, set);
    CPU_SET_S(cpu, size, set);
    int result = sched_setaffinity(0, size, set);
    CPU_FREE(set);
    return result;
}

static double *allocate(size_t bytes, int node)
{
    char *raw = mmap(NULL, bytes + ALIGNMENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    char *aligned = (char *)(((uintptr_t)raw + ALIGNMENT - 1) & ~(ALIGNMENT - 1));
    /* Refused where transparent huge pages are off: then the pages are small, and the figure is the machine's own. */
    madvise(aligned, bytes, MADV_HUGEPAGE);
    if (node >= 0) {
        unsigned long mask[16] = {0};
        mask[node / (8 * sizeof(long))] = 1UL << (node % (8 * sizeof(long)));
        if (syscall(SYS_mbind, aligned, bytes, 2 /* MPOL_BIND */, mask, sizeof(mask) * 8, 0))
            return NULL;
    }
    return (double *)aligned;
}

/* The part of the arrays that a thread works on, in steps. */
static void part(size_t steps, int thread, int threads, size_t *first, size_t *last)
{
    *first = steps * (size_t)thread / (size_t)threads;
    *last = steps * ((size_t)thread + 1) / (size_t)threads;
}

static double read_part(const double *a, size_t first, size_t last)
{
    vec sum[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        sum[v] = SET1(0.0);
    const size_t length = (last - first) / STREAMS;
    for (size_t i = 0; i < length; i++) {
        for (int stream = 0; stream < STREAMS; stream++) {
            const double *p = a + (first + (size_t)stream * length + i) * STEP;
            for (int line = 0; line < STEP / 8; line++)
                __builtin_prefetch((const char *)(p + line * 8) + AHEAD, 0, 2);
            for (int v = 0; v < VECTORS; v++)
                sum[v] = ADD(sum[v], LOAD(p + v * LANES));
        }
    }
    for (size_t i = (first + STREAMS * length) * STEP; i < last * STEP; i += STEP)
        for (int v = 0; v < VECTORS; v++)
            sum[v] = ADD(sum[v], LOAD(a + i + v * LANES));
    for (int v = 1; v < VECTORS; v++)
        sum[0] = ADD(sum[0], sum[v]);
    double lanes[LANES] __attribute__((aligned(64))), total = 0;
    memcpy(lanes, &sum[0], sizeof(lanes));
    for (int v = 0; v < LANES; v++)
        total += lanes[v];
    return total;
}

static void copy_part(const double *a, double *c, size_t first, size_t last)
{
    for (size_t i = first * STEP; i < last * STEP; i += STEP) {
        vec value[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            value[v] = LOAD(a + i + v * LANES);
        for (int v = 0; v < VECTORS; v++)
            STREAM(c + i + v * LANES, value[v]);
    }
    FENCE();
}

static void triad_part(const double *a, const double *b, double *c, size_t first, size_t last)
{
    const vec scale = SET1(SCALE);
    for (size_t i = first * STEP; i < last * STEP; i += STEP) {
        vec value[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            value[v] = MULADD(LOAD(a + i + v * LANES), scale, LOAD(b + i + v * LANES));
        for (int v = 0; v < VECTORS; v++)
            STREAM(c + i + v * LANES, value[v]);
    }
    FENCE();
}

static int fail(const char *what)
{
    printf("{\"error\": \"%s: %s\"}\n", what, strerror(errno));
    return 1;
}

/* Pages of an array by node, from numa_maps: whether first touch put them where they should be. */
static void print_placement(const double *array)
{
    char line[4096], start[32];
    snprintf(start, sizeof(start), "%lx ", (unsigned long)array);
    FILE *maps = fopen("/proc/self/numa_maps", "r");
    int shown = 0;
    printf("\"placement\": {");
    while (maps && fgets(line, sizeof(line), maps)) {
        if (strncmp(line, start, strlen(start)))
            continue;
        for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
            int node;
            unsigned long pages;
            if (sscanf(word, "N%d=%lu", &node, &pages) == 2)
                printf("%s\"%d\": %lu", shown++ ? ", " : "", node, pages);
        }
        break;
    }
    if (maps)
        fclose(maps);
    printf("}, ");
}

int main(int argc, char **argv)
{
    static int cpus[CPUS_MAX], touch[CPUS_MAX];
    static double seconds[3][REPETITIONS_MAX];
    if (argc < 6 || argc > 7) {
        printf("{\"error\": \"expected BYTES REPETITIONS SECONDS KERNELS CPUS [TOUCH_CPUS|node:N]\"}\n");
        return 2;
    }
    const size_t steps = strtoull(argv[1], NULL, 10) / (STEP * sizeof(double));
    const size_t bytes = steps * STEP * sizeof(double), count = steps * STEP;
    const int wanted = atoi(argv[2]);
    const double budget = atof(argv[3]);
    const char *kernels = argv[4];
    const int threads = parse_cpus(argv[5], cpus);
    const int node = argc == 7 && !strncmp(argv[6], "node:", 5) ? atoi(argv[6] + 5) : -1;
    const int touchers = argc == 7 && node < 0 ? parse_cpus(argv[6], touch) : 0;
    if (steps < 1 || wanted < 1 || wanted >= REPETITIONS_MAX || threads < 1 || touchers < 0 || node >= 1024) {
        printf("{\"error\": \"an argument is out of its range\"}\n");
        return 2;
    }
    const int writes = strpbrk(kernels, "ct") != NULL;
    double *a = allocate(bytes, node), *b = a, *c = a;
    if (a && writes) {
        b = allocate(bytes, node);
        c = allocate(bytes, node);
    }
    if (!a || !b || !c)
        return fail(node >= 0 ? "cannot bind memory to its node" : "cannot allocate the arrays");

    int unpinned = 0;
    const double touching = now();
    const int first_threads = touchers ? touchers : threads;
#pragma omp parallel num_threads(first_threads) reduction(+ : unpinned)
    {
        const int thread = omp_get_thread_num();
        size_t first, last;
        unpinned += pin(touchers ? touch[thread] : cpus[thread]) != 0;
        part(steps, thread, first_threads, &first, &last);
        for (size_t i = first * STEP; i < last * STEP; i++)
            a[i] = 1.0 + (double)(i & 7);
        for (size_t i = first * STEP; writes && i < last * STEP; i++) {
            b[i] = 2.0;
            c[i] = 0.0;
        }
    }
    const double touched = now() - touching;
    int repetitions = 0, started = 0, improved = 0;
    double sum = 0, begun = 0, best[3] = {1e30, 1e30, 1e30};
#pragma omp parallel num_threads(threads) reduction(+ : unpinned)
    {
        const int thread = omp_get_thread_num();
        size_t first, last;
        unpinned += pin(cpus[thread]) != 0;
        part(steps, thread, threads, &first, &last);
#pragma omp master
        started = omp_get_num_threads();
        for (int repetition = 0; repetition <= REPETITIONS_MAX; repetition++) {
            /* Kernels take turns, so that a disturbance of the machine meets all of them alike. */
            for (const char *kernel = kernels; *kernel; kernel++) {
                double partial = 0;
                const int row = *kernel == 'r' ? 0 : *kernel == 'c' ? 1 : 2;
#pragma omp barrier
#pragma omp master
                begun = now();
#pragma omp barrier
                if (row == 0)
                    partial = read_part(a, first, last);
                else if (row == 1)
                    copy_part(a, c, first, last);
                else
                    triad_part(a, b, c, first, last);
#pragma omp barrier
#pragma omp master
                if (repetition > 0) {
                    const double took = seconds[row][repetition - 1] = now() - begun;
                    if (took < best[row] * 0.99)
                        improved = repetition;
                    if (took < best[row])
                        best[row] = took;
                }
                if (row == 0 && repetition == 0) {
#pragma omp atomic
                    sum += partial;
                } else if (row == 0 && partial < 0) {
                    abort(); /* never so: it keeps the compiler from dropping the loads */
                }
            }
#pragma omp barrier
#pragma omp master
            if (repetition > 0) {
                repetitions = repetition;
                const int settled = repetition - improved >= wanted, late = now() - touching > budget;
                if (repetition >= REPETITIONS_MIN && (settled || late))
                    repetitions = -repetition;
            }
#pragma omp barrier
            if (repetitions < 0)
                break;
        }
    }
    if (repetitions < 0)
        repetitions = -repetitions;

    /* The answers are checked: a kernel that moved nothing would be fast. */
    const char *last_write = kernels + strlen(kernels);
    while (last_write > kernels && *--last_write == 'r')
        ;
    size_t wrong = 0;
    if (writes) {
#pragma omp parallel for num_threads(threads) reduction(+ : wrong)
        for (size_t i = 0; i < count; i++)
            wrong += c[i] != a[i] + (*last_write == 't' ? SCALE * b[i] : 0.0);
    }
    if (strchr(kernels, 'r'))
        wrong += sum != 4.5 * (double)count;
    printf("{\"isa\": \"%s\", \"non_temporal\": %s, \"array_bytes\": %zu, \"threads\": %d, \"unpinned\": %d, ", ISA,
           NON_TEMPORAL ? "true" : "false", bytes, started, unpinned);
    printf("\"touch_seconds\": %.3f, \"wrong\": %zu, ", touched, wrong);
    print_placement(a);
    printf("\"seconds\": {");
    for (const char *kernel = kernels; *kernel; kernel++) {
        const int row = *kernel == 'r' ? 0 : *kernel == 'c' ? 1 : 2;
        static const char *const names[] = {"read", "copy", "triad"};
        printf("%s\"%s\": [", kernel == kernels ? "" : ", ", names[row]);
        for (int i = 0; i < repetitions; i++)
            printf("%s%.9f", i ? ", " : "", seconds[row][i]);
        printf("]");
    }
    printf("}}\n");
    return 0;
}
"""
