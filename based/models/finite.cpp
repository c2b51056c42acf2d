#include "based/models/finite.h"

#include "based/core/error.h"
#include "based/core/text.h"
#include "based/models/tensor_view.h"

namespace based {

const char* const kLogitsNotFinite = "the model's logits are not finite; its weights may be damaged, or the training diverged";

void require_finite_logits(LanguageModel& model, const Tensor& hidden) {
  const torch::InferenceMode inference;
  const Tensor logits = model.logits(hidden).narrow(1, 0, model.config().vocab_size);
  if (!logits.isfinite().all().item<bool>()) throw Error(kLogitsNotFinite);
}

std::vector<std::string> not_finite_lines(const std::vector<TensorView>& tensors) {
  std::vector<std::string> lines;
  for (const TensorView& tensor : tensors) {
    if (!first_not_finite(tensor)) continue;
    const Tensor numbers = tensor_of(tensor);
    lines.push_back("tensor " + in_quotes(tensor.name, 200) + ": " +
                    std::to_string(numbers.isfinite().logical_not().sum().item<int64_t>()) + " of " + std::to_string(numbers.numel()) +
                    " numbers are not finite");
  }
  return lines;
}

}  // namespace based
