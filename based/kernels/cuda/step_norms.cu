// Takes norms out of a captured step of several texts: halves of them go to the products before and after (linear_launchers.h).
#include <algorithm>
#include <optional>

#include "based/kernels/cuda/linear_launchers.h"
#include "based/kernels/cuda/step_graph.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

// A layer, the norm right behind it, and the layers that read the norm's y.
struct Join {
  size_t layer;  // of the launches; the norm is the next one
  std::vector<size_t> readers;
};

// Activations that a launch reads and writes; a state in a recorded step is its layer's own.
struct Traffic {
  Ranges reads, writes;
};
Range matrix(const void* begin, int64_t rows, int64_t stride, int64_t width, DType dtype) {
  return range(begin, ((rows - 1) * stride + width) * dtype_size(dtype));
}
struct TrafficOf {
  Traffic operator()(const RmsNorm& p) const {
    const auto all = [&p](const void* begin, DType dtype) { return matrix(begin, p.rows, p.width, p.width, dtype); };
    return {{all(p.x, p.x_dtype), all(p.add, p.dtype), all(p.earlier, p.dtype)},
            {all(p.sum, p.x_dtype), all(p.y, p.dtype), range(p.inverse_rms, 4 * p.rows)}};
  }
  Traffic operator()(const Linear& p) const { return layer(p, p.out); }
  Traffic operator()(const LinearSwiglu& p) const { return layer(p.linear, p.linear.out / 2); }
  Traffic operator()(const ShortConv& p) const {
    return {{matrix(p.x, p.tokens, p.x_stride, p.channels, p.dtype), matrix(p.gate, p.tokens, p.gate_stride, p.channels, p.dtype)},
            {matrix(p.y, p.tokens, p.y_stride, p.channels, p.dtype)}};
  }
  Traffic operator()(const TaylorAttention& p) const {
    const int64_t narrow = int64_t{p.heads} * p.feature_dim, wide = int64_t{p.heads} * p.head_dim;
    const int64_t qk = p.qk_stride != 0 ? p.qk_stride : narrow, v = p.v_stride != 0 ? p.v_stride : wide;
    return {
        {matrix(p.q, p.tokens, qk, narrow, p.dtype), matrix(p.k, p.tokens, qk, narrow, p.dtype), matrix(p.v, p.tokens, v, wide, p.dtype)},
        {matrix(p.y, p.tokens, wide, wide, p.dtype), range(p.denominator, 4 * p.tokens * p.heads)}};
  }
  Traffic operator()(const TaylorDeferred& p) const { return (*this)(p.step); }
  Traffic operator()(const CausalAttentionStep& p) const {
    const int64_t wide = int64_t{p.heads} * p.head_dim, narrow = int64_t{p.kv_heads} * p.head_dim;
    return {{matrix(p.q, p.rows, p.q_stride, wide, p.dtype), matrix(p.k, p.rows, p.k_stride, narrow, p.dtype),
             matrix(p.v, p.rows, p.v_stride, narrow, p.dtype)},
            {matrix(p.y, p.rows, wide, wide, p.dtype)}};
  }

 private:
  static Traffic layer(const Linear& p, int64_t outputs) {
    const Range y = matrix(p.y, p.rows, p.y_stride, outputs, p.y_dtype);
    return {{matrix(p.x, p.rows, p.x_stride, p.in, p.dtype), p.accumulate ? y : Range{}}, {y}};
  }
};

// The norm adds the layer's outputs to the stream, and the layer can do so itself.
bool can_add(const Linear& layer, const RmsNorm& norm) {
  if (layer.rows < 2 || layer.rows != norm.rows || layer.out != norm.width || layer.y != norm.add || layer.y_stride != norm.width)
    return false;
  if (layer.y_dtype != DType::bf16 || !layer.weight_is_constant || !linear_sm90_supports(layer)) return false;
  if (norm.x == nullptr || norm.sum == nullptr || norm.inverse_rms != nullptr || norm.earlier != nullptr) return false;
  if (norm.x_dtype != DType::f32 || norm.dtype != DType::bf16) return false;
  if (!aligned16(norm.x) || !aligned16(norm.sum) || !aligned16(norm.weight)) return false;
  const TrafficOf traffic;
  const Ranges sum = {range(norm.sum, norm.rows * norm.width * 4)};
  return !overlap(sum, traffic(layer).reads) && (norm.sum == norm.x || !overlap(sum, {traffic(norm).reads[0]}));
}

