// A block samples a row, which it copies to shared memory where it fits; the penalty is applied whenever a logit is read. Top-k and top-p
// keep the logits above a threshold. With top-k, the largest logits of the threads give a lower bound of the threshold, and only the few
// logits above that bound are listed. Each logit of a short list is compared with all others at once: it is kept if few enough are larger,
// and if these have little enough probability. Without such a list the threshold is searched: logits are mapped to integers of the same
// order, and the integer is determined bit by bit from the count (top-k) or the sum of probabilities (top-p) of the logits at or above it.
#include <algorithm>
#include <cfloat>

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
// The smallest finite logit with at least this key. As a lower bound it leaves out -inf, which is never drawn.
__device__ __forceinline__ float least_finite(uint32_t key) { return value_of(max(key, ordered(-FLT_MAX))); }
__device__ __forceinline__ float max_or_nan(float a, float b) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}

// The larger of each two elements, NaN where one is NaN.
template <typename T, int kCount>
__device__ __forceinline__ Elements<T, kCount> larger_of(const Elements<T, kCount>& a, const Elements<T, kCount>& b) {
  Elements<T, kCount> most;
  if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {  // two elements an instruction
    uint32_t x[kCount / 2], y[kCount / 2];
    memcpy(x, &a, sizeof x), memcpy(y, &b, sizeof y);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(x[i]) : "r"(y[i]));
    memcpy(&most, x, sizeof x);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) most.x[i] = from_float<T>(max_or_nan(to_float(a.x[i]), to_float(b.x[i])));
  }
  return most;
}
template <typename T, int kCount>
__device__ __forceinline__ float largest_of(const Elements<T, kCount>& unit) {
  if constexpr (kCount > 1) {
    Elements<T, kCount / 2> low, high;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) low.x[i] = unit.x[i], high.x[i] = unit.x[kCount / 2 + i];
    return largest_of(larger_of(low, high));
  } else {
    return to_float(unit.x[0]);
  }
}

// The options of a row. Values derived from them are computed at their use, since computing them here would wait for the loads.
struct Options {
  float temperature, top_p, min_p, penalty;
  int64_t top_k;
  uint64_t seed, position;
  __device__ __forceinline__ Options(const Sample& p, int64_t row, int64_t at)
      : temperature(p.temperature[at]),
        top_p(p.top_p[at]),
        min_p(p.min_p[at]),
        penalty(p.penalty[at]),
        top_k(p.top_k[at]),
        seed(static_cast<uint64_t>(p.seed[at])),
        position(static_cast<uint64_t>(p.position[row])) {}
  __device__ __forceinline__ bool keeps_top(int64_t vocab) const { return top_k > 0 && top_k < vocab; }
  __device__ __forceinline__ float gumbel(uint32_t token) const { return sample_gumbel(sample_bits(sample_key(seed, position), token)); }
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
  int vocab;
  float penalty;
  const uint32_t* seen;  // null: no penalty

