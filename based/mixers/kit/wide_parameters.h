// Parameters that stay in fp32 in a 16-bit model.
#pragma once
#include "based/runtime/torch.h"

namespace based {

// A module whose parameters are never narrower than fp32, as in the authors' code. A conversion to bf16 or fp16 converts them to fp32
// instead; other conversions work as usual. Use it for parameters whose rounding to 16 bits would change the function, such as the angles
// of poles, which are multiplied by positions. Values derived from them are computed in fp32; the rest of the model may have any type.
class WideParameters : public torch::nn::Module {
 public:
  using torch::nn::Module::to;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking) override { Module::to(device, at_least_fp32(dtype), non_blocking); }
  void to(torch::Dtype dtype, bool non_blocking) override { Module::to(at_least_fp32(dtype), non_blocking); }

 private:
  static torch::Dtype at_least_fp32(torch::Dtype dtype) {
    return dtype == torch::kBFloat16 || dtype == torch::kHalf ? torch::kFloat : dtype;
  }
};

}  // namespace based
