// One token a row (algorithm 2): every state is read and written once. Two kernels:
//   step_streamed (sm_90): persistent blocks loop over rows and heads; TMA loads whole states to shared memory a few items early, the
//   threads
//     update them there, and TMA stores them.
//   step_rows: one block for each row and head; its threads hold the state in registers. With few rows on Hopper, a state that takes
//   several
//     rounds of loads is divided among the blocks of a cluster by columns. The order of additions is the same, so the bits are. It
//     also reads several tokens of one sequence, one after another, with the sums of single steps.
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/taylor/cuda/feature_pair.cuh"
#include "based/kernels/taylor/taylor.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 256;
constexpr int kHeld = 10;                    // vectors of the state that a thread has in registers at a time
constexpr int kParts = 4, kHeldOfPart = 36;  // blocks of a cluster that share a state, and the same for their threads

// A vector of kWidth floats, loaded and stored with streaming cache hints, since no state is read twice.
template <int kWidth>
struct Vector {
  float x[kWidth];
  __device__ __forceinline__ void load(const float* p) {
    if constexpr (kWidth == 4) {
      const float4 a = __ldcs(reinterpret_cast<const float4*>(p));
      x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    } else {
      x[0] = __ldcs(p);
    }
  }
  __device__ __forceinline__ void store(float* p) const {
    if constexpr (kWidth == 4) {
      __stcs(reinterpret_cast<float4*>(p), make_float4(x[0], x[1], x[2], x[3]));
    } else {
      __stcs(p, x[0]);
    }
  }
};

// The denominator's state of a thread's features, and its update. `first` is that of the thread's first feature, `pair` its factors.
struct Denominator {
  float* sums;
  float decay, first;
  int count;

  __device__ __forceinline__ float updated(int f, float phi_k) const { return (f < kThreads ? first : sums[f]) * decay + phi_k; }

  // Writes φ(q) and φ(k) of a token to shared memory; returns the thread's part of the denominator.
  template <typename T>
  __device__ __forceinline__ float make_features(const TaylorAttention& p, const T* q, const T* k, const FeaturePair& pair, float* phi_q,
                                                 float* phi_k) const {
    float sum = 0;
    for (int f = threadIdx.x; f < count; f += kThreads) {
      const FeaturePair factors = f < kThreads ? pair : FeaturePair(f, p.feature_dim);
      const float a = factors.value(q, p.scale), b = factors.value(k, p.scale);
      phi_q[f] = a, phi_k[f] = b;
      sum += a * updated(f, b);
    }
    return sum;
  }
  // Stores the state after the token, and a copy at `kept`; null: none.
  __device__ __forceinline__ void store(const float* phi_k, float* kept) {
    for (int f = threadIdx.x; f < count; f += kThreads) {
      const float x = updated(f, phi_k[f]);
      sums[f] = x;
      if (f < kThreads) first = x;
      if (kept != nullptr) kept[f] = x;
    }
  }
};

// The tokens that a block of step_rows reads: that of its row, or those of a sequence.
struct RowTokens {
  int count = 1;
  int64_t padding = 0;
  float *kept_kv_state = nullptr, *kept_k_state = nullptr;
};

// Copies the tokens' q, k and v of a head to shared memory, so that their loads are in flight together.
template <typename T>
__device__ __forceinline__ void copy_tokens(const TaylorAttention& p, int count, T* q, T* k, T* v) {
  const auto copy = [&](T* to, const void* from, int dim) {
    for (int i = threadIdx.x; i < count * dim; i += kThreads)
      to[i] = static_cast<const T*>(from)[(int64_t{i / dim} * p.heads + blockIdx.y) * dim + i % dim];
  };
  copy(q, p.q, p.feature_dim), copy(k, p.k, p.feature_dim), copy(v, p.v, p.head_dim);
  __syncthreads();  // the copies are complete
}

