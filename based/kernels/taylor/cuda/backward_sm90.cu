// Gradients of Taylor attention on Hopper: bf16, feature_dim 8 or 16, no decay. With y = n / D, dn = dy / D and dD = −dn·y:
//   dq_t = Σ_{s≤t} (1 + q_t·k_s)(dn_t·v_s + dD_t) k_s       dk_s = Σ_{t≥s} (1 + q_t·k_s)(dn_t·v_s + dD_t) q_t
//   dv_s = Σ_{t≥s} w(q_t·k_s) dn_t
// dq is computed chunk by chunk from the first token to the last, with the forward's state Σ v φ(k)ᵀ; dk and dv from the last token to the
// first, with the state Σ dn φ(q)ᵀ. Both directions are one template, with q and k, and v and dn, exchanged. Below, "rows" are the tokens
// whose gradients are computed, "sources" the tokens that are summed over. docs/kernels/taylor-attention.md describes it.
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/taylor/cuda/gradients.cuh"
#include "based/kernels/taylor/cuda/launchers.h"
#include "based/kernels/taylor/cuda/sm90.cuh"

namespace based::kernels::cuda::detail {
namespace {

// Scratch of the kernels: dn, dD, and the parts of dq and dk of each slice of the head dimension, which
// sum_gradient_slices adds up.
struct Workspace {
  SegmentPlan plan;
  bf16* dn;        // [tokens, heads, head_dim]
  float* dd;       // [tokens, heads]
  float* partial;  // [2][slices][tokens, heads, feature_dim], or null where there is one slice
  int64_t parked;  // number of floats of one direction's parked states
};

constexpr uint32_t kAtRows = 2 * kValueBytes, kAtFeatures = 2 * kAtRows, kAtState = kAtFeatures + kFeatureBytes,
                   kAtOutput = kAtState + kFeatureBytes, kAtWeights = kAtOutput + kValueBytes, kShared = kAtWeights + kChunk * 4 + 1024;

#if BASED_HAS_WGMMA
// One direction: kBackward is false for dq, true for dk and dv.
template <bool kBackward>
struct Gradient {
  const TaylorAttentionBackward& p;
  const Workspace& work;
  const ChunkBlock block;
  int slice;

  __device__ __forceinline__ Gradient(const TaylorAttentionBackward& params, const Workspace& w, int s)
      : p(params), work(w), block(params.forward, w.plan, s), slice(s) {}

  __device__ __forceinline__ const bf16* dn() const { return work.dn + int64_t{block.head} * p.forward.head_dim + block.first; }
  __device__ __forceinline__ Source source() const {
    return kBackward ? Source{block.q, dn(), block.y_stride, work.dd + block.head} : Source{block.k, block.v, block.v_stride, nullptr};
  }
  __device__ __forceinline__ const bf16* rows() const { return kBackward ? block.k : block.q; }
  __device__ __forceinline__ const bf16* row_values() const { return kBackward ? block.v : dn(); }
  __device__ __forceinline__ int64_t row_stride() const { return kBackward ? block.v_stride : block.y_stride; }
  __device__ __forceinline__ float* parked(int64_t number) const {
    return parked_state(p.forward, work.plan, number, slice) + (kBackward ? work.parked : 0);
  }
  // The border state is the state that a row's first segment in this direction starts from: the initial state, or the gradient of the final
  // state.
  __device__ __forceinline__ bool has_border() const { return (kBackward ? p.grad_kv_state : p.initial_kv_state) != nullptr; }
  __device__ __forceinline__ PackedState border(const float* kv, const float* k, int64_t row) const {
    const TaylorAttention& f = p.forward;
    const int64_t at = (row * f.heads + block.head) * work.plan.features;
    return {const_cast<float*>(kv) + at * f.head_dim, const_cast<float*>(k) + at, f.feature_dim, f.head_dim, block.first, block.width};
  }

