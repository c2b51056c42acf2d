#include "based/ops/linear/quantised_linear.h"

#include <ATen/Parallel.h>

#include <array>
#include <cmath>

#include "based/ops/framework/on_device.h"
#include "based/ops/linear/linear.h"
#include "based/ops/pointwise/swiglu.h"

namespace based::ops {
namespace {

constexpr const char* kQuantisedOp = "quantised_linear";
constexpr int64_t kGroup = kernels::kInt4Group;

// Rounds to the nearest integer, ties to even, for |x| < 2^22, in operations that the compiler vectorises.
inline float nearest_integer(float x) { return (x + 12582912.0f) - 12582912.0f; }
inline float limited(float x, float low, float high) { return std::min(high, std::max(low, x)); }

void quantise_row(const float* row, int64_t in, int8_t* values, float* scale) {
  float most = 0;
  for (int64_t i = 0; i < in; ++i) most = std::max(most, std::abs(row[i]));
  *scale = most / 127;
  const float inverse = *scale > 0 ? 1 / *scale : 0;
  for (int64_t i = 0; i < in; ++i) values[i] = static_cast<int8_t>(limited(nearest_integer(row[i] * inverse), -127, 127));
}

// The sum of squared errors of a group for this scale.
float group_error(const float* w, float scale) {
  const float inverse = 1 / scale;
  float error = 0;
  for (int64_t i = 0; i < kGroup; ++i) {
    const float difference = w[i] - scale * limited(nearest_integer(w[i] * inverse), -8, 7);
    error += difference * difference;
  }
  return error;
}

// The least-squares scale for the integers that `inverse` gives; 0 if all are 0.
float fitted_scale(const float* w, float inverse) {
  float products = 0, squares = 0;
  for (int64_t i = 0; i < kGroup; ++i) {
    const float q = limited(nearest_integer(w[i] * inverse), -8, 7);
    products += q * w[i], squares += q * q;
  }
  return squares > 0 ? products / squares : 0;
}

// The bf16 scale of a group, 0 if all weights are 0. Candidates put the largest absolute weight at −8.5 … −5 (or its negative, for the
// other sign of the scale); values beyond the range are clipped.
c10::BFloat16 best_scale(const float* w) {
  float most = 0;
  for (int64_t i = 0; i < kGroup; ++i) most = std::abs(w[i]) > std::abs(most) ? w[i] : most;
  c10::BFloat16 best = 0;
  // Below this number the inverse of a scale overflows; such a group is as good as 0.
  constexpr float tiny = 1e-30F;
  if (std::abs(most) < tiny) return best;
  float least = std::numeric_limits<float>::infinity();
  for (const float sign : {-1.0F, 1.0F}) {
    for (int step = 0; step < 8; ++step) {
      const c10::BFloat16 scale = fitted_scale(w, sign * (8.5F - 0.5F * static_cast<float>(step)) / most);
      if (std::abs(static_cast<float>(scale)) < tiny) continue;
      const float error = group_error(w, scale);
      if (error < least) least = error, best = scale;
    }
  }
  return best;
}

void quantise_group(const float* w, uint8_t* bytes, c10::BFloat16* scale) {
  *scale = best_scale(w);
  const float inverse = static_cast<float>(*scale) == 0 ? 0 : 1 / static_cast<float>(*scale);
  std::array<int, kGroup> q{};
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<int>(limited(nearest_integer(w[i] * inverse), -8, 7)) & 15;
  for (size_t i = 0; i < q.size() / 2; ++i) bytes[i] = static_cast<uint8_t>(q[i] | q[i + q.size() / 2] << 4);
}

QuantisedWeight weight_of(const QuantisedLinear& in) {
  return {in.values.scalar_type() == at::kChar ? WeightForm::int8 : WeightForm::int4, in.values, in.scales};
}

// More rows than the kernel is for, in x's type where its products are fast.
Tensor many_rows_on_cpu(const Tensor& x, const QuantisedWeight& weight, const OptionalTensor& bias) {
  constexpr int64_t block_weights = int64_t{1} << 21;
  const int64_t block = std::max<int64_t>(32, block_weights / std::max<int64_t>(1, weight.in()) / 32 * 32);
  const bool in_fp32 = multiplies_in_fp32(x, at::empty({std::min(block, weight.out()), 0}, x.options()));
  const Tensor input = in_fp32 ? x.to(at::kFloat) : x;
  Tensor y = at::empty({x.size(0), weight.out()}, x.options());
  for (int64_t first = 0; first < weight.out(); first += block) {
    const int64_t count = std::min(block, weight.out() - first);
    const OptionalTensor part = bias ? OptionalTensor(bias->narrow(0, first, count).to(input.scalar_type())) : std::nullopt;
    y.narrow(1, first, count).copy_(at::linear(input, dequantised(weight, first, count, input.scalar_type()), part));
  }
  return y;
}

void check_call(const Tensor& x, const QuantisedWeight& weight, const OptionalTensor& bias) {
  check_quantised(weight);
  require(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, kQuantisedOp, "x must be fp32 or bf16, got ", x.scalar_type());
  require_on(kQuantisedOp, "x", x, weight.values.device());
  require_shape(kQuantisedOp, "x", x, {-1, weight.in()});
  if (!bias) return;
  require_like(kQuantisedOp, "bias", *bias, x);
  require_shape(kQuantisedOp, "bias", *bias, {weight.out()});
}

void check_operator(const QuantisedLinear& in) {
  const QuantisedWeight weight = weight_of(in);
  check_call(in.x, weight, in.bias);
  require(!in.gated || weight.out() % 2 == 0, kQuantisedOp, "gates need an even number of outputs, got ", weight.out());
}

Tensor empty_result(const QuantisedLinear& in) { return at::empty({in.x.size(0), in.values.size(0) / (in.gated ? 2 : 1)}, in.x.options()); }

Tensor forward_meta(const QuantisedLinear& in) {
  check_operator(in);
  return empty_result(in);
}

Tensor few_rows_on_cpu(const QuantisedLinear& in) {
  const Tensor x = with_unit_columns(in.x), y = at::empty({in.x.size(0), in.values.size(0)}, in.x.options());
  const OptionalTensor offsets = in.bias ? OptionalTensor(in.bias->contiguous()) : std::nullopt;
  require_ok(kernels::cpu::quantised_linear(quantised_linear_arguments({x, in.values, in.scales, offsets, false}, y)));
  return y;
}

Tensor forward_cpu(const QuantisedLinear& in) {
  check_operator(in);
  const Tensor y = in.x.size(0) > kBatchInvariantRows ? many_rows_on_cpu(in.x, weight_of(in), in.bias) : few_rows_on_cpu(in);
  return in.gated ? swiglu(y) : y;
}

// Converts the whole weight: that costs less than the product of as many rows.
Tensor many_rows_on_gpu(const QuantisedLinear& in, const kernels::QuantisedLinearLaunchers& launchers) {
  const Tensor weight = at::empty(in.values.sizes(), in.x.options());
  require_ok(launchers.dequantise({in.values.const_data_ptr(), in.scales.const_data_ptr<float>(), weight.mutable_data_ptr(), weight.size(0),
                                   weight.size(1), kernel_dtype(in.x)},
                                  queue_of(in.x)));
  return in.gated ? linear_swiglu(in.x, weight, in.bias) : ops::linear(in.x, weight, in.bias);
}

Tensor forward_gpu(const QuantisedLinear& in) {
  check_operator(in);
  require(in.values.scalar_type() == at::kChar, kQuantisedOp, "int4 weights run on the CPU only");
  const auto* launchers = launchers_of<kernels::QuantisedLinearLaunchers>(in.x);
  require(launchers != nullptr, kQuantisedOp, "this program has no kernels for ", in.x.device());
  if (in.x.size(0) > kBatchInvariantRows) return many_rows_on_gpu(in, *launchers);
  const Tensor x = with_unit_columns(in.x), y = empty_result(in);
  const OptionalTensor bias = in.bias ? OptionalTensor(in.bias->contiguous()) : std::nullopt;
  require_ok(launchers->forward(quantised_linear_arguments({x, in.values, in.scales, bias, in.gated}, y), queue_of(x)));
  return y;
}

Tensor forward_reference(const QuantisedLinear& in) {
  check_operator(in);
  const QuantisedWeight weight = weight_of(in);
  const OptionalTensor offsets = in.bias ? OptionalTensor(in.bias->to(at::kDouble)) : std::nullopt;
  const Tensor y = at::linear(in.x.to(at::kDouble), dequantised(weight, 0, weight.out(), at::kDouble), offsets);
  return (in.gated ? swiglu_reference(y) : y).to(in.x.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<QuantisedLinear>(m)
      .reference<forward_reference>()
      .named_reference<forward_reference>()
      .meta<forward_meta>()
      .cpu<forward_cpu>()
      .on<on_gpu<QuantisedLinear, forward_gpu>>(c10::DispatchKey::CUDA)
      .without_gradient();
}

}  // namespace

QuantisedWeight quantise(const Tensor& weight, WeightForm form) {
  require(weight.is_cpu() && at::isFloatingType(weight.scalar_type()), kQuantisedOp, "weight must be floating and on the CPU");
  require_shape(kQuantisedOp, "weight", weight, {-1, -1});
  const int64_t out = weight.size(0), in = weight.size(1);
  require(can_quantise(form, in), kQuantisedOp, "int4 needs rows of a multiple of ", kGroup, " weights, got ", in);
  const Tensor wide = weight.detach().to(at::kFloat).contiguous();
  require(at::le(wide.abs(), kMostWeight).all().item<bool>(), kQuantisedOp, "weight must be finite, and at most ", kMostWeight);
  QuantisedWeight result{form, {}, {}};
  const float* const from = wide.const_data_ptr<float>();
  if (form == WeightForm::int8) {
    result.values = at::empty({out, in}, at::kChar), result.scales = at::empty({out}, at::kFloat);
    auto* const values = result.values.mutable_data_ptr<int8_t>();
    auto* const scales = result.scales.mutable_data_ptr<float>();
    at::parallel_for(0, out, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) quantise_row(from + row * in, in, values + row * in, scales + row);
    });
  } else {
    result.values = at::empty({out, in / 2}, at::kByte), result.scales = at::empty({out, in / kGroup}, at::kBFloat16);
    auto* const values = result.values.mutable_data_ptr<uint8_t>();
    auto* const scales = result.scales.mutable_data_ptr<c10::BFloat16>();
    at::parallel_for(0, out * (in / kGroup), 64, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group)
        quantise_group(from + group * kGroup, values + group * (kGroup / 2), scales + group);
    });
  }
  return result;
}

