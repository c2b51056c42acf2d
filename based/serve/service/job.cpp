#include "based/serve/service/job.h"

#include "based/core/random.h"

namespace based {

int64_t choice_seed(int64_t seed, int64_t choice) {
  if (choice == 0) return seed;
  return static_cast<int64_t>(Random(static_cast<uint64_t>(seed), static_cast<uint64_t>(choice)).next64() >> 1U);
}

}  // namespace based
