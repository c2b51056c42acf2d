// Steps with pending tokens (based/kernels/taylor/deferred.h). Blocks are persistent: for each of its items (a row and head) a block loads
// the state to shared memory by TMA and reads it out. Several blocks share a multiprocessor, so that some load while others compute. The
// state is written back only after the pending tokens have been added to it. A rounded state takes half of the state's shared memory, so
// the next one is loaded to the other half while this one is read.
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

// A block's shared memory. The sizes of the arrays are known at run time only, so the struct holds pointers.
template <typename T>
struct DeferredStorage {
  float* state;      // [features, head_dim]
  T *q, *k;          // [feature_dim]
  T* pending_k;      // [kTaylorPending, feature_dim]
  T* pending_v;      // [kTaylorPending, head_dim]
  float* partial;    // [kWarps, head_dim], the warps' partial sums of y's numerator
  float4* phi_keys;  // [features], φ of kTokensPerPass keys; in the memory of `partial`
  float* phi_q;      // [features]
  float* warp_sums;  // [kWarps], the warps' partial sums of the denominator
  float* weights;    // [kTaylorPending], of the pending tokens
  char2* pairs;      // [features], packed FeaturePairs
  uint64_t* full;    // mbarrier: the copies of an item have arrived

  __device__ __forceinline__ DeferredStorage(char* shared, const Layout& layout)
      : state(reinterpret_cast<float*>(shared)),
        q(reinterpret_cast<T*>(shared + layout.q_at())),
        k(reinterpret_cast<T*>(shared + layout.k_at())),
        pending_k(reinterpret_cast<T*>(shared + layout.pending_k_at())),
        pending_v(reinterpret_cast<T*>(shared + layout.pending_v_at())),
        partial(reinterpret_cast<float*>(shared + layout.partial_at())),
        phi_keys(reinterpret_cast<float4*>(partial)),
        phi_q(reinterpret_cast<float*>(shared + layout.phi_q_at())),
        warp_sums(reinterpret_cast<float*>(shared + layout.warp_sums_at())),
        weights(reinterpret_cast<float*>(shared + layout.weights_at())),
        pairs(reinterpret_cast<char2*>(shared + layout.pairs_at())),
        full(reinterpret_cast<uint64_t*>(shared + layout.barrier_at())) {}
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// An element of TaylorDeferred::pending.
struct PendingState {
  int32_t bits = 0;
  __device__ __forceinline__ int tokens() const { return taylor_pending_tokens(bits); }
  // Whether the step's token fills the list, so that the step adds all pending tokens to the state.
  __device__ __forceinline__ bool fills() const { return tokens() + 1 == kTaylorPending; }
  // Whether the step reads the rounded state.
  __device__ __forceinline__ bool reads_rounded() const { return (bits & kTaylorRounded) != 0 && !fills(); }
};

__device__ __forceinline__ float power(float rate, int n) {
  float x = 1;
  for (int i = 0; i < n; ++i) x *= rate;
  return x;
}

// Requests the copy of a state, or of its rounded state to the half `half` of the shared memory for a state. Also sets the number of bytes
// that `full` expects, including those of load_pending and load_token. Called by one thread.
template <typename T>
__device__ __forceinline__ void load_state(const TaylorDeferred& all, const Layout& layout, const DeferredStorage<T>& shared, int64_t state,
                                           PendingState pending, int half) {
  const uint32_t full = shared_address(shared.full), k_bytes = layout.k_bytes(), v_bytes = layout.v_bytes();
  const bool rounded = pending.reads_rounded();
  const uint32_t bytes = rounded ? layout.rounded_bytes() : layout.state_bytes();
  const void* from = rounded ? all.rounded_state : all.step.kv_state;
  barrier_expect(full, bytes + 2 * k_bytes + v_bytes + pending.tokens() * (k_bytes + v_bytes));
  bulk_load(shared_address(shared.state) + half * layout.rounded_bytes(), static_cast<const char*>(from) + state * bytes, bytes, full);
}

// Requests the copies of a state's pending keys and values. Called by one thread.
template <typename T>
__device__ __forceinline__ void load_pending(const TaylorDeferred& all, const Layout& layout, const DeferredStorage<T>& shared,
                                             int64_t state, int pending) {
  if (pending == 0) return;
  const uint32_t full = shared_address(shared.full), k_bytes = layout.k_bytes(), v_bytes = layout.v_bytes();
  const auto *k = static_cast<const char*>(all.pending_k), *v = static_cast<const char*>(all.pending_v);
  bulk_load(shared_address(shared.pending_k), k + state * kTaylorPending * k_bytes, pending * k_bytes, full);
  bulk_load(shared_address(shared.pending_v), v + state * kTaylorPending * v_bytes, pending * v_bytes, full);
}

// Requests the copies of the new token's q, k and v. The value is copied to the end of the pending values. Called by one thread.
template <typename T>
__device__ __forceinline__ void load_token(const TaylorAttention& p, const Layout& layout, const DeferredStorage<T>& shared, uint32_t item,
                                           int pending) {
  const uint32_t full = shared_address(shared.full);
  const auto *q = static_cast<const T*>(p.q), *k = static_cast<const T*>(p.k), *v = static_cast<const T*>(p.v);
  bulk_load(shared_address(shared.q), q + int64_t{item} * p.feature_dim, layout.k_bytes(), full);
  bulk_load(shared_address(shared.k), k + int64_t{item} * p.feature_dim, layout.k_bytes(), full);
  bulk_load(shared_address(shared.pending_v) + pending * layout.v_bytes(), v + int64_t{item} * p.head_dim, layout.v_bytes(), full);
}

// w(q·k) = 1 + s + s² / 2 with s = q·k. q is scaled here, and so is k if `scale_k`: pending keys are stored scaled, the new token's is not.
template <typename T>
__device__ __forceinline__ float taylor_weight(const T* q, const T* k, const TaylorAttention& p, bool scale_k) {
  constexpr int kUnit = 16 / sizeof(T);
  const auto scaled = [&p](float x) { return to_float(from_float<T>(x * p.scale)); };
  float s = 0;
  for (int i = 0; i < p.feature_dim; i += kUnit) {
    float a[kUnit], b[kUnit];
    load_floats<kUnit>(q + i, a), load_floats<kUnit>(k + i, b);
#pragma unroll
    for (int j = 0; j < kUnit; ++j) s = fmaf(scaled(a[j]), scale_k ? scaled(b[j]) : b[j], s);
  }
  return 1 + s + 0.5F * s * s;
}

// Adds φ(q)·S to a lane's columns of y's numerator, for the features first, first + step, … `state` points to the lane's first column.
template <typename S>
__device__ __forceinline__ void read_state(const S* state, const float* phi_q, const Layout& layout, int first, int step,
                                           float (&sum)[Layout::kColumns]) {
#pragma unroll 5
  for (int f = first; f < layout.features; f += step) {
    float x[Layout::kColumns];
    load_floats<Layout::kColumns>(state + f * layout.head_dim, x);
    const float a = phi_q[f];
#pragma unroll
    for (int c = 0; c < Layout::kColumns; ++c) sum[c] = fmaf(a, x[c], sum[c]);
  }
}

// Writes a lane's part of the rounded state.
__device__ __forceinline__ void write_rounded(const float* state, bf16* rounded, const Layout& layout, int first, int step) {
#pragma unroll 2
  for (int f = first; f < layout.features; f += step) {
    float x[Layout::kColumns];
    load_floats<Layout::kColumns>(state + f * layout.head_dim, x);
    store_floats<Layout::kColumns>(rounded + f * layout.head_dim, x);
  }
}

// Adds kTokensPerPass tokens to a lane's part of the state: kColumns columns of the features first, first + step, … `state` and `values`
// point to the lane's first column.
template <bool kDecays, typename T>
__device__ __forceinline__ void add_tokens(float* state, const T* values, const float4* phi_keys, const Layout& layout, int first, int step,
                                           float rate) {
  float v[Layout::kTokensPerPass][Layout::kColumns];
#pragma unroll
  for (int t = 0; t < Layout::kTokensPerPass; ++t) load_floats<Layout::kColumns>(values + t * layout.head_dim, v[t]);
#pragma unroll 2
  for (int f = first; f < layout.features; f += step) {
    float4* at = reinterpret_cast<float4*>(state + f * layout.head_dim);
    const float4 phi = phi_keys[f];
    float x[Layout::kColumns];
    load_floats<Layout::kColumns>(reinterpret_cast<const float*>(at), x);
#pragma unroll
    for (int c = 0; c < Layout::kColumns; ++c) {
      const auto add = [&](float a, float value) { x[c] = fmaf(a, value, kDecays ? x[c] * rate : x[c]); };
      add(phi.x, v[0][c]), add(phi.y, v[1][c]), add(phi.z, v[2][c]), add(phi.w, v[3][c]);
    }
    *at = make_float4(x[0], x[1], x[2], x[3]);
  }
}
#endif

// A persistent block computes the items blockIdx.x, blockIdx.x + gridDim.x, … An item is a row and a head. Thread 0 is the producer: it
// requests the copies of the next item as soon as this item's state has been read. All threads, thread 0 included, are consumers.
template <typename T>
__global__ void __launch_bounds__(kThreads, Layout::kMaxBlocks)
    step_deferred(const __grid_constant__ TaylorDeferred all, const __grid_constant__ Layout layout) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char memory[];
  const DeferredStorage<T> shared(memory, layout);
  const TaylorAttention& p = all.step;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const bool is_producer = thread == 0;
  const uint32_t full = shared_address(shared.full);
  // The lane's part of the state: kColumns columns from `column` on of the features first_feature, first_feature + feature_step, …
  // `column_lanes` lanes share a feature, and a warp processes `warp_features` features at a time. The remaining lanes are not active.
  const int column_lanes = p.head_dim / Layout::kColumns, warp_features = 32 / column_lanes;
  const int first_feature = warp * warp_features + lane / column_lanes, feature_step = kWarps * warp_features;
  const int column = lane % column_lanes * Layout::kColumns;
  const bool active = lane < warp_features * column_lanes;

