// Gradients of Taylor attention with mma.sync, for any GPU from sm_80: bf16, feature_dim 8, 16, 24 or 32, with or without decay. The
// formulas are those of backward_sm90.cu, with every pair weighted by the decay g^(t − s), which dD has not where the denominator does not
// decay. "Rows" are the tokens whose gradients are computed, "sources" the tokens that are summed over: for dq the rows are queries and the
// sources keys, from the first token to the last; for dk and dv the rows are keys and the sources queries, from the last token to the
// first. docs/kernels/taylor-attention.md describes it.
#include <type_traits>

#include "based/kernels/taylor/cuda/gradients.cuh"
#include "based/kernels/taylor/cuda/launchers.h"
#include "based/kernels/taylor/cuda/mma_state.cuh"

namespace based::kernels::cuda::detail {
namespace taylor_mma {
namespace {

// Scratch of the kernels.
struct Workspace {
  Plan plan;
  bf16* dn;        // [tokens, heads, head_dim]
  float* dd;       // [tokens, heads]
  float* partial;  // [2][slices][tokens, heads, feature_dim], the slices' parts of dq and dk, or null where there is one slice
  int64_t parked;  // number of floats of one direction's parked states
};

// Shared memory: Offsets, then the rows' values and the chunk's dD, floats [tokens].
template <class S>
struct GradientOffsets : Offsets<S> {
  static constexpr uint32_t kRowValues = Offsets<S>::kEnd, kDd = kRowValues + S::kValueBytes, kAll = kDd + kChunk * 4;
};

// Calls `call` with the shape of the blocks: 64 columns of the head dimension where the registers and the GPU's shared memory allow it.
template <class Call>
auto with_shape(int feature_dim, const Call& call) {
  using Wide24 = Shape<24, 64>;
  static_assert(GradientOffsets<Shape<16, 64>>::kAll <= 101376 && GradientOffsets<Shape<24, 32>>::kAll <= 101376 &&
                GradientOffsets<Shape<32, 32>>::kAll <= 101376);
  switch (feature_dim) {
    case 8: return call(Shape<8, 64>());
    case 16: return call(Shape<16, 64>());
    case 24: return block_shared_memory() >= static_cast<int>(GradientOffsets<Wide24>::kAll) ? call(Wide24()) : call(Shape<24, 32>());
    default: return call(Shape<32, 32>());
  }
}

// One direction of a block's head and slice: kBackward is false for dq, true for dk and dv.
template <class S, bool kBackward>
struct Gradient {
  const TaylorAttentionBackward& p;
  const Workspace& work;
  const int head, slice, first, width;  // columns [first, first + width) of the head dimension

  __device__ __forceinline__ Gradient(const TaylorAttentionBackward& params, const Workspace& w, int s)
      : p(params),
        work(w),
        head(static_cast<int>(blockIdx.y)),
        slice(s),
        first(s * w.plan.width),
        width(min(w.plan.width, p.forward.head_dim - first)) {}

