// A block a row, which lies in shared memory where it fits; seen tokens are penalised as they are read. The kept logits are those above a
// threshold, and a threshold is found without sorting: logits are mapped to integers of the same order, and the integer is built bit by bit
// from counts (top-k) or sums of probabilities (top-p) of what lies above it. With top-k the threads' own largest logits bound it from
// below, and the few logits above that bound are all that is looked at from then on, by one warp if there are very few: what a step of that
// search takes is the time to agree on a sum.
#include "based/kernels/sample.h"

#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 1024;

// A float's bits as an integer of the same order.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}

struct Best {
  float score;
  int64_t token;
  __device__ __forceinline__ void take(float other_score, int64_t other_token) {
    if (other_score > score || (other_score == score && other_token < token)) score = other_score, token = other_token;
  }
};

__device__ __forceinline__ Best best_of_warp(Best mine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    mine.take(__shfl_xor_sync(~0U, mine.score, distance), __shfl_xor_sync(~0U, mine.token, distance));
  return mine;
}
__device__ __forceinline__ Best best_of_block(Best mine) {
  __shared__ Best shared[kThreads / 32];
  mine = best_of_warp(mine);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  return best_of_warp(shared[threadIdx.x % 32]);
}

// The k-th largest of the threads' keys, k at most kThreads, without its bits below last_bit.
__device__ __forceinline__ uint32_t nth_of_threads(uint32_t key, int k, int last_bit) {
  uint32_t found = 0;
  for (int bit = 31; bit >= last_bit; --bit) {
    const uint32_t higher = found | (1U << bit);
    if (__syncthreads_count(key >= higher) >= k) found = higher;
  }
  return found;
}

// The sum of the values of the threads before this one, and of all.
struct Before {
  int mine, all;
};
__device__ __forceinline__ Before sum_of_threads_before(int value) {
  __shared__ int warps[kThreads / 32];
  const int lane = threadIdx.x % 32;
  int up_to = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(~0U, up_to, distance);
    if (lane >= distance) up_to += other;
  }
  if (lane == 31) warps[threadIdx.x / 32] = up_to;
  __syncthreads();
  Before sum{up_to - value, 0};
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < static_cast<int>(threadIdx.x / 32)) sum.mine += warps[w];
    sum.all += warps[w];
  }
  return sum;
}

// kCount logits are read at a time, of `vocab` rounded up to that.
template <typename T, int kCount>
struct Row {
  const T* logits;
  int64_t vocab;
  float penalty;
  const uint32_t* seen;  // null: no penalty
  static constexpr int kTeam = kThreads;

  template <typename Body>
  __device__ __forceinline__ void each(Body&& body) const {
    for (int64_t w = threadIdx.x * kCount; w < vocab; w += kThreads * kCount) {
      float x[kCount];
      load_floats<kCount>(logits + w, x);
      if (seen != nullptr) {
        const uint32_t marks = seen[w / 32] >> (w % 32);  // kCount divides 32
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          if ((marks >> i & 1) != 0) x[i] = sample_penalised(x[i], penalty);
        }
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) body(w + i, x[i]);
    }
  }
};

// Some logits of a row, those that count, for the first kOfThreads threads.
constexpr int kMostListed = 2048;
constexpr int kMostOfWarp = 512;
template <int kOfThreads>
struct List {
  const float* logit;
  const int* token;
  int count;
  static constexpr int kTeam = kOfThreads;

  template <typename Body>
  __device__ __forceinline__ void each(Body&& body) const {
    for (int i = threadIdx.x; i < count; i += kTeam) body(token[i], logit[i]);
  }
};

template <typename Source>
struct Filter {
  const Source& of;
  float top, inverse_temperature;
  int last_bit;  // bits of a key below this one are the same for all
  float* shared;

  // Σ of exp((x − top)/temperature), or the count, of logits that are at least `key` in order.
  template <bool kNumber>
  __device__ __forceinline__ float above(uint32_t key) const {
    float sum = 0;
    of.each([&](int64_t, float x) {
      if (ordered(x) >= key) sum += kNumber ? 1.0F : __expf((x - top) * inverse_temperature);
    });
    if constexpr (Source::kTeam == 32) {
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
      return sum;
    }
    const float all = sum_over_block(sum, shared);
    __syncthreads();
    return all;
  }
  // The largest key, at least `least`, above which there is `enough`; counts up to 2^24 are exact.
  template <bool kNumber>
  __device__ __forceinline__ uint32_t threshold(float enough, uint32_t least) const {
    uint32_t key = 0;
    for (int bit = 31; bit >= last_bit; --bit) {
      const uint32_t higher = key | (1U << bit);
      if (higher <= least || above<kNumber>(higher) >= enough) key = higher;
    }
    return max(key, least);
  }
};