// kBlocks: blocks of a cluster that share a state. kRound: vectors of the state that a thread loads at a time. kSeveral: whether a block
// reads several tokens. Its threads then hold the state between the tokens, or, where it is too large, store and load it.
template <typename T, int kWidth, int kBlocks, int kRound, bool kSeveral>
__global__ void __launch_bounds__(kThreads)
    step_rows(const __grid_constant__ TaylorAttention p, const int features, const __grid_constant__ RowTokens tokens) {
  extern __shared__ float shared[];
  float *phi_q = shared, *phi_k = phi_q + features, *warp_sums = phi_k + features, *partial = warp_sums + 32;
  let_next_kernel_start();
  if (!p.state_is_private) wait_for_earlier_kernels();
  const int part = static_cast<int>(blockIdx.x) % kBlocks;
  const int64_t row = blockIdx.x / kBlocks, slot = p.slot != nullptr ? p.slot[row] : row, state = slot * p.heads + blockIdx.y;
  const int columns = p.head_dim / kWidth, groups = kThreads / columns;
  const int group = threadIdx.x / columns, column = threadIdx.x % columns * kWidth;
  const bool active = group < groups && column * kBlocks / p.head_dim == part, holds_state = features <= kRound * groups;
  float *kv = p.kv_state + state * features * p.head_dim + column, *sums = p.k_state + state * features;

  Denominator below{sums, p.decay != nullptr && p.decay_denominator ? p.decay[blockIdx.y] : 1.0F,
                    static_cast<int>(threadIdx.x) < features ? sums[threadIdx.x] : 0.0F, features};
  Vector<kWidth> held[kRound];
  const auto load_first = [&] {
    if (!active) return;
#pragma unroll
    for (int i = 0; i < kRound; ++i) {
      if (group + i * groups < features) held[i].load(kv + static_cast<int64_t>(group + i * groups) * p.head_dim);
    }
  };
  load_first();
  const FeaturePair pair(min(static_cast<int>(threadIdx.x), features - 1), p.feature_dim);
  if (p.state_is_private) wait_for_earlier_kernels();
  const T *q = static_cast<const T*>(p.q), *k = static_cast<const T*>(p.k), *v_row = static_cast<const T*>(p.v);
  if constexpr (kSeveral) {
    T* copied = reinterpret_cast<T*>(partial + groups * p.head_dim);
    T *all_k = copied + tokens.count * p.feature_dim, *all_v = all_k + tokens.count * p.feature_dim;
    copy_tokens(p, tokens.count, copied, all_k, all_v);
    q = copied, k = all_k, v_row = all_v;
  } else {
    const int64_t row_head = row * p.heads + blockIdx.y;
    q += row_head * p.feature_dim, k += row_head * p.feature_dim, v_row += row_head * p.head_dim;
  }
#pragma unroll 1
  for (int t = 0; t < (kSeveral ? tokens.count : 1); ++t) {
    const bool is_last = !kSeveral || t + 1 == tokens.count, keeps = kSeveral && !is_last && tokens.kept_kv_state != nullptr;
    const int64_t row_head = (kSeveral ? t : row) * p.heads + blockIdx.y;
    float* kept = keeps ? tokens.kept_kv_state + row_head * features * p.head_dim + column : nullptr;
    if (kSeveral && t > 0 && !holds_state) load_first();
    T raw[kWidth];
#pragma unroll
    for (int c = 0; c < kWidth; ++c) raw[c] = active ? v_row[t * p.head_dim + column + c] : from_float<T>(0);
    const float denominator =
        sum_over_block(below.make_features(p, q + t * p.feature_dim, k + t * p.feature_dim, pair, phi_q, phi_k), warp_sums);
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) cluster_arrive(), cluster_wait();  // all have read the state that the first one overwrites
#endif
    if (part == 0) below.store(phi_k, keeps ? tokens.kept_k_state + row_head * features : nullptr);
    const float decay = p.decay != nullptr ? p.decay[blockIdx.y] : 1.0F;
    float v[kWidth], sum[kWidth];
#pragma unroll
    for (int c = 0; c < kWidth; ++c) v[c] = to_float(raw[c]), sum[c] = 0;
    for (int base = group; active && base < features; base += kRound * groups) {
#pragma unroll
      for (int i = 0; i < kRound; ++i) {
        const int f = base + i * groups;
        if (f >= features) break;
        const float a = phi_q[f], b = phi_k[f];
#pragma unroll
        for (int c = 0; c < kWidth; ++c) {
          held[i].x[c] = fmaf(b, v[c], held[i].x[c] * decay);
          sum[c] = fmaf(a, held[i].x[c], sum[c]);
        }
        if (is_last || !holds_state) held[i].store(kv + static_cast<int64_t>(f) * p.head_dim);
        if (kept != nullptr) held[i].store(kept + static_cast<int64_t>(f) * p.head_dim);
      }
#pragma unroll
      for (int i = 0; i < kRound; ++i) {
        const int f = base + (kRound + i) * groups;
        if (f < features) held[i].load(kv + static_cast<int64_t>(f) * p.head_dim);
      }
    }
    if (active) {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) partial[group * p.head_dim + column + c] = sum[c];
    }
    __syncthreads();  // all partial sums are there, and φ has been read
    const int part_columns = p.head_dim / kBlocks;
    for (int d = part * part_columns + threadIdx.x; d < (part + 1) * part_columns; d += kThreads) {
      float y = 0;
      for (int g = 0; g < groups; ++g) y += partial[g * p.head_dim + d];
      T* out = static_cast<T*>(p.y) + row_head * p.head_dim + d;
      const T rounded = from_float<T>(y / denominator);
      for (int64_t i = 0; i <= (kSeveral && is_last ? tokens.padding : 0); ++i) out[i * p.heads * p.head_dim] = rounded;
    }
    if (p.denominator != nullptr && part == 0 && threadIdx.x == 0) p.denominator[row_head] = denominator;
  }
}

