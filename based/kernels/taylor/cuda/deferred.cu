// Steps with pending tokens (based/kernels/taylor/deferred.h). Blocks are persistent: for each of its items (a row and head) a block loads
// the state to shared memory by TMA and reads it out. Several blocks share a multiprocessor, so that some load while others compute. The
// state is written back only after the pending tokens have been added to it. A rounded state takes half of the state's shared memory, so
// the next one is loaded to the other half while this one is read. The values have a barrier of their own, since they are needed last:
// their memory is that of the item before, so they can be requested only at its end.
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
  T* keys;           // [2]: of this item and the next: q [feature_dim], k [feature_dim], the pending keys [kTaylorPending, feature_dim]
  T* pending_v;      // [kTaylorPending, head_dim]
  float* partial;    // [kWarps, head_dim], the warps' partial sums of y's numerator
  float4* phi_keys;  // [features], φ of kTokensPerPass keys; in the memory of `partial`
  float* phi_q;      // [features]
  float* warp_sums;  // [kWarps], the warps' partial sums of the denominator
  float* weights;    // [kTaylorPending], of the pending tokens
  char2* pairs;      // [features], packed FeaturePairs
  uint64_t* full;    // mbarriers: an item's state and keys have arrived; its values have

  __device__ __forceinline__ DeferredStorage(char* shared, const Layout& layout)
      : state(reinterpret_cast<float*>(shared)),
        keys(reinterpret_cast<T*>(shared + layout.keys_at())),
        pending_v(reinterpret_cast<T*>(shared + layout.pending_v_at())),
        partial(reinterpret_cast<float*>(shared + layout.partial_at())),
        phi_keys(reinterpret_cast<float4*>(partial)),
        phi_q(reinterpret_cast<float*>(shared + layout.phi_q_at())),
        warp_sums(reinterpret_cast<float*>(shared + layout.warp_sums_at())),
        weights(reinterpret_cast<float*>(shared + layout.weights_at())),
        pairs(reinterpret_cast<char2*>(shared + layout.pairs_at())),
        full(reinterpret_cast<uint64_t*>(shared + layout.barriers_at())) {}
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

// The following functions request copies, and are called by one thread. `buffer` is the item's place in DeferredStorage::keys.

// A state, or its rounded state to the half `half` of the shared memory for a state. Also sets the number of bytes that `full` expects,
// including those of load_pending_keys and load_token_keys.
template <typename T>
__device__ __forceinline__ void load_state(const TaylorDeferred& all, const Layout& layout, const DeferredStorage<T>& shared, int64_t state,
                                           PendingState pending, int half) {
  const uint32_t full = shared_address(shared.full);
  const bool rounded = pending.reads_rounded();
  const uint32_t bytes = rounded ? layout.rounded_bytes() : layout.state_bytes();
  const void* from = rounded ? all.rounded_state : all.step.kv_state;
  barrier_expect(full, bytes + (2 + pending.tokens()) * layout.k_bytes());
  bulk_load(shared_address(shared.state) + half * layout.rounded_bytes(), static_cast<const char*>(from) + state * bytes, bytes, full);
}

template <typename T>
__device__ __forceinline__ void load_pending_keys(const TaylorDeferred& all, const Layout& layout, const DeferredStorage<T>& shared,
                                                  int64_t state, PendingState pending, int buffer) {
  if (pending.tokens() == 0) return;
  const uint32_t bytes = layout.k_bytes();
  bulk_load(shared_address(shared.keys) + buffer * layout.keys_bytes() + 2 * bytes,
            static_cast<const char*>(all.pending_k) + state * kTaylorPending * bytes, pending.tokens() * bytes,
            shared_address(shared.full));
}

template <typename T>
__device__ __forceinline__ void load_token_keys(const TaylorAttention& p, const Layout& layout, const DeferredStorage<T>& shared,
                                                uint32_t item, int buffer) {
  const uint32_t full = shared_address(shared.full), q = shared_address(shared.keys) + buffer * layout.keys_bytes(),
                 bytes = layout.k_bytes();
  bulk_load(q, static_cast<const char*>(p.q) + int64_t{item} * bytes, bytes, full);
  bulk_load(q + bytes, static_cast<const char*>(p.k) + int64_t{item} * bytes, bytes, full);
}

