// safetensors files: a strict reader, and a writer whose files all readers accept. Independent of torch: tensors are views of bytes.
//
//   u64 little-endian N | N bytes of JSON, padded with spaces | the tensors' bytes, without gaps
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

// A named, dense, row-major, little-endian tensor in memory owned by others. The bytes need not be aligned to the elements.
struct TensorView {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// The parsed header, checked against the file: tensors do not overlap and cover all bytes.
struct SafetensorsIndex {
  std::vector<TensorView> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};
// Throws Error that names file and tensor.
SafetensorsIndex parse_safetensors(std::span<const std::byte> file, const std::string& source);

// A mapped file and its index. Movable. The views stay valid as long as the object exists.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorView>& tensors() const { return index_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return index_.metadata; }
  const TensorView* find(std::string_view name) const;           // null if absent
  const TensorView& at(std::string_view name) const;             // throws Error
  const std::string& metadata_at(const std::string& key) const;  // throws Error

 private:
  MappedFile file_;
  SafetensorsIndex index_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

// Writes a file durably and atomically (files.h), 8-byte aligned. Tensors are sorted by dtype and name, so that equal content gives equal
// files. Throws Error for names that readers reject: '__metadata__', control characters, invalid UTF-8, duplicates.
void write_safetensors(const std::string& path, std::vector<TensorView> tensors, const std::map<std::string, std::string>& metadata = {});

// The index of the first NaN or infinity of a floating-point tensor, or nullopt. The format allows them.
std::optional<int64_t> first_not_finite(const TensorView& tensor);

}  // namespace based
