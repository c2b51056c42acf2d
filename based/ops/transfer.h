// From the CPU to where the work is done and back, without waiting for it.
#pragma once
#include <c10/core/Event.h>

#include <optional>

#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// On a GPU the copy is made from pinned memory, in the order of the current stream: it runs beside whatever the host does next, and is
// there for all that is launched later. On the CPU it is `host` itself.
Tensor to_device(const Tensor& host, torch::Device device);

// Memory of the host that a tensor is copied to. On a GPU it is pinned, the copy is made in the order of the current stream, and an event
// stands behind it; on the CPU the copy is made at once.
class ToHost {
 public:
  explicit ToHost(const Tensor& like);  // shape, type and device of what will be copied
  void begin(const Tensor& from);
  // What `from` held. Waits for the copy alone, not for what was launched behind it.
  const Tensor& wait();

 private:
  Tensor host_;
  std::optional<c10::Event> copied_;  // of a GPU
};

}  // namespace based::ops
