// Plans and CUDA graphs: the nodes that a call has recorded, and the replacement of nodes by other launches.
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "based/core/error.h"
#include "based/decode/record.h"
#include "based/kernels/common/device_code.h"

namespace based::decode {
namespace {

using Nodes = std::vector<cudaGraphNode_t>;

void require(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which is reported here
  throw Error(std::string("this step's plan cannot be made into a graph: ") + cudaGetErrorString(error));
}
void require(const Status& status) {
  if (!status.ok()) throw Error(std::string("this step's plan cannot be launched: ") + status.what);
}

struct Edges {
  Nodes nodes;
  std::vector<cudaGraphEdgeData> data;
};
template <typename Query>
Edges edges(Query query, cudaGraphNode_t node) {
  Edges to;
  size_t count = 0;
  require(query(node, nullptr, nullptr, &count));
  to.nodes.resize(count), to.data.resize(count);
  if (count > 0) require(query(node, to.nodes.data(), to.data.data(), &count));
  return to;
}
Edges before(cudaGraphNode_t node) { return edges(cudaGraphNodeGetDependencies, node); }
Edges after(cudaGraphNode_t node) { return edges(cudaGraphNodeGetDependentNodes, node); }

cudaGraphNode_t last_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* data = nullptr;
  size_t count = 0;
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, &data, &count);
  return error == cudaSuccess && status == cudaStreamCaptureStatusActive && count == 1 ? nodes[0] : nullptr;
}
void* last_node() { return last_of(at::cuda::getCurrentCUDAStream().stream()); }

// Follows the only predecessor of each node, from `after` back to `begin`.
std::vector<void*> nodes_between(void* begin, void* last) {
  std::vector<void*> nodes;
  for (auto* node = static_cast<cudaGraphNode_t>(last); node != begin;) {
    nodes.push_back(node);
    const Nodes earlier = before(node).nodes;
    if (earlier.size() > 1 || (earlier.empty() && begin != nullptr)) return {};
    node = earlier.empty() ? nullptr : earlier[0];
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

Gpu gpu(torch::Device device) {
  const c10::DeviceGuard on_device(device);
  return kernels::launchers<kernels::DeviceLaunchers>(kernels::Device::cuda)->current_gpu();
}

// Replaces a chain of nodes by the stages' launches. They depend on the first node's predecessors, and the last node's successors depend on
// them.
void replace(cudaGraph_t graph, const std::vector<const Stage*>& stages, const Nodes& old, cudaStream_t stream) {
  const Edges in = before(old.front()), out = after(old.back());
  for (const cudaGraphNode_t node : old) require(cudaGraphDestroyNode(node));
  require(cudaStreamBeginCaptureToGraph(stream, graph, in.nodes.data(), nullptr, in.nodes.size(), cudaStreamCaptureModeThreadLocal));
  Status status;
  for (const Stage* stage : stages)
    if (status.ok()) status = stage->launch(kernels::on_stream(stream));
  const cudaGraphNode_t last = last_of(stream);
  cudaGraph_t same = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream, &same);
  require(status), require(error);
  if (last == nullptr) throw Error("this step's plan cannot be made into a graph: its launches are no chain");
  if (out.nodes.empty()) return;
  const Nodes sources(out.nodes.size(), last);
  const bool overlaps = stages.back()->form != StageForm::whole_step;  // no kernel begins before a cooperative launch has ended
  require(cudaGraphAddDependencies(graph, sources.data(), out.nodes.data(), overlaps ? out.data.data() : nullptr, sources.size()));
}

// Each run of adjacent stages with a launch replaces the nodes of all its units at once.
void apply(const Plan& plan, void* recorded) {
  auto* graph = static_cast<cudaGraph_t>(recorded);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream().stream();
  std::vector<const Stage*> run;
  std::vector<size_t> units;
  const auto finish = [&] {
    if (run.empty()) return;
    std::sort(units.begin(), units.end());
    Nodes nodes;
    for (const size_t unit : units)
      for (void* node : plan.units()[unit].nodes) nodes.push_back(static_cast<cudaGraphNode_t>(node));
    replace(graph, run, nodes, stream);
    run.clear(), units.clear();
  };
  for (const Stage& stage : plan.stages()) {
    if (!stage.launch) {
      finish();
      continue;
    }
    run.push_back(&stage);
    units.insert(units.end(), stage.units.begin(), stage.units.end());
  }
  finish();
}

[[maybe_unused]] const Backend& kBackend = backend_of(torch::kCUDA) = {gpu, last_node, nodes_between, apply};

}  // namespace

}  // namespace based::decode
