// The gated delta rule token by token, for any sizes. The columns of the state are independent; a few lanes share a column, each of which
// holds some of the keys in registers. docs/kernels/gated-delta-rule.md
#include <algorithm>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/delta_rule/cuda/delta_rule.cuh"

namespace based::kernels::cuda::detail {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

// A lane holds kKeysPerLane keys of a column, a multiple of 4; a column has kParts lanes.
template <int kKeysPerLane, int kParts>
struct Columns {
  static constexpr int kKeys = kKeysPerLane * kParts, kColumnsPerWarp = 32 / kParts, kColumnsPerBlock = kWarps * kColumnsPerWarp;
  static constexpr int kTile = kKeys >= 1024 ? 2 : std::min(32, 2048 / kKeys);  // tokens that are loaded at a time
  struct Shared {
    alignas(16) float q[kTile][kKeys], k[kTile][kKeys], decay[kTile][kKeys], bonus[kKeys];
    float v[kTile][kColumnsPerBlock], beta[kTile];
  };
  // The first of the four keys of group m of a lane.
  __device__ static int key(int m, int part) { return 4 * (m * kParts + part); }
  __device__ static float sum(float x) {
#pragma unroll
    for (int distance = kColumnsPerWarp; distance < 32; distance *= 2) x += __shfl_xor_sync(~0U, x, distance);
    return x;
  }
};

template <typename T, class C>
__device__ __forceinline__ void read_tokens(const GatedDeltaRule& p, int head, int first_column, int64_t token, int count,
                                            typename C::Shared& to) {
  const int64_t key_head = static_cast<int64_t>(head) * p.key_heads / p.heads;
  for (int at = static_cast<int>(threadIdx.x); at < count * C::kKeys; at += kThreads) {
    const int t = at / C::kKeys, c = at % C::kKeys;
    const bool is_key = c < p.key_dim;
    const int64_t from = ((token + t) * p.key_heads + key_head) * p.key_dim + c, line = (token + t) * p.heads + head;
    to.q[t][c] = is_key ? to_float(static_cast<const T*>(p.q)[from]) * p.scale : 0.0F;
    to.k[t][c] = is_key ? to_float(static_cast<const T*>(p.k)[from]) : 0.0F;
    to.decay[t][c] = is_key && p.log_decay != nullptr ? expf(p.log_decay[line * p.decay_dim + (p.decay_dim == 1 ? 0 : c)]) : 1.0F;
  }
  for (int at = static_cast<int>(threadIdx.x); at < count * C::kColumnsPerBlock; at += kThreads) {
    const int t = at / C::kColumnsPerBlock, column = first_column + at % C::kColumnsPerBlock;
    to.v[t][at % C::kColumnsPerBlock] =
        column < p.value_dim ? to_float(static_cast<const T*>(p.v)[((token + t) * p.heads + head) * p.value_dim + column]) : 0.0F;
  }
  for (int t = static_cast<int>(threadIdx.x); t < count; t += kThreads)
    to.beta[t] = p.beta != nullptr ? p.beta[(token + t) * p.heads + head] : 1.0F;
}

// Processes token t of a tile for one column: updates the column's state and returns y.
template <int kKeysPerLane, int kParts>
__device__ __forceinline__ float step_token(const GatedDeltaRule& p, const typename Columns<kKeysPerLane, kParts>::Shared& tile, int t,
                                            int part, int column, float (&s)[kKeysPerLane]) {
  using C = Columns<kKeysPerLane, kParts>;
  const float v = tile.v[t][column];
  float predicted = 0, read = 0;
#pragma unroll
  for (int i = 0; i < kKeysPerLane; ++i) {
    const int c = C::key(i / 4, part) + i % 4;
    if (p.bonus != nullptr) read = fmaf(tile.q[t][c], fmaf(tile.bonus[c] * tile.k[t][c], v, s[i]), read);
    s[i] *= tile.decay[t][c];
    predicted = fmaf(tile.k[t][c], s[i], predicted);
  }
  const float u = tile.beta[t] * (p.delta ? v - C::sum(predicted) : v);
#pragma unroll
  for (int i = 0; i < kKeysPerLane; ++i) {
    const int c = C::key(i / 4, part) + i % 4;
    s[i] = fmaf(tile.k[t][c], u, s[i]);
    if (p.bonus == nullptr) read = fmaf(tile.q[t][c], s[i], read);
  }
  return C::sum(read);
}

template <typename T, int kKeysPerLane, int kParts>
__global__ void __launch_bounds__(kThreads) step_tokens(const __grid_constant__ GatedDeltaRule p) {
  using C = Columns<kKeysPerLane, kParts>;
  __shared__ typename C::Shared tile;
  overlap_kernels();
  const int64_t slices = (p.value_dim + C::kColumnsPerBlock - 1) / C::kColumnsPerBlock, item = blockIdx.x / slices, row = item / p.heads;
  const int head = static_cast<int>(item % p.heads), first_column = static_cast<int>(blockIdx.x % slices) * C::kColumnsPerBlock;
  const int lane = static_cast<int>(threadIdx.x) % 32, part = lane / C::kColumnsPerWarp;
  const int column = static_cast<int>(threadIdx.x) / 32 * C::kColumnsPerWarp + lane % C::kColumnsPerWarp;
  const bool is_column = first_column + column < p.value_dim;
  const int64_t begin = p.row_start != nullptr ? p.row_start[row] : row, end = p.row_start != nullptr ? p.row_start[row + 1] : row + 1;
  const int64_t slot = p.slot != nullptr ? p.slot[row] : row;
  float* const state = p.state != nullptr ? p.state + (slot * p.heads + head) * p.key_dim * p.value_dim + first_column + column : nullptr;
  const auto each_key = [&](auto&& visit) {
#pragma unroll
    for (int i = 0; i < kKeysPerLane; ++i) {
      const int key = C::key(i / 4, part) + i % 4;
      if (state != nullptr && is_column && key < p.key_dim) visit(i, static_cast<int64_t>(key) * p.value_dim);
    }
  };
  float s[kKeysPerLane] = {};
  each_key([&](int i, int64_t at) { s[i] = state[at]; });
  for (int c = static_cast<int>(threadIdx.x); c < C::kKeys; c += kThreads)
    tile.bonus[c] = p.bonus != nullptr && c < p.key_dim ? p.bonus[static_cast<int64_t>(head) * p.key_dim + c] : 0.0F;
  for (int64_t token = begin; token < end; token += C::kTile) {
    const int count = static_cast<int>(end - token < C::kTile ? end - token : C::kTile);
    __syncthreads();
    read_tokens<T, C>(p, head, first_column, token, count, tile);
    __syncthreads();
    for (int t = 0; t < count; ++t) {
      const float y = step_token<kKeysPerLane, kParts>(p, tile, t, part, column, s);
      if (is_column && part == 0)
        static_cast<T*>(p.y)[((token + t) * p.heads + head) * p.value_dim + first_column + column] = from_float<T>(y);
    }
  }
  each_key([&](int i, int64_t at) { state[at] = s[i]; });
}

template <typename T, int kKeysPerLane, int kParts>
Status launch_tokens(const GatedDeltaRule& p, Queue queue) {
  const int64_t blocks = p.rows * p.heads * ceil_div(p.value_dim, Columns<kKeysPerLane, kParts>::kColumnsPerBlock);
  return launch_overlapped(step_tokens<T, kKeysPerLane, kParts>, {static_cast<unsigned>(blocks), kThreads}, queue, p);
}

template <typename T>
Status by_token(const GatedDeltaRule& p, Queue queue) {
  if (p.key_dim <= 16) return launch_tokens<T, 4, 4>(p, queue);
  if (p.key_dim <= 64) return launch_tokens<T, 16, 4>(p, queue);
  if (p.key_dim <= 128) return launch_tokens<T, 32, 4>(p, queue);
  if (p.key_dim <= 256) return launch_tokens<T, 64, 4>(p, queue);
  return launch_tokens<T, 64, 16>(p, queue);
}

}  // namespace

Status gated_delta_rule_by_token(const GatedDeltaRule& p, Queue queue) {
  return p.dtype == DType::bf16 ? by_token<bf16>(p, queue) : by_token<float>(p, queue);
}

}  // namespace based::kernels::cuda::detail
