// Gradients that are operators themselves: the autograd function is derived from the names of their arguments and outputs.
#pragma once
#include "based/ops/framework/operator.h"

namespace based::ops {

namespace operators {

inline torch::autograd::variable_list listed(const Tensor& output) { return {output}; }
template <class... T>
torch::autograd::variable_list listed(const std::tuple<T...>& outputs) {
  return std::apply([](const auto&... output) { return torch::autograd::variable_list{output...}; }, outputs);
}

template <class Outputs>
Outputs unlisted(const torch::autograd::variable_list& list) {
  if constexpr (std::is_same_v<Outputs, Tensor>) {
    return list[0];
  } else {
    return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) { return Outputs{list[kIndex]...}; }
    (std::make_index_sequence<std::tuple_size_v<Outputs>>());
  }
}

}  // namespace operators

// The gradient of Forward by the operator Backward. An argument of Backward is the gradient of an output ("grad_y"), an argument of Forward
// ("x") or one of its outputs ("y"); its outputs are gradients of Forward's arguments ("grad_x"). The caller gets the first kOutputs of
// Forward's outputs; the others are saved for Backward only.
template <class Forward, class Backward, size_t kOutputs>
struct GradientByOperator : torch::autograd::Function<GradientByOperator<Forward, Backward, kOutputs>> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;
  static constexpr auto& kNames = Declared<Backward>::kNames;
  static constexpr const char* kSizes = "sizes of y";  // a key that no argument has

  static constexpr std::string_view without_grad(std::string_view name) {
    return name.starts_with("grad_") ? name.substr(5) : std::string_view{};
  }
  // The index of the argument of Forward whose gradient is Backward's output `at`.
  static constexpr int gradient_of(size_t at) { return Declared<Forward>::argument(without_grad(Declared<Backward>::kOutputs[at])); }
  // Whether Backward computes the gradient of an argument of Forward.
  static constexpr bool has_gradient(std::string_view argument) {
    for (const std::string_view output : Declared<Backward>::kOutputs)
      if (without_grad(output) == argument) return true;
    return false;
  }

  template <class... T>
  static Variables forward(Context* context, const T&... arguments) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Variables outputs = operators::listed(call(Forward{arguments...}));
    Variables saved(kNames.size());
    const auto keep = [&](std::string_view name, const auto& value) {
      for (size_t at = 0; at < kNames.size(); ++at) {
        if (kNames[at] != name) continue;
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Tensor>) {
          saved[at] = value;
        } else if constexpr (std::is_same_v<std::decay_t<decltype(value)>, OptionalTensor>) {
          saved[at] = value_or_undefined(value);
        } else {
          context->saved_data[std::string(name)] = value;
        }
      }
    };
    size_t at = 0;
    (keep(Declared<Forward>::kNames[at++], arguments), ...);
    for (size_t output = 0; output < outputs.size(); ++output) keep(Declared<Forward>::kOutputs[output], outputs[output]);
    context->save_for_backward(std::move(saved));
    context->saved_data[kSizes] = outputs[0].sizes();
    context->set_materialize_grads(false);
    outputs.resize(kOutputs);
    return outputs;
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Variables found = [&]<size_t... kAt>(std::index_sequence<kAt...>) {
      const Variables saved = context->get_saved_variables();
      const typename Dispatch<Backward>::Values values{value_of<kAt>(context, saved, grads)...};
      return operators::listed(std::apply([](const auto&... value) { return call(Backward{value...}); }, values));
    }
    (std::make_index_sequence<kNames.size()>());
    Variables gradients(Declared<Forward>::kArguments.size());
    for (size_t at = 0; at < found.size(); ++at) gradients[static_cast<size_t>(gradient_of(at))] = found[at];
    return gradients;
  }

 private:
  template <size_t kAt>
  static auto value_of(Context* context, const Variables& saved, const Variables& grads) {
    using Value = std::tuple_element_t<kAt, typename Dispatch<Backward>::Values>;
    constexpr std::string_view name = kNames[kAt];
    constexpr int output = Declared<Forward>::output(without_grad(name));
    static_assert(output < static_cast<int>(kOutputs));
    static_assert(output >= 0 || Declared<Forward>::argument(name) >= 0 || Declared<Forward>::output(name) >= 0,
                  "an argument of Backward must be \"grad_<output>\", or an argument or output of Forward");
    if constexpr (!operators::is_tensor<Value>) {
      return context->saved_data[std::string(name)].template to<Value>();
    } else {
      const Tensor& found = output >= 0 ? grads[static_cast<size_t>(output)] : saved[kAt];
      if constexpr (std::is_same_v<Value, OptionalTensor>) {
        return if_defined(found);
      } else {
        if (found.defined() || output != 0) return Tensor(found);
        const auto like = std::find_if(saved.begin(), saved.end(), [](const Tensor& tensor) { return tensor.defined(); });
        return at::zeros(context->saved_data[kSizes].toIntVector(), like->options());
      }
    }
  }
};

// The autograd function of Op, whose outputs are the first outputs of Forward (often Op itself): Backward computes its gradient. For types
// without a kernel, ATen differentiates `kReference`, if given.
template <class Op, class Forward, class Backward, Result<Op> (*kReference)(const Op&) = nullptr>
Result<Op> call_with_gradient(const Op& op) {
  using Gradient = GradientByOperator<Forward, Backward, Declared<Op>::kOutputs.size()>;
  bool wanted = false;
  if (at::GradMode::is_enabled())
    each_tensor(op, [&](std::string_view name, const Tensor& tensor) {
      wanted = wanted || (tensor.requires_grad() && Gradient::has_gradient(name));
    });
  if (!wanted) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return call(op);
  }
  if constexpr (kReference != nullptr) {
    const Tensor& first = std::get<0>(op.members());
    if (!has_kernel(first) && !first.is_meta()) return kReference(op);
  }
  const auto outputs = std::apply([](const auto&... members) { return Gradient::apply(members...); }, op.members());
  return operators::unlisted<Result<Op>>(outputs);
}

}  // namespace based::ops
