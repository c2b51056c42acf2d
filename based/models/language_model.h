// Pre-norm language model: embedding, blocks of (norm, mixer, norm, MLP) around a residual stream, norm, tied output projection.
// Activations are packed [tokens, d_model]; the residual stream is fp32 in bf16 models.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/projection.h"
#include "based/models/config.h"
#include "based/models/residual_stream.h"
#include "based/models/state.h"
#include "based/runtime/profile.h"
#include "based/runtime/torch.h"

namespace based {

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
  // Adds mixer(norm1(stream)) to the stream and then mlp(norm2(stream)), or norm2(stream) if the MLP is the identity. `mix` runs the mixer
  // in one of its forms.
  template <class Mix>
  void run(ResidualStream& stream, Mix&& mix) {
    const runtime::DeviceRange range = profile_range();
    run_mixer(stream, mix);
    run_mlp(stream);
  }
  // The halves of run(). Only the mixer reads several tokens to compute one.
  template <class Mix>
  void run_mixer(ResidualStream& stream, Mix&& mix) {
    const Tensor x = run_norm(stream, *norm1_, "norm1");
    stream.add(run_part(x, mixer_name_, [&] { return mix(*mixer_, x); }));
  }
  void run_mlp(ResidualStream& stream, bool skip_sum_write = false);  // skip_sum_write: see ResidualStream::norm
  // The range of this layer in a profile (--profile), "layers.3". The ranges of its norms, its mixer and its MLP are inside it.
  runtime::DeviceRange profile_range() const { return {ProfileLevel::layers, name_, norm1_->weight().device(), {{"layer", layer_}}}; }
  int64_t layer() const { return layer_; }

 private:
  Tensor run_norm(ResidualStream& stream, const Norm& norm, const char* name, bool skip_sum_write = false) const;
  // Returns body() and gives it a range of this name, and its backward pass another.
  template <class Body>
  Tensor run_part(const Tensor& x, const char* name, const Body& body) const {
    const runtime::DeviceRange range(ProfileLevel::layers, name, x.device(), {{"layer", layer_}, {"rows", x.size(0)}});
    Tensor y = body();
    runtime::mark_backward(y, name, {{"layer", layer_}});
    return y;
  }

  std::shared_ptr<Norm> norm1_, norm2_;  // norm2_ null: no MLP at all
  std::shared_ptr<Mixer> mixer_;
  std::shared_ptr<Mlp> mlp_;  // null: the identity, or none
  int64_t layer_;
  const char* name_;        // "layers.3": the name of the layer's ranges
  const char* mixer_name_;  // "taylor_attention": the name of the mixer's ranges
};

class LanguageModel : public torch::nn::Module {
 public:
  // Initialises parameters by torch's CPU generator, which all threads share; see make_model. Throws UsageError for a wrong config.
  explicit LanguageModel(ModelConfig config);

  const ModelConfig& config() const { return config_; }
  int64_t parameter_count() const;  // quantised weights included
  torch::Dtype dtype() const { return embedding_.scalar_type(); }
  torch::Device device() const { return embedding_.device(); }
  ModelBlock& block(int64_t layer) { return *blocks_[layer]; }
  int64_t layers() const { return static_cast<int64_t>(blocks_.size()); }

  // In training, keep only each layer's input and recompute the other activations in the backward pass; gradients do not change.
  void set_checkpoint_activations(bool on) { checkpoint_activations_ = on; }

  // ids int64 [tokens] -> hidden states after the last norm, [tokens, d_model]. In training mode, a model with dropout needs `draws` and
  // throws Error without them; they must not change until the backward pass. The forms with a state have no dropout: a model with dropout
  // in training mode throws Error there.
  Tensor forward(const Tensor& ids, const Sequences& rows, const ops::Draws& draws = {});
  // Mean cross entropy over the labels ≠ −100; labels int64 [tokens]. `labelled`: how many labels are ≠ −100; −1: they are counted, which
  // waits for the device. If `places`, int64 [n] and ascending, gives the tokens that have a label, `labels` is int64 [n] and holds only
  // theirs.
  // A model with another head overrides it.
  virtual Tensor loss(const Tensor& ids, const Tensor& labels, const Sequences& rows, int64_t labelled = -1, const ops::Draws& draws = {},
                      const Tensor& places = {});
  // Log-probability of each row's target, int64 [n], under the softmax over the vocabulary; with `padded_columns` also over the embedding's
  // padding rows, as in the training loss. fp32 [n], fp64 in fp64 models. No gradient. All reported scores of given tokens are computed by
  // this function.
  Tensor token_log_probabilities(const Tensor& hidden, const Tensor& targets, bool padded_columns = false);
  // The negative log-probability of each label ≠ −100 as token_log_probabilities gives it, and 0 for the others: fp64 [tokens]; labels
  // int64 [tokens]. No gradient.
  Tensor evaluation_nats(const Tensor& ids, const Tensor& labels, const Sequences& rows, bool padded_columns = false);
  // The most likely token of each row of hidden [n, d_model], int64 [n]; −1 for a row whose logits are not finite. With `padded_columns` it
  // may be a padding row of the embedding. No gradient.
  Tensor most_likely(const Tensor& hidden, bool padded_columns = false);
  // hidden [n, d_model] -> [n, padded_vocab].
  Tensor logits(const Tensor& hidden);
  // Overwrites the embedding by the values of a quantised one. logits() reads the quantised one from then on; on a GPU only for a single
  // row. Throws Error for another shape.
  void quantise_embedding(const ops::QuantisedWeight& weight);
  const std::optional<ops::QuantisedWeight>& quantised_head() const { return quantised_head_; }  // what logits() reads
  // Projection::use_full_weight() for all layers, and logits() reads the embedding. Returns the bytes of the converted weights; 0: none is
  // quantised. No other thread may use the model meanwhile.
  int64_t use_full_weights();

