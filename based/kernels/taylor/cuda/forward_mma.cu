// Taylor attention forward with mma.sync, for any GPU from sm_80: bf16, feature_dim 8, 16, 24 or 32, with or without decay.
// docs/kernels/taylor-attention.md describes it.
#include <type_traits>

#include "based/kernels/taylor/cuda/launchers.h"
#include "based/kernels/taylor/cuda/mma_state.cuh"

namespace based::kernels::cuda::detail {
namespace taylor_mma {
namespace {

// At 32, 64 columns of the state would take more registers than a block has.
template <int kDim>
using ForwardShape = Shape<kDim, kDim <= 24 ? 64 : 32>;

// Shared memory: Offsets, then the rounding error of the state's last tiles.
template <class S>
constexpr uint32_t kForwardShared = Offsets<S>::kEnd + S::kRestBytes;
static_assert(kForwardShared<ForwardShape<8>> <= 101376 && kForwardShared<ForwardShape<16>> <= 101376 &&
              kForwardShared<ForwardShape<24>> <= 101376 && kForwardShared<ForwardShape<32>> <= 101376);

// Blocks of a multiprocessor that the register budget allows.
template <class S>
constexpr int kForwardBlocks = S::kDim >= 24 ? 1 : 2;

// Whether states are parked in scratch memory: between the segments of long rows, and where several slices of a head update the state in
// place. All slices read the state's denominator part and one of them overwrites it, so they must start from a parked copy.
bool forward_parks(const TaylorAttention& p, const Plan& plan) {
  return plan.segment <= p.tokens || (plan.slices > 1 && p.kv_state != nullptr);
}

// A block's head and slice: its inputs and output at token 0.
struct ForwardBlock {
  const bf16 *q, *k, *v;
  bf16* y;
  int head, first, width;  // columns [first, first + width) of the head dimension

  __device__ __forceinline__ ForwardBlock(const TaylorAttention& p, const Plan& plan) {
    head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.z) * plan.width, width = min(plan.width, p.head_dim - first);
    q = static_cast<const bf16*>(p.q) + head * p.feature_dim, k = static_cast<const bf16*>(p.k) + head * p.feature_dim;
    v = static_cast<const bf16*>(p.v) + int64_t{head} * p.head_dim + first;
    y = static_cast<bf16*>(p.y) + int64_t{head} * p.head_dim + first;
  }
  __device__ __forceinline__ PackedState packed_state(const TaylorAttention& p, const Plan& plan, int64_t row) const {
    const int64_t slot = p.slot != nullptr ? p.slot[row] : row, at = (slot * p.heads + head) * plan.features;
    return {p.kv_state + at * p.head_dim, p.k_state + at, p.head_dim, first, width};
  }
  __device__ __forceinline__ float* parked(const TaylorAttention& p, const Plan& plan, int64_t number) const {
    return plan.parked + ((number * p.heads + head) * plan.slices + blockIdx.z) * plan.parked_floats;
  }
};

// The decay factor of each token up to the end of its chunk, for the numerator in bf16 and for the denominator in fp32.
__device__ __forceinline__ void store_factors(uint32_t factors, uint32_t weights, const Decay& decay, int tokens) {
  const int token = 2 * static_cast<int>(threadIdx.x);
  if (token >= kChunk) return;
  float numerator[2], denominator[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto distance = static_cast<float>(max(tokens - 1 - token - i, 0));
    numerator[i] = exp2f(distance * decay.numerator), denominator[i] = exp2f(distance * decay.denominator);
  }
  store_shared_4(factors + 2 * token, pack_bf16(numerator[0], numerator[1]));
  store_shared_float(weights + 4 * token, denominator[0]), store_shared_float(weights + 4 * token + 4, denominator[1]);
}

// out = Σ w(q·k) v over the pairs of the chunk, for a warp's 16 rows; adds the sums of the denominators' weights to `sum`, over this
// thread's columns only.
template <class S>
__device__ __forceinline__ void attend_pairs(float (&out)[2 * S::kColumnTiles][4], float2& sum, const RowTile<S>& rows, uint32_t base,
                                             const Decay& decay, int tile) {
  using At = Offsets<S>;
  const int row = lane_index() / 4, column = 2 * (lane_index() % 4);
  constexpr int kParts = kForwardBlocks<S> == 1 ? 2 : 1;  // parts of 16 sources; two need more registers
#pragma unroll 1
  for (int c = 0; c <= tile; c += kParts) {
    float score[2 * kParts][4] = {};  // [i]: sources 8i … 8i + 7
#pragma unroll
    for (int part = 0; part < kParts; ++part) scores(&score[2 * part], rows, base + At::kSource, 16 * (c + part));
    uint32_t w[kParts][4];
    const auto weigh_pairs = [&](auto decays) {
#pragma unroll
      for (int j = 0; j < 2 * kParts; ++j) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int distance = 16 * (tile - c) + row + (i & 2 ? 8 : 0) - (8 * j + column + (i & 1));
          const float a = score[j][i];
          x[i] = distance >= 0 ? fmaf(a, fmaf(a, 0.5F, 1.0F), 1.0F) : 0.0F;
          float in_sum = x[i];
          if constexpr (decays) {
            const auto d = static_cast<float>(distance);
            in_sum *= distance >= 0 ? exp2_approx(d * decay.denominator) : 0.0F;
            x[i] *= distance >= 0 ? exp2_approx(d * decay.numerator) : 0.0F;
          }
          (i & 2 ? sum.y : sum.x) += in_sum;
        }
        w[j / 2][2 * (j % 2)] = pack_bf16(x[0], x[1]), w[j / 2][2 * (j % 2) + 1] = pack_bf16(x[2], x[3]);
      }
    };
    decay.given ? weigh_pairs(std::true_type()) : weigh_pairs(std::false_type());
#pragma unroll
    for (int part = 0; part < kParts; ++part) multiply_values<S::kWidth>(out, w[part], base + At::kValues, 16 * (c + part));
  }
}

