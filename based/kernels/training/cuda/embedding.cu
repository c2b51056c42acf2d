// Embedding kernels. The backward sorts the tokens by their rows of the table and cuts them into pieces, so that a row with many tokens is
// divided among many blocks. A block adds up the rows of its piece; a second kernel adds the partial sums of rows that span several pieces,
// in order.
#include "based/kernels/training/embedding.h"

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/training/dropout.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kPiece = 32;     // sorted tokens of a piece
constexpr int kThreads = 128;  // each handles 16 bytes of a row
constexpr int kUnroll = 8;     // tokens whose loads a thread has in flight
constexpr uint64_t kNone = ~uint64_t{0};

// A key is row · 2³² + token, so that sorting keeps a row's tokens in order.
__device__ __forceinline__ int64_t row_of_key(uint64_t key) { return static_cast<int64_t>(key >> 32); }
__device__ __forceinline__ int64_t token_of_key(uint64_t key) { return static_cast<int64_t>(key & 0xffffffffU); }

__global__ void __launch_bounds__(256) make_keys(const __grid_constant__ EmbeddingBackward p, uint64_t* keys) {
  const int64_t token = blockIdx.x * int64_t{256} + threadIdx.x;
  if (token < p.tokens) keys[token] = static_cast<uint64_t>(p.id[token]) << 32 | static_cast<uint64_t>(token);
}

// This thread's columns of a row of `width` elements.
template <typename T>
struct Columns {
  static constexpr int kCount = 16 / sizeof(T);
  int64_t width, first;
  __device__ __forceinline__ explicit Columns(int64_t all) : width(all), first((blockIdx.y * int64_t{kThreads} + threadIdx.x) * kCount) {}
  __device__ __forceinline__ bool any() const { return first < width; }
  template <typename U>
  __device__ __forceinline__ U* in_row(U* rows, int64_t row) const {
    return rows + row * width + first;
  }
};

template <typename T>
__device__ __forceinline__ void add_unit(uint4 unit, float (&to)[Columns<T>::kCount]) {
  Elements<T, Columns<T>::kCount> e;
  memcpy(&e, &unit, 16);
#pragma unroll
  for (int i = 0; i < Columns<T>::kCount; ++i) to[i] += to_float(e.x[i]);
}

// Adds up the gradients of a piece. `partial` [pieces, 2, width] receives the sum of the piece's first row where that row began in an
// earlier piece, and the sum of its last row where that row began in this piece and continues in the next one.
template <typename T>
__global__ void __launch_bounds__(kThreads) add_pieces(const __grid_constant__ EmbeddingBackward p, const uint64_t* keys, float* partial) {
  constexpr int kCount = Columns<T>::kCount;
  __shared__ uint64_t shared[kPiece + 2];  // the piece's keys, with the key before and the key after them
  overlap_kernels();
  const int64_t begin = blockIdx.x * int64_t{kPiece};
  const int count = static_cast<int>(min(p.tokens - begin, int64_t{kPiece}));
  for (int i = threadIdx.x; i < count + 2; i += kThreads) {
    const int64_t at = begin + i - 1;
    shared[i] = at >= 0 && at < p.tokens ? keys[at] : kNone;
  }
  __syncthreads();
  const Columns<T> columns(p.width);
  if (!columns.any()) return;
  const auto key = [&](int i) { return shared[i + 1]; };
  const auto ends = [&](int i) { return row_of_key(key(i)) != row_of_key(key(i + 1)); };
  bool began_before = row_of_key(key(0)) == row_of_key(key(-1));
  float sum[kCount] = {};
  for (int first = 0; first < count; first += kUnroll) {
    uint4 grad[kUnroll], old[kUnroll];
#pragma unroll
    for (int t = 0; t < kUnroll; ++t) {
      const int i = first + t;
      if (i >= count) continue;
      grad[t] = __ldg(reinterpret_cast<const uint4*>(columns.in_row(static_cast<const T*>(p.grad), token_of_key(key(i)))));
      if (ends(i)) old[t] = *reinterpret_cast<const uint4*>(columns.in_row(static_cast<const T*>(p.to), row_of_key(key(i))));
    }
#pragma unroll
    for (int t = 0; t < kUnroll; ++t) {
      const int i = first + t;
      if (i >= count) continue;
      add_unit<T>(grad[t], sum);
      if (!ends(i)) continue;
      if (began_before) {
        store_floats<kCount>(columns.in_row(partial, 2 * blockIdx.x), sum);
      } else {
        add_unit<T>(old[t], sum);
        store_floats<kCount>(columns.in_row(static_cast<T*>(p.to), row_of_key(key(i))), sum);
      }
      began_before = false;
#pragma unroll
      for (int c = 0; c < kCount; ++c) sum[c] = 0;
    }
  }
  if (!ends(count - 1)) store_floats<kCount>(columns.in_row(partial, 2 * blockIdx.x + (began_before ? 0 : 1)), sum);
}

