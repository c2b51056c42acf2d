// The backward of the gated delta rule by chunks. First the forward's results within chunks and the states before chunks are recomputed,
// then the state's gradient is carried from the last chunk to the first, then all other gradients are computed chunk by chunk.
// docs/kernels/gated-delta-rule.md
#include <algorithm>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/delta_rule/cuda/carry.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

// Byte offsets in shared memory: the state's gradient as bf16, the gradient of u, then the stages of chunks. Without the delta rule there
// are two tiles of the state's gradient, since the next one is written while other warps read the previous one.
template <int kKeys, bool kDelta, int kCount>
struct Offsets {
  static constexpr int kKeyBytes = kRuleChunk * (kKeys + 8) * 2, kSliceBytes = kRuleChunk * kSlicePitch * 2;
  static constexpr int kQ = 0, kK = kKeyBytes, kW = 2 * kKeyBytes, kScores = kDelta ? kW + kKeyBytes : kW,
                       kGradY = kScores + kRuleChunk * kScorePitch * 2, kDecays = kGradY + kSliceBytes, kStage = kDecays + kKeys * 4;
  static constexpr int kTile = kKeys * kSlicePitch * 2, kGradU = (kDelta ? 1 : 2) * kTile, kStages = kGradU + kSliceBytes,
                       kEnd = kStages + kCount * kStage;
};

// Carries a slice of the gradient of a head's state over the chunks of a row, from the last chunk to the first.
template <int kKeys, bool kDelta, int kCount>
struct Carrier : CarriedSlice<kKeys> {
  using At = Offsets<kKeys, kDelta, kCount>;
  using Slice = CarriedSlice<kKeys>;
  using Slice::p, Slice::head, Slice::column, Slice::lane;
  const ChunkedBackward& call;
  char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x) % kRuleThreads, line = thread / 32 * 16;  // first of the warp's 16 tokens

  __device__ __forceinline__ Carrier(const ChunkedBackward& c, int64_t index) : Slice(c.forward.params, index), call(c) {}

  __device__ __forceinline__ int64_t value_stride() const { return static_cast<int64_t>(p.heads) * p.value_dim; }

  __device__ __forceinline__ void request(uint32_t stage, int64_t number, int64_t first, int tokens) const {
    const int64_t at = (first * p.heads + head) * kKeys, stride = static_cast<int64_t>(p.heads) * kKeys;
    request_tile<kKeys, kCarryThreads>(stage + At::kQ, call.forward.q + at, stride, tokens);
    request_tile<kKeys, kCarryThreads>(stage + At::kK, call.forward.k + at, stride, tokens);
    if constexpr (kDelta) request_tile<kKeys, kCarryThreads>(stage + At::kW, call.forward.w + at, stride, tokens);
    request_tile<kRuleChunk, kCarryThreads>(stage + At::kScores, call.forward.scores + (number * p.heads + head) * kRuleChunk * kRuleChunk,
                                            kRuleChunk, kRuleChunk);
    request_tile<kSlice, kCarryThreads>(stage + At::kGradY, this->values_of(const_cast<void*>(call.params.grad_y), first), value_stride(),
                                        tokens);
    this->request_decays(stage + At::kDecays, call.forward.decays, number);
  }

  // Computes the gradient of u of the warp's 16 tokens: scoresᵀ grad_y + k grad_S, with k decayed to the chunk's end.
  __device__ __forceinline__ void compute_grad_u(uint32_t stage, int tile) const {
    float sum[kSlice / 8][4] = {};
    add_transposed<kSlice / 8>(sum, stage + At::kScores, kScorePitch, line, stage + At::kGradY, kSlicePitch, 0, line, kRuleChunk);
    add_by_k<kSlice / 8>(sum, stage + At::kK, kKeys + 8, line, base + tile, kSlicePitch, 0, kKeys);
    store_sums(shared + At::kGradU, kSlicePitch, line, sum);
  }
  __device__ __forceinline__ void write_grad_u(int64_t first, int tokens) const {
    store_lines<kSlice, 16, 32>(this->values_of(call.grad_u, first), value_stride(), base + At::kGradU, kSlicePitch, line, tokens, lane);
  }
};

