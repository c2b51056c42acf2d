#include "based/models/tensor_view.h"

#include <cstring>
#include <utility>

namespace based {
namespace {

constexpr std::pair<DType, torch::ScalarType> kTypePairs[] = {
    {DType::F64, torch::kFloat64},   {DType::I64, torch::kInt64},   {DType::F32, torch::kFloat32}, {DType::I32, torch::kInt32},
    {DType::BF16, torch::kBFloat16}, {DType::F16, torch::kFloat16}, {DType::I16, torch::kInt16},   {DType::I8, torch::kInt8},
    {DType::U8, torch::kUInt8},      {DType::BOOL, torch::kBool}};
static_assert(std::size(kTypePairs) == kDTypes);

}  // namespace

torch::Dtype torch_dtype(DType dtype) {
  for (const auto& [file, torch_type] : kTypePairs)
    if (file == dtype) return torch_type;
  BASED_ASSERT(false);
}

DType file_dtype(torch::Dtype dtype, const std::string& name) {
  for (const auto& [file, torch_type] : kTypePairs)
    if (torch_type == dtype) return file;
  throw Error("tensor '" + name + "': type " + toString(dtype) + " cannot be stored");
}

TensorView view_of(const std::string& name, const torch::Tensor& tensor) {
  BASED_ASSERT(tensor.is_contiguous() && tensor.device().is_cpu());
  return {name,
          file_dtype(tensor.scalar_type(), name),
          tensor.sizes().vec(),
          {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}};
}

torch::Tensor tensor_of(const TensorView& view) {
  torch::Tensor tensor = torch::empty(view.shape, torch_dtype(view.dtype));
  if (!view.bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
  return tensor;
}

std::string float_type_name(torch::Dtype dtype) {
  switch (dtype) {
    case torch::kFloat32: return "fp32";
    case torch::kBFloat16: return "bf16";
    case torch::kFloat64: return "fp64";
    case torch::kFloat16: return "fp16";
    default: return toString(dtype);
  }
}

torch::Dtype parse_float_type(const std::string& name, const std::string& option) {
  if (name == "fp32") return torch::kFloat32;
  if (name == "bf16") return torch::kBFloat16;
  if (name == "fp64") return torch::kFloat64;
  throw UsageError(option + " must be fp32, bf16 or fp64, got '" + name + "'");
}

}  // namespace based