  // Inputs at token 0.
  __device__ __forceinline__ const bf16* elements(bool keys) const {
    return static_cast<const bf16*>(keys ? p.forward.k : p.forward.q) + head * S::kDim;
  }
  __device__ __forceinline__ const bf16* values(bool of_keys) const {
    return (of_keys ? static_cast<const bf16*>(p.forward.v) : work.dn) + int64_t{head} * p.forward.head_dim + first;
  }
  __device__ __forceinline__ int64_t value_stride(bool of_keys) const {
    return of_keys ? p.forward.v_stride : int64_t{p.forward.heads} * p.forward.head_dim;
  }
  // The border state is the state that a row's first segment in this direction starts from: the initial state, or the gradient of the final
  // state.
  __device__ __forceinline__ bool has_border() const { return (kBackward ? p.grad_kv_state : p.initial_kv_state) != nullptr; }
  __device__ __forceinline__ PackedState packed(const float* kv, const float* k, int64_t row) const {
    const int64_t at = (row * p.forward.heads + head) * work.plan.features;
    return {const_cast<float*>(kv) + at * p.forward.head_dim, const_cast<float*>(k) + at, p.forward.head_dim, first, width};
  }
  __device__ __forceinline__ float* parked(int64_t number) const {
    return work.plan.parked + (kBackward ? work.parked : 0) +
           ((number * p.forward.heads + head) * work.plan.slices + slice) * work.plan.parked_floats;
  }
};

// For each token of the chunk: its dD; its decay factor up to the chunk's end in this direction, in bf16; and its weight in the
// denominator's sums.
template <class S, bool kBackward>
__device__ __forceinline__ void store_weights(const Gradient<S, kBackward>& job, uint32_t base, const Decay& decay, int64_t at,
                                              int tokens) {
  using At = GradientOffsets<S>;
  const int token = static_cast<int>(threadIdx.x);
  if (token >= kChunk) return;
  const float dd = token < tokens && job.slice == 0 ? job.work.dd[(at + token) * job.p.forward.heads + job.head] : 0.0F;
  store_shared_float(base + At::kDd + 4 * token, dd);
  const auto distance = static_cast<float>(kBackward ? token + 1 : max(tokens - 1 - token, 0));
  const float factor = exp2f(distance * decay.denominator);
  store_shared_float(base + At::kWeights + 4 * token, kBackward ? dd * factor : factor);
  const float numerator = exp2f(distance * decay.numerator), next = __shfl_xor_sync(~0U, numerator, 1);
  if (token % 2 == 0) store_shared_4(base + At::kFactors + 2 * token, pack_bf16(numerator, next));
}

// The warp's 16 rows of a chunk.
template <class S>
struct GradientRows {
  RowTile<S> x;
  uint32_t values[S::kColumnTiles][4];  // A operands
  float2 dd;
  float pairs[S::kBlocks][4] = {};        // their gradients from the pairs of the chunk
  float dv[2 * S::kColumnTiles][4] = {};  // for keys

  __device__ __forceinline__ void load(uint32_t base, int tile) {
    using At = GradientOffsets<S>;
    const int lane = lane_index(), matrix = lane / 8, row = 16 * tile + lane / 4;
    x.load(base + At::kRows, tile);
#pragma unroll
    for (int m = 0; m < S::kColumnTiles; ++m) {
      ldmatrix(values[m], base + At::kRowValues + value_at<S::kWidth>(16 * tile + 8 * (matrix % 2) + lane % 8, 2 * m + matrix / 2));
    }
    dd = make_float2(load_shared_float(base + At::kDd + 4 * row), load_shared_float(base + At::kDd + 4 * row + 32));
  }
};

// The pairs of the rows with the chunk's sources of which they depend: g = (1 + a)(row values · source values + dD) gives the gradients of
// the rows, w(a) those of the keys' values. dD is that of the query. An iteration has 16 or, so that more mma run at a time, 32 sources,
// where a thread has registers for them.
template <class S, bool kBackward>
__device__ __forceinline__ void add_pair_gradients(GradientRows<S>& rows, uint32_t base, const Decay& decay, int tile) {
  using At = GradientOffsets<S>;
  constexpr int kParts = S::kDim == 32 ? 1 : 2;  // parts of 16 sources
  const int lane = lane_index(), matrix = lane / 8, row = lane / 4, column = 2 * (lane % 4);
#pragma unroll 1
  for (int c = kBackward ? tile / kParts * kParts : 0; c < (kBackward ? kChunk / 16 : tile + 1); c += kParts) {
    float score[2 * kParts][4] = {}, product[2 * kParts][4] = {};  // [i]: sources 8i … 8i + 7
#pragma unroll
    for (int part = 0; part < kParts; ++part) scores(&score[2 * part], rows.x, base + At::kSource, 16 * (c + part));
#pragma unroll
    for (int m = 0; m < S::kColumnTiles; ++m)
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint32_t b[4];
        ldmatrix(b, base + At::kValues + value_at<S::kWidth>(16 * (c + part) + 8 * (matrix / 2) + lane % 8, 2 * m + matrix % 2));
        mma_16x8x16(product[2 * part], rows.values[m], b[0], b[1]);
        mma_16x8x16(product[2 * part + 1], rows.values[m], b[2], b[3]);
      }
    uint32_t g[kParts][4], w[kParts][4];
    const auto weigh_pairs = [&](auto decays) {
#pragma unroll
      for (int j = 0; j < 2 * kParts; ++j) {
        const float2 source_dd = load_shared_float2(base + At::kDd + (16 * c + 8 * j + column) * 4);
        float x[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int between = 16 * (tile - c) + row + (i & 2 ? 8 : 0) - (8 * j + column + (i & 1)),
                    distance = kBackward ? -between : between;
          const float a = score[j][i];
          float dd = kBackward ? (i & 1 ? source_dd.y : source_dd.x) : (i & 2 ? rows.dd.y : rows.dd.x), factor = 1;
          if constexpr (decays) {
            const auto d = static_cast<float>(max(distance, 0));
            factor = exp2_approx(d * decay.numerator), dd *= exp2_approx(d * decay.denominator);
          }
          x[i] = distance >= 0 ? (1.0F + a) * fmaf(product[j][i], factor, dd) : 0.0F;
          y[i] = distance >= 0 ? fmaf(a, fmaf(a, 0.5F, 1.0F), 1.0F) * factor : 0.0F;
        }
        g[j / 2][2 * (j % 2)] = pack_bf16(x[0], x[1]), g[j / 2][2 * (j % 2) + 1] = pack_bf16(x[2], x[3]);
        w[j / 2][2 * (j % 2)] = pack_bf16(y[0], y[1]), w[j / 2][2 * (j % 2) + 1] = pack_bf16(y[2], y[3]);
      }
    };
    decay.given ? weigh_pairs(std::true_type()) : weigh_pairs(std::false_type());
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int block = 0; block < S::kBlocks; block += 2) {
        uint32_t b[4];
        ldmatrix_transposed(b, base + At::kSource + (16 * (c + part) + 8 * (matrix % 2) + lane % 8) * S::kRowPitch +
                                   min(block + matrix / 2, S::kBlocks - 1) * 16);
        mma_16x8x16(rows.pairs[block], g[part], b[0], b[1]);
        if (block + 1 < S::kBlocks) mma_16x8x16(rows.pairs[(block + 1) % S::kBlocks], g[part], b[2], b[3]);
      }
      if constexpr (kBackward) multiply_values<S::kWidth>(rows.dv, w[part], base + At::kValues, 16 * (c + part));
    }
  }
}

