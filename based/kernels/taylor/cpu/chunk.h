// Shared parts of the chunked forward and backward of Taylor attention: small matrix products, the packed features of a chunk of tokens and
// their gradient, and loads and stores of tokens. Most arrays of a chunk are "token-minor": one row a channel, tokens in vector lanes.
#pragma once
#include "based/kernels/common/cpu/vec.h"
#include "based/kernels/taylor/taylor.h"

namespace based::kernels::cpu::BASED_ISA {

// Row-major views; strides are in floats.
struct Matrix {
  const float* data;
  int64_t stride;
};
struct Output {
  float* data;
  int64_t stride;
  Matrix view() const { return {data, stride}; }
  Output row(int64_t r) const { return {data + r * stride, stride}; }
};

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Register tile of the products: 6 rows of 4 vectors where there are 32 registers, of 2 where there are 16.
constexpr int tile_rows = 6, tile_vectors = lanes == 16 ? 4 : 2;

// out[M][N vectors] = scale · out + A · B over k terms; A is [M][k], or [k][M] where Transposed. Where scale == 0, `out` is not read.
template <int M, int N, bool Transposed>
[[gnu::noinline]] inline void multiply_tile(int64_t k, Matrix a, Matrix b, Output out, float scale) {
  Vec sum[M][N];
  if (scale == 0) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[m][n] = zero();
  } else {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[m][n] = load(out.data + m * out.stride + n * lanes) * scale;
  }
  for (int64_t i = 0; i < k; ++i) {
    Vec bs[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) bs[n] = load(b.data + i * b.stride + n * lanes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const Vec am = broadcast(Transposed ? a.data[i * a.stride + m] : a.data[m * a.stride + i]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[m][n] = fma(am, bs[n], sum[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(out.data + m * out.stride + n * lanes, sum[m][n]);
}

template <int N, bool Transposed>
BASED_INLINE void multiply_rows(int64_t m, int64_t k, Matrix a, Matrix b, Output out, float scale) {
  for (int64_t row = 0; row < m; row += tile_rows) {
    const Matrix rows{a.data + row * (Transposed ? 1 : a.stride), a.stride};
    const Output to = out.row(row);
    switch (m - row) {
      case 1: multiply_tile<1, N, Transposed>(k, rows, b, to, scale); break;
      case 2: multiply_tile<2, N, Transposed>(k, rows, b, to, scale); break;
      case 3: multiply_tile<3, N, Transposed>(k, rows, b, to, scale); break;
      case 4: multiply_tile<4, N, Transposed>(k, rows, b, to, scale); break;
      case 5: multiply_tile<5, N, Transposed>(k, rows, b, to, scale); break;
      default: multiply_tile<6, N, Transposed>(k, rows, b, to, scale); break;
    }
  }
}

// out [m][vectors · lanes] = scale · out + A · B over k terms; A is [m][k], or [k][m] where Transposed. Where scale == 0, `out` is not
// read.
template <bool Transposed>
[[gnu::noinline]] inline void multiply(int64_t m, int64_t vectors, int64_t k, Matrix a, Matrix b, Output out, float scale) {
  for (int64_t n = 0; n < vectors; n += tile_vectors) {
    const Matrix columns{b.data + n * lanes, b.stride};
    const Output to{out.data + n * lanes, out.stride};
    if constexpr (tile_vectors == 4) {
      if (vectors - n == 3) multiply_rows<3, Transposed>(m, k, a, columns, to, scale);
      if (vectors - n >= 4) multiply_rows<4, Transposed>(m, k, a, columns, to, scale);
    }
    if (vectors - n == 1) multiply_rows<1, Transposed>(m, k, a, columns, to, scale);
    if (vectors - n == 2 || (tile_vectors == 2 && vectors - n > 2)) multiply_rows<2, Transposed>(m, k, a, columns, to, scale);
  }
}

// Prefetches the cache lines of n rows of `columns` values. The rows are about a page apart, too far for the hardware prefetcher.
template <bool Write, class T>
BASED_INLINE void prefetch_rows(const T* from, int64_t stride, int64_t n, int64_t columns) {
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < columns; c += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(from + r * stride + c, Write, 2);
}

// Loads n rows of `columns` values, `stride` values apart, as fp32, padded with zeros to a multiple of lanes.
template <class T>
[[gnu::noinline]] inline void load_rows(const T* from, int64_t stride, int64_t n, int64_t columns, Output to) {
  for (int64_t c = 0; c < columns; c += lanes) {
    const int width = static_cast<int>(columns - c < lanes ? columns - c : lanes);
    for (int64_t r = 0; r < n; ++r) store(to.data + r * to.stride + c, load(from + r * stride + c, width));
  }
}

// Stores n rows of `columns` fp32 values as T.
template <class T>
[[gnu::noinline]] inline void store_rows(Matrix from, int64_t n, int64_t columns, T* to, int64_t stride) {
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < columns; c += lanes) {
      const int width = static_cast<int>(columns - c < lanes ? columns - c : lanes);
      store(to + r * stride + c, load(from.data + r * from.stride + c), width);
    }
}

// to [columns][n rounded up to lanes] = transpose of n rows of `columns` values, padded with zeros after n.
template <class T>
[[gnu::noinline]] inline void load_transposed(const T* from, int64_t stride, int64_t n, int64_t columns, Output to) {
  for (int64_t r = 0; r < n; r += lanes)
    for (int64_t c = 0; c < columns; c += lanes) {
      const T* block = from + r * stride + c;
      float* out = to.data + c * to.stride + r;
      Vec x[lanes];
      if (n - r >= lanes && columns - c >= lanes) {
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) x[i] = load(block + i * stride);
        transpose(x);
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) store(out + i * to.stride, x[i]);
      } else {
        const int width = static_cast<int>(columns - c < lanes ? columns - c : lanes);
        for (int i = 0; i < lanes; ++i) x[i] = r + i < n ? load(block + i * stride, width) : zero();
        transpose(x);
        for (int i = 0; i < width; ++i) store(out + i * to.stride, x[i]);
      }
    }
}

// Packed features are the products x̂_i·x̂_j, i <= j, of x̂ = (1, x_0 … x_{d-1}), row by row of the triangle, scaled by 1/√2 where i = j >= 1.
// Calls body(i, j, p, count) for every run of features p … p + count - 1 = (i, j) … (i, j + count - 1) inside [begin, end).
template <class Body>
BASED_INLINE void each_feature_run(int64_t feature_dim, int64_t begin, int64_t end, Body body) {
  int64_t start = 0;
  for (int64_t i = 0; i <= feature_dim && start < end; ++i) {
    const int64_t stop = start + feature_dim + 1 - i, from = start > begin ? start : begin, to = stop < end ? stop : end;
    if (from < to) body(i, i + from - start, from, to - from);
    start = stop;
  }
}

constexpr float inverse_sqrt2 = 0.70710678118654752f;

// Calls body.template operator()<N>(first) for the vectors of a token-minor row: N = 3 at a time to hide latency, the rest one by one.
template <class Body>
BASED_INLINE void each_vectors(int64_t vectors, Body body) {
  int64_t v = 0;
  for (; v + 3 <= vectors; v += 3) body.template operator()<3>(v * lanes);
  for (; v < vectors; ++v) body.template operator()<1>(v * lanes);
}

// phi [end - begin][tokens] = features begin … end - 1 of token-minor x̂ [feature_dim + 1][tokens], times a factor for each token: `scaled`
// is x̂ with each token's column multiplied by its factor.
[[gnu::noinline]] inline void features(int64_t feature_dim, int64_t begin, int64_t end, Matrix scaled, Matrix x, int64_t vectors,
                                       Output phi) {
  each_feature_run(feature_dim, begin, end, [&](int64_t i, int64_t j, int64_t p, int64_t count) {
    each_vectors(vectors, [&]<int N>(int64_t t) {
      Vec xi[N];
      for (int n = 0; n < N; ++n) xi[n] = load(scaled.data + i * scaled.stride + t + n * lanes);
      const float* xj = x.data + j * x.stride + t;
      float* out = phi.data + (p - begin) * phi.stride + t;
      if (i == j && i > 0)
        for (int n = 0; n < N; ++n) store(out + n * lanes, xi[n] * load(xj + n * lanes) * inverse_sqrt2);
      for (int64_t c = i == j && i > 0; c < count; ++c)
        for (int n = 0; n < N; ++n) store(out + c * phi.stride + n * lanes, xi[n] * load(xj + c * x.stride + n * lanes));
    });
  });
}

// Backward of the features begin … end - 1: their gradient is grad_phi [end - begin][tokens] + z_p · weight_t; adds the gradient of x̂ to
// grad_x.
struct FeatureGradient {
  Matrix grad_phi;
  const float* z;       // [end - begin]
  const float* weight;  // [tokens]
  Matrix x;
  Output grad_x;  // row 0, that of the constant 1, is not used
};
[[gnu::noinline]] inline void feature_gradient(int64_t feature_dim, int64_t begin, int64_t end, int64_t vectors, const FeatureGradient& g) {
  each_feature_run(feature_dim, begin, end, [&](int64_t i, int64_t j, int64_t p, int64_t count) {
    each_vectors(vectors, [&]<int N>(int64_t t) {
      const float *in = g.grad_phi.data + (p - begin) * g.grad_phi.stride + t, *z = g.z + (p - begin);
      const float* xj = g.x.data + j * g.x.stride + t;
      float *gi = g.grad_x.data + i * g.grad_x.stride + t, *gj = g.grad_x.data + j * g.grad_x.stride + t;
      Vec xi[N], weight[N], sum[N];
      for (int n = 0; n < N; ++n) {
        xi[n] = load(g.x.data + i * g.x.stride + t + n * lanes);
        weight[n] = load(g.weight + t + n * lanes);
        sum[n] = zero();
        if (i == j && i > 0) sum[n] = 2.0f * inverse_sqrt2 * fma(weight[n], broadcast(z[0]), load(in + n * lanes)) * xi[n];
      }
      for (int64_t c = i == j && i > 0; c < count; ++c) {
        const Vec zc = broadcast(z[c]);
        float* to = gj + c * g.grad_x.stride;
        for (int n = 0; n < N; ++n) {
          const Vec grad = fma(weight[n], zc, load(in + c * g.grad_phi.stride + n * lanes));
          sum[n] = fma(grad, load(xj + c * g.x.stride + n * lanes), sum[n]);
          store(to + n * lanes, fma(grad, xi[n], load(to + n * lanes)));
        }
      }
      for (int n = 0; n < N; ++n) store(gi + n * lanes, load(gi + n * lanes) + sum[n]);
    });
  });
}

// z_p = scale · z_p + Σ_t phi[p][t] · weight[t]. Where scale == 0, z is not read. Up to lanes - 1 rows of phi after `count` are read, but
// not used.
[[gnu::noinline]] inline void add_row_sums(Matrix phi, int64_t count, int64_t vectors, const float* weight, float scale, float* z) {
  for (int64_t p = 0; p < count; p += lanes) {
    const int width = static_cast<int>(count - p < lanes ? count - p : lanes);
    Vec sum[lanes];
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) sum[i] = zero();
    for (int64_t v = 0; v < vectors; ++v) {
      const Vec w = load(weight + v * lanes);
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) sum[i] = fma(load(phi.data + (p + i) * phi.stride + v * lanes), w, sum[i]);
    }
    transpose(sum);
    Vec total = scale == 0 ? zero() : load(z + p, width) * scale;
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) total += sum[i];
    store(z + p, total, width);
  }
}

