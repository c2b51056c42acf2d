// Mamba (Gu and Dao 2023): a selective state space behind a short convolution, gated: y = out_proj(scan(silu(conv(u)), …) ⊙ silu(z)) with
// [u, z] = in_proj(x). It is a block of its own, without an MLP.
#include "based/mixers/blocks/time_step.h"
#include "based/mixers/mixer.h"
#include "based/mixers/parameters.h"
#include "based/mixers/shapes_only.h"
#include "based/ops/arguments.h"
#include "based/ops/linear.h"
#include "based/ops/selective_scan.h"
#include "based/ops/short_conv.h"
#include "based/ops/split_columns.h"

namespace based {
namespace {

struct MambaConfig {
  int64_t d_state = 16;
  int64_t d_conv = 4;
  int64_t expand = 2;
  int64_t dt_rank = 0;
  double dt_min = 0.001;
  double dt_max = 0.1;
  double dt_init_floor = 1e-4;
  bool conv_bias = true;
  bool bias = false;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("d_state", d_state, "numbers of state a channel, 1..256");
    field("d_conv", d_conv, "tokens that the convolution sees, the present one included");
    field("expand", expand, "channels, in multiples of d_model");
    field("dt_rank", dt_rank, "rank of the projection that gives the steps; 0: d_model / 16, rounded up");
    field("dt_min", dt_min, "smallest initial step");
    field("dt_max", dt_max, "largest initial step; those between are drawn evenly in their logarithm");
    field("dt_init_floor", dt_init_floor, "initial steps are no smaller");
    field("conv_bias", conv_bias, "bias of the convolution");
    field("bias", bias, "biases in the input and output projections");
  }
};

class Mamba final : public Mixer {
 public:
  Mamba(const MambaConfig& config, const MixerContext& context) : size_(config.d_state) {
    check_option("mamba", "d_state", config.d_state, 1, 256);
    check_option("mamba", "d_conv", config.d_conv, 1, 128);
    check_option("mamba", "expand", config.expand, 1, 64);
    rank_ = config.dt_rank == 0 ? (context.d_model + 15) / 16 : config.dt_rank;
    check_option("mamba", "dt_rank", rank_, 1, 65536);
    if (!(config.dt_min > 0 && config.dt_min <= config.dt_max && config.dt_init_floor > 0))
      throw UsageError("mamba: dt_min, dt_max and dt_init_floor must be positive and dt_min not above dt_max, got " +
                       std::to_string(config.dt_min) + ", " + std::to_string(config.dt_max) + " and " +
                       std::to_string(config.dt_init_floor));
    const int64_t d = context.d_model;
    width_ = config.expand * d;
    const auto drawn = [](int64_t in, int64_t out, int64_t fan_in) { return initial_filter({out, in}, fan_in); };
    const auto bias = [&](int64_t out) { return config.bias ? torch::zeros({out}, parameter_device()) : Tensor(); };
    in_proj_ = register_module("in_proj", std::make_shared<Projection>(drawn(d, 2 * width_, d), bias(2 * width_)));
    conv_ = register_module("conv", std::make_shared<ShortFilter>(width_, config.d_conv, config.conv_bias));
    x_proj_ = register_module("x_proj", std::make_shared<Projection>(drawn(width_, rank_ + 2 * size_, width_)));
    dt_proj_ = register_module(
        "dt_proj", std::make_shared<Projection>(drawn(rank_, width_, rank_),
                                                initial_time_step_bias(width_, config.dt_min, config.dt_max, config.dt_init_floor)));
    // Rates 1 … d_state of every channel.
    A_log_ = register_parameter("A_log", torch::arange(1, size_ + 1, float_options()).log().repeat({width_, 1}));
    D_ = register_parameter("D", torch::ones({width_}, float_options()));
    // Divided by √layers, for the residual stream.
    out_proj_ = register_module("out_proj", std::make_shared<Projection>(drawn(width_, d, width_ * context.layers), bias(d)));
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    const auto u = project(x);
    const Tensor in = std::get<0>(ops::short_conv(u[0], conv_->weight(), conv_->bias(), {}, true, pass.cu_seqlens()));
    return scanned(in, u[1],
                   [&](const ops::SelectiveScanLayer& layer) { return std::get<0>(ops::selective_scan(layer, pass.cu_seqlens())); });
  }

  // "conv" [slots, channels, d_conv − 1]: the latest inputs of the convolution; "ssm" [slots, channels, d_state].
  MixerState make_state(int64_t slots) const override {
    const auto options = sum_options(D_);
    return MixerState({{"conv", torch::zeros({slots, width_, conv_->weight().size(1) - 1}, options)},
                       {"ssm", torch::zeros({slots, width_, size_}, options)}});
  }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override {
    const auto u = project(x);
    const Tensor in =
        ops::short_conv_prefill(u[0], conv_->weight(), conv_->bias(), {}, true, pass.cu_seqlens(), state["conv"], pass.slots());
    return scanned(in, u[1], [&](const ops::SelectiveScanLayer& layer) {
      return ops::selective_scan_prefill(layer, pass.cu_seqlens(), state["ssm"], pass.slots());
    });
  }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    const auto u = project(x);
    const Tensor in = ops::short_conv_step(u[0], conv_->weight(), conv_->bias(), {}, true, state["conv"], pass.slots());
    return scanned(in, u[1],
                   [&](const ops::SelectiveScanLayer& layer) { return ops::selective_scan_step(layer, state["ssm"], pass.slots()); });
  }

 private:
  static torch::TensorOptions float_options() { return torch::dtype(torch::kFloat).device(parameter_device()); }

  std::vector<Tensor> project(const Tensor& x) const { return ops::split_columns(in_proj_->forward(x), {width_, width_}); }

  // in and z [tokens, channels]: the convolution's output, and the gate.
  template <class Scan>
  Tensor scanned(const Tensor& in, const Tensor& z, Scan&& scan) const {
    const auto parts = ops::split_columns(x_proj_->forward(in), {rank_, size_, size_});
    const Tensor dt = ops::linear(parts[0], dt_proj_->weight());
    const Tensor B = parts[1].unsqueeze(1), C = parts[2].unsqueeze(1);
    return out_proj_->forward(scan({in, dt, A_log_, B, C, D_, z, dt_proj_->bias()}));
  }

  int64_t size_, rank_ = 0, width_ = 0;  // of a channel's state, of dt's projection, channels
  std::shared_ptr<Projection> in_proj_, x_proj_, dt_proj_, out_proj_;
  std::shared_ptr<ShortFilter> conv_;
  Tensor A_log_, D_;
};

}  // namespace

BASED_DEFINE_MIXER(mamba, Mamba, MambaConfig, "Mamba: a selective state space behind a short convolution, gated")

}  // namespace based
