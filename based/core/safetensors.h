// safetensors files, read strictly and written so that every reader accepts them. No torch here: tensors are views of bytes.
//
//   u64 little-endian N | N bytes of JSON, padded with spaces | the tensors' bytes, without gap
//   {"__metadata__": {string: string}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …}
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "based/core/dtype.h"
#include "based/core/files.h"

namespace based {

// A named, dense, row-major, little-endian tensor in memory that somebody else owns. The bytes need not be aligned to their elements.
struct TensorView {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// What the header says, checked against the file: nothing overlaps, is missing or is left over. Throws Error naming file and tensor.
struct SafetensorsIndex {
  std::vector<TensorView> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};
SafetensorsIndex parse_safetensors(std::span<const std::byte> file, const std::string& source);

// A mapped file and its index. Movable; views stay valid as long as the object.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorView>& tensors() const { return index_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return index_.metadata; }
  const TensorView* find(std::string_view name) const;           // null where absent
  const TensorView& at(std::string_view name) const;             // throws Error
  const std::string& metadata_at(const std::string& key) const;  // throws Error

 private:
  MappedFile file_;
  SafetensorsIndex index_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

// Durable and atomic (files.h); 8-byte aligned; sorted by dtype, then name, whatever the order given, so that equal content makes equal
// files. Throws Error for names that readers refuse: '__metadata__', control characters, not UTF-8, or given twice.
void write_safetensors(const std::string& path, std::vector<TensorView> tensors, const std::map<std::string, std::string>& metadata = {});

// Index of the first NaN or infinity of a floating-point tensor, which the format does not rule out.
std::optional<int64_t> first_not_finite(const TensorView& tensor);

}  // namespace based
