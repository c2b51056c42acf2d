// Second-order Taylor linear attention (paper, section 4.1): 1 + s + s²/2 with s = q·k/√d' replaces exp(q·k/√d'), so that the sums over
// past tokens are a state of fixed size.
#include "based/ops/taylor/taylor_attention.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <string>
#include <vector>

#include "based/kernels/taylor/taylor.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/rounds.h"
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
  std::string decay_form = "paper";
  double decay_const = -5;
  bool decay_normalised = true;
  bool decay_projection = false;
  bool decay_bias = false;
  bool bias = false;
  bool rescale_output = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("heads", heads, "attention heads");
    field("feature_dim", feature_dim, "size d' of a head's queries and keys, 1..64; the state holds 1 + d' + d'(d'+1)/2 features");
    field("head_dim", head_dim, "size of a head's values; 0: d_model / heads");
    field("decay", decay, "a fixed decay rate per head, in one of the two forms of decay_form");
    field("decay_form", decay_form,
          "\"paper\": rates 1 - 2^-5 to 1 - 2^-9 for numerator and denominator, and a projection of the input scales the heads (the "
          "appendix \"Decay\" gives no rates); \"code\", as in the authors' code: rates 1 - 2^(decay_const - h) for head h = 0, 1, ..., "
          "for the numerator alone");
    field("decay_const", decay_const, "code: -60 to -1; the authors' config has -3");
    field("decay_normalised", decay_normalised,
          "code: a token's weights are divided by the square root of the sum of its decays (the authors' decay_denom; their config has "
          "false)");
    field("decay_projection", decay_projection, "code: a projection of the input scales the heads");
    field("decay_bias", decay_bias, "code: a bias in this projection");
    field("bias", bias, "biases in the projections");
    field("rescale_output", rescale_output,
          "initial output projection N(0, 0.02/sqrt(2 layers)), as in language models; otherwise N(0, 0.02), as in the recall models");
  }
};

void check_decay(const TaylorAttentionConfig& config) {
  const auto refuse = [](const std::string& why) { throw UsageError("taylor_attention: " + why); };
  const bool code = config.decay_form == "code";
  if (!code && config.decay_form != "paper") refuse("decay_form must be \"paper\" or \"code\", got \"" + config.decay_form + "\"");
  if (!(config.decay_const >= -60 && config.decay_const <= -1))
    refuse("decay_const must be -60 to -1, got " + std::to_string(config.decay_const));
  if (config.decay_bias && !config.decay_projection) refuse("decay_bias = true needs decay_projection = true");
  const TaylorAttentionConfig defaults;
  if (!code && (config.decay_const != defaults.decay_const || config.decay_normalised != defaults.decay_normalised ||
                config.decay_projection != defaults.decay_projection))
    refuse("decay_const, decay_normalised and decay_projection are options of decay_form = \"code\"");
}

// 1 − g for the decay rate g of each head, [heads]. In the paper's form the heads remember about 32 to 512 tokens.
Tensor decay_losses(const TaylorAttentionConfig& config) {
  if (config.decay_form == "paper") return torch::exp2(torch::linspace(-5, -9, config.heads, torch::kFloat64));
  return torch::exp2(config.decay_const - torch::arange(config.heads, torch::kFloat64)).clamp_min(std::exp2(-60));
}

// The heads' decays on a device: rates g in the type of sums; 1 − g and log g in double.
struct DecayRates {
  Tensor rates, losses, logs;
};

// 1/√(Σ_{s≤t} g^(t−s)) for tokens at positions t, [tokens, heads], in double. The sum is (1 − g^(t+1)) / (1 − g), so that a step computes
// the factor of the parallel form.
Tensor decay_normaliser(const Tensor& positions, const DecayRates& decay) {
  if (!positions.is_cpu()) return (torch::expm1((positions + 1).to(torch::kFloat64).unsqueeze(-1) * decay.logs) / -decay.losses).rsqrt();
  // A loop, since ATen's expm1 rounds the last elements of a tensor differently: the bits of a row would depend on the number of rows.
  const Tensor from = positions.contiguous();
  const int64_t tokens = from.size(0), heads = decay.losses.size(0);
  Tensor to = torch::empty({tokens, heads}, torch::kFloat64);
  const auto* position = from.const_data_ptr<int64_t>();
  const auto *losses = decay.losses.const_data_ptr<double>(), *logs = decay.logs.const_data_ptr<double>();
  auto* result = to.mutable_data_ptr<double>();
  at::parallel_for(0, tokens, 1024, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < heads; ++h)
        result[t * heads + h] = std::sqrt(losses[h] / -std::expm1(static_cast<double>(position[t] + 1) * logs[h]));
  });
  return to;
}

