// BaseConv as the recall experiments use it: y = u + conv(u) ⊙ (W u + b). The convolution has a short filter, or one as long as the
// sequence plus a residual connection, conv(u) = u + h ∗ u.
#include <algorithm>

#include "based/mixers/kit/fixed_tensor.h"
#include "based/mixers/kit/long_filter.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/rounds.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/ops/conv/short_conv.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {
namespace {

struct BaseConvConfig {
  int64_t kernel_size = 3;
  int64_t l_max = 1024;
  bool implicit = false;
  int64_t d_emb = 3;
  int64_t d_hidden = 16;
  bool use_act = false;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("kernel_size", kernel_size, "tokens that the convolution covers, the current one included; -1: l_max of them");
    field("l_max", l_max, "taps of the long filter (kernel_size -1)");
    field("implicit", implicit, "a small network computes the long filter from its taps' positions; otherwise the filter is a parameter");
    field("d_emb", d_emb, "position features of an implicit filter, an odd number: the position, cosines and sines");
    field("d_hidden", d_hidden, "hidden width of an implicit filter's network");
    field("use_act", use_act, "SiLU on both factors");
  }
};

class LearnedTaps final : public LongFilter {
 public:
  LearnedTaps(int64_t channels, int64_t size)
      : LongFilter(size), taps_(register_parameter("taps", initial_filter({channels, size}, size))) {}
  Tensor taps(int64_t count) const override { return widened(taps_.narrow(1, 0, count)); }

 private:
  Tensor taps_;
};

// Linear(ReLU(Linear(z_t))) of a tap's position features z_t.
class ReluFilter final : public NetworkFilter {
 public:
  ReluFilter(const BaseConvConfig& config, int64_t channels) : NetworkFilter(config.l_max) {
    hidden_ = register_module("hidden", full_precision(std::make_shared<Projection>(config.d_emb, config.d_hidden, true)));
    out_ = register_module("out", full_precision(std::make_shared<Projection>(config.d_hidden, channels, true)));
    positions_ = register_module("positions", std::make_shared<FixedTensor>(position_features(config.l_max, config.d_emb)));
  }

 protected:
  Tensor make(int64_t count) const override {
    const Tensor z = positions_->value().narrow(0, 0, count).to(ops::sum_type(hidden_->weight()));
    return widened_linear(*out_, torch::relu(widened_linear(*hidden_, z))).t();
  }

 private:
  std::shared_ptr<Projection> hidden_, out_;
  std::shared_ptr<FixedTensor> positions_;
};

std::shared_ptr<LongFilter> make_filter(const BaseConvConfig& config, int64_t channels) {
  check_option("base_conv", "l_max", config.l_max, 1, int64_t{1} << 24);
  check_option("base_conv", "d_emb", config.d_emb, 3, 4097);
  check_option("base_conv", "d_hidden", config.d_hidden, 1, 65536);
  if (config.d_emb % 2 == 0) throw UsageError("base_conv: d_emb must be odd, got " + std::to_string(config.d_emb));
  if (!config.implicit) return std::make_shared<LearnedTaps>(channels, config.l_max);
  check_network("base_conv", "l_max", config.l_max, "max(d_emb, d_hidden)", std::max(config.d_emb, config.d_hidden));
  return std::make_shared<ReluFilter>(config, channels);
}

class BaseConv final : public Mixer {
 public:
  BaseConv(const BaseConvConfig& config, const MixerContext& context) : config_(config), channels_(context.d_model) {
    projection_ = register_module("projection", std::make_shared<Projection>(channels_, channels_, true));
    if (config.kernel_size != -1) {
      check_option("base_conv", "kernel_size", config.kernel_size, 1, 128);
      conv_ = register_module("conv", std::make_shared<ShortFilter>(channels_, config.kernel_size, true));
      return;
    }
    filter_ = register_module("filter", make_filter(config, channels_));
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    if (!conv_) return gated(x, x + LongConvolution{*filter_}.forward(x, pass));
    return std::get<0>(
        ops::short_conv(x, conv_->weight(), conv_->bias(), gate(x), config_.use_act, pass.cu_seqlens(), {}, /*adds_input=*/true));
  }

  // The latest inputs. Short filter: "conv" [slots, channels, kernel_size − 1]. Long filter: "input" [slots, l_max, channels], a ring
  // buffer.
  MixerState make_state(int64_t slots) const override {
    const Tensor& weight = projection_->weight();
    if (conv_) return MixerState({{"conv", torch::zeros({slots, channels_, config_.kernel_size - 1}, sum_options(weight))}});
    return MixerState({{"input", torch::zeros({slots, config_.l_max, channels_}, state_options(weight))}});
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    const Formula d_model{"d_model", channels_};
    if (conv_) return sum_bytes(projection_->weight()) * (Formula{"kernel_size", config_.kernel_size} - 1) * d_model;
    return state_number_bytes(projection_->weight()) * Formula{"l_max", config_.l_max} * d_model;
  }

  std::optional<double> sequence_flops(int64_t tokens) const override {
    return conv_ ? 0 : static_cast<double>(channels_) * long_convolution_flops(tokens);
  }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override {
    if (conv_) {
      return x + ops::short_conv_prefill(x, conv_->weight(), conv_->bias(), gate(x), config_.use_act, pass.cu_seqlens(), state["conv"],
                                         pass.slots());
    }
    return gated(x, x + LongConvolution{*filter_}.prefill(x, state, "input", pass));
  }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    if (!conv_) return gated(x, x + LongConvolution{*filter_}.step(x, state["input"], pass));
    Tensor& inputs = state["conv"];
    const auto convolve = [&](const Pass& round, const Tensor& values, const Tensor& factors) {
      return ops::short_conv_step(values, conv_->weight(), conv_->bias(), factors, config_.use_act, inputs, round.slots());
    };
    return x + step_in_rounds(pass, {inputs}, convolve, x, gate(x));
  }

  bool steps_in_rounds() const override { return true; }

 private:
  Tensor gate(const Tensor& x) const {
    const Tensor projected = projection_->forward(x);
    return config_.use_act ? ops::rowwise::silu(projected) : projected;
  }
  Tensor gated(const Tensor& x, const Tensor& conv) const { return x + (config_.use_act ? ops::rowwise::silu(conv) : conv) * gate(x); }

  BaseConvConfig config_;
  int64_t channels_ = 0;
  std::shared_ptr<Projection> projection_;
  std::shared_ptr<ShortFilter> conv_;   // the short filter, or null
  std::shared_ptr<LongFilter> filter_;  // the long filter, or null
};

}  // namespace

BASED_DEFINE_MIXER(base_conv, BaseConv, BaseConvConfig, "gated convolution as the recall experiments use it, with a short or a long filter")

}  // namespace based
