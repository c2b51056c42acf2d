// Loops over all cores. OpenMP, because LibTorch brings the same runtime and a second pool of threads would fight with it.
#pragma once
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace based::kernels::cpu {

inline int max_threads() {
#ifdef _OPENMP
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

// body(begin, end) over disjoint ranges that cover [0, n), at least `grain` long where n allows; runs inline inside another such loop.
template <class Body>
void parallel_for(int64_t n, int64_t grain, Body&& body) {
  if (n <= 0) return;
  const int64_t parts = grain > 0 ? (n + grain - 1) / grain : n;
  const int threads = static_cast<int>(parts < max_threads() ? parts : max_threads());
  if (threads <= 1) {
    body(int64_t{0}, n);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  {
    const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
    const int64_t begin = n * me / team, end = n * (me + 1) / team;
    if (begin < end) body(begin, end);
  }
#endif
}

// body(item, thread) for every item of [0, n), handed out one by one since they differ in size; thread is below min(n, max_threads()).
template <class Body>
void parallel_items(int64_t n, Body&& body) {
  const int threads = static_cast<int>(n < max_threads() ? n : max_threads());
  if (threads <= 1) {
    for (int64_t item = 0; item < n; ++item) body(item, int64_t{0});
    return;
  }
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t item = 0; item < n; ++item) body(item, static_cast<int64_t>(omp_get_thread_num()));
#endif
}

}  // namespace based::kernels::cpu
