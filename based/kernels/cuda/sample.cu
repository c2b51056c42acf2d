// A block a row, which lies in shared memory where it fits; seen tokens are penalised as they are read. The kept logits are those above a
// threshold, and a threshold is found without sorting: logits are mapped to integers of the same order, and the integer is built bit by bit
// from counts (top-k) or sums of probabilities (top-p) of what lies above it. With top-k the threads' own largest logits bound it from
// below, and the few logits above that bound are all that is looked at from then on, by one warp, in registers, if there are very few: what
// a step of that search takes is the time to agree on a sum, which one instruction does for integers.
#include "based/kernels/sample.h"

#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 1024;
constexpr uint32_t kNoToken = ~0U;

// A float's bits as an integer of the same order; zeros are equal, NaN is above all else.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0F);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float value_of(uint32_t key) { return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffU : ~key); }
__device__ __forceinline__ float max_or_nan(float a, float b) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}

template <typename T, int kCount>
__device__ __forceinline__ void to_floats(const Elements<T, kCount>& unit, float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = to_float(unit.x[i]);
}
template <int kCount>
__device__ __forceinline__ float largest_of(const float (&x)[kCount]) {
  float most = x[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) most = max_or_nan(most, x[i]);
  return most;
}
template <typename T, int kCount>
__device__ __forceinline__ float largest_of(const Elements<T, kCount>& unit) {
  if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {  // two at a time
    uint32_t pair[kCount / 2];
    memcpy(pair, &unit, sizeof pair);
#pragma unroll
    for (int i = 1; i < kCount / 2; ++i) asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(pair[0]) : "r"(pair[i]));
    return max_or_nan(low_float(pair[0]), high_float(pair[0]));
  } else {
    float x[kCount];
    to_floats(unit, x);
    return largest_of(x);
  }
}

struct Options {  // of a row, all loaded at once
  float temperature, top_p, min_p, penalty;
  int64_t top_k;
  uint64_t key;
  __device__ __forceinline__ Options(const Sample& p, int64_t row)
      : temperature(p.temperature[row]),
        top_p(p.top_p[row]),
        min_p(p.min_p[row]),
        penalty(p.penalty[row]),
        top_k(p.top_k[row]),
        key(sample_key(static_cast<uint64_t>(p.seed[row]), static_cast<uint64_t>(p.position[row]))) {}
  __device__ __forceinline__ bool keeps_top(int64_t vocab) const { return top_k > 0 && top_k < vocab; }
};

struct Best {  // the smallest token of the largest key
  uint32_t key = 0, token = kNoToken;
  __device__ __forceinline__ void take(float score, uint32_t other) {
    const uint32_t k = ordered(score);
    if (k > key || (k == key && other < token)) key = k, token = other;
  }
};

__device__ __forceinline__ Best best_of_warp(const Best& mine) {
  const uint32_t key = __reduce_max_sync(~0U, mine.key);
  return {key, __reduce_min_sync(~0U, mine.key == key ? mine.token : kNoToken)};
}
__device__ __forceinline__ Best best_of_block(const Best& mine) {
  __shared__ Best shared[kThreads / 32];
  const Best of_warp = best_of_warp(mine);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = of_warp;
  __syncthreads();
  return best_of_warp(shared[threadIdx.x % 32]);
}

// The largest key, at least `least` and without its bits below last_bit, for which `enough` lies at or above it.
template <typename Enough>
__device__ __forceinline__ uint32_t largest_key(uint32_t least, int last_bit, const Enough& enough) {
  uint32_t key = 0;
  for (int bit = 31; bit >= last_bit; --bit) {
    const uint32_t higher = key | (1U << bit);
    if (higher <= least || enough(higher)) key = higher;
  }
  return max(key, least);
}

// The sum of the values of the threads before this one, and of all.
struct Before {
  int mine, all;
};
__device__ __forceinline__ Before sum_of_threads_before(int value) {
  __shared__ int warps[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x / 32);
  int up_to = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(~0U, up_to, distance);
    if (lane >= distance) up_to += other;
  }
  if (lane == 31) warps[warp] = up_to;
  __syncthreads();
  const int of_warp = warps[lane];
  return {up_to - value + __reduce_add_sync(~0U, lane < warp ? of_warp : 0), __reduce_add_sync(~0U, of_warp)};
}

// kCount logits are read at a time, of `vocab` rounded up to that.
template <typename T, int kCount>
struct Row {
  const T* logits;
  int64_t vocab;
  float penalty;
  const uint32_t* seen;  // null: no penalty

