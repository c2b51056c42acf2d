#include "based/decode/record.h"

#include <ATen/ExpandUtils.h>

#include <map>

#include "based/core/error.h"

namespace based::decode {
namespace {

// Shapes of results: LibTorch has these functions in Python only.
Tensor like_without_memory(const Tensor& self) { return at::empty_like(self); }
Tensor flip_without_memory(const Tensor& self, at::IntArrayRef /*dims*/) { return at::empty_like(self); }
Tensor complex_without_memory(const Tensor& real, const Tensor& imag) {
  return at::empty(at::infer_size(real.sizes(), imag.sizes()), real.options().dtype(c10::toComplexType(real.scalar_type())));
}
Tensor where_without_memory(const Tensor& condition, const Tensor& self, const Tensor& other) {
  const std::vector<int64_t> sizes = at::infer_size(condition.sizes(), at::infer_size(self.sizes(), other.sizes()));
  return at::empty(sizes, condition.options().dtype(at::result_type(self, other)));
}
Tensor index_select_without_memory(const Tensor& self, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[static_cast<size_t>(dim < 0 ? dim + self.dim() : dim)] = index.numel();
  return at::empty(sizes, self.options());
}

Tensor& index_select_out_without_memory(const Tensor& /*self*/, int64_t /*dim*/, const Tensor& /*index*/, Tensor& out) { return out; }

}  // namespace

Backend& backend_of(torch::DeviceType type) {
  static std::map<torch::DeviceType, Backend> backends;
  return backends[type];
}

Gpu gpu_of(torch::Device device) {
  const Backend& backend = backend_of(device.type());
  if (backend.gpu == nullptr) throw Error("device " + device.str() + " has no plans of steps in this program");
  return backend.gpu(device);
}

RecordedStep record_step(torch::Device device, const std::function<void()>& body, const PlanOptions& options, runtime::Replay* memory_of) {
  const Backend& backend = backend_of(device.type());
  RecordedStep to;
  if (backend.apply == nullptr) {
    to.replay = runtime::record(device, body, {.memory_of = memory_of});
    return to;
  }
  const Gpu gpu = backend.gpu(device);
  std::unique_ptr<Trace> trace;  // the trace of the last run, which is recorded
  const auto traced = [&] {
    trace.reset();
    trace = std::make_unique<Trace>(gpu, backend.last_node);
    body();
    trace->stop();
  };
  const auto fuse = [&](void* graph) {
    to.plan = std::make_unique<Plan>(*trace, gpu, device, backend.nodes_between, options);
    backend.apply(*to.plan, graph);
  };
  to.replay = runtime::record(device, traced, {.rewrite = fuse, .memory_of = memory_of});
  return to;
}

std::unique_ptr<Plan> plan_step(const std::function<void()>& body, const Gpu& gpu, const PlanOptions& options) {
  torch::Library shapes(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);  // while this runs
  shapes.impl("index_select", index_select_without_memory);
  shapes.impl("index_select.out", index_select_out_without_memory);
  for (const char* like : {"abs", "relu"}) shapes.impl(like, like_without_memory);
  shapes.impl("flip", flip_without_memory);
  shapes.impl("complex", complex_without_memory);
  shapes.impl("where.self", where_without_memory);
  Trace trace(gpu, nullptr);
  body();
  trace.stop();
  return std::make_unique<Plan>(trace, gpu, torch::kMeta, nullptr, options);
}

}  // namespace based::decode
