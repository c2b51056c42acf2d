// Decode attention over keys in pages. A block owns a row, a few query heads that read the same key head, and a part of the row's keys;
// its warps take tiles of keys in turn, and in a warp groups of lanes take a key each, 16 bytes of it a lane. Where rows and heads alone
// fill the GPU a block has all keys of its row; otherwise the keys are split, and a second launch merges the parts' sums. The number of
// parts depends on the number of rows alone, and where a part begins on the row's own length.
#include "based/kernels/paged_attention.h"

#include <algorithm>

#include "based/kernels/cuda/attention_sums.cuh"
#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kWarps = 4;
constexpr int64_t kLeastKeys = 256;  // of a part: fewer are not worth a block

// How a call is cut: query heads that share their keys' loads, parts of a row's keys, positions of a page as a shift.
struct Cut {
  int group, parts, shift;
};

__device__ __forceinline__ bool is_idle(const PagedAttention& p, int64_t slot, int64_t written, int shift) {
  return written >> shift >= p.slot_pages || p.page_table[slot * p.slot_pages + (written >> shift)] < 0;
}

// kLanes lanes hold a key of one slot; kGroup query heads are computed from it.
template <typename T, bool kVector, int kLanes, int kGroup>
struct Pages {
  static constexpr int kGroups = 32 / kLanes, kKeys = sizeof(T) == 2 && kGroup < 4 ? 8 : 4, kTile = kKeys * kGroups;
  const PagedAttention& p;
  const int64_t* table;
  int shift, group, part, held;  // `part` is the lane's first element of a key, `held` how many it has
  int64_t stride, column;        // elements between keys of a page; the lane's first element of a page
  float q[kGroup][kUnit];

  __device__ __forceinline__ Pages(const PagedAttention& params, int64_t row, int64_t slot, int head, int page_shift) : p(params) {
    const int lane = threadIdx.x % 32, kv_head = head / (p.heads / p.kv_heads);
    table = p.page_table + slot * p.slot_pages, shift = page_shift;
    group = lane / kLanes, part = lane % kLanes * kUnit, held = min(max(p.head_dim - part, 0), kUnit);
    stride = int64_t{p.kv_heads} * p.head_dim, column = int64_t{kv_head} * p.head_dim + part;
    const T* from = static_cast<const T*>(p.q) + row * p.q_stride + int64_t{head} * p.head_dim + part;
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      Unit<T> unit;
      if (held != 0) unit.template load<kVector>(from + int64_t{g} * p.head_dim, held);
#pragma unroll
      for (int c = 0; c < kUnit; ++c) q[g][c] = held != 0 ? unit.get(c) * (p.scale * 1.44269504088896341F) : 0.0F;
    }
  }
  // Of key i, in elements of a pool.
  __device__ __forceinline__ int64_t place(int64_t i) const {
    return ((table[i >> shift] << shift) + (i & ((int64_t{1} << shift) - 1))) * stride + column;
  }
  __device__ __forceinline__ float score(int g, const Unit<T>& key) const {
    float s = 0;
    if (held != 0) {
#pragma unroll
      for (int c = 0; c < kUnit; ++c) s = fmaf(q[g][c], key.get(c), s);
    }
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) s += __shfl_xor_sync(~0U, s, distance);
    return s;
  }
  // The new key, counted once a warp; into its page where `writes`.
  __device__ __forceinline__ void take_new(int64_t row, int64_t written, bool writes, Sums (&sums)[kGroup]) const {
    Unit<T> key, value;
    if (held != 0) {
      key.template load<kVector>(static_cast<const T*>(p.k) + row * p.k_stride + column, held);
      value.template load<kVector>(static_cast<const T*>(p.v) + row * p.v_stride + column, held);
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      const float s = score(g, key);
      if (group != 0) continue;
      sums[g].top = s;
      sums[g].add(s, value);
    }
    if (!writes || group != 0 || held == 0) return;
    const int64_t at = place(written);
    key.template store<kVector>(static_cast<T*>(p.k_pages) + at, held);
    value.template store<kVector>(static_cast<T*>(p.v_pages) + at, held);
  }
  // Keys base .. base + kTile, those before `end`.
  __device__ __forceinline__ void add_tile(int64_t base, int64_t end, Sums (&sums)[kGroup]) const {
    Unit<T> k[kKeys], v[kKeys];
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const int64_t i = base + group + u * kGroups;
      if (held == 0 || i >= end) continue;
      const int64_t at = place(i);
      k[u].template load<kVector>(static_cast<const T*>(p.k_pages) + at, held);
      v[u].template load<kVector>(static_cast<const T*>(p.v_pages) + at, held);
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float scores[kKeys], top = sums[g].top;
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        scores[u] = score(g, k[u]);
        if (base + group + u * kGroups < end) top = fmaxf(top, scores[u]);
      }
      sums[g].raise(top);
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        if (base + group + u * kGroups < end) sums[g].add(scores[u], v[u]);
      }
    }
  }
};

