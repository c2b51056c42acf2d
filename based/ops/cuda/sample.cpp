#include "based/ops/sample.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

void draw(Tensor token, const Tensor& logits, const Tensor& position, const Tensor& seed, const Tensor& top_k, const Tensor& temperature,
          const Tensor& top_p, const Tensor& min_p, const Tensor& penalty, Tensor seen) {
  const OnDevice device("sample_", {{"token", token},
                                    {"logits", logits},
                                    {"position", position},
                                    {"seed", seed},
                                    {"top_k", top_k},
                                    {"temperature", temperature},
                                    {"top_p", top_p},
                                    {"min_p", min_p},
                                    {"penalty", penalty},
                                    {"seen", seen}});
  sample_with(launch<kernels::cuda::sample, kernels::Sample>, token, logits,
              {position, seed, top_k, temperature, top_p, min_p, penalty, seen});
}

TORCH_LIBRARY_IMPL(based, CUDA, m) { m.impl("sample_", draw); }

}  // namespace
}  // namespace based::ops
