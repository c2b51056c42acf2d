// Element types of tensors in files, with the names of safetensors.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace based {

// In order of decreasing size, so that tensors written in this order are aligned to their elements.
enum class DType : uint8_t { F64, I64, F32, I32, BF16, F16, I16, I8, U8, BOOL };
inline constexpr int kDTypes = 10;

const char* dtype_name(DType dtype);  // "F64" …
std::optional<DType> parse_dtype(std::string_view name);
int64_t dtype_bytes(DType dtype);

// Bytes of a dense tensor, or nullopt if a dimension is negative or the product does not fit into 63 bits.
std::optional<int64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape);

}  // namespace based