  // Fields of the next item: the index of its state, its number of pending tokens, and its denominator's state of feature `thread`.
  // slot_after is the slot of the item after it. These loads depend on one another, each with a memory latency, so they are issued one item
  // early, and the slot's two items early.
  int64_t next_state = 0, slot_after = 0;
  PendingState next_pending;
  float next_sum = 0;
  const auto slot_of = [&](uint32_t item) -> int64_t {
    const uint32_t row = item / p.heads;
    return p.slot == nullptr || item >= layout.items ? row : p.slot[row];
  };
  const auto load_next_fields = [&](uint32_t item) {
    if (item >= layout.items) return;
    next_state = slot_after * p.heads + item % p.heads;
    next_pending = {all.pending[next_state]};
    if (thread < layout.features) next_sum = p.k_state[next_state * layout.features + thread];
    slot_after = slot_of(item + gridDim.x);
  };

  // Request the first item. If no earlier kernel writes the states, they are read before the earlier kernels have ended.
  if (is_producer) barrier_init(full), fence_shared_proxy();
  let_next_kernel_start();
  if (!p.state_is_private) wait_for_earlier_kernels();
  slot_after = slot_of(blockIdx.x);
  load_next_fields(blockIdx.x);
  if (is_producer) {
    load_state(all, layout, shared, next_state, next_pending, /*half=*/0);
    load_pending(all, layout, shared, next_state, next_pending.tokens());
  }
  for (int f = thread; f < layout.features; f += kThreads) shared.pairs[f] = FeaturePair(f, p.feature_dim).packed();
  if (p.state_is_private) wait_for_earlier_kernels();
  if (is_producer) load_token(p, layout, shared, blockIdx.x, next_pending.tokens());
  __syncthreads();  // `full` is initialised, and `pairs` is complete