template <typename T, bool kVector, int kLanes, int kGroup>
__global__ void __launch_bounds__(32 * kWarps) attend_pages(const __grid_constant__ PagedAttention p, const Cut cut, float* parts_of_rows) {
  extern __shared__ float shared[];  // [kGroup][kWarps][head_dim + 2]
  using Tile = Pages<T, kVector, kLanes, kGroup>;
  const int64_t row = blockIdx.x, slot = p.slot[row], written = p.position[row];
  const int head = blockIdx.y * kGroup, part = blockIdx.z, warp = threadIdx.x / 32, width = p.head_dim + 2;
  Sums sums[kGroup];
  const Tile tile(p, row, slot, head, cut.shift);
  if (!is_idle(p, slot, written, cut.shift)) {
    const int64_t share = (written + cut.parts - 1) / cut.parts,
                  length = max((share + Tile::kTile - 1) / Tile::kTile * Tile::kTile, kLeastKeys);
    const int64_t begin = part * length, end = min(written, begin + length);
    if (part == 0 && warp == 0) tile.take_new(row, written, head % (p.heads / p.kv_heads) == 0, sums);
    for (int64_t base = begin + warp * Tile::kTile; base < end; base += kWarps * Tile::kTile) tile.add_tile(base, end, sums);
  }
#pragma unroll
  for (int g = 0; g < kGroup; ++g) leave_sums<kLanes>(sums[g], tile.part, tile.held, shared + (g * kWarps + warp) * width);
  __syncthreads();
  for (int g = warp; g < kGroup; g += kWarps) {
    const Merged merged(shared + g * kWarps * width, kWarps, width);
    const int64_t head_of_row = row * p.heads + head + g;
    float* to = parts_of_rows + (head_of_row * cut.parts + part) * width;
    for (int d = threadIdx.x % 32; d < p.head_dim; d += 32) {
      const Merged::Value value = merged.at(d);
      if (cut.parts == 1) {
        static_cast<T*>(p.y)[head_of_row * p.head_dim + d] = from_float<T>(value.output());
      } else {
        to[2 + d] = value.sum;
        if (d == 0) to[0] = merged.top, to[1] = value.total;
      }
    }
  }
}

// A warp a head of a row: y from the sums of its parts.
template <typename T>
__global__ void merge_parts(const __grid_constant__ PagedAttention p, const Cut cut, const float* parts_of_rows) {
  const int64_t row = blockIdx.x, head_of_row = row * p.heads + blockIdx.y;
  const int width = p.head_dim + 2;
  const Merged merged(parts_of_rows + head_of_row * cut.parts * width, cut.parts, width);
  for (int d = threadIdx.x; d < p.head_dim; d += 32)
    static_cast<T*>(p.y)[head_of_row * p.head_dim + d] = from_float<T>(merged.at(d).output());
}

bool whole_units(const PagedAttention& p) {
  return p.head_dim % kUnit == 0 && p.q_stride % kUnit == 0 && p.k_stride % kUnit == 0 && p.v_stride % kUnit == 0 && aligned16(p.q) &&
         aligned16(p.k) && aligned16(p.v) && aligned16(p.k_pages) && aligned16(p.v_pages);
}

Cut cut_of(const PagedAttention& p) {
  const int queries = p.heads / p.kv_heads;
  Cut cut{!whole_units(p) ? 1 : queries % 4 == 0 ? 4 : queries % 2 == 0 ? 2 : 1, 1, 0};
  while (int64_t{1} << cut.shift < p.page_tokens) ++cut.shift;
  // About four blocks a multiprocessor, as long as the longest text that there can be has keys for them.
  const int64_t blocks = std::max<int64_t>(1, p.rows * (p.heads / cut.group)), wanted = ceil_div(4 * int64_t{multiprocessors()}, blocks);
  const int64_t possible = ceil_div(std::min(p.slot_pages, p.pages) * p.page_tokens, kLeastKeys);
  cut.parts = static_cast<int>(std::max<int64_t>(1, std::min({wanted, possible, int64_t{64}})));
  return cut;
}

template <typename T, bool kVector, int kGroup>
auto* choose_lanes(int head_dim) {
  if (head_dim <= 4 * kUnit) return attend_pages<T, kVector, 4, kGroup>;
  if (head_dim <= 8 * kUnit) return attend_pages<T, kVector, 8, kGroup>;
  return head_dim <= 16 * kUnit ? attend_pages<T, kVector, 16, kGroup> : attend_pages<T, kVector, 32, kGroup>;
}
template <typename T>
auto* choose(const PagedAttention& p, const Cut& cut) {
  if (!whole_units(p)) return choose_lanes<T, false, 1>(p.head_dim);
  if (cut.group == 4) return choose_lanes<T, true, 4>(p.head_dim);
  return cut.group == 2 ? choose_lanes<T, true, 2>(p.head_dim) : choose_lanes<T, true, 1>(p.head_dim);
}

template <typename T>
Status launch_step(const PagedAttention& p, float* scratch, cudaStream_t stream) {
  const Cut cut = cut_of(p);
  const auto rows = static_cast<unsigned>(p.rows), heads = static_cast<unsigned>(p.heads);
  const dim3 grid(rows, heads / static_cast<unsigned>(cut.group), static_cast<unsigned>(cut.parts));
  const int bytes = cut.group * kWarps * (p.head_dim + 2) * 4;
  choose<T>(p, cut)<<<grid, 32 * kWarps, static_cast<size_t>(bytes), stream>>>(p, cut, scratch);
  if (cut.parts > 1) merge_parts<T><<<dim3(rows, heads), 32, 0, stream>>>(p, cut, scratch);
  return launched();
}

}  // namespace

int64_t paged_attention_scratch(const PagedAttention& p) {
  const Cut cut = cut_of(p);
  return cut.parts == 1 ? 0 : p.rows * p.heads * cut.parts * (p.head_dim + 2) * 4;
}

Status paged_attention_step(const PagedAttention& p, void* scratch, Stream stream) {
  if (p.rows == 0) return {};
  if (p.head_dim > 32 * kUnit) return {"paged_attention: head_dim is larger than 256"};
  auto* sums = static_cast<float*>(scratch);
  return p.dtype == DType::bf16 ? launch_step<bf16>(p, sums, stream_of(stream)) : launch_step<float>(p, sums, stream_of(stream));
}

}  // namespace based::kernels::cuda
