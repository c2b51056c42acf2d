// The gated delta rule by chunks of 64 tokens: what is inside of chunks, then the state from chunk to chunk with the outputs, which are a
// third kernel's where a block has no shared memory for them. docs/kernels/gated-delta-rule.md
#include <type_traits>

#include "based/kernels/cuda/gated_delta_rule_carry.cuh"
#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kMostKeysWithOutputs = 128;  // of 256, no two chunks with all that outputs take fit into Hopper's shared memory

// Places in shared memory, in bytes: the state as bf16, and stages of a chunk. Without the delta rule the state's next value is written
// while readers are at the last one: two tiles.
template <int kKeys, bool kDelta, bool kOutputs, int kCount>
struct Places {
  static constexpr int kPitch = kKeys + 8, kKeyBytes = kRuleChunk * kPitch * 2;
  static constexpr int kK = 0, kW = kKeyBytes, kQ = kDelta ? 2 * kW : kW, kScores = kOutputs ? kQ + kKeyBytes : kQ,
                       kU = kOutputs ? kScores + kRuleChunk * kScorePitch * 2 : kQ, kDecays = kU + kRuleChunk * kSlicePitch * 2,
                       kStage = kDecays + kKeys * 4;
  static constexpr int kTile = kKeys * kSlicePitch * 2, kTiles = kDelta ? 1 : 2, kStages = kTiles * kTile;
  static constexpr int kEnd = kStages + kCount * kStage;
};