class TaylorAttention final : public Mixer {
 public:
  TaylorAttention(const TaylorAttentionConfig& config, const MixerContext& context) : config_(config) {
    check_option("taylor_attention", "heads", config.heads, 1, 4096);
    check_option("taylor_attention", "feature_dim", config.feature_dim, 1, 64);
    if (config_.head_dim == 0)
      config_.head_dim = divided("taylor_attention", "d_model", context.d_model, "heads", config.heads, "; give head_dim");
    check_option("taylor_attention", "head_dim", config_.head_dim, 1, 65536);
    check_decay(config);
    const int64_t d = context.d_model;
    q_proj_ = register_module("q_proj", std::make_shared<Projection>(d, config.heads * config.feature_dim, config.bias));
    k_proj_ = register_module("k_proj", std::make_shared<Projection>(d, config.heads * config.feature_dim, config.bias));
    v_proj_ = register_module("v_proj", std::make_shared<Projection>(d, config.heads * config_.head_dim, config.bias));
    const double out_std = config.rescale_output ? output_initial_std(context.layers) : initial_std;
    o_proj_ = register_module("o_proj", std::make_shared<Projection>(config.heads * config_.head_dim, d, config.bias, out_std));
    if (config.decay && (!code_form() || config.decay_projection))
      head_scale_ = register_module("head_scale", full_precision(std::make_shared<Projection>(d, config.heads, config.decay_bias)));
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    const Inputs in = config_.bias || q_proj_->quantised() ? scaled(project(x)) : project_fused(x);
    return output(x, ops::taylor_attention_without_state(in.q, in.k, in.v, pass.cu_seqlens(), decay(x)), pass);
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
    return output(x, ops::taylor_attention_prefill(in.q, in.k, in.v, pass.cu_seqlens(), {state["kv"], state["k"]}, pass.slots(), decay(x)),
                  pass);
  }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    const Inputs in = project(x);
    ops::TaylorState sums{state["kv"], state["k"]};
    const auto recur = [&](const Pass& round, const Tensor& q, const Tensor& k, const Tensor& v) {
      return ops::taylor_attention_step(q, k, v, sums, round.slots(), decay(x), scale());
    };
    const auto recur_over_tokens = [&](const TokensOfSequence& all, const Tensor& q, const Tensor& k, const Tensor& v) {
      return ops::taylor_attention_tokens(q, k, v, all.tokens, sums, all.slot, {all.kept[0], all.kept[1]}, decay(x), scale());
    };
    return output(x, step_tokens(pass, {sums.kv, sums.k}, recur, recur_over_tokens, in.q, in.k, in.v), pass);
  }

  bool steps_in_rounds() const override { return true; }

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

  bool code_form() const { return config_.decay_form == "code"; }

  // The rates are copied to x's device once: a copy in each call would synchronise with the device, and cannot be captured into a CUDA
  // graph.
  const DecayRates& decay_rates(const Tensor& x) {
    const at::ScalarType type = ops::sum_type(x);
    if (!decay_.rates.defined() || decay_.rates.device() != x.device() || decay_.rates.scalar_type() != type) {
      const torch::InferenceMode none(false);  // training may follow
      const Tensor losses = decay_losses(config_);
      decay_ = {(1 - losses).to(x.device(), type), losses.to(x.device()), torch::log1p(-losses).to(x.device())};
    }
    return decay_;
  }

  ops::TaylorDecay decay(const Tensor& x) {
    if (!config_.decay) return {};
    return {decay_rates(x).rates, !code_form()};
  }

  Tensor output(const Tensor& x, Tensor y, const Pass& pass) {
    if (config_.decay && code_form() && config_.decay_normalised)
      y = y * decay_normaliser(pass.positions(), decay_rates(x)).to(y.scalar_type()).unsqueeze(-1);
    if (head_scale_) y = y * head_scale_->forward(x).unsqueeze(-1);
    return o_proj_->forward(y.reshape({x.size(0), config_.heads * config_.head_dim}));
  }

  TaylorAttentionConfig config_;
  std::shared_ptr<Projection> q_proj_, k_proj_, v_proj_, o_proj_, head_scale_;
  DecayRates decay_;  // not buffers of the module, because bf16 would round 1 − 1/512 to 1
};

}  // namespace

BASED_DEFINE_MIXER(taylor_attention, TaylorAttention, TaylorAttentionConfig,
                   "second-order Taylor linear attention: all past tokens in a state of fixed size")

}  // namespace based
