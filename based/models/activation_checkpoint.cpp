#include "based/models/activation_checkpoint.h"

namespace based {
namespace {

using Body = std::function<Tensor(const Tensor&)>;

// What autograd keeps between the passes.
struct Kept : torch::CustomClassHolder {
  explicit Kept(Body body_) : body(std::move(body_)) {}
  Body body;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const c10::intrusive_ptr<Kept>& kept) {
    context->save_for_backward({x});
    context->saved_data["kept"] = c10::IValue::make_capsule(kept);
    // With gradients, though nothing of their graph is kept: without them operators take other ways, that round differently.
    const at::AutoGradMode grad_mode(true);
    return kept->body(x.detach()).detach();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    const auto capsule = context->saved_data["kept"].toCapsule();
    Kept& kept = *static_cast<Kept*>(capsule.get());
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode grad_mode(true);
    const Tensor y = kept.body(x);
    torch::autograd::backward({y}, {gradients[0]});  // adds to the gradients of the body's parameters
    return {x.grad(), Tensor()};
  }
};

}  // namespace

Tensor recompute_in_backward(std::function<Tensor(const Tensor&)> body, const Tensor& x) {
  if (!torch::GradMode::is_enabled()) return body(x);
  return Recompute::apply(x, c10::make_intrusive<Kept>(std::move(body)));
}

}  // namespace based
