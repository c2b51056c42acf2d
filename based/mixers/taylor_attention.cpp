// Second-order Taylor linear attention (paper, section 4.1): 1 + s + s²/2 with s = q·k/√d' replaces exp(q·k/√d'), so that the sums over
// past tokens are a state of fixed size.
#include "based/ops/taylor/taylor_attention.h"

#include <cmath>
#include <vector>

#include "based/kernels/taylor/taylor.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/linear/linear.h"
#include "based/ops/linear/split_columns.h"

namespace based {
namespace {

struct TaylorAttentionConfig {
  int64_t heads = 16;
  int64_t feature_dim = 16;
  int64_t head_dim = 0;
  bool decay = false;
  bool bias = false;
  bool rescale_output = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("heads", heads, "attention heads");
    field("feature_dim", feature_dim, "size d' of a head's queries and keys, 1..64; the state holds 1 + d' + d'(d'+1)/2 features");
    field("head_dim", head_dim, "size of a head's values; 0: d_model / heads");
    field("decay", decay, "fixed decay rate per head, and a projection of the input that scales the heads (paper, appendix \"Decay\")");
    field("bias", bias, "biases in the projections");
    field("rescale_output", rescale_output,
          "initial output projection N(0, 0.02/sqrt(2 layers)), as in language models; otherwise N(0, 0.02), as in the recall models");
  }
};

// 1 − 2^-5 … 1 − 2^-9, spaced evenly in the exponent: the heads remember about 32 to 512 tokens.
Tensor decay_rates(int64_t heads) { return 1 - torch::exp2(torch::linspace(-5, -9, heads, torch::kFloat64)); }

class TaylorAttention final : public Mixer {
 public:
  TaylorAttention(const TaylorAttentionConfig& config, const MixerContext& context) : config_(config) {
    check_option("taylor_attention", "heads", config.heads, 1, 4096);
    check_option("taylor_attention", "feature_dim", config.feature_dim, 1, 64);
    if (config_.head_dim == 0)
      config_.head_dim = divided("taylor_attention", "d_model", context.d_model, "heads", config.heads, "; give head_dim");
    check_option("taylor_attention", "head_dim", config_.head_dim, 1, 65536);
    const int64_t d = context.d_model;
    q_proj_ = register_module("q_proj", std::make_shared<Projection>(d, config.heads * config.feature_dim, config.bias));
    k_proj_ = register_module("k_proj", std::make_shared<Projection>(d, config.heads * config.feature_dim, config.bias));
    v_proj_ = register_module("v_proj", std::make_shared<Projection>(d, config.heads * config_.head_dim, config.bias));
    const double out_std = config.rescale_output ? output_initial_std(context.layers) : initial_std;
    o_proj_ = register_module("o_proj", std::make_shared<Projection>(config.heads * config_.head_dim, d, config.bias, out_std));
    if (config.decay) {
      head_scale_ = register_module("head_scale", std::make_shared<Projection>(d, config.heads, false));
    }
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    const Inputs in = config_.bias ? scaled(project(x)) : project_fused(x);
    return output(x, ops::taylor_attention_without_state(in.q, in.k, in.v, pass.cu_seqlens(), rates(x)));
  }

  // "kv" [slots, heads, packed_features, head_dim] and the denominator's "k" [slots, heads, packed_features]; fp32, fp64 in fp64.
  MixerState make_state(int64_t slots) const override {
    const auto options = sum_options(q_proj_->weight());
    const int64_t features = kernels::packed_features(config_.feature_dim);
    return MixerState({{"kv", torch::zeros({slots, config_.heads, features, config_.head_dim}, options)},
                       {"k", torch::zeros({slots, config_.heads, features}, options)}});
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    const Formula heads{"heads", config_.heads}, d{"feature_dim", config_.feature_dim}, head_dim{"head_dim", config_.head_dim};
    return sum_bytes(q_proj_->weight()) * heads * (1 + d + d * (d + 1) / 2) * (head_dim + 1);
  }

