#include "based/core/dtype.h"

#include <array>
#include <cstddef>

namespace based {
namespace {

struct Row {
  const char* name;
  int64_t bytes;
};
constexpr std::array<Row, kDTypes> kTable = {
    {{"F64", 8}, {"I64", 8}, {"F32", 4}, {"I32", 4}, {"BF16", 2}, {"F16", 2}, {"I16", 2}, {"I8", 1}, {"U8", 1}, {"BOOL", 1}}};

}  // namespace

const char* dtype_name(DType dtype) { return kTable[static_cast<size_t>(dtype)].name; }
int64_t dtype_bytes(DType dtype) { return kTable[static_cast<size_t>(dtype)].bytes; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (name == kTable[i].name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::optional<int64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = dtype_bytes(dtype);
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    // A later dimension of 0 does not excuse an overflow before it: readers that multiply from the left would overflow.
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

}  // namespace based
