// A step of the gated delta rule. A block handles a slice of the value channels of a row and head, whose state it holds in registers
// between load and store. docs/kernels/gated-delta-rule.md
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/log_sigmoid.cuh"
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/delta_rule/cuda/delta_rule.cuh"
#include "based/kernels/delta_rule/delta_rule_step.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kLines = 16;  // a thread handles four value channels of every kLines-th key
constexpr int kWideColumns = 2 * kRuleStepColumns, kWideBlocks = 3;

// Threads of a block. Wider slices have more threads, not more columns a thread, so the order of the sums and a row's bits do not depend on
// the number of rows.
template <int kColumns>
struct Slice {
  static constexpr int kQuads = kColumns / 4, kThreads = kQuads * kLines, kWarps = kThreads / 32;
};

__device__ __forceinline__ void add_times(float (&sum)[4], float factor, const float (&x)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) sum[j] = fmaf(factor, x[j], sum[j]);
}
// Sum over the threads of a warp that handle the same channels.
template <int kQuads>
__device__ __forceinline__ float sum_of_lines(float x) {
#pragma unroll
  for (int distance = kQuads; distance < 32; distance *= 2) x += __shfl_xor_sync(~0U, x, distance);
  return x;
}
// term(first) + … + term(first + kCount − 1), as the sum of the sums of both halves.
template <int kCount, class Term>
__device__ __forceinline__ float sum_of_halves(const Term& term, int first = 0) {
  if constexpr (kCount == 1)
    return term(first);
  else
    return sum_of_halves<kCount / 2>(term, first) + sum_of_halves<kCount / 2>(term, first + kCount / 2);
}

template <int kKeys, int kColumns>
struct StepShared {
  static constexpr int kWarps = Slice<kColumns>::kWarps;
  float q[kKeys], k[kKeys], decay[kKeys], own_q[kKeys];  // own_q: the query of the token's own key: q times the bonus, or q
  alignas(16) float predicted[kWarps][kColumns], read[kWarps][kColumns];
  float dot[kWarps];
};

// The layer that computes the decays: log decay = scale · log sigmoid(output).
struct DecayLayer {
  const bf16* x = nullptr;
  const bf16* weight = nullptr;
  const bf16* bias = nullptr;
  int64_t x_stride = 0, weight_stride = 0;
  float scale = 1;
};
// Decays from given logarithms.
template <int kKeys, int kThreads>
struct GivenDecays {
  __device__ __forceinline__ GivenDecays(const GatedDeltaRule&, const DecayLayer&, int /*head*/) {}
  __device__ __forceinline__ void read_token(const DecayLayer&, int64_t /*row*/) {}
  __device__ __forceinline__ float decay(const GatedDeltaRule& p, const DecayLayer&, int64_t line, int c, int /*round*/) const {
    return p.log_decay != nullptr ? expf(p.log_decay[line * p.decay_dim + (p.decay_dim == 1 ? 0 : c)]) : 1.0F;
  }
};
// Decays from a layer. Its weights are loaded before the token is available.
template <int kKeys, int kThreads>
struct LayerDecays {
  static constexpr int kRounds = (kKeys + kThreads - 1) / kThreads, kInputs = kRuleStepInputs, kHalf = kInputs / 2;
  Elements<bf16, kHalf> weight[kRounds][2], x[2];
  float bias[kRounds];

  __device__ __forceinline__ LayerDecays(const GatedDeltaRule& p, const DecayLayer& layer, int head) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int c = round * kThreads + static_cast<int>(threadIdx.x), out = head * p.key_dim + c;
      bias[round] = 0;
      if (c >= p.key_dim) continue;
      read(layer.weight + out * layer.weight_stride, weight[round]);
      if (layer.bias != nullptr) bias[round] = to_float(layer.bias[out]);
    }
  }
  __device__ __forceinline__ static void read(const bf16* from, Elements<bf16, kHalf> (&to)[2]) {
    to[0] = *reinterpret_cast<const Elements<bf16, kHalf>*>(from), to[1] = *reinterpret_cast<const Elements<bf16, kHalf>*>(from + kHalf);
  }
  __device__ __forceinline__ void read_token(const DecayLayer& layer, int64_t row) { read(layer.x + row * layer.x_stride, x); }
  __device__ __forceinline__ float decay(const GatedDeltaRule&, const DecayLayer& layer, int64_t /*line*/, int /*c*/, int round) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) sum = fmaf(to_float(x[i / kHalf].x[i % kHalf]), to_float(weight[round][i / kHalf].x[i % kHalf]), sum);
    return expf(layer.scale * log_sigmoid(to_float(from_float<bf16>(sum + bias[round]))));
  }
};

