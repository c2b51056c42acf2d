// The gated delta rule by chunks of 64 tokens. A first kernel computes everything within chunks; a second one carries the state from chunk
// to chunk and writes the outputs. Where its blocks do not have enough shared memory for the outputs, a third kernel writes them.
// docs/kernels/gated-delta-rule.md
#include <algorithm>
#include <type_traits>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/delta_rule/cuda/carry.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kMaxKeysWithOutputs = 128;  // with 256 keys, two stages that include the operands of outputs exceed Hopper's shared memory

// Byte offsets in shared memory: the state as bf16, then the stages of chunks. Without the delta rule there are two tiles of the state,
// since the next state is written while other warps read the previous one.
template <int kKeys, bool kDelta, bool kOutputs, int kCount>
struct Offsets {
  static constexpr int kPitch = kKeys + 8, kKeyBytes = kRuleChunk * kPitch * 2;
  static constexpr int kK = 0, kW = kKeyBytes, kQ = kDelta ? 2 * kW : kW, kScores = kOutputs ? kQ + kKeyBytes : kQ,
                       kU = kOutputs ? kScores + kRuleChunk * kScorePitch * 2 : kQ, kDecays = kU + kRuleChunk * kSlicePitch * 2,
                       kStage = kDecays + kKeys * 4;
  static constexpr int kTile = kKeys * kSlicePitch * 2, kTiles = kDelta ? 1 : 2, kStages = kTiles * kTile;
  static constexpr int kEnd = kStages + kCount * kStage;
};

// Carries a slice of a head's state over the chunks of a row.
template <int kKeys, bool kDelta, bool kOutputs, int kCount>
struct Carrier : CarriedSlice<kKeys> {
  using At = Offsets<kKeys, kDelta, kOutputs, kCount>;
  using Slice = CarriedSlice<kKeys>;
  using Slice::p, Slice::head, Slice::column, Slice::lane;
  const ChunkedCall& call;
  char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x) % kRuleThreads, line = thread / 32 * 16;  // first of the warp's 16 tokens
  float y[kSlice / 8][4];                                                                    // sums for these 16 tokens

  __device__ __forceinline__ Carrier(const ChunkedCall& c, int64_t index) : Slice(c.params, index), call(c) {}

  __device__ __forceinline__ bf16* values(int64_t token) const {  // v, or u, which is stored in y
    return this->values_of(kDelta ? p.y : const_cast<void*>(p.v), token);
  }
  __device__ __forceinline__ int64_t value_stride() const { return static_cast<int64_t>(p.heads) * p.value_dim; }

  __device__ __forceinline__ void request(uint32_t stage, int64_t number, int64_t first, int tokens) const {
    const int64_t at = (first * p.heads + head) * kKeys, stride = static_cast<int64_t>(p.heads) * kKeys;
    request_tile<kKeys, kCarryThreads>(stage + At::kK, call.k + at, stride, tokens);
    if constexpr (kDelta) request_tile<kKeys, kCarryThreads>(stage + At::kW, call.w + at, stride, tokens);
    if constexpr (kOutputs) {
      request_tile<kKeys, kCarryThreads>(stage + At::kQ, call.q + at, stride, tokens);
      request_tile<kRuleChunk, kCarryThreads>(stage + At::kScores, call.scores + (number * p.heads + head) * kRuleChunk * kRuleChunk,
                                              kRuleChunk, kRuleChunk);
    }
    request_tile<kSlice, kCarryThreads>(stage + At::kU, values(first), value_stride(), tokens);
    this->request_decays(stage + At::kDecays, call.decays, number);
  }

  // u −= w S for the warp's tokens, in the stage.
  __device__ __forceinline__ void correct(int stage) const {
    float predicted[kSlice / 8][4] = {};
    add_by_k<kSlice / 8>(predicted, base + stage + At::kW, At::kPitch, line, base, kSlicePitch, 0, kKeys);
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t* const u = pair_of(shared + stage + At::kU, kSlicePitch, line + lane / 4 + 8 * half, 8 * n + lane % 4 * 2);
        *u = pack_bf16(low_float(*u) - predicted[n][2 * half], high_float(*u) - predicted[n][2 * half + 1]);
      }
    }
  }

  // Uses the state before a chunk: computes q S of the warp's tokens, or copies the state to `states`.
  __device__ __forceinline__ void read_state(int stage, int tile, int64_t number) {
    if constexpr (kOutputs) {
#pragma unroll
      for (auto& tile_sum : y) tile_sum[0] = tile_sum[1] = tile_sum[2] = tile_sum[3] = 0;
      add_by_k<kSlice / 8>(y, base + stage + At::kQ, At::kPitch, line, base + tile, kSlicePitch, 0, kKeys);
    } else {
      this->write_rounded(call.states, number, base + tile, thread);
    }
  }
  // Uses the chunk's u: adds scores · u to q S and writes y; or, with the delta rule, copies the corrected u.
  __device__ __forceinline__ void read_values(int stage, int64_t first, int tokens) {
    if constexpr (kOutputs) {
      add_by_k<kSlice / 8>(y, base + stage + At::kScores, kScorePitch, line, base + stage + At::kU, kSlicePitch, 0, line + 16);
      store_sums(shared + stage + At::kQ, At::kPitch, line, y);  // no other warp reads these lines of q
      __syncwarp();
      store_lines<kSlice, 16, 32>(this->values_of(p.y, first), value_stride(), base + stage + At::kQ, At::kPitch, line, tokens, lane);
    } else if constexpr (kDelta) {
      store_lines<kSlice, kRuleChunk, kRuleThreads>(values(first), value_stride(), base + stage + At::kU, kSlicePitch, 0, tokens, thread);
    }
  }
};

