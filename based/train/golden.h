// Golden files of whole training runs. They extend models/golden.h, which covers models without an optimizer.
#pragma once
#include <string>

#include "based/models/golden.h"

namespace based {

// Repeats the recorded steps of torch.optim.AdamW on a small language model, with schedule and clipping. The file's metadata "mixer" is
// "AdamW". In the result, output_error is the largest relative error of the losses, gradient norms and learning rates, compared with
// `tolerance`. gradient_error is the error of the final weights relative to their largest entry; the file has a separate tolerance for it.
// In float32 only the losses are compared. Throws Error if the file is damaged or incomplete.
GoldenResult check_optimizer_golden(const std::string& path);
bool is_optimizer_golden(const std::string& path);  // throws Error if it is not a safetensors file

}  // namespace based
