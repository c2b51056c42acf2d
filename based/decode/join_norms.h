// Norms of a step of several sequences as parts of the layers around them (kernels/linear_hopper.h): where a layer is followed by a norm
// that adds its outputs to the residual stream, and layers alone read that norm's y, half of the norm goes to the end of the layer before
// it and half to the end of those after it.
#pragma once
#include <string>
#include <vector>

#include "based/decode/effects.h"
#include "based/kernels/linear_hopper.h"

namespace based::decode {

// A layer, the norm right behind it, and the layers that read the norm's y.
struct NormJoin {
  size_t layer;  // of the units; the norm is the next one
  std::vector<size_t> readers;
};
// `reasons`: of the norms that stay, one for each unit.
std::vector<NormJoin> find_norm_joins(const std::vector<Unit>& units, const Gpu& gpu, std::vector<std::string>& reasons);

// A launch in the place of some units.
struct JoinedLaunch {
  std::vector<size_t> units;
  std::function<Status(Stream)> launch;
};
// `memory` gets what lies between the halves; one place for all norms of a step, since each is read before the next is written.
std::vector<JoinedLaunch> join_norms(const std::vector<Unit>& units, const std::vector<NormJoin>& joins, at::Device device, Tensor& memory);

// Arguments of the kernels that this needs; see linear_hopper.h.
struct LayerBeforeNorm {
  kernels::Linear layer;
  kernels::NormAfter after;
};
struct GatedLayerAfterNorm {
  kernels::Linear layer;
  kernels::NormBefore before;
};
struct LayersAfterNorm {
  std::vector<kernels::Linear> layers;
  kernels::NormBefore before;
};

}  // namespace based::decode
