// Token ids with about as many different values as a real text has.
#pragma once
#include "bench/kernels/common/problems/device_memory.cuh"

namespace based::bench {

// Every third token has the same id.
inline std::vector<int64_t> embedding_ids(int64_t tokens, int64_t rows) {
  std::vector<int64_t> ids(tokens);
  for (int64_t t = 0; t < tokens; ++t) ids[t] = t % 3 == 0 ? rows / 2 : t * 7919 % rows;
  return ids;
}

}  // namespace based::bench
