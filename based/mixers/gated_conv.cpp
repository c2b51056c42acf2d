// BaseConv as in the paper's language models (appendix "Convolution"): y = out_proj(SiLU(conv(u1)) ⊙ u2), [u1, u2] = in_proj(x).
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/rounds.h"
#include "based/ops/conv/projected_conv.h"
#include "based/ops/conv/short_conv.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/linear/split_columns.h"

namespace based {
namespace {

struct GatedConvConfig {
  int64_t expansion = 4;
  int64_t taps = 3;
  bool use_bias = true;
  bool conv_bias = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("expansion", expansion, "width of both branches together, in multiples of d_model");
    field("taps", taps, "tokens that the convolution covers, the current one included");
    field("use_bias", use_bias, "biases in the projections");
    field("conv_bias", conv_bias, "bias of the convolution");
  }
};

class GatedConv final : public Mixer {
 public:
  GatedConv(const GatedConvConfig& config, const MixerContext& context) {
    check_option("gated_conv", "expansion", config.expansion, 1, 64);
    check_option("gated_conv", "taps", config.taps, 1, 128);
    if (config.expansion * context.d_model % 2 != 0) {
      throw UsageError("gated_conv: expansion · d_model must be even, got " + std::to_string(config.expansion) + " · " +
                       std::to_string(context.d_model));
    }
    width_ = config.expansion * context.d_model / 2;
    in_proj_ = register_module("in_proj", std::make_shared<Projection>(context.d_model, 2 * width_, config.use_bias));
    conv_ = register_module("conv", std::make_shared<ShortFilter>(width_, config.taps, config.conv_bias));
    out_proj_ = register_module("out_proj",
                                std::make_shared<Projection>(width_, context.d_model, config.use_bias, output_initial_std(context.layers)));
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    if (in_proj_->quantised()) {
      const auto u = branches(x);
      return out_proj_->forward(std::get<0>(ops::short_conv(u[0], conv_->weight(), conv_->bias(), u[1], /*silu=*/true, pass.cu_seqlens())));
    }
    return out_proj_->forward(std::get<0>(
        ops::projected_conv(x, in_proj_->weight(), ops::if_defined(in_proj_->bias()), conv_->weight(), conv_->bias(), pass.cu_seqlens())));
  }

  // "conv" [slots, width, taps − 1]: the latest inputs of the convolution.
  MixerState make_state(int64_t slots) const override {
    const Tensor& weight = conv_->weight();
    return MixerState({{"conv", torch::zeros({slots, width_, weight.size(1) - 1}, sum_options(weight))}});
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    const Tensor& weight = conv_->weight();
    return sum_bytes(weight) * (Formula{"taps", weight.size(1)} - 1) * Formula{"expansion · d_model / 2", width_};
  }

  std::optional<double> sequence_flops(int64_t /*tokens*/) const override { return 0; }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override {
    if (in_proj_->quantised()) {
      const auto u = branches(x);
      return out_proj_->forward(ops::short_conv_prefill(u[0], conv_->weight(), conv_->bias(), u[1], /*silu=*/true, pass.cu_seqlens(),
                                                        state["conv"], pass.slots()));
    }
    return out_proj_->forward(ops::projected_conv_prefill(x, in_proj_->weight(), ops::if_defined(in_proj_->bias()), conv_->weight(),
                                                          conv_->bias(), pass.cu_seqlens(), state["conv"], pass.slots()));
  }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    const auto u = branches(x);
    Tensor& inputs = state["conv"];
    const auto convolve = [&](const Pass& round, const Tensor& values, const Tensor& gate) {
      return ops::short_conv_step(values, conv_->weight(), conv_->bias(), gate, true, inputs, round.slots());
    };
    const auto convolve_tokens = [&](const TokensOfSequence& all, const Tensor& values, const Tensor& gate) {
      return ops::short_conv_tokens(values, conv_->weight(), conv_->bias(), gate, true, all.tokens, inputs, all.slot, all.kept[0]);
    };
    return out_proj_->forward(step_tokens(pass, {inputs}, convolve, convolve_tokens, u[0], u[1]));
  }

  bool steps_in_rounds() const override { return true; }

 private:
  std::vector<Tensor> branches(const Tensor& x) const { return ops::split_columns(in_proj_->forward(x), {width_, width_}); }

  int64_t width_ = 0;  // the width of one branch
  std::shared_ptr<Projection> in_proj_, out_proj_;
  std::shared_ptr<ShortFilter> conv_;
};

}  // namespace

BASED_DEFINE_MIXER(gated_conv, GatedConv, GatedConvConfig, "gated short convolution: BaseConv as in the paper's language models")

}  // namespace based
