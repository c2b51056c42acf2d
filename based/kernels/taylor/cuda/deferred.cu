// Steps with pending tokens (based/kernels/taylor/deferred.h). Blocks are persistent: for each of its items (a row and head) a block loads
// the state to shared memory by TMA and reads it out. Several blocks share a multiprocessor, so that some load while others compute. The
// state is written back only after the pending tokens have been added to it.
#include <algorithm>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/taylor/cuda/feature_pair.cuh"
#include "based/kernels/taylor/deferred.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

using Layout = TaylorDeferredLayout;
constexpr int kWarps = Layout::kWarps, kThreads = 32 * kWarps;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ float power(float rate, int n) {
  float x = 1;
  for (int i = 0; i < n; ++i) x *= rate;
  return x;
}

template <typename T>
struct Deferred {
  const TaylorDeferred& all;
  const Layout& layout;
  char* shared;
  const TaylorAttention& p = all.step;
  // For the item whose state is requested next: the index of its state, its number of pending tokens, and the thread's first feature of its
  // denominator's state. slot_after is the slot of the item after that. These loads depend on one another, each with a memory latency, so
  // they are issued one item early, and the slot's two items early.
  int64_t next_state = 0, slot_after = 0;
  int next_pending = 0;
  float next_sum = 0;

  struct Item {
    uint32_t number;
    int64_t state;
    int pending;  // number of pending tokens before this one, so also the index of this token among them
    float rate, sum;
    // The rate of the denominator's state.
    __device__ __forceinline__ float sums_rate(const TaylorAttention& p) const { return p.decay_denominator ? rate : 1.0F; }
    // Whether this token completes the list of pending tokens.
    __device__ __forceinline__ bool fills() const { return pending + 1 == kTaylorPending; }
  };
  __device__ __forceinline__ T* pending_k() const { return reinterpret_cast<T*>(shared + layout.pending_k_at()); }
  __device__ __forceinline__ T* pending_v() const { return reinterpret_cast<T*>(shared + layout.pending_v_at()); }
  __device__ __forceinline__ float* partial() const { return reinterpret_cast<float*>(shared + layout.partial_at()); }
  __device__ __forceinline__ float* phi_q() const { return reinterpret_cast<float*>(shared + layout.phi_q_at()); }
  __device__ __forceinline__ float* warp_sums() const { return reinterpret_cast<float*>(shared + layout.warp_sums_at()); }
  __device__ __forceinline__ float* weights() const { return reinterpret_cast<float*>(shared + layout.weights_at()); }
  __device__ __forceinline__ char2* pairs() const { return reinterpret_cast<char2*>(shared + layout.pairs_at()); }
  __device__ __forceinline__ uint32_t barrier() const { return shared_address(shared + layout.barrier_at()); }
  __device__ __forceinline__ FeaturePair pair(int f) const { return FeaturePair(pairs()[f]); }
  __device__ __forceinline__ int64_t slot_of(uint32_t item) const {
    const uint32_t row = item / p.heads;
    return p.slot == nullptr || item >= layout.items ? row : p.slot[row];
  }

