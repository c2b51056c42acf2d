#include "based/generate/step_plan.h"

#include <set>

#include "based/core/error.h"
#include "based/generate/decode_step.h"
#include "based/generate/pages.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/quantised.h"
#include "based/ops/framework/arguments.h"

namespace based {

namespace {

// Replaces the weights of linear layers and the embedding by quantised ones without memory.
void quantise_shapes(LanguageModel& model, ops::WeightForm form, torch::Dtype type) {
  const auto memory = [](torch::IntArrayRef sizes, torch::Dtype of) { return torch::empty(sizes, torch::dtype(of).device(torch::kMeta)); };
  const auto int8 = [&](int64_t out, int64_t in) {
    return ops::QuantisedWeight{ops::WeightForm::int8, memory({out, in}, torch::kChar), memory({out}, torch::kFloat)};
  };
  for (const auto& [name, layer] : quantisable_layers(model)) {
    const int64_t out = layer->weight().size(0), in = layer->weight().size(1);
    if (!ops::can_quantise(form, in)) continue;
    if (form == ops::WeightForm::int8) {
      layer->quantise(int8(out, in), type);
    } else {
      layer->quantise({form, memory({out, in / 2}, torch::kByte), memory({out, in / kernels::kInt4Group}, torch::kBFloat16)}, type);
    }
  }
  model.quantise_embedding(int8(model.config().padded_vocab(), model.config().d_model));
}

// Throws c10::Error if the step needs values, which tensors without memory do not have.
std::unique_ptr<decode::Plan> plan_of(const ModelConfig& config, const decode::Gpu& gpu, const StepPlanOptions& options) {
  const torch::InferenceMode inference;
  const ShapesOnly no_memory;
  LanguageModel model(config);
  model.to(options.dtype);
  model.eval();
  const int64_t slots = options.invariant ? DecodeStep::invariant_width : options.slots;
  if (options.weights) quantise_shapes(model, *options.weights, options.dtype);
  if (slots > 1) model.use_full_weights();  // as an engine does
  ModelState state = model.make_state(slots);
  if (state.grows()) {
    const PagePool pages(slots, slots * PagePool::page_tokens, torch::kMeta);
    state.use_pages(pages.pages(), pages.size());
  }
  DecodeStep step(model, state, {.steps = Steps::plain, .invariant = options.invariant, .fixed_rows = options.tokens > 0});
  if (options.tokens > 0)
    return decode::plan_step([&] { step.run_tokens(options.tokens, options.rows); }, gpu,
                             SequenceStep::plan_options(options.tokens, options.rows));
  return decode::plan_step([&] { step.run_all(); }, gpu, {/*defers=*/!options.invariant});
}

// "the step of layer 'long' (mixer hyena)" for the first layer whose step alone has no plan either; "this model's step" if all layers have
// one.
std::string step_without_plan(const ModelConfig& config, const decode::Gpu& gpu, const StepPlanOptions& options) {
  std::set<std::string> tried;
  for (const std::string& layer : config.layers) {
    if (!tried.insert(layer).second) continue;
    ModelConfig alone = config;
    alone.layers = {layer};
    try {
      plan_of(alone, gpu, options);
    } catch (const c10::Error&) {
      const auto named = config.mixers.find(layer);
      const std::string mixer = named == config.mixers.end() ? layer : std::get<std::string>(named->second.find("type")->value());
      return "the step of layer '" + layer + "' (mixer " + mixer + ")";
    }
  }
  return "this model's step";
}

// Translates LibTorch's error of a step without memory: an operator has no shape function, or the step needs values.
std::string why_no_plan(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  const bool no_shape = text.find("with Meta tensors") != std::string::npos || text.find("'Meta' backend") != std::string::npos;
  if (const size_t at = text.find("::"); no_shape && at != std::string::npos) {  // "aten::abs.out: …", "Could not run 'aten::relu' …"
    const size_t begin = text.find_last_of(" '\n", at) + 1;
    return " calls " + ops::operators::displayed(text.substr(begin, text.find_first_of(": '\n", at + 2) - begin)) +
           ", of which LibTorch gives no shapes without memory, so that it has no plan here; a GPU may record it all the same: `based "
           "generate --device cuda` says where it does not";
  }
  return " asks for values on the host, so that it cannot be recorded and has no plan; a GPU runs its operators one by one, and `based "
         "generate --device cuda` does so without being told";
}

}  // namespace

std::unique_ptr<decode::Plan> plan_decode_step(const ModelConfig& config, const decode::Gpu& gpu, const StepPlanOptions& options) {
  if (options.tokens < 0 || options.tokens > SequenceStep::kRows || (options.tokens > 0 && options.slots != 1))
    throw UsageError("a step of one slot reads 1 to " + std::to_string(SequenceStep::kRows) + " tokens, got " +
                     std::to_string(options.tokens));
  if (options.slots < 1) throw UsageError("a step is of at least one slot, got " + std::to_string(options.slots));
  try {
    return plan_of(config, gpu, options);
  } catch (const c10::Error& error) {
    throw Error(step_without_plan(config, gpu, options) + why_no_plan(error));
  }
}

}  // namespace based
