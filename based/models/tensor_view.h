// Conversion between torch tensors and the torch-free tensor views of files.
#pragma once
#include <string>

#include "based/core/safetensors.h"
#include "based/runtime/torch.h"

namespace based {

torch::Dtype torch_dtype(DType dtype);
DType file_dtype(torch::Dtype dtype, const std::string& name);  // throws Error that names the tensor for types that files cannot store

// `tensor` must be dense and on the CPU and must outlive the view.
TensorView view_of(const std::string& name, const torch::Tensor& tensor);
// A tensor with a copy of the view's bytes.
torch::Tensor tensor_of(const TensorView& view);

std::string float_type_name(torch::Dtype dtype);  // "fp32", "bf16" or "fp64"; torch's name for other types
// The inverse. Throws UsageError that names the option for other names.
torch::Dtype parse_float_type(const std::string& name, const std::string& option);

}  // namespace based
