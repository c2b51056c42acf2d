// The backward of the gated delta rule by chunks: what is inside of chunks and their states are computed again, then the state's gradient
// goes from chunk to chunk, then all other gradients are made chunk by chunk. docs/kernels/gated-delta-rule.md
#include "based/kernels/cuda/gated_delta_rule_carry.cuh"
#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

// Places in shared memory, in bytes: the state's gradient as bf16, that of u, and stages of a chunk. Without the delta rule the state's
// next gradient is written while readers are at the last one: two tiles.
template <int kKeys, bool kDelta, int kCount>
struct Places {
  static constexpr int kKeyBytes = kRuleChunk * (kKeys + 8) * 2, kSliceBytes = kRuleChunk * kSlicePitch * 2;
  static constexpr int kQ = 0, kK = kKeyBytes, kW = 2 * kKeyBytes, kScores = kDelta ? kW + kKeyBytes : kW,
                       kGradY = kScores + kRuleChunk * kScorePitch * 2, kDecays = kGradY + kSliceBytes, kStage = kDecays + kKeys * 4;
  static constexpr int kTile = kKeys * kSlicePitch * 2, kGradU = (kDelta ? 1 : 2) * kTile, kStages = kGradU + kSliceBytes,
                       kEnd = kStages + kCount * kStage;
};

template <int kKeys, bool kDelta, int kCount>
struct Carrier : CarriedSlice<kKeys> {
  using At = Places<kKeys, kDelta, kCount>;
  using Slice = CarriedSlice<kKeys>;
  using Slice::p, Slice::head, Slice::column, Slice::lane;
  const RuleBackward& to;
  char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x) % kRuleThreads, line = thread / 32 * 16;  // the first of the warp's 16 tokens

  __device__ __forceinline__ Carrier(const RuleBackward& of, int64_t index) : Slice(of.call.of, index), to(of) {}

  __device__ __forceinline__ int64_t value_stride() const { return static_cast<int64_t>(p.heads) * p.value_dim; }

  __device__ __forceinline__ void request(uint32_t stage, int64_t number, int64_t first, int tokens) const {
    const int64_t at = (first * p.heads + head) * kKeys, stride = static_cast<int64_t>(p.heads) * kKeys;
    request_tile<kKeys, kCarryThreads>(stage + At::kQ, to.call.q + at, stride, tokens);
    request_tile<kKeys, kCarryThreads>(stage + At::kK, to.call.k + at, stride, tokens);
    if constexpr (kDelta) request_tile<kKeys, kCarryThreads>(stage + At::kW, to.call.w + at, stride, tokens);
    request_tile<kRuleChunk, kCarryThreads>(stage + At::kScores, to.call.scores + (number * p.heads + head) * kRuleChunk * kRuleChunk,
                                            kRuleChunk, kRuleChunk);
    request_tile<kSlice, kCarryThreads>(stage + At::kGradY, this->values_of(const_cast<void*>(to.of.grad_y), first), value_stride(),
                                        tokens);
    this->request_decays(stage + At::kDecays, to.call.decays, number);
  }

  // The gradient of u of the warp's 16 tokens: scoresᵀ grad_y + k̃ grad_S.
  __device__ __forceinline__ void find_grad_u(uint32_t stage, int tile) const {
    float sum[kSlice / 8][4] = {};
    add_transposed<kSlice / 8>(sum, stage + At::kScores, kScorePitch, line, stage + At::kGradY, kSlicePitch, 0, line, kRuleChunk);
    add_by_k<kSlice / 8>(sum, stage + At::kK, kKeys + 8, line, base + tile, kSlicePitch, 0, kKeys);
    store_sums(shared + At::kGradU, kSlicePitch, line, sum);
  }
  __device__ __forceinline__ void write_grad_u(int64_t first, int tokens) const {
    store_lines<kSlice, 16, 32>(this->values_of(to.grad_u, first), value_stride(), base + At::kGradU, kSlicePitch, line, tokens, lane);
  }
};

template <int kKeys, bool kDelta, int kCount>
__global__ void __launch_bounds__(kCarryThreads) carry_gradients(const __grid_constant__ RuleBackward to) {
  using At = Places<kKeys, kDelta, kCount>;
  overlap_kernels();
  Carrier<kKeys, kDelta, kCount> carrier(to, blockIdx.x);
  const GatedDeltaRule& p = to.call.of;
  const bool carries = threadIdx.x < kRuleThreads;
  const int64_t start = p.row_start[carrier.row], stop = p.row_start[carrier.row + 1];
  const int64_t chunks = (stop - start + kRuleChunk - 1) / kRuleChunk, last = start / kRuleChunk + carrier.row + chunks - 1;
  const auto first_of = [&](int64_t turn) { return start + (chunks - 1 - turn) * kRuleChunk; };  // from the last chunk on
  const auto tokens_from = [&](int64_t first) { return static_cast<int>(stop - first < kRuleChunk ? stop - first : kRuleChunk); };
  walk_chunks<kCount>(
      chunks,
      [&](int64_t turn, int stage) {
        const int64_t first = first_of(turn);
        carrier.request(carrier.base + At::kStages + stage * At::kStage, last - turn, first, tokens_from(first));
      },
      [&] {
        if (carries) carrier.load(to.of.grad_state, carrier.row), carrier.round(carrier.shared);
      },
      [&](int64_t turn, int number) {
        const int place = At::kStages + number * At::kStage, tile = kDelta ? 0 : static_cast<int>(turn % 2) * At::kTile;
        const uint32_t stage = carrier.base + place;
        if (carries) {
          carrier.scale(carrier.shared + place + At::kDecays);
          carrier.template add<false>(stage + At::kQ, stage + At::kGradY);
        } else {
          carrier.find_grad_u(stage, tile);
          carrier.write_rounded(to.grad_states, last - turn, carrier.base + tile, carrier.thread);
        }
        if constexpr (kDelta) {
          __syncthreads();
          if (carries) carrier.template add<true>(stage + At::kW, carrier.base + At::kGradU);
        }
        if (carries) {
          carrier.round(carrier.shared + (kDelta ? 0 : At::kTile - tile));
        } else {
          __syncwarp();
          carrier.write_grad_u(first_of(turn), tokens_from(first_of(turn)));
        }
      });
  if (carries) carrier.store(to.of.grad_initial_state, carrier.row);
}

template <int kKeys, bool kDelta, int kCount>
Status launch_carry(const RuleBackward& p, Stream stream) {
  constexpr int kBytes = Places<kKeys, kDelta, kCount>::kEnd;
  if (const cudaError_t e = allow_shared_memory(carry_gradients<kKeys, kDelta, kCount>, kBytes); e != cudaSuccess) return status_of(e);
  const GatedDeltaRule& of = p.call.of;
  const int64_t blocks = of.rows * of.heads * (of.value_dim / kSlice);
  return launch_overlapped(carry_gradients<kKeys, kDelta, kCount>, {static_cast<unsigned>(blocks), kCarryThreads, kBytes}, stream, p);
}
template <int kKeys, bool kDelta>
Status launch_carry(const RuleBackward& p, Stream stream) {
  using At = Places<kKeys, kDelta, 2>;
  constexpr int kMost = stages_that_fit(At::kStage, At::kStages);
  if (shared_memory_of_block() >= Places<kKeys, kDelta, kMost>::kEnd) return launch_carry<kKeys, kDelta, kMost>(p, stream);
  return launch_carry<kKeys, kDelta, 2>(p, stream);
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