// The pending values. Also sets the number of bytes that the values' barrier expects, including those of load_token_value.
template <typename T>
__device__ __forceinline__ void load_pending_values(const TaylorDeferred& all, const Layout& layout, const DeferredStorage<T>& shared,
                                                    int64_t state, PendingState pending) {
  const uint32_t full = shared_address(shared.full + 1), bytes = layout.v_bytes();
  barrier_expect(full, (pending.tokens() + 1) * bytes);
  if (pending.tokens() == 0) return;
  bulk_load(shared_address(shared.pending_v), static_cast<const char*>(all.pending_v) + state * kTaylorPending * bytes,
            pending.tokens() * bytes, full);
}

// The new token's value, to the end of the pending values.
template <typename T>
__device__ __forceinline__ void load_token_value(const TaylorAttention& p, const Layout& layout, const DeferredStorage<T>& shared,
                                                 uint32_t item, PendingState pending) {
  const uint32_t bytes = layout.v_bytes();
  bulk_load(shared_address(shared.pending_v) + pending.tokens() * bytes, static_cast<const char*>(p.v) + int64_t{item} * bytes, bytes,
            shared_address(shared.full + 1));
}

// w(q·k) = 1 + s + s² / 2 with s = q·k. q is scaled here, and so is k if `scale_k`: pending keys are stored scaled, the new token's is not.
template <typename T>
__device__ __forceinline__ float taylor_weight(const T* q, const T* k, const TaylorAttention& p, const Layout& layout, bool scale_k) {
  constexpr int kUnit = 16 / sizeof(T);
  const auto scaled = [&p](float x) { return to_float(from_float<T>(x * p.scale)); };
  float s = 0;
  for (int i = 0; i < layout.feature_dim; i += kUnit) {
    float a[kUnit], b[kUnit];
    load_floats<kUnit>(q + i, a), load_floats<kUnit>(k + i, b);
#pragma unroll
    for (int j = 0; j < kUnit; ++j) s = fmaf(scaled(a[j]), scale_k ? scaled(b[j]) : b[j], s);
  }
  return 1 + s + 0.5F * s * s;
}

__device__ __forceinline__ void load_columns(const float* p, float (&to)[Layout::kColumns]) { load_floats<Layout::kColumns>(p, to); }
__device__ __forceinline__ void load_columns(const bf16* p, float (&to)[Layout::kColumns]) {
  static_assert(Layout::kColumns == 4);
  const uint2 pairs = *reinterpret_cast<const uint2*>(p);
  to[0] = low_float(pairs.x), to[1] = high_float(pairs.x), to[2] = low_float(pairs.y), to[3] = high_float(pairs.y);
}