  // Loads the fields above for `item`, whose slot is `slot_after`.
  __device__ __forceinline__ void load_item_fields(uint32_t item) {
    if (item >= layout.items) return;
    next_state = slot_after * p.heads + item % p.heads;
    next_pending = all.pending[next_state];
    if (threadIdx.x < layout.features) next_sum = p.k_state[next_state * layout.features + threadIdx.x];
    slot_after = slot_of(item + gridDim.x);
  }
  // Requests the copies of an item: its state and pending keys and values, then its new q, k and v. Called by one thread.
  __device__ __forceinline__ void request_state() const {
    const int64_t state = next_state;
    const uint32_t to = shared_address(shared), k_bytes = layout.k_bytes(), v_bytes = layout.v_bytes();
    barrier_expect(barrier(), layout.state_bytes() + 2 * k_bytes + v_bytes + next_pending * (k_bytes + v_bytes));
    bulk_load(to, p.kv_state + state * layout.features * p.head_dim, layout.state_bytes(), barrier());
    if (next_pending == 0) return;
    const auto *k = static_cast<const T*>(all.pending_k), *v = static_cast<const T*>(all.pending_v);
    bulk_load(to + layout.pending_k_at(), k + state * kTaylorPending * p.feature_dim, next_pending * k_bytes, barrier());
    bulk_load(to + layout.pending_v_at(), v + state * kTaylorPending * p.head_dim, next_pending * v_bytes, barrier());
  }
  __device__ __forceinline__ void request_token(uint32_t item) const {
    const uint32_t to = shared_address(shared);
    const auto *q = static_cast<const T*>(p.q), *k = static_cast<const T*>(p.k), *v = static_cast<const T*>(p.v);
    bulk_load(to + layout.q_at(), q + int64_t{item} * p.feature_dim, layout.k_bytes(), barrier());
    bulk_load(to + layout.k_at(), k + int64_t{item} * p.feature_dim, layout.k_bytes(), barrier());
    bulk_load(to + layout.pending_v_at() + next_pending * layout.v_bytes(), v + int64_t{item} * p.head_dim, layout.v_bytes(), barrier());
  }

  // w(q·k) without its decay, where k is pending key t, or the new token's for t = item.pending.
  __device__ __forceinline__ float weight(const Item& item, int t) const {
    constexpr int kUnit = 16 / sizeof(T);
    const bool newest = t == item.pending;
    const T *q = reinterpret_cast<const T*>(shared + layout.q_at()), *k = pending_k() + t * p.feature_dim;
    if (newest) k = reinterpret_cast<const T*>(shared + layout.k_at());
    float s = 0;
    for (int i = 0; i < p.feature_dim; i += kUnit) {
      float a[kUnit], b[kUnit];
      load_floats<kUnit>(q + i, a), load_floats<kUnit>(k + i, b);
#pragma unroll
      for (int j = 0; j < kUnit; ++j) s = fmaf(scaled(a[j]), newest ? scaled(b[j]) : b[j], s);
    }
    return 1 + s + 0.5F * s * s;
  }
  __device__ __forceinline__ float scaled(float x) const { return to_float(from_float<T>(x * p.scale)); }

