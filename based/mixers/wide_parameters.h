// Parameters that a model in 16 bits keeps in fp32.
#pragma once
#include "based/ops/torch.h"

namespace based {

// A module whose parameters are never narrower than fp32, as its authors have them: a conversion to bf16 or fp16 leaves them in fp32, any
// other is done as asked for. Use it where rounding a parameter to 16 bits changes the function, as with the angles of poles, which are
// raised to the power of a position. Values derived from them are computed in fp32, and the rest of the model may have any type.
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