// Allocates arrays one after another in the caller's scratch, each aligned to a cache line. With a null base it only counts the bytes.
class ChunkLayout {
 public:
  explicit ChunkLayout(void* base) : base_(static_cast<char*>(base)) {}
  float* take(int64_t floats) {
    float* at = base_ ? reinterpret_cast<float*>(base_ + used_) : nullptr;
    used_ += round_up(floats * 4, 64);
    return at;
  }
  int64_t bytes() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// Sizes of the arrays of one head.
struct Sizes {
  int64_t d, head_dim, packed;  // feature_dim, head_dim, packed features
  int64_t chunk;                // tokens of a chunk, a multiple of lanes and of tile_rows
  int64_t block;                // features processed at a time; they and their rows of the state should stay in the L2 cache
  int64_t padded_d, padded_head_dim;

  explicit Sizes(const TaylorAttention& a) : d(a.feature_dim), head_dim(a.head_dim), packed(packed_features(a.feature_dim)) {
    // A longer chunk costs more for the pairs within it and less for reading and writing the state, whose size grows with d².
    chunk = d <= 24 ? 48 : 96;
    const int64_t blocks = (packed + 159) / 160;
    block = round_up((packed + blocks - 1) / blocks, tile_rows);
    padded_d = round_up(d, lanes);
    padded_head_dim = round_up(head_dim, lanes);
  }
  int64_t head_vectors() const { return padded_head_dim / lanes; }
  static int64_t vectors(int64_t tokens) { return (tokens + lanes - 1) / lanes; }
};

// Powers of a head's decay g.
struct Decay {
  float* power;  // [chunk + 1], g^n
  float* mask;   // [2 · chunk + 16], g^(chunk - n) up to n = chunk, then 0
  int64_t chunk;