// Adds up the row that begins in piece blockIdx.x and continues in the next one, if there is one.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    join_pieces(const __grid_constant__ EmbeddingBackward p, const uint64_t* keys, const float* partial) {
  constexpr int kCount = Columns<T>::kCount;
  overlap_kernels();
  const int64_t piece_end = (blockIdx.x + int64_t{1}) * kPiece;
  const Columns<T> columns(p.width);
  if (piece_end >= p.tokens || !columns.any()) return;
  const int64_t row = row_of_key(keys[piece_end - 1]), begin = blockIdx.x * int64_t{kPiece};
  if (row_of_key(keys[piece_end]) != row || (begin > 0 && row_of_key(keys[begin - 1]) == row)) return;
  float sum[kCount];
  load_floats<kCount>(columns.in_row(partial, 2 * blockIdx.x + 1), sum);
  for (int64_t at = piece_end, piece = blockIdx.x + 1; at < p.tokens && row_of_key(keys[at]) == row; at += kPiece, ++piece) {
    float more[kCount];
    load_floats<kCount>(columns.in_row(partial, 2 * piece), more);
#pragma unroll
    for (int c = 0; c < kCount; ++c) sum[c] += more[c];
  }
  T* to = columns.in_row(static_cast<T*>(p.to), row);
  add_unit<T>(*reinterpret_cast<const uint4*>(to), sum);
  store_floats<kCount>(to, sum);
}

// Starts a decode step: copies the embeddings and advances the positions. One block for each row.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads) begin_rows(const __grid_constant__ EmbeddingStep p) {
  overlap_kernels();
  const int64_t row = blockIdx.x, id = p.id[row];
  if (threadIdx.x == 0) p.row_position[row] = p.seen[p.slot[row]]++;
  const T* from = static_cast<const T*>(p.table) + max(id, int64_t{0}) * p.width;
  for (int64_t i = threadIdx.x * kCount; i < p.width; i += kThreads * kCount) {
    float y[kCount];
#pragma unroll
    for (int c = 0; c < kCount; ++c) y[c] = NAN;
    if (id < p.vocab) load_floats<kCount>(from + i, y);
    store_floats<kCount>(p.y + row * p.width + i, y);
  }
}

// The same for several tokens of one sequence, in one block, since all of them read the count that the kernel advances.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads) begin_tokens(const __grid_constant__ EmbeddingTokens all) {
  overlap_kernels();
  const EmbeddingStep& p = all.step;
  const int64_t rows = all.tokens + all.padding, units = p.width / kCount;
  if (threadIdx.x == 0) {
    int64_t& seen = p.seen[p.slot[0]];
    const int64_t first = seen;
    for (int64_t row = 0; row < rows; ++row) p.row_position[row] = first + min(row, all.tokens - 1);
    if (all.kept_seen != nullptr) {
      for (int64_t t = 0; t + 1 < all.tokens; ++t) all.kept_seen[t] = first + t + 1;
    }
    seen = first + all.tokens;
  }
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < rows * units; i += kThreads) {
    const int64_t row = i / units, column = i % units * kCount, id = p.id[min(row, all.tokens - 1)];
    float y[kCount];
#pragma unroll
    for (int c = 0; c < kCount; ++c) y[c] = NAN;
    if (id < p.vocab) load_floats<kCount>(static_cast<const T*>(p.table) + max(id, int64_t{0}) * p.width + column, y);
    store_floats<kCount>(p.y + row * p.width + column, y);
  }
}