// Shared memory of the streamed kernel. A stage holds a state, followed by its v, its denominator's state, q and k.
struct Stream90 {
  int features, head_dim, feature_dim, element_bytes;  // element_bytes: of an element of q, k, v
  int64_t items;                                       // rows x heads
  int stages = 0, blocks = 1;                          // blocks: of a multiprocessor

  __host__ __device__ int state_bytes() const { return features * head_dim * 4; }
  __host__ __device__ int k_state_at() const { return state_bytes() + head_dim * element_bytes; }
  __host__ __device__ int q_at() const { return (k_state_at() + features * 4 + 15) / 16 * 16; }
  __host__ __device__ int k_at() const { return q_at() + feature_dim * element_bytes; }
  __host__ __device__ int stage_bytes() const { return (k_at() + feature_dim * element_bytes + 127) / 128 * 128; }
  __host__ __device__ int groups() const { return kThreads / (head_dim / 4); }
  __host__ __device__ int partial_at() const { return stages * stage_bytes(); }
  __host__ __device__ int features_at() const { return partial_at() + groups() * head_dim * 4; }
  __host__ __device__ int barriers_at() const { return (features_at() + (2 * features + 32) * 4 + 7) / 8 * 8; }
  __host__ __device__ int shared_bytes() const { return barriers_at() + 8 * stages; }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
template <typename T>
struct Streamed {
  const TaylorAttention& p;
  const Stream90& plan;
  char* shared;