template <typename T, int kKeys, int kColumns, class Decays>
__device__ __forceinline__ void read_token(const GatedDeltaRule& p, const DecayLayer& layer, const Decays& decays, int64_t row, int head,
                                           StepShared<kKeys, kColumns>& to) {
  constexpr int kThreads = Slice<kColumns>::kThreads;
  const int64_t key_line = row * p.key_heads + static_cast<int64_t>(head) * p.key_heads / p.heads, line = row * p.heads + head;
#pragma unroll
  for (int round = 0; round < (kKeys + kThreads - 1) / kThreads; ++round) {
    const int c = round * kThreads + static_cast<int>(threadIdx.x);
    if (c >= kKeys) break;
    const bool is_key = c < p.key_dim;
    const float q = is_key ? to_float(static_cast<const T*>(p.q)[key_line * p.key_dim + c]) * p.scale : 0.0F;
    const float k = is_key ? to_float(static_cast<const T*>(p.k)[key_line * p.key_dim + c]) : 0.0F;
    const float decay = is_key ? decays.decay(p, layer, line, c, round) : 1.0F;
    to.q[c] = q, to.k[c] = k, to.decay[c] = decay;
    to.own_q[c] = is_key && p.bonus != nullptr ? q * p.bonus[static_cast<int64_t>(head) * p.key_dim + c] : q;
  }
}

// kKeys: largest key_dim; kPrivateState: p.state_is_private. y = read + (q · k) u, where `read` is computed from the decayed state, so that
// one pass over the keys yields both the sums for u and those for y.
template <typename T, int kKeys, int kColumns, bool kPrivateState, template <int, int> class Decays>
__global__ void __launch_bounds__(Slice<kColumns>::kThreads, kColumns == kWideColumns ? kWideBlocks
                                                             : kKeys <= 64            ? 8
                                                             : kKeys <= 128           ? 6
                                                                                      : 3)
    step_slices(const __grid_constant__ GatedDeltaRule p, const __grid_constant__ DecayLayer layer) {
  constexpr int kKeysPerThread = kKeys / kLines, kQuads = Slice<kColumns>::kQuads, kWarps = Slice<kColumns>::kWarps;
  __shared__ StepShared<kKeys, kColumns> token;
  let_next_kernel_start();
  if constexpr (!kPrivateState) wait_for_earlier_kernels();
  const int slices = p.value_dim / kColumns, item = static_cast<int>(blockIdx.x) / slices, row = item / p.heads;
  const int head = item % p.heads, lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int column = static_cast<int>(threadIdx.x) % kQuads * 4, line = static_cast<int>(threadIdx.x) / kQuads;
  const int first = static_cast<int>(blockIdx.x) % slices * kColumns + column;
  float* const state = p.state + (p.slot[row] * p.heads + head) * p.key_dim * p.value_dim + first;
  float s[kKeysPerThread][4], v[4];
#pragma unroll
  for (int i = 0; i < kKeysPerThread; ++i) {
    const int key = line + i * kLines;
    s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
    if (key < p.key_dim) load_floats<4>(state + static_cast<int64_t>(key) * p.value_dim, s[i]);
  }
  Decays<kKeys, Slice<kColumns>::kThreads> decays(p, layer, head);
  if constexpr (kPrivateState) wait_for_earlier_kernels();
  decays.read_token(layer, row);
  load_floats<4>(static_cast<const T*>(p.v) + int64_t{item} * p.value_dim + first, v);
  const float beta = p.beta != nullptr ? p.beta[item] : 1.0F;
  read_token<T>(p, layer, decays, row, head, token);
  __syncthreads();
  float predicted[4] = {}, read[4] = {}, dot = 0;
#pragma unroll
  for (int i = 0; i < kKeysPerThread; ++i) {
    const int key = line + i * kLines;
    const float q = token.q[key], k = token.k[key], decay = token.decay[key];
    if (p.bonus != nullptr) add_times(read, q, s[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i][j] *= decay;
    if (p.bonus == nullptr) add_times(read, q, s[i]);
    add_times(predicted, k, s[i]);
    dot = fmaf(token.own_q[key], k, dot);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) predicted[j] = sum_of_lines<kQuads>(predicted[j]), read[j] = sum_of_lines<kQuads>(read[j]);
  dot = sum_of_lines<kQuads>(dot);
  if (lane < kQuads) store_floats<4>(&token.predicted[warp][column], predicted), store_floats<4>(&token.read[warp][column], read);
  if (lane == 0) token.dot[warp] = dot;
  __syncthreads();
  float u[4], y[4];
  dot = sum_of_halves<kWarps>([&](int w) { return token.dot[w]; });
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float before = sum_of_halves<kWarps>([&](int w) { return token.predicted[w][column + j]; });
    u[j] = beta * (p.delta ? v[j] - before : v[j]);
    y[j] = fmaf(dot, u[j], sum_of_halves<kWarps>([&](int w) { return token.read[w][column + j]; }));
  }
#pragma unroll
  for (int i = 0; i < kKeysPerThread; ++i) {
    const int key = line + i * kLines;
    add_times(s[i], token.k[key], u);
    if (key < p.key_dim) store_floats<4>(state + static_cast<int64_t>(key) * p.value_dim, s[i]);
  }
  if (line == 0) store_floats<4>(static_cast<T*>(p.y) + int64_t{item} * p.value_dim + first, y);
}

