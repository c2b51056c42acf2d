// Hyena (Poli et al. 2023): (x_1, …, x_N, v) = short_conv(in_proj(x)); w = v ⊙ x_1; w = conv_i(w) ⊙ x_{i+1}, i < N; y = out_proj(w). The
// filters of conv_i are as long as the sequence. A network with sine activations computes them from the positions of their taps, and an
// exponential damps them.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "based/mixers/kit/fixed_tensor.h"
#include "based/mixers/kit/long_filter.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/rounds.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/ops/conv/gated_long_conv.h"
#include "based/ops/conv/short_conv.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/linear/split_columns.h"

namespace based {
namespace {

struct HyenaConfig {
  int64_t order = 2;
  int64_t l_max = 1024;
  int64_t filter_order = 64;
  int64_t emb_dim = 3;
  int64_t num_inner_mlps = 2;
  double w = 1;
  int64_t short_filter_order = 3;
  double fast_decay = 0.3, slow_decay = 1.5;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("order", order, "number of gates, with a long convolution between each two");
    field("l_max", l_max, "taps of the long filters");
    field("filter_order", filter_order, "width of the network that computes the filters");
    field("emb_dim", emb_dim, "features of a tap's position, an odd number: the position, cosines and sines");
    field("num_inner_mlps", num_inner_mlps, "layers of the network between its first and its last");
    field("w", w, "initial frequency of the network's sines");
    field("short_filter_order", short_filter_order, "tokens that the short convolution covers, the current one included");
    field("fast_decay", fast_decay, "share of l_max after which the filter of the last channel is damped to 1 %");
    field("slow_decay", slow_decay, "the same for the first channel; the channels between have rates spaced evenly");
  }
};

void check(const HyenaConfig& config, int64_t channels) {
  check_option("hyena", "order", config.order, 2, 16);
  check_option("hyena", "l_max", config.l_max, 1, int64_t{1} << 24);
  check_option("hyena", "filter_order", config.filter_order, 1, 65536);
  check_option("hyena", "emb_dim", config.emb_dim, 3, 4097);
  if (config.emb_dim % 2 == 0) throw UsageError("hyena: emb_dim must be odd, got " + std::to_string(config.emb_dim));
  check_option("hyena", "num_inner_mlps", config.num_inner_mlps, 0, 64);
  check_option("hyena", "short_filter_order", config.short_filter_order, 1, 128);
  check_number("hyena", "fast_decay", config.fast_decay, 1e-6);
  check_number("hyena", "slow_decay", config.slow_decay, 1e-6);
  check_network("hyena", "l_max", config.l_max, "max(emb_dim, filter_order, (order − 1) · d_model)",
                std::max({config.emb_dim, config.filter_order, channels}));
}

// Tap t of the filter is out(sin(f ⊙ inner(… sin(f ⊙ first(z_t))))) ⊙ exp(−|δ| t/(taps−1)). `bias` is added to tap 0. z is learned and
// starts as the position features. All sines share the frequencies f. δ goes from log(0.01)/slow_decay to log(0.01)/fast_decay over the
// channels.
class SineFilter final : public NetworkFilter {
 public:
  SineFilter(const HyenaConfig& config, int64_t channels) : NetworkFilter(config.l_max) {
    const auto fp32 = torch::dtype(torch::kFloat32).device(parameter_device());
    const auto fp64 = fp32.dtype(torch::kFloat64);
    z_ = register_parameter("z", position_features(config.l_max, config.emb_dim).to(torch::kFloat32));
    frequency_ = register_parameter("frequency", torch::full({config.filter_order}, config.w, fp32));
    const auto layer = [&](const std::string& name, int64_t in) {
      layers_.push_back(register_module(name, full_precision(std::make_shared<Projection>(in, config.filter_order, true))));
    };
    layer("first", config.emb_dim);
    for (int64_t i = 0; i < config.num_inner_mlps; ++i) layer("inner" + std::to_string(i), config.filter_order);
    out_ = register_module("out", full_precision(std::make_shared<Projection>(config.filter_order, channels, false)));
    bias_ = register_parameter("bias", initial_normal({channels}, 1));
    const auto fixed = [&](const char* name, const Tensor& value) { return register_module(name, std::make_shared<FixedTensor>(value)); };
    positions_ = fixed("positions", torch::linspace(0, 1, config.l_max, fp64));
    decay_ = fixed("decay", torch::linspace(std::log(0.01) / config.slow_decay, std::log(0.01) / config.fast_decay, channels,
                                            fp64));  // −|δ|, negative
  }

 protected:
  Tensor make(int64_t count) const override {
    Tensor h = widened(z_).narrow(0, 0, count);
    for (const auto& layer : layers_) h = torch::sin(widened(frequency_) * widened_linear(*layer, h));
    const Tensor damping = torch::exp(torch::outer(positions_->value().narrow(0, 0, count), decay_->value()));
    const Tensor taps = widened_linear(*out_, h) * damping.to(h.scalar_type());
    return (taps + at::constant_pad_nd(widened(bias_).unsqueeze(0), {0, 0, 0, count - 1})).t();
  }

