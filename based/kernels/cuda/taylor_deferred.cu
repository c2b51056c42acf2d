// Steps whose tokens wait beside the sums (based/kernels/taylor_deferred.h). A block brings a state to shared memory by TMA,
// reads it out, and goes on to the next of its rows and heads; several blocks a multiprocessor, so that some read memory while others
// compute. A state goes back only when it has taken in what waits.
#include <algorithm>

#include "based/kernels/cuda/feature_pair.cuh"
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/vectors.cuh"
#include "based/kernels/taylor_deferred.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

using Place = TaylorDeferredPlace;
constexpr int kWarps = Place::kWarps, kThreads = 32 * kWarps;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ float power(float rate, int n) {
  float x = 1;
  for (int i = 0; i < n; ++i) x *= rate;
  return x;
}

template <typename T>
struct Deferred {
  const TaylorDeferred& all;
  const Place& place;
  char* shared;
  const TaylorAttention& p = all.step;
  // Of the item that is requested next: its state, how much waits there, and the thread's first feature of its denominator's state; and the
  // slot of the one after it. Loaded an item ahead, the slot two, since each of them is a memory latency behind the one before.
  int64_t next_state = 0, slot_after = 0;
  int next_pending = 0;
  float next_sum = 0;

  struct Item {
    uint32_t number;
    int64_t state;
    int pending;  // without the token itself, whose place it is
    float rate, sum;
    __device__ __forceinline__ bool fills() const { return pending + 1 == kTaylorPending; }
  };
  __device__ __forceinline__ T* pending_k() const { return reinterpret_cast<T*>(shared + place.pending_k_at()); }
  __device__ __forceinline__ T* pending_v() const { return reinterpret_cast<T*>(shared + place.pending_v_at()); }
  __device__ __forceinline__ float* partial() const { return reinterpret_cast<float*>(shared + place.partial_at()); }
  __device__ __forceinline__ float* phi_q() const { return reinterpret_cast<float*>(shared + place.phi_q_at()); }
  __device__ __forceinline__ float* warp_sums() const { return reinterpret_cast<float*>(shared + place.warp_sums_at()); }
  __device__ __forceinline__ float* weights() const { return reinterpret_cast<float*>(shared + place.weights_at()); }
  __device__ __forceinline__ char2* pairs() const { return reinterpret_cast<char2*>(shared + place.pairs_at()); }
  __device__ __forceinline__ uint32_t barrier() const { return shared_address(shared + place.barrier_at()); }
  __device__ __forceinline__ FeaturePair pair(int f) const { return FeaturePair(pairs()[f]); }
  __device__ __forceinline__ int64_t slot_of(uint32_t item) const {
    const uint32_t row = item / p.heads;
    return p.slot == nullptr || item >= place.items ? row : p.slot[row];
  }

  // `item` is next; `slot_after` is its slot.
  __device__ __forceinline__ void look_ahead(uint32_t item) {
    if (item >= place.items) return;
    next_state = slot_after * p.heads + item % p.heads;
    next_pending = all.pending[next_state];
    if (threadIdx.x < place.features) next_sum = p.k_state[next_state * place.features + threadIdx.x];
    slot_after = slot_of(item + gridDim.x);
  }
  // The state and what waits, and what the token brings; by one thread.
  __device__ __forceinline__ void request_state() const {
    const int64_t state = next_state;
    const uint32_t to = shared_address(shared), k_bytes = place.k_bytes(), v_bytes = place.v_bytes();
    barrier_expect(barrier(), place.state_bytes() + 2 * k_bytes + v_bytes + next_pending * (k_bytes + v_bytes));
    bulk_load(to, p.kv_state + state * place.features * p.head_dim, place.state_bytes(), barrier());
    if (next_pending == 0) return;
    const auto *k = static_cast<const T*>(all.pending_k), *v = static_cast<const T*>(all.pending_v);
    bulk_load(to + place.pending_k_at(), k + state * kTaylorPending * p.feature_dim, next_pending * k_bytes, barrier());
    bulk_load(to + place.pending_v_at(), v + state * kTaylorPending * p.head_dim, next_pending * v_bytes, barrier());
  }
  __device__ __forceinline__ void request_token(uint32_t item) const {
    const uint32_t to = shared_address(shared);
    const auto *q = static_cast<const T*>(p.q), *k = static_cast<const T*>(p.k), *v = static_cast<const T*>(p.v);
    bulk_load(to + place.q_at(), q + int64_t{item} * p.feature_dim, place.k_bytes(), barrier());
    bulk_load(to + place.k_at(), k + int64_t{item} * p.feature_dim, place.k_bytes(), barrier());
    bulk_load(to + place.pending_v_at() + next_pending * place.v_bytes(), v + int64_t{item} * p.head_dim, place.v_bytes(), barrier());
  }

