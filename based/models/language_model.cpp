#include "based/models/language_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <mutex>

#include "based/mixers/kit/rounds.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/activation_checkpoint.h"
#include "based/models/limits.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/linear/gated_mlp.h"
#include "based/ops/linear/linear.h"
#include "based/ops/pointwise/swiglu.h"
#include "based/ops/sampling/most_likely.h"
#include "based/ops/training/cross_entropy.h"
#include "based/ops/training/embedding.h"

namespace based {
namespace {

constexpr int64_t kEmbeddingPlace = 0;  // the index of the embedding's dropout among Pass::draws()

std::shared_ptr<Mixer> make_layer_mixer(const ModelConfig& config, int64_t layer) {
  const std::string& name = config.layers[layer];
  const MixerContext context{config.d_model, layer, static_cast<int64_t>(config.layers.size())};
  const auto found = config.mixers.find(name);
  if (found == config.mixers.end()) return find_mixer(name).make(Config(Config::Table{}), context);
  Config::Table options;
  for (const auto& [key, value] : std::get<Config::Table>(found->second.value()))
    if (key != "type") options.emplace_back(key, value);
  const std::string& type = std::get<std::string>(found->second.find("type")->value());
  return find_mixer(type).make(Config(options, found->second.where()), context);
}

std::shared_ptr<Norm> make_final_norm(const ModelConfig& config) {
  return std::make_shared<Norm>(config.final_norm.empty() ? config.norm : config.final_norm, config);
}

}  // namespace

Mlp::Mlp(const ModelConfig& config) : gated_(config.mlp == "swiglu") {
  const double out_std = output_initial_std(static_cast<int64_t>(config.layers.size()));
  fc1_ = register_module("fc1", std::make_shared<Projection>(config.d_model, (gated_ ? 2 : 1) * config.mlp_width, !gated_));
  fc2_ = register_module("fc2", std::make_shared<Projection>(config.mlp_width, config.d_model, !gated_, out_std));
}

Tensor Mlp::forward(const Tensor& x) {
  if (!gated_) return fc2_->forward(torch::gelu(fc1_->forward(x)));
  if (fc1_->quantised() || fc2_->quantised()) return fc2_->forward(fc1_->forward_swiglu(x));
  return ops::gated_mlp(x, fc1_->weight(), fc2_->weight());
}

ModelBlock::ModelBlock(const ModelConfig& config, int64_t layer)
    : layer_(layer),
      name_(profile_name("layers." + std::to_string(layer))),
      mixer_name_(profile_name(config.layers[static_cast<size_t>(layer)])) {
  norm1_ = register_module("norm1", std::make_shared<Norm>(config.norm, config));
  mixer_ = register_module("mixer", make_layer_mixer(config, layer));
  if (config.mlp == "none") return;
  norm2_ = register_module("norm2", std::make_shared<Norm>(config.norm, config));
  if (config.mlp != "identity") mlp_ = register_module("mlp", std::make_shared<Mlp>(config));
}

void ModelBlock::run_mlp(ResidualStream& stream, bool skip_sum_write) {
  if (!norm2_) return;
  if (!mlp_) {
    const runtime::DeviceRange range(ProfileLevel::layers, "norm2", norm2_->weight().device(), {{"layer", layer_}});
    return stream.add_norm(*norm2_, skip_sum_write);
  }
  const Tensor x = run_norm(stream, *norm2_, "norm2", skip_sum_write);
  stream.add(run_part(x, "mlp", [&] { return mlp_->forward(x); }));
}

Tensor ModelBlock::run_norm(ResidualStream& stream, const Norm& norm, const char* name, bool skip_sum_write) const {
  const runtime::DeviceRange range(ProfileLevel::layers, name, norm.weight().device(), {{"layer", layer_}});
  Tensor y = stream.norm(norm, skip_sum_write);
  runtime::mark_backward(y, name, {{"layer", layer_}});
  return y;
}

LanguageModel::LanguageModel(ModelConfig config) : config_(std::move(config)) {
  check_model_config(config_);
  embedding_ = register_parameter("embedding", initial_normal({config_.padded_vocab(), config_.d_model}, initial_std));
  if (config_.max_positions > 0)
    positions_ = register_parameter("position_embedding", initial_normal({config_.max_positions, config_.d_model}, initial_std));
  torch::nn::ModuleList layers;
  for (int64_t i = 0; i < static_cast<int64_t>(config_.layers.size()); ++i) {
    blocks_.push_back(std::make_shared<ModelBlock>(config_, i));
    layers->push_back(blocks_.back());
  }
  register_module("layers", layers);
  norm_ = register_module("norm", make_final_norm(config_));
}

int64_t LanguageModel::parameter_count() const {
  int64_t sum = 0;
  for (const auto& parameter : parameters()) sum += parameter.numel();
  for (const auto& module : modules(/*include_self=*/false)) {
    const auto* const layer = dynamic_cast<const Projection*>(module.get());
    if (layer == nullptr) continue;
    if (const auto& weight = layer->quantised()) sum += weight->out() * weight->in();
  }
  return sum;
}

ResidualStream LanguageModel::embed(Tensor embedded, const Pass& pass) {
  if (positions_.defined()) embedded = embedded + ops::embedding(positions_, pass.positions());
  if (drops()) embedded = ops::dropout(embedded, config_.embedding_dropout, pass.draws(), kEmbeddingPlace);
  runtime::mark_backward(embedded, "embedding");
  return ResidualStream::from_output(embedded);
}

Tensor LanguageModel::forward(const Tensor& ids, const Sequences& rows, const ops::Draws& draws) {
  const auto pass = make_pass(rows, draws);
  return run(embed_ids(ids, *pass), pass);
}

ResidualStream LanguageModel::embed_ids(const Tensor& ids, const Pass& pass) {
  const runtime::DeviceRange range = profile_range("embedding", ids.size(0));
  return embed(ops::embedding(embedding_, ids), pass);
}

runtime::DeviceRange LanguageModel::profile_range(const char* name, int64_t rows) const {
  return {ProfileLevel::layers, name, device(), {{"rows", rows}}};
}

Tensor LanguageModel::last_norm(ResidualStream& stream) {
  const runtime::DeviceRange range(ProfileLevel::layers, "norm", device());
  Tensor y = stream.last_norm(*norm_);
  runtime::mark_backward(y, "norm");
  return y;
}

std::shared_ptr<const Pass> LanguageModel::make_pass(const Sequences& rows, const ops::Draws& draws) const {
  require_positions(config_, rows.max_length(), "a row");
  return std::make_shared<const Pass>(rows, draws);
}

Tensor LanguageModel::run(ResidualStream stream, const std::shared_ptr<const Pass>& pass) {
  const auto mix = [pass](Mixer& mixer, const Tensor& x) { return mixer.forward(x, *pass); };  // by value: the backward runs it again
  if (!checkpoint_activations_ || !torch::GradMode::is_enabled()) {
    for (const auto& block : blocks_) block->run(stream, mix);
    return last_norm(stream);
  }
  Tensor sum = stream.total();
  for (const auto& block : blocks_) {
    const auto body = [block, mix](const Tensor& in) {
      ResidualStream inner = ResidualStream::from_sum(in);
      block->run(inner, mix);
      return inner.total();
    };
    sum = recompute_in_backward(body, sum);
    runtime::mark_backward(sum, "recompute", {{"layer", block->layer()}});
  }
  stream = ResidualStream::from_sum(sum);
  return last_norm(stream);
}

Tensor LanguageModel::loss(const Tensor& ids, const Tensor& labels, const Sequences& rows, int64_t labelled, const ops::Draws& draws,
                           const Tensor& places) {
  const auto pass = make_pass(rows, draws);
  const bool in_one_pass = drops() && !positions_.defined();  // nothing is added between the embedding and the dropout
  ops::Embedded embedded;
  const auto embed_tied = [&] {
    const runtime::DeviceRange range = profile_range("embedding", ids.size(0));
    embedded = in_one_pass ? ops::tied_embedding(embedding_, ids, config_.embedding_dropout, pass->draws(), kEmbeddingPlace)
                           : ops::tied_embedding(embedding_, ids);
    if (!in_one_pass) return embed(embedded.rows, *pass);
    runtime::mark_backward(embedded.rows, "embedding");
    return ResidualStream::from_output(embedded.rows);
  };
  const Tensor hidden = run(embed_tied(), pass);
  const runtime::DeviceRange range = profile_range("head", hidden.size(0));
  Tensor loss = ops::cross_entropy(hidden, embedded.table, labels, labelled, ops::if_defined(places));
  runtime::mark_backward(loss, "head");
  return loss;
}

Tensor LanguageModel::token_log_probabilities(const Tensor& hidden, const Tensor& targets, bool padded_columns) {
  const runtime::DeviceRange range = profile_range("head", hidden.size(0));
  return ops::token_log_probabilities(hidden, embedding_, targets, padded_columns ? config_.padded_vocab() : config_.vocab_size);
}

Tensor LanguageModel::evaluation_nats(const Tensor& ids, const Tensor& labels, const Sequences& rows, bool padded_columns) {
  const torch::NoGradGuard no_gradients;
  const Tensor places = (labels != ops::kIgnoredLabel).nonzero().squeeze(1);
  const Tensor scores = token_log_probabilities(forward(ids, rows).index_select(0, places), labels.index_select(0, places), padded_columns);
  return torch::zeros(labels.sizes(), labels.options().dtype(torch::kDouble)).index_copy_(0, places, -scores.to(torch::kDouble));
}

Tensor LanguageModel::most_likely(const Tensor& hidden, bool padded_columns) {
  const runtime::DeviceRange range = profile_range("head", hidden.size(0));
  return ops::most_likely(hidden, embedding_, padded_columns ? config_.padded_vocab() : config_.vocab_size);
}

Tensor LanguageModel::logits(const Tensor& hidden) {
  const runtime::DeviceRange range = profile_range("head", hidden.size(0));
  const bool reads_int8 = quantised_head_ && (hidden.is_cpu() || hidden.size(0) == 1);
  return reads_int8 ? ops::quantised_linear(hidden, *quantised_head_) : ops::linear(hidden, embedding_);
}

void LanguageModel::quantise_embedding(const ops::QuantisedWeight& weight) {
  ops::check_quantised(weight);
  if (weight.out() != embedding_.size(0) || weight.in() != embedding_.size(1))
    throw Error("the quantised embedding is [" + std::to_string(weight.out()) + ", " + std::to_string(weight.in()) + "], the model's is [" +
                std::to_string(embedding_.size(0)) + ", " + std::to_string(embedding_.size(1)) + "]");
  constexpr int64_t block = 4096;  // rows, so that the intermediate results stay small
  const Tensor to = embedding_.detach();
  for (int64_t first = 0; first < weight.out(); first += block) {
    const int64_t count = std::min(block, weight.out() - first);
    to.narrow(0, first, count).copy_(ops::dequantised(weight, first, count, to.scalar_type()));
  }
  quantised_head_ = weight;
}

int64_t LanguageModel::use_full_weights() {
  int64_t bytes = 0;
  for (const auto& module : modules(/*include_self=*/false))
    if (auto* const layer = dynamic_cast<Projection*>(module.get())) bytes += layer->use_full_weight();
  if (quantised_head_) recorded_head_ = std::exchange(quantised_head_, std::nullopt);
  return bytes;
}

ModelState LanguageModel::make_state(int64_t slots) const {
  std::vector<MixerState> layers;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Mixer& mixer = std::as_const(*blocks_[i]).mixer();
    if (dynamic_cast<const ParallelMixer*>(&mixer) != nullptr)
      throw Error("layer " + std::to_string(i) + " of the model, '" + config_.layers[i] +
                  "', has a mixer without a recurrent form: nothing can be decoded from it and no state be kept; `based train`, "
                  "`based experiment` and `based mqar eval` run it");
    layers.push_back(mixer.make_state(slots));
  }
  return ModelState(std::move(layers), torch::zeros({slots}, torch::dtype(torch::kInt64).device(device())));
}

