// The backward of the gated delta rule by chunks: what is inside of chunks and their states are computed again, then the state's gradient
// goes from chunk to chunk, then all other gradients are made chunk by chunk. docs/kernels/gated-delta-rule.md
#include "based/kernels/cuda/gated_delta_rule_carry.cuh"
#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

// Places in shared memory, in bytes: the state's gradient and that of u as bf16, and two stages of a chunk.
template <int kKeys, bool kDelta>
struct Places {
  static constexpr int kKeyBytes = kRuleChunk * (kKeys + 8) * 2, kSliceBytes = kRuleChunk * kSlicePitch * 2;
  static constexpr int kQ = 0, kK = kKeyBytes, kW = 2 * kKeyBytes, kScores = kDelta ? kW + kKeyBytes : kW,
                       kGradY = kScores + kRuleChunk * kScorePitch * 2, kDecays = kGradY + kSliceBytes, kStage = kDecays + kKeys * 4;
  static constexpr int kGradU = kKeys * kSlicePitch * 2, kStages = kGradU + kSliceBytes, kEnd = kStages + 2 * kStage;
};

template <int kKeys, bool kDelta>
struct Carrier : CarriedSlice<kKeys> {
  using At = Places<kKeys, kDelta>;
  using Slice = CarriedSlice<kKeys>;
  using Slice::p, Slice::head, Slice::column, Slice::warp;
  const RuleBackward& to;
  char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);

  __device__ __forceinline__ Carrier(const RuleBackward& of, int64_t index) : Slice(of.call.of, index), to(of) {}

  __device__ __forceinline__ void request(uint32_t stage, int64_t number, int64_t first, int tokens) const {
    const int64_t line = (first * p.heads + head) * kKeys, stride = static_cast<int64_t>(p.heads) * kKeys;
    request_tile<kKeys>(stage + At::kQ, to.call.q + line, stride, tokens);
    request_tile<kKeys>(stage + At::kK, to.call.k + line, stride, tokens);
    if constexpr (kDelta) request_tile<kKeys>(stage + At::kW, to.call.w + line, stride, tokens);
    request_tile<kRuleChunk>(stage + At::kScores, to.call.scores + (number * p.heads + head) * kRuleChunk * kRuleChunk, kRuleChunk,
                             kRuleChunk);
    request_tile<kSlice>(stage + At::kGradY, this->values_of(const_cast<void*>(to.of.grad_y), first),
                         static_cast<int64_t>(p.heads) * p.value_dim, tokens);
    this->request_decays(stage + At::kDecays, to.call.decays, number);
  }

  // The gradient of u of the warp's 16 tokens: scoresᵀ grad_y + k̃ grad_S.
  __device__ __forceinline__ void find_grad_u(uint32_t stage) const {
    float sum[kSlice / 8][4] = {};
    add_transposed<kSlice / 8>(sum, stage + At::kScores, kScorePitch, 16 * warp, stage + At::kGradY, kSlicePitch, 0, 16 * warp, kRuleChunk);
    add_by_k<kSlice / 8>(sum, stage + At::kK, kKeys + 8, 16 * warp, base, kSlicePitch, 0, kKeys);
    store_sums(shared + At::kGradU, kSlicePitch, 16 * warp, sum);
  }
};

template <int kKeys, bool kDelta>
__global__ void __launch_bounds__(kRuleThreads) carry_gradients(const __grid_constant__ RuleBackward to) {
  using At = Places<kKeys, kDelta>;
  overlap_kernels();
  Carrier<kKeys, kDelta> carrier(to, blockIdx.x);
  const GatedDeltaRule& p = to.call.of;
  const int64_t start = p.row_start[carrier.row], stop = p.row_start[carrier.row + 1];
  const auto tokens_from = [&](int64_t first) { return static_cast<int>(stop - first < kRuleChunk ? stop - first : kRuleChunk); };
  const int64_t chunks = (stop - start + kRuleChunk - 1) / kRuleChunk;
  int64_t number = start / kRuleChunk + carrier.row + chunks - 1, first = start + (chunks - 1) * kRuleChunk;
  uint32_t stage = carrier.base + At::kStages;
  if (chunks > 0) carrier.request(stage, number, first, tokens_from(first));
  copy_async_commit();
  carrier.load(to.of.grad_state, carrier.row);
  for (; first >= start && chunks > 0; first -= kRuleChunk, --number) {
    const int64_t next = first - kRuleChunk;
    const uint32_t other = 2 * (carrier.base + At::kStages) + At::kStage - stage;
    if (next >= start) carrier.request(other, number - 1, next, kRuleChunk);
    copy_async_commit();
    carrier.round(carrier.shared);
    copy_async_wait<1>();
    __syncthreads();
    carrier.write_rounded(to.grad_states, number, carrier.base, static_cast<int>(threadIdx.x));
    carrier.find_grad_u(stage);
    __syncthreads();
    store_lines<kSlice>(carrier.values_of(to.grad_u, first), static_cast<int64_t>(p.heads) * p.value_dim, carrier.base + At::kGradU,
                        kSlicePitch, 0, kRuleChunk, tokens_from(first), static_cast<int>(threadIdx.x), kRuleThreads);
    carrier.scale(carrier.shared + (stage - carrier.base) + At::kDecays);
    carrier.template add<false>(stage + At::kQ, stage + At::kGradY);
    if constexpr (kDelta) carrier.template add<true>(stage + At::kW, carrier.base + At::kGradU);
    __syncthreads();
    stage = other;
  }
  carrier.store(to.of.grad_initial_state, carrier.row);
}

