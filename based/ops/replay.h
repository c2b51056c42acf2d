// Work that is recorded once and then replayed: on a GPU a CUDA graph, so that a hundred kernels cost one launch.
#pragma once
#include <functional>
#include <memory>

#include "based/ops/torch.h"

namespace based::ops {

class Replay {
 public:
  virtual ~Replay() = default;
  virtual void run() = 0;  // what the body did, on the same memory; asynchronous on a GPU
};

struct RecordOptions {
  // Changes a recording before it is made ready: a cudaGraph_t, whose nodes the last run of the body made.
  std::function<void(void* graph)> rewrite = {};
  // The recording uses the memory of this one, too, which is kept for it: they never run at once, and what one leaves there nobody reads
  // behind a run of the other.
  Replay* memory_of = nullptr;
};

// The body must read and write fixed memory only: no host values, no synchronisation, nothing allocated that outlives it. It is run a few
// times first, so what it changes must not matter yet; the last run is the one that is recorded. Where the device has no recordings,
// run() calls the body. Throws Error for a body that cannot be recorded so; the device is then as before.
std::unique_ptr<Replay> record(torch::Device device, std::function<void()> body, const RecordOptions& options = {});

// How work is recorded on devices of a type; null: run() calls the body. Tests set their own.
using Recorder = std::unique_ptr<Replay> (*)(torch::Device device, const std::function<void()>& body, const RecordOptions& options);
Recorder& recorder_of(torch::DeviceType type);
// Of GPUs: from based/ops/cuda, or null from based/ops/without_cuda.
Recorder cuda_recorder();

}  // namespace based::ops