  __device__ __forceinline__ void penalise(int64_t w, float (&x)[kCount]) const {
    if (seen == nullptr) return;
    const uint32_t marks = seen[w / 32] >> (w % 32);  // kCount divides 32
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if ((marks >> i & 1) != 0) x[i] = sample_penalised(x[i], penalty);
    }
  }
  // Of the logits read at w.
  __device__ __forceinline__ float largest(int64_t w, const Elements<T, kCount>& unit) const {
    if (seen == nullptr) return largest_of(unit);
    float x[kCount];
    to_floats(unit, x), penalise(w, x);
    return largest_of(x);
  }
  // body(token, logit) of all, or where there is a logit of at least `least` among those read at a time.
  template <typename Body>
  __device__ __forceinline__ void each(const Body& body, float least = -INFINITY) const {
    for (int64_t w = threadIdx.x * kCount; w < vocab; w += kThreads * kCount) {
      const auto unit = *reinterpret_cast<const Elements<T, kCount>*>(logits + w);
      if (largest(w, unit) < least) continue;
      float x[kCount];
      to_floats(unit, x), penalise(w, x);
#pragma unroll
      for (int i = 0; i < kCount; ++i) body(static_cast<uint32_t>(w) + i, x[i]);
    }
  }
};

// Some logits of a row, those that count.
constexpr int kMostListed = 2048;
struct List {
  const float* logit;
  const uint32_t* token;
  int count;
  template <typename Body>
  __device__ __forceinline__ void each(const Body& body) const {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) body(token[i], logit[i]);
  }
};

__device__ __forceinline__ float share_of(float whole, float share) { return whole * share; }
__device__ __forceinline__ uint64_t share_of(uint64_t whole, float share) {
  return static_cast<uint64_t>(ceil(static_cast<double>(whole) * static_cast<double>(share)));
}

// What may be drawn, by all threads of the block.
template <typename Source>
struct OfBlock {
  const Source& from;
  float top, inverse_temperature;
  float* shared;

  template <typename Value>
  __device__ __forceinline__ float sum(uint32_t key, const Value& value) const {
    float mine = 0;
    from.each([&](uint32_t, float x) {
      if (ordered(x) >= key) mine += value(x);
    });
    const float all = sum_over_block(mine, shared);
    __syncthreads();
    return all;
  }
  // How many there are from this key on, exact up to 2^24; and the sum of their exp((x − top)/temperature).
  __device__ __forceinline__ float count(uint32_t key) const {
    return sum(key, [](float) { return 1.0F; });
  }
  __device__ __forceinline__ float weight(uint32_t key) const {
    return sum(key, [&](float x) { return __expf((x - top) * inverse_temperature); });
  }
  template <typename Body>
  __device__ __forceinline__ void each(const Body& body) const {
    from.each(body);
  }
  static __device__ __forceinline__ Best best(const Best& mine) { return best_of_block(mine); }
};

// The same by one warp. Weights are multiples of 2^-38, so that their sums are exact.
struct OfWarp {
  static constexpr int kMost = 256, kEach = kMost / 32;
  uint32_t key[kEach], token[kEach];
  uint64_t of_key[kEach];

  __device__ __forceinline__ OfWarp(const List& list, float top, float inverse_temperature) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = 32 * i + static_cast<int>(threadIdx.x);
      const bool exists = at < list.count;
      const float x = exists ? list.logit[at] : -INFINITY;
      key[i] = exists ? ordered(x) : 0, token[i] = exists ? list.token[at] : kNoToken;
      of_key[i] = __float2ull_rn(__expf((x - top) * inverse_temperature) * 0x1p38F);
    }
  }
  __device__ __forceinline__ uint32_t count(uint32_t least) const {
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) mine += key[i] >= least;
    return __reduce_add_sync(~0U, mine);
  }
  __device__ __forceinline__ uint64_t weight(uint32_t least) const {
    uint64_t mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) mine += key[i] >= least ? of_key[i] : 0;
    constexpr int kBits = 21;  // twice as many hold the sum of a lane
    const uint32_t low = __reduce_add_sync(~0U, static_cast<uint32_t>(mine) & ((1U << kBits) - 1));
    return (uint64_t{__reduce_add_sync(~0U, static_cast<uint32_t>(mine >> kBits))} << kBits) + low;
  }
  template <typename Body>
  __device__ __forceinline__ void each(const Body& body) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (key[i] != 0) body(token[i], value_of(key[i]));
    }
  }
  static __device__ __forceinline__ Best best(const Best& mine) { return best_of_warp(mine); }
};

// The token drawn, of every thread that takes part.
template <typename Candidates>
__device__ __forceinline__ uint32_t draw(const Options& o, int64_t vocab, const Candidates& of, float top, int last_bit) {
  uint32_t least = 0;
  if (o.keeps_top(vocab)) {
    using Count = decltype(of.count(0));
    least = largest_key(0, last_bit, [&](uint32_t key) { return of.count(key) >= static_cast<Count>(o.top_k); });
  }
  if (o.min_p > 0) least = max(least, ordered(top + o.temperature * logf(o.min_p)));
  if (o.top_p < 1) {
    const auto enough = share_of(of.weight(least), o.top_p);
    least = largest_key(least, last_bit, [&](uint32_t key) { return of.weight(key) >= enough; });
  }
  Best drawn, most_likely;  // of these where rounding left none
  of.each([&](uint32_t w, float x) {
    most_likely.take(x, w);
    if (ordered(x) < least || isinf(x)) return;
    drawn.take((x - top) / o.temperature + sample_gumbel(sample_bits(o.key, w)), w);
  });
  drawn = of.best(drawn);
  return drawn.token != kNoToken ? drawn.token : of.best(most_likely).token;
}

