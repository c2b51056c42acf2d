// Golden files of whole trainings: beside models/golden.h, which knows no optimizer.
#pragma once
#include <string>

#include "based/models/golden.h"

namespace based {

// Some steps of AdamW on a small language model, with its schedule and clipping, as torch.optim.AdamW does them: metadata "mixer" is
// "AdamW". In the result, output_error is that of the loss and the gradient norm of each step, relative, against `tolerance`;
// gradient_error that of the weights at the end, over their largest entry, which has the file's own tolerance. In float32 the loss alone is
// compared. Throws Error where the file is damaged or incomplete.
GoldenResult check_optimizer_golden(const std::string& path);
bool is_optimizer_golden(const std::string& path);  // throws Error where it is no safetensors file

}  // namespace based