  // Throws Error naming the first layer whose mixer has no recurrent form.
  ModelState make_state(int64_t slots) const;
  // As Mixer::prefill and Mixer::step; both return hidden states after the last norm.
  Tensor prefill(const Tensor& ids, const Sequences& rows, ModelState& state, const Slots& slots);
  Tensor step(const Tensor& ids, ModelState& state, const Slots& slots);
  // step() for several consecutive tokens of each sequence. ids and slots int64 [rows], ordered by rounds of round_rows[i] rows
  // (Pass::step_rounds); `journal` as there, it also receives the positions. Returns [rows + padding, d_model].
  // On the CPU the bits are those of one step after another, for at most ops::kBatchInvariantRows rows in all. On a GPU the bits of a row
  // depend on the number of rows of each product and each recurrence: they are the same in all calls with the same rows + padding whose
  // rounds have the same number of rows, such as one sequence's.
  Tensor step_rounds(const Tensor& ids, ModelState& state, const Slots& slots, const std::vector<int64_t>& round_rows,
                     StateJournal* journal, int64_t padding = 0);
  // As prefill, but returns only the hidden state of each row's last token, [rows, d_model]. After the last layer's mixer, nothing is
  // computed for the other tokens. The entry of a row without tokens is undefined.
  Tensor prefill_last(const Tensor& ids, const Sequences& rows, ModelState& state, const Slots& slots);

 private:
  // A pass without a state. Throws Error for a row that is longer than the model's positions.
  std::shared_ptr<const Pass> make_pass(const Sequences& rows, const ops::Draws& draws) const;
  // All layers and the last norm, from the stream that embed() returns.
  Tensor run(ResidualStream stream, const std::shared_ptr<const Pass>& pass);
  // The stream before the first layer: `embedded`, rows of the embedding, with positions and dropout.
  ResidualStream embed(Tensor embedded, const Pass& pass);
  ResidualStream embed_ids(const Tensor& ids, const Pass& pass);
  // Ranges of parts outside the layers in a profile.
  runtime::DeviceRange profile_range(const char* name, int64_t rows) const;
  Tensor last_norm(ResidualStream& stream);  // ResidualStream::last_norm by norm_
  bool drops() const { return is_training() && config_.embedding_dropout > 0; }
  // The residual stream of all tokens after the last layer's mixer.
  ResidualStream run_mixers(const Tensor& ids, const Sequences& rows, ModelState& state, const Slots& slots);
  // step_rounds() for the tokens of one sequence.
  Tensor step_sequence(const Tensor& ids, ModelState& state, const Slots& slot, StateJournal* journal, int64_t padding);
  // The hidden states after the last norm of a step whose tokens have these rows of the embedding, in the residual stream's type.
  Tensor run_step(const Tensor& embedded, ModelState& state, const Pass& pass);
  Tensor final_norm(ResidualStream& stream);  // the last layer's MLP and the last norm
  ModelConfig config_;
  Tensor embedding_, positions_;
  std::optional<ops::QuantisedWeight> quantised_head_, recorded_head_;  // the embedding in int8; recorded_head_: see use_full_weights()
  std::vector<std::shared_ptr<ModelBlock>> blocks_;
  std::shared_ptr<Norm> norm_;
  bool checkpoint_activations_ = false;
};

// The seed of torch's generators: `seed` itself at step 0 if it has 32 bits. Torch's CPU generator reads only 32 bits, so wider seeds and
// later steps are mixed into 32 bits.
uint64_t generator_seed(int64_t seed, int64_t step = 0);
// A model whose parameters depend on the seed alone: those that torch::manual_seed(generator_seed(seed)) and the constructor would give,
// even if other threads call make_model at the same time. Advances torch's CPU generator.
std::shared_ptr<LanguageModel> make_model(const ModelConfig& config, int64_t seed);
// Parameters of the model that this config describes. Only one layer of each kind is built, without memory.
int64_t parameter_count(const ModelConfig& config);
// Bytes of one slot of the model's state after `tokens` tokens.
int64_t state_bytes(LanguageModel& model, int64_t tokens);

}  // namespace based
