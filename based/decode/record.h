// A step of decoding, recorded and rewritten by its plan; or only planned, for a GPU that this machine may not have.
#pragma once
#include <functional>
#include <memory>

#include "based/decode/plan.h"
#include "based/runtime/replay.h"

namespace based::decode {

struct RecordedStep {
  std::unique_ptr<Plan> plan;  // null where the device has no recordings; kept as long as the replay
  std::unique_ptr<runtime::Replay> replay;
};

// Records the body, as runtime::record() does, without gradients. Between two runs of a body in flight, only the body may write the memory
// that it reads. Throws Error where the body cannot be recorded or rewritten. `memory_of`: see runtime::RecordOptions.
RecordedStep record_step(torch::Device device, const std::function<void()>& body, const PlanOptions& options,
                         runtime::Replay* memory_of = nullptr);

// The plan of this body, without a recording: the body runs once, on tensors without memory (torch's meta tensors).
std::unique_ptr<Plan> plan_step(const std::function<void()>& body, const Gpu& gpu, const PlanOptions& options);

// The GPU of this machine. Throws Error where the device is no GPU, or the program was built without its kernels.
Gpu gpu_of(torch::Device device);

// The functions of a type of device that plans need. decode/cuda defines those of GPUs; tests define their own.
struct Backend {
  Gpu (*gpu)(torch::Device device) = nullptr;
  Trace::LastNode last_node = nullptr;
  Plan::NodesBetween nodes_between = nullptr;
  void (*apply)(const Plan& plan, void* graph) = nullptr;  // throws Error
};
Backend& backend_of(torch::DeviceType type);

}  // namespace based::decode
