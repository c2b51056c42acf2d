#include "based/ops/training/adamw.h"

#include "based/kernels/training/adamw.h"
#include "based/ops/framework/on_device.h"

namespace based::ops {
namespace {

constexpr const char* kAdamwOp = "adamw_";

void check_list(const char* name, const std::vector<Tensor>& list, const AdamwStep& step, bool has_masters_type) {
  require(list.size() == step.masters.size(), kAdamwOp, name, " must be as many as masters, ", step.masters.size(), ", got ", list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Tensor &tensor = list[i], &master = step.masters[i];
    require(tensor.sizes() == master.sizes(), kAdamwOp, name, '[', i, "] must have shape ", master.sizes(), ", got ", tensor.sizes());
    require(at::isFloatingType(tensor.scalar_type()), kAdamwOp, name, '[', i, "] must be floating, got ", tensor.scalar_type());
    require(!has_masters_type || tensor.scalar_type() == master.scalar_type(), kAdamwOp, name, '[', i, "] must be ", master.scalar_type(),
            ", got ", tensor.scalar_type());
  }
}

void check_number(const char* name, const Tensor& tensor) {
  require_shape(kAdamwOp, name, tensor, {});
  require(at::isFloatingType(tensor.scalar_type()), kAdamwOp, name, " must be floating, got ", tensor.scalar_type());
}

void check(const AdamwStep& step) {
  for (size_t i = 0; i < step.masters.size(); ++i) {
    const at::ScalarType type = step.masters[i].scalar_type();
    require(type == at::kFloat || type == at::kDouble, kAdamwOp, "masters[", i, "] must be Float or Double, got ", type);
  }
  check_list("rounded", step.rounded, step, false);
  check_list("gradients", step.gradients, step, false);
  check_list("first_moments", step.first_moments, step, true);
  check_list("second_moments", step.second_moments, step, true);
  require(step.steps.size() == step.masters.size(), kAdamwOp, "steps must be as many as masters, ", step.masters.size(), ", got ",
          step.steps.size());
  for (const Tensor& count : step.steps) {
    require_shape(kAdamwOp, "a tensor of steps", count, {});
    require_type(kAdamwOp, "a tensor of steps", count, at::kFloat);
  }
  check_number("rate", step.rate);
  if (step.scale) check_number("scale", *step.scale);
  if (step.update_enabled)
    check_number("update_enabled", *step.update_enabled), require_type(kAdamwOp, "update_enabled", *step.update_enabled, at::kFloat);
}

void check_devices(const AdamwStep& step) {
  const at::Device device = step.masters[0].device();
  const auto same = [&](const char* name, const std::vector<Tensor>& list) {
    for (const Tensor& tensor : list) require(tensor.device() == device, kAdamwOp, name, " must be on ", device, ", got ", tensor.device());
  };
  same("masters", step.masters), same("rounded", step.rounded), same("gradients", step.gradients), same("steps", step.steps);
  same("first_moments", step.first_moments), same("second_moments", step.second_moments);
  same("rate", {step.rate});
  if (step.scale) same("scale", {*step.scale});
  if (step.update_enabled) same("update_enabled", {*step.update_enabled});
}

bool is_rounded(const AdamwStep& step, size_t i) { return !step.rounded[i].is_same(step.masters[i]); }

// Whether the elements of both are stored in the same order, without gaps.
bool same_order(const Tensor& a, const Tensor& b) {
  return (a.is_contiguous() && b.is_contiguous()) || (a.is_non_overlapping_and_dense() && a.strides() == b.strides());
}

// The gradients in the masters' types and order, which the fused update assumes.
std::vector<Tensor> as_masters(const AdamwStep& step) {
  std::vector<Tensor> gradients = step.gradients, copies, sources;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].scalar_type() == step.masters[i].scalar_type() && same_order(gradients[i], step.masters[i])) continue;
    sources.push_back(gradients[i]);
    copies.push_back(at::empty_like(step.masters[i]));
    gradients[i] = copies.back();
  }
  if (!copies.empty()) at::_foreach_copy_(copies, sources);
  return gradients;
}

void count_step(const AdamwStep& step) {
  step.update_enabled ? at::_foreach_add_(step.steps, *step.update_enabled) : at::_foreach_add_(step.steps, 1);
}

void run_reference(const AdamwStep& step) {
  check(step);
  if (step.masters.empty()) return;
  check_devices(step);
  std::vector<Tensor> gradients = as_masters(step), rounded, masters;
  // A product with 1 changes no bit. The host can read the factor only where it is on the CPU.
  const bool unscaled = !step.scale || (step.scale->is_cpu() && step.scale->item<double>() == 1);
  if (!unscaled) gradients = at::_foreach_mul(gradients, step.scale->to(step.masters[0].scalar_type()));
  count_step(step);
  const OptionalTensor skip_update = step.update_enabled ? OptionalTensor(1 - *step.update_enabled) : std::nullopt;
  at::_fused_adamw_(step.masters, gradients, step.first_moments, step.second_moments, {}, step.steps, step.rate, step.beta1, step.beta2,
                    step.decay, step.eps, false, false, /*grad_scale=*/{}, /*found_inf=*/skip_update);
  for (size_t i = 0; i < step.masters.size(); ++i)
    if (is_rounded(step, i)) rounded.push_back(step.rounded[i]), masters.push_back(step.masters[i]);
  if (!rounded.empty()) at::_foreach_copy_(rounded, masters);
}

