#include "based/mixers/blocks/gated_heads.h"

#include <cmath>
#include <sstream>

#include "based/mixers/kit/shapes_only.h"
#include "based/ops/norm/rms_norm.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {

int64_t expanded_width(const char* mixer, const char* option, double factor, int64_t width, int64_t heads) {
  const double product = std::floor(factor * static_cast<double>(width));
  if (product >= 1 && product <= 1 << 20) return divided(mixer, option, static_cast<int64_t>(product), "heads", heads) * heads;
  std::ostringstream message;
  message << mixer << ": " << option << " must make a width of 1.." << (1 << 20) << " out of " << width << ", got " << factor;
  throw UsageError(message.str());
}

void use_delta_rule(ops::GatedDeltaRuleInputs& in, const Tensor& logits, double max_beta) {
  constexpr double eps = 1e-6;
  in.q = ops::rowwise::l2_norm(in.q, eps);
  in.k = ops::rowwise::l2_norm(in.k, eps);
  in.delta = true;
  if (logits.defined()) in.beta = ops::rowwise::gate(logits, kernels::Activation::sigmoid, {max_beta});
}

GatedHeads::GatedHeads(const char* mixer, const GatedHeadsConfig& config, const MixerContext& context, const Widths& widths)
    : config_(config), d_model_(context.d_model), widths_(widths) {
  q_proj_ = add_projection("q_proj", widths.key);
  k_proj_ = add_projection("k_proj", widths.key);
  v_proj_ = add_projection("v_proj", widths.value);
  if (config.use_short_conv) {
    check_option(mixer, "conv_size", config.conv_size, 1, 128);
    const auto add_conv = [&](const char* name, int64_t channels) {
      return register_module(name, std::make_shared<ShortConvolution>(channels, config.conv_size, config.conv_bias));
    };
    q_conv_ = add_conv("q_conv", widths.key);
    k_conv_ = add_conv("k_conv", widths.key);
    v_conv_ = add_conv("v_conv", widths.value);
  }
  if (config.use_gate) g_proj_ = add_projection("g_proj", widths.value);
  const auto norm = register_module("norm", std::make_shared<torch::nn::Module>("norm"));
  norm_weight_ = norm->register_parameter("weight", torch::ones({widths.value / config.heads}, parameter_device()));
  o_proj_ =
      register_module("o_proj", std::make_shared<Projection>(widths.value, context.d_model, false,
                                                             config.rescale_output ? output_initial_std(context.layers) : initial_std));
}

std::shared_ptr<Projection> GatedHeads::add_projection(const std::string& name, int64_t width, bool bias) {
  return register_module(name, std::make_shared<Projection>(d_model_, width, bias));
}

MixerState GatedHeads::make_state(int64_t slots) const {
  const int64_t heads = config_.heads;
  std::vector<StateTensor> state{
      {"kv", torch::zeros({slots, heads, widths_.key / heads, widths_.value / heads}, sum_options(q_proj_->weight()))}};
  if (q_conv_) {
    for (const auto& [name, conv] : {std::pair{"q_conv", q_conv_}, {"k_conv", k_conv_}, {"v_conv", v_conv_}})
      state.push_back(conv->state(name, slots));
  }
  return MixerState(std::move(state));
}

Formula GatedHeads::state_formula(int64_t /*tokens*/) const {
  const Formula d_key{"d_key", widths_.key}, d_value{"d_value", widths_.value}, bytes = sum_bytes(q_proj_->weight());
  const Formula kv = bytes * d_key * d_value / Formula{"heads", config_.heads};
  return q_conv_ ? kv + bytes * (2 * d_key + d_value) * (Formula{"conv_size", config_.conv_size} - 1) : kv;
}

std::optional<double> GatedHeads::sequence_flops(int64_t /*tokens*/) const {
  return 2 * state_products() * static_cast<double>(widths_.key / config_.heads * widths_.value);
}

Tensor GatedHeads::split_heads(const std::string& name, const ShortConvolution* conv, const Tensor& projected, const Call& call) const {
  const Tensor y = conv != nullptr ? conv->forward(projected, call, name) : projected;
  return y.view({y.size(0), config_.heads, y.size(1) / config_.heads});
}

Tensor GatedHeads::run(const Tensor& x, const Call& call) {
  // The projections directly follow one another, so that the plan of a decoding step fuses them into one launch.
  const Tensor q = q_proj_->forward(x), k = k_proj_->forward(x), v = v_proj_->forward(x), gate = g_proj_ ? g_proj_->forward(x) : Tensor();
  ops::GatedDeltaRuleInputs in{split_heads("q_conv", q_conv_.get(), q, call), split_heads("k_conv", k_conv_.get(), k, call),
                               split_heads("v_conv", v_conv_.get(), v, call)};
  in.scale = std::sqrt(static_cast<double>(config_.heads) / static_cast<double>(widths_.key));
  add_gates(x, in);
  const Tensor heads = gated_delta_rule(in, call, "kv");
  const Tensor y = g_proj_ ? ops::rms_norm_gated(heads, norm_weight_, config_.norm_eps, gate.view(heads.sizes()))
                           : ops::rms_norm(heads, norm_weight_, config_.norm_eps);
  return o_proj_->forward(y.view({x.size(0), widths_.value}));
}

}  // namespace based
