// Chunked forward of Taylor attention (paper, section 4.1): the tokens of a chunk attend to each other through their scores, and to all
// earlier tokens through the packed state, so the cost is linear in the length.
#include <cassert>

#include "based/kernels/taylor/cpu/chunk.h"
#include "based/kernels/taylor/cpu/simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

// A head with its inputs and outputs of one chunk. All heads of an item are copied token by token, because the heads of a token are
// adjacent in memory: reading head by head instead would touch each page once a head.
struct ForwardHead : Head {
  Output q, k, v, y;  // [chunk][padded_d], [chunk][padded_head_dim]

  void allocate(ChunkLayout& layout, const Sizes& size) {
    Head::allocate(layout, size);
    q = {layout.take(size.chunk * size.padded_d), size.padded_d};
    k = {layout.take(size.chunk * size.padded_d), size.padded_d};
    v = {layout.take(size.chunk * size.padded_head_dim), size.padded_head_dim};
    y = {layout.take(size.chunk * size.padded_head_dim), size.padded_head_dim};
  }
};

struct Forward {
  Sizes size;
  Projected q, k;
  Output weights, phi;  // [tile_rows][chunk], [block + lanes][chunk]
  float* denominator;   // [chunk]
  bool decay_denominator;
  Decay constant;  // powers of 1: the denominator's where it does not decay
  ForwardHead heads[max_heads_per_item];
  int64_t bytes;

  Forward(const TaylorAttention& a, int64_t item_heads, void* scratch) : size(a), decay_denominator(a.decay_denominator) {
    ChunkLayout layout(scratch);
    q.allocate(layout, size);
    k.allocate(layout, size);
    weights = {layout.take(tile_rows * size.chunk), size.chunk};
    phi = {layout.take((size.block + lanes) * size.chunk), size.chunk};
    denominator = layout.take(size.chunk);
    constant.allocate(layout, size);
    for (int64_t h = 0; h < item_heads; ++h) heads[h].allocate(layout, size);
    bytes = layout.bytes();
  }

  const Decay& denominator_decay(const Head& head) const { return decay_denominator ? head.decay : constant; }

  // y = Σ w v and denominator = Σ w over the chunk's own tokens.
  void within_chunk(int64_t n, const ForwardHead& head) const {
    const Decay& decay = head.decay;
    for (int64_t t0 = 0; t0 < n; t0 += tile_rows) {
      const int64_t m = n - t0 < tile_rows ? n - t0 : tile_rows, vectors = Sizes::vectors(t0 + m);
      multiply<true>(m, vectors, size.d, {q.x.data + q.x.stride + t0, q.x.stride}, k.x.row(1).view(), weights, 0);
      for (int64_t r = 0; r < m; ++r) {
        Vec sum = zero();
        for (int64_t i = 0; i < vectors; ++i) {
          float* at = weights.data + r * weights.stride + i * lanes;
          const Vec score = load(at), weight = fma(fma(score, broadcast(0.5f), broadcast(1.0f)), score, broadcast(1.0f));
          const Vec decayed = weight * decay.weight(t0 + r, i * lanes);
          store(at, decayed);
          sum += decay_denominator ? decayed : weight * constant.weight(t0 + r, i * lanes);
        }
        denominator[t0 + r] = reduce_add(sum);
      }
      multiply<false>(m, size.head_vectors(), t0 + m, weights.view(), head.v.view(), head.y.row(t0), 0);
    }
  }

  // Adds the contribution of earlier tokens, by the state, to y and denominator; then, where `update`, adds the chunk to the state.
  void apply_state(int64_t n, ForwardHead& head, bool update) const {
    State& state = head.state;
    const int64_t vectors = Sizes::vectors(n);
    const float keep = state.zero ? 0.0f : head.decay.power[n], keep_sums = state.zero ? 0.0f : denominator_decay(head).power[n];
    for (int64_t p = 0; p < size.packed; p += size.block) {
      const int64_t end = p + size.block < size.packed ? p + size.block : size.packed, count = end - p;
      if (!state.zero) {
        features(size.d, p, end, q.scaled.view(), q.x.view(), vectors, phi);
        multiply<true>(n, size.head_vectors(), count, phi.view(), state.s.row(p).view(), head.y, 1);
        if (!decay_denominator) features(size.d, p, end, q.x.view(), q.x.view(), vectors, phi);
        multiply<false>(1, vectors, count, {state.z + p, 0}, phi.view(), {denominator, 0}, 1);
      }
      if (update) {
        features(size.d, p, end, k.scaled.view(), k.x.view(), vectors, phi);
        multiply<false>(count, size.head_vectors(), n, phi.view(), head.v.view(), state.s.row(p), keep);
        if (!decay_denominator) features(size.d, p, end, k.x.view(), k.x.view(), vectors, phi);
        add_row_sums(phi.view(), count, vectors, k.x.data, keep_sums, state.z + p);
      }
    }
    if (update) state.zero = false;
  }

  // Every weight is at least ½, so the denominator is at least half the sum of its decays. decayed_before is that sum over the tokens
  // before the chunk, which is z[0].
  void check_denominators([[maybe_unused]] int64_t n, [[maybe_unused]] const Decay& decay, [[maybe_unused]] float decayed_before) const {
#ifndef NDEBUG
    float own = 0;
    for (int64_t t = 0; t < n; ++t) {
      own = own * decay.power[1] + 1.0f;
      assert(!(denominator[t] < 0.5f * 0.99f * (own + decay.power[t + 1] * decayed_before)));
    }
#endif
  }
};

