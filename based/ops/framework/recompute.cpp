#include "based/ops/framework/recompute.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace based::ops {

std::vector<Tensor> gradients_by_autograd(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function,
                                          const std::vector<Tensor>& inputs, const std::vector<Tensor>& grad_outputs) {
  // Inside an operator the autograd keys are excluded; this function needs them.
  auto keys = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard guard(
      keys.included_, keys.excluded_ - c10::autograd_dispatch_keyset - c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView));
  const at::AutoGradMode grad_mode(true);
  std::vector<Tensor> leaves, wanted;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.defined() ? input.detach().requires_grad_() : Tensor());
    if (input.defined()) wanted.push_back(leaves.back());
  }
  std::vector<Tensor> outputs, cotangents;
  const std::vector<Tensor> all = function(leaves);
  for (size_t i = 0; i < all.size(); ++i)
    if (grad_outputs[i].defined() && all[i].requires_grad()) {
      outputs.push_back(all[i]);
      cotangents.push_back(grad_outputs[i]);
    }
  std::vector<Tensor> found(wanted.size());
  if (!outputs.empty()) found = torch::autograd::grad(outputs, wanted, cotangents, std::nullopt, false, /*allow_unused=*/true);
  std::vector<Tensor> gradients;
  size_t next = 0;
  for (const Tensor& input : inputs) {
    if (!input.defined()) {
      gradients.emplace_back();
      continue;
    }
    const Tensor& gradient = found[next++];
    gradients.push_back(gradient.defined() ? gradient : at::zeros_like(input));
  }
  return gradients;
}

}  // namespace based::ops
