// Parallel loops over all cores. They use OpenMP because LibTorch uses the same runtime, and a second thread pool would compete with it.
// With BASED_HOST_THREADS they use the threads of the program that the kernels are linked into instead, and need no OpenMP runtime.
#pragma once
#include <atomic>
#include <cstdint>
#include <utility>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace based::kernels::cpu {

// Scratch memory is cut at cache lines, so that threads share none.
constexpr int64_t cache_line = 64;  // bytes
constexpr int64_t whole_cache_lines(int64_t bytes) { return (bytes + cache_line - 1) / cache_line * cache_line; }
inline char* next_cache_line(void* memory) {
  return reinterpret_cast<char*>(whole_cache_lines(static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory))));
}

#ifdef BASED_HOST_THREADS
// The program sets these functions before it calls a kernel. Without them loops run on the calling thread.
struct HostThreads {
  int (*max)() = nullptr;
  // Calls body(context, part) for every part of [0, parts), on any threads and in any order, and returns when all have ended.
  void (*run)(int64_t parts, void (*body)(void* context, int64_t part), void* context) = nullptr;
};
inline HostThreads host_threads;

template <class Body>
void run_on_host_threads(int64_t parts, Body& body) {
  host_threads.run(
      parts, [](void* context, int64_t part) { (*static_cast<Body*>(context))(part); }, &body);
}
#endif

inline int max_threads() {
#if defined(BASED_HOST_THREADS)
  return host_threads.max != nullptr ? host_threads.max() : 1;
#elif defined(_OPENMP)
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

// Calls body(begin, end) on disjoint ranges that cover [0, n), of at least `grain` elements where n allows. Inside another parallel loop it
// runs on the calling thread.
template <class Body>
void parallel_for(int64_t n, int64_t grain, Body&& body) {
  if (n <= 0) return;
  const int64_t parts = grain > 0 ? (n + grain - 1) / grain : n;
  const int threads = static_cast<int>(parts < max_threads() ? parts : max_threads());
  if (threads <= 1) {
    body(int64_t{0}, n);
    return;
  }
#if defined(BASED_HOST_THREADS)
  auto run_part = [&](int64_t part) { body(n * part / threads, n * (part + 1) / threads); };
  run_on_host_threads(threads, run_part);
#elif defined(_OPENMP)
#pragma omp parallel num_threads(threads)
  {
    const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
    const int64_t begin = n * me / team, end = n * (me + 1) / team;
    if (begin < end) body(begin, end);
  }
#endif
}

// parallel_for over rows of `width` numbers each. Starting a second thread costs a few microseconds, in which one thread works through
// about 32,768 numbers.
template <class Body>
void parallel_rows(int64_t rows, int64_t width, Body&& body) {
  const int64_t grain = 32 * 1024 / (width > 1 ? width : 1);
  parallel_for(rows, grain > 1 ? grain : 1, std::forward<Body>(body));
}

// Calls body(item, thread) for every item of [0, n). Items are scheduled dynamically one by one, since their costs differ; thread is less
// than min(n, max_threads()).
template <class Body>
void parallel_items(int64_t n, Body&& body) {
  const int threads = static_cast<int>(n < max_threads() ? n : max_threads());
  if (threads <= 1) {
    for (int64_t item = 0; item < n; ++item) body(item, int64_t{0});
    return;
  }
#if defined(BASED_HOST_THREADS)
  std::atomic<int64_t> next{0};
  auto run_part = [&](int64_t part) {
    for (int64_t item = next++; item < n; item = next++) body(item, part);
  };
  run_on_host_threads(threads, run_part);
#elif defined(_OPENMP)
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t item = 0; item < n; ++item) body(item, static_cast<int64_t>(omp_get_thread_num()));
#endif
}

}  // namespace based::kernels::cpu
