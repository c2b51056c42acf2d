// Golden files: inputs, parameters, outputs and gradients of a reference implementation, computed in float64, which this library must
// reproduce. Each .safetensors file is one case; its metadata names the mixer, its config and the tolerance.
#pragma once
#include <optional>
#include <string>

#include "based/runtime/torch.h"

namespace based {

struct GoldenResult {
  std::string file;
  std::string mixer;  // its name in the file
  // The largest difference divided by the largest entry, of the outputs (including the loss) and of the worst gradient, in float64.
  double output_error = 0, gradient_error = 0, tolerance = 0;
  // The same in float32. Tolerance 0: the file states none, and float32 was not tried.
  double output_error_float32 = 0, gradient_error_float32 = 0, tolerance_float32 = 0;
  bool has_gradients = false;  // whether the file has gradients, or weights after a step
  std::string worst;           // the tensor furthest from its tolerance
  bool pass = false;           // in both precisions
  std::string skipped;         // the reason if the file was not compared, otherwise empty
};

// Builds the mixer or model that the file's metadata names, loads the stored weights, and compares the outputs and all gradients. Works for
// any sizes. Throws Error if the file is damaged or incomplete.
GoldenResult check_golden(const std::string& path, torch::Device device = torch::kCPU);

// The tolerance of a type ("float64") that a text states: in "… 1e-11 in float64, 5e-5 in float32 …" the number before "in <type>", in
// "<type> only, …: 1e-8" the last number. 0 if no positive number is at this place, null if the text does not name the type.
std::optional<double> stated_tolerance(const std::string& text, const std::string& type);
double positive_number(const std::string& text);  // 0 unless the whole text is a positive, finite number

}  // namespace based