  // Parks the part of the starting state of segment `item.segment` that comes from the preceding segment in this direction.
  __device__ __forceinline__ void park(const Work& item) const {
    const int64_t neighbour = kBackward ? item.segment + 1 : item.segment - 1;
    const bool at_border = neighbour < 0 || neighbour == item.segments;
    if (at_border && !has_border()) return;
    RegisterState s;
    if (at_border) {
      (kBackward ? border(p.grad_kv_state, p.grad_k_state, item.row) : border(p.initial_kv_state, p.initial_k_state, item.row)).load(s);
    } else {
      s.clear();
      const int64_t begin = item.begin + neighbour * work.plan.segment;
      sum_tokens<kBackward>(source(), p.forward, block, s, begin, min(begin + work.plan.segment, item.end));
    }
    s.park(parked(blockIdx.x));
  }
  __device__ __forceinline__ void start(const Work& item, RegisterState& s) const {
    s.clear();
    if (work.plan.parked == nullptr) return;
    const int64_t first = blockIdx.x - item.segment;
    if constexpr (kBackward) {
      for (int64_t j = item.segment; j < item.segments - (has_border() ? 0 : 1); ++j) s.add(parked(first + j));
    } else {
      for (int64_t j = has_border() ? 0 : 1; j <= item.segment; ++j) s.add(parked(first + j));
    }
  }
  __device__ __forceinline__ void store_gradient(const float (&dx)[8], int64_t token, int tokens) const {
    const int lane = threadIdx.x % 32, row = 16 * (threadIdx.x / 32) + lane / 4, column = 2 * (lane % 4), fd = p.forward.feature_dim;
    const int64_t token_elements = int64_t{p.forward.heads} * fd, count = p.forward.tokens * token_elements;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int r = row + (i & 2 ? 8 : 0), c = column + (i & 4 ? 8 : 0);
      if (r >= tokens || c >= fd) continue;
      const int64_t at = block.head * fd + c;
      if (work.partial == nullptr) {
        bf16* to = static_cast<bf16*>(kBackward ? p.grad_k : p.grad_q) + (token + r) * block.qk_stride + at;
        *reinterpret_cast<uint32_t*>(to) = pack_bf16(dx[i], dx[i + 1]);
      } else {
        float* to = work.partial + ((kBackward ? work.plan.slices : 0) + slice) * count + (token + r) * token_elements + at;
        *reinterpret_cast<float2*>(to) = make_float2(dx[i], dx[i + 1]);
      }
    }
  }
};

// Backward of the features: given the gradients d of the features, adds the gradients of their factors to `sum`. sum[r][i] belongs to
// element (2 (lane mod 4) + i) mod 16 of the thread's row r; a and b are the rows, rotated by lane mod 4.
__device__ __forceinline__ void contract(float (&sum)[2][16], const float (&d)[80], const Row16& a, const Row16& b) {
#pragma unroll
  for (int o = 0; o < kColumns / 16; ++o) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Row16& x = r == 0 ? a : b;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float g0 = d[8 * o + 4 * half + 2 * r], g1 = d[8 * o + 4 * half + 2 * r + 1];
        const uint32_t other = x.pair(4 * half, o), own = x.x[4 * half];
        const int i = 8 * half;
        if (o == 9) {
          sum[r][i] += g0, sum[r][i + 1] += g1;
        } else if (o < 8 || half == 0) {
          sum[r][i] = fmaf(g0, low_float(other), sum[r][i]), sum[r][i + 1] = fmaf(g1, high_float(other), sum[r][i + 1]);
          if (o > 0) {
            sum[r][(i + o) & 15] = fmaf(g0, low_float(own), sum[r][(i + o) & 15]);
            sum[r][(i + o + 1) & 15] = fmaf(g1, high_float(own), sum[r][(i + o + 1) & 15]);
          }
        }
      }
    }
  }
}

// Adds up the sums of the four threads of a row. Each thread receives columns 2 (lane mod 4) + 0, 1, 8 and 9, the layout of 16-column
// accumulators.
__device__ __forceinline__ void gather_columns(const float (&sum)[2][16], float (&dx)[8]) {
  const int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int r = i / 2 % 2, j = i % 2 + i / 4 * 8;
    dx[i] = sum[r][j];
#pragma unroll
    for (int e = 1; e < 4; ++e) {  // reads from thread t + e and sends to thread t − e
      const float sent = t < e ? sum[r][(j - 2 * e + 24) & 15] : sum[r][(j - 2 * e + 16) & 15];
      dx[i] += __shfl_sync(~0U, sent, (lane & ~3) | ((t + e) & 3));
    }
  }
}

