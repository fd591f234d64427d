/* Threads of the library: signals are the program's own, so no thread of ours takes any. */
#ifndef SHEAF_BASE_THREAD_H
#define SHEAF_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create, with all signals blocked in the new thread. Returns its error number or 0. */
static inline int sheaf__thread_start(pthread_t *thread, void *(*run)(void *), void *arg) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

/* Of a thread that looks at memory again and again: the core's other thread may work meanwhile, and a number of looks
 * takes about the same time everywhere (D200: `yield` takes none on most 64-bit ARM cores). */
static inline void sheaf__relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

#endif