template <int kKeys, bool kDelta, bool kOutputs, int kCount>
__global__ void __launch_bounds__(kCarryThreads) carry_states(const __grid_constant__ ChunkedCall call) {
  using At = Offsets<kKeys, kDelta, kOutputs, kCount>;
  overlap_kernels();
  Carrier<kKeys, kDelta, kOutputs, kCount> carrier(call, blockIdx.x);
  const GatedDeltaRule& p = call.params;
  const bool carries = threadIdx.x < kRuleThreads;
  const int64_t start = p.row_start[carrier.row], stop = p.row_start[carrier.row + 1], first_number = start / kRuleChunk + carrier.row;
  const int64_t slot = p.slot != nullptr ? p.slot[carrier.row] : carrier.row;
  const auto first_of = [&](int64_t chunk) { return start + chunk * kRuleChunk; };
  const auto tokens_from = [&](int64_t first) { return static_cast<int>(stop - first < kRuleChunk ? stop - first : kRuleChunk); };
  walk_chunks<kCount>((stop - start + kRuleChunk - 1) / kRuleChunk,
                      [&](int64_t chunk, int stage) {
                        const int64_t first = first_of(chunk);
                        carrier.request(carrier.base + At::kStages + stage * At::kStage, first_number + chunk, first, tokens_from(first));
                      },
                      [&] {
                        if (carries) carrier.load(p.state, slot), carrier.round(carrier.shared);
                      },
                      [&](int64_t chunk, int number) {
                        const int stage = At::kStages + number * At::kStage, tile = kDelta ? 0 : static_cast<int>(chunk % 2) * At::kTile;
                        if (!carries) carrier.read_state(stage, tile, first_number + chunk);
                        if constexpr (kDelta) {
                          if (carries) carrier.correct(stage);
                          __syncthreads();
                        }
                        if (carries) {
                          carrier.scale(carrier.shared + stage + At::kDecays);
                          carrier.template add<false>(carrier.base + stage + At::kK, carrier.base + stage + At::kU);
                          carrier.round(carrier.shared + (kDelta ? 0 : At::kTile - tile));
                        } else {
                          carrier.read_values(stage, first_of(chunk), tokens_from(first_of(chunk)));
                        }
                      });
  if (carries) carrier.store(p.state, slot);
}

// Shared memory of write_outputs, which computes y = q S + scores u of a chunk for kOutputSlice value channels of a head. A warp handles 16
// tokens.
template <int kKeys>
struct Outputs {
  static constexpr int kPitch = kKeys + 8, kTileBytes = kRuleChunk * kScorePitch * 2;
  static constexpr int kQ = 0, kScores = kRuleChunk * kPitch * 2, kU = kScores + kTileBytes, kState = kU + kTileBytes,
                       kEnd = kState + kKeys * kScorePitch * 2;
};

