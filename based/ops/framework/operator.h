// An operator is a struct: its members are the arguments, in the schema's order, and BASED_OPERATOR names them once. The schema, the
// functions that the dispatcher calls and the calls through the dispatcher are derived from it.
//   struct Foo {
//     const Tensor& x;
//     const OptionalTensor& bias;
//     const Tensor& state;
//     BASED_OPERATOR("foo -> y", x, bias, written(state))
//   };
// Members are references for tensors, values for int64_t, double and bool. A trailing OptionalTensor may be left out by Python.
#pragma once
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "based/ops/framework/arguments.h"
#include "based/runtime/torch.h"

// "name -> outputs": no output, or names separated by commas. Arguments: members, written(member), or_else(member, default for Python).
#define BASED_OPERATOR(name_and_outputs, ...)                     \
  static constexpr std::string_view kDeclared = name_and_outputs; \
  static constexpr std::string_view kArguments = #__VA_ARGS__;    \
  auto members() const { return std::tie(__VA_ARGS__); }

namespace based::ops {

template <class T>
constexpr const T& written(const T& member) {
  return member;
}
template <class T, class Default>
constexpr const T& or_else(const T& member, const Default&) {
  return member;
}

namespace operators {

constexpr std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// The number of parts of a list with commas; commas in parentheses do not count.
constexpr size_t count_parts(std::string_view list) {
  size_t parts = trimmed(list).empty() ? 0 : 1, depth = 0;
  for (const char c : list) {
    if (c == '(') ++depth;
    if (c == ')') --depth;
    if (c == ',' && depth == 0) ++parts;
  }
  return parts;
}

template <size_t kParts>
constexpr std::array<std::string_view, kParts> split(std::string_view list) {
  std::array<std::string_view, kParts> parts{};
  size_t part = 0, begin = 0, depth = 0;
  for (size_t at = 0; at <= list.size() && part < kParts; ++at) {
    if (at < list.size() && list[at] == '(') ++depth;
    if (at < list.size() && list[at] == ')') --depth;
    if (at < list.size() && (list[at] != ',' || depth > 0)) continue;
    parts[part++] = trimmed(list.substr(begin, at - begin));
    begin = at + 1;
  }
  return parts;
}

// "written(forward.x)" -> "x"
constexpr std::string_view name_of(std::string_view argument) {
  if (const size_t open = argument.find('('); open != argument.npos) {
    argument.remove_prefix(open + 1);
    argument = trimmed(argument.substr(0, argument.find_first_of(",)")));
  }
  const size_t point = argument.rfind('.');
  return point == argument.npos ? argument : argument.substr(point + 1);
}

template <size_t kArguments>
constexpr auto names_of(std::array<std::string_view, kArguments> arguments) {
  for (std::string_view& argument : arguments) argument = name_of(argument);
  return arguments;
}

template <size_t... kIndex>
std::tuple<decltype(static_cast<void>(kIndex), Tensor())...> tensors_of(std::index_sequence<kIndex...>);

template <size_t kOutputs>
struct Result {
  using Type = decltype(tensors_of(std::make_index_sequence<kOutputs>()));
};
template <>
struct Result<1> {
  using Type = Tensor;
};
template <>
struct Result<0> {
  using Type = void;
};

template <class T>
constexpr bool is_tensor = std::is_same_v<T, Tensor> || std::is_same_v<T, OptionalTensor>;
template <class T>
using Passed = std::conditional_t<is_tensor<T>, const T&, T>;  // the parameter type in the dispatcher

}  // namespace operators

// The parts of an operator's declaration.
template <class Op>
struct Declared {
  static constexpr size_t kArrow = Op::kDeclared.find("->");
  static_assert(kArrow != std::string_view::npos, "an operator is declared as \"name -> outputs\"");
  static constexpr std::string_view kName = operators::trimmed(Op::kDeclared.substr(0, kArrow));
  static constexpr std::string_view kOutputList = operators::trimmed(Op::kDeclared.substr(kArrow + 2));
  static constexpr auto kOutputs = operators::split<operators::count_parts(kOutputList)>(kOutputList);
  static constexpr auto kArguments = operators::split<operators::count_parts(Op::kArguments)>(Op::kArguments);
  static constexpr auto kNames = operators::names_of(kArguments);

  // The index of an argument, or -1.
  static constexpr int argument(std::string_view name) {
    for (size_t i = 0; i < kNames.size(); ++i)
      if (kNames[i] == name) return static_cast<int>(i);
    return -1;
  }
  static constexpr int output(std::string_view name) {
    for (size_t i = 0; i < kOutputs.size(); ++i)
      if (kOutputs[i] == name) return static_cast<int>(i);
    return -1;
  }
};

template <class Op>
using Result = typename operators::Result<Declared<Op>::kOutputs.size()>::Type;

template <class Op, class Members = decltype(std::declval<const Op&>().members())>
struct Dispatch;
template <class Op, class... T>
struct Dispatch<Op, std::tuple<const T&...>> {
  using Values = std::tuple<T...>;
  using Signature = Result<Op>(operators::Passed<T>...);

