// Backward of Taylor attention. With ĝ = (g, -g·y) / denominator for a gradient g of y, and v̂ = (v, 1),
//   grad φ(q_t) = S_t ĝ_t,  grad φ(k_s) = U_s v̂_s,  grad v_s = U_sᵀ φ(k_s),  S_t = Σ_{s≤t} φ(k_s) v̂_sᵀ,  U_s = Σ_{t≥s} φ(q_t) ĝ_tᵀ.
// A first sweep over the chunks, in order, recomputes S for the gradients of the queries. A second sweep, in reverse order, computes U for
// the gradients of keys and values, and all gradients of pairs of tokens within a chunk. With decay, the term of tokens s ≤ t has the
// factor g^(t - s); without decay_denominator, the last column of S and U, that of the denominator, has no such factor.
#include "based/kernels/taylor/cpu/chunk.h"
#include "based/kernels/taylor/cpu/simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

struct Backward {
  Sizes size;
  Projected q, k;                    // token-minor
  Output q_rows, k_rows, v, g;       // [chunk][padded d or head_dim]; g is grad_y / denominator
  Output v_columns, g_columns;       // [head_dim][chunk]; g_columns is grad_y
  float *grad_denominator, *factor;  // [chunk]; the factors that the gradients of g_columns' tokens are still to be multiplied by
  bool decay_denominator;
  Decay constant;                     // powers of 1: the denominator's where it does not decay
  Output weights, score_gradient;     // [chunk][chunk]
  Output phi, grad_phi;               // [block + lanes][chunk], [block][chunk]
  Output grad_x;                      // [d + 1][chunk]
  Output grad_k, grad_v, transposed;  // [chunk][padded d], [chunk][padded head_dim], [chunk][padded d]
  Head heads[max_heads_per_item];     // the state is S in the first sweep, U in the second
  Output grad_q[max_heads_per_item];  // [longest row][padded d]
  float* dots[max_heads_per_item];    // [longest row], grad_y · y
  int64_t bytes;

  Backward(const TaylorAttention& a, int64_t item_heads, void* scratch) : size(a), decay_denominator(a.decay_denominator) {
    ChunkLayout layout(scratch);
    const auto take = [&](int64_t rows, int64_t columns) { return Output{layout.take(rows * columns), columns}; };
    const int64_t chunk = size.chunk;
    q.allocate(layout, size);
    k.allocate(layout, size);
    q_rows = take(chunk, size.padded_d);
    k_rows = take(chunk, size.padded_d);
    v = take(chunk, size.padded_head_dim);
    g = take(chunk, size.padded_head_dim);
    v_columns = take(size.head_dim, chunk);
    g_columns = take(size.head_dim, chunk);
    grad_denominator = layout.take(chunk);
    factor = layout.take(chunk);
    constant.allocate(layout, size);
    weights = take(chunk, chunk);
    score_gradient = take(chunk, chunk);
    phi = take(size.block + lanes, chunk);
    grad_phi = take(size.block, chunk);
    grad_x = take(size.d + 1, chunk);
    grad_k = take(chunk, size.padded_d);
    grad_v = take(chunk, size.padded_head_dim);
    transposed = take(chunk, size.padded_d);
    int64_t longest = 0;
    for (int64_t r = 0; r < a.rows; ++r)
      if (a.row_start[r + 1] - a.row_start[r] > longest) longest = a.row_start[r + 1] - a.row_start[r];
    for (int64_t h = 0; h < item_heads; ++h) {
      heads[h].allocate(layout, size);
      grad_q[h] = take(longest, size.padded_d);
      dots[h] = layout.take(longest);
    }
    bytes = layout.bytes();
  }

  const Decay& denominator_decay(const Head& head) const { return decay_denominator ? head.decay : constant; }

  // Multiplies the tokens of columns [head_dim][chunk] by their factors.
  void scale_columns(Output columns, int64_t vectors, const float* factors) const {
    for (int64_t c = 0; c < size.head_dim; ++c)
      for (int64_t t = 0; t < vectors * lanes; t += lanes) {
        float* at = columns.data + c * columns.stride + t;
        store(at, load(at) * load(factors + t));
      }
  }

