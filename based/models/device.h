// Devices of models: their names in commands and configs, streams, and memory.
#pragma once
#include <c10/core/StreamGuard.h>

#include <optional>
#include <string>

#include "based/runtime/torch.h"

namespace based {

// From "cpu", "cuda" or "cuda:1". Throws UsageError that names `what` for other names and for a missing GPU.
torch::Device parse_device(const std::string& text, const std::string& what);

// During its lifetime, this thread's work for a GPU goes to a CUDA stream that no other OwnStream uses. Throws Error if all streams of the
// GPU, 32, are in use.
class OwnStream {
 public:
  explicit OwnStream(torch::Device device);
  ~OwnStream();  // synchronises the stream
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  std::optional<c10::StreamGuard> guard_;
};

// Waits for all work of a GPU.
void synchronize(torch::Device device);

// On a GPU, the peak number of bytes of tensors since reset_peak_memory(). On the CPU, the peak resident set size of the process, which
// cannot be reset.
int64_t peak_memory(torch::Device device);
void reset_peak_memory(torch::Device device);

// The bytes of free memory of the device.
int64_t available_memory(torch::Device device);

// Returns the memory to the GPU that torch's allocator caches for reuse. CUDA graph captures and other streams cannot use cached memory.
void release_cached_memory(torch::Device device);

}  // namespace based
