// Files of recurrent states, from which a process continues where another stopped. The container is checksummed and independent of models.
//
//   "BASEDST1" | u32 version | u32 0 | u64 size of the file | u64 H | H bytes of JSON, padded with spaces
//   | token ids, padded to 8 bytes | each tensor, padded to 8 bytes | xxh3-128 of all preceding bytes (low half first)
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
  std::string model_hash;           // Hash128::hex() of the weights and config that computed the state
  std::vector<int64_t> token_ids;   // the sequence, oldest first; the writer defines how many of them the state includes
  std::vector<TensorView> tensors;  // names are unique
  std::map<std::string, std::string> metadata;
};

// Writes a file durably and atomically (files.h). Equal snapshots give equal files. Throws Error.
void write_state_file(const std::string& path, const StateSnapshot& snapshot);
// The bytes of that file, in memory. Errors name the state `name`.
std::string state_file_content(const StateSnapshot& snapshot, const std::string& name);

// Throws Error that tells the cause: not a state file, another version, truncated, damaged (checksum), or an invalid header. The snapshot's
// tensors are views into `file`.
StateSnapshot parse_state_file(std::span<const std::byte> file, const std::string& source);

// Throws Error if the state belongs to another model.
void require_model(const StateSnapshot& snapshot, const std::string& model_hash, const std::string& source);

// A mapped state file. The snapshot's tensors stay valid as long as the object exists.
class StateFile {
 public:
  explicit StateFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const StateSnapshot& snapshot() const { return snapshot_; }
  void require_model(const std::string& model_hash) const;  // throws Error if the state belongs to another model

 private:
  MappedFile file_;
  StateSnapshot snapshot_;
};

}  // namespace based
