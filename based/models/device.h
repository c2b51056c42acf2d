// Where a model runs, as commands and configs name it.
#pragma once
#include <string>

#include "based/ops/torch.h"

namespace based {

// "cpu", "cuda" or "cuda:1". Throws UsageError, naming `what`, for another word and for a GPU that is not there.
torch::Device parse_device(const std::string& text, const std::string& what);

}  // namespace based