  __device__ __forceinline__ Elements<T, kCount> unit(int w) const { return *reinterpret_cast<const Elements<T, kCount>*>(logits + w); }
  __device__ __forceinline__ float at(int w) const {
    const float x = to_float(logits[w]);
    return seen != nullptr && sample_is_seen(seen, w) ? sample_penalised(x, penalty) : x;
  }
  // The largest of the kCount logits at w after the penalty. The loop is not unrolled, since few rows have a penalty.
  __device__ __forceinline__ float largest_penalised(int w) const {
    float most = -INFINITY;
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) most = max_or_nan(most, at(w + i));
    return most;
  }
  // Calls body(token, logit) for the thread's logits.
  template <typename Body>
  __device__ __forceinline__ void each(const Body& body) const {
    for (int w = threadIdx.x * kCount; w < vocab; w += kThreads * kCount) {
      const auto x = unit(w);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool penalised = seen != nullptr && sample_is_seen(seen, w + i);
        body(static_cast<uint32_t>(w) + i, penalised ? sample_penalised(to_float(x.x[i]), penalty) : to_float(x.x[i]));
      }
    }
  }
  // Calls body(token) for those of the thread's logits that are at least `least`, which is finite. Few are: the body is in the code once.
  template <typename Body>
  __device__ __forceinline__ void each_above(float least, const Body& body) const {
    constexpr int kBatch = 8, kStride = kThreads * kCount;
    for (int start = threadIdx.x * kCount; start < vocab; start += kBatch * kStride) {
      uint32_t units = 0;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int w = start + i * kStride;
        if (w < vocab && (seen == nullptr ? largest_of(unit(w)) : largest_penalised(w)) >= least) units |= 1U << i;
      }
      for (; units != 0; units &= units - 1) {
        const int w = start + (__ffs(static_cast<int>(units)) - 1) * kStride;
        const auto x = unit(w);
        uint32_t above = 0;
#pragma unroll
        for (int i = 0; i < kCount; ++i) above |= static_cast<uint32_t>(to_float(x.x[i]) >= least) << i;
        if (seen != nullptr) {
          above = 0;
#pragma unroll 1
          for (int i = 0; i < kCount; ++i) above |= static_cast<uint32_t>(at(w + i) >= least) << i;
        }
        for (; above != 0; above &= above - 1) body(static_cast<uint32_t>(w + __ffs(static_cast<int>(above)) - 1));
      }
    }
  }
};

// A list of candidate logits of a row in shared memory.
struct List {
  static constexpr int kMax = 1792;  // so that two blocks of 50,304 bf16 logits fit on a multiprocessor
  float logit[kMax];
  uint32_t token[kMax];
  int count;
  template <typename Body>
  __device__ __forceinline__ void each(const Body& body) const {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) body(token[i], logit[i]);
  }
};

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
};

// Draws a token; returned to every thread.
template <typename Source>
__device__ __forceinline__ uint32_t draw(const Options& o, int64_t vocab, const BlockCandidates<Source>& candidates, int last_bit) {
  const float top = candidates.top;
  uint32_t least = 0;
  if (o.keeps_top(vocab)) {
    least = largest_key(0, last_bit, [&](uint32_t key) { return candidates.count(key) >= static_cast<float>(o.top_k); });
  }
  if (o.min_p > 0) least = max(least, ordered(top + o.temperature * logf(o.min_p)));
  if (o.top_p < 1) {
    const float enough = candidates.weight(least) * o.top_p;
    least = largest_key(least, last_bit, [&](uint32_t key) { return candidates.weight(key) >= enough; });
  }
  Best drawn, most_likely;  // most_likely is the result where rounding leaves no candidate
  candidates.source.each([&](uint32_t w, float x) {
    most_likely.update(x, w);
    if (ordered(x) < least || isinf(x)) return;
    drawn.update((x - top) / o.temperature + o.gumbel(w), w);
  });
  drawn = best_of_block(drawn);
  return drawn.token != kNoToken ? drawn.token : best_of_block(most_likely).token;
}

// Lists the logits with a key of at least `key`, in the order of the threads that read them. Returns false if there are too many.
template <typename Source>
__device__ __forceinline__ bool list_above(const Source& source, uint32_t key, List& list) {
  int mine = 0;
  source.each_above(least_finite(key), [&](uint32_t) { ++mine; });
  const PrefixSum sum = prefix_sum(mine);
  if (sum.total > List::kMax) return false;
  int at = sum.before;
  if (mine > 0) source.each_above(least_finite(key), [&](uint32_t w) { list.logit[at] = source.at(w), list.token[at++] = w; });
  if (threadIdx.x == 0) list.count = sum.total;
  __syncthreads();
  return true;
}

// The k-th largest key of the threads, k <= kThreads.
__device__ __forceinline__ uint32_t kth_key_of_threads(uint32_t mine, int64_t k, int last_bit) {
  return largest_key(0, last_bit, [&](uint32_t key) { return __syncthreads_count(mine >= key) >= k; });
}

