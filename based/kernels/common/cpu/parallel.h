// Parallel loops over all cores. They use OpenMP because LibTorch uses the same runtime, and a second thread pool would compete with it.
// With BASED_HOST_THREADS they use the threads of the program that the kernels are linked into instead, and need no OpenMP runtime.
#pragma once
#include <atomic>
#include <cstdint>
#include <type_traits>
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

// Calls body(part) for every part of [0, parts), parts <= max_threads(), each on a thread of its own where there are so many.
template <class Body>
void run_parts(int64_t parts, Body&& body) {
#if defined(BASED_HOST_THREADS)
  host_threads.run(
      parts, [](void* context, int64_t part) { (*static_cast<std::remove_reference_t<Body>*>(context))(part); }, &body);
#elif defined(_OPENMP)
  // All threads begin, though some may have nothing to do: libgomp ends the threads that a smaller team lacks, and the next loop would have
  // to start them again, which takes much longer than most loops.
#pragma omp parallel num_threads(max_threads())
  for (int64_t part = omp_get_thread_num(), team = omp_get_num_threads(); part < parts; part += team) body(part);
#else
  for (int64_t part = 0; part < parts; ++part) body(part);
#endif
}

// Calls body(begin, end) on disjoint ranges that cover [0, n), of at least `grain` elements where n allows. Inside another parallel loop it
// runs on the calling thread.
template <class Body>
void parallel_for(int64_t n, int64_t grain, Body&& body) {
  if (n <= 0) return;
  const int64_t ranges = grain > 0 ? (n + grain - 1) / grain : n, parts = ranges < max_threads() ? ranges : max_threads();
  if (parts <= 1) return body(int64_t{0}, n);
  run_parts(parts, [&](int64_t part) { body(n * part / parts, n * (part + 1) / parts); });
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
  const int64_t threads = n < max_threads() ? n : max_threads();
  if (threads <= 1) {
    for (int64_t item = 0; item < n; ++item) body(item, int64_t{0});
    return;
  }
  std::atomic<int64_t> next{0};
  run_parts(threads, [&](int64_t thread) {
    for (int64_t item = next++; item < n; item = next++) body(item, thread);
  });
}

}  // namespace based::kernels::cpu
