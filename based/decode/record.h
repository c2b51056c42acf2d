// A step of decoding, recorded and rewritten by its plan; or only planned, for a GPU that need not be here.
#pragma once
#include <functional>
#include <memory>

#include "based/decode/plan.h"
#include "based/ops/replay.h"

namespace based::decode {

struct RecordedStep {
  std::unique_ptr<Plan> plan;  // null where the device has no recordings; kept as long as the replay
  std::unique_ptr<ops::Replay> replay;
};

// The body as ops::record() takes it, run without gradients. Nothing but the body may write what it reads between two of its runs while
// they are under way. Throws Error where it cannot be recorded or rewritten.
RecordedStep record_step(torch::Device device, const std::function<void()>& body, const PlanOptions& options);

// What the plan of this body would be; the body is run once, on tensors without memory (torch's meta tensors).
std::unique_ptr<Plan> plan_step(const std::function<void()>& body, const Gpu& gpu, const PlanOptions& options);

// The GPU that is there. Throws Error where the device is none, or the program was built without its kernels.
Gpu gpu_of(torch::Device device);

// What plans need of a type of device. Tests set their own.
struct Backend {
  Gpu (*gpu)(torch::Device device) = nullptr;
  Trace::LastNode last_node = nullptr;
  Plan::NodesBetween nodes_between = nullptr;
  void (*apply)(const Plan& plan, void* graph) = nullptr;  // throws Error
};
Backend& backend_of(torch::DeviceType type);
// Of GPUs: from based/decode/cuda, or nothing from based/decode/without_cuda.
Backend cuda_backend();

}  // namespace based::decode