// The logits that are at least `key` in order, in the order of the threads that read them; false where they are too many.
template <typename Source>
__device__ __forceinline__ bool list_above(const Source& from, uint32_t key, List& list) {
  __shared__ float logits[kMostListed];
  __shared__ uint32_t tokens[kMostListed];
  int mine = 0;
  from.each([&](uint32_t, float x) { mine += ordered(x) >= key; }, value_of(key));
  const Before sum = sum_of_threads_before(mine);
  if (sum.all > kMostListed) return false;
  int at = sum.mine;
  if (mine > 0) {
    const auto add = [&](uint32_t w, float x) {
      if (ordered(x) >= key) logits[at] = x, tokens[at++] = w;
    };
    from.each(add, value_of(key));
  }
  __syncthreads();
  list = {logits, tokens, sum.all};
  return true;
}

// The largest logit of this thread, NaN if it has one. The row is copied to `copy` on the way where kCount > 1.
template <typename T, int kCount>
__device__ __forceinline__ float read_row(const T* logits, T* copy, const Row<T, kCount>& row) {
  const bool whole_units = reinterpret_cast<uintptr_t>(logits) % (kCount * sizeof(T)) == 0;
  float most = -INFINITY;
#pragma unroll 8
  for (int64_t w = threadIdx.x * kCount; w < row.vocab; w += kThreads * kCount) {
    Elements<T, kCount> unit;
    if (whole_units && w + kCount <= row.vocab) {
      unit = *reinterpret_cast<const Elements<T, kCount>*>(logits + w);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) unit.x[i] = w + i < row.vocab ? logits[w + i] : from_float<T>(-INFINITY);
    }
    if constexpr (kCount > 1) *reinterpret_cast<Elements<T, kCount>*>(copy + w) = unit;
    most = max_or_nan(most, row.largest(w, unit));
  }
  return most;
}

// kCount 1: the row is read where it lies.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads) sample_rows(const __grid_constant__ Sample p) {
  extern __shared__ __align__(16) unsigned char row_memory[];
  __shared__ float shared[32];
  overlap_kernels();
  const int64_t row = blockIdx.x;
  const Options o(p, row);
  const T* logits = static_cast<const T*>(p.logits) + row * p.logits_stride;
  T* copy = reinterpret_cast<T*>(row_memory);
  uint32_t* marks = p.seen + row * sample_seen_words(p.vocab);
  const Row<T, kCount> all{kCount > 1 ? copy : logits, p.vocab, o.penalty, o.penalty == 1 ? nullptr : marks};
  const float mine = read_row(logits, copy, all);
  const float top = value_of(best_of_block({ordered(mine), kNoToken}).key);
  const int last_bit = sizeof(T) == 2 && o.penalty == 1 ? 16 : 0;  // a bf16's other bits tell nothing
  uint32_t token = kNoToken;                                       // of thread 0
  List list{};
  if (!isfinite(top)) {
    if (threadIdx.x == 0) p.token[row] = -1;
    return;
  }
  if (o.temperature == 0) {
    Best best;
    if (mine == top) all.each([&](uint32_t w, float x) { best.take(x, w); }, top);
    token = best_of_block(best).token;
  } else if (o.keeps_top(p.vocab) && o.top_k <= kThreads &&
             list_above(all, largest_key(0, last_bit, [&](uint32_t key) { return __syncthreads_count(ordered(mine) >= key) >= o.top_k; }),
                        list)) {
    if (list.count > OfWarp::kMost) {
      token = draw(o, p.vocab, OfBlock<List>{list, top, 1 / o.temperature, shared}, top, last_bit);
    } else if (threadIdx.x < 32) {
      token = draw(o, p.vocab, OfWarp(list, top, 1 / o.temperature), top, last_bit);
    }
  } else {
    token = draw(o, p.vocab, OfBlock<Row<T, kCount>>{all, top, 1 / o.temperature, shared}, top, last_bit);
  }
  if (threadIdx.x != 0) return;
  p.token[row] = token;
  sample_set_seen(marks, token);
}

template <typename T>
Status launch_sample(const Sample& p, Stream stream) {
  constexpr int kCount = 16 / sizeof(T);
  const int64_t bytes = round_up(p.vocab, kCount) * static_cast<int64_t>(sizeof(T));
  const bool fits = bytes <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 8 * kMostListed - 2048;
  auto* kernel = fits ? sample_rows<T, kCount> : sample_rows<T, 1>;
  const int shared = fits ? static_cast<int>(bytes) : 0;
  if (const cudaError_t e = allow_shared_memory(kernel, shared); e != cudaSuccess) return status_of(e);
  return launch_overlapped(kernel, {static_cast<unsigned>(p.rows), kThreads, shared}, stream, p);
}

}  // namespace

Status sample(const Sample& p, Stream stream) {
  if (p.rows == 0) return {};
  if (p.vocab > INT32_MAX) return {"sample: more than 2^31 - 1 tokens to draw from"};
  return p.dtype == DType::bf16 ? launch_sample<bf16>(p, stream) : launch_sample<float>(p, stream);
}

}  // namespace based::kernels::cuda