  // Writes φ(q), the decayed weights of the pending tokens and the warps' partial sums of the denominator to shared memory, and appends the
  // token to the pending tokens.
  __device__ __forceinline__ void score_pending(const Item& item) const {
    const T *q = reinterpret_cast<const T*>(shared + layout.q_at()), *k = reinterpret_cast<const T*>(shared + layout.k_at());
    float sum = 0;
    for (int f = threadIdx.x; f < layout.features; f += kThreads) {
      const float a = pair(f).value(q, p.scale);
      phi_q()[f] = a;
      sum += a * (f < kThreads ? item.sum : p.k_state[item.state * layout.features + f]);
    }
    sum *= power(item.sums_rate(p), item.pending + 1);
    if (const int t = kThreads - 1 - static_cast<int>(threadIdx.x); t <= item.pending) {
      const float w = weight(item, t), decayed = w * power(item.rate, item.pending - t);
      weights()[t] = decayed;
      sum += p.decay_denominator ? decayed : w;
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    if (threadIdx.x % 32 == 0) warp_sums()[threadIdx.x / 32] = sum;
    const int64_t at = item.state * kTaylorPending + item.pending;
    for (int i = threadIdx.x; i < p.feature_dim; i += kThreads) {
      const T x = from_float<T>(to_float(k[i]) * p.scale);
      pending_k()[item.pending * p.feature_dim + i] = x;
      if (!item.fills()) static_cast<T*>(all.pending_k)[at * p.feature_dim + i] = x;
    }
    for (int i = threadIdx.x; !item.fills() && i < layout.v_bytes() / 16; i += kThreads)
      reinterpret_cast<uint4*>(static_cast<T*>(all.pending_v) + at * p.head_dim)[i] =
          reinterpret_cast<const uint4*>(pending_v() + item.pending * p.head_dim)[i];
  }

  // Assignment of the state to lanes: a group of `lanes` lanes handles one feature, each lane kColumns columns from `column` on. A warp
  // handles features_per_warp features at a time, and a lane the features first, first + step, … Lanes without a whole group are not
  // active.
  struct LaneWork {
    int lanes, features_per_warp, first, step, column;
    bool active;
    __device__ __forceinline__ explicit LaneWork(int head_dim) {
      const int lane = threadIdx.x % 32;
      lanes = head_dim / Layout::kColumns, features_per_warp = 32 / lanes;
      first = threadIdx.x / 32 * features_per_warp + lane / lanes, step = kWarps * features_per_warp;
      column = lane % lanes * Layout::kColumns, active = lane < features_per_warp * lanes;
    }
  };
  // Writes the warp's partial sum of y's numerator to partial().
  __device__ __forceinline__ void read_out(const Item& item, const LaneWork& work) const {
    const float* state = reinterpret_cast<const float*>(shared) + work.column;
    float sum[Layout::kColumns] = {};
    if (work.active) {
#pragma unroll 5
      for (int f = work.first; f < layout.features; f += work.step) {
        const float4 x = *reinterpret_cast<const float4*>(state + f * p.head_dim);
        const float a = phi_q()[f];
        sum[0] = fmaf(a, x.x, sum[0]), sum[1] = fmaf(a, x.y, sum[1]), sum[2] = fmaf(a, x.z, sum[2]), sum[3] = fmaf(a, x.w, sum[3]);
      }
      const float rate = power(item.rate, item.pending + 1);
#pragma unroll
      for (int c = 0; c < Layout::kColumns; ++c) sum[c] *= rate;
      for (int t = work.first; t <= item.pending; t += work.step) {
        float v[Layout::kColumns];
        load_floats<Layout::kColumns>(pending_v() + t * p.head_dim + work.column, v);
#pragma unroll
        for (int c = 0; c < Layout::kColumns; ++c) sum[c] = fmaf(weights()[t], v[c], sum[c]);
      }
    }
    const int lane = threadIdx.x % 32;
    float whole[Layout::kColumns] = {};
    for (int i = 0; i < work.features_per_warp; ++i)
#pragma unroll
      for (int c = 0; c < Layout::kColumns; ++c) whole[c] += __shfl_sync(~0U, sum[c], (lane + i * work.lanes) % 32);
    if (lane < work.lanes)
      *reinterpret_cast<float4*>(partial() + threadIdx.x / 32 * p.head_dim + work.column) =
          make_float4(whole[0], whole[1], whole[2], whole[3]);
  }
  // Adds all pending tokens to the state, in the order and with the operations of single steps. Called by all threads, after the last read
  // of partial(), which is overwritten.
  __device__ __forceinline__ void flush_pending(const Item& item, const LaneWork& work) const {
    auto* phi_table = reinterpret_cast<float4*>(partial());  // φ of kTokensPerPass keys
    const float sums_rate = item.sums_rate(p);
    float sum = item.sum;
#pragma unroll 1
    for (int first = 0; first < kTaylorPending; first += Layout::kTokensPerPass) {
      for (int f = threadIdx.x; f < layout.features; f += kThreads) {
        const FeaturePair factors = pair(f);
        const T* k = pending_k() + first * p.feature_dim;
        const auto phi = [&](int t) { return factors.value(k + t * p.feature_dim, 1.0F); };
        const float4 b = make_float4(phi(0), phi(1), phi(2), phi(3));
        phi_table[f] = b;
        float* k_state = p.k_state + item.state * layout.features + f;
        float x = f < kThreads ? sum : *k_state;
        x = x * sums_rate + b.x, x = x * sums_rate + b.y, x = x * sums_rate + b.z, x = x * sums_rate + b.w;
        if (f < kThreads) sum = x;
        if (f >= kThreads || first + Layout::kTokensPerPass == kTaylorPending) *k_state = x;
      }
      __syncthreads();
      if (p.decay == nullptr) {
        add_tokens<false>(item, work, first, phi_table);
      } else {
        add_tokens<true>(item, work, first, phi_table);
      }
      __syncthreads();
    }
  }
  template <bool kDecays>
  __device__ __forceinline__ void add_tokens(const Item& item, const LaneWork& work, int first, const float4* phi_table) const {
    if (!work.active) return;
    float* state = reinterpret_cast<float*>(shared) + work.column;
    float v[Layout::kTokensPerPass][Layout::kColumns];
#pragma unroll
    for (int t = 0; t < Layout::kTokensPerPass; ++t)
      load_floats<Layout::kColumns>(pending_v() + (first + t) * p.head_dim + work.column, v[t]);
#pragma unroll 2
    for (int f = work.first; f < layout.features; f += work.step) {
      float4* at = reinterpret_cast<float4*>(state + f * p.head_dim);
      const float4 b = phi_table[f];
      float x[Layout::kColumns];
      load_floats<Layout::kColumns>(reinterpret_cast<const float*>(at), x);
#pragma unroll
      for (int c = 0; c < Layout::kColumns; ++c) {
        const auto after = [&](float phi, float value) { x[c] = fmaf(phi, value, kDecays ? x[c] * item.rate : x[c]); };
        after(b.x, v[0][c]), after(b.y, v[1][c]), after(b.z, v[2][c]), after(b.w, v[3][c]);
      }
      *at = make_float4(x[0], x[1], x[2], x[3]);
    }
  }
  __device__ __forceinline__ void write_y(const Item& item) const {
    float denominator = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) denominator += warp_sums()[w];
    for (int d = threadIdx.x; d < p.head_dim; d += kThreads) {
      float y = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) y += partial()[w * p.head_dim + d];
      static_cast<T*>(p.y)[int64_t{item.number} * p.head_dim + d] = from_float<T>(y / denominator);
    }
    if (threadIdx.x != 0) return;
    all.pending[item.state] = item.fills() ? 0 : item.pending + 1;
    if (p.denominator != nullptr) p.denominator[item.number] = denominator;
  }
};
#endif

