// Files of torch.save that hold the tensors of a model, such as pytorch_model.bin: a zip archive of a pickle (zip.h, pickle.h) and the
// bytes of the storages. Nothing of the file is executed.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "based/core/safetensors.h"

namespace based {

struct TorchIndex {
  std::vector<TensorView> tensors;           // in the order of the file; tied tensors have the same bytes
  std::vector<std::string> other_entries;    // names of entries that are no tensors
  std::deque<std::vector<std::byte>> dense;  // copies of tensors that are stored with gaps or transposed
};
// The file must hold a dict from names to tensors, or a dict with one under "state_dict". Throws Error that names `source`, the offset and
// the fault for a damaged or hostile file, names that occur twice, and tensors that share a part of their bytes. `check_sums`: compares the
// CRC-32 of the pickle and of all storages.
TorchIndex parse_torch_file(std::span<const std::byte> file, const std::string& source, bool check_sums = true);

// A mapped file and its tensors. The views stay valid as long as the object exists.
class TorchFile {
 public:
  explicit TorchFile(const std::string& path) : file_(path), index_(parse_torch_file(file_.bytes(), path)) {}
  TorchFile(const TorchFile&) = delete;
  TorchFile& operator=(const TorchFile&) = delete;

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorView>& tensors() const { return index_.tensors; }
  const std::vector<std::string>& other_entries() const { return index_.other_entries; }

 private:
  MappedFile file_;
  TorchIndex index_;
};

// Writes a file that torch.load reads with weights_only=True: a dict from names to CPU tensors, in this order. Tensors with the same bytes
// in memory share a storage. Atomic and durable (files.h).
void write_torch_file(const std::string& path, const std::vector<TensorView>& tensors);

}  // namespace based