template <int kKeys>
__global__ void __launch_bounds__(kRuleThreads) write_outputs(const __grid_constant__ ChunkedCall call) {
  using At = Outputs<kKeys>;
  overlap_kernels();
  const GatedDeltaRule& p = call.params;
  const int64_t slices = p.value_dim / kOutputSlice;
  const ChunkBlock block(p, blockIdx.x / slices);
  const int lines = block.range.tokens, column = static_cast<int>(blockIdx.x % slices) * kOutputSlice;
  if (lines == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t stride = static_cast<int64_t>(p.heads) * p.value_dim, at = block.line(p) * p.value_dim + column;
  char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);
  request_tile<kKeys>(base + At::kQ, call.q + block.line(p) * kKeys, static_cast<int64_t>(p.heads) * kKeys, lines);
  for (int key = 0; key < kKeys; key += kRuleChunk)
    request_tile<kOutputSlice>(base + At::kState + key * kScorePitch * 2, call.states + (block.at(p) * kKeys + key) * p.value_dim + column,
                               p.value_dim, kRuleChunk);
  copy_async_commit();
  request_tile<kRuleChunk>(base + At::kScores, call.scores + block.at(p) * kRuleChunk * kRuleChunk, kRuleChunk, kRuleChunk);
  request_tile<kOutputSlice>(base + At::kU, static_cast<const bf16*>(p.delta ? p.y : p.v) + at, stride, lines);
  copy_async_commit();
  float y[kOutputSlice / 8][4] = {};
  copy_async_wait<1>();
  __syncthreads();
  add_by_k<kOutputSlice / 8>(y, base + At::kQ, At::kPitch, 16 * warp, base + At::kState, kScorePitch, 0, kKeys);
  copy_async_wait<0>();
  __syncthreads();
  add_by_k<kOutputSlice / 8>(y, base + At::kScores, kScorePitch, 16 * warp, base + At::kU, kScorePitch, 0, 16 * warp + 16);
  store_sums(shared + At::kQ, At::kPitch, 16 * warp, y);  // no other warp reads these lines of q
  __syncwarp();
  store_lines<kOutputSlice, 16, 32>(static_cast<bf16*>(p.y) + at, stride, base + At::kQ, At::kPitch, 16 * warp, lines, lane);
}

template <class Kernel>
Status launch_blocks(Kernel* kernel, int64_t blocks, int threads, int bytes, const ChunkedCall& p, Queue queue) {
  if (const cudaError_t e = allow_shared_memory(kernel, bytes); e != cudaSuccess) return status_of(e);
  return launch_overlapped(kernel, {static_cast<unsigned>(blocks), static_cast<unsigned>(threads), bytes}, queue, p);
}

template <int kKeys, bool kDelta, bool kOutputs, int kCount>
Status carry(const ChunkedCall& p, Queue queue) {
  const int64_t blocks = p.params.rows * p.params.heads * (p.params.value_dim / kSlice);
  return launch_blocks(carry_states<kKeys, kDelta, kOutputs, kCount>, blocks, kCarryThreads, Offsets<kKeys, kDelta, kOutputs, kCount>::kEnd,
                       p, queue);
}
// Uses as many stages as fit into a Hopper block's shared memory or, where the GPU has less shared memory, two.
template <int kKeys, bool kDelta, bool kOutputs>
Status carry(const ChunkedCall& p, Queue queue) {
  using At = Offsets<kKeys, kDelta, kOutputs, 2>;
  constexpr int kMaxStages = stages_that_fit(At::kStage, At::kStages);
  static_assert(kMaxStages >= 2);
  if (kMaxStages > 2 && shared_memory_of_block() >= Offsets<kKeys, kDelta, kOutputs, kMaxStages>::kEnd)
    return carry<kKeys, kDelta, kOutputs, kMaxStages>(p, queue);
  return carry<kKeys, kDelta, kOutputs, 2>(p, queue);
}
template <int kKeys>
Status carry(const ChunkedCall& p, Queue queue) {
  if constexpr (kKeys <= kMaxKeysWithOutputs) {
    if (p.states == nullptr) return p.params.delta ? carry<kKeys, true, true>(p, queue) : carry<kKeys, false, true>(p, queue);
  }
  return p.params.delta ? carry<kKeys, true, false>(p, queue) : carry<kKeys, false, false>(p, queue);
}

// Whether the kernel that carries states also writes the outputs.
bool carries_outputs(const GatedDeltaRule& p) {
  const auto needed = [&](auto keys) {
    return p.delta ? Offsets<decltype(keys)::value, true, true, 2>::kEnd : Offsets<decltype(keys)::value, false, true, 2>::kEnd;
  };
  if (p.key_dim > kMaxKeysWithOutputs) return false;
  return (p.key_dim == 64 ? needed(std::integral_constant<int, 64>()) : needed(std::integral_constant<int, 128>())) <=
         shared_memory_of_block();
}

template <int kKeys>
Status write(const ChunkedCall& p, Queue queue) {
  const int64_t blocks = chunk_numbers(p.params.tokens, p.params.rows) * p.params.heads * (p.params.value_dim / kOutputSlice);
  return launch_blocks(write_outputs<kKeys>, blocks, kRuleThreads, Outputs<kKeys>::kEnd, p, queue);
}