void check_quantised(const QuantisedWeight& weight) {
  const auto& [form, values, scales] = weight;
  const bool int8 = form == WeightForm::int8;
  require_on(kQuantisedOp, "scales", scales, values.device());
  require(values.scalar_type() == (int8 ? at::kChar : at::kByte), kQuantisedOp, "the weight's values have type ", values.scalar_type());
  require(scales.scalar_type() == (int8 ? at::kFloat : at::kBFloat16), kQuantisedOp, "the scales have type ", scales.scalar_type());
  require_shape(kQuantisedOp, "values", values, {-1, -1});
  require(can_quantise(form, weight.in()), kQuantisedOp, "int4 needs rows of a multiple of ", kGroup, " weights, got ", weight.in());
  require(values.is_contiguous() && scales.is_contiguous(), kQuantisedOp, "values and scales must be contiguous");
  if (int8) return require_shape(kQuantisedOp, "scales", scales, {weight.out()});
  require_shape(kQuantisedOp, "scales", scales, {weight.out(), weight.in() / kGroup});
}

Tensor dequantised(const QuantisedWeight& weight, int64_t first, int64_t count, at::ScalarType type) {
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor values = weight.values.narrow(0, first, count), scales = weight.scales.narrow(0, first, count).to(wide);
  if (weight.form == WeightForm::int8) return (values.to(wide) * scales.unsqueeze(1)).to(type);
  // Arithmetic shifts of signed bytes extend the nibbles' signs.
  const Tensor pairs = values.view(at::kChar).view({count, -1, kGroup / 2});
  const Tensor nibbles = at::cat({at::bitwise_right_shift(at::bitwise_left_shift(pairs, 4), 4), at::bitwise_right_shift(pairs, 4)}, 2);
  return (nibbles.to(wide) * scales.unsqueeze(2)).to(type).view({count, weight.in()});
}

