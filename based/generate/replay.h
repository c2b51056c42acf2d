// A step that is recorded once and then replayed: on a GPU a CUDA graph, so that a step of a hundred kernels costs one launch.
#pragma once
#include <functional>
#include <memory>

#include "based/ops/torch.h"

namespace based {

class Replay {
 public:
  virtual ~Replay() = default;
  virtual void run() = 0;  // what the body did, on the same memory; asynchronous on a GPU
};

// What may be done with a recording.
enum class Recording {
  as_launched,  // the kernels that the body launched
  fused,        // kernels that follow each other may become one; the body is a step of decoding (ops/recorded_step.h)
};

// The body must read and write fixed memory only: no host values, no synchronisation, nothing allocated that outlives it. It is run a few
// times first, so what it changes must not matter yet. Where the device has no graphs, run() calls the body.
// Throws Error for a body that cannot be recorded so; the device is then as before.
std::unique_ptr<Replay> record(torch::Device device, std::function<void()> body, Recording recording);

// What a backend of generate/<device> sets for its type of device; null: run() calls the body.
using Recorder = std::unique_ptr<Replay> (*)(torch::Device device, const std::function<void()>& body, Recording recording);
Recorder& recorder_of(torch::DeviceType type);

}  // namespace based