  // w(q·k), where k is the t-th that waits or the token's.
  __device__ __forceinline__ float weight(const Item& item, int t) const {
    constexpr int kUnit = 16 / sizeof(T);
    const bool newest = t == item.pending;
    const T *q = reinterpret_cast<const T*>(shared + place.q_at()), *k = pending_k() + t * p.feature_dim;
    if (newest) k = reinterpret_cast<const T*>(shared + place.k_at());
    float s = 0;
    for (int i = 0; i < p.feature_dim; i += kUnit) {
      float a[kUnit], b[kUnit];
      load_floats<kUnit>(q + i, a), load_floats<kUnit>(k + i, b);
#pragma unroll
      for (int j = 0; j < kUnit; ++j) s = fmaf(scaled(a[j]), newest ? scaled(b[j]) : b[j], s);
    }
    return (1 + s + 0.5F * s * s) * power(item.rate, item.pending - t);
  }
  __device__ __forceinline__ float scaled(float x) const { return to_float(from_float<T>(x * p.scale)); }

  // φ(q), the weights of what waits, and the warps' shares of the denominator into shared memory; the token to what waits.
  __device__ __forceinline__ void score_pending(const Item& item) const {
    const T *q = reinterpret_cast<const T*>(shared + place.q_at()), *k = reinterpret_cast<const T*>(shared + place.k_at());
    float sum = 0;
    for (int f = threadIdx.x; f < place.features; f += kThreads) {
      const float a = pair(f).of(q, p.scale);
      phi_q()[f] = a;
      sum += a * (f < kThreads ? item.sum : p.k_state[item.state * place.features + f]);
    }
    sum *= power(item.rate, item.pending + 1);
    if (const int t = kThreads - 1 - static_cast<int>(threadIdx.x); t <= item.pending) {
      const float w = weight(item, t);
      weights()[t] = w;
      sum += w;
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
    for (int i = threadIdx.x; !item.fills() && i < place.v_bytes() / 16; i += kThreads)
      reinterpret_cast<uint4*>(static_cast<T*>(all.pending_v) + at * p.head_dim)[i] =
          reinterpret_cast<const uint4*>(pending_v() + item.pending * p.head_dim)[i];
  }

  // A warp's features are every so-manieth, and as many at once as have room for their columns in its lanes.
  struct Share {
    int lanes, together, first, step, column;
    bool active;
    __device__ __forceinline__ explicit Share(int head_dim) {
      const int lane = threadIdx.x % 32;
      lanes = head_dim / Place::kColumns, together = 32 / lanes;
      first = threadIdx.x / 32 * together + lane / lanes, step = kWarps * together;
      column = lane % lanes * Place::kColumns, active = lane < together * lanes;
    }
  };
  // The warp's share of y's numerator in partial().
  __device__ __forceinline__ void read(const Item& item, const Share& share) const {
    const float* state = reinterpret_cast<const float*>(shared) + share.column;
    float sum[Place::kColumns] = {};
    if (share.active) {
#pragma unroll 5
      for (int f = share.first; f < place.features; f += share.step) {
        const float4 x = *reinterpret_cast<const float4*>(state + f * p.head_dim);
        const float a = phi_q()[f];
        sum[0] = fmaf(a, x.x, sum[0]), sum[1] = fmaf(a, x.y, sum[1]), sum[2] = fmaf(a, x.z, sum[2]), sum[3] = fmaf(a, x.w, sum[3]);
      }
      const float rate = power(item.rate, item.pending + 1);
#pragma unroll
      for (int c = 0; c < Place::kColumns; ++c) sum[c] *= rate;
      for (int t = share.first; t <= item.pending; t += share.step) {
        float v[Place::kColumns];
        load_floats<Place::kColumns>(pending_v() + t * p.head_dim + share.column, v);
#pragma unroll
        for (int c = 0; c < Place::kColumns; ++c) sum[c] = fmaf(weights()[t], v[c], sum[c]);
      }
    }
    const int lane = threadIdx.x % 32;
    float whole[Place::kColumns] = {};
    for (int i = 0; i < share.together; ++i)
#pragma unroll
      for (int c = 0; c < Place::kColumns; ++c) whole[c] += __shfl_sync(~0U, sum[c], (lane + i * share.lanes) % 32);
    if (lane < share.lanes)
      *reinterpret_cast<float4*>(partial() + threadIdx.x / 32 * p.head_dim + share.column) =
          make_float4(whole[0], whole[1], whole[2], whole[3]);
  }
  // The state takes in all that waits, in the order and by the operations of as many steps; all threads, who have done with partial().
  __device__ __forceinline__ void flush_pending(const Item& item, const Share& share) const {
    auto* table = reinterpret_cast<float4*>(partial());  // φ of Place::kTogether keys
    float sum = item.sum;
#pragma unroll 1
    for (int first = 0; first < kTaylorPending; first += Place::kTogether) {
      for (int f = threadIdx.x; f < place.features; f += kThreads) {
        const FeaturePair of = pair(f);
        const T* k = pending_k() + first * p.feature_dim;
        const auto phi = [&](int t) { return of.of(k + t * p.feature_dim, 1.0F); };
        const float4 b = make_float4(phi(0), phi(1), phi(2), phi(3));
        table[f] = b;
        float* beyond = p.k_state + item.state * place.features + f;
        float x = f < kThreads ? sum : *beyond;
        x = x * item.rate + b.x, x = x * item.rate + b.y, x = x * item.rate + b.z, x = x * item.rate + b.w;
        if (f < kThreads) sum = x;
        if (f >= kThreads || first + Place::kTogether == kTaylorPending) *beyond = x;
      }
      __syncthreads();
      if (p.decay == nullptr) {
        add<false>(item, share, first, table);
      } else {
        add<true>(item, share, first, table);
      }
      __syncthreads();
    }
  }
  template <bool kDecays>
  __device__ __forceinline__ void add(const Item& item, const Share& share, int first, const float4* table) const {
    if (!share.active) return;
    float* state = reinterpret_cast<float*>(shared) + share.column;
    float v[Place::kTogether][Place::kColumns];
#pragma unroll
    for (int t = 0; t < Place::kTogether; ++t) load_floats<Place::kColumns>(pending_v() + (first + t) * p.head_dim + share.column, v[t]);
#pragma unroll 2
    for (int f = share.first; f < place.features; f += share.step) {
      float4* at = reinterpret_cast<float4*>(state + f * p.head_dim);
      const float4 b = table[f];
      float x[Place::kColumns];
      load_floats<Place::kColumns>(reinterpret_cast<const float*>(at), x);
#pragma unroll
      for (int c = 0; c < Place::kColumns; ++c) {
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
__global__ void __launch_bounds__(kThreads, Place::kMostBlocks)
    step_deferred(const __grid_constant__ TaylorDeferred all, const __grid_constant__ Place place) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  Deferred<T> stream{all, place, shared};
  const TaylorAttention& p = all.step;
  if (threadIdx.x == 0) barrier_init(stream.barrier()), fence_shared_proxy();
  let_next_kernel_start();
  if (!p.state_is_private) wait_for_earlier_kernels();
  stream.slot_after = stream.slot_of(blockIdx.x);
  stream.look_ahead(blockIdx.x);
  if (threadIdx.x == 0) stream.request_state();
  for (int f = threadIdx.x; f < place.features; f += kThreads) stream.pairs()[f] = FeaturePair(f, p.feature_dim).packed();
  if (p.state_is_private) wait_for_earlier_kernels();
  if (threadIdx.x == 0) stream.request_token(blockIdx.x);
  const typename Deferred<T>::Share share(p.head_dim);
  __syncthreads();
  uint32_t phase = 0;
#pragma unroll 1
  for (uint32_t number = blockIdx.x; number < place.items; phase ^= 1) {
    const typename Deferred<T>::Item item{number, stream.next_state, stream.next_pending,
                                          p.decay != nullptr ? p.decay[number % p.heads] : 1.0F, stream.next_sum};
    number += gridDim.x;
    stream.look_ahead(number);
    barrier_wait(stream.barrier(), phase);
    stream.score_pending(item);
    __syncthreads();
    stream.read(item, share);
    fence_shared_proxy();
    __syncthreads();
    if (item.fills()) {
      stream.write_y(item);
      __syncthreads();
      stream.flush_pending(item, share);
      fence_shared_proxy();
      __syncthreads();
      if (threadIdx.x == 0) {
        bulk_store(p.kv_state + item.state * place.features * p.head_dim, shared_address(shared), place.state_bytes());
        bulk_store_wait_read();
      }
    }
    if (threadIdx.x == 0 && number < place.items) stream.request_state(), stream.request_token(number);
    if (!item.fills()) stream.write_y(item);
    __syncthreads();
  }
#else
  __trap();
#endif
}

// A block for each row and head.
template <typename T>
__global__ void __launch_bounds__(kThreads) flush_rows(const TaylorDeferred all, const int features) {
  const TaylorAttention& p = all.step;
  overlap_kernels();
  const int64_t slot = p.slot != nullptr ? p.slot[blockIdx.x] : blockIdx.x, state = slot * p.heads + blockIdx.y;
  const int pending = all.pending[state];
  if (pending == 0) return;
  const T* keys = static_cast<const T*>(all.pending_k) + state * kTaylorPending * p.feature_dim;
  const T* values = static_cast<const T*>(all.pending_v) + state * kTaylorPending * p.head_dim;
  const float rate = p.decay != nullptr ? p.decay[blockIdx.y] : 1.0F;
  for (int f = threadIdx.x / 32; f < features; f += kWarps) {
    const FeaturePair pair(f, p.feature_dim);
    for (int d = threadIdx.x % 32; d <= p.head_dim; d += 32) {  // the last one is the denominator's
      float* at = d < p.head_dim ? p.kv_state + (state * features + f) * p.head_dim + d : p.k_state + state * features + f;
      float x = *at;
      for (int t = 0; t < pending; ++t) {
        const float b = pair.of(keys + t * p.feature_dim, 1.0F);
        x = d < p.head_dim ? fmaf(b, to_float(values[t * p.head_dim + d]), x * rate) : x * rate + b;
      }
      *at = x;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) all.pending[state] = 0;
}

}  // namespace

Status taylor_deferred_step(const TaylorDeferred& p, Stream stream) {
  if (p.step.rows == 0) return {};
  if (!taylor_deferred_takes(p.step, this_gpu()) || !aligned16(p.pending_k) || !aligned16(p.pending_v))
    return {"taylor_deferred_step: takes sm_90, head_dim up to 128, head_dim and feature_dim of whole 16 bytes, and states of some 200 KB"};
  const Place place(p.step);
  auto* kernel = p.step.dtype == DType::bf16 ? step_deferred<bf16> : step_deferred<float>;
  if (const cudaError_t e = allow_shared_memory(kernel, place.shared_bytes()); e != cudaSuccess) return status_of(e);
  const int64_t blocks = std::min<int64_t>(place.items, int64_t{place.blocks_that_fit(this_gpu())} * multiprocessors());
  const Launch launch{static_cast<unsigned>(blocks), kThreads, place.shared_bytes()};
  return launch_overlapped(kernel, launch, stream, p, place);
}

Status taylor_deferred_flush(const TaylorDeferred& p, Stream stream) {
  if (p.step.rows == 0) return {};
  auto* kernel = p.step.dtype == DType::bf16 ? flush_rows<bf16> : flush_rows<float>;
  const Launch launch{dim3(static_cast<unsigned>(p.step.rows), p.step.heads), kThreads, 0};
  return launch_overlapped(kernel, launch, stream, p, static_cast<int>(packed_features(p.step.feature_dim)));
}

}  // namespace based::kernels::cuda