kernels::QuantisedLinear quantised_linear_arguments(const QuantisedLinear& in, const Tensor& y) {
  const QuantisedWeight weight = weight_of(in);
  kernels::QuantisedLinear to;
  to.x = in.x.const_data_ptr();
  to.weight = weight.values.const_data_ptr(), to.scale = weight.scales.const_data_ptr();
  if (in.bias) to.bias = in.bias->const_data_ptr();
  to.y = y.mutable_data_ptr();
  to.rows = in.x.size(0), to.in = weight.in(), to.out = weight.out();
  to.x_stride = in.x.stride(0), to.y_stride = y.stride(0);
  to.form = weight.form, to.dtype = kernel_dtype(in.x), to.gated = in.gated;
  return to;
}

Tensor quantised_linear(const Tensor& x, const QuantisedWeight& weight, const OptionalTensor& bias) {
  return call(QuantisedLinear{x, weight.values, weight.scales, bias, false});
}
Tensor quantised_linear_swiglu(const Tensor& x, const QuantisedWeight& weight, const OptionalTensor& bias) {
  return call(QuantisedLinear{x, weight.values, weight.scales, bias, true});
}
Tensor quantised_linear_reference(const Tensor& x, const QuantisedWeight& weight, const OptionalTensor& bias) {
  return forward_reference(QuantisedLinear{x, weight.values, weight.scales, bias, false});
}

}  // namespace based::ops
