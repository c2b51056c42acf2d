// The gated delta rule by chunks of 64 tokens in three kernels: what is inside of chunks, the state from chunk to chunk, the outputs.
// docs/kernels/gated-delta-rule.md
#include "based/kernels/cuda/gated_delta_rule_carry.cuh"
#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

// Places in shared memory, in bytes: the state as bf16, and two stages of a chunk.
template <int kKeys, bool kDelta>
struct Places {
  static constexpr int kPitch = kKeys + 8, kKeyBytes = kRuleChunk * kPitch * 2;
  static constexpr int kK = 0, kW = kKeyBytes, kU = kDelta ? 2 * kW : kW, kDecays = kU + kRuleChunk * kSlicePitch * 2,
                       kStage = kDecays + kKeys * 4;
  static constexpr int kStages = kKeys * kSlicePitch * 2, kEnd = kStages + 2 * kStage;
};

// Carries a slice of a head's state over the chunks of a row.
template <int kKeys, bool kDelta>
struct Carrier : CarriedSlice<kKeys> {
  using At = Places<kKeys, kDelta>;
  using Slice = CarriedSlice<kKeys>;
  using Slice::p, Slice::head, Slice::column, Slice::warp, Slice::lane;
  const RuleByChunk& from;
  char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);

  __device__ __forceinline__ Carrier(const RuleByChunk& of, int64_t index) : Slice(of.of, index), from(of) {}

  __device__ __forceinline__ bf16* values(int64_t token) const {  // v, or u in the place of y
    return this->values_of(kDelta ? p.y : const_cast<void*>(p.v), token);
  }

  __device__ __forceinline__ void request(uint32_t stage, int64_t number, int64_t first, int tokens) const {
    const int64_t line = (first * p.heads + head) * kKeys, stride = static_cast<int64_t>(p.heads) * kKeys;
    request_tile<kKeys>(stage + At::kK, from.k + line, stride, tokens);
    if constexpr (kDelta) request_tile<kKeys>(stage + At::kW, from.w + line, stride, tokens);
    request_tile<kSlice>(stage + At::kU, values(first), static_cast<int64_t>(p.heads) * p.value_dim, tokens);
    this->request_decays(stage + At::kDecays, from.decays, number);
  }

  // u − w S of the warp's 16 tokens, in place.
  __device__ __forceinline__ void correct(int stage) const {
    float held[kSlice / 8][4] = {};
    add_by_k<kSlice / 8>(held, base + stage + At::kW, At::kPitch, 16 * warp, base, kSlicePitch, 0, kKeys);
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t* const u = pair_of(shared + stage + At::kU, kSlicePitch, 16 * warp + lane / 4 + 8 * half, 8 * n + lane % 4 * 2);
        *u = pack_bf16(low_float(*u) - held[n][2 * half], high_float(*u) - held[n][2 * half + 1]);
      }
    }
  }
};

template <int kKeys, bool kDelta>
__global__ void __launch_bounds__(kRuleThreads) carry_states(const __grid_constant__ RuleByChunk from) {
  using At = Places<kKeys, kDelta>;
  overlap_kernels();
  Carrier<kKeys, kDelta> carrier(from, blockIdx.x);
  const GatedDeltaRule& p = from.of;
  const int64_t start = p.row_start[carrier.row], stop = p.row_start[carrier.row + 1];
  const int64_t slot = p.slot != nullptr ? p.slot[carrier.row] : carrier.row;
  const auto tokens_from = [&](int64_t first) { return static_cast<int>(stop - first < kRuleChunk ? stop - first : kRuleChunk); };
  int64_t number = start / kRuleChunk + carrier.row;
  int stage = At::kStages;
  if (start < stop) carrier.request(carrier.base + stage, number, start, tokens_from(start));
  copy_async_commit();
  carrier.load(p.state, slot);
  for (int64_t first = start; first < stop; first += kRuleChunk, ++number) {
    const int64_t next = first + kRuleChunk;
    const int other = 2 * At::kStages + At::kStage - stage;
    if (next < stop) carrier.request(carrier.base + other, number + 1, next, tokens_from(next));
    copy_async_commit();
    carrier.round(carrier.shared);
    copy_async_wait<1>();
    __syncthreads();
    carrier.write_rounded(from.states, number, carrier.base);
    if constexpr (kDelta) {
      carrier.correct(stage);
      __syncthreads();
      store_lines<kSlice>(carrier.values(first), static_cast<int64_t>(p.heads) * p.value_dim, carrier.base + stage + At::kU, kSlicePitch, 0,
                          kRuleChunk, tokens_from(first), static_cast<int>(threadIdx.x), kRuleThreads);
    }
    carrier.scale(carrier.shared + stage + At::kDecays);
    carrier.template add<false>(carrier.base + stage + At::kK, carrier.base + stage + At::kU);
    __syncthreads();
    stage = other;
  }
  carrier.store(p.state, slot);
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
  store_lines<kOutputSlice>(static_cast<bf16*>(p.y) + at, stride, base + At::kQ, At::kPitch, 16 * warp, 16, lines, lane, 32);
}