// Adds φ(q)·S to a lane's columns of y's numerator, for the features first, first + step, … `state` points to the lane's first column.
template <typename S>
__device__ __forceinline__ void read_state(const S* state, const float* phi_q, const Layout& layout, int first, int step,
                                           float (&sum)[Layout::kColumns]) {
#pragma unroll 5
  for (int f = first; f < layout.features; f += step) {
    float x[Layout::kColumns];
    load_columns(state + f * layout.head_dim, x);
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
// kHeadDim, kFeatureDim: head_dim and feature_dim at compile time, which saves instructions; 0: any.
template <typename T, int kHeadDim, int kFeatureDim>
__global__ void __launch_bounds__(kThreads, Layout::kMaxBlocks)
    step_deferred(const __grid_constant__ TaylorDeferred all, const __grid_constant__ Layout any_layout) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char memory[];
  const Layout layout = kHeadDim > 0 ? Layout(kHeadDim, kFeatureDim, sizeof(T), any_layout.items) : any_layout;
  const DeferredStorage<T> shared(memory, layout);
  const TaylorAttention& p = all.step;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const bool is_producer = thread == 0;
  const uint32_t full = shared_address(shared.full), values_full = shared_address(shared.full + 1);
  // The lane's part of the state: kColumns columns from `column` on of the features first_feature, first_feature + feature_step, …
  // `column_lanes` lanes share a feature, and a warp processes `warp_features` features at a time. The remaining lanes are not active.
  const int column_lanes = layout.head_dim / Layout::kColumns, warp_features = 32 / column_lanes;
  const int first_feature = warp * warp_features + lane / column_lanes, feature_step = kWarps * warp_features;
  const int column = lane % column_lanes * Layout::kColumns;
  const bool active = lane < warp_features * column_lanes;

  // The index of the state and the pending tokens of 32 of the block's items, one item a lane, so that an item does not wait for these
  // loads, each of which has a memory latency and depends on the one before.
  const uint32_t items = static_cast<uint32_t>(layout.items), heads = p.heads;
  int64_t lane_state = 0;
  int32_t lane_pending = 0;
  const auto load_fields = [&](uint32_t first_item) {
    const uint32_t item = first_item + lane * gridDim.x;
    if (item >= items) return;
    const uint32_t row = item / heads;
    lane_state = (p.slot != nullptr ? p.slot[row] : row) * heads + item % heads;
    lane_pending = all.pending[lane_state];
  };
  // Fields of the next item, the last of which, its denominator's state of feature `thread`, is loaded one item early.
  int64_t next_state = 0;
  PendingState next_pending;
  float next_sum = 0;
  const auto prepare = [&](uint32_t item, int index) {  // `index` counts the block's items
    if (item >= items) return;
    if (index % 32 == 0) load_fields(item);
    next_state = __shfl_sync(~0U, lane_state, index % 32), next_pending = {__shfl_sync(~0U, lane_pending, index % 32)};
    if (thread < layout.features) next_sum = p.k_state[next_state * layout.features + thread];
  };

  // Request the first item. If no earlier kernel writes the states, they are read before the earlier kernels have ended.
  if (is_producer) barrier_init(full), barrier_init(values_full), fence_shared_proxy();
  let_next_kernel_start();
  if (!p.state_is_private) wait_for_earlier_kernels();
  prepare(blockIdx.x, 0);
  if (is_producer) {
    load_state(all, layout, shared, next_state, next_pending, /*half=*/0);
    load_pending_keys(all, layout, shared, next_state, next_pending, /*buffer=*/0);
    load_pending_values(all, layout, shared, next_state, next_pending);
  }
  for (int f = thread; f < layout.features; f += kThreads) shared.pairs[f] = FeaturePair(f, layout.feature_dim).packed();
  if (p.state_is_private) wait_for_earlier_kernels();
  if (is_producer) {
    load_token_keys(p, layout, shared, blockIdx.x, /*buffer=*/0);
    load_token_value(p, layout, shared, blockIdx.x, next_pending);
  }
  __syncthreads();  // the barriers are initialised, and `pairs` is complete

  uint32_t phase = 0;
  int index = 0;
  int half = 0;  // where this item's rounded state is; 0 where it has none
#pragma unroll 1
  for (uint32_t item = blockIdx.x; item < items; item += gridDim.x, phase ^= 1) {
    const int buffer = static_cast<int>(phase);  // has the item's keys
    T *const q = shared.keys + buffer * (2 + kTaylorPending) * layout.feature_dim, *const k = q + layout.feature_dim,
             *const pending_k = k + layout.feature_dim;
    const uint32_t next_item = item + gridDim.x;
    const int64_t state = next_state;
    const PendingState before = next_pending;
    const int pending = before.tokens();  // tokens before the new one, which is therefore token `pending` of the list
    const bool fills = before.fills(), is_rounded = before.reads_rounded();
    const float first_sum = next_sum;
    const bool decays = p.decay != nullptr;
    const float rate = decays ? p.decay[item % heads] : 1.0F;
    const float sums_rate = p.decay_denominator ? rate : 1.0F;  // decay of the denominator's state
    prepare(next_item, ++index);
    barrier_wait(full, phase);

    // φ(q), the denominator, and the decayed weights of the pending tokens.
    float part = 0;
    for (int f = thread; f < layout.features; f += kThreads) {
      const float a = FeaturePair(shared.pairs[f]).value(q, p.scale);
      shared.phi_q[f] = a;
      part += a * (f < kThreads ? first_sum : p.k_state[state * layout.features + f]);
    }
    if (decays) part *= power(sums_rate, pending + 1);
    if (const int t = kThreads - 1 - thread; t <= pending) {
      const bool newest = t == pending;
      const float w = taylor_weight(q, newest ? k : pending_k + t * layout.feature_dim, p, layout, newest);
      const float decayed = decays ? w * power(rate, pending - t) : w;
      shared.weights[t] = decayed;
      part += p.decay_denominator ? decayed : w;
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) part += __shfl_xor_sync(~0U, part, distance);
    if (lane == 0) shared.warp_sums[warp] = part;

    // Append the token's key to the pending keys. Where the list becomes full, it is emptied below, so it is not written to global memory.
    const int64_t at = state * kTaylorPending + pending;
    for (int i = thread; i < layout.feature_dim; i += kThreads) {
      const T x = from_float<T>(to_float(k[i]) * p.scale);
      pending_k[pending * layout.feature_dim + i] = x;
      if (!fills) static_cast<T*>(all.pending_k)[at * layout.feature_dim + i] = x;
    }
    __syncthreads();  // phi_q, weights, warp_sums and pending_k are complete

    // Where this item and the next one read rounded states, the next one's state and keys are requested now, to the other half and buffer.
    // These had the previous item's, which all threads have read.
    const bool has_next = next_item < items, loads_early = has_next && is_rounded && next_pending.reads_rounded();
    const int next_half = loads_early ? half ^ 1 : 0;
    const auto load_next = [&] {
      load_state(all, layout, shared, next_state, next_pending, next_half);
      load_pending_keys(all, layout, shared, next_state, next_pending, buffer ^ 1);
      load_token_keys(p, layout, shared, next_item, buffer ^ 1);
    };
    if (is_producer && loads_early) load_next();

    // The warp's partial sum of y's numerator.
    float sum[Layout::kColumns] = {};
    if (active) {
      if (is_rounded) {
        const bf16* rounded = reinterpret_cast<const bf16*>(shared.state) + half * (layout.rounded_bytes() / 2);
        read_state(rounded + column, shared.phi_q, layout, first_feature, feature_step, sum);
      } else {
        read_state(shared.state + column, shared.phi_q, layout, first_feature, feature_step, sum);
      }
      if (decays) {
        const float state_rate = power(rate, pending + 1);
#pragma unroll
        for (int c = 0; c < Layout::kColumns; ++c) sum[c] *= state_rate;
      }
    }
    barrier_wait(values_full, phase);
    if (active) {
      for (int t = first_feature; t <= pending; t += feature_step) {
        float v[Layout::kColumns];
        load_floats<Layout::kColumns>(shared.pending_v + t * layout.head_dim + column, v);
#pragma unroll
        for (int c = 0; c < Layout::kColumns; ++c) sum[c] = fmaf(shared.weights[t], v[c], sum[c]);
      }
    }
    // Append the token's value, which is already in its place in shared memory, like its key.
    for (int i = thread; !fills && i < layout.v_bytes() / 16; i += kThreads)
      reinterpret_cast<uint4*>(static_cast<T*>(all.pending_v) + at * layout.head_dim)[i] =
          reinterpret_cast<const uint4*>(shared.pending_v + pending * layout.head_dim)[i];
    float warp_sum[Layout::kColumns] = {};
#pragma unroll 2
    for (int i = 0; i < warp_features; ++i)
#pragma unroll
      for (int c = 0; c < Layout::kColumns; ++c) warp_sum[c] += __shfl_sync(~0U, sum[c], (lane + i * column_lanes) % 32);
    if (lane < column_lanes)
      *reinterpret_cast<float4*>(shared.partial + warp * layout.head_dim + column) =
          make_float4(warp_sum[0], warp_sum[1], warp_sum[2], warp_sum[3]);
    fence_shared_proxy();
    __syncthreads();  // `partial` is complete; all threads have read the state, so copies may overwrite it

    const auto write_y = [&] {
      float denominator = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) denominator += shared.warp_sums[w];
      for (int d = thread; d < layout.head_dim; d += kThreads) {
        float y = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) y += shared.partial[w * layout.head_dim + d];
        static_cast<T*>(p.y)[int64_t{item} * layout.head_dim + d] = from_float<T>(y / denominator);
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
          const T* pass_k = pending_k + first * layout.feature_dim;
          const auto phi = [&](int t) { return pair.value(pass_k + t * layout.feature_dim, 1.0F); };
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
          const T* values = shared.pending_v + first * layout.head_dim + column;
          if (!decays) {
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
        bulk_store(p.kv_state + state * layout.features * layout.head_dim, shared_address(shared.state), layout.state_bytes());
        bulk_store_wait_read();
      }
    }
    if (is_producer && has_next) {
      if (!loads_early) load_next();
      load_pending_values(all, layout, shared, next_state, next_pending);
      load_token_value(p, layout, shared, next_item, next_pending);
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
  const bool bf = p.step.dtype == DType::bf16, usual = bf && p.step.feature_dim == 16;
  auto* kernel = usual && p.step.head_dim == 64    ? step_deferred<bf16, 64, 16>
                 : usual && p.step.head_dim == 112 ? step_deferred<bf16, 112, 16>
                 : bf                              ? step_deferred<bf16, 0, 0>
                                                   : step_deferred<float, 0, 0>;
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