// A short list in shared memory, each candidate of which is compared with all others at once. Weights are rounded to multiples of 2^-38, so
// that their sums are exact in any order.
struct ShortList {
  static constexpr int kMax = 128, kThreadsPerCandidate = 4, kComparingThreads = kMax * kThreadsPerCandidate;
  static constexpr int kGroups = 128, kThreadsPerGroup = kThreads / kGroups, kMaxTopK = kGroups / 2;
  static constexpr uint64_t kExcluded = ~uint64_t{0};
  alignas(16) uint32_t group[kGroups];  // a group's largest key, its last bits replaced by the group's index, so that none are equal
  uint32_t key[kMax], token[kMax];
  float score[kMax];
  uint64_t weight[kMax];
  uint64_t larger[kMax];  // the sum of the weights of larger candidates, or kExcluded by top-k or min-p
  int count;
  uint32_t least;

  // Clears the list and computes the keys of the groups, which other threads may read after a barrier.
  __device__ __forceinline__ void set_groups(uint32_t key_of_thread) {
    const uint32_t index = threadIdx.x / kThreadsPerGroup;
    uint32_t most = key_of_thread;
#pragma unroll
    for (int distance = 1; distance < kThreadsPerGroup; distance *= 2) most = max(most, __shfl_xor_sync(~0U, most, distance));
    group[index] = most / kGroups * kGroups + index, count = 0;
  }
  // Lists the logits that are at least the k-th largest group key, rounded down: the k largest logits and a few more. Needs k <= kMaxTopK
  // and a barrier after set_groups(). `mine` is the largest logit of the thread. Returns false if there are too many.
  template <typename Source>
  __device__ __forceinline__ bool fill(const Source& source, float mine, int64_t k) {
    const uint4* quads = reinterpret_cast<const uint4*>(group);
    const uint32_t group_key = group[threadIdx.x / kThreadsPerGroup];
    int above = 0;
#pragma unroll
    for (int i = 0; i < kGroups / 4 / kThreadsPerGroup; ++i) {
      const uint4 other = quads[i * kThreadsPerGroup + threadIdx.x % kThreadsPerGroup];
      above += (other.x > group_key) + (other.y > group_key) + (other.z > group_key) + (other.w > group_key);
    }
#pragma unroll
    for (int distance = 1; distance < kThreadsPerGroup; distance *= 2) above += __shfl_xor_sync(~0U, above, distance);
    if (above == k - 1) least = group_key / kGroups * kGroups;
    __syncthreads();
    const float bound = least_finite(least);
    if (mine >= bound) {
      source.each_above(bound, [&](uint32_t w) {
        if (const int at = atomicAdd(&count, 1); at < kMax) token[at] = w;
      });
    }
    __syncthreads();
    return count <= kMax;
  }

  // Draws a token; returned to the first warp. Half of the threads compare candidates while others compute their scores.
  template <typename Source>
  __device__ __forceinline__ uint32_t draw(const Source& source, const Options& o, float top) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kComparingThreads) {
      compare(source, o, top);
    } else if (const int i = thread - kComparingThreads; i < count) {
      score[i] = (source.at(token[i]) - top) / o.temperature + o.gumbel(token[i]);
    }
    __syncthreads();
    if (thread >= 32) return kNoToken;
    uint64_t larger_weight[kMax / 32], whole = 0;
#pragma unroll
    for (int i = 0; i < kMax / 32; ++i) {
      const int at = 32 * i + thread;
      larger_weight[i] = at < count ? larger[at] : kExcluded;
      whole += larger_weight[i] != kExcluded ? weight[at] : 0;
    }
    const double share = static_cast<double>(sum_over_warp(whole)) * static_cast<double>(o.top_p);
    const uint64_t enough = o.top_p < 1 ? static_cast<uint64_t>(ceil(share)) : kExcluded;
    Best drawn;