// A block gathers kRowUnroll times rows_at_once() rows. Rows shorter than the block are covered by adjacent threads, rows_at_once() of them
// at a time; the threads loop over a longer row.
constexpr int kRowThreads = 256;
constexpr int kRowUnroll = 4;  // rows whose loads a thread has in flight

inline __host__ __device__ int64_t rows_at_once(int64_t units) { return units < kRowThreads ? kRowThreads / units : 1; }

template <typename T, int kCount, bool kDrops>
__global__ void __launch_bounds__(kRowThreads) gather_rows(const __grid_constant__ EmbeddingRows p) {
  using Unit = Elements<T, kCount>;
  overlap_kernels();
  const int64_t units = p.width / kCount, at_once = rows_at_once(units);
  const int mine = at_once > 1 ? static_cast<int>(threadIdx.x) / static_cast<int>(units) : 0;
  if (mine >= at_once) return;
  const int64_t first = blockIdx.x * at_once * kRowUnroll + mine;
  uint64_t key = 0;
  if constexpr (kDrops)
    key = dropout_key(static_cast<uint64_t>(p.seed), static_cast<uint64_t>(*p.step), static_cast<uint64_t>(p.place),
                      static_cast<uint64_t>(p.first_token * p.width));
  int64_t id[kRowUnroll];
#pragma unroll
  for (int t = 0; t < kRowUnroll; ++t) id[t] = first + t * at_once < p.tokens ? p.id[first + t * at_once] : -1;
  for (int64_t unit = threadIdx.x - mine * units; unit < units; unit += kRowThreads) {
    Unit x[kRowUnroll];
#pragma unroll
    for (int t = 0; t < kRowUnroll; ++t) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) x[t].x[c] = from_float<T>(NAN);
      if (id[t] >= 0 && id[t] < p.vocab)
        x[t] = *reinterpret_cast<const Unit*>(static_cast<const T*>(p.table) + id[t] * p.width + unit * kCount);
    }
#pragma unroll
    for (int t = 0; t < kRowUnroll; ++t) {
      const int64_t token = first + t * at_once, at = token * p.width + unit * kCount;
      if (token >= p.tokens) continue;
      if constexpr (kDrops) {
#pragma unroll
        for (int c = 0; c < kCount; ++c)
          x[t].x[c] = from_float<T>(is_dropped(key, static_cast<uint64_t>(at + c), p.threshold) ? 0.0F : to_float(x[t].x[c]) * p.scale);
      }
      *reinterpret_cast<Unit*>(static_cast<T*>(p.y) + at) = x[t];
    }
  }
}

template <typename T, int kCount>
Status launch_rows(const EmbeddingRows& p, Queue queue) {
  auto* kernel = p.threshold > 0 ? gather_rows<T, kCount, true> : gather_rows<T, kCount, false>;
  const int64_t blocks = ceil_div(p.tokens, rows_at_once(p.width / kCount) * kRowUnroll);
  return launch_overlapped(kernel, {static_cast<unsigned>(blocks), kRowThreads}, queue, p);
}

template <typename T>
Status launch_rows(const EmbeddingRows& p, Queue queue) {
  constexpr int kUnit = 16 / sizeof(T);
  const bool vector = p.width % kUnit == 0 && aligned16(p.table) && aligned16(p.y);
  return vector ? launch_rows<T, kUnit>(p, queue) : launch_rows<T, 1>(p, queue);
}

struct Scratch {
  int64_t pieces, keys_bytes, sort_bytes;
  int last_bit;  // end of the bits of a key that are sorted
  explicit Scratch(const EmbeddingBackward& p)
      : pieces(ceil_div(p.tokens, kPiece)),
        keys_bytes(round_up(p.tokens * 8, 16)),
        last_bit(32 + std::bit_width(static_cast<uint64_t>(std::max<int64_t>(p.rows - 1, 1)))) {
    size_t bytes = 0;
    uint64_t* none = nullptr;
    cub::DeviceRadixSort::SortKeys(nullptr, bytes, none, none, static_cast<int>(p.tokens), 32, last_bit);
    sort_bytes = round_up(static_cast<int64_t>(bytes), 16);
  }
  int64_t bytes(int64_t width) const { return 2 * keys_bytes + sort_bytes + pieces * 2 * width * 4; }
};

