// Where a model runs, as commands and configs name it, and what it takes there.
#pragma once
#include <c10/core/StreamGuard.h>

#include <optional>
#include <string>

#include "based/ops/torch.h"

namespace based {

// "cpu", "cuda" or "cuda:1". Throws UsageError, naming `what`, for another word and for a GPU that is not there.
torch::Device parse_device(const std::string& text, const std::string& what);

// While one lives, what this thread gives to a GPU goes to a queue of its own there, beside those of other threads; nobody else's work goes
// there. Throws Error where all are taken, on a GPU 32.
class OwnStream {
 public:
  explicit OwnStream(torch::Device device);
  ~OwnStream();  // waits for it
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  std::optional<c10::StreamGuard> guard_;
};

// Waits for all that was launched on a GPU.
void synchronize(torch::Device device);

// The most bytes that tensors on a GPU took at once since reset_peak_memory; on the CPU the most that the whole process has had resident
// since it began, which cannot be reset.
int64_t peak_memory(torch::Device device);
void reset_peak_memory(torch::Device device);

// Bytes that can be had there now without anything else having to give way.
int64_t available_memory(torch::Device device);

// Gives back what was freed on a GPU and is kept for reuse. A recording can take none of it, nor can work on another queue.
void release_cached_memory(torch::Device device);

}  // namespace based