template <int kKeys, bool kDelta, int kCount>
__global__ void __launch_bounds__(kCarryThreads) carry_gradients(const __grid_constant__ ChunkedBackward call) {
  using At = Offsets<kKeys, kDelta, kCount>;
  overlap_kernels();
  Carrier<kKeys, kDelta, kCount> carrier(call, blockIdx.x);
  const GatedDeltaRule& p = call.forward.params;
  const bool carries = threadIdx.x < kRuleThreads;
  const int64_t start = p.row_start[carrier.row], stop = p.row_start[carrier.row + 1];
  const int64_t chunks = (stop - start + kRuleChunk - 1) / kRuleChunk, last = start / kRuleChunk + carrier.row + chunks - 1;
  const auto first_of = [&](int64_t turn) { return start + (chunks - 1 - turn) * kRuleChunk; };  // counts from the last chunk
  const auto tokens_from = [&](int64_t first) { return static_cast<int>(stop - first < kRuleChunk ? stop - first : kRuleChunk); };
  walk_chunks<kCount>(
      chunks,
      [&](int64_t turn, int stage) {
        const int64_t first = first_of(turn);
        carrier.request(carrier.base + At::kStages + stage * At::kStage, last - turn, first, tokens_from(first));
      },
      [&] {
        if (carries) carrier.load(call.params.grad_state, carrier.row), carrier.round(carrier.shared);
      },
      [&](int64_t turn, int number) {
        const int offset = At::kStages + number * At::kStage, tile = kDelta ? 0 : static_cast<int>(turn % 2) * At::kTile;
        const uint32_t stage = carrier.base + offset;
        if (carries) {
          carrier.scale(carrier.shared + offset + At::kDecays);
          carrier.template add<false>(stage + At::kQ, stage + At::kGradY);
        } else {
          carrier.compute_grad_u(stage, tile);
          carrier.write_rounded(call.grad_states, last - turn, carrier.base + tile, carrier.thread);
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
  if (carries) carrier.store(call.params.grad_initial_state, carrier.row);
}

template <int kKeys, bool kDelta, int kCount>
Status launch_carry(const ChunkedBackward& p, Queue queue) {
  constexpr int kBytes = Offsets<kKeys, kDelta, kCount>::kEnd;
  if (const cudaError_t e = allow_shared_memory(carry_gradients<kKeys, kDelta, kCount>, kBytes); e != cudaSuccess) return status_of(e);
  const GatedDeltaRule& params = p.forward.params;
  const int64_t blocks = params.rows * params.heads * (params.value_dim / kSlice);
  return launch_overlapped(carry_gradients<kKeys, kDelta, kCount>, {static_cast<unsigned>(blocks), kCarryThreads, kBytes}, queue, p);
}
template <int kKeys, bool kDelta>
Status launch_carry(const ChunkedBackward& p, Queue queue) {
  using At = Offsets<kKeys, kDelta, 2>;
  constexpr int kMaxStages = stages_that_fit(At::kStage, At::kStages);
  if (shared_memory_of_block() >= Offsets<kKeys, kDelta, kMaxStages>::kEnd) return launch_carry<kKeys, kDelta, kMaxStages>(p, queue);
  return launch_carry<kKeys, kDelta, 2>(p, queue);
}

Status carry_back(const ChunkedBackward& p, Queue queue) {
  const bool delta = p.forward.params.delta;
  if (p.forward.params.key_dim == 64) return delta ? launch_carry<64, true>(p, queue) : launch_carry<64, false>(p, queue);
  return delta ? launch_carry<128, true>(p, queue) : launch_carry<128, false>(p, queue);
}

// Assigns the pointers of the scratch memory, from `at` on; returns its bytes.
int64_t carve_backward_scratch(ChunkedBackward& p, char* at) {
  const GatedDeltaRule& params = p.forward.params;
  const int64_t values = params.tokens * params.heads * params.value_dim, chunks = chunk_numbers(params.tokens, params.rows) * params.heads;
  int64_t used = carve_scratch(p.forward, at, true);
  const auto take = [&](int64_t count) {
    auto* part = reinterpret_cast<bf16*>(at + used);
    used += round_up(count * static_cast<int64_t>(sizeof(bf16)), 256);
    return part;
  };
  p.grad_states = take(chunks * params.key_dim * params.value_dim);
  p.grad_u = static_cast<bf16*>(p.params.grad_v);
  if (!params.delta) return used;
  p.grad_u = take(values), p.forward.params.y = take(values);
  p.forward.inverse = take(chunks * kRuleChunk * kRuleChunk);
  return used;
}

// Shared memory of the blocks of each of the backward's kernels: the largest. The kernel that carries gradients needs two stages.
template <int kKeys>
int backward_shared(const GatedDeltaRule& p) {
  const int gradients = has_channel_decays(p) ? backward_channels_shared(p) : backward_heads_shared(p);
  return std::max(gradients, p.delta ? Offsets<kKeys, true, 2>::kEnd : Offsets<kKeys, false, 2>::kEnd);
}

}  // namespace

bool gated_delta_rule_has_backward(const GatedDeltaRule& p) {
  if (!has_chunks(p) || p.key_dim > 128 || p.bonus != nullptr || (!p.delta && p.beta != nullptr)) return false;
  return (p.key_dim == 64 ? backward_shared<64>(p) : backward_shared<128>(p)) <= shared_memory_of_block();
}

int64_t gated_delta_rule_backward_scratch(const GatedDeltaRuleBackward& p) {
  ChunkedBackward parts{p, {p.forward}, nullptr, nullptr};
  return carve_backward_scratch(parts, nullptr);
}

Status gated_delta_rule_backward(const GatedDeltaRuleBackward& p, void* scratch, Queue queue) {
  GatedDeltaRule forward = p.forward;
  forward.y = p.grad_v;  // not read
  forward.slot = nullptr;
  if (const char* error = validate(forward)) return {error};
  if (!gated_delta_rule_has_backward(forward)) return {"gated_delta_rule_backward: no kernel for these sizes and options"};
  if (p.forward.rows == 0) return {};
  for (const void* tensor : {forward.q, forward.k, forward.v, p.grad_y, static_cast<const void*>(p.grad_q),
                             static_cast<const void*>(p.grad_k), static_cast<const void*>(p.grad_v)})
    if (!aligned16(tensor)) return {"gated_delta_rule_backward: tensors must be aligned to 16 bytes"};
  ChunkedBackward parts{p, {forward}, nullptr, nullptr};
  carve_backward_scratch(parts, static_cast<char*>(scratch));
  if (const Status status = gated_delta_rule_within_chunks(parts.forward, queue); !status.ok()) return status;
  if (const Status carried = gated_delta_rule_carry(parts.forward, queue); !carried.ok()) return carried;
  if (const Status carried = carry_back(parts, queue); !carried.ok()) return carried;
  if (forward.tokens == 0) return {};
  return has_channel_decays(forward) ? gated_delta_rule_backward_channels(parts, queue) : gated_delta_rule_backward_heads(parts, queue);
}

}  // namespace based::kernels::cuda
