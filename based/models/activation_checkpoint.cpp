#include "based/models/activation_checkpoint.h"

namespace based {
namespace {

using Body = std::function<Tensor(const Tensor&)>;

// The function that autograd stores between the forward and the backward pass.
struct SavedBody : torch::CustomClassHolder {
  explicit SavedBody(Body body_) : body(std::move(body_)) {}
  Body body;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const c10::intrusive_ptr<SavedBody>& saved) {
    context->save_for_backward({x});
    context->saved_data["body"] = c10::IValue::make_capsule(saved);
    // Gradients are on, although the graph is discarded: with gradients off, operators use other kernels, which round differently.
    const at::AutoGradMode grad_mode(true);
    return saved->body(x.detach()).detach();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    const auto capsule = context->saved_data["body"].toCapsule();
    SavedBody& saved = *static_cast<SavedBody*>(capsule.get());
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode grad_mode(true);
    const Tensor y = saved.body(x);
    torch::autograd::backward({y}, {gradients[0]});  // adds to the gradients of the body's parameters
    return {x.grad(), Tensor()};
  }
};

}  // namespace

Tensor recompute_in_backward(std::function<Tensor(const Tensor&)> body, const Tensor& x) {
  if (!torch::GradMode::is_enabled()) return body(x);
  return Recompute::apply(x, c10::make_intrusive<SavedBody>(std::move(body)));
}

}  // namespace based