 private:
  Tensor z_, frequency_, bias_;
  std::vector<std::shared_ptr<Projection>> layers_;
  std::shared_ptr<Projection> out_;
  std::shared_ptr<FixedTensor> positions_, decay_;
};

class Hyena final : public Mixer {
 public:
  Hyena(const HyenaConfig& config, const MixerContext& context) : config_(config), width_(context.d_model) {
    check(config, (config.order - 1) * width_);
    const int64_t projected = (config.order + 1) * width_;
    in_proj_ = register_module("in_proj", std::make_shared<Projection>(width_, projected, true));
    conv_ = register_module("conv", std::make_shared<ShortFilter>(projected, config.short_filter_order, true));
    filter_ = register_module("filter", std::make_shared<SineFilter>(config, (config.order - 1) * width_));
    out_proj_ = register_module("out_proj", std::make_shared<Projection>(width_, width_, true, output_initial_std(context.layers)));
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    const Tensor u =
        std::get<0>(ops::short_conv(in_proj_->forward(x), conv_->weight(), conv_->bias(), {}, /*silu=*/false, pass.cu_seqlens()));
    const std::vector<Tensor> parts = parts_of(u);
    const Tensor taps = filter_->taps(std::clamp<int64_t>(pass.rows().max_length(), 1, filter_->size()));
    Tensor w = parts[0];
    for (int64_t i = 1; i < config_.order; ++i) {
      const std::optional<Tensor> v = i == 1 ? std::optional(parts.back()) : std::nullopt;
      w = ops::gated_long_conv(parts[i], w, v, taps.narrow(0, (i - 1) * width_, width_), pass.rows().starts());
    }
    return out_proj_->forward(w);
  }

  // "conv" [slots, (order + 1) · d_model, short_filter_order − 1]: the latest projections. "input1" … [slots, l_max, d_model]: for each of
  // the order − 1 long convolutions, a ring buffer of its latest inputs.
  MixerState make_state(int64_t slots) const override {
    const Tensor& weight = in_proj_->weight();
    std::vector<StateTensor> tensors = {
        {"conv", torch::zeros({slots, weight.size(0), config_.short_filter_order - 1}, sum_options(weight))}};
    for (int64_t i = 1; i < config_.order; ++i)
      tensors.push_back({ring(i), torch::zeros({slots, config_.l_max, width_}, state_options(weight))});
    return MixerState(std::move(tensors));
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    const Formula order{"order", config_.order}, d_model{"d_model", width_}, l_max{"l_max", config_.l_max};
    return sum_bytes(in_proj_->weight()) * (order + 1) * (Formula{"short_filter_order", config_.short_filter_order} - 1) * d_model +
           state_number_bytes(in_proj_->weight()) * (order - 1) * l_max * d_model;
  }

  std::optional<double> sequence_flops(int64_t tokens) const override {
    return static_cast<double>((config_.order - 1) * width_) * long_convolution_flops(tokens);
  }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override {
    const Tensor u = ops::short_conv_prefill(in_proj_->forward(x), conv_->weight(), conv_->bias(), {}, /*silu=*/false, pass.cu_seqlens(),
                                             state["conv"], pass.slots());
    return gated(u,
                 [&](const LongConvolution& conv, const Tensor& w, const std::string& name) { return conv.prefill(w, state, name, pass); });
  }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    Tensor& inputs = state["conv"];
    const auto convolve = [&](const Pass& round, const Tensor& rows) {
      return ops::short_conv_step(rows, conv_->weight(), conv_->bias(), {}, /*silu=*/false, inputs, round.slots());
    };
    const Tensor u = step_in_rounds(pass, {inputs}, convolve, in_proj_->forward(x));
    return gated(u, [&](const LongConvolution& conv, const Tensor& w, const std::string& name) { return conv.step(w, state[name], pass); });
  }

  bool steps_in_rounds() const override { return true; }

 private:
  static std::string ring(int64_t i) { return "input" + std::to_string(i); }

  // x_1, …, x_N, v
  std::vector<Tensor> parts_of(const Tensor& u) const {
    return ops::split_columns(u, std::vector<int64_t>(static_cast<size_t>(config_.order) + 1, width_));
  }

  // `convolve(convolution, input, name)` applies a long convolution whose past inputs are the state tensor `name`.
  template <class Convolve>
  Tensor gated(const Tensor& u, Convolve&& convolve) const {
    const std::vector<Tensor> parts = parts_of(u);
    Tensor w = parts.back() * parts[0];
    for (int64_t i = 1; i < config_.order; ++i) w = convolve(LongConvolution{*filter_, (i - 1) * width_}, w, ring(i)) * parts[i];
    return out_proj_->forward(w);
  }

  HyenaConfig config_;
  int64_t width_;
  std::shared_ptr<Projection> in_proj_, out_proj_;
  std::shared_ptr<ShortFilter> conv_;
  std::shared_ptr<SineFilter> filter_;
};

}  // namespace

BASED_DEFINE_MIXER(hyena, Hyena, HyenaConfig, "gates and long convolutions whose filters a network computes from positions")

}  // namespace based