  std::optional<double> sequence_flops(int64_t /*tokens*/) const override {
    return static_cast<double>(kernels::taylor_attention_flops(1, config_.heads, config_.feature_dim, config_.head_dim));
  }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override {
    const Inputs in = scaled(project(x));
    return output(x, ops::taylor_attention_prefill(in.q, in.k, in.v, pass.cu_seqlens(), {state["kv"], state["k"]}, pass.slots(), rates(x)));
  }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    const Inputs in = project(x);
    ops::TaylorState sums{state["kv"], state["k"]};
    return output(x, ops::taylor_attention_step(in.q, in.k, in.v, sums, pass.slots(), rates(x), scale()));
  }

 private:
  struct Inputs {
    Tensor q, k, v;
  };

  // From [tokens, heads · dim] to [tokens, heads, dim].
  Inputs by_heads(const Tensor& q, const Tensor& k, const Tensor& v) const {
    return {q.view({-1, config_.heads, config_.feature_dim}), k.view({-1, config_.heads, config_.feature_dim}),
            v.view({-1, config_.heads, config_.head_dim})};
  }
  Inputs project(const Tensor& x) const { return by_heads(q_proj_->forward(x), k_proj_->forward(x), v_proj_->forward(x)); }

  // Projects and scales with one matrix product, and two for the gradients: x is read once, and its gradient needs no sum of three parts.
  // If the scale is a power of two, it is applied to the weights instead, which leaves the products the same bit for bit.
  Inputs project_fused(const Tensor& x) const {
    int exponent = 0;
    const bool scales_weights = std::frexp(scale(), &exponent) == 0.5;
    const auto scaled_weight = [&](const Projection& projection) {
      return scales_weights && scale() != 1 ? projection.weight() * scale() : projection.weight();
    };
    const int64_t narrow = config_.heads * config_.feature_dim, wide = config_.heads * config_.head_dim;
    const auto parts = ops::split_columns(ops::linear(x, torch::cat({scaled_weight(*q_proj_), scaled_weight(*k_proj_), v_proj_->weight()})),
                                          {narrow, narrow, wide});
    const Inputs in = by_heads(parts[0], parts[1], parts[2]);
    return scales_weights ? in : scaled(in);
  }

  // The factor for q and k alike: d'^-¼, which makes their product q·k/√d'.
  double scale() const { return std::pow(static_cast<double>(config_.feature_dim), -0.25); }
  Inputs scaled(const Inputs& in) const { return {in.q * scale(), in.k * scale(), in.v}; }

  // The rates [heads] on x's device in the accumulation type, copied there once: a copy in each call would synchronise with the device, and
  // cannot be captured into a CUDA graph.
  std::optional<Tensor> rates(const Tensor& x) {
    if (!config_.decay) return std::nullopt;
    const at::ScalarType type = ops::sum_type(x);
    if (!rates_.defined() || rates_.device() != x.device() || rates_.scalar_type() != type) {
      const torch::InferenceMode none(false);  // training may follow
      rates_ = decay_rates(config_.heads).to(x.device(), type);
    }
    return rates_;
  }

  Tensor output(const Tensor& x, Tensor y) const {
    if (config_.decay) y = y * head_scale_->forward(x).unsqueeze(-1);
    return o_proj_->forward(y.reshape({x.size(0), config_.heads * config_.head_dim}));
  }

  TaylorAttentionConfig config_;
  std::shared_ptr<Projection> q_proj_, k_proj_, v_proj_, o_proj_, head_scale_;
  Tensor rates_;  // [heads]; not a buffer of the module, because bf16 would round 1 − 1/512 to 1
};

}  // namespace

BASED_DEFINE_MIXER(taylor_attention, TaylorAttention, TaylorAttentionConfig,
                   "second-order Taylor linear attention: all past tokens in a state of fixed size")

}  // namespace based
