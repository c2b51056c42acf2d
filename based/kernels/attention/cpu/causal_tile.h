// The four small matrix operations of attention and its gradients. Included by *.simd.cpp files. A tile is attention_tile tokens, one per
// vector lane. Its products with a block of rows of the other side are stored as [rows][attention_tile].
#pragma once
#include <algorithm>
#include <type_traits>

#include "based/kernels/attention/cpu/causal_simd.h"
#include "based/kernels/common/cpu/vec.h"

namespace based::kernels::cpu::BASED_ISA {

#if defined(__AVX512F__)
constexpr int block_rows = 8, block_vectors = 4;  // accumulator block sizes that leave registers for the operands
#else
constexpr int block_rows = 4, block_vectors = 2;
#endif
constexpr int tile_vectors = 2;  // vectors of a tile that products_block() processes together

// out [head_dim][attention_tile] = transpose of n rows, scaled. Lanes n and above are 0.
template <class T>
inline void transpose_tile(const T* rows, int64_t stride, int64_t n, int64_t head_dim, float scale, float* out) {
  for (int64_t i = 0; i < attention_tile; i += lanes)
    for (int64_t c = 0; c < head_dim; c += lanes) {
      const int columns = static_cast<int>(std::min<int64_t>(lanes, head_dim - c));
      Vec x[lanes];
      for (int j = 0; j < lanes; ++j) x[j] = i + j < n ? load(rows + (i + j) * stride + c, columns) * scale : Vec{};
      transpose(x);
      for (int j = 0; j < columns; ++j) store(out + (c + j) * attention_tile + i, x[j]);
    }
}

// fp32 rows whose length is a multiple of the vector: the original rows if they qualify, otherwise a copy padded with zeros.
struct Rows {
  const float* data;
  int64_t stride;
};
template <class T>
inline Rows padded_rows(const T* rows, int64_t stride, int64_t n, int64_t head_dim, float* copy) {
  if constexpr (std::is_same_v<T, float>)
    if (head_dim % lanes == 0) return {rows, stride};
  const int64_t padded = attention_padded(head_dim);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t c = 0; c < padded; c += lanes) {
      const int columns = static_cast<int>(std::clamp<int64_t>(head_dim - c, 0, lanes));
      store(copy + j * padded + c, columns == lanes ? load(rows + j * stride + c) : load(rows + j * stride + c, columns));
    }
  return {copy, padded};
}

template <int R>
BASED_INLINE void products_block(Rows rows, int64_t first, const float* tile, int64_t lane, int64_t head_dim, float* out) {
  Vec acc[R][tile_vectors] = {};
  const float* row = rows.data + first * rows.stride;
  for (int64_t c = 0; c < head_dim; ++c) {
    Vec t[tile_vectors];
#pragma GCC unroll 8
    for (int v = 0; v < tile_vectors; ++v) t[v] = load(tile + c * attention_tile + lane + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec x = broadcast(row[r * rows.stride + c]);
#pragma GCC unroll 8
      for (int v = 0; v < tile_vectors; ++v) acc[r][v] = fma(x, t[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < tile_vectors; ++v) store(out + (first + r) * attention_tile + lane + v * lanes, acc[r][v]);
}

// out [n][attention_tile] = dot products of n rows with the tokens of a transposed tile.
inline void products(Rows rows, int64_t n, const float* tile, int64_t head_dim, float* out) {
  for (int64_t lane = 0; lane < attention_tile; lane += tile_vectors * lanes) {
    int64_t j = 0;
    for (; j + block_rows <= n; j += block_rows) products_block<block_rows>(rows, j, tile, lane, head_dim, out);
    for (; j < n; ++j) products_block<1>(rows, j, tile, lane, head_dim, out);
  }
}

template <int V>
BASED_INLINE void accumulate_block(const float* weights, Rows rows, int64_t n, int64_t token, int64_t column, int64_t padded, float* sums) {
  constexpr int tokens = 4;
  Vec acc[tokens][V];
  float* out = sums + token * padded + column;
#pragma GCC unroll 8
  for (int i = 0; i < tokens; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[i][v] = load(out + i * padded + v * lanes);
  for (int64_t j = 0; j < n; ++j) {
    Vec x[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) x[v] = load(rows.data + j * rows.stride + column + v * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < tokens; ++i) {
      const Vec w = broadcast(weights[j * attention_tile + token + i]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[i][v] = fma(w, x[v], acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < tokens; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(out + i * padded + v * lanes, acc[i][v]);
}

// sums [attention_tile][padded] += weightsᵀ · rows, with weights [n][attention_tile] and `padded` = head_dim rounded up to a multiple
// of 16.
inline void accumulate(const float* weights, Rows rows, int64_t n, int64_t head_dim, float* sums) {
  const int64_t padded = attention_padded(head_dim), columns = (head_dim + lanes - 1) / lanes * lanes;
  for (int64_t token = 0; token < attention_tile; token += 4) {
    int64_t c = 0;
    for (; c + block_vectors * lanes <= columns; c += block_vectors * lanes)
      accumulate_block<block_vectors>(weights, rows, n, token, c, padded, sums);
    for (; c < columns; c += lanes) accumulate_block<1>(weights, rows, n, token, c, padded, sums);
  }
}

// In row j of a block, lane i keeps its value if begin + j <= i < end + j; otherwise it is set to `otherwise`.
inline void mask_lanes(float* values, int64_t n, int64_t begin, int64_t end, float otherwise) {
  IntVec first_lanes{};
  for (int i = 0; i < lanes; ++i) first_lanes[i] = i;
  for (int64_t j = 0; j < n; ++j, ++begin, ++end) {
    const int32_t low = static_cast<int32_t>(std::clamp<int64_t>(begin, 0, attention_tile));
    const int32_t high = static_cast<int32_t>(std::clamp<int64_t>(end, 0, attention_tile));
    for (int lane = 0; lane < attention_tile; lane += lanes) {
      const IntVec i = first_lanes + lane, visible = (i >= low) & (i < high);
      float* x = values + j * attention_tile + lane;
      store(x, select(visible, load(x), broadcast(otherwise)));
    }
  }
}

// Converts n tokens of a tile's sums to T, each scaled by its own factor, and stores them.
template <class T>
inline void write_tile(const float* sums, const float* factor, int64_t n, int64_t head_dim, T* out, int64_t stride) {
  const int64_t padded = attention_padded(head_dim);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < head_dim; c += lanes)
      store(out + i * stride + c, load(sums + i * padded + c) * factor[i], static_cast<int>(std::min<int64_t>(lanes, head_dim - c)));
}

}  // namespace based::kernels::cpu::BASED_ISA