template <typename T>
__global__ void __launch_bounds__(kThreads, Layout::kMaxBlocks)
    step_deferred(const __grid_constant__ TaylorDeferred all, const __grid_constant__ Layout layout) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  Deferred<T> queue{all, layout, shared};
  const TaylorAttention& p = all.step;
  if (threadIdx.x == 0) barrier_init(queue.barrier()), fence_shared_proxy();
  let_next_kernel_start();
  if (!p.state_is_private) wait_for_earlier_kernels();
  queue.slot_after = queue.slot_of(blockIdx.x);
  queue.load_item_fields(blockIdx.x);
  if (threadIdx.x == 0) queue.request_state();
  for (int f = threadIdx.x; f < layout.features; f += kThreads) queue.pairs()[f] = FeaturePair(f, p.feature_dim).packed();
  if (p.state_is_private) wait_for_earlier_kernels();
  if (threadIdx.x == 0) queue.request_token(blockIdx.x);
  const typename Deferred<T>::LaneWork work(p.head_dim);
  __syncthreads();
  uint32_t phase = 0;
#pragma unroll 1
  for (uint32_t number = blockIdx.x; number < layout.items; phase ^= 1) {
    const typename Deferred<T>::Item item{number, queue.next_state, queue.next_pending,
                                          p.decay != nullptr ? p.decay[number % p.heads] : 1.0F, queue.next_sum};
    number += gridDim.x;
    queue.load_item_fields(number);
    barrier_wait(queue.barrier(), phase);
    queue.score_pending(item);
    __syncthreads();
    queue.read_out(item, work);
    fence_shared_proxy();
    __syncthreads();
    if (item.fills()) {
      queue.write_y(item);
      __syncthreads();
      queue.flush_pending(item, work);
      fence_shared_proxy();
      __syncthreads();
      if (threadIdx.x == 0) {
        bulk_store(p.kv_state + item.state * layout.features * p.head_dim, shared_address(shared), layout.state_bytes());
        bulk_store_wait_read();
      }
    }
    if (threadIdx.x == 0 && number < layout.items) queue.request_state(), queue.request_token(number);
    if (!item.fills()) queue.write_y(item);
    __syncthreads();
  }