ResidualStream LanguageModel::run_mixers(const Tensor& ids, const Sequences& rows, ModelState& state, const Slots& slots) {
  const Tensor seen = state.position().index_select(0, slots);
  const Pass pass(rows, slots, seen);
  ResidualStream stream = embed_ids(ids, pass);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const runtime::DeviceRange range = blocks_[i]->profile_range();
    blocks_[i]->run_mixer(stream, [&](Mixer& mixer, const Tensor& x) { return mixer.prefill(x, state.layers()[i], pass); });
    if (i + 1 < blocks_.size()) blocks_[i]->run_mlp(stream, /*skip_sum_write=*/true);  // the next layer's norm writes it
  }
  state.position().index_copy_(0, slots, seen + rows.cu_seqlens().diff());
  return stream;
}

Tensor LanguageModel::final_norm(ResidualStream& stream) {
  {
    const runtime::DeviceRange range = blocks_.back()->profile_range();
    blocks_.back()->run_mlp(stream);
  }
  const runtime::DeviceRange range(ProfileLevel::layers, "norm", device());
  return stream.norm(*norm_);
}

Tensor LanguageModel::prefill(const Tensor& ids, const Sequences& rows, ModelState& state, const Slots& slots) {
  ResidualStream stream = run_mixers(ids, rows, state, slots);
  return final_norm(stream);
}

