// Work that is recorded once and then replayed. On a GPU it is a CUDA graph, so that a hundred kernels cost one launch.
#pragma once
#include <functional>
#include <memory>

#include "based/runtime/torch.h"

namespace based::runtime {

class Replay {
 public:
  virtual ~Replay() = default;
  virtual void run() = 0;  // repeats the body on the same memory; asynchronous on a GPU
};

struct RecordOptions {
  // Changes the recording, a cudaGraph_t with the nodes of the body's last run, before it is instantiated.
  std::function<void(void* graph)> rewrite = {};
  // Another recording that shares its memory with this one. The two must never run at the same time, and neither may read results of its
  // own after a run of the other. The memory outlives both.
  Replay* memory_of = nullptr;
};

// The body must read and write fixed memory only: no host values, no synchronisation, no allocation that outlives it. record() runs it a
// few times before it records a last run, so the contents of the memory that it writes must not matter yet. Where the device has no
// recordings, run() calls the body. Throws Error for a body that cannot be recorded; the device is then in its former state.
std::unique_ptr<Replay> record(torch::Device device, std::function<void()> body, const RecordOptions& options = {});

// The function that records work on devices of a type; null: run() calls the body. runtime/cuda sets it for GPUs; tests set their own.
using Recorder = std::unique_ptr<Replay> (*)(torch::Device device, const std::function<void()>& body, const RecordOptions& options);
Recorder& recorder_of(torch::DeviceType type);

}  // namespace based::runtime
