// What the rewriting of a captured step looks at: the memory that launches touch, and the edges between them.
#pragma once
#include <algorithm>
#include <vector>

#include "based/kernels/cuda/launch.h"
#include "based/kernels/step_program.h"

namespace based::kernels::cuda::detail {

struct Range {
  const char* begin;
  int64_t bytes;
};
using Ranges = std::vector<Range>;
inline Range range(const void* begin, int64_t bytes) { return {static_cast<const char*>(begin), begin == nullptr ? 0 : bytes}; }
inline bool overlap(const Ranges& a, const Ranges& b) {
  return std::any_of(a.begin(), a.end(), [&](const Range& x) {
    return std::any_of(b.begin(), b.end(), [&](const Range& y) {
      return x.bytes > 0 && y.bytes > 0 && x.begin < y.begin + y.bytes && y.begin < x.begin + x.bytes;
    });
  });
}
inline void append(Ranges& to, const Ranges& from) { to.insert(to.end(), from.begin(), from.end()); }

inline bool contains(const Range& outer, const Range& inner) {
  return inner.begin >= outer.begin && inner.begin + inner.bytes <= outer.begin + outer.bytes;
}

using Nodes = std::vector<cudaGraphNode_t>;
struct Edges {
  Nodes nodes;
  std::vector<cudaGraphEdgeData> data;
};
template <typename Query>
cudaError_t read_edges(Query query, cudaGraphNode_t node, Edges& to) {
  size_t count = 0;
  if (const cudaError_t error = query(node, nullptr, nullptr, &count); error != cudaSuccess) return error;
  to.nodes.resize(count), to.data.resize(count);
  return count == 0 ? cudaSuccess : query(node, to.nodes.data(), to.data.data(), &count);
}
inline cudaGraphNode_t node_of(const StepLaunch& launch) { return static_cast<cudaGraphNode_t>(launch.node); }

// Whether nothing in the graph comes between two launches, or beside them.
inline bool follows(const StepLaunch& before, const StepLaunch& after) {
  Edges out, in;
  return read_edges(cudaGraphNodeGetDependentNodes, node_of(before), out) == cudaSuccess &&
         read_edges(cudaGraphNodeGetDependencies, node_of(after), in) == cudaSuccess && out.nodes == Nodes{node_of(after)} &&
         in.nodes == Nodes{node_of(before)};
}

}  // namespace based::kernels::cuda::detail
