// Problems of Taylor attention: rows of tokens, with states and gradients.
#pragma once
#include "based/kernels/taylor/taylor.h"
#include "bench/kernels/common/problems/device_memory.cuh"

namespace based::bench {

struct TaylorShape {
  std::vector<int64_t> lengths;
  int32_t heads = 2, feature_dim = 16, head_dim = 64;
  kernels::DType dtype = kernels::DType::bf16;
  bool state = false, decay = false, settled = false, single_tf32 = false, decay_denominator = true;
  std::string name() const;
};

// One problem with its buffers. Its states are those after some random tokens; slots are a permutation of the rows.
struct TaylorProblem {
  kernels::TaylorAttention p;
  Buffer q, k, v, y, denominator, kv_state, k_state, decay, row_start, slot, scratch;

  // `states` other than 0: the states are random numbers instead, for a timing.
  TaylorProblem(const TaylorShape& shape, uint64_t seed, int64_t states = 0);

 private:
  void make_states(const TaylorShape& shape, uint64_t seed, int64_t states);
};

// The allowed error of y. In bf16 the inputs are exact; the features of q and of k are rounded once each, and y once.
inline double taylor_limit(kernels::DType dtype) { return dtype == kernels::DType::bf16 ? 5e-3 : 2e-6; }

// The backward of a problem whose forward the kernel has computed.
struct TaylorBackwardProblem {
  kernels::TaylorAttentionBackward p;
  Buffer grad_y, grad_kv, grad_k_sums, initial_kv, initial_k, q, k, v, kv, k_sums, scratch;

  TaylorBackwardProblem(const TaylorProblem& problem, const TaylorShape& shape, uint64_t seed);
};

}  // namespace based::bench