// Backward of a group's features for one row: given the gradients g0, g1 of the thread's two columns, adds the gradients of their factors
// to `sum`; sum[i] belongs to element (2 (lane mod 4) + i) mod kDim.
template <class S>
__device__ __forceinline__ void contract(float (&sum)[S::kDim], float g0, float g1, const Row<S>& row, int group) {
  if (group >= S::kConstant) return;
  if (group >= S::kLinear) {
    sum[8 * (group - S::kLinear)] += g0, sum[8 * (group - S::kLinear) + 1] += g1;
    return;
  }
  const bool half = group >= S::kFull;
  const int block = half ? group - S::kFull : group / (S::kDim / 2), distance = half ? S::kDim / 2 : group % (S::kDim / 2), i = 8 * block;
  const uint32_t own = row.x[4 * block], other = row.pair(4 * block, distance);
  sum[i] = fmaf(g0, low_float(other), sum[i]), sum[i + 1] = fmaf(g1, high_float(other), sum[i + 1]);
  if (distance == 0) return;
  const int j = (i + distance) % S::kDim, k = (i + distance + 1) % S::kDim;
  sum[j] = fmaf(g0, low_float(own), sum[j]), sum[k] = fmaf(g1, high_float(own), sum[k]);
}

// The gradients of the rows' x except the denominator's part, divided by the rows' factors a and b: values·state is the gradient of the
// features, from which contract() computes that of x, and the gradients from the pairs are added, divided by the factors. dx has the
// accumulator layout of kDim columns.
template <class S>
__device__ __forceinline__ void state_gradients(float (&dx)[S::kBlocks][4], const GradientRows<S>& rows, uint32_t base, float a, float b) {
  const int lane = lane_index(), matrix = lane / 8, t = lane % 4;
  const uint32_t at = base + GradientOffsets<S>::kState + (8 * (matrix % 2) + lane % 8) * S::kStatePitch + matrix / 2 * 16;
  const float x = __fdividef(1.0F, a), y = __fdividef(1.0F, b);
  float sum[2][S::kDim] = {};
#pragma unroll
  for (int block = 0; block < S::kBlocks; ++block) {
    sum[0][8 * block] = rows.pairs[block][0] * x, sum[0][8 * block + 1] = rows.pairs[block][1] * x;
    sum[1][8 * block] = rows.pairs[block][2] * y, sum[1][8 * block + 1] = rows.pairs[block][3] * y;
  }
#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) {
    float d[2][4] = {};
#pragma unroll
    for (int m = 0; m < S::kColumnTiles; ++m) {
      uint32_t f[4];
      ldmatrix_transposed(f, at + m * 16 * S::kStatePitch + tile * 32);
      mma_16x8x16(d[0], rows.values[m], f[0], f[1]);
      mma_16x8x16(d[1], rows.values[m], f[2], f[3]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      contract<S>(sum[0], d[i][0], d[i][1], rows.x.a, 2 * tile + i);
      contract<S>(sum[1], d[i][2], d[i][3], rows.x.b, 2 * tile + i);
    }
  }
  // The four threads of a row have sums of every column; each receives its columns of the accumulator layout.
#pragma unroll
  for (int block = 0; block < S::kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2, column = 8 * block + i % 2;
      float total = sum[r][column];
#pragma unroll
      for (int e = 1; e < 4; ++e) {  // receives from thread t + e and sends to thread t − e
        const float sent = t < e ? sum[r][(column + 8 - 2 * e) % S::kDim] : sum[r][(column + S::kDim - 2 * e) % S::kDim];
        total += __shfl_sync(~0U, sent, (lane & ~3) | ((t + e) & 3));
      }
      dx[block][i] = total;
    }
  }
}

