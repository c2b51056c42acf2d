#include "based/models/published/expected.h"

#include <cmath>
#include <limits>

#include "based/core/text.h"
#include "based/models/golden.h"
#include "based/models/tensor_view.h"

namespace based {
namespace {

double tolerance_of(const SafetensorsFile& file, torch::Dtype dtype) {
  const bool wide = dtype == torch::kFloat64;
  const std::string type = wide ? "float64" : dtype == torch::kFloat32 ? "float32" : float_type_name(dtype);
  if (const auto stated = file.metadata().find("tolerance"); stated != file.metadata().end()) {
    const std::string& text = stated->second;
    if (const double number = positive_number(text); number > 0) return number;
    const auto tolerance = stated_tolerance(text, type);
    const bool of_another_type =
        !tolerance && (stated_tolerance(text, "float64").value_or(0) > 0 || stated_tolerance(text, "float32").value_or(0) > 0);
    if (tolerance.value_or(0) > 0) return *tolerance;
    if (!of_another_type)
      throw Error(file.path() + ": metadata tolerance is " + in_quotes(text, 200) + "; it must be a positive number, or say '<number> in " +
                  type + "'");
  }
  if (wide) return 1e-11;
  if (dtype == torch::kFloat32) return 5e-5;
  throw Error(file.path() + ": states no tolerance in " + type + "; compare in fp64 or fp32");
}

}  // namespace

torch::Dtype expected_dtype(const SafetensorsFile& file) {
  const DType dtype = file.at("logits").dtype;
  if (dtype != DType::F64 && dtype != DType::F32) throw Error(file.path() + ": 'logits' must be F64 or F32, not " + dtype_name(dtype));
  return torch_dtype(dtype);
}

LogitsDifference compare_logits(LanguageModel& model, const SafetensorsFile& file) {
  expected_dtype(file);
  const TensorView& view = file.at("ids");
  if (view.shape.size() != 2 || (view.dtype != DType::I64 && view.dtype != DType::I32) || view.bytes.empty())
    throw Error(file.path() + ": 'ids' must be integers [rows, tokens]");
  const Tensor ids = tensor_of(view).to(torch::kInt64);
  const int64_t rows = ids.size(0), length = ids.size(1);
  if (ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= model.config().padded_vocab())
    throw Error(file.path() + ": 'ids' must be 0 to " + std::to_string(model.config().padded_vocab() - 1));
  const Tensor expected = tensor_of(file.at("logits")).to(torch::kFloat64);
  const bool fits = expected.dim() == 3 && expected.size(0) == rows && expected.size(1) == length &&
                    (expected.size(2) == model.config().padded_vocab() || expected.size(2) == model.config().vocab_size);
  if (!fits) throw Error(file.path() + ": 'logits' must be [rows, tokens, " + std::to_string(model.config().padded_vocab()) + "]");

  const torch::NoGradGuard no_gradients;
  const torch::Device device = model.device();
  const Tensor hidden = model.forward(ids.flatten().to(device), Sequences::equal(rows, length, device));
  const Tensor logits = model.logits(hidden).to(torch::kCPU, torch::kFloat64).view({rows, length, -1}).narrow(2, 0, expected.size(2));
  LogitsDifference result;
  const double scale = expected.abs().max().item<double>(), difference = (logits - expected).abs().max().item<double>();
  result.largest = scale > 0 ? difference / scale : difference;
  if (!std::isfinite(result.largest)) result.largest = std::numeric_limits<double>::infinity();
  result.tolerance = tolerance_of(file, model.dtype());
  result.pass = result.largest <= result.tolerance;
  return result;
}

}  // namespace based
