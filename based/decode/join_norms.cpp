#include "based/decode/join_norms.h"

#include <algorithm>

#include "based/decode/join_layers.h"

namespace based::decode {
namespace {

using kernels::DType;
using kernels::Linear;
using kernels::RmsNorm;

const LinearParts* linear_of(const Unit& unit) { return unit.kernel != nullptr ? unit.kernel->linear() : nullptr; }
const NormParts* norm_of(const Unit& unit) { return unit.kernel != nullptr ? unit.kernel->norm() : nullptr; }

// Whether the norm adds the layer's outputs to the stream, and the layer can do so itself; else why not.
const char* why_not_added(const LinearParts& layer, const NormParts& norm, const Gpu& gpu) {
  const Linear& p = layer.arguments;
  const RmsNorm& n = norm.arguments;
  if (layer.gated || !(layer.y == norm.add) || p.out != n.width || p.rows != n.rows || p.y_stride != n.width)
    return "it adds other values than the outputs of the layer before it";
  if (n.x_dtype != DType::f32 || n.dtype != DType::bf16 || p.y_dtype != DType::bf16)
    return "the stream is not fp32, or the layers not bf16";
  if (!p.weight_is_constant || !kernels::linear_hopper_supports(p, gpu)) return "a library computes the layer before it";
  if (norm.sum.storage < 0 || n.inverse_rms != nullptr) return "its sum is not kept";
  if (!kernels::aligned16(n.x) || !kernels::aligned16(n.sum) || !kernels::aligned16(n.weight))
    return "the stream is not aligned to 16 bytes";
  if (overlap(norm.sum, layer.x) || !(norm.sum == norm.x)) return "its sum does not replace the stream";
  return nullptr;
}

// Whether a layer can read the result of the norm's first half.
bool can_follow(const LinearParts& layer, const NormParts& norm, const Gpu& gpu) {
  const Linear& p = layer.arguments;
  if (!(layer.x == norm.y) || p.x_stride != norm.arguments.width || p.in != norm.arguments.width || p.rows != norm.arguments.rows)
    return false;
  return p.y_dtype == DType::bf16 &&
         (layer.gated ? kernels::linear_swiglu_hopper_supports(p, gpu) : kernels::linear_hopper_supports(p, gpu));
}

// The units that read the norm's y; empty, with a reason, unless all are layers and none reads the outputs of the layer before it.
std::vector<size_t> readers_of(const std::vector<Unit>& units, size_t at, const Gpu& gpu, std::string& why) {
  const NormParts& norm = *norm_of(units[at]);
  const Span outputs = linear_of(units[at - 1])->y;
  std::vector<size_t> readers;
  for (size_t i = 0; i < units.size(); ++i) {
    if (i != at && overlap(outputs, units[i].reads))
      return why = "another operator reads the outputs of the layer before it", std::vector<size_t>{};
    if (i == at || !overlap(norm.y, units[i].reads)) continue;
    const LinearParts* layer = linear_of(units[i]);
    if (layer == nullptr || !can_follow(*layer, norm, gpu))
      return why = units[i].op + " reads it, which cannot compute a part of a norm", std::vector<size_t>{};
    readers.push_back(i);
  }
  if (readers.empty()) why = "no layer reads it";
  return readers;
}

// The step of a convolution right after a layer that can compute it; none where another operator reads the convolution's inputs.
std::optional<kernels::ShortConv> convolution_after(const std::vector<Unit>& units, size_t at, const Effects& effects, const Gpu& gpu) {
  if (at + 1 >= units.size() || units[at + 1].kernel == nullptr) return {};
  const std::optional<ConvParts> conv = units[at + 1].kernel->convolution();
  const LinearParts& layer = *linear_of(units[at]);
  const Linear& p = layer.arguments;
  if (!conv || !kernels::linear_conv_supports(p, conv->arguments, gpu)) return {};
  const bool has_gate = conv->arguments.gate != nullptr;
  const bool halves = has_gate
                          ? conv->spans.are_halves_of(layer.y, 2 * conv->arguments.channels) && conv->arguments.gate_stride == p.y_stride
                          : conv->spans.begins(layer.y);
  if (!halves || conv->arguments.x_stride != p.y_stride) return {};
  return effects.is_only_for(at + 1, has_gate ? layer.y : conv->spans.x) ? std::optional(conv->arguments) : std::nullopt;
}

}  // namespace

std::vector<NormJoin> find_norm_joins(const std::vector<Unit>& units, const Gpu& gpu, std::vector<std::string>& reasons) {
  std::vector<NormJoin> found;
  reasons.assign(units.size(), "");
  size_t free = 0;  // units from here on read no joined norm
  for (size_t i = 0; i < units.size(); ++i) {
    const NormParts* norm = norm_of(units[i]);
    if (norm == nullptr) continue;
    if (!gpu.runs_hopper_code) {
      reasons[i] = "layers with norms are for Hopper";
      continue;
    }
    const LinearParts* layer = i > 0 ? linear_of(units[i - 1]) : nullptr;
    if (layer == nullptr || norm->add.storage < 0) {
      reasons[i] = "no layer right before it adds to the stream";
      continue;
    }
    if (const char* why = why_not_added(*layer, *norm, gpu)) {
      reasons[i] = why;
      continue;
    }
    if (i - 1 < free) {
      reasons[i] = "the layer before it, or one after it, is part of another norm";
      continue;
    }
    std::vector<size_t> readers = readers_of(units, i, gpu, reasons[i]);
    if (readers.empty()) continue;
    free = readers.back() + 1;
    found.push_back({i - 1, std::move(readers)});
  }
  return found;
}

std::vector<JoinedLaunch> join_norms(const std::vector<Unit>& units, const std::vector<NormJoin>& joins, const Effects& effects,
                                     const Gpu& gpu, at::Device device, Tensor& memory) {
  int64_t z_bytes = 0, squares_bytes = 0;
  for (const NormJoin& join : joins) {
    const Linear& layer = linear_of(units[join.layer])->arguments;
    z_bytes = std::max(z_bytes, kernels::round_up(2 * layer.rows * layer.out, 256));
    squares_bytes = std::max(squares_bytes, kernels::joined_norm_squares(layer.rows, layer.out) * 4);
  }
  memory = at::empty({z_bytes + squares_bytes}, at::dtype(at::kByte).device(device));
  auto* z = static_cast<char*>(memory.mutable_data_ptr());
  auto* squares = z != nullptr ? reinterpret_cast<float*>(z + z_bytes) : nullptr;
  std::vector<JoinedLaunch> launches;
  for (const NormJoin& join : joins) {
    const RmsNorm& norm = norm_of(units[join.layer + 1])->arguments;
    const kernels::NormBefore before{squares, kernels::joined_norm_parts(norm.width), norm.eps};
    const Linear& layer = linear_of(units[join.layer])->arguments;
    const kernels::NormAfter after{static_cast<const float*>(norm.x), static_cast<float*>(norm.sum), norm.weight, z, squares};
    launches.push_back({{join.layer, join.layer + 1}, [layer, after](Queue queue) { return launch_before_norm(layer, after, queue); }});
    for (size_t i = 0; i < join.readers.size();) {
      const LinearParts& reader = *linear_of(units[join.readers[i]]);
      if (reader.gated) {
        Linear gated = reader.arguments;
        gated.x = z;
        launches.push_back({{join.readers[i++]}, [gated, before](Queue queue) { return launch_swiglu_after_norm(gated, before, queue); }});
        continue;
      }
      if (const auto conv = convolution_after(units, join.readers[i], effects, gpu)) {
        Linear projection = reader.arguments;
        projection.x = z;
        launches.push_back({{join.readers[i], join.readers[i] + 1}, [projection, conv = *conv, before](Queue queue) {
                              return launch_conv_after_norm(projection, conv, before, queue);
                            }});
        ++i;
        continue;
      }
      size_t end = i + 1;
      while (end < join.readers.size() && join.readers[end] == join.readers[end - 1] + 1) ++end;
      std::vector<Linear> layers = layers_at_once(units, join.readers[i], join.readers[end - 1] + 1);
      for (Linear& one : layers) one.x = z;
      const auto begin = join.readers.begin() + static_cast<std::ptrdiff_t>(i);
      i += layers.size();
      launches.push_back({{begin, begin + static_cast<std::ptrdiff_t>(layers.size())},
                          [layers, before](Queue queue) { return launch_layers_after_norm(layers, before, queue); }});
    }
  }
  return launches;
}

}  // namespace based::decode