  uint32_t phase = 0;
  int half = 0;  // where this item's rounded state is; 0 where it has none
#pragma unroll 1
  for (uint32_t item = blockIdx.x; item < layout.items; item += gridDim.x, phase ^= 1) {
    const uint32_t next_item = item + gridDim.x;
    const int64_t state = next_state;
    const PendingState before = next_pending;
    const int pending = before.tokens();  // tokens before the new one, which is therefore token `pending` of the list
    const bool fills = before.fills(), is_rounded = before.reads_rounded();
    const float first_sum = next_sum;
    const float rate = p.decay != nullptr ? p.decay[item % p.heads] : 1.0F;
    const float sums_rate = p.decay_denominator ? rate : 1.0F;  // decay of the denominator's state
    load_next_fields(next_item);
    barrier_wait(full, phase);

    // φ(q), the denominator, and the decayed weights of the pending tokens.
    float part = 0;
    for (int f = thread; f < layout.features; f += kThreads) {
      const float a = FeaturePair(shared.pairs[f]).value(shared.q, p.scale);
      shared.phi_q[f] = a;
      part += a * (f < kThreads ? first_sum : p.k_state[state * layout.features + f]);
    }
    part *= power(sums_rate, pending + 1);
    if (const int t = kThreads - 1 - thread; t <= pending) {
      const bool newest = t == pending;
      const float w = taylor_weight(shared.q, newest ? shared.k : shared.pending_k + t * p.feature_dim, p, newest);
      const float decayed = w * power(rate, pending - t);
      shared.weights[t] = decayed;
      part += p.decay_denominator ? decayed : w;
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) part += __shfl_xor_sync(~0U, part, distance);
    if (lane == 0) shared.warp_sums[warp] = part;

    // Append the token to the pending tokens. The value is already in shared memory. Where the list becomes full, it is emptied below, so
    // it is not written to global memory.
    const int64_t at = state * kTaylorPending + pending;
    for (int i = thread; i < p.feature_dim; i += kThreads) {
      const T x = from_float<T>(to_float(shared.k[i]) * p.scale);
      shared.pending_k[pending * p.feature_dim + i] = x;
      if (!fills) static_cast<T*>(all.pending_k)[at * p.feature_dim + i] = x;
    }
    for (int i = thread; !fills && i < layout.v_bytes() / 16; i += kThreads)
      reinterpret_cast<uint4*>(static_cast<T*>(all.pending_v) + at * p.head_dim)[i] =
          reinterpret_cast<const uint4*>(shared.pending_v + pending * p.head_dim)[i];
    __syncthreads();  // phi_q, weights, warp_sums and pending_k are complete

    // Where this item and the next one read rounded states, the next one's is requested now, to the other half. That had the previous item,
    // which all threads have read.
    const bool has_next = next_item < layout.items, loads_early = has_next && is_rounded && next_pending.reads_rounded();
    const int next_half = loads_early ? half ^ 1 : 0;
    if (is_producer && loads_early) load_state(all, layout, shared, next_state, next_pending, next_half);

    // The warp's partial sum of y's numerator.
    float sum[Layout::kColumns] = {};
    if (active) {
      if (is_rounded) {
        const bf16* rounded = reinterpret_cast<const bf16*>(shared.state) + half * (layout.rounded_bytes() / 2);
        read_state(rounded + column, shared.phi_q, layout, first_feature, feature_step, sum);
      } else {
        read_state(shared.state + column, shared.phi_q, layout, first_feature, feature_step, sum);
      }
      const float state_rate = power(rate, pending + 1);
#pragma unroll
      for (int c = 0; c < Layout::kColumns; ++c) sum[c] *= state_rate;
      for (int t = first_feature; t <= pending; t += feature_step) {
        float v[Layout::kColumns];
        load_floats<Layout::kColumns>(shared.pending_v + t * p.head_dim + column, v);
#pragma unroll
        for (int c = 0; c < Layout::kColumns; ++c) sum[c] = fmaf(shared.weights[t], v[c], sum[c]);
      }
    }
    float warp_sum[Layout::kColumns] = {};
    for (int i = 0; i < warp_features; ++i)
#pragma unroll
      for (int c = 0; c < Layout::kColumns; ++c) warp_sum[c] += __shfl_sync(~0U, sum[c], (lane + i * column_lanes) % 32);
    if (lane < column_lanes)
      *reinterpret_cast<float4*>(shared.partial + warp * p.head_dim + column) =
          make_float4(warp_sum[0], warp_sum[1], warp_sum[2], warp_sum[3]);
    fence_shared_proxy();
    __syncthreads();  // `partial` is complete; all threads have read the state, so copies may overwrite it

    const auto write_y = [&] {
      float denominator = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) denominator += shared.warp_sums[w];
      for (int d = thread; d < p.head_dim; d += kThreads) {
        float y = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) y += shared.partial[w * p.head_dim + d];
        static_cast<T*>(p.y)[int64_t{item} * p.head_dim + d] = from_float<T>(y / denominator);
      }
      if (thread != 0) return;
      all.pending[state] = !fills ? before.bits + 1 : all.rounded_state != nullptr ? kTaylorRounded : 0;
      if (p.denominator != nullptr) p.denominator[item] = denominator;
    };

    // Where the list is full, add all pending tokens to the state, in the order and with the operations of single steps.
    if (fills) {
      write_y();
      __syncthreads();  // all threads have read `partial`, whose memory phi_keys reuses
      float k_sum = first_sum;
#pragma unroll 1
      for (int first = 0; first < kTaylorPending; first += Layout::kTokensPerPass) {
        for (int f = thread; f < layout.features; f += kThreads) {
          const FeaturePair pair(shared.pairs[f]);
          const T* k = shared.pending_k + first * p.feature_dim;
          const auto phi = [&](int t) { return pair.value(k + t * p.feature_dim, 1.0F); };
          const float4 b = make_float4(phi(0), phi(1), phi(2), phi(3));
          shared.phi_keys[f] = b;
          float* k_state = p.k_state + state * layout.features + f;
          float x = f < kThreads ? k_sum : *k_state;
          x = x * sums_rate + b.x, x = x * sums_rate + b.y, x = x * sums_rate + b.z, x = x * sums_rate + b.w;
          if (f < kThreads) k_sum = x;
          if (f >= kThreads || first + Layout::kTokensPerPass == kTaylorPending) *k_state = x;
        }
        __syncthreads();  // phi_keys is complete
        if (active) {
          const T* values = shared.pending_v + first * p.head_dim + column;
          if (p.decay == nullptr) {
            add_tokens<false>(shared.state + column, values, shared.phi_keys, layout, first_feature, feature_step, rate);
          } else {
            add_tokens<true>(shared.state + column, values, shared.phi_keys, layout, first_feature, feature_step, rate);
          }
        }
        __syncthreads();  // all threads have read phi_keys, which the next pass overwrites
      }
      if (active && all.rounded_state != nullptr) {
        bf16* rounded = static_cast<bf16*>(all.rounded_state) + state * (layout.rounded_bytes() / 2);
        write_rounded(shared.state + column, rounded + column, layout, first_feature, feature_step);
      }
      fence_shared_proxy();
      __syncthreads();  // all threads have ordered their writes of the state before the producer's copy
      if (is_producer) {
        bulk_store(p.kv_state + state * layout.features * p.head_dim, shared_address(shared.state), layout.state_bytes());
        bulk_store_wait_read();
      }
    }
    if (is_producer && has_next) {
      if (!loads_early) load_state(all, layout, shared, next_state, next_pending, next_half);
      load_pending(all, layout, shared, next_state, next_pending.tokens());
      load_token(p, layout, shared, next_item, next_pending.tokens());
    }
    half = next_half;
    if (!fills) write_y();
    __syncthreads();  // all threads have read `partial` and warp_sums, which the next item overwrites
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
  const int32_t bits = all.pending[state];
  if (bits == 0) return;
  const int pending = taylor_pending_tokens(bits);
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
  if (!taylor_deferred_takes(p.step, this_gpu()) || !aligned16(p.pending_k) || !aligned16(p.pending_v) || !aligned16(p.rounded_state))
    return {
        "taylor_deferred_step: supports sm_90, head_dim up to 128, head_dim and feature_dim of whole 16 bytes, and states of some 200 KB"};
  const Layout layout(p.step);
  if (p.rounded_state != nullptr && layout.rounded_bytes() % 16 != 0)
    return {"taylor_deferred_step: rounded states must be whole 16 bytes"};
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
