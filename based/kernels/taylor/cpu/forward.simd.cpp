// Chunked forward of Taylor attention (paper, section 4.1): the tokens of a chunk attend to each other through their scores, and to all
// earlier tokens through the packed state, so the cost is linear in the length.
#include <cassert>

#include "based/kernels/taylor/cpu/chunk.h"
#include "based/kernels/taylor/cpu/simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

struct Forward {
  Sizes size;
  Projected q, k;
  Output v, y, weights, phi;  // v and y [chunk][padded head_dim], [tile_rows][chunk], [block + lanes][chunk]
  float* denominator;         // [chunk]
  bool decay_denominator;
  Decay constant;  // powers of 1: the denominator's where it does not decay
  Head heads[max_heads_per_item];
  int64_t bytes;

  Forward(const TaylorAttention& a, int64_t item_heads, void* scratch) : size(a), decay_denominator(a.decay_denominator) {
    ChunkLayout layout(scratch);
    q.allocate(layout, size);
    k.allocate(layout, size);
    v = {layout.take(size.chunk * size.padded_head_dim), size.padded_head_dim};
    y = {layout.take(size.chunk * size.padded_head_dim), size.padded_head_dim};
    weights = {layout.take(tile_rows * size.chunk), size.chunk};
    phi = {layout.take((size.block + lanes) * size.chunk), size.chunk};
    denominator = layout.take(size.chunk);
    constant.allocate(layout, size);
    for (int64_t h = 0; h < item_heads; ++h) heads[h].allocate(layout, size);
    bytes = layout.bytes();
  }

  const Decay& denominator_decay(const Head& head) const { return decay_denominator ? head.decay : constant; }

  // y = Σ w v and denominator = Σ w over the chunk's own tokens.
  void within_chunk(int64_t n, const Decay& decay) const {
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
      multiply<false>(m, size.head_vectors(), t0 + m, weights.view(), v.view(), y.row(t0), 0);
    }
  }

  // Adds the contribution of earlier tokens, by the state, to y and denominator; then, where `update`, adds the chunk to the state.
  void apply_state(int64_t n, Head& head, bool update) const {
    State& state = head.state;
    const int64_t vectors = Sizes::vectors(n);
    const float keep = state.zero ? 0.0f : head.decay.power[n], keep_sums = state.zero ? 0.0f : denominator_decay(head).power[n];
    for (int64_t p = 0; p < size.packed; p += size.block) {
      const int64_t end = p + size.block < size.packed ? p + size.block : size.packed, count = end - p;
      if (!state.zero) {
        features(size.d, p, end, q.scaled.view(), q.x.view(), vectors, phi);
        multiply<true>(n, size.head_vectors(), count, phi.view(), state.s.row(p).view(), y, 1);
        if (!decay_denominator) features(size.d, p, end, q.x.view(), q.x.view(), vectors, phi);
        multiply<false>(1, vectors, count, {state.z + p, 0}, phi.view(), {denominator, 0}, 1);
      }
      if (update) {
        features(size.d, p, end, k.scaled.view(), k.x.view(), vectors, phi);
        multiply<false>(count, size.head_vectors(), n, phi.view(), v.view(), state.s.row(p), keep);
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
      Head& head = work_.heads[h - heads_.begin];
      head.decay.fill(a_.decay ? a_.decay[h] : 1.0f);
      head.state.read(a_.kv_state ? kv_state(h) : nullptr, a_.kv_state ? k_state(h) : nullptr, size);
    }
    for (int64_t t = 0; t < n_; t += size.chunk)
      for (int64_t h = heads_.begin; h < heads_.end; ++h) chunk(t, n_ - t < size.chunk ? n_ - t : size.chunk, h);
    if (a_.kv_state)
      for (int64_t h = heads_.begin; h < heads_.end; ++h) work_.heads[h - heads_.begin].state.write(kv_state(h), k_state(h), size);
  }

 private:
  float* kv_state(int64_t h) const { return a_.kv_state + (slot_ * a_.heads + h) * work_.size.packed * a_.head_dim; }
  float* k_state(int64_t h) const { return a_.k_state + (slot_ * a_.heads + h) * work_.size.packed; }

  // Prefetches the outputs that this chunk writes and the inputs of the next chunk.
  void prefetch(int64_t t, int64_t n, int64_t h) const {
    const int64_t at = (first_ + t) * a_.heads + h, qk_stride = a_.heads * a_.feature_dim, v_stride = a_.heads * a_.head_dim;
    prefetch_rows<true>(static_cast<const T*>(a_.y) + at * a_.head_dim, v_stride, n, a_.head_dim);
    if (t + n == n_) return;
    const int64_t next = at + n * a_.heads, n_next = n_ - t - n < n ? n_ - t - n : n;
    prefetch_rows<false>(static_cast<const T*>(a_.q) + next * a_.feature_dim, qk_stride, n_next, a_.feature_dim);
    prefetch_rows<false>(static_cast<const T*>(a_.k) + next * a_.feature_dim, qk_stride, n_next, a_.feature_dim);
    prefetch_rows<false>(static_cast<const T*>(a_.v) + next * a_.head_dim, v_stride, n_next, a_.head_dim);
  }

  // Processes tokens t … t + n - 1 of the row, head h.
  void chunk(int64_t t, int64_t n, int64_t h) {
    const Sizes& size = work_.size;
    Head& head = work_.heads[h - heads_.begin];
    const int64_t at = (first_ + t) * a_.heads + h, qk_stride = a_.heads * size.d, v_stride = a_.heads * size.head_dim;
    work_.q.load_queries(static_cast<const T*>(a_.q) + at * size.d, qk_stride, n, size, head.decay);
    work_.k.load_keys(static_cast<const T*>(a_.k) + at * size.d, qk_stride, n, size, head.decay);
    load_rows(static_cast<const T*>(a_.v) + at * size.head_dim, v_stride, n, size.head_dim, work_.v);
    prefetch(t, n, h);
    const float before = head.state.zero ? 0.0f : head.state.z[0];
    work_.within_chunk(n, head.decay);
    work_.apply_state(n, head, a_.kv_state != nullptr || t + n < n_);
    work_.check_denominators(n, work_.denominator_decay(head), before);
    for (int64_t r = 0; r < n; ++r) {
      const float denominator = work_.denominator[r], inverse = 1.0f / denominator;
      if (a_.denominator) a_.denominator[at + r * a_.heads] = denominator;
      float* y = work_.y.data + r * work_.y.stride;
      for (int64_t c = 0; c < size.padded_head_dim; c += lanes) store(y + c, load(y + c) * inverse);
    }
    store_rows(work_.y.view(), n, size.head_dim, static_cast<T*>(a_.y) + at * size.head_dim, v_stride);
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