// Stores the gradient of 16 rows of q or k, or this slice's part of it.
template <class S, bool kBackward>
__device__ __forceinline__ void store_gradient(const Gradient<S, kBackward>& job, const float (&dx)[S::kBlocks][4], int64_t at,
                                               int tokens) {
  const TaylorAttention& f = job.p.forward;
  const int lane = lane_index(), row = 16 * row_tile() + lane / 4, column = 2 * (lane % 4);
  const int64_t token_elements = int64_t{f.heads} * S::kDim;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t token = at + row + 8 * i;
    if (row + 8 * i >= tokens) continue;
    if (job.work.partial == nullptr) {
      bf16* to = static_cast<bf16*>(kBackward ? job.p.grad_k : job.p.grad_q) + token * f.qk_stride + job.head * S::kDim + column;
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        *reinterpret_cast<uint32_t*>(to + 8 * block) = pack_bf16(dx[block][2 * i], dx[block][2 * i + 1]);
      }
    } else {
      float* to = job.work.partial + (int64_t{kBackward ? job.work.plan.slices : 0} + job.slice) * f.tokens * token_elements +
                  token * token_elements + job.head * S::kDim + column;
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        *reinterpret_cast<float2*>(to + 8 * block) = make_float2(dx[block][2 * i], dx[block][2 * i + 1]);
      }
    }
  }
}

