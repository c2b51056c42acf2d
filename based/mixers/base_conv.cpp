// BaseConv as the recall experiments use it: y = u + conv(u) ⊙ (W u + b), by a short filter or by one as long as the sequence.
#include <algorithm>
#include <numbers>
#include <vector>

#include "based/mixers/mixer.h"
#include "based/mixers/parameters.h"
#include "based/mixers/past.h"
#include "based/mixers/shapes_only.h"
#include "based/ops/arguments.h"
#include "based/ops/linear.h"
#include "based/ops/long_conv.h"
#include "based/ops/rowwise.h"
#include "based/ops/short_conv.h"
#include "based/ops/swiglu.h"

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
    field("kernel_size", kernel_size, "tokens that the convolution sees, the present one included; -1: l_max of them");
    field("l_max", l_max, "taps of the long filter (kernel_size -1)");
    field("implicit", implicit, "the long filter is a small network of the tap's position instead of a parameter");
    field("d_emb", d_emb, "features of a position (implicit), an odd number: itself, cosines and sines");
    field("d_hidden", d_hidden, "hidden width of the network (implicit)");
    field("use_act", use_act, "SiLU on both factors");
  }
};

// A filter over the last l_max tokens, tap 0 the present one: a parameter, or Linear(ReLU(Linear(z_t))) with
// z_t = (t/(l_max−1), cos(f_i w_t) …, −sin(f_i w_t) …), w_t = 2π t/l_max, f from 1e-4 to bands−1 evenly, bands = (d_emb−1)/2.
class LongFilter : public torch::nn::Module {
 public:
  LongFilter(const BaseConvConfig& config, int64_t channels) {
    if (!config.implicit) {
      taps_ = register_parameter("taps", initial_filter({channels, config.l_max}, config.l_max));
      return;
    }
    hidden_ = register_module("hidden", std::make_shared<Projection>(config.d_emb, config.d_hidden, true));
    out_ = register_module("out", std::make_shared<Projection>(config.d_hidden, channels, true));
    const int64_t bands = (config.d_emb - 1) / 2;
    const auto options = torch::dtype(torch::kFloat64).device(parameter_device());
    const Tensor t = torch::arange(config.l_max, options).unsqueeze(1);
    const Tensor angle = t * (2 * std::numbers::pi / static_cast<double>(config.l_max)) *
                         torch::linspace(1e-4, static_cast<double>(bands - 1), bands, options);
    embedding_ = torch::cat({t / std::max<double>(1, static_cast<double>(config.l_max - 1)), angle.cos(), -angle.sin()}, 1);
  }

  // [channels, l_max] in fp32 (fp64 in fp64). In bf16 the positions past 256 would fall together.
  Tensor forward() const {
    if (taps_.defined()) return widened(taps_);
    const Tensor z = embedding_.to(hidden_->weight().device(), widened(hidden_->weight()).scalar_type());
    return torch::linear(torch::relu(torch::linear(z, widened(hidden_->weight()), widened(hidden_->bias()))), widened(out_->weight()),
                         widened(out_->bias()))
        .t();
  }

 private:
  static Tensor widened(const Tensor& weight) { return weight.to(ops::sum_type(weight)); }

  Tensor taps_;
  std::shared_ptr<Projection> hidden_, out_;
  Tensor embedding_;  // [l_max, d_emb], fp64
};