Tensor LanguageModel::prefill_last(const Tensor& ids, const Sequences& rows, ModelState& state, const Slots& slots) {
  const ResidualStream all = run_mixers(ids, rows, state, slots);
  const Tensor last = (rows.cu_seqlens().slice(0, 1) - 1).clamp_min(0);
  ResidualStream stream = all.select(last);
  return final_norm(stream);
}

Tensor LanguageModel::step(const Tensor& ids, ModelState& state, const Slots& slots) {
  const auto embed_step = [&] {
    const runtime::DeviceRange range = profile_range("embedding", ids.size(0));
    return ops::embedding_step_(state.position(), slots, embedding_, ids);
  };
  const auto [embedded, positions] = embed_step();
  return run_step(embedded, state, Pass::step(slots, positions));
}

Tensor LanguageModel::step_rounds(const Tensor& ids, ModelState& state, const Slots& slots, const std::vector<int64_t>& round_rows,
                                  StateJournal* journal, int64_t padding) {
  BASED_ASSERT(ids.size(0) == slots.size(0) && ids.size(0) + padding <= ops::kBatchInvariantRows);
  if (round_rows.at(0) == 1) return step_sequence(ids, state, slots.narrow(0, 0, 1), journal, padding);
  const Tensor before = state.position().index_select(0, slots.narrow(0, 0, round_rows.at(0)));
  std::vector<Tensor> seen;
  seen.reserve(round_rows.size());
  for (const int64_t rows : round_rows) seen.push_back(before.narrow(0, 0, rows) + static_cast<int64_t>(seen.size()));
  Slots all_slots = slots;
  if (padding > 0) {  // the rows repeat the last token's
    all_slots = torch::cat({slots, slots.narrow(0, slots.size(0) - 1, 1).expand({padding})});
    seen.push_back(seen.back().narrow(0, seen.back().size(0) - 1, 1).expand({padding}));
  }
  const Pass pass = Pass::step_rounds(all_slots, torch::cat(seen), round_rows, journal, padding);
  const auto embed_round = [&](const Pass& round, const Tensor& round_ids) {
    return ops::embedding_step_(state.position(), round.slots(), embedding_, round_ids).rows;
  };
  return run_step(step_in_rounds(pass, {state.position()}, embed_round, ids), state, pass);
}

