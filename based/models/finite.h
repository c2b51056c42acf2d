// Detection of models whose logits are not finite: damaged weights, a diverged training, or numbers beyond the type.
#pragma once
#include <string>
#include <vector>

#include "based/core/safetensors.h"
#include "based/models/language_model.h"

namespace based {

extern const char* const kLogitsNotFinite;  // the message of every command

// Throws Error if a logit of a vocabulary word, computed from one of these hidden states [n, d_model], is not finite.
void require_finite_logits(LanguageModel& model, const Tensor& hidden);

// Lines such as "tensor 'norm.weight': 3 of 64 numbers are not finite", one for each tensor with NaN or infinity.
std::vector<std::string> not_finite_lines(const std::vector<TensorView>& tensors);

}  // namespace based