#pragma unroll
    for (int i = 0; i < kMax / 32; ++i) {
      if (larger_weight[i] < enough) drawn.update(score[32 * i + thread], token[32 * i + thread]);
    }
    drawn = best_of_warp(drawn);
    if (drawn.token != kNoToken) return drawn.token;
    Best most_likely;  // the result where rounding leaves no candidate
    for (int at = thread; at < count; at += 32) most_likely.update(value_of(key[at]), token[at]);
    return best_of_warp(most_likely).token;
  }

 private:
  // Computes the candidates' weights, and of each the number and the weight of those that are larger.
  template <typename Source>
  __device__ __forceinline__ void compare(const Source& source, const Options& o, float top) {
    const int thread = static_cast<int>(threadIdx.x), i = thread / kThreadsPerCandidate;
    if (thread < count) {
      const float x = source.at(token[thread]);
      key[thread] = ordered(x), weight[thread] = __float2ull_rn(__expf((x - top) * (1 / o.temperature)) * 0x1p38F);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kComparingThreads) : "memory");  // the other threads compute scores meanwhile
    const uint32_t my_key = key[i];
    const int others = i < count ? count : 0;
    uint64_t larger_weight = 0;
    int larger_count = 0;
#pragma unroll 4
    for (int j = thread % kThreadsPerCandidate; j < others; j += kThreadsPerCandidate) {
      const bool is_larger = key[j] > my_key;
      larger_count += is_larger, larger_weight += is_larger ? weight[j] : 0;
    }
#pragma unroll
    for (int distance = 1; distance < kThreadsPerCandidate; distance *= 2) {
      larger_count += __shfl_xor_sync(~0U, larger_count, distance);
      larger_weight += __shfl_xor_sync(~0U, larger_weight, distance);
    }
    if (thread % kThreadsPerCandidate != 0 || i >= count) return;
    const bool kept = larger_count < o.top_k && (o.min_p <= 0 || my_key >= ordered(top + o.temperature * logf(o.min_p)));
    larger[i] = kept ? larger_weight : kExcluded;
  }
  static __device__ __forceinline__ uint64_t sum_over_warp(uint64_t mine) {
    constexpr int kBits = 21;  // a lane's sum fits into 2 · kBits bits
    const uint32_t low = __reduce_add_sync(~0U, static_cast<uint32_t>(mine) & ((1U << kBits) - 1));
    return (uint64_t{__reduce_add_sync(~0U, static_cast<uint32_t>(mine >> kBits))} << kBits) + low;
  }
};