// Shared memory of the blocks of each chunk kernel: the largest. The kernel that carries states needs two stages.
template <int kKeys>
int forward_shared(const GatedDeltaRule& p) {
  const int within = has_channel_decays(p) ? within_chunks_channels_shared(p) : within_chunks_heads_shared(p);
  const int carrying = p.delta ? Offsets<kKeys, true, false, 2>::kEnd : Offsets<kKeys, false, false, 2>::kEnd;
  return std::max({within, carrying, Outputs<kKeys>::kEnd});
}
int forward_shared(const GatedDeltaRule& p) {
  return p.key_dim == 64 ? forward_shared<64>(p) : p.key_dim == 128 ? forward_shared<128>(p) : forward_shared<256>(p);
}

}  // namespace

namespace detail {

bool has_channel_decays(const GatedDeltaRule& p) { return p.bonus != nullptr || (p.log_decay != nullptr && p.decay_dim > 1); }

bool has_chunks(const GatedDeltaRule& p) {
  return p.dtype == DType::bf16 && (p.key_dim == 64 || p.key_dim == 128 || p.key_dim == 256) && p.value_dim % kOutputSlice == 0 &&
         !(p.delta && has_channel_decays(p)) && forward_shared(p) <= shared_memory_of_block();
}

int64_t carve_scratch(ChunkedCall& p, char* at, bool keeps_states) {
  const GatedDeltaRule& params = p.params;
  const int64_t keys = params.tokens * params.heads * params.key_dim, chunks = chunk_numbers(params.tokens, params.rows) * params.heads;
  int64_t used = 0;
  const auto take = [&](auto*& part, int64_t count) {
    part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(at + used);
    used += round_up(count * static_cast<int64_t>(sizeof(*part)), 256);
  };
  take(p.q, keys), take(p.k, keys), take(p.w, params.delta ? keys : 0);
  take(p.scores, chunks * kRuleChunk * kRuleChunk), take(p.decays, chunks * params.key_dim);
  if (keeps_states) take(p.states, chunks * params.key_dim * params.value_dim);
  return used;
}

Status gated_delta_rule_within_chunks(const ChunkedCall& p, Queue queue) {
  if (p.params.tokens == 0) return {};
  return has_channel_decays(p.params) ? gated_delta_rule_within_chunks_channels(p, queue) : gated_delta_rule_within_chunks_heads(p, queue);
}

Status gated_delta_rule_carry(const ChunkedCall& p, Queue queue) {
  return p.params.key_dim == 64 ? carry<64>(p, queue) : p.params.key_dim == 128 ? carry<128>(p, queue) : carry<256>(p, queue);
}

}  // namespace detail

int64_t gated_delta_rule_scratch(const GatedDeltaRule& p) {
  ChunkedCall call{p};
  return has_chunks(p) ? carve_scratch(call, nullptr, !carries_outputs(p)) : 0;
}

Status gated_delta_rule_forward(const GatedDeltaRule& p, void* scratch, Queue queue) {
  if (const char* error = validate(p)) return {error};
  if (p.rows == 0) return {};
  if (p.row_start == nullptr) return {"gated_delta_rule: a tensor is null"};
  if (!has_chunks(p)) return gated_delta_rule_by_token(p, queue);
  if (!aligned16(p.q) || !aligned16(p.k) || !aligned16(p.v) || !aligned16(p.y) || !aligned16(p.state))
    return {"gated_delta_rule: tensors must be aligned to 16 bytes"};
  ChunkedCall call{p};
  carve_scratch(call, static_cast<char*>(scratch), !carries_outputs(p));
  if (const Status status = gated_delta_rule_within_chunks(call, queue); !status.ok()) return status;
  const Status carried = gated_delta_rule_carry(call, queue);
  if (!carried.ok() || call.states == nullptr) return carried;
  return p.key_dim == 64 ? write<64>(call, queue) : p.key_dim == 128 ? write<128>(call, queue) : write<256>(call, queue);
}

namespace {
const DefineLaunchers<GatedDeltaRuleLaunchers> kLaunchers(Device::cuda, {.step = gated_delta_rule_step,
                                                                         .forward_scratch = gated_delta_rule_scratch,
                                                                         .forward = gated_delta_rule_forward,
                                                                         .has_backward = gated_delta_rule_has_backward,
                                                                         .backward_scratch = gated_delta_rule_backward_scratch,
                                                                         .backward = gated_delta_rule_backward});
}

}  // namespace based::kernels::cuda
