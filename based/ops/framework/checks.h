// Checks of operators' arguments, without torch: templates for tensors of LibTorch and of its stable interface, which the Python package is
// built on. A Tensor has dim(), size(), sizes(), stride(), scalar_type(), device() and data pointers.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <utility>

#include "based/core/error.h"
#include "based/kernels/common/kernel.h"

namespace based::ops {

// Throws Error("<op>: <parts…>") unless `ok`.
template <class... Parts>
void require(bool ok, const char* op, const Parts&... parts) {
  if (ok) return;
  std::ostringstream message;
  message << op << ": ";
  (message << ... << parts);
  throw Error(message.str());
}

// "[2, any]": a negative size is any.
inline std::string sizes_text(const int64_t* sizes, size_t count) {
  std::string list = "[";
  for (size_t i = 0; i < count; ++i) list.append(i > 0 ? ", " : "").append(sizes[i] < 0 ? "any" : std::to_string(sizes[i]));
  return list + "]";
}
template <class Tensor>
std::string shape_text(const Tensor& tensor) {
  return sizes_text(tensor.sizes().data(), tensor.sizes().size());
}

// "Float", "BFloat16", …: the names that LibTorch prints.
template <class ScalarType>
std::string type_name(ScalarType type) {
  for (const auto& [known, name] : {std::pair{ScalarType::Float, "Float"},
                                    {ScalarType::BFloat16, "BFloat16"},
                                    {ScalarType::Half, "Half"},
                                    {ScalarType::Double, "Double"},
                                    {ScalarType::Long, "Long"},
                                    {ScalarType::Int, "Int"},
                                    {ScalarType::Char, "Char"},
                                    {ScalarType::Byte, "Byte"},
                                    {ScalarType::Bool, "Bool"}})
    if (type == known) return name;
  return "type " + std::to_string(static_cast<int>(type));
}

template <class Tensor>
void require_sizes(const char* op, const char* name, const Tensor& tensor, const int64_t* sizes, size_t count) {
  bool same = static_cast<size_t>(tensor.dim()) == count;
  for (size_t i = 0; same && i < count; ++i) same = sizes[i] < 0 || tensor.size(static_cast<int64_t>(i)) == sizes[i];
  if (!same) require(false, op, name, " must have shape ", sizes_text(sizes, count), ", got ", shape_text(tensor));
}
// Throws Error "must have shape [sizes], got …" for another shape; a negative size matches any.
template <class Tensor>
void require_shape(const char* op, const char* name, const Tensor& tensor, std::initializer_list<int64_t> sizes) {
  require_sizes(op, name, tensor, sizes.begin(), sizes.size());
}
template <class Tensor, class Range>
void require_shape(const char* op, const char* name, const Tensor& tensor, const Range& sizes) {
  require_sizes(op, name, tensor, sizes.data(), sizes.size());
}

template <class Tensor, class ScalarType>
void require_type(const char* op, const char* name, const Tensor& tensor, ScalarType type) {
  require(tensor.scalar_type() == type, op, name, " must be ", type_name(type), ", got ", type_name(tensor.scalar_type()));
}

template <class Tensor>
void require_floating(const char* op, const char* name, const Tensor& tensor) {
  using ScalarType = decltype(tensor.scalar_type());
  const ScalarType type = tensor.scalar_type();
  const bool floating = type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Double || type == ScalarType::Half;
  require(floating, op, name, " must be floating, got ", type_name(type));
}

// "cpu", "cuda:0", "meta"
template <class Device>
std::string device_text(const Device& device) {
  using DeviceType = decltype(device.type());
  if (device.type() == DeviceType::CUDA) return "cuda:" + std::to_string(static_cast<int>(device.index()));
  return device.type() == DeviceType::CPU ? "cpu" : device.type() == DeviceType::Meta ? "meta" : "another device";
}

template <class Tensor>
void require_device(const char* op, const char* name, const Tensor& tensor, const Tensor& like) {
  require(tensor.device() == like.device(), op, name, " must be on ", device_text(like.device()), ", got ", device_text(tensor.device()));
}

// Throws Error unless the tensor is floating and of the type and device of `like`.
template <class Tensor>
void require_like(const char* op, const char* name, const Tensor& tensor, const Tensor& like) {
  require_floating(op, name, tensor);
  require_type(op, name, tensor, like.scalar_type());
  require_device(op, name, tensor, like);
}

// Throws Error unless cu_seqlens are int64 [rows + 1].
template <class Tensor>
void require_row_starts(const char* op, const char* name, const Tensor& cu_seqlens) {
  require_type(op, name, cu_seqlens, decltype(cu_seqlens.scalar_type())::Long);
  require_shape(op, name, cu_seqlens, {-1});
  require(cu_seqlens.size(0) >= 1, op, name, " must have one entry more than rows, got [0]");
}

// The type of sums: fp32 for half-width types, else the tensor's own.
template <class Tensor>
auto sum_type(const Tensor& tensor) {
  using ScalarType = decltype(tensor.scalar_type());
  const ScalarType type = tensor.scalar_type();
  return type == ScalarType::BFloat16 || type == ScalarType::Half ? ScalarType::Float : type;
}

// Whether fast kernels exist for tensors of this type: fp32 and bf16. Others run the reference.
template <class Tensor>
bool has_kernel(const Tensor& tensor) {
  using ScalarType = decltype(tensor.scalar_type());
  return tensor.scalar_type() == ScalarType::Float || tensor.scalar_type() == ScalarType::BFloat16;
}
template <class Tensor>
kernels::DType kernel_dtype(const Tensor& tensor) {
  if (!has_kernel(tensor)) throw Error("there are no kernels for tensors of type " + type_name(tensor.scalar_type()));
  return tensor.scalar_type() == decltype(tensor.scalar_type())::Float ? kernels::DType::f32 : kernels::DType::bf16;
}

}  // namespace based::ops
