#include "based/ops/training/gradient_norm.h"

#include <algorithm>

#include "based/kernels/training/gradient_norm.h"
#include "based/ops/framework/on_device.h"

namespace based::ops {
namespace {

constexpr const char* kGradientNormOp = "gradient_norm";

void check(const GradientNormOf& in) {
  for (size_t i = 0; i < in.gradients.size(); ++i) {
    const at::ScalarType type = in.gradients[i].scalar_type();
    require(at::isFloatingType(type), kGradientNormOp, "gradients[", i, "] must be floating, got ", type);
  }
  require_shape(kGradientNormOp, "loss", in.loss, {});
  const at::ScalarType type = in.loss.scalar_type();
  require(type == at::kFloat || type == at::kDouble, kGradientNormOp, "loss must be Float or Double, got ", type);
  if (in.enabled)
    require_shape(kGradientNormOp, "enabled", *in.enabled, {}), require_type(kGradientNormOp, "enabled", *in.enabled, at::kFloat);
  require(in.clip >= 0, kGradientNormOp, "clip must be at least 0, got ", in.clip);
}

void check_devices(const GradientNormOf& in) {
  const at::Device device = in.loss.device();
  for (const Tensor& gradient : in.gradients)
    require(gradient.device() == device, kGradientNormOp, "gradients must be on ", device, ", where loss is, got ", gradient.device());
  if (in.enabled) require(in.enabled->device() == device, kGradientNormOp, "enabled must be on ", device, ", got ", in.enabled->device());
}

at::ScalarType scale_type(const GradientNormOf& in) { return in.gradients.empty() ? at::kFloat : sum_type(in.gradients[0]); }

// The 2-norm over all gradients; the squares of 16-bit gradients are summed in fp32.
Tensor norm_of(const std::vector<Tensor>& gradients, const Tensor& loss) {
  if (gradients.empty()) return at::zeros({}, loss.options().dtype(at::kDouble));
  std::vector<Tensor> narrow, wide, norms;
  for (const Tensor& gradient : gradients) (gradient.element_size() == 2 ? narrow : wide).push_back(gradient);
  if (!narrow.empty()) narrow = at::_foreach_norm(narrow, 2, at::kFloat);
  if (!wide.empty()) wide = at::_foreach_norm(wide, 2);
  size_t next_narrow = 0, next_wide = 0;
  for (const Tensor& gradient : gradients) norms.push_back(gradient.element_size() == 2 ? narrow[next_narrow++] : wide[next_wide++]);
  return at::stack(norms).norm().to(at::kDouble);
}

GradientNorm gradient_norm_by_aten(const GradientNormOf& in) {
  check(in), check_devices(in);
  const Tensor norm = norm_of(in.gradients, in.loss), loss_and_norm = at::stack({in.loss.to(at::kDouble), norm});
  const Tensor update_enabled = loss_and_norm.isfinite().all().to(at::kFloat);
  // The factor is given also where it is 1 and changes no bit: the host does not know its value.
  const Tensor scale = in.clip > 0 ? (in.clip / (norm + 1e-6)).masked_fill(norm <= in.clip, 1.0) : at::ones_like(norm);
  return {loss_and_norm, in.enabled ? update_enabled * *in.enabled : update_enabled, scale.to(scale_type(in))};
}

GradientNorm empty_results(const GradientNormOf& in) {
  const auto options = in.loss.options();
  return {at::empty({2}, options.dtype(at::kDouble)), at::empty({}, options.dtype(at::kFloat)),
          at::empty({}, options.dtype(scale_type(in)))};
}

GradientNorm run_meta(const GradientNormOf& in) {
  check(in);
  return empty_results(in);
}

GradientNorm run_autograd(const GradientNormOf& in) {
  bool wanted = wants_gradient({in.loss});
  for (const Tensor& gradient : in.gradients) wanted = wanted || wants_gradient({gradient});
  require(!wanted, kGradientNormOp, "has no gradient; turn gradients off around it");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return gradient_norm(in);
}

// By the device's kernel, or by ATen where the kernel does not support the tensors.
GradientNorm run(const GradientNormOf& in) {
  check(in), check_devices(in);
  const bool supported = std::all_of(in.gradients.begin(), in.gradients.end(), has_kernel<Tensor>);
  const auto* table = launchers_for<kernels::GradientNormLaunchers>(
      kGradientNormOp, in.gradients.empty() ? in.loss.to(at::kFloat) : in.gradients[0], supported);
  if (table == nullptr) return gradient_norm_by_aten(in);
  std::vector<Tensor> dense;  // without gaps between elements; their order does not matter
  std::vector<kernels::GradientNormTensor> tensors;
  for (const Tensor& gradient : in.gradients) {
    dense.push_back(gradient.is_non_overlapping_and_dense() ? gradient : gradient.contiguous());
    tensors.push_back({dense.back().const_data_ptr(), gradient.numel(), kernel_dtype(gradient)});
  }
  const GradientNorm result = empty_results(in);
  kernels::GradientNorm to;
  to.tensors = tensors.data(), to.tensor_count = static_cast<int64_t>(tensors.size());
  if (in.loss.scalar_type() == at::kFloat)
    to.loss = in.loss.const_data_ptr<float>();
  else
    to.loss_f64 = in.loss.const_data_ptr<double>();
  to.enabled = in.enabled ? in.enabled->const_data_ptr<float>() : nullptr;
  to.clip = in.clip;
  to.loss_and_norm = result.loss_and_norm.mutable_data_ptr<double>();
  to.update_enabled = result.update_enabled.mutable_data_ptr<float>();
  to.scale = result.scale.mutable_data_ptr<float>();
  const Tensor scratch = scratch_memory(table->scratch(to), in.loss);
  require_ok(table->norm(to, scratch.mutable_data_ptr(), queue_of(in.loss)));
  return result;
}

GradientNorm run_on_gpu(const GradientNormOf& in) {
  require(in.loss.is_cuda(), kGradientNormOp, "loss must be on a GPU as other arguments are, got ", in.loss.device());
  const c10::DeviceGuard guard(in.loss.device());
  warn_of_missing_code();
  return run(in);
}

// The operator as the dispatcher calls it.
template <GradientNorm (*kRun)(const GradientNormOf&)>
std::tuple<Tensor, Tensor, Tensor> gradient_norm_unpacked(at::TensorList gradients, const Tensor& loss, const OptionalTensor& enabled,
                                                          double clip) {
  const auto [loss_and_norm, update_enabled, scale] = kRun({gradients.vec(), loss, enabled, clip});
  return {loss_and_norm, update_enabled, scale};
}

}  // namespace

GradientNorm gradient_norm(const GradientNormOf& in) {
  static const auto op = find_operator<decltype(gradient_norm_unpacked<gradient_norm_by_aten>)>("gradient_norm");
  const auto [loss_and_norm, update_enabled, scale] = op.call(in.gradients, in.loss, in.enabled, in.clip);
  return {loss_and_norm, update_enabled, scale};
}

namespace {

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  m.def(
      "gradient_norm(Tensor[] gradients, Tensor loss, Tensor? enabled, float clip) -> (Tensor loss_and_norm, Tensor update_enabled, Tensor "
      "scale)");
}

TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, CompositeExplicitAutograd, m) {
  m.impl("gradient_norm", gradient_norm_unpacked<gradient_norm_by_aten>);
}
TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, CUDA, m) { m.impl("gradient_norm", gradient_norm_unpacked<run_on_gpu>); }
TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, Meta, m) { m.impl("gradient_norm", gradient_norm_unpacked<run_meta>); }
TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, Autograd, m) { m.impl("gradient_norm", gradient_norm_unpacked<run_autograd>); }

}  // namespace
}  // namespace based::ops
