// Padding of contexts on the left, as the published recall runs batched their prompts: the padding tokens went into the recurrent state
// like any text. Only for measuring its cost; without it no request is padded.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "based/generate/scorer.h"

namespace based {

// Sorts the requests by length, longest first, equal ones in their order, and pads each `batch` of them in that order on the left with
// `token` to the length of its longest context. The requests keep their places in `requests`.
void pad_left(std::span<GenerationRequest> requests, int64_t batch, int64_t token);

}  // namespace based
