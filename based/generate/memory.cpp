#include "based/generate/memory.h"

#include <algorithm>
#include <limits>

#include "based/core/progress.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/device.h"
#include "based/models/quantised.h"

namespace based {
namespace {

// The most bytes of a slot's rounded copies of Taylor states and of its convolutions' last inputs (decode/pending.h): few slots, a GPU
// before Hopper and linear attention, whose state has the same names, have none.
double copied_states(const LanguageModel& model, const ModelPlace& place, const DecodeOptions& decode) {
  if (!place.device.is_cuda() || place.dtype != torch::kBFloat16 || decode.invariant || decode.steps != Steps::fused) return 0;
  const ModelState state = model.make_state(1);
  double bytes = 0;
  for (const MixerState& layer : state.layers())
    for (const StateTensor& tensor : layer.tensors()) {
      const bool sums = tensor.name == "kv" && layer.has("k"), inputs = tensor.name == "conv" && tensor.value.size(-1) == 2;
      if (sums || inputs) bytes += static_cast<double>(tensor.value.numel() * 2);
    }
  return bytes;
}

double free_memory(torch::Device device) { return 0.95 * static_cast<double>(available_memory(device)); }

// Bytes of a quantised weight [.., in].
double quantised_bytes(double numel, int64_t in, ops::WeightForm form) {
  const double rows = numel / static_cast<double>(in);
  if (form == ops::WeightForm::int8) return numel + 4 * rows;
  return numel / 2 + 2 * rows * static_cast<double>(in / kernels::kInt4Group);
}

// A quantised model has all full weights on a GPU, where steps of several rows need them. Otherwise a layer's full weight exists while
// many rows are multiplied by it. The embedding stays full beside its quantised form.
double weight_bytes(const LanguageModel& model, const ModelPlace& place, const EngineOptions& engine) {
  const auto element = static_cast<double>(torch::elementSize(place.dtype));
  const double full = static_cast<double>(model.parameter_count()) * element;
  if (!place.form) return full;
  double quantised = 0, saved = 0, largest = 0;
  for (const auto& [name, layer] : quantisable_layers(model)) {
    const int64_t in = layer->weight().size(1);
    if (!ops::can_quantise(*place.form, in)) continue;
    const auto numel = static_cast<double>(layer->weight().numel());
    quantised += quantised_bytes(numel, in, *place.form);
    saved += numel * element;
    largest = std::max(largest, numel * element);
  }
  const auto embedding = static_cast<double>(place.config.padded_vocab() * place.config.d_model);
  quantised += quantised_bytes(embedding, place.config.d_model, kEmbeddingForm);
  return full + quantised - (needs_full_weights(engine, place.device) ? 0 : saved - largest);
}

}  // namespace

EngineBytes engine_bytes(const ModelPlace& place, const EngineOptions& engine) {
  const ModelConfig& config = place.config;
  const auto element = static_cast<double>(torch::elementSize(place.dtype));
  const ShapesOnly no_memory;
  LanguageModel model(config);
  model.to(place.dtype);
  EngineBytes bytes;
  bytes.fixed = weight_bytes(model, place, engine);
  const auto width = static_cast<double>(config.d_model), hidden = static_cast<double>(config.mlp_width);
  // Activations of a prompt's piece: the fp32 residual stream, a norm, projections, the MLP.
  bytes.fixed += static_cast<double>(default_prefill_tokens(place.device)) * (4 * width + element * (6 * width + 3 * hidden));
  // The logits, their fp32 copy, and the counts and biases of LogitAdjustments.
  const double logits = static_cast<double>(config.padded_vocab()) * (element + 12);
  const int begins = engine.decode.invariant ? 1 : 0;                                       // the state at the begin of the slot's cell
  const auto drafts = static_cast<double>(engine.drafts.drafter ? engine.drafts.most : 0);  // each has a state and logits
  bytes.slot = (1 + begins + drafts) * static_cast<double>(state_bytes(model, 0)) + (1 + drafts) * logits;
  bytes.slot += copied_states(model, place, engine.decode);
  bytes.cache_token = static_cast<double>(state_bytes(model, 1 << 12) - state_bytes(model, 0)) / (1 << 12);
  return bytes;
}

bool grows(const ModelConfig& config) {
  const ShapesOnly no_memory;
  return LanguageModel(config).make_state(1).grows();
}

int64_t sequence_bytes(const ModelPlace& place, int64_t tokens) {
  const ShapesOnly no_memory;
  LanguageModel model(place.config);
  model.to(place.dtype);
  return state_bytes(model, tokens) + tokens * static_cast<int64_t>(sizeof(int64_t));
}

int64_t cache_tokens_that_fit(const ModelPlace& model, const EngineOptions& engine) {
  const EngineBytes bytes = engine_bytes(model, engine);
  const double left = free_memory(model.device) - bytes.fixed - bytes.slot * static_cast<double>(engine.slots);
  constexpr int64_t kMost = int64_t{1} << 50;  // neither sums nor products of it overflow
  if (bytes.cache_token <= 0) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::clamp(left / bytes.cache_token, 0.0, static_cast<double>(kMost)));
}

void require_memory(const ModelPlace& model, const EngineOptions& engine, const std::string& option) {
  EngineBytes bytes = engine_bytes(model, engine);
  bytes.slot += bytes.cache_token * static_cast<double>(engine.cache_tokens) / static_cast<double>(engine.slots);
  const double have = free_memory(model.device);
  if (bytes.fixed + bytes.slot * static_cast<double>(engine.slots) <= have) return;
  const auto fit = static_cast<int64_t>((have - bytes.fixed) / bytes.slot);
  throw Error(option + " " + std::to_string(engine.slots) + ": weights and buffers take " + format_bytes(bytes.fixed) + " and each slot " +
              format_bytes(bytes.slot) + ", of " + format_bytes(have) + " that are free on " + model.device.str() + "; " +
              (fit < 1 ? "not even one slot fits" : "at most " + std::to_string(fit) + " slots fit"));
}

}  // namespace based