// A slice of a head's state over the chunks of a row.
template <int kKeys, bool kDelta, bool kOutputs, int kCount>
struct Carrier : CarriedSlice<kKeys> {
  using At = Places<kKeys, kDelta, kOutputs, kCount>;
  using Slice = CarriedSlice<kKeys>;
  using Slice::p, Slice::head, Slice::column, Slice::lane;
  const RuleByChunk& from;
  char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x) % kRuleThreads, line = thread / 32 * 16;  // the first of the warp's 16 tokens
  float y[kSlice / 8][4];                                                                    // of these

  __device__ __forceinline__ Carrier(const RuleByChunk& of, int64_t index) : Slice(of.of, index), from(of) {}

  __device__ __forceinline__ bf16* values(int64_t token) const {  // v, or u in the place of y
    return this->values_of(kDelta ? p.y : const_cast<void*>(p.v), token);
  }
  __device__ __forceinline__ int64_t value_stride() const { return static_cast<int64_t>(p.heads) * p.value_dim; }

  __device__ __forceinline__ void request(uint32_t stage, int64_t number, int64_t first, int tokens) const {
    const int64_t at = (first * p.heads + head) * kKeys, stride = static_cast<int64_t>(p.heads) * kKeys;
    request_tile<kKeys, kCarryThreads>(stage + At::kK, from.k + at, stride, tokens);
    if constexpr (kDelta) request_tile<kKeys, kCarryThreads>(stage + At::kW, from.w + at, stride, tokens);
    if constexpr (kOutputs) {
      request_tile<kKeys, kCarryThreads>(stage + At::kQ, from.q + at, stride, tokens);
      request_tile<kRuleChunk, kCarryThreads>(stage + At::kScores, from.scores + (number * p.heads + head) * kRuleChunk * kRuleChunk,
                                              kRuleChunk, kRuleChunk);
    }
    request_tile<kSlice, kCarryThreads>(stage + At::kU, values(first), value_stride(), tokens);
    this->request_decays(stage + At::kDecays, from.decays, number);
  }

  // u − w S of the warp's tokens, in place.
  __device__ __forceinline__ void correct(int stage) const {
    float held[kSlice / 8][4] = {};
    add_by_k<kSlice / 8>(held, base + stage + At::kW, At::kPitch, line, base, kSlicePitch, 0, kKeys);
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t* const u = pair_of(shared + stage + At::kU, kSlicePitch, line + lane / 4 + 8 * half, 8 * n + lane % 4 * 2);
        *u = pack_bf16(low_float(*u) - held[n][2 * half], high_float(*u) - held[n][2 * half + 1]);
      }
    }
  }

  // What is made of the state before a chunk: q S of the warp's tokens, or a copy in `states`.
  __device__ __forceinline__ void read_state(int stage, int tile, int64_t number) {
    if constexpr (kOutputs) {
#pragma unroll
      for (auto& of_tile : y) of_tile[0] = of_tile[1] = of_tile[2] = of_tile[3] = 0;
      add_by_k<kSlice / 8>(y, base + stage + At::kQ, At::kPitch, line, base + tile, kSlicePitch, 0, kKeys);
    } else {
      this->write_rounded(from.states, number, base + tile, thread);
    }
  }
  // What is made of the chunk's u: y = q S + scores u; or, where it has been corrected, a copy.
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
__global__ void __launch_bounds__(kCarryThreads) carry_states(const __grid_constant__ RuleByChunk from) {
  using At = Places<kKeys, kDelta, kOutputs, kCount>;
  overlap_kernels();
  Carrier<kKeys, kDelta, kOutputs, kCount> carrier(from, blockIdx.x);
  const GatedDeltaRule& p = from.of;
  const bool carries = threadIdx.x < kRuleThreads;
  const int64_t start = p.row_start[carrier.row], stop = p.row_start[carrier.row + 1], zeroth = start / kRuleChunk + carrier.row;
  const int64_t slot = p.slot != nullptr ? p.slot[carrier.row] : carrier.row;
  const auto first_of = [&](int64_t chunk) { return start + chunk * kRuleChunk; };
  const auto tokens_from = [&](int64_t first) { return static_cast<int>(stop - first < kRuleChunk ? stop - first : kRuleChunk); };
  walk_chunks<kCount>((stop - start + kRuleChunk - 1) / kRuleChunk,
                      [&](int64_t chunk, int stage) {
                        const int64_t first = first_of(chunk);
                        carrier.request(carrier.base + At::kStages + stage * At::kStage, zeroth + chunk, first, tokens_from(first));
                      },
                      [&] {
                        if (carries) carrier.load(p.state, slot), carrier.round(carrier.shared);
                      },
                      [&](int64_t chunk, int number) {
                        const int stage = At::kStages + number * At::kStage, tile = kDelta ? 0 : static_cast<int>(chunk % 2) * At::kTile;
                        if (!carries) carrier.read_state(stage, tile, zeroth + chunk);
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

// y = q S + scores u of a chunk, for kOutputSlice value channels of a head. A warp has 16 tokens.
template <int kKeys>
struct Outputs {
  static constexpr int kPitch = kKeys + 8, kTileBytes = kRuleChunk * kScorePitch * 2;
  static constexpr int kQ = 0, kScores = kRuleChunk * kPitch * 2, kU = kScores + kTileBytes, kState = kU + kTileBytes,
                       kEnd = kState + kKeys * kScorePitch * 2;
};

template <int kKeys>
__global__ void __launch_bounds__(kRuleThreads) write_outputs(const __grid_constant__ RuleByChunk from) {
  using At = Outputs<kKeys>;
  overlap_kernels();
  const GatedDeltaRule& p = from.of;
  const int64_t slices = p.value_dim / kOutputSlice;
  const ChunkBlock block(p, blockIdx.x / slices);
  const int lines = block.place.tokens, column = static_cast<int>(blockIdx.x % slices) * kOutputSlice;
  if (lines == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t stride = static_cast<int64_t>(p.heads) * p.value_dim, at = block.line(p) * p.value_dim + column;
  char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);
  request_tile<kKeys>(base + At::kQ, from.q + block.line(p) * kKeys, static_cast<int64_t>(p.heads) * kKeys, lines);
  for (int key = 0; key < kKeys; key += kRuleChunk)
    request_tile<kOutputSlice>(base + At::kState + key * kScorePitch * 2, from.states + (block.at(p) * kKeys + key) * p.value_dim + column,
                               p.value_dim, kRuleChunk);
  copy_async_commit();
  request_tile<kRuleChunk>(base + At::kScores, from.scores + block.at(p) * kRuleChunk * kRuleChunk, kRuleChunk, kRuleChunk);
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
Status launch_blocks(Kernel* kernel, int64_t blocks, int threads, int bytes, const RuleByChunk& p, Stream stream) {
  if (const cudaError_t e = allow_shared_memory(kernel, bytes); e != cudaSuccess) return status_of(e);
  return launch_overlapped(kernel, {static_cast<unsigned>(blocks), static_cast<unsigned>(threads), bytes}, stream, p);
}

template <int kKeys, bool kDelta, bool kOutputs, int kCount>
Status carry(const RuleByChunk& p, Stream stream) {
  const int64_t blocks = p.of.rows * p.of.heads * (p.of.value_dim / kSlice);
  return launch_blocks(carry_states<kKeys, kDelta, kOutputs, kCount>, blocks, kCarryThreads, Places<kKeys, kDelta, kOutputs, kCount>::kEnd,
                       p, stream);
}
// With as many stages as a block of Hopper has shared memory for, or two.
template <int kKeys, bool kDelta, bool kOutputs>
Status carry(const RuleByChunk& p, Stream stream) {
  using At = Places<kKeys, kDelta, kOutputs, 2>;
  constexpr int kMost = stages_that_fit(At::kStage, At::kStages);
  static_assert(kMost >= 2);
  if (kMost > 2 && shared_memory_of_block() >= Places<kKeys, kDelta, kOutputs, kMost>::kEnd)
    return carry<kKeys, kDelta, kOutputs, kMost>(p, stream);
  return carry<kKeys, kDelta, kOutputs, 2>(p, stream);
}
template <int kKeys>
Status carry(const RuleByChunk& p, Stream stream) {
  if constexpr (kKeys <= kMostKeysWithOutputs) {
    if (p.states == nullptr) return p.of.delta ? carry<kKeys, true, true>(p, stream) : carry<kKeys, false, true>(p, stream);
  }
  return p.of.delta ? carry<kKeys, true, false>(p, stream) : carry<kKeys, false, false>(p, stream);
}

// Whether the kernel that carries states writes outputs, too.
bool carries_outputs(const GatedDeltaRule& p) {
  const auto needed = [&](auto keys) {
    return p.delta ? Places<decltype(keys)::value, true, true, 2>::kEnd : Places<decltype(keys)::value, false, true, 2>::kEnd;
  };
  if (p.key_dim > kMostKeysWithOutputs) return false;
  return (p.key_dim == 64 ? needed(std::integral_constant<int, 64>()) : needed(std::integral_constant<int, 128>())) <=
         shared_memory_of_block();
}

template <int kKeys>
Status write(const RuleByChunk& p, Stream stream) {
  const int64_t blocks = chunk_numbers(p.of.tokens, p.of.rows) * p.of.heads * (p.of.value_dim / kOutputSlice);
  return launch_blocks(write_outputs<kKeys>, blocks, kRuleThreads, Outputs<kKeys>::kEnd, p, stream);
}

}  // namespace

namespace detail {

bool has_channel_decays(const GatedDeltaRule& p) { return p.bonus != nullptr || (p.log_decay != nullptr && p.decay_dim > 1); }

bool has_chunks(const GatedDeltaRule& p) {
  return p.dtype == DType::bf16 && (p.key_dim == 64 || p.key_dim == 128 || p.key_dim == 256) && p.value_dim % kOutputSlice == 0 &&
         !(p.delta && has_channel_decays(p));
}

int64_t share_out(RuleByChunk& p, char* at, bool keeps_states) {
  const GatedDeltaRule& of = p.of;
  const int64_t keys = of.tokens * of.heads * of.key_dim, chunks = chunk_numbers(of.tokens, of.rows) * of.heads;
  int64_t used = 0;
  const auto take = [&](auto*& part, int64_t count) {
    part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(at + used);
    used += round_up(count * static_cast<int64_t>(sizeof(*part)), 256);
  };
  take(p.q, keys), take(p.k, keys), take(p.w, of.delta ? keys : 0);
  take(p.scores, chunks * kRuleChunk * kRuleChunk), take(p.decays, chunks * of.key_dim);
  if (keeps_states) take(p.states, chunks * of.key_dim * of.value_dim);
  return used;
}

Status gated_delta_rule_inside(const RuleByChunk& p, Stream stream) {
  if (p.of.tokens == 0) return {};
  return has_channel_decays(p.of) ? gated_delta_rule_inside_channels(p, stream) : gated_delta_rule_inside_heads(p, stream);
}

Status gated_delta_rule_carry(const RuleByChunk& p, Stream stream) {
  return p.of.key_dim == 64 ? carry<64>(p, stream) : p.of.key_dim == 128 ? carry<128>(p, stream) : carry<256>(p, stream);
}

}  // namespace detail

int64_t gated_delta_rule_scratch(const GatedDeltaRule& p) {
  RuleByChunk call{p};
  return has_chunks(p) ? share_out(call, nullptr, !carries_outputs(p)) : 0;
}

Status gated_delta_rule_forward(const GatedDeltaRule& p, void* scratch, Stream stream) {
  if (const char* what = wrong_with(p)) return {what};
  if (p.rows == 0) return {};
  if (p.row_start == nullptr) return {"gated_delta_rule: a tensor is null"};
  if (!has_chunks(p)) return gated_delta_rule_by_token(p, stream);
  if (!aligned16(p.q) || !aligned16(p.k) || !aligned16(p.v) || !aligned16(p.y) || !aligned16(p.state))
    return {"gated_delta_rule: tensors must be aligned to 16 bytes"};
  RuleByChunk call{p};
  share_out(call, static_cast<char*>(scratch), !carries_outputs(p));
  if (const Status inside = gated_delta_rule_inside(call, stream); !inside.ok()) return inside;
  const Status carried = gated_delta_rule_carry(call, stream);
  if (!carried.ok() || call.states == nullptr) return carried;
  return p.key_dim == 64 ? write<64>(call, stream) : p.key_dim == 128 ? write<128>(call, stream) : write<256>(call, stream);
}

}  // namespace based::kernels::cuda