  __device__ __forceinline__ uint32_t item(uint32_t n) const { return blockIdx.x + n * gridDim.x; }
  __device__ __forceinline__ char* stage(uint32_t s) const { return shared + s * plan.stage_bytes(); }
  __device__ __forceinline__ uint32_t barrier(uint32_t s) const { return shared_address(shared + plan.barriers_at()) + 8 * s; }
  __device__ __forceinline__ int64_t state_of(uint32_t n) const {
    const uint32_t heads = p.heads, row = item(n) / heads;
    return (p.slot != nullptr ? p.slot[row] : row) * heads + item(n) % heads;
  }
  __device__ __forceinline__ void copy(uint32_t to, const T* from, int count) const {
    for (int i = threadIdx.x; i * 16 < count * plan.element_bytes; i += kThreads)
      copy_async_16(to + i * 16, reinterpret_cast<const char*>(from) + i * 16, true);
  }
  // Request the copies of the block's n-th item to stage s: the denominator's state (all threads), the state (one thread, by TMA), and the
  // token's q, k and v (all threads). request_token commits the item's cp.async group, so it comes after request_sums.
  __device__ __forceinline__ void request_sums(uint32_t n, uint32_t s) const {
    if (item(n) >= plan.items) return;
    const float* sums = p.k_state + state_of(n) * plan.features;
    for (int f = threadIdx.x; f < plan.features; f += kThreads)
      copy_async_4(shared_address(stage(s)) + plan.k_state_at() + 4 * f, sums + f);
  }
  __device__ __forceinline__ void request_state(uint32_t n, uint32_t s) const {
    if (item(n) >= plan.items || threadIdx.x != 0) return;
    bulk_store_wait_read();
    barrier_expect(barrier(s), plan.state_bytes());
    bulk_load(shared_address(stage(s)), p.kv_state + state_of(n) * plan.features * p.head_dim, plan.state_bytes(), barrier(s));
  }
  __device__ __forceinline__ void request_token(uint32_t n, uint32_t s) const {
    if (item(n) < plan.items) {
      const uint32_t to = shared_address(stage(s));
      copy(to + plan.state_bytes(), static_cast<const T*>(p.v) + int64_t{item(n)} * p.head_dim, p.head_dim);
      copy(to + plan.q_at(), static_cast<const T*>(p.q) + int64_t{item(n)} * p.feature_dim, p.feature_dim);
      copy(to + plan.k_at(), static_cast<const T*>(p.k) + int64_t{item(n)} * p.feature_dim, p.feature_dim);
    }
    copy_async_commit();
  }
  // Requests the first items. Where the states are private, their copies start before the previous kernels have ended.
  __device__ __forceinline__ void request_first() const {
    const int count = plan.stages - 1;
    if (p.state_is_private) {
      for (int s = 0; s < count; ++s) request_sums(s, s), request_state(s, s);
      wait_for_earlier_kernels();
      for (int s = 0; s < count; ++s) request_token(s, s);
    } else {
      wait_for_earlier_kernels();
      for (int s = 0; s < count; ++s) request_sums(s, s), request_token(s, s), request_state(s, s);
    }
  }
  // Writes φ(q) and φ(k) to shared memory and updates the denominator's state; returns the thread's part of the denominator.
  __device__ __forceinline__ float make_features(uint32_t s, int64_t state, float decay, float* phi_q, float* phi_k) const {
    const char* at = stage(s);
    const T *q = reinterpret_cast<const T*>(at + plan.q_at()), *k = reinterpret_cast<const T*>(at + plan.k_at());
    const float* sums = reinterpret_cast<const float*>(at + plan.k_state_at());
    float sum = 0;
    for (int f = threadIdx.x; f < plan.features; f += kThreads) {
      const FeaturePair pair(f, p.feature_dim);
      const float b = pair.value(k, p.scale), a = pair.value(q, p.scale), updated = sums[f] * decay + b;
      phi_q[f] = a, phi_k[f] = b;
      p.k_state[state * plan.features + f] = updated;
      sum += a * updated;
    }
    return sum;
  }
  // Updates the state in its stage and writes the thread's part of φ(q)·state to `partial`.
  __device__ __forceinline__ void update(uint32_t s, float decay, const float* phi_q, const float* phi_k, float* partial) const {
    const int columns = p.head_dim / 4, groups = plan.groups(), group = threadIdx.x / columns, column = threadIdx.x % columns * 4;
    if (group >= groups) return;
    float v[4], sum[4] = {};
    load_floats<4>(reinterpret_cast<const T*>(stage(s) + plan.state_bytes()) + column, v);
    float* state = reinterpret_cast<float*>(stage(s)) + column;
#pragma unroll 5
    for (int f = group; f < plan.features; f += groups) {
      float4* at = reinterpret_cast<float4*>(state + f * p.head_dim);
      const float a = phi_q[f], b = phi_k[f];
      float4 x = *at;
      x.x = fmaf(b, v[0], x.x * decay), x.y = fmaf(b, v[1], x.y * decay), x.z = fmaf(b, v[2], x.z * decay),
      x.w = fmaf(b, v[3], x.w * decay);
      *at = x;
      sum[0] = fmaf(a, x.x, sum[0]), sum[1] = fmaf(a, x.y, sum[1]), sum[2] = fmaf(a, x.z, sum[2]), sum[3] = fmaf(a, x.w, sum[3]);
    }
    *reinterpret_cast<float4*>(partial + group * p.head_dim + column) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
};
#endif

constexpr int kMaxStages = 5;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    step_streamed(const __grid_constant__ TaylorAttention p, const __grid_constant__ Stream90 plan) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char stages[];
  const Streamed<T> queue{p, plan, stages};
  float *partial = reinterpret_cast<float*>(stages + plan.partial_at()), *phi_q = reinterpret_cast<float*>(stages + plan.features_at()),
        *phi_k = phi_q + plan.features, *warp_sums = phi_k + plan.features;
  if (threadIdx.x == 0) {
    for (int s = 0; s < plan.stages; ++s) barrier_init(queue.barrier(s));
    fence_shared_proxy();
  }
  __syncthreads();
  let_next_kernel_start();
  queue.request_first();
  uint32_t s = 0, phase = 0;
#pragma unroll 1
  for (uint32_t n = 0; queue.item(n) < plan.items; ++n) {
    const int64_t item = queue.item(n), state = queue.state_of(n);
    // The new item overwrites the stage of item n − 1, whose store was issued one iteration ago.
    const uint32_t free = s == 0 ? plan.stages - 1 : s - 1;
    queue.request_sums(n + plan.stages - 1, free), queue.request_token(n + plan.stages - 1, free);
    queue.request_state(n + plan.stages - 1, free);
    switch (plan.stages) {
      case 2: copy_async_wait<1>(); break;
      case 3: copy_async_wait<2>(); break;
      case 4: copy_async_wait<3>(); break;
      default: copy_async_wait<kMaxStages - 1>(); break;
    }
    __syncthreads();
    // Loaded for each use, since no register is left to hold it while the denominator is summed.
    const auto rate = [&](bool decays) { return decays ? p.decay[static_cast<uint32_t>(item) % p.heads] : 1.0F; };
    const float sums_decay = rate(p.decay != nullptr && p.decay_denominator);
    const float denominator = sum_over_block(queue.make_features(s, state, sums_decay, phi_q, phi_k), warp_sums);
    barrier_wait(queue.barrier(s), phase);
    queue.update(s, rate(p.decay != nullptr), phi_q, phi_k, partial);
    fence_shared_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(p.kv_state + state * plan.features * p.head_dim, shared_address(queue.stage(s)), plan.state_bytes());
      if (p.denominator != nullptr) p.denominator[item] = denominator;
    }
    for (int d = threadIdx.x; d < p.head_dim; d += kThreads) {
      float y = 0;
      for (int g = 0; g < plan.groups(); ++g) y += partial[g * p.head_dim + d];
      static_cast<T*>(p.y)[item * p.head_dim + d] = from_float<T>(y / denominator);
    }
    if (++s == static_cast<uint32_t>(plan.stages)) s = 0, phase ^= 1;
  }
  if (threadIdx.x == 0) bulk_store_wait_read();
#else
  __trap();
#endif
}

