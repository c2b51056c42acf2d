// Norms of a step of several sequences as parts of the layers before and after them (kernels/linear/linear_step.h). This applies where a
// norm adds the outputs of the layer before it to the residual stream, and only layers read the norm's y. The layer before the norm
// computes the first half of the norm after its own outputs, and the layers after the norm compute the second half after theirs. If the
// outputs of such a layer are the input and the gate of a short convolution right after it, or its input and values that it does not read,
// the layer computes the convolution, too.
#pragma once
#include <string>
#include <vector>

#include "based/decode/effects.h"
#include "based/kernels/linear/linear_step.h"

namespace based::decode {

// A layer, the norm right after it, and the layers that read the norm's y.
struct NormJoin {
  size_t layer;  // the unit's number; the norm is the next unit
  std::vector<size_t> readers;
};
// `reasons` has an entry for each unit: why a norm is not joined.
std::vector<NormJoin> find_norm_joins(const std::vector<Unit>& units, const Gpu& gpu, std::vector<std::string>& reasons);

// A launch that replaces some units.
struct JoinedLaunch {
  std::vector<size_t> units;
  std::function<Status(Queue)> launch;
};
// `memory` receives the intermediate values between the halves. All norms of a step share it, since each norm's values are read before the
// next norm writes.
std::vector<JoinedLaunch> join_norms(const std::vector<Unit>& units, const std::vector<NormJoin>& joins, const Effects& effects,
                                     const Gpu& gpu, at::Device device, Tensor& memory);

}  // namespace based::decode
