#include "based/models/finite.h"

#include "based/core/error.h"

namespace based {

const char* const kLogitsNotFinite = "the model's logits are not finite; its weights may be damaged, or the training diverged";

void require_finite_logits(LanguageModel& model, const Tensor& hidden) {
  const torch::InferenceMode inference;
  const Tensor logits = model.logits(hidden).narrow(1, 0, model.config().vocab_size);
  if (!logits.isfinite().all().item<bool>()) throw Error(kLogitsNotFinite);
}

}  // namespace based
