// RWKV-5's time mix (Peng et al. 2024, Eagle): each channel of a key has its own decay rate, and a bonus u weights the current token,
// y_t = S_{t−1}ᵀr_t + (r_t · u⊙k_t) v_t, S_t = diag(exp(−exp(time_decay))) S_{t−1} + k_t v_tᵀ. The channel mix is the mixer
// rwkv5_channel_mix.
#include <cmath>

#include "based/mixers/blocks/token_shift.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/ops/norm/layer_norm.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {
namespace {

struct Rwkv5Config {
  int64_t head_size = 64;
  double head_size_divisor = 8;
  bool rescale_output = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("head_size", head_size, "size of a head's keys and values");
    field("head_size_divisor", head_size_divisor, "divisor of a head's output before its norm");
    field("rescale_output", rescale_output,
          "initial output projection N(0, 0.02/sqrt(2 layers)), as in language models; otherwise N(0, 0.02), as in the recall models");
  }
};

class Rwkv5 final : public BlockMixer {
 public:
  Rwkv5(const Rwkv5Config& config, const MixerContext& context) : d_model_(context.d_model) {
    check_option("rwkv5", "head_size", config.head_size, 1, 65536);
    heads_ = divided("rwkv5", "d_model", d_model_, "head_size", config.head_size);
    if (!(config.head_size_divisor > 0))
      throw UsageError("rwkv5: head_size_divisor must be above 0, got " + std::to_string(config.head_size_divisor));
    norm_eps_ = 1e-5 * config.head_size_divisor * config.head_size_divisor;  // replaces the division before the norm
    // The layer's depth, from 0 for the first layer to 1 for the last.
    const double depth = static_cast<double>(context.layer) / static_cast<double>(std::max<int64_t>(1, context.layers - 1));
    const double shallow = 1 - static_cast<double>(context.layer) / static_cast<double>(context.layers);
    shift_ = register_module("shift", std::make_shared<TokenShift>(d_model_));
    shift_->add("k", shallow);
    shift_->add("v", shallow, 0.3 * depth);
    shift_->add("r", shallow / 2);
    shift_->add("g", shallow / 2);
    const auto project = [&](const char* name, double std) {
      return register_module(name, std::make_shared<Projection>(d_model_, d_model_, false, std));
    };
    k_proj_ = project("k_proj", initial_std);
    v_proj_ = project("v_proj", initial_std);
    r_proj_ = project("r_proj", initial_std);
    g_proj_ = project("g_proj", initial_std);
    o_proj_ = project("o_proj", config.rescale_output ? output_initial_std(context.layers) : initial_std);
    const Tensor channel = torch::arange(d_model_, torch::kFloat).to(parameter_device());
    const Tensor along = channel / static_cast<double>(std::max<int64_t>(1, d_model_ - 1));
    const Tensor zigzag = ((channel + 1).remainder(3) - 1) * 0.1;
    const auto by_head = [&](const Tensor& x) { return x.view({heads_, -1}); };
    time_decay_ = register_parameter("time_decay", by_head(-6 + 5 * along.pow(0.7 + 1.3 * depth)));
    bonus_ = register_parameter("bonus", by_head(depth * (1 - along) + zigzag));
    const auto norm = register_module("norm", std::make_shared<torch::nn::Module>("norm"));
    norm_weight_ = norm->register_parameter("weight", torch::ones({d_model_}, parameter_device()));
    norm_bias_ = norm->register_parameter("bias", torch::zeros({d_model_}, parameter_device()));
  }

  // "kv" [slots, heads, head_size, head_size] and "shift" [slots, d_model, 1].
  MixerState make_state(int64_t slots) const override {
    const int64_t size = d_model_ / heads_;
    return MixerState({{"kv", torch::zeros({slots, heads_, size, size}, sum_options(bonus_))}, shift_->state(slots)});
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    return sum_bytes(bonus_) * Formula{"d_model", d_model_} * (Formula{"head_size", d_model_ / heads_} + 1);
  }

  std::optional<double> sequence_flops(int64_t /*tokens*/) const override {
    return 4 * static_cast<double>(d_model_ * (d_model_ / heads_));
  }

 private:
  Tensor run(const Tensor& x, const Call& call) override {
    const at::ScalarType type = ops::sum_type(x);
    const std::vector<Tensor> mixed = shift_->forward(x, call);
    const auto heads = [&](const Tensor& y) { return y.view({x.size(0), heads_, d_model_ / heads_}); };
    ops::GatedDeltaRuleInputs in{heads(r_proj_->forward(mixed[2])), heads(k_proj_->forward(mixed[0])), heads(v_proj_->forward(mixed[1]))};
    in.log_decay = (-time_decay_.to(type).exp()).expand(in.k.sizes());
    in.bonus = bonus_;
    const Tensor gate = ops::rowwise::silu(g_proj_->forward(mixed[3]));
    return o_proj_->forward(normed(gated_delta_rule(in, call, "kv")).view(x.sizes()) * gate);
  }

  // GroupNorm with one group per head: normalises each head's values to mean 0 and deviation 1, then applies each channel's weight and
  // bias.
  Tensor normed(const Tensor& y) const {
    const Tensor one = torch::ones({y.size(2)}, norm_weight_.options().requires_grad(false)), none = torch::zeros_like(one);
    return ops::layer_norm(y, one, none, norm_eps_) * norm_weight_.view({heads_, -1}) + norm_bias_.view({heads_, -1});
  }

  int64_t d_model_, heads_ = 0;
  double norm_eps_ = 0;
  std::shared_ptr<TokenShift> shift_;
  std::shared_ptr<Projection> k_proj_, v_proj_, r_proj_, g_proj_, o_proj_;
  Tensor time_decay_, bonus_, norm_weight_, norm_bias_;
};

}  // namespace

BASED_DEFINE_MIXER(rwkv5, Rwkv5, Rwkv5Config, "RWKV-5's time mix: linear attention with a decay rate and a bonus per channel")

}  // namespace based