// Completes the gradients of a warp's 16 rows with the state before the chunk in this direction, and stores them.
template <class S, bool kBackward>
__device__ __forceinline__ void finish_gradients(const Gradient<S, kBackward>& job, GradientRows<S>& rows, uint32_t base,
                                                 const Decay& decay, int64_t at, int tokens) {
  using At = GradientOffsets<S>;
  const int lane = lane_index(), row = 16 * row_tile() + lane / 4;
  const auto distance = [&](int r) { return static_cast<float>(kBackward ? max(tokens - 1 - r, 0) : r + 1); };
  const float da = distance(row), db = distance(row + 8);
  // As in the forward, the factors are at least 2^-60.
  const float a = decay.given ? exp2_approx(fmaxf(da * decay.numerator, -60.0F)) : 1.0F,
              b = decay.given ? exp2_approx(fmaxf(db * decay.numerator, -60.0F)) : 1.0F;
  if constexpr (kBackward) {
    if (decay.given) {
      const float x = __fdividef(1.0F, a), y = __fdividef(1.0F, b);
#pragma unroll
      for (auto& tile : rows.dv) tile[0] *= x, tile[1] *= x, tile[2] *= y, tile[3] *= y;
    }
    read_state<S, false>(rows.dv, rows.x, base + At::kState, 0);
    const int64_t stride = job.p.forward.v_stride;
    bf16* to =
        static_cast<bf16*>(job.p.grad_v) + int64_t{job.head} * job.p.forward.head_dim + job.first + (at + row) * stride + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < S::kWidth / 8; ++j) {
      if (8 * j >= job.width) break;
      if (row < tokens) *reinterpret_cast<uint32_t*>(to + 8 * j) = pack_bf16(rows.dv[j][0] * a, rows.dv[j][1] * a);
      if (row + 8 < tokens) *reinterpret_cast<uint32_t*>(to + 8 * stride + 8 * j) = pack_bf16(rows.dv[j][2] * b, rows.dv[j][3] * b);
    }
  }
  float dx[S::kBlocks][4];
  state_gradients(dx, rows, base, a, b);
#pragma unroll
  for (auto& tile : dx) tile[0] *= a, tile[1] *= a, tile[2] *= b, tile[3] *= b;
  if (job.slice == 0) {  // the denominator's part
    float u[S::kBlocks][4] = {};
    multiply_pairs(u, rows.x, base);
    const float dda = (kBackward ? 1.0F : rows.dd.x) * exp2_approx(da * decay.denominator),
                ddb = (kBackward ? 1.0F : rows.dd.y) * exp2_approx(db * decay.denominator);
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      const float2 k = load_shared_float2(base + At::kSums + (8 * block + 2 * (lane % 4)) * 4);
      dx[block][0] = fmaf(u[block][0] + k.x, dda, dx[block][0]);
      dx[block][1] = fmaf(u[block][1] + k.y, dda, dx[block][1]);
      dx[block][2] = fmaf(u[block][2] + k.x, ddb, dx[block][2]);
      dx[block][3] = fmaf(u[block][3] + k.y, ddb, dx[block][3]);
    }
  }
  store_gradient(job, dx, at, tokens);
}

// Advances state s over tokens [begin, end) in this direction and, where kGradients, computes their gradients.
template <class S, bool kBackward, bool kGradients>
__device__ __forceinline__ void walk(const Gradient<S, kBackward>& job, State<S>& s, int64_t begin, int64_t end) {
  using At = GradientOffsets<S>;
  uint32_t base = shared_base();
  const Decay decay(job.p.forward, job.head);
  const bool weighted = kBackward || decay.denominator != 0.0F;
  const int64_t stride = job.p.forward.qk_stride;
  const int chunks = static_cast<int>((end - begin + kChunk - 1) / kChunk);
  const auto at_chunk = [&](int i) { return begin + int64_t{kBackward ? chunks - 1 - i : i} * kChunk; };
  const auto request = [&](int64_t at) {
    const int tokens = static_cast<int>(min(end - at, int64_t{kChunk}));
    const int64_t source_stride = job.value_stride(!kBackward), row_stride = job.value_stride(kBackward);
    request_rows<S>(base + At::kSource, job.elements(!kBackward) + at * stride, stride, tokens);
    request_values<S::kWidth>(base + At::kValues, job.values(!kBackward) + at * source_stride, source_stride, tokens, job.width);
    if constexpr (kGradients) {
      request_rows<S>(base + At::kRows, job.elements(kBackward) + at * stride, stride, tokens);
      request_values<S::kWidth>(base + At::kRowValues, job.values(kBackward) + at * row_stride, row_stride, tokens, job.width);
    }
    copy_async_commit();
  };
  request(at_chunk(0));
  prepare_shared<S>(base);
  if constexpr (kGradients) s.template publish<false>(base, 0);
  for (int i = 0; i < chunks; ++i) {
    const int64_t at = at_chunk(i);
    const int tokens = static_cast<int>(min(end - at, int64_t{kChunk}));
    base = opaque(base);
    copy_async_wait<0>();
    __syncthreads();  // every thread's copies have arrived
    transpose_keys<S>(base + At::kKeys, base + At::kSource, tokens);
    store_weights(job, base, decay, at, tokens);
    __syncthreads();  // the transposed sources and their weights are complete
    if (decay.given) s.scale(decay.state_factor(tokens), decay.sums_factor(tokens));
    add_values<2>(s, base, base + At::kValues, decay.given);
    if (job.slice == 0) add_sums<2>(s, base, weighted);
    GradientRows<S> rows;
    if constexpr (kGradients) {
      rows.load(base, row_tile());
      add_pair_gradients<S, kBackward>(rows, base, decay, row_tile());
    }
    __syncthreads();  // all warps have read the chunk: the next one may overwrite it
    if (i + 1 < chunks) request(at_chunk(i + 1));
    if constexpr (kGradients) {
      finish_gradients(job, rows, base, decay, at, tokens);
      __syncthreads();  // all warps have read the state before the chunk
      if (i + 1 < chunks) s.template publish<false>(base, 0);
    }
  }
}