// Returns the largest logit of this thread, or NaN if it has one. Where kCount > 1 it also copies the row to `copy`. kBatch units are
// requested at once.
template <typename T, int kCount, int kBatch>
__device__ __forceinline__ float read_row(const T* logits, T* copy, const Row<T, kCount>& row) {
  constexpr int kStride = kThreads * kCount;
  const bool aligned = reinterpret_cast<uintptr_t>(logits) % (kCount * sizeof(T)) == 0;
  const int whole = aligned ? row.vocab / kCount * kCount : 0;  // logits that are read in units
  Elements<T, kCount> most;
#pragma unroll
  for (int i = 0; i < kCount; ++i) most.x[i] = from_float<T>(-INFINITY);
  float most_penalised = -INFINITY;
  const auto take = [&](int w, const Elements<T, kCount>& unit) {
    if constexpr (kCount > 1) *reinterpret_cast<Elements<T, kCount>*>(copy + w) = unit;
    if (row.seen == nullptr) {
      most = larger_of(most, unit);
    } else {
      most_penalised = max_or_nan(most_penalised, row.largest_penalised(w));
    }
  };
  for (int start = threadIdx.x * kCount; start < whole; start += kBatch * kStride) {
    Elements<T, kCount> units[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (const int w = start + i * kStride; w < whole) units[i] = *reinterpret_cast<const Elements<T, kCount>*>(logits + w);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (start + i * kStride < whole) take(start + i * kStride, units[i]);
    }
  }
  for (int w = whole / kStride * kStride + threadIdx.x * kCount; w < row.vocab; w += kStride) {  // each thread's own units, as in each()
    if (w < whole) continue;
    Elements<T, kCount> unit;
#pragma unroll
    for (int i = 0; i < kCount; ++i) unit.x[i] = w + i < row.vocab ? logits[w + i] : from_float<T>(-INFINITY);
    take(w, unit);
  }
  return max_or_nan(most_penalised, largest_of(most));
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

// With kCount 1 the row is read from global memory each time. kBlocks: blocks of a multiprocessor. Two have few registers, but of more rows
// than multiprocessors one block's latencies overlap with the other's.
template <typename T, int kCount, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) sample_rows(const __grid_constant__ Sample p) {
  extern __shared__ __align__(16) unsigned char row_memory[];
  __shared__ float shared[32];
  __shared__ __align__(16) unsigned char list_memory[std::max(sizeof(List), sizeof(ShortList))];
  List& list = *reinterpret_cast<List*>(list_memory);
  ShortList& short_list = *reinterpret_cast<ShortList*>(list_memory);
  overlap_kernels();
  const int64_t row = blockIdx.x;
  const Options o(p, row, p.options_row(row));
  const T* logits = static_cast<const T*>(p.logits) + row * p.logits_stride;
  T* copy = reinterpret_cast<T*>(row_memory);
  uint32_t* marks = p.seen + row * sample_seen_words(p.vocab);
  if (p.seen_before != nullptr) copy_marks(p, row, marks);
  const Row<T, kCount> all{kCount > 1 ? copy : logits, static_cast<int>(p.vocab), o.penalty, o.penalty == 1 ? nullptr : marks};
  constexpr int kBatch = kBlocks == 1 ? 8 : 2;
  const float mine = read_row<T, kCount, kBatch>(logits, copy, all);
  short_list.set_groups(ordered(mine));
  const float top = value_of(best_of_block({ordered(mine), kNoToken}).key);
  const int last_bit = sizeof(T) == 2 && o.penalty == 1 ? 16 : 0;  // the lower bits of a bf16's key carry no information
  uint32_t token = kNoToken;                                       // valid in thread 0
  if (!isfinite(top)) {
    if (threadIdx.x == 0) p.token[row] = -1;
    return;
  }
  const float inverse_temperature = 1 / o.temperature;
  const bool keeps_top = o.keeps_top(p.vocab);
  if (o.temperature == 0) {
    Best best;
    if (mine == top) all.each_above(top, [&](uint32_t w) { best.update(top, w); });
    token = best_of_block(best).token;
  } else if (keeps_top && o.top_k <= ShortList::kMaxTopK && short_list.fill(all, mine, o.top_k)) {
    token = short_list.draw(all, o, top);
  } else if (keeps_top && o.top_k <= kThreads && list_above(all, kth_key_of_threads(ordered(mine), o.top_k, last_bit), list)) {
    token = draw(o, p.vocab, BlockCandidates<List>{list, top, inverse_temperature, shared}, last_bit);
  } else {
    token = draw(o, p.vocab, BlockCandidates<Row<T, kCount>>{all, top, inverse_temperature, shared}, last_bit);
  }
  if (threadIdx.x != 0) return;
  p.token[row] = token;
  atomicOr(marks + token / 32, 1U << (token % 32));  // needs no wait for the word
}

template <typename T>
Status launch_sample(const Sample& p, Queue queue) {
  constexpr int kCount = 16 / sizeof(T);
  const int64_t bytes = round_up(p.vocab, kCount) * static_cast<int64_t>(sizeof(T));
  constexpr int kListBytes = sizeof(List), kOtherBytes = 512 + 1024;  // other: warps' sums, and the system's reserve
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
  if (p.vocab > int64_t{1} << 30) return {"sample: more than 2^30 tokens to draw from"};
  return p.dtype == DType::bf16 ? launch_sample<bf16>(p, queue) : launch_sample<float>(p, queue);
}

namespace {
const DefineLaunchers<SampleLaunchers> kLaunchers(Device::cuda, {.sample = sample});
}

}  // namespace based::kernels::cuda
