// Mamba (Gu and Dao 2023): a short convolution, a selective state space model and a gate, y = out_proj(scan(silu(conv(u))) ⊙ silu(z)) with
// [u, z] = in_proj(x). The scan's dt, B and C are projections of its input. Mamba layers need no MLP between them.
#include "based/mixers/blocks/short_convolution.h"
#include "based/mixers/blocks/time_step.h"
#include "based/mixers/kit/rounds.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/ops/linear/linear.h"
#include "based/ops/linear/split_columns.h"
#include "based/ops/scan/projected_scan.h"
#include "based/ops/scan/selective_scan.h"

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
    field("d_state", d_state, "size of a channel's state, 1..256");
    field("d_conv", d_conv, "tokens that the convolution covers, the current one included");
    field("expand", expand, "channels, in multiples of d_model");
    field("dt_rank", dt_rank, "rank of the projection to the time steps; 0: d_model / 16, rounded up");
    field("dt_min", dt_min, "smallest initial time step");
    field("dt_max", dt_max, "largest initial time step; the draws are log-uniform");
    field("dt_init_floor", dt_init_floor, "floor of the initial time steps");
    field("conv_bias", conv_bias, "bias of the convolution");
    field("bias", bias, "biases in the input and output projections");
  }
};

class Mamba final : public BlockMixer {
 public:
  Mamba(const MambaConfig& config, const MixerContext& context) : size_(config.d_state) {
    check_option("mamba", "d_state", config.d_state, 1, kernels::kSelectiveScanStates);
    check_option("mamba", "d_conv", config.d_conv, 1, 128);
    check_option("mamba", "expand", config.expand, 1, 64);
    check_option("mamba", "dt_rank", config.dt_rank, 0, 65536);
    check_number("mamba", "dt_min", config.dt_min, 1e-30);
    check_number("mamba", "dt_max", config.dt_max, config.dt_min);
    check_number("mamba", "dt_init_floor", config.dt_init_floor, 1e-30);
    const int64_t d = context.d_model;
    width_ = config.expand * d;
    rank_ = config.dt_rank == 0 ? (d + 15) / 16 : config.dt_rank;
    in_proj_ = register_module("in_proj", uniform_projection(d, 2 * width_, config.bias));
    conv_ = register_module("conv", std::make_shared<ShortConvolution>(width_, config.d_conv, config.conv_bias));
    x_proj_ = register_module("x_proj", full_precision(uniform_projection(width_, rank_ + 2 * size_, false)));
    dt_proj_ = register_module("dt_proj", full_precision(uniform_projection(rank_, width_, false)));
    out_proj_ = register_module("out_proj", uniform_projection(width_, d, config.bias, context.layers));
    dt_bias_ = register_parameter("dt_bias", initial_time_step_bias(width_, config.dt_min, config.dt_max, config.dt_init_floor));
    const Tensor rates = torch::arange(1, size_ + 1, torch::dtype(torch::kFloat).device(parameter_device()));
    A_log_ = register_parameter("A_log", rates.log().repeat({width_, 1}));
    D_ = register_parameter("D", torch::ones({width_}, parameter_device()));
  }

  // "ssm" [slots, channels, d_state] and "conv" [slots, channels, d_conv − 1].
  MixerState make_state(int64_t slots) const override {
    return MixerState({{"ssm", torch::zeros({slots, width_, size_}, sum_options(A_log_))}, conv_->state("conv", slots)});
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    const Formula channels{"expand · d_model", width_}, d_state{"d_state", size_}, d_conv{"d_conv", conv_->weight().size(1)};
    return sum_bytes(A_log_) * channels * (d_state + d_conv - 1);
  }

  std::optional<double> sequence_flops(int64_t /*tokens*/) const override { return 4 * static_cast<double>(width_ * size_); }

 private:
  Tensor run(const Tensor& x, const Call& call) override {
    const Tensor xz = in_proj_->forward(x);
    if (call.state == nullptr) {
      const ops::ProjectedScanInputs inputs{xz, conv_->weight(), conv_->bias(), x_proj_->weight(), dt_proj_->weight(), A_log_,
                                            D_, dt_bias_};
      return out_proj_->forward(ops::projected_scan(inputs, call.pass.cu_seqlens()));
    }
    const auto u = ops::split_columns(xz, {width_, width_});
    const Tensor in = conv_->forward(u[0], call, "conv");
    const auto parts = ops::split_columns(x_proj_->forward(in), {rank_, size_, size_});
    const ops::SelectiveScanInputs scanned{
        in, dt_proj_->forward(parts[0]), A_log_, parts[1].unsqueeze(1), parts[2].unsqueeze(1), D_, u[1], dt_bias_};
    return out_proj_->forward(scan(scanned, call));
  }

  static Tensor scan(const ops::SelectiveScanInputs& in, const Call& call) {
    Tensor& state = (*call.state)["ssm"];
    if (!call.step) return ops::selective_scan_prefill(in, call.pass.cu_seqlens(), state, call.pass.slots());
    const auto recur = [&](const Pass& round, const Tensor& x, const Tensor& dt, const Tensor& B, const Tensor& C,
                           const ops::OptionalTensor& z) {
      return ops::selective_scan_step({x, dt, in.A_log, B, C, in.D, z, in.dt_bias, in.softplus}, state, round.slots());
    };
    return step_in_rounds(call.pass, {state}, recur, in.x, in.dt, in.B, in.C, in.z);
  }

  int64_t size_, rank_ = 0, width_ = 0;  // size of a channel's state, rank of the time steps' projection, number of channels
  std::shared_ptr<Projection> in_proj_, x_proj_, dt_proj_, out_proj_;
  std::shared_ptr<ShortConvolution> conv_;
  Tensor dt_bias_, A_log_, D_;
};

}  // namespace

BASED_DEFINE_MIXER(mamba, Mamba, MambaConfig, "Mamba: a gated selective state space model after a short convolution")

}  // namespace based