// The network sees all positions at once, so that a few options could ask for any memory.
void check_implicit(const BaseConvConfig& config) {
  constexpr int64_t kMostFeatures = int64_t{1} << 26;  // 512 MiB in fp64
  const int64_t features = config.l_max * std::max(config.d_emb, config.d_hidden);
  if (features <= kMostFeatures) return;
  throw UsageError("base_conv: an implicit filter may have l_max · max(d_emb, d_hidden) up to " + std::to_string(kMostFeatures) + ", got " +
                   std::to_string(features) + "; make l_max, d_emb or d_hidden smaller");
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
    check_option("base_conv", "l_max", config.l_max, 1, int64_t{1} << 24);
    check_option("base_conv", "d_emb", config.d_emb, 3, 4097);
    check_option("base_conv", "d_hidden", config.d_hidden, 1, 65536);
    if (config.implicit) check_implicit(config);
    if (config.d_emb % 2 == 0) throw UsageError("base_conv: d_emb must be odd, got " + std::to_string(config.d_emb));
    filter_ = register_module("filter", std::make_shared<LongFilter>(config, channels_));
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    if (!conv_) return gated(x, x + ops::long_conv(x, filter_->forward().to(x.scalar_type()), pass.cu_seqlens()));
    return std::get<0>(
        ops::short_conv(x, conv_->weight(), conv_->bias(), gate_of(x), config_.use_act, pass.cu_seqlens(), {}, /*adds_input=*/true));
  }

  // Short: "conv" [slots, channels, kernel_size − 1], the latest inputs. Long: "input" [slots, l_max, channels], a ring of the latest
  // inputs.
  MixerState make_state(int64_t slots) const override {
    const Tensor& weight = projection_->weight();
    if (conv_) return MixerState({{"conv", torch::zeros({slots, channels_, config_.kernel_size - 1}, sum_options(weight))}});
    return MixerState({{"input", torch::zeros({slots, config_.l_max, channels_}, state_options(weight))}});
  }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override {
    if (conv_) {
      return x + ops::short_conv_prefill(x, conv_->weight(), conv_->bias(), gate_of(x), config_.use_act, pass.cu_seqlens(), state["conv"],
                                         pass.slots());
    }
    Past past(state, pass, "input");
    const Tensor earlier = past.advance("input", x);
    return gated(x, x + ops::long_conv(x, filter_->forward().to(x.scalar_type()), pass.cu_seqlens(), earlier, past.earlier_cu_seqlens()));
  }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    if (!conv_) return gated(x, x + long_step(x, state["input"], pass));
    return x + ops::short_conv_step(x, conv_->weight(), conv_->bias(), gate_of(x), config_.use_act, state["conv"], pass.slots());
  }

 private:
  Tensor gate_of(const Tensor& x) const {
    const Tensor gate = projection_->forward(x);
    return config_.use_act ? ops::rowwise::silu(gate) : gate;
  }
  Tensor gated(const Tensor& x, const Tensor& conv) const { return x + (config_.use_act ? ops::rowwise::silu(conv) : conv) * gate_of(x); }

  // Σ_j filter[:, j] x_{t−j} over the ring, a slot at a time: a sum over several rows at once would be split by their number.
  Tensor long_step(const Tensor& x, const Tensor& ring, const Pass& pass) const {
    const Tensor taps = filter_->forward().t();  // [l_max, channels]
    Tensor y = torch::empty_like(x);
    for (int64_t row = 0; row < x.size(0); ++row) {
      const int64_t at = pass.seen_on_host()[row], count = std::min(at + 1, config_.l_max);
      const Tensor inputs = ring.select(0, pass.slots_on_host()[row]);
      inputs[at % config_.l_max].copy_(x[row]);
      const Tensor steps = torch::remainder(at - torch::arange(count, pass.slots().options()), config_.l_max);
      y[row].copy_((inputs.index_select(0, steps) * taps.narrow(0, 0, count)).sum(0));
    }
    return y;
  }

  BaseConvConfig config_;
  int64_t channels_ = 0;
  std::shared_ptr<Projection> projection_;
  std::shared_ptr<ShortFilter> conv_;   // null: long
  std::shared_ptr<LongFilter> filter_;  // null: short
};

}  // namespace

BASED_DEFINE_MIXER(base_conv, BaseConv, BaseConvConfig, "gated convolution as the recall experiments use it, by a short or a long filter")

}  // namespace based