  // First sweep: loads grad_y as columns, not yet divided by the denominator. That division and the decay from the chunk's start go to
  // `factor`; but the decay goes to the columns where the denominator does not decay.
  template <class T>
  void load_columns(const T* grad_y, const T* y, const float* denominator, int64_t heads_stride, int64_t n, float* dot) const {
    const int64_t stride = heads_stride * size.head_dim;
    load_transposed(grad_y, stride, n, size.head_dim, g_columns);
    for (int64_t t = 0; t < n; ++t) {
      Vec sum = zero();
      for (int64_t c = 0; c < size.head_dim; c += lanes) {
        const int width = static_cast<int>(size.head_dim - c < lanes ? size.head_dim - c : lanes);
        sum = fma(load(grad_y + t * stride + c, width), load(y + t * stride + c, width), sum);
      }
      dot[t] = reduce_add(sum);
      grad_denominator[t] = -dot[t];
      factor[t] = (decay_denominator ? q.scaled.data[t] : 1.0f) / denominator[t * heads_stride];
    }
    if (!decay_denominator) scale_columns(g_columns, Sizes::vectors(n), q.scaled.data);
    for (int64_t t = n; t < Sizes::vectors(n) * lanes; ++t) grad_denominator[t] = 0;
  }

  // Second sweep: loads g = grad_y / denominator.
  template <class T>
  void load_gradient(const T* grad_y, const float* denominator, int64_t heads_stride, int64_t n, const float* dot) const {
    load_rows(grad_y, heads_stride * size.head_dim, n, size.head_dim, g);
    for (int64_t t = 0; t < n; ++t) {
      const float inverse = 1.0f / denominator[t * heads_stride];
      grad_denominator[t] = -dot[t] * inverse;
      for (int64_t c = 0; c < size.padded_head_dim; c += lanes) {
        float* at = g.data + t * g.stride + c;
        store(at, load(at) * inverse);
      }
    }
    for (int64_t t = n; t < Sizes::vectors(n) * lanes; ++t) grad_denominator[t] = 0;
  }

