// Linear layers whose weights are stored in int8 or int4. Only the weights are quantised: activations are bf16 or fp32, sums are fp32.
// Without gradients. int4 runs on the CPU only.
#pragma once
#include "based/kernels/linear/quantised_linear.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

using kernels::WeightForm;

// A weight matrix [out, in]. See WeightForm for the layout.
struct QuantisedWeight {
  WeightForm form = WeightForm::int8;
  Tensor values;  // int8: int8 [out, in]; int4: uint8 [out, in / 2]
  Tensor scales;  // int8: fp32 [out]; int4: bf16 [out, in / kernels::kInt4Group]
  int64_t out() const { return values.size(0); }
  int64_t in() const { return values.size(1) * (form == WeightForm::int4 ? 2 : 1); }
  int64_t bytes() const { return static_cast<int64_t>(values.nbytes() + scales.nbytes()); }
};

// The largest absolute value of a weight that can be quantised: the largest finite bf16, the type of int4's scales, is below the largest
// fp32.
inline constexpr double kMostWeight = 1e38;

// Whether rows of `in` weights can be stored in this form: int4 needs whole groups.
constexpr bool can_quantise(WeightForm form, int64_t in) { return form == WeightForm::int8 || in % kernels::kInt4Group == 0; }

// Rounds a floating weight [out, in] on the CPU. int8: symmetric, the largest absolute value of a row becomes 127. int4: for each group,
// the scale out of several candidates with the smallest squared error; so an outlier does not set the scale if clipping it costs less.
// Throws Error for weights that are not finite, too large for the scale, or of a shape that the form cannot store.
QuantisedWeight quantise(const Tensor& weight, WeightForm form);

// Throws Error unless types, shapes and devices fit the form.
void check_quantised(const QuantisedWeight& weight);

// Rows first … first + count of the weight, in this floating type.
Tensor dequantised(const QuantisedWeight& weight, int64_t first, int64_t count, at::ScalarType type);

// x [rows, in] · weightᵀ + bias, as linear(): up to kBatchInvariantRows rows the bits of a row do not depend on the other rows. More rows
// are multiplied by converted weights. x and the bias are bf16 or fp32.
Tensor quantised_linear(const Tensor& x, const QuantisedWeight& weight, const OptionalTensor& bias = {});
// The same in fp64, rounded to x's type.
Tensor quantised_linear_reference(const Tensor& x, const QuantisedWeight& weight, const OptionalTensor& bias = {});
// swiglu(quantised_linear(…)), in one kernel on a GPU for up to kBatchInvariantRows rows.
Tensor quantised_linear_swiglu(const Tensor& x, const QuantisedWeight& weight, const OptionalTensor& bias = {});

// The operator; `gated`: with SwiGLU.
struct QuantisedLinear {
  const Tensor& x;
  const Tensor& values;
  const Tensor& scales;
  const OptionalTensor& bias;
  bool gated;
  BASED_OPERATOR("quantised_linear -> y", x, values, scales, bias, gated)
};
// The kernel's arguments, for x with contiguous columns.
kernels::QuantisedLinear quantised_linear_arguments(const QuantisedLinear& in, const Tensor& y);

}  // namespace based::ops
