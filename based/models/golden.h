// Golden files: inputs, parameters, outputs and gradients of another implementation, computed in float64, that ours must reproduce. One
// .safetensors file is one case; its metadata names the mixer, its config and the tolerance.
#pragma once
#include <string>

#include "based/ops/torch.h"

namespace based {

struct GoldenResult {
  std::string file;
  std::string mixer;  // as the file names it
  // Largest difference over the largest entry, of the output (and the loss) and of the worst gradient, in float64.
  double output_error = 0, gradient_error = 0, tolerance = 0;
  // The same in float32; tolerance 0: the file states none, and nothing was computed.
  double output_error_float32 = 0, gradient_error_float32 = 0, tolerance_float32 = 0;
  std::string worst;    // the tensor furthest from its tolerance
  bool pass = false;    // in both precisions
  std::string skipped;  // why nothing was compared; empty: it was
};

// Builds the mixer or model that the file's metadata names, with the stored weights, and compares output and every gradient. Works for any
// sizes. Throws Error where the file is damaged or incomplete.
GoldenResult check_golden(const std::string& path, torch::Device device = torch::kCPU);

}  // namespace based