#else
  __trap();
#endif
}

// One block for each row and head.
template <typename T>
__global__ void __launch_bounds__(kThreads) flush_rows(const TaylorDeferred all, const int features) {
  const TaylorAttention& p = all.step;
  overlap_kernels();
  const int64_t slot = p.slot != nullptr ? p.slot[blockIdx.x] : blockIdx.x, state = slot * p.heads + blockIdx.y;
  const int pending = all.pending[state];
  if (pending == 0) return;
  const T* keys = static_cast<const T*>(all.pending_k) + state * kTaylorPending * p.feature_dim;
  const T* values = static_cast<const T*>(all.pending_v) + state * kTaylorPending * p.head_dim;
  const float rate = p.decay != nullptr ? p.decay[blockIdx.y] : 1.0F, sums_rate = p.decay_denominator ? rate : 1.0F;
  for (int f = threadIdx.x / 32; f < features; f += kWarps) {
    const FeaturePair pair(f, p.feature_dim);
    for (int d = threadIdx.x % 32; d <= p.head_dim; d += 32) {  // column head_dim is the denominator's state
      float* at = d < p.head_dim ? p.kv_state + (state * features + f) * p.head_dim + d : p.k_state + state * features + f;
      float x = *at;
      for (int t = 0; t < pending; ++t) {
        const float b = pair.value(keys + t * p.feature_dim, 1.0F);
        x = d < p.head_dim ? fmaf(b, to_float(values[t * p.head_dim + d]), x * rate) : x * sums_rate + b;
      }
      *at = x;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) all.pending[state] = 0;
}

}  // namespace

Status taylor_deferred_step(const TaylorDeferred& p, Queue queue) {
  if (p.step.rows == 0) return {};
  if (!taylor_deferred_takes(p.step, this_gpu()) || !aligned16(p.pending_k) || !aligned16(p.pending_v))
    return {
        "taylor_deferred_step: supports sm_90, head_dim up to 128, head_dim and feature_dim of whole 16 bytes, and states of some 200 KB"};
  const Layout layout(p.step);
  auto* kernel = p.step.dtype == DType::bf16 ? step_deferred<bf16> : step_deferred<float>;
  if (const cudaError_t e = allow_shared_memory(kernel, layout.shared_bytes()); e != cudaSuccess) return status_of(e);
  const int64_t blocks = std::min<int64_t>(layout.items, int64_t{layout.blocks_that_fit(this_gpu())} * multiprocessors());
  const Launch launch{static_cast<unsigned>(blocks), kThreads, layout.shared_bytes()};
  return launch_overlapped(kernel, launch, queue, p, layout);
}

Status taylor_deferred_flush(const TaylorDeferred& p, Queue queue) {
  if (p.step.rows == 0) return {};
  auto* kernel = p.step.dtype == DType::bf16 ? flush_rows<bf16> : flush_rows<float>;
  const Launch launch{dim3(static_cast<unsigned>(p.step.rows), p.step.heads), kThreads, 0};
  return launch_overlapped(kernel, launch, queue, p, static_cast<int>(packed_features(p.step.feature_dim)));
}

namespace {
const DefineLaunchers<TaylorDeferredLaunchers> kLaunchers(
    Device::cuda, {.supports = [](const TaylorAttention& p) { return taylor_deferred_takes(p, this_gpu()); },
                   .step = taylor_deferred_step,
                   .flush = taylor_deferred_flush});
}

}  // namespace based::kernels::cuda
