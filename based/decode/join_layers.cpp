#include "based/decode/join_layers.h"

namespace based::decode {

std::vector<kernels::Linear> layers_at_once(const std::vector<Unit>& units, size_t first, size_t end) {
  const auto layer_of = [&](size_t i) { return units[i].kernel != nullptr ? units[i].kernel->linear() : nullptr; };
  std::vector<kernels::Linear> layers;
  Spans outputs;
  for (size_t i = first; i < end && layers.size() < kernels::kMostLayersAtOnce; ++i) {
    const LinearParts *layer = layer_of(i), *before = layer_of(first);
    if (layer == nullptr || layer->gated || !(layer->x == before->x)) break;
    const bool clash =
        std::any_of(outputs.begin(), outputs.end(), [&](const Span& y) { return overlap(y, layer->y) || share_memory(y, layer->y); });
    const kernels::Linear &p = layer->arguments, &one = before->arguments;
    if (clash || p.weight_is_constant != one.weight_is_constant || p.dtype != one.dtype || p.y_dtype != one.y_dtype) break;
    outputs.push_back(layer->y), layers.push_back(layer->arguments);
  }
  return layers;
}

}  // namespace based::decode