// The state's part of the rows' gradients: values·state is the gradient of the features, from which contract() computes that of x.
__device__ __forceinline__ void state_gradient(float (&dx)[8], uint32_t row_values, uint32_t state, const Row16& a, const Row16& b) {
  float sum[2][16] = {};
  float d[80];
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_64x160x16_shared(d, operand(row_values + step * 32, 0, 1024, Swizzle::bytes128),
                           operand(state + step * 256, 128, kUnitColumn, Swizzle::none), step != 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  accumulator_fence(d);
  contract(sum, d, a, b);
  gather_columns(sum, dx);
}

// Computes g = (1 + a)(row values · source values + dD) and, where kBackward, w(a), under the causal mask, as A operands. dD is that of the
// row in the forward direction (row_dd) and that of the source in the backward direction (64 floats at `weights` in shared memory). Only
// the first slice of the head dimension adds dD.
template <bool kBackward>
__device__ __forceinline__ void pair_gradients(const float (&score)[32], const float (&product)[32], float2 row_dd, uint32_t weights,
                                               uint32_t (&g)[16], uint32_t (&w)[16]) {
  const int row = 16 * (threadIdx.x / 32) + threadIdx.x % 32 / 4, column = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    float x[4], y[4];
    const float2 dd = kBackward ? load_shared_float2(weights + (8 * j + column) * 4) : make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + (i & 2 ? 8 : 0), c = 8 * j + column + (i & 1);
      const float a = score[4 * j + i], add = kBackward ? (i & 1 ? dd.y : dd.x) : (i & 2 ? row_dd.y : row_dd.x);
      const bool visible = kBackward ? c >= r : c <= r;
      x[i] = visible ? (1.0F + a) * (product[4 * j + i] + add) : 0.0F;
      y[i] = visible ? fmaf(a, fmaf(a, 0.5F, 1.0F), 1.0F) : 0.0F;
    }
    g[2 * j] = pack_bf16(x[0], x[1]), g[2 * j + 1] = pack_bf16(x[2], x[3]);
    if (kBackward) w[2 * j] = pack_bf16(y[0], y[1]), w[2 * j + 1] = pack_bf16(y[2], y[3]);
  }
}

// Processes one chunk: computes the rows' dx and, where kBackward, dv from the sources of the chunk and the state, and advances the state
// over the chunk. In the backward direction row_dd is 1 where this slice adds dD, else 0.
template <bool kBackward>
__device__ __forceinline__ void chunk_gradients(RegisterState& s, uint32_t base, uint32_t stage, const Row16& a, const Row16& b,
                                                float2 row_dd, int tokens, float (&dx)[8], float (&dv)[32]) {
  const uint32_t values = base + stage * kValueBytes, row_values = base + kAtRows + stage * kValueBytes, features = base + kAtFeatures,
                 state = base + kAtState, linear = features + 18 * kUnitColumn;
  const uint32_t x[4] = {a.x[0], b.x[0], a.x[4], b.x[4]};
  state_gradient(dx, row_values, state, a, b);
  float score[32], product[32];
  wgmma_begin();
  wgmma_64x64x16<0>(score, x, operand(linear, kUnitColumn, 128, Swizzle::none), false);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_64x64x16_shared(product, operand(row_values + step * 32, 0, 1024, Swizzle::bytes128),
                          operand(values + step * 32, 0, 1024, Swizzle::bytes128), step != 0);
  }
  wgmma_commit();
  add_chunk(s, values, features);
  float u[2][4];
  sums_product(s, x, 1.0F, u);
#pragma unroll
  for (int i = 0; i < 8; ++i) dx[i] += u[i / 4][i % 4] * (i & 2 ? row_dd.y : row_dd.x);
  add_chunk_sums<kBackward>(s, features, tokens, base + kAtWeights);
  wgmma_wait<1>();
  accumulator_fence(score), accumulator_fence(product);
  uint32_t g[16], w[16];
  pair_gradients<kBackward>(score, product, row_dd, base + kAtWeights, g, w);
  float pairs[8];
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint32_t part[4] = {g[4 * step], g[4 * step + 1], g[4 * step + 2], g[4 * step + 3]};
    wgmma_64x16x16(pairs, part, operand(linear + step * 256, 128, kUnitColumn, Swizzle::none), step != 0);
  }
  if constexpr (kBackward) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t part[4] = {w[4 * step], w[4 * step + 1], w[4 * step + 2], w[4 * step + 3]};
      wgmma_64x64x16<1>(dv, part, operand(values + step * 2048, 0, 1024, Swizzle::bytes128), step != 0);
    }
