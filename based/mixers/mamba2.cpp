// Mamba-2 (Dao and Gu 2024): a state space model with one decay rate per head, S_t = exp(−dt_t exp(A_log)) S_{t−1} + dt_t B_t x_tᵀ,
// y_t = S_tᵀC_t + D x_t. One short convolution computes x, B and C. The output is multiplied by a gate and then normalised.
#include "based/mixers/blocks/short_convolution.h"
#include "based/mixers/blocks/time_step.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/ops/linear/split_columns.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {
namespace {

struct Mamba2Config {
  int64_t headdim = 64;
  int64_t d_state = 128;
  int64_t d_conv = 4;
  int64_t expand = 2;
  int64_t ngroups = 1;
  bool bias = false;
  bool conv_bias = true;
  bool norm_before_gate = false;
  double norm_eps = 1e-5;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("headdim", headdim, "size of a head's values");
    field("d_state", d_state, "size of a head's state for each of its values");
    field("d_conv", d_conv, "tokens that the convolution covers, the current one included");
    field("expand", expand, "width of the heads together, in multiples of d_model");
    field("ngroups", ngroups, "groups of heads; the heads of a group share B, C and the norm");
    field("bias", bias, "biases in the projections");
    field("conv_bias", conv_bias, "bias of the convolution");
    field("norm_before_gate", norm_before_gate, "the norm comes before the gate instead of after it");
    field("norm_eps", norm_eps, "added to the mean square in the norm");
  }
};

class Mamba2 final : public BlockMixer {
 public:
  Mamba2(const Mamba2Config& config, const MixerContext& context) : config_(config) {
    check_option("mamba2", "headdim", config.headdim, 1, 65536);
    check_option("mamba2", "d_state", config.d_state, 1, 65536);
    check_option("mamba2", "d_conv", config.d_conv, 1, 128);
    check_option("mamba2", "expand", config.expand, 1, 64);
    check_option("mamba2", "ngroups", config.ngroups, 1, 4096);
    width_ = config.expand * context.d_model;
    heads_ = divided("mamba2", "expand · d_model", width_, "headdim", config.headdim);
    divided("mamba2", "heads", heads_, "ngroups", config.ngroups);
    const int64_t convolved = width_ + 2 * config.ngroups * config.d_state;
    in_proj_ = register_module("in_proj", uniform_projection(context.d_model, width_ + convolved + heads_, config.bias));
    conv_ = register_module("conv", std::make_shared<ShortConvolution>(convolved, config.d_conv, config.conv_bias));
    out_proj_ = register_module("out_proj", uniform_projection(width_, context.d_model, config.bias, context.layers));
    dt_bias_ = register_parameter("dt_bias", initial_time_step_bias(heads_));
    A_log_ = register_parameter("A_log", initial_rate_log(heads_, 1, 16));
    D_ = register_parameter("D", torch::ones({heads_}, parameter_device()));
    const auto norm = register_module("norm", std::make_shared<torch::nn::Module>("norm"));
    norm_weight_ = norm->register_parameter("weight", torch::ones({width_}, parameter_device()));
  }

  // "ssm" [slots, heads, d_state, headdim] and "conv" [slots, channels, d_conv − 1].
  MixerState make_state(int64_t slots) const override {
    const auto options = sum_options(in_proj_->weight());
    return MixerState({{"ssm", torch::zeros({slots, heads_, config_.d_state, config_.headdim}, options)}, conv_->state("conv", slots)});
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    const Formula channels{"expand · d_model", width_}, d_state{"d_state", config_.d_state}, groups{"ngroups", config_.ngroups};
    return sum_bytes(in_proj_->weight()) *
           (channels * d_state + (channels + 2 * groups * d_state) * (Formula{"d_conv", config_.d_conv} - 1));
  }

  std::optional<double> sequence_flops(int64_t /*tokens*/) const override { return 4 * static_cast<double>(width_ * config_.d_state); }

 private:
  Tensor run(const Tensor& x, const Call& call) override {
    const int64_t group_width = config_.ngroups * config_.d_state;
    const auto parts = ops::split_columns(in_proj_->forward(x), {width_, width_ + 2 * group_width, heads_});
    const auto xBC = ops::split_columns(conv_->forward(parts[1], call, "conv"), {width_, group_width, group_width});
    const auto by_group = [&](const Tensor& columns) { return columns.reshape({x.size(0), config_.ngroups, config_.d_state}); };
    ops::GatedDeltaRuleInputs in{by_group(xBC[2]), by_group(xBC[1]), xBC[0].reshape({x.size(0), heads_, config_.headdim})};
    in.beta = ops::rowwise::gate(parts[2], kernels::Activation::softplus, {1, dt_bias_});
    in.log_decay = ops::rowwise::gate(parts[2], kernels::Activation::softplus, {-1, dt_bias_, A_log_});
    const Tensor y = gated_delta_rule(in, call, "ssm") + in.v * D_.unsqueeze(-1);
    return out_proj_->forward(gated(y.view({x.size(0), width_}), ops::rowwise::silu(parts[0])));
  }

  Tensor gated(const Tensor& y, const Tensor& gate) const {
    if (config_.norm_before_gate) return normed(y) * gate;
    return normed(y * gate);
  }
  Tensor normed(const Tensor& y) const {
    const Tensor groups = y.view({y.size(0), config_.ngroups, width_ / config_.ngroups});
    return ops::rowwise::rms_norm(groups, config_.norm_eps).view(y.sizes()) * norm_weight_;
  }

  Mamba2Config config_;
  int64_t width_ = 0, heads_ = 0;
  std::shared_ptr<Projection> in_proj_, out_proj_;
  std::shared_ptr<ShortConvolution> conv_;
  Tensor dt_bias_, A_log_, D_, norm_weight_;
};

}  // namespace

BASED_DEFINE_MIXER(mamba2, Mamba2, Mamba2Config, "Mamba-2: a state space model with one decay rate per head")

}  // namespace based