// Plans as many stages as fit, up to kMaxStages; 0 stages where the streamed kernel does not support the shape or is not faster.
Stream90 plan_stream(const TaylorAttention& p, int features) {
  const int element_bytes = static_cast<int>(dtype_size(p.dtype));
  Stream90 plan{features, p.head_dim, p.feature_dim, element_bytes, p.rows * p.heads};
  const bool whole_units = p.head_dim * element_bytes % 16 == 0 && p.feature_dim * element_bytes % 16 == 0;
  if (!runs_hopper_code() || !whole_units || p.head_dim > 4 * kThreads || !aligned16(p.kv_state) || !aligned16(p.q) || !aligned16(p.k) ||
      !aligned16(p.v)) {
    return plan;
  }
  // Two blocks a multiprocessor where each can have two stages: while one computes, the other's copies run.
  const int half = multiprocessor_shared_memory() / 2 - 1024;
  const int whole = block_shared_memory();
  plan.blocks = 2;
  if (2 * plan.stage_bytes() + plan.shared_bytes() > half) plan.blocks = 1;
  const int limit = plan.blocks == 2 ? half : whole;
  if (plan.items < plan.blocks * multiprocessors() || plan.items > 0x3fffffff) return plan;  // too few items: step_rows starts faster
  while (plan.stages < kMaxStages && plan.shared_bytes() + plan.stage_bytes() + 8 <= limit) ++plan.stages;
  return plan;
}