// The token drawn of the row's, of every thread of the source's team; `most_likely` where rounding left none.
template <typename Source>
__device__ __forceinline__ int64_t draw(const Sample& p, int64_t row, const Source& from, Best most_likely, int last_bit, float* shared) {
  const float temperature = p.temperature[row];
  const Filter<Source> of{from, most_likely.score, 1 / temperature, last_bit, shared};
  uint32_t least = 0;
  if (p.top_k[row] > 0 && p.top_k[row] < p.vocab) least = of.template threshold<true>(static_cast<float>(p.top_k[row]), 0);
  if (p.min_p[row] > 0) least = max(least, ordered(most_likely.score + temperature * logf(p.min_p[row])));
  if (p.top_p[row] < 1) least = of.template threshold<false>(p.top_p[row] * of.template above<false>(least), least);
  Best drawn{-INFINITY, p.vocab};
  from.each([&](int64_t w, float x) {
    if (ordered(x) < least || isinf(x)) return;
    const uint64_t bits = sample_bits(static_cast<uint64_t>(p.seed[row]), static_cast<uint64_t>(p.position[row]), static_cast<uint64_t>(w));
    drawn.take((x - of.top) / temperature - logf(-logf(sample_uniform(bits))), w);
  });
  drawn = Source::kTeam == 32 ? best_of_warp(drawn) : best_of_block(drawn);
  return drawn.token < p.vocab ? drawn.token : most_likely.token;
}

// The logits that are at least `key` in order, in the order of the threads that read them; false where they are too many.
template <typename Source>
__device__ __forceinline__ bool list_above(const Source& from, uint32_t key, List<kThreads>& list) {
  __shared__ float logits[kMostListed];
  __shared__ int tokens[kMostListed];
  int mine = 0;
  from.each([&](int64_t, float x) { mine += ordered(x) >= key; });
  const Before sum = sum_of_threads_before(mine);
  if (sum.all > kMostListed) return false;
  int at = sum.mine;
  from.each([&](int64_t w, float x) {
    if (ordered(x) >= key) logits[at] = x, tokens[at++] = static_cast<int>(w);
  });
  __syncthreads();
  list = {logits, tokens, sum.all};
  return true;
}

// kCount 1: the row is read where it lies.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads) sample_rows(const __grid_constant__ Sample p) {
  extern __shared__ __align__(16) unsigned char row_memory[];
  __shared__ float shared[32];
  overlap_kernels();
  const int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(p.logits) + row * p.logits_stride;
  Best mine{-INFINITY, p.vocab};
  bool has_nan = false;
  T* copy = reinterpret_cast<T*>(row_memory);
  const float penalty = p.penalty[row];
  uint32_t* marks = p.seen + row * sample_seen_words(p.vocab);
  const bool whole_units = reinterpret_cast<uintptr_t>(logits) % (kCount * sizeof(T)) == 0;
#pragma unroll 4
  for (int64_t w = threadIdx.x * kCount; w < p.vocab; w += kThreads * kCount) {
    Elements<T, kCount> unit;
    if (whole_units && w + kCount <= p.vocab) {
      unit = *reinterpret_cast<const Elements<T, kCount>*>(logits + w);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) unit.x[i] = w + i < p.vocab ? logits[w + i] : from_float<T>(-INFINITY);
    }
    if constexpr (kCount > 1) *reinterpret_cast<Elements<T, kCount>*>(copy + w) = unit;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (w + i >= p.vocab) break;
      float x = to_float(unit.x[i]);
      if (penalty != 1 && sample_is_seen(marks, w + i)) x = sample_penalised(x, penalty);
      has_nan |= isnan(x);
      mine.take(x, w + i);
    }
  }
  has_nan = __syncthreads_or(has_nan);
  const Best most_likely = best_of_block(mine);
  const float temperature = p.temperature[row];
  if (has_nan || isinf(most_likely.score) || temperature == 0) {
    if (threadIdx.x != 0) return;
    const bool fails = has_nan || isinf(most_likely.score);
    p.token[row] = fails ? -1 : most_likely.token;
    if (!fails) sample_set_seen(marks, most_likely.token);
    return;
  }
  const Row<T, kCount> all{kCount > 1 ? copy : logits, p.vocab, penalty, penalty == 1 ? nullptr : marks};
  const int last_bit = sizeof(T) == 2 && penalty == 1 ? 16 : 0;  // a bf16's other bits tell nothing
  const int64_t k = p.top_k[row];
  List<kThreads> list{};
  const bool few =
      k > 0 && k <= kThreads && k < p.vocab && list_above(all, nth_of_threads(ordered(mine.score), static_cast<int>(k), last_bit), list);
  int64_t token = 0;
  if (few && list.count <= kMostOfWarp) {
    if (threadIdx.x >= 32) return;
    token = draw(p, row, List<32>{list.logit, list.token, list.count}, most_likely, last_bit, shared);
  } else {
    token = few ? draw(p, row, list, most_likely, last_bit, shared) : draw(p, row, all, most_likely, last_bit, shared);
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
  return p.dtype == DType::bf16 ? launch_sample<bf16>(p, stream) : launch_sample<float>(p, stream);
}

}  // namespace based::kernels::cuda
