// Ranges of work on tensors (based/core/profile.h): with times on a GPU, and in the backward pass.
#pragma once
#include <memory>

#include "based/core/profile.h"
#include "based/runtime/torch.h"

namespace based::runtime {

// A ProfileRange of the host. Where the device is a GPU, the launches inside it also give a range on the GPU's track: from the moment at
// which the current stream has done all work before them until it has done theirs. Not for launches that are being recorded
// (runtime/replay.h), because they do not run then.
class DeviceRange {
 public:
  DeviceRange(ProfileLevel level, const char* name, torch::Device device, const ProfileArguments& arguments = {})
      : host_(level, name, arguments) {
    if (!device.is_cpu() && profiles(level)) begin(level, name, device, arguments);
  }
  ~DeviceRange() {
    if (timer_) end();
  }
  DeviceRange(const DeviceRange&) = delete;
  DeviceRange& operator=(const DeviceRange&) = delete;

 private:
  struct Timer;
  void begin(ProfileLevel level, const char* name, torch::Device device, const ProfileArguments& arguments);
  void end();

  ProfileRange host_;
  std::shared_ptr<Timer> timer_;  // null: no time on a GPU
};

// No GPU times are taken while an object exists.
class GpuTimesPause {
 public:
  GpuTimesPause();
  ~GpuTimesPause();
  GpuTimesPause(const GpuTimesPause&) = delete;
  GpuTimesPause& operator=(const GpuTimesPause&) = delete;
};

// In the backward pass, begins a range when the gradient of `output` is known, which is when the backward of the operators that computed it
// begins. The range ends where the next one begins, or at the end of the backward pass. Autograd runs operators in the reverse order of the
// forward pass, so if each part of a model marks its output, the ranges are the parts' backward passes. No value is changed.
void add_backward_range(const torch::Tensor& output, const char* name, const ProfileArguments& arguments);
inline void mark_backward(const torch::Tensor& output, const char* name, const ProfileArguments& arguments = {}) {
  if (profiles(ProfileLevel::layers) && output.requires_grad()) add_backward_range(output, name, arguments);
}

}  // namespace based::runtime
