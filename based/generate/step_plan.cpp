#include "based/generate/step_plan.h"

#include "based/core/error.h"
#include "based/generate/decode_step.h"
#include "based/generate/pages.h"
#include "based/mixers/shapes_only.h"

namespace based {

std::unique_ptr<decode::Plan> plan_decode_step(const ModelConfig& config, const decode::Gpu& gpu, const StepPlanOptions& options) {
  if (options.slots < 1) throw UsageError("a step is of at least one slot, got " + std::to_string(options.slots));
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
  try {
    return decode::plan_step([&] { step.run_all(); }, gpu, {/*defers=*/!options.invariant});
  } catch (const c10::Error& error) {
    throw Error(std::string("this model's step cannot be recorded: ") + error.what_without_backtrace());
  }
}

}  // namespace based
