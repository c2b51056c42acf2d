// A problem of one decode step of softmax attention over rings of keys and values.
#pragma once
#include <cmath>

#include "based/kernels/attention/causal_attention.h"
#include "bench/kernels/common/problems/device_memory.cuh"

namespace based::bench {

struct AttentionStepShape {
  int64_t rows, capacity;
  int32_t heads, kv_heads, head_dim;
  kernels::DType dtype, ring_dtype;
  std::vector<int64_t> positions;
  bool settled = false;
};

// Row r uses slot rows − 1 − r. q, k and v are columns of one tensor, as after a joint projection.
struct AttentionStepProblem {
  kernels::CausalAttentionStep p;
  Buffer qkv, k_ring, v_ring, y, position, slot;

  AttentionStepProblem(const AttentionStepShape& s, uint64_t seed) {
    p.rows = s.rows, p.capacity = s.capacity, p.heads = s.heads, p.kv_heads = s.kv_heads, p.head_dim = s.head_dim;
    p.dtype = s.dtype, p.ring_dtype = s.ring_dtype, p.scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
    p.ring_is_private = s.settled;
    const int64_t stride = (s.heads + 2 * s.kv_heads) * s.head_dim, size = kernels::dtype_size(s.dtype);
    qkv = random_buffer(s.rows * stride, s.dtype, 1.5, 3 * seed);
    k_ring = random_buffer(s.rows * s.capacity * s.kv_heads * s.head_dim, s.ring_dtype, 1.5, 3 * seed + 1);
    v_ring = random_buffer(s.rows * s.capacity * s.kv_heads * s.head_dim, s.ring_dtype, 1, 3 * seed + 2);
    y = Buffer(s.rows * s.heads * s.head_dim * size);
    std::vector<int64_t> slots(s.rows), positions(s.rows);
    for (int64_t r = 0; r < s.rows; ++r) slots[r] = s.rows - 1 - r, positions[r] = s.positions[r % s.positions.size()];
    slot = upload(slots), position = upload(positions);
    p.q = qkv.as(), p.k = qkv.as<char>() + s.heads * s.head_dim * size;
    p.v = qkv.as<char>() + (s.heads + s.kv_heads) * s.head_dim * size;
    p.q_stride = p.k_stride = p.v_stride = stride;
    p.y = y.as(), p.k_ring = k_ring.as(), p.v_ring = v_ring.as(), p.position = position.as<int64_t>(), p.slot = slot.as<int64_t>();
  }
};

}  // namespace based::bench
