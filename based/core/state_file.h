// Snapshots of a recurrent state: what a process needs to go on where another stopped. A checked container that knows no model.
//
//   "BASEDST1" | u32 version | u32 0 | u64 size of the file | u64 H | H bytes of JSON, padded with spaces
//   | token ids, padded to 8 bytes | each tensor, padded to 8 bytes | xxh3-128 of all before (low half first)
//   {"model": "<32 hex digits>", "tokens": {"dtype": "I32", "count": 7}, "tensors": [{"name": …, "dtype": …, "shape": […]}, …],
//    "metadata": {string: string}}
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "based/core/files.h"
#include "based/core/safetensors.h"

namespace based {

struct StateSnapshot {
  std::string model_hash;           // of the weights and config that made the state; Hash128::hex()
  std::vector<int64_t> token_ids;   // the text, oldest first; what of it the state has seen is the writer's to say
  std::vector<TensorView> tensors;  // names are unique
  std::map<std::string, std::string> metadata;
};

// Durable and atomic (files.h). Equal snapshots make equal files. Throws Error.
void write_state_file(const std::string& path, const StateSnapshot& snapshot);

// Throws Error telling which it is: not a state file, another version, truncated, damaged (checksum), or a header that makes no sense.
// The tensors are views into `file`.
StateSnapshot parse_state_file(std::span<const std::byte> file, const std::string& source);

// A mapped state file; the snapshot's tensors stay valid as long as the object.
class StateFile {
 public:
  explicit StateFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const StateSnapshot& snapshot() const { return snapshot_; }
  void require_model(const std::string& model_hash) const;  // throws Error where another model made it

 private:
  MappedFile file_;
  StateSnapshot snapshot_;
};

}  // namespace based