  // A function of the struct with the dispatcher's signature.
  template <auto kFunction>
  static Result<Op> unboxed(operators::Passed<T>... arguments) {
    return kFunction(Op{arguments...});
  }
};

// `visit(name, tensor)` for each argument that is a tensor and is given.
template <class Op, class Visitor>
void each_tensor(const Op& op, Visitor&& visit) {
  size_t at = 0;
  const auto one = [&](const auto& member) {
    const std::string_view name = Declared<Op>::kNames[at++];
    if constexpr (std::is_same_v<std::decay_t<decltype(member)>, Tensor>) {
      if (member.defined()) visit(name, member);
    } else if constexpr (std::is_same_v<std::decay_t<decltype(member)>, OptionalTensor>) {
      if (member && member->defined()) visit(name, *member);
    }
  };
  std::apply([&](const auto&... members) { (one(members), ...); }, op.members());
}

// The operator's name, null-terminated.
template <class Op>
const char* op_name() {
  static const std::string name(Declared<Op>::kName);
  return name.c_str();
}

// Calls the operator through the dispatcher.
template <class Op>
Result<Op> call(const Op& op) {
  static const auto handle = find_operator<typename Dispatch<Op>::Signature>(Declared<Op>::kName);
  return std::apply([](const auto&... members) { return handle.call(members...); }, op.members());
}

namespace operators {

enum class Kind { tensor, optional_tensor, integer, number, flag };
template <class T>
constexpr Kind kind_of() {
  if constexpr (std::is_same_v<T, Tensor>) return Kind::tensor;
  if constexpr (std::is_same_v<T, OptionalTensor>) return Kind::optional_tensor;
  if constexpr (std::is_same_v<T, int64_t>) return Kind::integer;
  if constexpr (std::is_same_v<T, double>) return Kind::number;
  static_assert(is_tensor<T> || std::is_same_v<T, int64_t> || std::is_same_v<T, double> || std::is_same_v<T, bool>, "not an argument");
  return Kind::flag;
}
template <class Values>
struct Kinds;
template <class... T>
struct Kinds<std::tuple<T...>> {
  static constexpr std::array<Kind, sizeof...(T)> kAll{kind_of<T>()...};
};

// Written tensors get aliases a, b, … in order; trailing optional tensors are None where they are not given.
std::string schema_text(std::string_view name, std::string_view suffix, std::span<const std::string_view> arguments,
                        std::span<const Kind> kinds, std::span<const std::string_view> outputs);

}  // namespace operators

// The schema, under the operator's name with `suffix`.
template <class Op>
std::string schema(std::string_view suffix = "") {
  using Kinds = operators::Kinds<typename Dispatch<Op>::Values>;
  static_assert(Kinds::kAll.size() == Declared<Op>::kArguments.size());
  return operators::schema_text(Declared<Op>::kName, suffix, Declared<Op>::kArguments, Kinds::kAll, Declared<Op>::kOutputs);
}

// For operators that have no gradient: throws Error where one is wanted.
template <class Op>
void refuse_gradient(const Op& op) {
  if (at::GradMode::is_enabled())
    each_tensor(op, [](std::string_view, const Tensor& tensor) { require_no_gradient(op_name<Op>(), {tensor}); });
}
template <class Op>
Result<Op> call_without_gradient(const Op& op) {
  refuse_gradient(op);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call(op);
}

template <class Op, Result<Op> (*kFunction)(const Op&)>
Result<Op> on_gpu(const Op& op);  // on_device.h

// A function of `in.inputs`, as a function of an operator that has no other arguments: FooForward has those of Foo.
template <class Op, Result<Op> (*kFunction)(const decltype(Op::inputs)&)>
Result<Op> on_inputs(const Op& in) {
  return kFunction(in.inputs);
}

// Registers an operator's schema and its functions, each under a dispatch key: define<Foo>(m).reference<f>().meta<g>()… Each function takes
// the struct.
template <class Op>
class Definition {
 public:
  explicit Definition(torch::Library& library) : library_(library) { library.def(schema<Op>().c_str()); }

  template <Result<Op> (*kFunction)(const Op&)>
  const Definition& on(c10::DispatchKey key) const {
    library_.impl(op_name<Op>(), torch::dispatch(key, &Dispatch<Op>::template unboxed<kFunction>));
    return *this;
  }
  // For every device without a function of its own.
  template <Result<Op> (*kFunction)(const Op&)>
  const Definition& reference() const {
    return on<kFunction>(c10::DispatchKey::CompositeExplicitAutograd);
  }
  // The same for a function that calls differentiable operators only, so that autograd differentiates through it.
  template <Result<Op> (*kFunction)(const Op&)>
  const Definition& composite() const {
    return on<kFunction>(c10::DispatchKey::CompositeImplicitAutograd);
  }
  template <Result<Op> (*kFunction)(const Op&)>
  const Definition& meta() const {
    return on<kFunction>(c10::DispatchKey::Meta);
  }
  template <Result<Op> (*kFunction)(const Op&)>
  const Definition& cpu() const {
    return on<kFunction>(c10::DispatchKey::CPU);
  }
  // For the CPU and for GPUs: a function that looks up the launchers of its arguments' device (on_device.h).
  template <Result<Op> (*kFunction)(const Op&)>
  const Definition& kernel() const {
    return on<kFunction>(c10::DispatchKey::CPU).template on<on_gpu<Op, kFunction>>(c10::DispatchKey::CUDA);
  }
  template <Result<Op> (*kFunction)(const Op&)>
  const Definition& autograd() const {
    return on<kFunction>(c10::DispatchKey::Autograd);
  }
  const Definition& without_gradient() const { return autograd<call_without_gradient<Op>>(); }
  // Registers the operator "<name>_reference" too, for comparisons.
  template <Result<Op> (*kFunction)(const Op&)>
  const Definition& named_reference() const {
    library_.def(schema<Op>("_reference").c_str(), &Dispatch<Op>::template unboxed<kFunction>);
    return *this;
  }

 private:
  torch::Library& library_;
};

template <class Op>
Definition<Op> define(torch::Library& library) {
  return Definition<Op>(library);
}

}  // namespace based::ops