  void clear(Output x, int64_t rows, int64_t columns) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; c += lanes) store(x.data + r * x.stride + c, zero());
  }

  // to [n][padded d] = or, where `add`, += the transpose of grad_x without row 0, each token multiplied by its factor.
  void transpose_gradient(int64_t n, const float* factors, Output to, bool add) const {
    load_transposed(grad_x.data + grad_x.stride, grad_x.stride, size.d, n, transposed);
    for (int64_t t = 0; t < n; ++t)
      for (int64_t c = 0; c < size.padded_d; c += lanes) {
        float* at = to.data + t * to.stride + c;
        const Vec x = load(transposed.data + t * transposed.stride + c) * factors[t];
        store(at, add ? load(at) + x : x);
      }
  }

  // First sweep: writes the part of the queries' gradient that comes from the state before the chunk to grad_queries; then, where `update`,
  // adds the chunk to the state.
  void forward_chunk(int64_t n, Head& head, Output grad_queries, bool update) const {
    State& state = head.state;
    const int64_t vectors = Sizes::vectors(n);
    const float keep = state.zero ? 0.0f : head.decay.power[n], keep_sums = state.zero ? 0.0f : denominator_decay(head).power[n];
    if (!state.zero) clear(grad_x, size.d + 1, vectors * lanes);
    for (int64_t p = 0; p < size.packed; p += size.block) {
      const int64_t end = p + size.block < size.packed ? p + size.block : size.packed, count = end - p;
      if (!state.zero) {
        multiply<false>(count, vectors, size.head_dim, state.s.row(p).view(), g_columns.view(), grad_phi, 0);
        feature_gradient(size.d, p, end, vectors, {grad_phi.view(), state.z + p, grad_denominator, q.x.view(), grad_x});
      }
      if (update) {
        features(size.d, p, end, k.scaled.view(), k.x.view(), vectors, phi);
        multiply<false>(count, size.head_vectors(), n, phi.view(), v.view(), state.s.row(p), keep);
        if (!decay_denominator) features(size.d, p, end, k.x.view(), k.x.view(), vectors, phi);
        add_row_sums(phi.view(), count, vectors, k.x.data, keep_sums, state.z + p);
      }
    }
    if (state.zero)
      clear(grad_queries, n, size.padded_d);
    else
      transpose_gradient(n, factor, grad_queries, false);
    if (update) state.zero = false;
  }

  // For the pairs of tokens t0 … t0 + m - 1 with the tokens up to them in the chunk: computes the weights and the gradient of the scores,
  // and adds their part of the queries' gradient to grad_queries.
  void pairs(int64_t t0, int64_t m, const Head& head, Output grad_queries) const {
    const Decay &decay = head.decay, &sums_decay = denominator_decay(head);
    const int64_t vectors = Sizes::vectors(t0 + m);
    const Output w = weights.row(t0), e = score_gradient.row(t0);
    multiply<true>(m, vectors, size.d, {q.x.data + q.x.stride + t0, q.x.stride}, k.x.row(1).view(), w, 0);
    multiply<false>(m, vectors, size.head_dim, g.row(t0).view(), v_columns.view(), e, 0);
    for (int64_t r = 0; r < m; ++r) {
      const Vec grad_d = broadcast(grad_denominator[t0 + r]), one = broadcast(1.0f);
      for (int64_t i = 0; i < vectors; ++i) {
        float *w_at = w.data + r * w.stride + i * lanes, *e_at = e.data + r * e.stride + i * lanes;
        const Vec score = load(w_at), decay_weight = decay.weight(t0 + r, i * lanes);
        const Vec grad_sums = grad_d * sums_decay.weight(t0 + r, i * lanes);
        store(w_at, fma(fma(score, broadcast(0.5f), one), score, one) * decay_weight);
        store(e_at, fma(load(e_at), decay_weight, grad_sums) * (score + one));
      }
    }
    multiply<false>(m, size.padded_d / lanes, t0 + m, e.view(), k_rows.view(), grad_queries, 1);
  }

  // Second sweep: the gradients from the pairs of tokens within the chunk.
  void within_chunk(int64_t n, const Head& head, Output grad_queries) const {
    for (int64_t t = 0; t < n; t += tile_rows) pairs(t, n - t < tile_rows ? n - t : tile_rows, head, grad_queries.row(t));
    for (int64_t s = 0; s < n; s += tile_rows) {
      const int64_t m = n - s < tile_rows ? n - s : tile_rows, diagonal = s * size.chunk + s;
      multiply<true>(m, size.head_vectors(), n - s, {weights.data + diagonal, size.chunk}, g.row(s).view(), grad_v.row(s), 0);
      multiply<true>(m, size.padded_d / lanes, n - s, {score_gradient.data + diagonal, size.chunk}, q_rows.row(s).view(), grad_k.row(s), 0);
    }
  }

  // Second sweep: adds the contribution of later chunks to the gradients of keys and values; then, where `update`, adds the chunk to the
  // state's gradient. Scales v_columns where the denominator does not decay.
  void backward_chunk(int64_t n, Head& head, bool update) const {
    State& state = head.state;
    const int64_t vectors = Sizes::vectors(n);
    const float keep = state.zero ? 0.0f : head.decay.power[n], keep_sums = state.zero ? 0.0f : denominator_decay(head).power[n];
    if (!state.zero) clear(grad_x, size.d + 1, vectors * lanes);
    if (!state.zero && !decay_denominator) scale_columns(v_columns, vectors, k.scaled.data);
    for (int64_t p = 0; p < size.packed; p += size.block) {
      const int64_t end = p + size.block < size.packed ? p + size.block : size.packed, count = end - p;
      if (!state.zero) {
        multiply<false>(count, vectors, size.head_dim, state.s.row(p).view(), v_columns.view(), grad_phi, 0);
        feature_gradient(size.d, p, end, vectors, {grad_phi.view(), state.z + p, k.x.data, k.x.view(), grad_x});
        features(size.d, p, end, k.scaled.view(), k.x.view(), vectors, phi);
        multiply<true>(n, size.head_vectors(), count, phi.view(), state.s.row(p).view(), grad_v, 1);
      }
      if (update) {
        features(size.d, p, end, q.scaled.view(), q.x.view(), vectors, phi);
        multiply<false>(count, size.head_vectors(), n, phi.view(), g.view(), state.s.row(p), keep);
        if (!decay_denominator) features(size.d, p, end, q.x.view(), q.x.view(), vectors, phi);
        add_row_sums(phi.view(), count, vectors, grad_denominator, keep_sums, state.z + p);
      }
    }
    if (!state.zero) transpose_gradient(n, decay_denominator ? k.scaled.data : k.x.data, grad_k, true);
    if (update) state.zero = false;
  }
};