// Parks the part of the starting state of a segment that comes from the preceding segment in this direction, or from the border.
template <class S, bool kBackward>
__device__ __forceinline__ void park(const TaylorAttentionBackward& p, const Workspace& work, const Work& item, int slice) {
  const Gradient<S, kBackward> job(p, work, slice);
  const int64_t neighbour = kBackward ? item.segment + 1 : item.segment - 1;
  const bool at_border = neighbour < 0 || neighbour == item.segments;
  if (at_border && !job.has_border()) return;
  State<S> s;
  if (at_border) {
    s.load(kBackward ? job.packed(p.grad_kv_state, p.grad_k_state, item.row) : job.packed(p.initial_kv_state, p.initial_k_state, item.row));
  } else {
    s.clear();
    const int64_t begin = item.begin + neighbour * work.plan.segment;
    walk<S, kBackward, false>(job, s, begin, min(begin + work.plan.segment, item.end));
  }
  s.park(job.parked(blockIdx.x));
}

template <class S, bool kBackward>
__device__ __forceinline__ void run(const TaylorAttentionBackward& p, const Workspace& work, const Work& item, int slice) {
  const Gradient<S, kBackward> job(p, work, slice);
  const int64_t length = work.plan.segment, begin = item.begin + item.segment * length, first = blockIdx.x - item.segment;
  State<S> s;
  s.clear();
  if (work.plan.parked != nullptr) {
    // Adds the parts in the direction's order. Before each addition the sum decays over the segment that the next part comes from.
    const Decay decay(p.forward, job.head);
    const int64_t parts = (kBackward ? item.segments - 1 - item.segment : item.segment) + 1;
    for (int64_t j = job.has_border() ? 0 : 1; j < parts; ++j) {
      const int64_t number = kBackward ? item.segments - 1 - j : j;
      const int64_t tokens = kBackward && j == 1 ? item.end - item.begin - (item.segments - 1) * length : length;
      if (decay.given) s.scale(decay.state_factor(tokens), decay.sums_factor(tokens));
      s.add(job.parked(first + number));
    }
  }
  walk<S, kBackward, true>(job, s, begin, min(begin + length, item.end));
  if (kBackward && p.grad_initial_kv_state != nullptr && item.segment == 0) {
    s.store(job.packed(p.grad_initial_kv_state, p.grad_initial_k_state, item.row));
  }
}

// blockIdx.z = direction · slices + slice, here and in `gradients`.
template <class S>
__global__ void __launch_bounds__(kThreads, 1) park_states(const __grid_constant__ TaylorAttentionBackward p, const Workspace work) {
  Work item;
  if (!find_work<kThreads>(p.forward, work.plan.segment, blockIdx.x, item)) return;
  const int slices = work.plan.slices, z = static_cast<int>(blockIdx.z);
  if (z < slices) {
    park<S, false>(p, work, item, z);
  } else {
    park<S, true>(p, work, item, z - slices);
  }
}