// The layer as it multiplies z instead of the norm's y; nothing where it cannot.
std::optional<Linear> layer_after(const StepLaunch& launch, const RmsNorm& norm, const void* z) {
  const auto* swiglu = std::get_if<LinearSwiglu>(&launch.arguments);
  const Linear* plain = swiglu != nullptr ? &swiglu->linear : std::get_if<Linear>(&launch.arguments);
  if (plain == nullptr || plain->x != norm.y || plain->x_stride != norm.width || plain->in != norm.width || plain->rows != norm.rows)
    return {};
  Linear layer = *plain;
  if (z != nullptr) layer.x = z;
  if (layer.y_dtype != DType::bf16 || !(swiglu != nullptr ? linear_swiglu_sm90_supports(layer) : linear_sm90_supports(layer))) return {};
  return layer;
}

class Search {
 public:
  explicit Search(const std::vector<StepLaunch>& launches) : launches_(launches), reads_norm_(launches.size()) {}
  std::vector<Join> joins() {
    std::vector<Join> found;
    for (size_t i = 0; i + 2 < launches_.size(); ++i) {
      const auto* layer = std::get_if<Linear>(&launches_[i].arguments);
      const auto* norm = std::get_if<RmsNorm>(&launches_[i + 1].arguments);
      if (layer == nullptr || norm == nullptr || reads_norm_[i] || !can_add(*layer, *norm) || !follows(launches_[i], launches_[i + 1]))
        continue;
      std::vector<size_t> readers = readers_of(i + 1, *layer, *norm);
      if (readers.empty()) continue;
      for (const size_t reader : readers) reads_norm_[reader] = true;
      found.push_back({i, std::move(readers)});
    }
    return found;
  }

 private:
  // Empty unless all launches up to the next norm are known, those that read the norm's y are layers, and none reads the layer's.
  std::vector<size_t> readers_of(size_t at, const Linear& layer, const RmsNorm& norm) const {
    const Ranges outputs = TrafficOf()(layer).writes, normalised = {TrafficOf()(norm).writes[1]};
    std::vector<size_t> readers;
    bool outputs_live = true, normalised_live = true;  // until other outputs have their memory
    for (size_t i = at + 1; i < launches_.size() && follows(launches_[i - 1], launches_[i]); ++i) {
      const Traffic traffic = std::visit(TrafficOf(), launches_[i].arguments);
      if (outputs_live && overlap(traffic.reads, outputs)) return {};
      if (normalised_live && overlap(traffic.reads, normalised)) {
        if (!layer_after(launches_[i], norm, nullptr)) return {};
        readers.push_back(i);
      }
      outputs_live = outputs_live && !overlap(traffic.writes, outputs);
      normalised_live = normalised_live && !overlap(traffic.writes, normalised);
      if (std::holds_alternative<RmsNorm>(launches_[i].arguments)) return readers;
    }
    return {};
  }

  const std::vector<StepLaunch>& launches_;
  std::vector<bool> reads_norm_;
};

// Takes a node out between its two neighbours, which may overlap as each did with it.
cudaError_t take_out(cudaGraph_t graph, cudaGraphNode_t node) {
  Edges in, out;
  cudaError_t error = read_edges(cudaGraphNodeGetDependencies, node, in);
  if (error == cudaSuccess) error = read_edges(cudaGraphNodeGetDependentNodes, node, out);
  if (error == cudaSuccess) error = cudaGraphDestroyNode(node);
  if (error != cudaSuccess) return error;
  const bool overlaps = in.data[0].type == cudaGraphDependencyTypeProgrammatic && out.data[0].type == cudaGraphDependencyTypeProgrammatic;
  const cudaGraphEdgeData edge = overlaps ? in.data[0] : cudaGraphEdgeData{};
  return cudaGraphAddDependencies(graph, in.nodes.data(), out.nodes.data(), &edge, 1);
}