// The state's part of the denominators of the thread's two rows, count + q·(Σk + ½ Σkkᵀ q), without count and over this thread's columns
// only.
template <class S>
__device__ __forceinline__ float2 state_denominators(const RowTile<S>& rows, uint32_t base) {
  float u[S::kBlocks][4] = {};
  multiply_pairs(u, rows, base);
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int block = 0; block < S::kBlocks; ++block) {
    const float2 k = load_shared_float2(base + Offsets<S>::kSums + (8 * block + 2 * (lane_index() % 4)) * 4);
    const uint32_t a = rows.a.x[4 * block], b = rows.b.x[4 * block];
    sum.x += low_float(a) * fmaf(0.5F, u[block][0], k.x) + high_float(a) * fmaf(0.5F, u[block][1], k.y);
    sum.y += low_float(b) * fmaf(0.5F, u[block][2], k.x) + high_float(b) * fmaf(0.5F, u[block][3], k.y);
  }
  return sum;
}

// The factors by which the state before the chunk decays up to row `row`. Results are divided by the numerator's while the state's part is
// added, so it is at least 2^-60: a state that has decayed so far does not matter.
__device__ __forceinline__ float2 row_factors(const Decay& decay, int row) {
  const auto distance = static_cast<float>(row + 1);
  return make_float2(exp2f(fmaxf(distance * decay.numerator, -60.0F)), exp2f(distance * decay.denominator));
}

// Computes the outputs of a warp's 16 rows from the sums over the chunk's pairs and the state before the chunk.
template <class S>
__device__ __forceinline__ void finish_rows(const TaylorAttention& p, const ForwardBlock& block, float (&out)[2 * S::kColumnTiles][4],
                                            float2 pair_sum, const RowTile<S>& rows, uint32_t base, const Decay& decay, int64_t at,
                                            int tokens) {
  using At = Offsets<S>;
  const int lane = lane_index(), row = 16 * row_tile() + lane / 4;
  const float2 a = row_factors(decay, row), b = row_factors(decay, row + 8);
  if (decay.given) {
    const float x = 1.0F / a.x, y = 1.0F / b.x;
#pragma unroll
    for (auto& tile : out) tile[0] *= x, tile[1] *= x, tile[2] *= y, tile[3] *= y;
  }
  read_state<S, true>(out, rows, base + At::kState, base + At::kEnd);
  const float2 state_sum = state_denominators(rows, base);
  float2 sum = make_float2(fmaf(state_sum.x, a.y, pair_sum.x), fmaf(state_sum.y, b.y, pair_sum.y));
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    sum.x += __shfl_xor_sync(~0U, sum.x, distance), sum.y += __shfl_xor_sync(~0U, sum.y, distance);
  }
  const float count = load_shared_float(base + At::kSums + S::kDim * 4);
  sum.x += count * a.y, sum.y += count * b.y;
  if (p.denominator != nullptr && block.first == 0 && lane % 4 == 0) {
    if (row < tokens) p.denominator[(at + row) * p.heads + block.head] = sum.x;
    if (row + 8 < tokens) p.denominator[(at + row + 8) * p.heads + block.head] = sum.y;
  }
  const float x = a.x / sum.x, y = b.x / sum.y;
  const int64_t stride = int64_t{p.heads} * p.head_dim;
  bf16* to = block.y + (at + row) * stride + 2 * (lane % 4);