// Whether kernels support these tensors.
bool supports(const AdamwStep& step) {
  const auto is = [](const Tensor& tensor, at::ScalarType type) { return tensor.scalar_type() == type; };
  if (!is(step.rate, at::kFloat) || (step.scale && !is(*step.scale, at::kFloat))) return false;
  for (size_t i = 0; i < step.masters.size(); ++i) {
    const Tensor& master = step.masters[i];
    if (!is(master, at::kFloat) || !has_kernel(step.gradients[i]) || (is_rounded(step, i) && !is(step.rounded[i], at::kBFloat16)))
      return false;
    for (const auto* list : {&step.rounded, &step.gradients, &step.first_moments, &step.second_moments})
      if (!same_order((*list)[i], master)) return false;
  }
  return true;
}

void run_meta(const AdamwStep& step) { check(step); }

void run_autograd(const AdamwStep& step) {
  for (const auto* list : {&step.masters, &step.rounded, &step.gradients, &step.first_moments, &step.second_moments})
    for (const Tensor& tensor : *list) require_no_gradient(kAdamwOp, {tensor});
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    adamw_(step);
  }
  // So that a backward which saved a parameter reports the change.
  for (const auto* list : {&step.masters, &step.rounded})
    for (const Tensor& tensor : *list)
      if (!tensor.is_inference()) torch::autograd::impl::bump_version(tensor);
}

// By the device's kernel, or by ATen's fused update where the kernel does not support the tensors.
void run(const AdamwStep& step) {
  check(step);
  if (step.masters.empty()) return;
  check_devices(step);
  const auto* table = launchers_for<kernels::AdamwLaunchers>(kAdamwOp, step.masters[0], supports(step));
  if (table == nullptr) return run_reference(step);
  count_step(step);
  std::vector<kernels::AdamwTensor> tensors;
  for (size_t i = 0; i < step.masters.size(); ++i) {
    kernels::AdamwTensor to;
    to.master = step.masters[i].mutable_data_ptr<float>();
    to.rounded = is_rounded(step, i) ? step.rounded[i].mutable_data_ptr() : nullptr;
    to.gradient = step.gradients[i].const_data_ptr();
    to.first_moment = step.first_moments[i].mutable_data_ptr<float>();
    to.second_moment = step.second_moments[i].mutable_data_ptr<float>();
    to.step = step.steps[i].const_data_ptr<float>();
    to.count = step.masters[i].numel();
    to.gradient_dtype = kernel_dtype(step.gradients[i]);
    tensors.push_back(to);
  }
  kernels::Adamw to;
  to.tensors = tensors.data(), to.tensor_count = static_cast<int64_t>(tensors.size());
  to.rate = step.rate.const_data_ptr<float>();
  to.scale = step.scale ? step.scale->const_data_ptr<float>() : nullptr;
  to.update_enabled = step.update_enabled ? step.update_enabled->const_data_ptr<float>() : nullptr;
  to.beta1 = static_cast<float>(step.beta1), to.beta2 = static_cast<float>(step.beta2);
  to.eps = static_cast<float>(step.eps), to.decay = static_cast<float>(step.decay);
  require_ok(table->update(to, queue_of(step.masters[0])));
}

void run_on_gpu(const AdamwStep& step) {
  if (step.masters.empty()) return;
  const c10::Device device = step.masters[0].device();
  require_on(kAdamwOp, "rate", step.rate, device);
  if (step.scale) require_on(kAdamwOp, "scale", *step.scale, device);
  if (step.update_enabled) require_on(kAdamwOp, "update_enabled", *step.update_enabled, device);
  const c10::DeviceGuard guard(device);
  warn_of_missing_code();
  run(step);
}

// The operator as the dispatcher calls it.
template <void (*kRun)(const AdamwStep&)>
void adamw_unpacked(at::TensorList masters, at::TensorList rounded, at::TensorList gradients, at::TensorList first_moments,
                    at::TensorList second_moments, at::TensorList steps, const Tensor& rate, const OptionalTensor& scale,
                    const OptionalTensor& update_enabled, double beta1, double beta2, double eps, double decay) {
  kRun({masters.vec(), rounded.vec(), gradients.vec(), first_moments.vec(), second_moments.vec(), steps.vec(), rate, scale, update_enabled,
        beta1, beta2, eps, decay});
}

}  // namespace

void adamw_(const AdamwStep& step) {
  static const auto op = find_operator<decltype(adamw_unpacked<run_reference>)>("adamw_");
  op.call(step.masters, step.rounded, step.gradients, step.first_moments, step.second_moments, step.steps, step.rate, step.scale,
          step.update_enabled, step.beta1, step.beta2, step.eps, step.decay);
}

namespace {

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  m.def(
      "adamw_(Tensor(a!)[] masters, Tensor(b!)[] rounded, Tensor[] gradients, Tensor(c!)[] first_moments, Tensor(d!)[] second_moments, "
      "Tensor(e!)[] steps, Tensor rate, Tensor? scale, Tensor? update_enabled, float beta1, float beta2, float eps, float decay) -> ()");
}

TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, CompositeExplicitAutograd, m) { m.impl("adamw_", adamw_unpacked<run_reference>); }
TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, CUDA, m) { m.impl("adamw_", adamw_unpacked<run_on_gpu>); }
TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, Meta, m) { m.impl("adamw_", adamw_unpacked<run_meta>); }
TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, Autograd, m) { m.impl("adamw_", adamw_unpacked<run_autograd>); }

}  // namespace
}  // namespace based::ops
