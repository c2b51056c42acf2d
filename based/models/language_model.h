// Pre-norm language model: embedding, blocks of (norm, mixer, norm, MLP) around a residual stream, norm, tied output projection.
// Activations are packed [tokens, d_model]; the residual stream is fp32 in bf16 models.
#pragma once
#include <memory>
#include <vector>

#include "based/mixers/mixer.h"
#include "based/mixers/projection.h"
#include "based/models/config.h"
#include "based/models/state.h"
#include "based/ops/torch.h"

namespace based {

class Norm;

// The residual stream, and what a layer has given but not yet added: the norm that comes next adds it in the same pass.
struct Residual {
  Tensor sum;                       // [tokens, d_model]; undefined: nothing has been added yet
  Tensor pending;                   // likewise, or undefined
  Tensor deferred_mlp_output = {};  // likewise: what was given before `pending`, and seen by a norm that left the sum as it was
  Norm* deferred_norm = nullptr;    // its result, of all that stands here, is still to be added; null: none
  void run_deferred_norm();         // leaves its result pending
};

class Norm : public torch::nn::Module {
 public:
  Norm(const std::string& kind, const ModelConfig& config);  // kind: rms_norm or layer_norm
  // Of the whole stream; nothing is pending afterwards. The result has the weight's type. Without gradients the sum is updated in place, or
  // by the norm after this one where `skip_residual_write` saves writing the sum.
  Tensor forward(Residual& residual, bool skip_residual_write = false);
  // Adds forward(residual) to the stream: the result is pending, or left to the norm after this one, which then computes both in one pass.
  void add(Residual& residual, bool skip_residual_write = false);
  // forward() of a stream that nothing reads afterwards.
  Tensor last(Residual& residual) { return residual.deferred_norm ? forward_of_both(residual, /*keeps_sum=*/false) : forward(residual); }

 private:
  // Behind residual.deferred_norm.
  Tensor forward_of_both(Residual& residual, bool keeps_sum);

  double eps_;
  Tensor weight_, bias_;  // no bias: RMSNorm
};

// swiglu: fc2(y ⊙ SiLU(gate)), [y, gate] = fc1(x), no biases; gelu: fc2(GELU(fc1(x))) with biases.
class Mlp : public torch::nn::Module {
 public:
  Mlp(const ModelConfig& config);
  Tensor forward(const Tensor& x);

 private:
  bool gated_;
  std::shared_ptr<Projection> fc1_, fc2_;
};

class ModelBlock : public torch::nn::Module {
 public:
  ModelBlock(const ModelConfig& config, int64_t layer);
  Mixer& mixer() { return *mixer_; }
  const Mixer& mixer() const { return *mixer_; }
  // residual + mixer(norm1(residual)), then + mlp(norm2(·)), or + norm2(·) where the MLP is the identity; `mix` runs the mixer in one of
  // its forms. What comes last is left pending, or its norm deferred.
  template <class Mix>
  void run(Residual& residual, Mix&& mix) {
    run_mixer(residual, mix);
    run_mlp(residual);
  }
  // Its halves: tokens see each other in the first one alone.
  template <class Mix>
  void run_mixer(Residual& residual, Mix&& mix) {
    residual.pending = mix(*mixer_, norm1_->forward(residual));
  }
  void run_mlp(Residual& residual, bool skip_residual_write = false);

 private:
  std::shared_ptr<Norm> norm1_, norm2_;  // norm2_ null: no MLP at all
  std::shared_ptr<Mixer> mixer_;
  std::shared_ptr<Mlp> mlp_;  // null: the identity, or none
};

class LanguageModel : public torch::nn::Module {
 public:
  // Parameters are drawn from torch's CPU generator, which all threads share; see make_model. Throws UsageError for a wrong config.
  explicit LanguageModel(ModelConfig config);

  const ModelConfig& config() const { return config_; }
  int64_t parameter_count() const;
  torch::Dtype dtype() const { return embedding_.scalar_type(); }
  torch::Device device() const { return embedding_.device(); }
  ModelBlock& block(int64_t layer) { return *blocks_[layer]; }
  int64_t layers() const { return static_cast<int64_t>(blocks_.size()); }