// What lies between the halves; one for all norms of a step, since each is read before the next is written.
struct Between {
  char* z = nullptr;
  float* squares = nullptr;
};

// The layers of launches `first`, `first` + 1, … that can be one launch: one beside the other, neither reads nor overwrites what another
// gives.
std::vector<Linear> layers_at_once(const std::vector<StepLaunch>& launches, const Join& join, size_t first, const void* z) {
  const auto& norm = std::get<RmsNorm>(launches[join.layer + 1].arguments);
  std::vector<Linear> layers;
  Ranges outputs;
  for (size_t i = first; i < join.readers.size() && layers.size() < kMostLayersAtOnce; ++i) {
    const size_t at = join.readers[i];
    const auto* layer = std::get_if<Linear>(&launches[at].arguments);
    if (layer == nullptr || at != join.readers[first] + layers.size()) break;
    const Ranges y = TrafficOf()(*layer).writes;
    if (overlap(y, outputs) || layer->weight_is_constant != std::get<Linear>(launches[join.readers[first]].arguments).weight_is_constant)
      break;
    append(outputs, y), layers.push_back(*layer_after(launches[at], norm, z));
  }
  return layers;
}

// How many kernels are left.
struct Replaced {
  Status status;
  int kernels = 1;
};
Replaced replace(cudaGraph_t graph, const std::vector<StepLaunch>& launches, const Join& join, const Between& between) {
  const auto& layer = std::get<Linear>(launches[join.layer].arguments);
  const auto& norm = std::get<RmsNorm>(launches[join.layer + 1].arguments);
  const NormBefore before{between.squares, joined_norm_parts(norm.width), norm.eps};
  const NormAfter after{static_cast<const float*>(norm.x), static_cast<float*>(norm.sum), norm.weight, between.z, between.squares};
  std::vector<size_t> gone = {join.layer + 1};
  Replaced done{put_linear_before_norm(node_of(launches[join.layer]), layer, after)};
  for (size_t i = 0; i < join.readers.size() && done.status.ok(); ++done.kernels) {
    const StepLaunch& reader = launches[join.readers[i]];
    const std::vector<Linear> layers = layers_at_once(launches, join, i, between.z);
    done.status = layers.empty() ? put_linear_swiglu_after_norm(node_of(reader), *layer_after(reader, norm, between.z), before)
                                 : put_linears_after_norm(node_of(reader), layers, before);
    for (size_t j = 1; j < layers.size(); ++j) gone.push_back(join.readers[i + j]);
    i += std::max<size_t>(layers.size(), 1);
  }
  for (const size_t launch : gone)
    if (done.status.ok()) done.status = status_of(take_out(graph, node_of(launches[launch])));
  return done;
}

}  // namespace

StepFusion fuse_norms(void* graph, const StepLog& log, const std::function<void*(int64_t bytes)>& allocate) {
  StepFusion done;
  if (!runs_hopper_code()) return done;
  const std::vector<Join> joins = Search(log.launches()).joins();
  if (joins.empty()) return done;
  int64_t z_bytes = 0, squares_bytes = 0;
  for (const Join& join : joins) {
    const auto& layer = std::get<Linear>(log.launches()[join.layer].arguments);
    z_bytes = std::max(z_bytes, round_up(2 * layer.rows * layer.out, 256));
    squares_bytes = std::max(squares_bytes, joined_norm_squares(layer.rows, layer.out) * 4);
  }
  auto* memory = static_cast<char*>(allocate(z_bytes + squares_bytes));
  for (const Join& join : joins) {
    const Between between{memory, reinterpret_cast<float*>(memory + z_bytes)};
    const Replaced replaced = replace(static_cast<cudaGraph_t>(graph), log.launches(), join, between);
    if (done.status = replaced.status; !done.status.ok()) return done;
    done.launches += 2 + static_cast<int>(join.readers.size()), done.kernels += replaced.kernels;
  }
  return done;
}

}  // namespace based::kernels::cuda