// Some heads of a row; tokens are counted from the row's start.
template <class T>
class Row {
 public:
  Row(const TaylorAttentionBackward& b, int64_t row, Heads heads, void* scratch)
      : b_(b),
        a_(b.forward),
        work_(a_, heads.end - heads.begin, scratch),
        heads_(heads),
        row_(row),
        first_(a_.row_start[row]),
        n_(a_.row_start[row + 1] - first_) {}

  void run() {
    const Sizes& size = work_.size;
    work_.constant.fill(1.0f);
    read_states(b_.initial_kv_state, b_.initial_k_state);
    for (int64_t h = heads_.begin; h < heads_.end; ++h) work_.heads[h - heads_.begin].decay.fill(a_.decay ? a_.decay[h] : 1.0f);
    for (int64_t t = 0; t < n_; t += size.chunk)
      for (int64_t h = heads_.begin; h < heads_.end; ++h) forward(t, length(t), h);
    read_states(b_.grad_kv_state, b_.grad_k_state);
    for (int64_t t = (n_ - 1) / size.chunk * size.chunk; t >= 0 && n_ > 0; t -= size.chunk)
      for (int64_t h = heads_.begin; h < heads_.end; ++h) backward(t, length(t), h);
    if (!b_.grad_initial_kv_state) return;
    for (int64_t h = heads_.begin; h < heads_.end; ++h)
      work_.heads[h - heads_.begin].state.write(b_.grad_initial_kv_state + kv_offset(h), b_.grad_initial_k_state + k_offset(h), size);
  }

 private:
  int64_t length(int64_t t) const { return n_ - t < work_.size.chunk ? n_ - t : work_.size.chunk; }
  int64_t k_offset(int64_t h) const { return (row_ * a_.heads + h) * work_.size.packed; }
  int64_t kv_offset(int64_t h) const { return k_offset(h) * a_.head_dim; }
  int64_t token(int64_t t, int64_t h) const { return (first_ + t) * a_.heads + h; }
  int64_t qk(int64_t t, int64_t h) const { return token(t, h) * a_.feature_dim; }
  int64_t vy(int64_t t, int64_t h) const { return token(t, h) * a_.head_dim; }
  static const T* input(const void* base) { return static_cast<const T*>(base); }
  static T* output(void* base) { return static_cast<T*>(base); }

  void read_states(const float* kv_state, const float* k_state) {
    for (int64_t h = heads_.begin; h < heads_.end; ++h)
      work_.heads[h - heads_.begin].state.read(kv_state ? kv_state + kv_offset(h) : nullptr, kv_state ? k_state + k_offset(h) : nullptr,
                                               work_.size);
  }

  void load(int64_t t, int64_t n, int64_t h) const {
    const int64_t qk_stride = a_.heads * a_.feature_dim;
    const Decay& decay = work_.heads[h - heads_.begin].decay;
    work_.q.load_queries(input(a_.q) + qk(t, h), qk_stride, n, work_.size, decay);
    work_.k.load_keys(input(a_.k) + qk(t, h), qk_stride, n, work_.size, decay);
  }