#pragma unroll
    for (int o = 0; o < kColumns / 16; ++o) {
      uint32_t f[4];
      query_features(f, a, b, o);
      wgmma_begin();
      wgmma_64x64x16<0>(dv, f, operand(state + 2 * o * kUnitColumn, kUnitColumn, 128, Swizzle::none), true);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  accumulator_fence(pairs);
  if constexpr (kBackward) accumulator_fence(dv);
#pragma unroll
  for (int i = 0; i < 8; ++i) dx[i] += pairs[i];
}

// Processes tokens [begin, end) in this direction, starting from state s.
template <bool kBackward>
__device__ __forceinline__ void walk(const Gradient<kBackward>& job, RegisterState& s, int64_t begin, int64_t end) {
  const TaylorAttentionBackward& p = job.p;
  const ChunkBlock& block = job.block;
  const Source source = job.source();
  const int fd = p.forward.feature_dim, token = threadIdx.x % kChunk, half = threadIdx.x / kChunk, lane = threadIdx.x % 32;
  const int row = 16 * (threadIdx.x / 32) + lane / 4, chunks = static_cast<int>((end - begin + kChunk - 1) / kChunk);
  const uint32_t base = shared_base();
  Row16 x, ra, rb;
  float weight = 0;
  const auto at_chunk = [&](int i) { return begin + static_cast<int64_t>(kBackward ? chunks - 1 - i : i) * kChunk; };
  const auto request = [&](int i, uint32_t stage) {
    const int64_t at = at_chunk(i);
    const int tokens = static_cast<int>(min(end - at, int64_t{kChunk}));
    copy_value_tile(base + stage * kValueBytes, source.values + at * source.stride, source.stride, tokens, block.width);
    copy_value_tile(base + kAtRows + stage * kValueBytes, job.row_values() + at * job.row_stride(), job.row_stride(), tokens, block.width);
    x.load(source.x + (at + token) * block.qk_stride, fd, token < tokens);
    ra.load(job.rows() + (at + row) * block.qk_stride, fd, row < tokens);
    rb.load(job.rows() + (at + row + 8) * block.qk_stride, fd, row + 8 < tokens);
    if constexpr (kBackward) weight = token < tokens && block.first == 0 ? source.weights[(at + token) * p.forward.heads] : 0.0F;
  };
  request(0, 0);
  copy_async_commit();
  store_state<false>(s, base + kAtState, 0);
  uint32_t stage = 0;
  for (int i = 0; i < chunks; ++i, stage ^= 1) {
    const int64_t at = at_chunk(i);
    const int tokens = static_cast<int>(min(end - at, int64_t{kChunk}));
    store_features(base + kAtFeatures, x, token, half);
    if (kBackward && half == 0) store_shared_float(base + kAtWeights + token * 4, weight);
    const Row16 a = ra.rotated(lane % 4), b = rb.rotated(lane % 4);
    const float* dd = job.work.dd + (at + row) * p.forward.heads + block.head;
    float2 row_dd = make_float2(kBackward && block.first == 0 ? 1 : 0, kBackward && block.first == 0 ? 1 : 0);
    if (!kBackward && block.first == 0) {
      row_dd = make_float2(row < tokens ? dd[0] : 0.0F, row + 8 < tokens ? dd[int64_t{8} * p.forward.heads] : 0.0F);
    }
    if (i + 1 < chunks) request(i + 1, stage ^ 1);
    copy_async_commit();
    copy_async_wait<1>();
    fence_shared_proxy();
    __syncthreads();
    float dx[8], dv[32];
    chunk_gradients<kBackward>(s, base, stage, a, b, row_dd, tokens, dx, dv);
    __syncthreads();
    if (i + 1 < chunks) store_state<false>(s, base + kAtState, 0);
    job.store_gradient(dx, at, tokens);
    if constexpr (kBackward) {
      bf16* to = static_cast<bf16*>(p.grad_v) + int64_t{block.head} * p.forward.head_dim + block.first;
      store_output(to, block.v_stride, block, base + kAtOutput, dv, make_float2(1, 1), at, tokens);
    }
  }
}