  void allocate(ChunkLayout& layout, const Sizes& size) {
    chunk = size.chunk;
    power = layout.take(chunk + 1);
    mask = layout.take(2 * chunk + 16);
  }
  void fill(float g) const {
    double x = 1;
    for (int64_t n = 0; n <= chunk; ++n, x *= static_cast<double>(g)) power[n] = static_cast<float>(x);
    for (int64_t n = 0; n < 2 * chunk + 16; ++n) mask[n] = n <= chunk ? power[chunk - n] : 0.0f;
  }
  // Lanes are tokens s, s + 1, …: g^(t - s) where s <= t, 0 elsewhere.
  Vec weight(int64_t t, int64_t s) const { return load(mask + chunk - t + s); }
};

// Queries or keys of a chunk, token-minor, with the constant 1 as row 0; columns after the last token are 0. `scaled` is x times each
// token's decay: from the chunk's start for queries, to the chunk's end for keys.
struct Projected {
  Output x, scaled;  // [d + 1][chunk]

  void allocate(ChunkLayout& layout, const Sizes& size) {
    x = {layout.take((size.d + 1) * size.chunk), size.chunk};
    scaled = {layout.take((size.d + 1) * size.chunk), size.chunk};
  }
  // On entry row 0 of `scaled` is the factor of each token.
  void scale(int64_t d, int64_t vectors) const {
    for (int64_t v = 0; v < vectors; ++v) {
      const Vec factor = load(scaled.data + v * lanes);
      for (int64_t i = 1; i <= d; ++i) store(scaled.data + i * scaled.stride + v * lanes, load(x.data + i * x.stride + v * lanes) * factor);
    }
  }
  template <class T>
  void load_queries(const T* from, int64_t stride, int64_t n, const Sizes& size, const Decay& decay) const {
    load_transposed(from, stride, n, size.d, x.row(1));
    for (int64_t t = 0; t < Sizes::vectors(n) * lanes; ++t) {
      x.data[t] = t < n ? 1.0f : 0.0f;
      scaled.data[t] = t < n ? decay.power[t + 1] : 0.0f;
    }
    scale(size.d, Sizes::vectors(n));
  }
  template <class T>
  void load_keys(const T* from, int64_t stride, int64_t n, const Sizes& size, const Decay& decay) const {
    load_transposed(from, stride, n, size.d, x.row(1));
    for (int64_t t = 0; t < Sizes::vectors(n) * lanes; ++t) {
      x.data[t] = t < n ? 1.0f : 0.0f;
      scaled.data[t] = t < n ? decay.power[n - 1 - t] : 0.0f;
    }
    scale(size.d, Sizes::vectors(n));
  }
};

// A state, S = Σ φ(k) vᵀ [packed][padded head_dim] and z = Σ φ(k) [packed]; or its gradient. Where `zero`, the state is zero and the arrays
// are not initialised.
struct State {
  Output s;
  float* z;
  bool zero;

  void allocate(ChunkLayout& layout, const Sizes& size) {
    s = {layout.take(size.packed * size.padded_head_dim), size.padded_head_dim};
    z = layout.take(size.packed);
  }
  void read(const float* kv_state, const float* k_state, const Sizes& size) {
    zero = kv_state == nullptr;
    if (zero) return;
    load_rows(kv_state, size.head_dim, size.packed, size.head_dim, s);
    for (int64_t p = 0; p < size.packed; ++p) z[p] = k_state[p];
  }
  void write(float* kv_state, float* k_state, const Sizes& size) const {
    for (int64_t p = 0; p < size.packed; ++p) k_state[p] = zero ? 0.0f : z[p];
    if (!zero) return store_rows(s.view(), size.packed, size.head_dim, kv_state, size.head_dim);
    for (int64_t i = 0; i < size.packed * size.head_dim; ++i) kv_state[i] = 0.0f;
  }
};

// The data of a head that persists from chunk to chunk.
struct Head {
  Decay decay;
  State state;

  void allocate(ChunkLayout& layout, const Sizes& size) {
    decay.allocate(layout, size);
    state.allocate(layout, size);
  }
};

}  // namespace based::kernels::cpu::BASED_ISA