template <int kKeys, bool kDelta>
Status launch_carry(const RuleBackward& p, Stream stream) {
  constexpr int kBytes = Places<kKeys, kDelta>::kEnd;
  if (const cudaError_t e = allow_shared_memory(carry_gradients<kKeys, kDelta>, kBytes); e != cudaSuccess) return status_of(e);
  const GatedDeltaRule& of = p.call.of;
  const int64_t blocks = of.rows * of.heads * (of.value_dim / kSlice);
  return launch_overlapped(carry_gradients<kKeys, kDelta>, {static_cast<unsigned>(blocks), kRuleThreads, kBytes}, stream, p);
}

Status carry_back(const RuleBackward& p, Stream stream) {
  const bool delta = p.call.of.delta;
  if (p.call.of.key_dim == 64) return delta ? launch_carry<64, true>(p, stream) : launch_carry<64, false>(p, stream);
  return delta ? launch_carry<128, true>(p, stream) : launch_carry<128, false>(p, stream);
}

// The scratch memory from `at` on; the bytes that it takes.
int64_t share_out_backward(RuleBackward& p, char* at) {
  const GatedDeltaRule& of = p.call.of;
  const int64_t values = of.tokens * of.heads * of.value_dim, chunks = chunk_numbers(of.tokens, of.rows) * of.heads;
  int64_t used = share_out(p.call, at, true);
  const auto take = [&](int64_t count) {
    auto* part = reinterpret_cast<bf16*>(at + used);
    used += round_up(count * static_cast<int64_t>(sizeof(bf16)), 256);
    return part;
  };
  p.grad_states = take(chunks * of.key_dim * of.value_dim);
  p.grad_u = static_cast<bf16*>(p.of.grad_v);
  if (!of.delta) return used;
  p.grad_u = take(values), p.call.of.y = take(values);
  p.call.inverse = take(chunks * kRuleChunk * kRuleChunk);
  return used;
}

}  // namespace

bool gated_delta_rule_has_backward(const GatedDeltaRule& p) {
  return has_chunks(p) && p.key_dim <= 128 && p.bonus == nullptr && (p.delta || p.beta == nullptr);
}

int64_t gated_delta_rule_backward_scratch(const GatedDeltaRuleBackward& p) {
  RuleBackward parts{p, {p.forward}, nullptr, nullptr};
  return share_out_backward(parts, nullptr);
}

Status gated_delta_rule_backward(const GatedDeltaRuleBackward& p, void* scratch, Stream stream) {
  GatedDeltaRule forward = p.forward;
  forward.y = p.grad_v;  // not read
  forward.slot = nullptr;
  if (const char* what = wrong_with(forward)) return {what};
  if (!gated_delta_rule_has_backward(forward)) return {"gated_delta_rule_backward: no kernel for these sizes and options"};
  if (p.forward.rows == 0) return {};
  for (const void* tensor : {forward.q, forward.k, forward.v, p.grad_y, static_cast<const void*>(p.grad_q),
                             static_cast<const void*>(p.grad_k), static_cast<const void*>(p.grad_v)})
    if (!aligned16(tensor)) return {"gated_delta_rule_backward: tensors must be aligned to 16 bytes"};
  RuleBackward parts{p, {forward}, nullptr, nullptr};
  share_out_backward(parts, static_cast<char*>(scratch));
  if (const Status inside = gated_delta_rule_inside(parts.call, stream); !inside.ok()) return inside;
  if (const Status carried = gated_delta_rule_carry(parts.call, stream); !carried.ok()) return carried;
  if (const Status carried = carry_back(parts, stream); !carried.ok()) return carried;
  if (forward.tokens == 0) return {};
  return has_channel_decays(forward) ? gated_delta_rule_backward_channels(parts, stream) : gated_delta_rule_backward_heads(parts, stream);
}

}  // namespace based::kernels::cuda
