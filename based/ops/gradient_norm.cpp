#include "based/ops/gradient_norm.h"

#include "based/ops/arguments.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "gradient_norm";

void check(const GradientNormOf& of) {
  for (size_t i = 0; i < of.gradients.size(); ++i) {
    const at::ScalarType type = of.gradients[i].scalar_type();
    require(at::isFloatingType(type), kOp, "gradients[", i, "] must be floating, got ", type);
  }
  require_shape(kOp, "loss", of.loss, {});
  const at::ScalarType type = of.loss.scalar_type();
  require(type == at::kFloat || type == at::kDouble, kOp, "loss must be Float or Double, got ", type);
  if (of.enabled) require_shape(kOp, "enabled", *of.enabled, {}), require_type(kOp, "enabled", *of.enabled, at::kFloat);
  require(of.clip >= 0, kOp, "clip must be at least 0, got ", of.clip);
}

void check_devices(const GradientNormOf& of) {
  const at::Device device = of.loss.device();
  for (const Tensor& gradient : of.gradients)
    require(gradient.device() == device, kOp, "gradients must be on ", device, ", where loss is, got ", gradient.device());
  if (of.enabled) require(of.enabled->device() == device, kOp, "enabled must be on ", device, ", got ", of.enabled->device());
}

at::ScalarType scale_type(const GradientNormOf& of) { return of.gradients.empty() ? at::kFloat : sum_type(of.gradients[0]); }

// What the norm is taken of: 16-bit gradients, whose squares are summed in fp32, and the others.
Tensor norm_of(const std::vector<Tensor>& gradients, const Tensor& loss) {
  if (gradients.empty()) return at::zeros({}, loss.options().dtype(at::kDouble));
  std::vector<Tensor> narrow, wide, norms;
  for (const Tensor& gradient : gradients) (gradient.element_size() == 2 ? narrow : wide).push_back(gradient);
  if (!narrow.empty()) narrow = at::_foreach_norm(narrow, 2, at::kFloat);
  if (!wide.empty()) wide = at::_foreach_norm(wide, 2);
  size_t of_narrow = 0, of_wide = 0;
  for (const Tensor& gradient : gradients) norms.push_back(gradient.element_size() == 2 ? narrow[of_narrow++] : wide[of_wide++]);
  return at::stack(norms).norm().to(at::kDouble);
}

GradientNorm run_reference(const GradientNormOf& of) {
  check(of), check_devices(of);
  const Tensor norm = norm_of(of.gradients, of.loss), figures = at::stack({of.loss.to(at::kDouble), norm});
  const Tensor usable = figures.isfinite().all().to(at::kFloat);
  // A factor also where it is 1, which changes no bit: whether it is, the host does not know.
  const Tensor scale = of.clip > 0 ? (of.clip / (norm + 1e-6)).masked_fill(norm <= of.clip, 1.0) : at::ones_like(norm);
  return {figures, of.enabled ? usable * *of.enabled : usable, scale.to(scale_type(of))};
}

GradientNorm empty_results(const GradientNormOf& of) {
  const auto options = of.loss.options();
  return {at::empty({2}, options.dtype(at::kDouble)), at::empty({}, options.dtype(at::kFloat)),
          at::empty({}, options.dtype(scale_type(of)))};
}

GradientNorm run_meta(const GradientNormOf& of) {
  check(of);
  return empty_results(of);
}

GradientNorm run_autograd(const GradientNormOf& of) {
  bool wanted = wants_gradient({of.loss});
  for (const Tensor& gradient : of.gradients) wanted = wanted || wants_gradient({gradient});
  require(!wanted, kOp, "has no gradient; turn gradients off around it");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return gradient_norm(of);
}

}  // namespace

GradientNorm gradient_norm_with(const GradientNormKernel& kernel, const GradientNormOf& of) {
  check(of), check_devices(of);
  bool taken = true;
  for (const Tensor& gradient : of.gradients) taken = taken && has_kernel(gradient);
  if (!uses_kernel(kOp, of.gradients.empty() ? of.loss.to(at::kFloat) : of.gradients[0], taken)) return run_reference(of);
  std::vector<Tensor> dense;  // the order of a tensor's elements does not matter, gaps do
  std::vector<kernels::GradientNormTensor> tensors;
  for (const Tensor& gradient : of.gradients) {
    dense.push_back(gradient.is_non_overlapping_and_dense() ? gradient : gradient.contiguous());
    tensors.push_back({dense.back().const_data_ptr(), gradient.numel(), kernel_dtype(gradient)});
  }
  const GradientNorm result = empty_results(of);
  kernels::GradientNorm to;
  to.tensors = tensors.data(), to.tensor_count = static_cast<int64_t>(tensors.size());
  if (of.loss.scalar_type() == at::kFloat)
    to.loss = of.loss.const_data_ptr<float>();
  else
    to.wide_loss = of.loss.const_data_ptr<double>();
  to.enabled = of.enabled ? of.enabled->const_data_ptr<float>() : nullptr;
  to.clip = of.clip;
  to.figures = result.figures.mutable_data_ptr<double>();
  to.usable = result.usable.mutable_data_ptr<float>();
  to.scale = result.scale.mutable_data_ptr<float>();
  const Tensor scratch = scratch_memory(kernel.scratch(to), of.loss);
  require_ok(kernel.run(to, scratch.mutable_data_ptr()));
  return result;
}

GradientNorm gradient_norm(const GradientNormOf& of) {
  static const auto op = find_operator<decltype(gradient_norm_unpacked<run_reference>)>("based::gradient_norm");
  const auto [figures, usable, scale] = op.call(of.gradients, of.loss, of.enabled, of.clip);
  return {figures, usable, scale};
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def("gradient_norm(Tensor[] gradients, Tensor loss, Tensor? enabled, float clip) -> (Tensor figures, Tensor usable, Tensor scale)");
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) { m.impl("gradient_norm", gradient_norm_unpacked<run_reference>); }
TORCH_LIBRARY_IMPL(based, Meta, m) { m.impl("gradient_norm", gradient_norm_unpacked<run_meta>); }
TORCH_LIBRARY_IMPL(based, Autograd, m) { m.impl("gradient_norm", gradient_norm_unpacked<run_autograd>); }

}  // namespace
}  // namespace based::ops