#pragma unroll
  for (int j = 0; j < S::kWidth / 8; ++j) {
    if (8 * j >= block.width) break;
    if (row < tokens) *reinterpret_cast<uint32_t*>(to + 8 * j) = pack_bf16(out[j][0] * x, out[j][1] * x);
    if (row + 8 < tokens) *reinterpret_cast<uint32_t*>(to + 8 * stride + 8 * j) = pack_bf16(out[j][2] * y, out[j][3] * y);
  }
}

// Advances state s over tokens [begin, end) and, where kAttend, computes their outputs.
template <class S, bool kAttend>
__device__ __forceinline__ void walk(const TaylorAttention& p, const ForwardBlock& block, State<S>& s, int64_t begin, int64_t end) {
  using At = Offsets<S>;
  uint32_t base = shared_base();
  const Decay decay(p, block.head);
  const bool weighted = decay.denominator != 0.0F;
  const auto request = [&](int64_t at) {
    const int tokens = static_cast<int>(min(end - at, int64_t{kChunk}));
    request_rows<S>(base + At::kSource, block.k + at * p.qk_stride, p.qk_stride, tokens);
    if constexpr (kAttend) request_rows<S>(base + At::kRows, block.q + at * p.qk_stride, p.qk_stride, tokens);
    request_values<S::kWidth>(base + At::kValues, block.v + at * p.v_stride, p.v_stride, tokens, block.width);
    copy_async_commit();
  };
  request(begin);
  prepare_shared<S>(base);
  if constexpr (kAttend) s.template publish<true>(base, base + At::kEnd);
  for (int64_t at = begin; at < end; at += kChunk) {
    const int tokens = static_cast<int>(min(end - at, int64_t{kChunk}));
    base = opaque(base);
    copy_async_wait<0>();
    __syncthreads();  // every thread's copies have arrived
    transpose_keys<S>(base + At::kKeys, base + At::kSource, tokens);
    if (decay.given) store_factors(base + At::kFactors, base + At::kWeights, decay, tokens);
    __syncthreads();  // the transposed keys are complete
    if (decay.given) s.scale(decay.state_factor(tokens), decay.sums_factor(tokens));
    constexpr int kUnrolled = kForwardBlocks<S> == 1 ? 2 : 1;
    add_values<kUnrolled>(s, base, base + At::kValues, decay.given);
    add_sums<kUnrolled>(s, base, weighted);
    RowTile<S> rows;
    float out[2 * S::kColumnTiles][4] = {};
    float2 sum = make_float2(0, 0);
    if constexpr (kAttend) {
      rows.load(base + At::kRows, row_tile());
      attend_pairs(out, sum, rows, base, decay, row_tile());
    }
    __syncthreads();  // all warps have read the chunk: the next one may overwrite it
    if (at + kChunk < end) request(at + kChunk);
    if constexpr (kAttend) {
      finish_rows(p, block, out, sum, rows, base, decay, at, tokens);
      __syncthreads();  // all warps have read the state before the chunk
      if (at + kChunk < end) s.template publish<true>(base, base + At::kEnd);
    }
  }
}

// Parks the parts of the states at the starts of segments: segment j of a row gets the sum over segment j − 1 alone, and segment 0 the
// row's initial state. attend_segments adds up the parts.
template <class S>
__global__ void __launch_bounds__(kThreads, kForwardBlocks<S>) sum_segments(const __grid_constant__ TaylorAttention p, const Plan plan) {
  Work work;
  if (!find_work<kThreads>(p, plan.segment, blockIdx.x, work)) return;
  if (work.segment == 0 && p.kv_state == nullptr) return;
  const ForwardBlock block(p, plan);
  State<S> s;
  if (work.segment == 0) {
    s.load(block.packed_state(p, plan, work.row));
  } else {
    s.clear();
    const int64_t begin = work.begin + (work.segment - 1) * plan.segment;
    walk<S, false>(p, block, s, begin, begin + plan.segment);
  }
  s.park(block.parked(p, plan, blockIdx.x));
}

