// The ranks of one job as threads of the test.
#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "based/parallel/collectives.h"

namespace based {

// Calls body(ranks) for each rank in a thread of its own. Returns the exception of each rank, null if it threw none. A rank that throws
// must do so where all others throw too, or they wait for it.
inline std::vector<std::exception_ptr> on_rank_threads(int64_t world,
                                                       const std::function<void(const std::shared_ptr<Collectives>& ranks)>& body) {
  const auto ranks = make_thread_ranks(world);
  std::vector<std::exception_ptr> thrown(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        body(ranks[i]);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

inline void rethrow_first(const std::vector<std::exception_ptr>& thrown) {
  for (const std::exception_ptr& one : thrown)
    if (one) std::rethrow_exception(one);
}

}  // namespace based