template <bool kBackward>
__device__ __forceinline__ void run(const TaylorAttentionBackward& p, const Workspace& work, const Work& item, int slice) {
  const Gradient<kBackward> job(p, work, slice);
  RegisterState s;
  job.start(item, s);
  const int64_t begin = item.begin + item.segment * work.plan.segment;
  walk<kBackward>(job, s, begin, min(begin + work.plan.segment, item.end));
  if (kBackward && p.grad_initial_kv_state != nullptr && item.segment == 0) {
    job.border(p.grad_initial_kv_state, p.grad_initial_k_state, item.row).store(s);
  }
}
#endif

// blockIdx.z = direction · slices + slice, here and in `gradients`.
__global__ void __launch_bounds__(kThreads, 3) park_states(const __grid_constant__ TaylorAttentionBackward p, const Workspace work) {
#if BASED_HAS_WGMMA
  Work item;
  if (!find_work<kThreads>(p.forward, work.plan.segment, blockIdx.x, item)) return;
  const int slice = blockIdx.z % work.plan.slices;
  if (blockIdx.z < work.plan.slices) {
    Gradient<false>(p, work, slice).park(item);
  } else {
    Gradient<true>(p, work, slice).park(item);
  }
#else
  __trap();
#endif
}

__global__ void __launch_bounds__(kThreads, 2) gradients(const __grid_constant__ TaylorAttentionBackward p, const Workspace work) {
#if BASED_HAS_WGMMA
  Work item;
  if (!find_work<kThreads>(p.forward, work.plan.segment, blockIdx.x, item)) return;
  const int slice = blockIdx.z % work.plan.slices;
  if (blockIdx.z < work.plan.slices) {
    run<false>(p, work, item, slice);
  } else {
    run<true>(p, work, item, slice);
  }
#else
  __trap();
#endif
}

GradientLayout<Workspace> make_layout(const TaylorAttentionBackward& p) {
  const SegmentPlan plan = plan_segments(p.forward, 2);
  return gradient_layout<Workspace>(p, plan, parked_floats(p.forward, plan));
}

}  // namespace

bool taylor_backward_sm90_supports(const TaylorAttentionBackward& p) {
  return p.forward.tokens > 0 && taylor_forward_sm90_supports(p.forward) && p.forward.denominator != nullptr && aligned16(p.grad_y) &&
         aligned16(p.grad_q) && aligned16(p.grad_k) && aligned16(p.grad_v);
}

int64_t taylor_backward_sm90_scratch(const TaylorAttentionBackward& p) { return make_layout(p).bytes; }

Status taylor_backward_sm90(const TaylorAttentionBackward& arguments, void* scratch, Queue queue) {
  TaylorAttentionBackward p = arguments;
  p.forward = with_strides(p.forward);
  const TaylorAttention& f = p.forward;
  GradientLayout<Workspace> l = make_layout(p);
  auto* at = static_cast<char*>(scratch);
  Workspace& work = l.work;
  work.dn = reinterpret_cast<bf16*>(at), work.dd = reinterpret_cast<float*>(at + l.dd_at);
  work.partial = work.plan.slices > 1 ? reinterpret_cast<float*>(at + l.partial_at) : nullptr;
  work.plan.parked = l.bytes > l.parked_at ? reinterpret_cast<float*>(at + l.parked_at) : nullptr;
  const cudaStream_t s = stream_of(queue);
  prepare_gradients<8><<<static_cast<unsigned>(ceil_div(f.tokens * f.heads * 8, 256)), 256, 0, s>>>(p, work.dn, work.dd);
  const dim3 grid(static_cast<unsigned>(work.plan.numbers), f.heads, 2 * work.plan.slices);
  if (work.plan.parked != nullptr) {
    if (const cudaError_t e = allow_shared_memory(park_states, kSumShared); e != cudaSuccess) return status_of(e);
    park_states<<<grid, kThreads, kSumShared, s>>>(p, work);
  }
  if (const cudaError_t e = allow_shared_memory(gradients, kShared); e != cudaSuccess) return status_of(e);
  gradients<<<grid, kThreads, kShared, s>>>(p, work);
  if (p.grad_initial_kv_state != nullptr) pass_state_gradients<256><<<static_cast<unsigned>(f.rows), 256, 0, s>>>(p);
  if (work.partial != nullptr) {
    const int64_t threads = f.tokens * f.heads * f.feature_dim / 8;
    sum_gradient_slices<bf16><<<dim3(static_cast<unsigned>(ceil_div(threads, 256)), 2), 256, 0, s>>>(p, work.partial, work.plan.slices);
  }
  return launched();
}

}  // namespace based::kernels::cuda::detail