template <class S>
__global__ void __launch_bounds__(kThreads, 1) gradients(const __grid_constant__ TaylorAttentionBackward p, const Workspace work) {
  Work item;
  if (!find_work<kThreads>(p.forward, work.plan.segment, blockIdx.x, item)) return;
  const int slices = work.plan.slices, z = static_cast<int>(blockIdx.z);
  if (z < slices) {
    run<S, false>(p, work, item, z);
  } else {
    run<S, true>(p, work, item, z - slices);
  }
}

template <class S>
GradientLayout<Workspace> make_layout(const TaylorAttentionBackward& p) {
  const Plan plan = make_plan<S>(p.forward, 2, 1);
  return gradient_layout<Workspace>(p, plan, parked_floats(p.forward, plan));
}

template <class S>
Status backward(const TaylorAttentionBackward& p, void* scratch, cudaStream_t s) {
  const TaylorAttention& f = p.forward;
  GradientLayout<Workspace> l = make_layout<S>(p);
  if (l.work.plan.numbers > 0x7fffffff) return {"taylor_attention_backward: too many rows for one launch"};
  auto* at = static_cast<char*>(scratch);
  Workspace& work = l.work;
  work.dn = reinterpret_cast<bf16*>(at), work.dd = reinterpret_cast<float*>(at + l.dd_at);
  work.partial = work.plan.slices > 1 ? reinterpret_cast<float*>(at + l.partial_at) : nullptr;
  work.plan.parked = l.bytes > l.parked_at ? reinterpret_cast<float*>(at + l.parked_at) : nullptr;
  const dim3 token_grid(static_cast<unsigned>(ceil_div(f.tokens * f.heads * 8, kThreads)));
  prepare_gradients<8><<<token_grid, kThreads, 0, s>>>(p, work.dn, work.dd);
  const dim3 grid(static_cast<unsigned>(work.plan.numbers), f.heads, 2 * work.plan.slices);
  constexpr int kBytes = GradientOffsets<S>::kAll;
  if (work.plan.parked != nullptr) {
    if (const cudaError_t e = allow_shared_memory(park_states<S>, kBytes); e != cudaSuccess) return status_of(e);
    park_states<S><<<grid, kThreads, kBytes, s>>>(p, work);
  }
  if (const cudaError_t e = allow_shared_memory(gradients<S>, kBytes); e != cudaSuccess) return status_of(e);
  gradients<S><<<grid, kThreads, kBytes, s>>>(p, work);
  if (p.grad_initial_kv_state != nullptr) {
    const dim3 row_grid(static_cast<unsigned>(f.rows));
    pass_state_gradients<256><<<row_grid, kThreads, 0, s>>>(p);
  }
  if (work.partial != nullptr) {
    const dim3 sum_grid(static_cast<unsigned>(ceil_div(f.tokens * f.heads * f.feature_dim / 8, kThreads)), 2);
    sum_gradient_slices<bf16><<<sum_grid, kThreads, 0, s>>>(p, work.partial, work.plan.slices);
  }
  return launched();
}

}  // namespace
}  // namespace taylor_mma

bool taylor_backward_mma_supports(const TaylorAttentionBackward& p) {
  return p.forward.tokens > 0 && taylor_forward_mma_supports(p.forward) && p.forward.denominator != nullptr && aligned16(p.grad_y) &&
         aligned16(p.grad_q) && aligned16(p.grad_k) && aligned16(p.grad_v) && taylor_mma::with_shape(p.forward.feature_dim, [](auto shape) {
           return block_shared_memory() >= static_cast<int>(taylor_mma::GradientOffsets<decltype(shape)>::kAll);
         });
}

int64_t taylor_backward_mma_scratch(const TaylorAttentionBackward& p) {
  return taylor_mma::with_shape(p.forward.feature_dim, [&](auto shape) { return taylor_mma::make_layout<decltype(shape)>(p).bytes; });
}

Status taylor_backward_mma(const TaylorAttentionBackward& arguments, void* scratch, Queue queue) {
  TaylorAttentionBackward p = arguments;
  p.forward = with_strides(p.forward);
  return taylor_mma::with_shape(p.forward.feature_dim,
                                [&](auto shape) { return taylor_mma::backward<decltype(shape)>(p, scratch, stream_of(queue)); });
}

}  // namespace based::kernels::cuda::detail
