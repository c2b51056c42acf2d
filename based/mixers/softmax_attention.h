// Exact softmax attention with rotary position embeddings, over all keys or over a sliding window: the common base of the mixers
// `attention` and `sliding_window`. One projection computes queries, keys and values. Query heads may share key heads (grouped-query
// attention).
#pragma once
#include <memory>

#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/ops/attention/causal_attention.h"
#include "based/ops/attention/rotary.h"

namespace based {

struct SoftmaxAttentionConfig {
  int64_t heads = 16;
  int64_t kv_heads = 0;
  int64_t rotary_dim = -1;
  double rotary_base = 10000;
  bool rotary_interleaved = false;
  bool qkv_bias = false;
  bool out_bias = false;
  double dropout = 0;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("heads", heads, "attention heads, each of size d_model / heads");
    field("kv_heads", kv_heads, "heads of keys and values, a divisor of heads; 0: equal to heads");
    field("rotary_dim", rotary_dim, "dimensions of a head that carry rotary positions, an even number; -1: all, 0: none");
    field("rotary_base", rotary_base, "angle = position · base^(-2i / rotary_dim)");
    field("rotary_interleaved", rotary_interleaved, "rotate neighbours (2i, 2i + 1) instead of the two halves");
    field("qkv_bias", qkv_bias, "bias of the projection to queries, keys and values");
    field("out_bias", out_bias, "bias of the output projection");
    field("dropout", dropout, "dropout of the attention weights, after the softmax, in training");
  }
};

class SoftmaxAttention : public Mixer {
 public:
  // `window` is the number of keys that a token attends to, itself included; 0 means all. `name` is used in messages.
  SoftmaxAttention(const char* name, const SoftmaxAttentionConfig& config, int64_t window, const MixerContext& context);

  Tensor forward(const Tensor& x, const Pass& pass) override;
  // "k" and "v" [slots, capacity, kv_heads, head_dim] in the activations' type: a ring buffer of `window` steps, or a cache that grows.
  // Keys are stored after rotation.
  MixerState make_state(int64_t slots) const override;
  Formula state_formula(int64_t tokens) const override;
  // q·k and the weighted sum of values, for the keys that a causal row's tokens attend to.
  std::optional<double> sequence_flops(int64_t tokens) const override;
  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override;
  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override;
  bool steps_in_rounds() const override { return true; }

 private:
  struct Inputs {
    Tensor q, k, v;  // [tokens, heads or kv_heads, head_dim]
  };
  Inputs project(const Tensor& x, const Pass& pass) const;
  ops::Rotation rotation() const;  // rotates queries and keys, which are adjacent columns of the projection
  Tensor output(const Tensor& y) const;
  double scale() const;
  ops::AttentionDropout dropout(const Pass& pass) const;  // none outside training

  SoftmaxAttentionConfig config_;
  int64_t window_ = 0, head_dim_ = 0, layer_ = 0;
  std::shared_ptr<Projection> qkv_proj_, out_proj_;
};

}  // namespace based