// kMaxColumns: columns of a slice where such slices fill the GPU.
template <typename T, int kKeys, int kMaxColumns, template <int, int> class Decays>
Status step_of_keys(const GatedDeltaRule& p, const DecayLayer& layer, Queue queue) {
  const auto run = [&]<int kColumns>() {
    auto* kernel = p.state_is_private ? step_slices<T, kKeys, kColumns, true, Decays> : step_slices<T, kKeys, kColumns, false, Decays>;
    const auto blocks = static_cast<unsigned>(p.rows * p.heads * (p.value_dim / kColumns));
    return launch_overlapped(kernel, {blocks, unsigned{Slice<kColumns>::kThreads}}, queue, p, layer);
  };
  if constexpr (kMaxColumns > kRuleStepColumns) {
    const bool fill = p.rows * p.heads * (p.value_dim / kMaxColumns) >= kWideBlocks * int64_t{multiprocessors()};
    if (fill && p.value_dim % kMaxColumns == 0) return run.template operator()<kMaxColumns>();
  }
  return run.template operator()<kRuleStepColumns>();
}
// Wide slices are used only with key_dim 65 to 128, where they were measured to be faster.
template <typename T, int kMaxColumns, template <int, int> class Decays>
Status step(const GatedDeltaRule& p, const DecayLayer& layer, Queue queue) {
  return p.key_dim <= 64    ? step_of_keys<T, 64, kRuleStepColumns, Decays>(p, layer, queue)
         : p.key_dim <= 128 ? step_of_keys<T, 128, kMaxColumns, Decays>(p, layer, queue)
                            : step_of_keys<T, 256, kRuleStepColumns, Decays>(p, layer, queue);
}

}  // namespace

Status gated_delta_rule_step(const GatedDeltaRule& p, Queue queue) {
  if (const char* error = validate(p)) return {error};
  if (p.tokens != p.rows) return {"gated_delta_rule_step: a row has one token"};
  if (p.rows == 0) return {};
  if (p.state == nullptr || p.slot == nullptr) return {"gated_delta_rule_step: a tensor is null"};
  if (!gated_delta_rule_step_in_slices(p)) {
    GatedDeltaRule one = p;
    one.row_start = nullptr;
    return gated_delta_rule_by_token(one, queue);
  }
  return p.dtype == DType::bf16 ? step<bf16, kRuleStepColumns, GivenDecays>(p, {}, queue)
                                : step<float, kRuleStepColumns, GivenDecays>(p, {}, queue);
}

Status gated_delta_rule_step_of_layer(const GatedDeltaRuleOfLayer& p, Queue queue) {
  if (const char* error = validate(p.rule)) return {error};
  if (!gated_delta_rule_makes_decays(p, this_gpu())) return {"gated_delta_rule_step_of_layer: no kernel for these sizes and types"};
  if (p.rule.rows == 0) return {};
  if (p.rule.state == nullptr || p.rule.slot == nullptr) return {"gated_delta_rule_step_of_layer: a tensor is null"};
  const auto as_bf16 = [](const void* tensor) { return static_cast<const bf16*>(tensor); };
  const Linear& linear = p.layer;
  const DecayLayer layer{as_bf16(linear.x), as_bf16(linear.weight), as_bf16(linear.bias), linear.x_stride, linear.weight_stride, p.scale};
  // Each slice recomputes its head's decays, so wide slices compute them half as often.
  return step<bf16, kWideColumns, LayerDecays>(p.rule, layer, queue);
}

namespace {
const DefineLaunchers<GatedDeltaRuleOfLayerLaunchers> kOfLayer(Device::cuda, {.step = gated_delta_rule_step_of_layer});
}

}  // namespace based::kernels::cuda