// Whether the blocks of a cluster share a state: where they fit side by side, each takes whole vectors, and a single block would need
// several rounds of loads.
bool divides_states(const TaylorAttention& p, int features, int groups) {
  return runs_hopper_code() && p.head_dim % (4 * kParts) == 0 && features > kHeld * groups && features <= kHeldOfPart * groups &&
         kParts * p.rows * p.heads <= multiprocessors();
}

template <typename T, bool kSeveral>
auto* choose_rows(bool vectors, bool divided) {
  if constexpr (!kSeveral) {
    if (divided) return step_rows<T, 4, kParts, kHeldOfPart, false>;
  }
  return vectors ? step_rows<T, 4, 1, kHeld, kSeveral> : step_rows<T, 1, 1, kHeld, kSeveral>;
}

template <bool kSeveral>
Status launch_rows(const TaylorAttention& p, const RowTokens& tokens, Queue queue) {
  const int features = static_cast<int>(packed_features(p.feature_dim));
  const bool vectors = p.head_dim % 4 == 0 && aligned16(p.kv_state) && aligned16(tokens.kept_kv_state);
  if (p.head_dim > kThreads * (vectors ? 4 : 1)) return {"taylor_attention_step: head_dim is larger than 256"};
  const int columns = vectors ? p.head_dim / 4 : p.head_dim, groups = kThreads / columns;
  const int copied = kSeveral ? tokens.count * (2 * p.feature_dim + p.head_dim) * static_cast<int>(dtype_size(p.dtype)) : 0;
  const int bytes = (2 * features + 32 + groups * p.head_dim) * 4 + copied;
  const bool divided = !kSeveral && vectors && divides_states(p, features, groups);
  auto* kernel = p.dtype == DType::bf16 ? choose_rows<bf16, kSeveral>(vectors, divided) : choose_rows<float, kSeveral>(vectors, divided);
  if (const cudaError_t e = allow_shared_memory(kernel, bytes); e != cudaSuccess) return status_of(e);
  const unsigned blocks = divided ? kParts : 1;
  const Launch launch{dim3(static_cast<unsigned>(p.rows) * blocks, p.heads), kThreads, bytes, blocks};
  return launch_overlapped(kernel, launch, queue, p, features, tokens);
}

}  // namespace

Status taylor_attention_step(const TaylorAttention& p, Queue queue) {
  if (p.rows == 0) return {};
  const int features = static_cast<int>(packed_features(p.feature_dim));
  if (const Stream90 plan = plan_stream(p, features); plan.stages >= 2) {
    auto* streamed = p.dtype == DType::bf16 ? step_streamed<bf16> : step_streamed<float>;
    const int shared = plan.shared_bytes();
    if (const cudaError_t e = allow_shared_memory(streamed, shared); e != cudaSuccess) return status_of(e);
    const Launch launch{static_cast<unsigned>(plan.blocks * multiprocessors()), kThreads, shared};
    return launch_overlapped(streamed, launch, queue, p, plan);
  }
  return launch_rows<false>(p, {}, queue);
}

Status taylor_attention_tokens(const TaylorTokens& p, Queue queue) {
  if (p.step.tokens < 1 || p.step.tokens > kTaylorStepTokens) return {"taylor_attention_tokens: tokens must be 1 to 8"};
  return launch_rows<true>(p.step, {static_cast<int>(p.step.tokens), p.padding, p.kept_kv_state, p.kept_k_state}, queue);
}

}  // namespace based::kernels::cuda
