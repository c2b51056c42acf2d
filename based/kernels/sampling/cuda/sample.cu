// A block samples a row, which it copies to shared memory where it fits; the penalty is applied whenever a logit is read. Top-k and top-p
// keep the logits above a threshold, which is found without sorting: logits are mapped to integers of the same order, and the integer is
// determined bit by bit from the count (top-k) or the sum of probabilities (top-p) of the logits at or above it. With top-k, the largest
// logits of the threads give a lower bound of the threshold, and only the few logits above that bound are listed and searched. A short list
// is searched by one warp in registers: the time of a search step is that of a reduction, which for integers is one warp instruction.
#include "based/kernels/sampling/sampling.h"

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 1024;
constexpr uint32_t kNoToken = ~0U;

// Maps a float to an integer of the same order; −0 and 0 are equal, NaN is above all other values.
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
  if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {  // two elements an instruction
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

struct Options {  // the options of a row
  float temperature, top_p, min_p, penalty;
  int64_t top_k;
  uint64_t key;
  __device__ __forceinline__ Options(const Sample& p, int64_t row) : Options(p, row, p.options_row(row)) {}
  __device__ __forceinline__ Options(const Sample& p, int64_t row, int64_t at)
      : temperature(p.temperature[at]),
        top_p(p.top_p[at]),
        min_p(p.min_p[at]),
        penalty(p.penalty[at]),
        top_k(p.top_k[at]),
        key(sample_key(static_cast<uint64_t>(p.seed[at]), static_cast<uint64_t>(p.position[row]))) {}
  __device__ __forceinline__ bool keeps_top(int64_t vocab) const { return top_k > 0 && top_k < vocab; }
};

struct Best {  // the largest key and the smallest token that has it
  uint32_t key = 0, token = kNoToken;
  __device__ __forceinline__ void update(float score, uint32_t other) {
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
  const Best warp_best = best_of_warp(mine);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = warp_best;
  __syncthreads();
  return best_of_warp(shared[threadIdx.x % 32]);
}

// The largest key for which enough(key) is true, but at least `least`; determined bit by bit down to last_bit.
template <typename Enough>
__device__ __forceinline__ uint32_t largest_key(uint32_t least, int last_bit, const Enough& enough) {
  uint32_t key = 0;
  for (int bit = 31; bit >= last_bit; --bit) {
    const uint32_t higher = key | (1U << bit);
    if (higher <= least || enough(higher)) key = higher;
  }
  return max(key, least);
}

// Exclusive prefix sum over the threads of the block, and the total.
struct PrefixSum {
  int before, total;
};
__device__ __forceinline__ PrefixSum prefix_sum(int value) {
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
  const int warp_sum = warps[lane];
  return {up_to - value + __reduce_add_sync(~0U, lane < warp ? warp_sum : 0), __reduce_add_sync(~0U, warp_sum)};
}

// The logits of a row, read kCount at a time; they must be readable up to `vocab` rounded up to kCount.
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
  // The largest of the kCount logits at w, after the penalty.
  __device__ __forceinline__ float largest(int64_t w, const Elements<T, kCount>& unit) const {
    if (seen == nullptr) return largest_of(unit);
    float x[kCount];
    to_floats(unit, x), penalise(w, x);
    return largest_of(x);
  }
  // Calls body(token, logit) for the thread's logits. Groups of kCount logits that are all below `least` are skipped.
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

// A list of candidate logits of a row in shared memory.
constexpr int kMaxListed = 1792;  // so that two blocks of 50,304 bf16 logits fit on a multiprocessor
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

// Candidates that all threads of the block search.
template <typename Source>
struct BlockCandidates {
  const Source& source;
  float top, inverse_temperature;
  float* shared;

  template <typename Value>
  __device__ __forceinline__ float sum(uint32_t key, const Value& value) const {
    float mine = 0;
    source.each([&](uint32_t, float x) {
      if (ordered(x) >= key) mine += value(x);
    });
    const float all = sum_over_block(mine, shared);
    __syncthreads();
    return all;
  }
  // The number of candidates at or above the key, exact up to 2^24, and the sum of their exp((x − top)/temperature).
  __device__ __forceinline__ float count(uint32_t key) const {
    return sum(key, [](float) { return 1.0F; });
  }
  __device__ __forceinline__ float weight(uint32_t key) const {
    return sum(key, [&](float x) { return __expf((x - top) * inverse_temperature); });
  }
  template <typename Body>
  __device__ __forceinline__ void each(const Body& body) const {
    source.each(body);
  }
  static __device__ __forceinline__ Best best(const Best& mine) { return best_of_block(mine); }
};

// Candidates that one warp searches in registers. Weights are rounded to multiples of 2^-38, so that their sums are exact.
struct WarpCandidates {
  static constexpr int kMax = 256, kEach = kMax / 32;
  uint32_t key[kEach], token[kEach];
  uint64_t weights[kEach];

  __device__ __forceinline__ WarpCandidates(const List& list, float top, float inverse_temperature) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = 32 * i + static_cast<int>(threadIdx.x);
      const bool exists = at < list.count;
      const float x = exists ? list.logit[at] : -INFINITY;
      key[i] = exists ? ordered(x) : 0, token[i] = exists ? list.token[at] : kNoToken;
      weights[i] = __float2ull_rn(__expf((x - top) * inverse_temperature) * 0x1p38F);
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
    for (int i = 0; i < kEach; ++i) mine += key[i] >= least ? weights[i] : 0;
    constexpr int kBits = 21;  // a lane's sum fits into 2 · kBits bits
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

// Draws a token; returned to every thread that calls it.
template <typename Candidates>
__device__ __forceinline__ uint32_t draw(const Options& o, int64_t vocab, const Candidates& candidates, float top, int last_bit) {
  uint32_t least = 0;
  if (o.keeps_top(vocab)) {
    using Count = decltype(candidates.count(0));
    least = largest_key(0, last_bit, [&](uint32_t key) { return candidates.count(key) >= static_cast<Count>(o.top_k); });
  }
  if (o.min_p > 0) least = max(least, ordered(top + o.temperature * logf(o.min_p)));
  if (o.top_p < 1) {
    const auto enough = share_of(candidates.weight(least), o.top_p);
    least = largest_key(least, last_bit, [&](uint32_t key) { return candidates.weight(key) >= enough; });
  }
  Best drawn, most_likely;  // most_likely is the result where rounding leaves no candidate
  candidates.each([&](uint32_t w, float x) {
    most_likely.update(x, w);
    if (ordered(x) < least || isinf(x)) return;
    drawn.update((x - top) / o.temperature + sample_gumbel(sample_bits(o.key, w)), w);
  });
  drawn = candidates.best(drawn);
  return drawn.token != kNoToken ? drawn.token : candidates.best(most_likely).token;
}

// Lists the logits with a key of at least `key`, in the order of the threads that read them. Returns false if there are too many.
template <typename Source>
__device__ __forceinline__ bool list_above(const Source& source, uint32_t key, List& list) {
  __shared__ float logits[kMaxListed];
  __shared__ uint32_t tokens[kMaxListed];
  int mine = 0;
  source.each([&](uint32_t, float x) { mine += ordered(x) >= key; }, value_of(key));
  const PrefixSum sum = prefix_sum(mine);
  if (sum.total > kMaxListed) return false;
  int at = sum.before;
  if (mine > 0) {
    const auto add = [&](uint32_t w, float x) {
      if (ordered(x) >= key) logits[at] = x, tokens[at++] = w;
    };
    source.each(add, value_of(key));
  }
  __syncthreads();
  list = {logits, tokens, sum.total};
  return true;
}

// Returns the largest logit of this thread, or NaN if it has one. Where kCount > 1 it also copies the row to `copy`.
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

// Writes the marks of a row of consecutive tokens: those before the step, and the drafts before this row.
__device__ __forceinline__ void copy_marks(const Sample& p, int64_t row, uint32_t* marks) {
  for (int64_t w = threadIdx.x; w < sample_seen_words(p.vocab); w += kThreads) {
    uint32_t word = p.seen_before[w];
    for (int64_t i = 0; i < row; ++i)
      if (p.drafts[i] / 32 == w) word |= uint32_t{1} << (p.drafts[i] % 32);
    marks[w] = word;
  }
  __syncthreads();
}

// With kCount 1 the row is read from global memory each time. kBlocks: blocks of a multiprocessor. Two need registers that the search of a
// list spills, but of more rows than multiprocessors one block's latencies overlap with the other's.
template <typename T, int kCount, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) sample_rows(const __grid_constant__ Sample p) {
  extern __shared__ __align__(16) unsigned char row_memory[];
  __shared__ float shared[32];
  overlap_kernels();
  const int64_t row = blockIdx.x;
  const Options o(p, row);
  const T* logits = static_cast<const T*>(p.logits) + row * p.logits_stride;
  T* copy = reinterpret_cast<T*>(row_memory);
  uint32_t* marks = p.seen + row * sample_seen_words(p.vocab);
  if (p.seen_before != nullptr) copy_marks(p, row, marks);
  const Row<T, kCount> all{kCount > 1 ? copy : logits, p.vocab, o.penalty, o.penalty == 1 ? nullptr : marks};
  const float mine = read_row(logits, copy, all);
  const float top = value_of(best_of_block({ordered(mine), kNoToken}).key);
  const int last_bit = sizeof(T) == 2 && o.penalty == 1 ? 16 : 0;  // the lower bits of a bf16's key carry no information
  uint32_t token = kNoToken;                                       // valid in thread 0
  List list{};
  if (!isfinite(top)) {
    if (threadIdx.x == 0) p.token[row] = -1;
    return;
  }
  if (o.temperature == 0) {
    Best best;
    if (mine == top) all.each([&](uint32_t w, float x) { best.update(x, w); }, top);
    token = best_of_block(best).token;
  } else if (o.keeps_top(p.vocab) && o.top_k <= kThreads &&
             list_above(all, largest_key(0, last_bit, [&](uint32_t key) { return __syncthreads_count(ordered(mine) >= key) >= o.top_k; }),
                        list)) {
    if (list.count > WarpCandidates::kMax) {
      token = draw(o, p.vocab, BlockCandidates<List>{list, top, 1 / o.temperature, shared}, top, last_bit);
    } else if (threadIdx.x < 32) {
      token = draw(o, p.vocab, WarpCandidates(list, top, 1 / o.temperature), top, last_bit);
    }
  } else {
    token = draw(o, p.vocab, BlockCandidates<Row<T, kCount>>{all, top, 1 / o.temperature, shared}, top, last_bit);
  }
  if (threadIdx.x != 0) return;
  p.token[row] = token;
  sample_set_seen(marks, token);
}

template <typename T>
Status launch_sample(const Sample& p, Queue queue) {
  constexpr int kCount = 16 / sizeof(T);
  const int64_t bytes = round_up(p.vocab, kCount) * static_cast<int64_t>(sizeof(T));
  constexpr int kListBytes = 8 * kMaxListed, kOtherBytes = 512 + 1024;  // other: warps' sums, and the system's reserve
  const bool fits = bytes <= block_shared_memory() - kListBytes - 2048;
  const bool pairs = p.rows > multiprocessors() && 2 * (bytes + kListBytes + kOtherBytes) <= multiprocessor_shared_memory();
  auto* kernel = pairs ? sample_rows<T, kCount, 2> : fits ? sample_rows<T, kCount, 1> : sample_rows<T, 1, 1>;
  const int shared = fits ? static_cast<int>(bytes) : 0;
  if (const cudaError_t e = allow_shared_memory(kernel, shared); e != cudaSuccess) return status_of(e);
  return launch_overlapped(kernel, {static_cast<unsigned>(p.rows), kThreads, shared}, queue, p);
}

}  // namespace

Status sample(const Sample& p, Queue queue) {
  if (p.rows == 0) return {};
  if (p.vocab > INT32_MAX) return {"sample: more than 2^31 - 1 tokens to draw from"};
  return p.dtype == DType::bf16 ? launch_sample<bf16>(p, queue) : launch_sample<float>(p, queue);
}

namespace {
const DefineLaunchers<SampleLaunchers> kLaunchers(Device::cuda, {.sample = sample});
}

}  // namespace based::kernels::cuda
