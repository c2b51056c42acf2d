#include "based/generate/step_plan.h"

#include <set>

#include "based/core/error.h"
#include "based/generate/decode_step.h"
#include "based/generate/pages.h"
#include "based/mixers/shapes_only.h"

namespace based {

namespace {

// A step that is run without memory says so where it asks for values.
std::unique_ptr<decode::Plan> plan_of(const ModelConfig& config, const decode::Gpu& gpu, const StepPlanOptions& options) {
  const torch::InferenceMode inference;
  const ShapesOnly no_memory;
  LanguageModel model(config);
  model.to(options.dtype);
  model.eval();
  const int64_t slots = options.invariant ? DecodeStep::invariant_width : options.slots;
  ModelState state = model.make_state(slots);
  if (state.grows()) {
    const PagePool pages(slots, slots * PagePool::page_tokens, torch::kMeta);
    state.use_pages(pages.pages(), pages.size());
  }
  DecodeStep step(model, state, {.steps = Steps::plain, .invariant = options.invariant});
  return decode::plan_step([&] { step.run_all(); }, gpu, {/*defers=*/!options.invariant});
}

// "layer 'long' (mixer hyena)": the first whose step alone has no plan either. Empty: each has one.
std::string layer_without_plan(const ModelConfig& config, const decode::Gpu& gpu, const StepPlanOptions& options) {
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
      return "layer '" + layer + "' (mixer " + mixer + ")";
    }
  }
  return "";
}

}  // namespace

std::unique_ptr<decode::Plan> plan_decode_step(const ModelConfig& config, const decode::Gpu& gpu, const StepPlanOptions& options) {
  if (options.slots < 1) throw UsageError("a step is of at least one slot, got " + std::to_string(options.slots));
  try {
    return plan_of(config, gpu, options);
  } catch (const c10::Error&) {
    const std::string layer = layer_without_plan(config, gpu, options);
    throw Error((layer.empty() ? "this model's step" : "the step of " + layer) +
                " asks for values on the host, so that it cannot be recorded and has no plan; a GPU runs its operators one by one, and "
                "`based generate --device cuda` does so without being told");
  }
}

}  // namespace based