template <class Kernel>
Status launch_blocks(Kernel* kernel, int64_t blocks, int bytes, const RuleByChunk& p, Stream stream) {
  if (const cudaError_t e = allow_shared_memory(kernel, bytes); e != cudaSuccess) return status_of(e);
  return launch_overlapped(kernel, {static_cast<unsigned>(blocks), kRuleThreads, bytes}, stream, p);
}

template <int kKeys>
Status carry(const RuleByChunk& p, Stream stream) {
  const int64_t blocks = p.of.rows * p.of.heads * (p.of.value_dim / kSlice);
  return p.of.delta ? launch_blocks(carry_states<kKeys, true>, blocks, Places<kKeys, true>::kEnd, p, stream)
                    : launch_blocks(carry_states<kKeys, false>, blocks, Places<kKeys, false>::kEnd, p, stream);
}

template <int kKeys>
Status write(const RuleByChunk& p, Stream stream) {
  const int64_t blocks = chunk_numbers(p.of.tokens, p.of.rows) * p.of.heads * (p.of.value_dim / kOutputSlice);
  return launch_blocks(write_outputs<kKeys>, blocks, Outputs<kKeys>::kEnd, p, stream);
}

}  // namespace

namespace detail {

bool has_channel_decays(const GatedDeltaRule& p) { return p.bonus != nullptr || (p.log_decay != nullptr && p.decay_dim > 1); }

bool has_chunks(const GatedDeltaRule& p) {
  return p.dtype == DType::bf16 && (p.key_dim == 64 || p.key_dim == 128 || p.key_dim == 256) && p.value_dim % kOutputSlice == 0 &&
         !(p.delta && has_channel_decays(p));
}

int64_t share_out(RuleByChunk& p, char* at) {
  const GatedDeltaRule& of = p.of;
  const int64_t keys = of.tokens * of.heads * of.key_dim, chunks = chunk_numbers(of.tokens, of.rows) * of.heads;
  int64_t used = 0;
  const auto take = [&](auto*& part, int64_t count) {
    part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(at + used);
    used += round_up(count * static_cast<int64_t>(sizeof(*part)), 256);
  };
  take(p.q, keys), take(p.k, keys), take(p.w, of.delta ? keys : 0);
  take(p.scores, chunks * kRuleChunk * kRuleChunk), take(p.states, chunks * of.key_dim * of.value_dim);
  take(p.decays, chunks * of.key_dim);
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
  return has_chunks(p) ? share_out(call, nullptr) : 0;
}

Status gated_delta_rule_forward(const GatedDeltaRule& p, void* scratch, Stream stream) {
  if (const char* what = wrong_with(p)) return {what};
  if (p.rows == 0) return {};
  if (p.row_start == nullptr) return {"gated_delta_rule: a tensor is null"};
  if (!has_chunks(p)) return gated_delta_rule_by_token(p, stream);
  if (!aligned16(p.q) || !aligned16(p.k) || !aligned16(p.v) || !aligned16(p.y) || !aligned16(p.state))
    return {"gated_delta_rule: tensors must be aligned to 16 bytes"};
  RuleByChunk call{p};
  share_out(call, static_cast<char*>(scratch));
  if (const Status inside = gated_delta_rule_inside(call, stream); !inside.ok()) return inside;
  if (const Status carried = gated_delta_rule_carry(call, stream); !carried.ok()) return carried;
  return p.key_dim == 64 ? write<64>(call, stream) : p.key_dim == 128 ? write<128>(call, stream) : write<256>(call, stream);
}

}  // namespace based::kernels::cuda
