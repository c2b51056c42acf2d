// Models whose logits are not finite: damaged weights, a training that diverged, or numbers beyond the type. What runs a model says so.
#pragma once
#include "based/models/language_model.h"

namespace based {

extern const char* const kLogitsNotFinite;  // what every command says of such a model

// Throws Error where a logit of the vocabulary's words behind one of these hidden states [n, d_model] is not finite.
void require_finite_logits(LanguageModel& model, const Tensor& hidden);

}  // namespace based
