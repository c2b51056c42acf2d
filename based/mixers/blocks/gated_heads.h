// What GLA, DeltaNet and Gated DeltaNet share: projections to heads, short convolutions on them, a recurrence with gates of the member's
// own, RMSNorm of what a head reads, an output gate and the output projection.
#pragma once
#include <memory>
#include <string>

#include "based/mixers/blocks/short_convolution.h"

namespace based {

// Options of all members; each sets its authors' defaults and adds its own.
struct GatedHeadsConfig {
  int64_t heads = 4;
  bool use_short_conv = true;
  int64_t conv_size = 4;
  bool conv_bias = false;
  bool use_gate = true;
  double norm_eps = 1e-5;
  bool rescale_output = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("heads", heads, "heads");
    field("use_short_conv", use_short_conv, "short convolutions with SiLU on queries, keys and values");
    field("conv_size", conv_size, "tokens that these see, the present one included");
    field("conv_bias", conv_bias, "biases of these");
    field("use_gate", use_gate, "output gate: what the heads read, times SiLU of a projection of the input");
    field("norm_eps", norm_eps, "added to the mean square in the norm of what a head reads");
    field("rescale_output", rescale_output,
          "initial output projection N(0, 0.02/sqrt(2 layers)), as in language models; otherwise N(0, 0.02), as in the recall models");
  }
};

// factor · width rounded down, of all heads together: a multiple of them. Throws UsageError naming mixer and option.
int64_t expanded(const char* mixer, const char* option, double factor, int64_t width, int64_t heads);

// The delta rule's part of the gates: queries and keys of length 1, beta = most · sigmoid(logits [tokens, heads]), or 1 where these are
// undefined.
void correct_keys(ops::GatedDeltaRuleInputs& in, const Tensor& logits, double most = 1);

// State: "kv" [slots, heads, key_dim, value_dim], and "q_conv", "k_conv", "v_conv" [slots, channels, conv_size − 1].
class GatedHeads : public BlockMixer {
 public:
  MixerState make_state(int64_t slots) const override;
  Formula state_formula(int64_t tokens) const override;  // d_key, d_value: of all heads

 protected:
  struct Widths {
    int64_t key = 0, value = 0;  // of all heads
  };
  GatedHeads(const char* mixer, const GatedHeadsConfig& config, const MixerContext& context, const Widths& widths);
  Tensor run(const Tensor& x, const Call& call) override;
  // q, k, v and the scale are set: the member's gates are added.
  virtual void add_gates(const Tensor& x, ops::GatedDeltaRuleInputs& in) const = 0;

  // A projection from the input.
  std::shared_ptr<Projection> add_projection(const std::string& name, int64_t width, bool bias = false);

 private:
  Tensor heads_of(const std::string& name, const ShortConvolution* conv, const Tensor& projected, const Call& call) const;

  GatedHeadsConfig config_;
  int64_t d_model_;
  Widths widths_;
  std::shared_ptr<Projection> q_proj_, k_proj_, v_proj_, g_proj_, o_proj_;
  std::shared_ptr<ShortConvolution> q_conv_, k_conv_, v_conv_;
  Tensor norm_weight_;  // [value_dim], of every head
};

}  // namespace based