Tensor LanguageModel::step_sequence(const Tensor& ids, ModelState& state, const Slots& slot, StateJournal* journal, int64_t padding) {
  const int64_t tokens = ids.size(0), rows = tokens + padding;
  const auto embed_tokens = [&] {
    const runtime::DeviceRange range = profile_range("embedding", rows);
    const Tensor kept = journal != nullptr ? journal->memory_for({state.position()}, tokens)[0] : state.position().narrow(0, 0, 0);
    return ops::embedding_tokens_(state.position(), slot, embedding_, ids, kept, padding);
  };
  const auto [embedded, positions] = embed_tokens();
  const std::vector<int64_t> rounds(static_cast<size_t>(tokens), 1);
  return run_step(embedded, state, Pass::step_rounds(slot.expand({rows}), positions, rounds, journal, padding));
}

Tensor LanguageModel::run_step(const Tensor& embedded, ModelState& state, const Pass& pass) {
  const bool unchanged = !positions_.defined() && !drops();
  ResidualStream stream = unchanged ? ResidualStream::from_sum(embedded) : embed(embedded.to(embedding_.scalar_type()), pass);
  for (size_t i = 0; i < blocks_.size(); ++i)
    blocks_[i]->run(stream, [&](Mixer& mixer, const Tensor& x) { return step_any(mixer, x, state.layers()[i], pass); });
  const runtime::DeviceRange range(ProfileLevel::layers, "norm", device());
  return stream.norm(*norm_);
}

uint64_t generator_seed(int64_t seed, int64_t step) {
  const auto bits = static_cast<uint64_t>(seed);
  if (step == 0 && bits >> 32 == 0) return bits;
  return kernels::mixed_bits(kernels::mixed_bits(bits) + static_cast<uint64_t>(step)) >> 32;
}

std::shared_ptr<LanguageModel> make_model(const ModelConfig& config, int64_t seed) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  {
    at::Generator generator = at::detail::getDefaultCPUGenerator();  // torch::manual_seed would also seed every GPU's
    const std::lock_guard generator_lock(generator.mutex());
    generator.set_current_seed(generator_seed(seed));
  }
  return std::make_shared<LanguageModel>(config);
}

int64_t parameter_count(const ModelConfig& config) {
  check_model_config(config);
  const ShapesOnly no_memory;
  const auto count = [](const torch::nn::Module& module) {
    int64_t sum = 0;
    for (const auto& parameter : module.parameters()) sum += parameter.numel();
    return sum;
  };
  int64_t sum = (config.padded_vocab() + config.max_positions) * config.d_model + count(*make_final_norm(config));
  std::map<std::string, int64_t> layer_counts;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const auto [entry, is_new] = layer_counts.try_emplace(config.layers[i], 0);
    if (is_new) entry->second = count(ModelBlock(config, static_cast<int64_t>(i)));
    sum += entry->second;
  }
  return sum;
}

int64_t state_bytes(LanguageModel& model, int64_t tokens) {
  int64_t sum = static_cast<int64_t>(sizeof(int64_t));  // the position
  for (int64_t i = 0; i < model.layers(); ++i) sum += state_bytes(model.block(i).mixer(), tokens);
  return sum;
}

}  // namespace based
