// Copies from the CPU to a device and back that the host does not wait for.
#pragma once
#include <c10/core/Event.h>

#include <optional>

#include "based/runtime/torch.h"

namespace based::runtime {

using torch::Tensor;

// For a GPU the copy is made from pinned memory on the current stream: it runs while the host continues, and all kernels that are launched
// later on the stream see it. On the CPU the result is `host` itself.
Tensor to_device(const Tensor& host, torch::Device device);

// Host memory for copies of a tensor. For a tensor on a GPU it is pinned; the copy runs on the current stream and an event marks its end.
// On the CPU the copy is made at once.
class ToHost {
 public:
  explicit ToHost(const Tensor& like);  // has the shape, type and device of the tensors to copy
  void begin(const Tensor& from);
  // The values of `from` at begin(). Waits for the copy only, not for work that was launched after it.
  const Tensor& wait();

 private:
  Tensor host_;
  std::optional<c10::Event> copied_;  // for a GPU
};

}  // namespace based::runtime