  // Prefetches the inputs of the next chunk of a sweep, if there is one.
  void prefetch(int64_t t, int64_t h, bool with_y) const {
    if (t < 0 || t >= n_) return;
    const int64_t qk_stride = a_.heads * a_.feature_dim, v_stride = a_.heads * a_.head_dim, n = length(t);
    prefetch_rows<false>(input(a_.q) + qk(t, h), qk_stride, n, a_.feature_dim);
    prefetch_rows<false>(input(a_.k) + qk(t, h), qk_stride, n, a_.feature_dim);
    prefetch_rows<false>(input(a_.v) + vy(t, h), v_stride, n, a_.head_dim);
    if (with_y) prefetch_rows<false>(input(a_.y) + vy(t, h), v_stride, n, a_.head_dim);
    prefetch_rows<false>(input(b_.grad_y) + vy(t, h), v_stride, n, a_.head_dim);
  }

  void forward(int64_t t, int64_t n, int64_t h) {
    Head& head = work_.heads[h - heads_.begin];
    load(t, n, h);
    load_rows(input(a_.v) + vy(t, h), a_.heads * a_.head_dim, n, a_.head_dim, work_.v);
    work_.load_columns(input(b_.grad_y) + vy(t, h), input(a_.y) + vy(t, h), a_.denominator + token(t, h), a_.heads, n,
                       work_.dots[h - heads_.begin] + t);
    prefetch(t + n, h, true);
    work_.forward_chunk(n, head, work_.grad_q[h - heads_.begin].row(t), t + n < n_);
  }

  void backward(int64_t t, int64_t n, int64_t h) {
    const int64_t qk_stride = a_.heads * a_.feature_dim, v_stride = a_.heads * a_.head_dim;
    Head& head = work_.heads[h - heads_.begin];
    const Output grad_q = work_.grad_q[h - heads_.begin].row(t);
    load(t, n, h);
    load_rows(input(a_.q) + qk(t, h), qk_stride, n, a_.feature_dim, work_.q_rows);
    load_rows(input(a_.k) + qk(t, h), qk_stride, n, a_.feature_dim, work_.k_rows);
    load_transposed(input(a_.v) + vy(t, h), v_stride, n, a_.head_dim, work_.v_columns);
    work_.load_gradient(input(b_.grad_y) + vy(t, h), a_.denominator + token(t, h), a_.heads, n, work_.dots[h - heads_.begin] + t);
    prefetch_rows<true>(input(b_.grad_q) + qk(t, h), qk_stride, n, a_.feature_dim);
    prefetch_rows<true>(input(b_.grad_k) + qk(t, h), qk_stride, n, a_.feature_dim);
    prefetch_rows<true>(input(b_.grad_v) + vy(t, h), v_stride, n, a_.head_dim);
    prefetch(t - work_.size.chunk, h, false);
    work_.within_chunk(n, head, grad_q);
    work_.backward_chunk(n, head, t > 0 || b_.grad_initial_kv_state);
    store_rows(grad_q.view(), n, a_.feature_dim, output(b_.grad_q) + qk(t, h), qk_stride);
    store_rows(work_.grad_k.view(), n, a_.feature_dim, output(b_.grad_k) + qk(t, h), qk_stride);
    store_rows(work_.grad_v.view(), n, a_.head_dim, output(b_.grad_v) + vy(t, h), v_stride);
  }

  const TaylorAttentionBackward& b_;
  const TaylorAttention& a_;
  Backward work_;
  Heads heads_;
  int64_t row_, first_, n_;
};

}  // namespace

int64_t taylor_backward_scratch(const TaylorAttentionBackward& b, int64_t heads) { return Backward(b.forward, heads, nullptr).bytes; }

void taylor_backward(const TaylorAttentionBackward& b, int64_t row, Heads heads, void* scratch) {
  b.forward.dtype == DType::f32 ? Row<float>(b, row, heads, scratch).run() : Row<bf16>(b, row, heads, scratch).run();
}

}  // namespace based::kernels::cpu::BASED_ISA