template <class S>
__global__ void __launch_bounds__(kThreads, kForwardBlocks<S>) attend_segments(const __grid_constant__ TaylorAttention p, const Plan plan) {
  Work work;
  if (!find_work<kThreads>(p, plan.segment, blockIdx.x, work)) return;
  const ForwardBlock block(p, plan);
  State<S> s;
  if (plan.parked == nullptr && p.kv_state != nullptr) {
    s.load(block.packed_state(p, plan, work.row));
  } else {
    s.clear();
    const Decay decay(p, block.head);
    const float state_factor = decay.state_factor(plan.segment), sums_factor = decay.sums_factor(plan.segment);
    for (int64_t j = p.kv_state != nullptr ? 0 : 1; plan.parked != nullptr && j <= work.segment; ++j) {
      if (decay.given) s.scale(state_factor, sums_factor);
      s.add(block.parked(p, plan, blockIdx.x - work.segment + j));
    }
  }
  const int64_t begin = work.begin + work.segment * plan.segment;
  walk<S, true>(p, block, s, begin, min(begin + plan.segment, work.end));
  if (p.kv_state != nullptr && work.segment == work.segments - 1) s.store(block.packed_state(p, plan, work.row));
}

template <class S>
int64_t forward_scratch(const TaylorAttention& p) {
  const Plan plan = make_plan<S>(p, 1, kForwardBlocks<S>);
  return forward_parks(p, plan) ? parked_floats(p, plan) * 4 : 0;
}

template <class S>
Status forward(const TaylorAttention& p, void* scratch, cudaStream_t stream) {
  Plan plan = make_plan<S>(p, 1, kForwardBlocks<S>);
  if (plan.numbers > 0x7fffffff) return {"taylor_attention: too many rows for one launch"};
  const dim3 grid(static_cast<unsigned>(plan.numbers), p.heads, plan.slices);
  constexpr int kBytes = kForwardShared<S>;
  if (forward_parks(p, plan)) {
    plan.parked = static_cast<float*>(scratch);
    auto* sum = sum_segments<S>;
    if (const cudaError_t e = allow_shared_memory(sum, kBytes); e != cudaSuccess) return status_of(e);
    sum<<<grid, kThreads, kBytes, stream>>>(p, plan);
  }
  auto* attend = attend_segments<S>;
  if (const cudaError_t e = allow_shared_memory(attend, kBytes); e != cudaSuccess) return status_of(e);
  attend<<<grid, kThreads, kBytes, stream>>>(p, plan);
  return launched();
}

int forward_shared(int feature_dim) {
  switch (feature_dim) {
    case 8: return kForwardShared<ForwardShape<8>>;
    case 16: return kForwardShared<ForwardShape<16>>;
    case 24: return kForwardShared<ForwardShape<24>>;
    default: return kForwardShared<ForwardShape<32>>;
  }
}

}  // namespace
}  // namespace taylor_mma

bool taylor_forward_mma_supports(const TaylorAttention& p) {
  return p.dtype == DType::bf16 && p.feature_dim >= 8 && p.feature_dim <= 32 && p.feature_dim % 8 == 0 && p.head_dim % 8 == 0 &&
         p.qk_stride % 8 == 0 && p.v_stride % 8 == 0 && aligned16(p.q) && aligned16(p.k) && aligned16(p.v) && aligned16(p.y) &&
         block_shared_memory() >= taylor_mma::forward_shared(p.feature_dim);
}

int64_t taylor_forward_mma_scratch(const TaylorAttention& p) {
  switch (p.feature_dim) {
    case 8: return taylor_mma::forward_scratch<taylor_mma::ForwardShape<8>>(p);
    case 16: return taylor_mma::forward_scratch<taylor_mma::ForwardShape<16>>(p);
    case 24: return taylor_mma::forward_scratch<taylor_mma::ForwardShape<24>>(p);
    default: return taylor_mma::forward_scratch<taylor_mma::ForwardShape<32>>(p);
  }
}

Status taylor_forward_mma(const TaylorAttention& arguments, void* scratch, Queue queue) {
  const TaylorAttention p = with_strides(arguments);
  switch (p.feature_dim) {
    case 8: return taylor_mma::forward<taylor_mma::ForwardShape<8>>(p, scratch, stream_of(queue));
    case 16: return taylor_mma::forward<taylor_mma::ForwardShape<16>>(p, scratch, stream_of(queue));
    case 24: return taylor_mma::forward<taylor_mma::ForwardShape<24>>(p, scratch, stream_of(queue));
    default: return taylor_mma::forward<taylor_mma::ForwardShape<32>>(p, scratch, stream_of(queue));
  }
}

}  // namespace based::kernels::cuda::detail
