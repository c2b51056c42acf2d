// Gated linear attention (Yang et al. 2024): one decay per channel of the keys, S_t = diag(α_t) S_{t−1} + k_t v_tᵀ,
// log α = log sigmoid(a low-rank projection) / 16.
#include "based/mixers/blocks/gated_heads.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {
namespace {

struct GlaConfig : GatedHeadsConfig {
  double expand_k = 0.5, expand_v = 1;
  int64_t gate_low_rank_dim = 16;
  double gate_logit_normalizer = 16;
  GlaConfig() { use_short_conv = false; }
  template <class Visitor>
  void visit(Visitor&& field) {
    field("expand_k", expand_k, "width of all queries, and of all keys, in multiples of d_model");
    field("expand_v", expand_v, "width of all values in multiples of d_model");
    field("gate_low_rank_dim", gate_low_rank_dim, "rank of the decays' projection");
    field("gate_logit_normalizer", gate_logit_normalizer, "divisor of the decays' logarithms");
    GatedHeadsConfig::visit(field);
  }
};

class Gla final : public GatedHeads {
 public:
  Gla(const GlaConfig& config, const MixerContext& context)
      : GatedHeads("gla", config, context, widths(config, context.d_model)), normalizer_(config.gate_logit_normalizer) {
    check_option("gla", "gate_low_rank_dim", config.gate_low_rank_dim, 1, 65536);
    if (!(normalizer_ > 0)) throw UsageError("gla: gate_logit_normalizer must be above 0, got " + std::to_string(normalizer_));
    decay_down_ = full_precision(add_projection("decay_down", config.gate_low_rank_dim));
    decay_up_ = register_module(
        "decay_up", full_precision(std::make_shared<Projection>(config.gate_low_rank_dim, widths(config, context.d_model).key, true)));
  }

 private:
  static Widths widths(const GlaConfig& config, int64_t d_model) {
    check_option("gla", "heads", config.heads, 1, 4096);
    return {expanded_width("gla", "expand_k", config.expand_k, d_model, config.heads),
            expanded_width("gla", "expand_v", config.expand_v, d_model, config.heads)};
  }

  void add_gates(const Tensor& x, ops::GatedDeltaRuleInputs& in) const override {
    const Tensor logits = decay_up_->forward(decay_down_->forward(x));
    in.log_decay = ops::rowwise::gate(logits, kernels::Activation::log_sigmoid, {1 / normalizer_}).view(in.k.sizes());
  }

  double normalizer_;
  std::shared_ptr<Projection> decay_down_, decay_up_;
};

}  // namespace

BASED_DEFINE_MIXER(gla, Gla, GlaConfig, "gated linear attention: each channel of the keys decays at a rate that the token sets")

}  // namespace based
