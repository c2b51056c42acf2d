// Between torch tensors and the torch-free views of files.
#pragma once
#include <string>

#include "based/core/safetensors.h"
#include "based/ops/torch.h"

namespace based {

torch::Dtype torch_dtype(DType dtype);
DType file_dtype(torch::Dtype dtype, const std::string& name);  // throws Error naming the tensor for types that files do not hold

// `tensor` must be dense and on the CPU and must outlive the view.
TensorView view_of(const std::string& name, const torch::Tensor& tensor);
// A copy in memory of its own.
torch::Tensor tensor_of(const TensorView& view);

std::string float_type_name(torch::Dtype dtype);  // "fp32", "bf16" or "fp64"; others by torch's name
// The reverse; throws UsageError naming the option for others.
torch::Dtype parse_float_type(const std::string& name, const std::string& option);

}  // namespace based
