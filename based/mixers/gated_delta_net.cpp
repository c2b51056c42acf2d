// Gated DeltaNet (Yang et al. 2024): DeltaNet whose state decays at a rate per head and token, as in Mamba-2:
// S_t = D + β_t k_t (v_t − Dᵀk_t)ᵀ with D = α_t S_{t−1}, log α = −exp(A_log) · softplus(a_proj x + dt_bias).
#include "based/mixers/blocks/gated_heads.h"
#include "based/mixers/blocks/time_step.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {
namespace {

struct GatedDeltaNetConfig : GatedHeadsConfig {
  int64_t head_dim = 0;
  double expand_v = 2;
  template <class Visitor>
  void visit(Visitor&& field) {
    GatedHeadsConfig::visit(field);
    field("head_dim", head_dim, "size of a head's queries and keys; 0: d_model / heads");
    field("expand_v", expand_v, "width of all values in multiples of that of all keys");
  }
};

class GatedDeltaNet final : public GatedHeads {
 public:
  GatedDeltaNet(const GatedDeltaNetConfig& config, const MixerContext& context)
      : GatedHeads("gated_delta_net", config, context, widths(config, context.d_model)) {
    a_proj_ = full_precision(add_projection("a_proj", config.heads));
    b_proj_ = full_precision(add_projection("b_proj", config.heads));
    A_log_ = register_parameter("A_log", initial_rate_log(config.heads, 0, 16));
    dt_bias_ = register_parameter("dt_bias", initial_time_step_bias(config.heads));
  }

 private:
  static Widths widths(const GatedDeltaNetConfig& config, int64_t d_model) {
    check_option("gated_delta_net", "heads", config.heads, 1, 4096);
    check_option("gated_delta_net", "head_dim", config.head_dim, 0, 65536);
    const int64_t head_dim =
        config.head_dim > 0 ? config.head_dim : divided("gated_delta_net", "d_model", d_model, "heads", config.heads, "; give head_dim");
    const int64_t key = config.heads * head_dim;
    return {key, expanded_width("gated_delta_net", "expand_v", config.expand_v, key, config.heads)};
  }

  void add_gates(const Tensor& x, ops::GatedDeltaRuleInputs& in) const override {
    in.log_decay = ops::rowwise::gate(a_proj_->forward(x), kernels::Activation::softplus, {-1, dt_bias_, A_log_});
    use_delta_rule(in, b_proj_->forward(x));
  }

  double state_products() const override { return 3; }

  std::shared_ptr<Projection> a_proj_, b_proj_;
  Tensor A_log_, dt_bias_;
};

}  // namespace

BASED_DEFINE_MIXER(gated_delta_net, GatedDeltaNet, GatedDeltaNetConfig, "Gated DeltaNet: the delta rule on a state that decays")

}  // namespace based