  // While training, keep only each layer's input and compute the rest again in the backward pass; gradients stay the same.
  void set_checkpoint_activations(bool on) { checkpoint_activations_ = on; }

  // ids int64 [tokens] -> hidden states after the last norm, [tokens, d_model]. In training mode, a model with dropout needs `draws`, and
  // throws Error without; they must stay as they are until the backward pass. The forms with a state draw nothing, and throw there.
  Tensor forward(const Tensor& ids, const Sequences& rows, const ops::Draws& draws = {});
  // Mean cross entropy over labels ≠ −100, int64 [tokens], of which there are `labelled`; −1: they are counted, which waits for a device.
  // Where `places`, int64 [labels] and ascending, are the tokens that have a label, `labels` is int64 [labels], theirs alone.
  Tensor loss(const Tensor& ids, const Tensor& labels, const Sequences& rows, int64_t labelled = -1, const ops::Draws& draws = {},
              const Tensor& places = {});
  // Log-probability of each row's target, int64 [n], under the softmax over the vocabulary; with `padded_columns` over the embedding's
  // padding rows too, as in the training loss. fp32 [n], fp64 in fp64 models. No gradient. All reported scores of given tokens come from
  // here.
  Tensor token_log_probabilities(const Tensor& hidden, const Tensor& targets, bool padded_columns = false);
  // The sum of the negative log-probabilities of `labels` ≠ −100, int64 [tokens], over the vocabulary. No gradient.
  double evaluation_nats(const Tensor& ids, const Tensor& labels, const Sequences& rows);
  // The word that each row of hidden [n, d_model] gives the most probability, int64 [n]; −1 where what it says is not finite. No gradient.
  Tensor most_likely(const Tensor& hidden);
  // hidden [n, d_model] -> [n, padded_vocab].
  Tensor logits(const Tensor& hidden);

  // Throws Error naming the first layer whose mixer has no recurrent form.
  ModelState make_state(int64_t slots) const;
  // As Mixer::prefill and Mixer::step; both return hidden states after the last norm.
  Tensor prefill(const Tensor& ids, const Sequences& rows, ModelState& state, const Slots& slots);
  Tensor step(const Tensor& ids, ModelState& state, const Slots& slots);
  // As prefill, for those who go on from the state: [rows, d_model], of each row's last token alone, so that behind the last layer's mixer
  // nothing is computed for the others. That of a row without tokens means nothing.
  Tensor prefill_last(const Tensor& ids, const Sequences& rows, ModelState& state, const Slots& slots);

 private:
  // A pass without a state over all rows, which the positions reach.
  std::shared_ptr<const Pass> make_pass(const Sequences& rows, const ops::Draws& draws) const;
  // Hidden states after the last norm, from the stream as it begins.
  Tensor run(Residual residual, const std::shared_ptr<const Pass>& pass);
  // The stream as it begins: the embedding's rows, and what else is added to them.
  Residual embed(Tensor embedded, const Pass& pass);
  bool drops() const { return is_training() && config_.embedding_dropout > 0; }
  // The residual stream behind the last layer's mixer, of all tokens.
  Residual run_mixers(const Tensor& ids, const Sequences& rows, ModelState& state, const Slots& slots);
  Tensor final_norm(Residual& residual);  // the last layer's MLP and norm
  ModelConfig config_;
  Tensor embedding_, positions_;
  std::vector<std::shared_ptr<ModelBlock>> blocks_;
  std::shared_ptr<Norm> norm_;
  bool checkpoint_activations_ = false;
};

// What torch's generators are seeded with: the seed itself at step 0 where it has 32 bits. Torch's CPU generator reads no more than 32
// bits, so others, and later steps, are mixed into those.
uint64_t generator_seed(int64_t seed, int64_t step = 0);
// Drawn from the seed alone: the parameters that torch::manual_seed(generator_seed(seed)) and the constructor give, whatever other threads
// make this way meanwhile. Leaves torch's CPU generator at another place.
std::shared_ptr<LanguageModel> make_model(const ModelConfig& config, int64_t seed);
// Of the model that this config describes, counted on its layers without building all of it.
int64_t parameter_count(const ModelConfig& config);
// Bytes of one slot of the state that really runs, after `tokens` tokens.
int64_t state_bytes(LanguageModel& model, int64_t tokens);

}  // namespace based
