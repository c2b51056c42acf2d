// Laws of every operator of torch.ops.based_cpp, over the dispatcher's own list: an operator whose test file adds no case fails.
#include <set>

#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace schema_test {

using namespace testing;
using Stack = torch::jit::Stack;

std::vector<SchemaCase> cases() {
  torch::manual_seed(31);
  std::vector<SchemaCase> all;
  for (const auto& [name, schema_cases] : DefineSchemaCases::all())
    for (SchemaCase& one : schema_cases()) all.push_back(std::move(one));
  return all;
}

c10::OperatorHandle find(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(operators::qualified(name).c_str(), "");
}

Stack call(const std::string& name, Stack stack) {
  find(name).callBoxed(stack);
  return stack;
}

Stack on_meta(const Stack& stack) {
  Stack result;
  for (const c10::IValue& value : stack) result.push_back(value.isTensor() ? c10::IValue(value.toTensor().to(at::kMeta)) : value);
  return result;
}

TEST(Schemas, EveryOperatorHasACase) {
  std::set<std::string> covered;
  for (const SchemaCase& c : cases()) covered.insert(c.name);
  int found = 0;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!op.name.starts_with(operators::kPrefix)) continue;
    const std::string name = op.name.substr(operators::kPrefix.size());
    ++found;
    // Plain references read the lengths of rows, so they have no shape function; the operators' tests compare with them.
    const bool reference = name.size() > 10 && name.rfind("_reference") == name.size() - 10;
    EXPECT_TRUE(reference || name == "taylor_attention_quadratic" || covered.count(name))
        << name << " has no schema case: add one to DefineSchemaCases of its file in tests/ops";
  }
  EXPECT_GE(found, static_cast<int>(covered.size()));
}

TEST(Schemas, ShapeFunctionsAgreeWithTheOperators) {
  const at::NoGradGuard no_grad;
  for (const SchemaCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const Stack real = call(c.name, c.arguments), shapes = call(c.name, on_meta(c.arguments));
    ASSERT_EQ(real.size(), shapes.size()) << c.name;
    for (size_t i = 0; i < real.size(); ++i) {
      const Tensor &a = real[i].toTensor(), &b = shapes[i].toTensor();
      ASSERT_EQ(a.defined(), b.defined()) << c.name << ", output " << i;
      if (!a.defined()) continue;
      EXPECT_TRUE(b.is_meta()) << c.name;
      EXPECT_EQ(a.sizes(), b.sizes()) << c.name << ", output " << i;
      EXPECT_EQ(a.strides(), b.strides()) << c.name << ", output " << i;
      EXPECT_EQ(a.scalar_type(), b.scalar_type()) << c.name << ", output " << i;
    }
  }
}

TEST(Schemas, OnlyDeclaredArgumentsChangeAndNoOutputSharesMemory) {
  const at::NoGradGuard no_grad;
  for (const SchemaCase& c : cases()) {
    Stack before;
    for (const c10::IValue& value : c.arguments) before.push_back(value.isTensor() ? c10::IValue(value.toTensor().clone()) : value);
    const Stack outputs = call(c.name, c.arguments);
    const c10::OperatorHandle op = find(c.name);
    const c10::FunctionSchema& schema = op.schema();
    for (size_t i = 0; i < before.size(); ++i) {
      if (!before[i].isTensor()) continue;
      const auto* alias = schema.arguments()[i].alias_info();
      EXPECT_EQ(at::equal(before[i].toTensor(), c.arguments[i].toTensor()), !(alias && alias->isWrite())) << c.name << ", argument " << i;
      for (const c10::IValue& output : outputs) {
        if (!output.toTensor().defined()) continue;
        EXPECT_NE(output.toTensor().storage().data(), c.arguments[i].toTensor().storage().data()) << c.name << ", argument " << i;
      }
    }
  }
}

TEST(Schemas, MetaTensorsKeepTheAutogradGraph) {
  for (const char* name : {"taylor_attention", "causal_attention", "linear_attention_pairs", "short_conv", "projected_conv", "rms_norm",
                           "rms_norm_add", "swiglu", "linear", "linear_swiglu", "gated_mlp", "cross_entropy", "dropout", "layer_norm",
                           "layer_norm_add", "layer_norm_add_twice"})
    for (const SchemaCase& c : cases()) {
      if (std::string(name) != c.name || c.arguments[0].isNone()) continue;
      Stack arguments = on_meta(c.arguments);
      arguments[0] = arguments[0].toTensor().requires_grad_();
      const Tensor y = call(name, arguments)[0].toTensor();
      ASSERT_TRUE(y.requires_grad()) << name;
      const Tensor gradient = torch::autograd::grad({y}, {arguments[0].toTensor()}, {at::empty_like(y)})[0];
      EXPECT_EQ(gradient.sizes(), arguments[0].toTensor().sizes()) << name;
    }
}

}  // namespace schema_test
}  // namespace based::ops