template <class T>
class Row {
 public:
  Row(const TaylorAttention& a, int64_t row, Heads heads, void* scratch)
      : a_(a),
        work_(a, heads.end - heads.begin, scratch),
        heads_(heads),
        slot_(a.slot ? a.slot[row] : row),
        first_(a.row_start[row]),
        n_(a.row_start[row + 1] - first_) {}

  void run() {
    if (n_ == 0) return;
    const Sizes& size = work_.size;
    work_.constant.fill(1.0f);
    for (int64_t h = heads_.begin; h < heads_.end; ++h) {
      ForwardHead& head = work_.heads[h - heads_.begin];
      head.decay.fill(a_.decay ? a_.decay[h] : 1.0f);
      head.state.read(a_.kv_state ? kv_state(h) : nullptr, a_.kv_state ? k_state(h) : nullptr, size);
    }
    for (int64_t t = 0; t < n_; t += size.chunk) {
      const int64_t n = n_ - t < size.chunk ? n_ - t : size.chunk;
      for (int64_t r = 0; r < n; ++r) load_token(a_.v, first_ + t + r, size.head_dim, &ForwardHead::v, r);
      for (int64_t r = 0; r < n; ++r) load_token(a_.q, first_ + t + r, size.d, &ForwardHead::q, r);
      for (int64_t r = 0; r < n; ++r) load_token(a_.k, first_ + t + r, size.d, &ForwardHead::k, r);
      for (int64_t h = heads_.begin; h < heads_.end; ++h) chunk(t, n, h);
      for (int64_t r = 0; r < n; ++r) store_token(first_ + t + r, r);
    }
    if (a_.kv_state)
      for (int64_t h = heads_.begin; h < heads_.end; ++h) work_.heads[h - heads_.begin].state.write(kv_state(h), k_state(h), size);
  }

 private:
  float* kv_state(int64_t h) const { return a_.kv_state + (slot_ * a_.heads + h) * work_.size.packed * a_.head_dim; }
  float* k_state(int64_t h) const { return a_.k_state + (slot_ * a_.heads + h) * work_.size.packed; }

  // Copies one token's `columns` values of each of the item's heads to row r of their arrays, as fp32, padded with zeros.
  BASED_INLINE void load_token(const void* tensor, int64_t token, int64_t columns, Output ForwardHead::*to, int64_t r) const {
    const T* from = static_cast<const T*>(tensor) + (token * a_.heads + heads_.begin) * columns;
    for (int64_t i = 0; i < heads_.end - heads_.begin; ++i, from += columns) {
      float* const row = (work_.heads[i].*to).row(r).data;
      for_each_vector(columns, [&](int64_t c, int n) { store(row + c, n == lanes ? load(from + c) : load(from + c, n)); });
    }
  }
  BASED_INLINE void store_token(int64_t token, int64_t r) const {
    const int64_t columns = work_.size.head_dim;
    T* to = static_cast<T*>(a_.y) + (token * a_.heads + heads_.begin) * columns;
    for (int64_t i = 0; i < heads_.end - heads_.begin; ++i, to += columns) {
      const float* const row = work_.heads[i].y.row(r).data;
      for_each_vector(columns, [&](int64_t c, int n) { n == lanes ? store(to + c, load(row + c)) : store(to + c, load(row + c), n); });
    }
  }

  // Processes tokens t … t + n - 1 of the row, head h.
  void chunk(int64_t t, int64_t n, int64_t h) {
    const Sizes& size = work_.size;
    ForwardHead& head = work_.heads[h - heads_.begin];
    work_.q.load_queries(head.q.data, head.q.stride, n, size, head.decay);
    work_.k.load_keys(head.k.data, head.k.stride, n, size, head.decay);
    const float before = head.state.zero ? 0.0f : head.state.z[0];
    work_.within_chunk(n, head);
    work_.apply_state(n, head, a_.kv_state != nullptr || t + n < n_);
    work_.check_denominators(n, work_.denominator_decay(head), before);
    const int64_t at = (first_ + t) * a_.heads + h;
    for (int64_t r = 0; r < n; ++r) {
      const float denominator = work_.denominator[r], inverse = 1.0f / denominator;
      if (a_.denominator) a_.denominator[at + r * a_.heads] = denominator;
      float* y = head.y.row(r).data;
      for (int64_t c = 0; c < size.padded_head_dim; c += lanes) store(y + c, load(y + c) * inverse);
    }
  }

  const TaylorAttention& a_;
  Forward work_;
  Heads heads_;
  int64_t slot_, first_, n_;
};

}  // namespace

int64_t taylor_forward_scratch(const TaylorAttention& a, int64_t heads) { return Forward(a, heads, nullptr).bytes; }

void taylor_forward(const TaylorAttention& a, int64_t row, Heads heads, void* scratch) {
  a.dtype == DType::f32 ? Row<float>(a, row, heads, scratch).run() : Row<bf16>(a, row, heads, scratch).run();
}

}  // namespace based::kernels::cpu::BASED_ISA