template <typename T>
Status run(const EmbeddingBackward& p, void* scratch, Queue queue) {
  const Scratch layout(p);
  auto* unsorted = static_cast<uint64_t*>(scratch);
  auto* keys = unsorted + layout.keys_bytes / 8;
  void* sorting = keys + layout.keys_bytes / 8;
  auto* partial = reinterpret_cast<float*>(static_cast<char*>(sorting) + layout.sort_bytes);
  make_keys<<<static_cast<unsigned>(ceil_div(p.tokens, 256)), 256, 0, stream_of(queue)>>>(p, unsorted);
  size_t bytes = static_cast<size_t>(layout.sort_bytes);
  const cudaError_t sorted =
      cub::DeviceRadixSort::SortKeys(sorting, bytes, unsorted, keys, static_cast<int>(p.tokens), 32, layout.last_bit, stream_of(queue));
  if (sorted != cudaSuccess) return status_of(sorted);
  const dim3 grid(static_cast<unsigned>(layout.pieces), static_cast<unsigned>(ceil_div(p.width, kThreads * Columns<T>::kCount)));
  if (const Status s = launch_overlapped(add_pieces<T>, {grid, kThreads}, queue, p, keys, partial); !s.ok()) return s;
  return launch_overlapped(join_pieces<T>, {grid, kThreads}, queue, p, keys, partial);
}

}  // namespace

bool embedding_backward_supports(const EmbeddingBackward& p) {
  return p.width % (16 / dtype_size(p.dtype)) == 0 && aligned16(p.grad) && aligned16(p.to) && std::max(p.tokens, p.rows) < int64_t{1} << 31;
}

int64_t embedding_backward_scratch(const EmbeddingBackward& p) { return p.tokens == 0 ? 0 : Scratch(p).bytes(p.width); }

Status embedding_backward(const EmbeddingBackward& p, void* scratch, Queue queue) {
  if (p.tokens == 0 || p.width == 0) return {};
  if (!embedding_backward_supports(p)) return {"embedding_backward: rows must be multiples of 16 bytes, tokens and rows fewer than 2^31"};
  return p.dtype == DType::bf16 ? run<bf16>(p, scratch, queue) : run<float>(p, scratch, queue);
}

Status embedding_step(const EmbeddingStep& p, Queue queue) {
  if (p.rows == 0) return {};
  const bool vector = p.width % 8 == 0 && aligned16(p.table) && aligned16(p.y), bf = p.dtype == DType::bf16;
  auto* kernel = bf ? (vector ? begin_rows<bf16, 8> : begin_rows<bf16, 1>) : (vector ? begin_rows<float, 8> : begin_rows<float, 1>);
  return launch_overlapped(kernel, {static_cast<unsigned>(p.rows), kThreads}, queue, p);
}

Status embedding_tokens(const EmbeddingTokens& p, Queue queue) {
  const EmbeddingStep& s = p.step;
  const bool vector = s.width % 8 == 0 && aligned16(s.table) && aligned16(s.y), bf = s.dtype == DType::bf16;
  auto* kernel = bf ? (vector ? begin_tokens<bf16, 8> : begin_tokens<bf16, 1>) : (vector ? begin_tokens<float, 8> : begin_tokens<float, 1>);
  return launch_overlapped(kernel, {1, kThreads}, queue, p);
}

Status embedding_rows(const EmbeddingRows& p, Queue queue) {
  if (p.tokens == 0 || p.width == 0) return {};
  return p.dtype == DType::bf16 ? launch_rows<bf16>(p, queue) : launch_rows<float>(p, queue);
}

namespace {
const DefineLaunchers<EmbeddingLaunchers> kLaunchers(Device::cuda, {.backward_supports = embedding_backward_supports,
                                                                    .backward_scratch = embedding_backward_scratch,
                                                                    .backward = embedding_backward,
                                                                    .step = embedding_step,
                                                                    .step_tokens = embedding_tokens,
                                                                    .rows = embedding_rows});
}

}  // namespace based::kernels::cuda
