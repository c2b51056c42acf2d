// Golden files of perplexity by slices: JSON with windows of tokens, the nats of each target, training tokens or counts of their pairs, and
// the expected mask, sums and perplexities.
#pragma once
#include <string>

#include "based/models/golden.h"

namespace based {

bool is_slices_golden(const std::string& path);  // by its name: .json

// Computes the slices by data/slices.h. Masks, tokens and sums of nats must be equal; `output_error` is the largest relative error of
// perplexities and of the AR share, and infinite if a mask or a sum differs. If the file has both the training tokens and the counts of
// their pairs, these must agree. Throws Error if the file is damaged or incomplete.
GoldenResult check_slices_golden(const std::string& path);

}  // namespace based
