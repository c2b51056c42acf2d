// RWKV-5's channel mix: an MLP that also reads the previous token. It has a state, and is therefore a mixer, for models with mlp "none":
// y = sigmoid(r_proj x_r) ⊙ v_proj(relu(k_proj x_k)²).
#include "based/mixers/blocks/token_shift.h"
#include "based/mixers/kit/parameters.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {
namespace {

struct Rwkv5ChannelMixConfig {
  int64_t width = 0;
  bool rescale_output = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("width", width, "hidden width; 0: 3.5 · d_model, rounded down to a multiple of 32 (at least 32)");
    field("rescale_output", rescale_output,
          "initial output projection N(0, 0.02/sqrt(2 layers)), as in language models; otherwise N(0, 0.02), as in the recall models");
  }
};

class Rwkv5ChannelMix final : public BlockMixer {
 public:
  Rwkv5ChannelMix(const Rwkv5ChannelMixConfig& config, const MixerContext& context) {
    check_option("rwkv5_channel_mix", "width", config.width, 0, int64_t{1} << 20);
    const int64_t d_model = context.d_model, width = config.width > 0 ? config.width : std::max<int64_t>(1, d_model * 7 / 64) * 32;
    const double shallow = 1 - static_cast<double>(context.layer) / static_cast<double>(context.layers);
    shift_ = register_module("shift", std::make_shared<TokenShift>(d_model));
    shift_->add("k", shallow);
    shift_->add("r", shallow);
    k_proj_ = register_module("k_proj", std::make_shared<Projection>(d_model, width, false));
    r_proj_ = register_module("r_proj", std::make_shared<Projection>(d_model, d_model, false));
    v_proj_ = register_module(
        "v_proj",
        std::make_shared<Projection>(width, d_model, false, config.rescale_output ? output_initial_std(context.layers) : initial_std));
  }

  // "shift" [slots, d_model, 1]
  MixerState make_state(int64_t slots) const override { return MixerState({shift_->state(slots)}); }

  Formula state_formula(int64_t /*tokens*/) const override {
    return sum_bytes(k_proj_->weight()) * Formula{"d_model", k_proj_->weight().size(1)};
  }

  std::optional<double> sequence_flops(int64_t /*tokens*/) const override { return 0; }

 private:
  Tensor run(const Tensor& x, const Call& call) override {
    const std::vector<Tensor> mixed = shift_->forward(x, call);
    const Tensor positive = torch::relu(k_proj_->forward(mixed[0]));
    return ops::rowwise::sigmoid(r_proj_->forward(mixed[1])) * v_proj_->forward(positive * positive);
  }

  std::shared_ptr<TokenShift> shift_;
  std::shared_ptr<Projection> k_proj_, r_proj_, v_proj_;
};

}  // namespace

BASED_DEFINE_MIXER(rwkv5_channel_mix, Rwkv5ChannelMix, Rwkv5ChannelMixConfig,
                   "RWKV-5's channel mix: an MLP that also reads the previous token")

}  // namespace based
