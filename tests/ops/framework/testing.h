// Shared by the operators' tests: random cases, relative errors, a gradient check by finite differences, NaN-filled fresh memory.
#pragma once
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "based/core/error.h"
#include "based/ops/framework/arguments.h"
#include "based/runtime/torch.h"

namespace based::ops::testing {

using torch::Tensor;

// While an object exists, uninitialised memory from ATen is filled with NaN (integers: their largest value).
class NanFilledMemory {
 public:
  NanFilledMemory() { set(true); }
  ~NanFilledMemory() { set(false); }
  NanFilledMemory(const NanFilledMemory&) = delete;
  NanFilledMemory& operator=(const NanFilledMemory&) = delete;

 private:
  static void set(bool on) {
    at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(on);
  }
};

// The devices of tests. A suite with a device parameter runs on each device, and is skipped on a GPU if there is none.
inline const std::vector<at::DeviceType> kDevices{at::kCPU, at::kCUDA};
#define BASED_NEEDS(device) \
  if ((device) == at::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device"

class OnEveryDevice : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override { BASED_NEEDS(GetParam()); }
};
inline std::string device_name(const ::testing::TestParamInfo<at::DeviceType>& info) { return info.param == at::kCPU ? "cpu" : "cuda"; }
// The name of a test with parameters from Combine(cases, devices).
template <class Case>
std::string case_and_device(const ::testing::TestParamInfo<std::tuple<Case, at::DeviceType>>& info) {
  return std::to_string(info.index / kDevices.size()) + (std::get<1>(info.param) == at::kCPU ? "_cpu" : "_cuda");
}
#define BASED_ON_EVERY_DEVICE(suite)     \
  class suite : public OnEveryDevice {}; \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::testing::ValuesIn(kDevices), device_name)

inline Tensor random(at::IntArrayRef sizes, at::ScalarType type = at::kDouble, double scale = 1) {
  return (torch::randn(sizes, at::kDouble) * scale).to(type);
}

// int64 offsets of rows of these lengths.
inline Tensor offsets(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> starts{0};
  for (const int64_t length : lengths) starts.push_back(starts.back() + length);
  return torch::tensor(starts, at::kLong);
}

// Largest absolute difference divided by the largest absolute entry of `expected`, or by `floor` if that is larger (for expected zeros
// there is only rounding); infinite if an entry of either is not finite.
inline double relative_error(const Tensor& actual, const Tensor& expected, double floor = 1e-3) {
  if (actual.sizes() != expected.sizes()) return INFINITY;
  if (actual.numel() == 0) return 0;
  const Tensor a = actual.detach().cpu().to(at::kDouble), b = expected.detach().cpu().to(at::kDouble);
  if (!a.isfinite().all().item<bool>() || !b.isfinite().all().item<bool>()) return INFINITY;
  const double scale = b.abs().max().item<double>();
  return (a - b).abs().max().item<double>() / std::max(scale, floor);
}

inline ::testing::AssertionResult close(const Tensor& actual, const Tensor& expected, double tolerance, double floor = 1e-3) {
  const double error = relative_error(actual, expected, floor);
  if (error <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "relative error " << error << " > " << tolerance << ", sizes " << actual.sizes() << " and "
                                       << expected.sizes();
}

inline ::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() == b.scalar_type() && at::equal(a, b)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "differ by " << (a - b).abs().max().item<double>();
}

using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// Wraps `function` so that it runs on another device: copies inputs to the device and outputs back; both copies are differentiable.
inline Function on_device(Function function, at::DeviceType device) {
  return [function = std::move(function), device](const std::vector<Tensor>& inputs) {
    std::vector<Tensor> there, back;
    for (const Tensor& input : inputs) there.push_back(input.to(device));
    for (const Tensor& output : function(there)) back.push_back(output.cpu());
    return back;
  };
}

// Cotangents for `outputs`, drawn once a case.
inline std::vector<Tensor> random_like(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> result;
  for (const Tensor& output : outputs) result.push_back(random(output.sizes(), output.scalar_type()));
  return result;
}

// Gradients of Σ outputs·cotangents by autograd, with `inputs` as leaves.
inline std::vector<Tensor> gradients(const Function& function, const std::vector<Tensor>& inputs, const std::vector<Tensor>& cotangents) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
  std::vector<Tensor> outputs, cotangents_of_outputs;
  const std::vector<Tensor> all = function(leaves);
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].requires_grad()) {  // an output of no tokens may depend on nothing
      outputs.push_back(all[i]);
      cotangents_of_outputs.push_back(cotangents[i]);
    }
  std::vector<Tensor> result(leaves.size());
  if (!outputs.empty()) result = torch::autograd::grad(outputs, leaves, cotangents_of_outputs, std::nullopt, false, /*allow_unused=*/true);
  for (size_t i = 0; i < leaves.size(); ++i)
    if (!result[i].defined()) result[i] = at::zeros_like(inputs[i]);
  return result;
}

// Central differences in double for every entry of every input against autograd.
inline ::testing::AssertionResult gradcheck(const Function& function, const std::vector<Tensor>& inputs, double tolerance = 1e-6) {
  const std::vector<Tensor> cotangents = random_like(function(inputs));
  const std::vector<Tensor> analytic = gradients(function, inputs, cotangents);
  const auto value = [&](const std::vector<Tensor>& at_inputs) {
    double sum = 0;
    const std::vector<Tensor> outputs = function(at_inputs);
    for (size_t i = 0; i < outputs.size(); ++i) sum += (outputs[i] * cotangents[i]).sum().item<double>();
    return sum;
  };
  constexpr double kStep = 1e-5;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensor> moved = inputs;
    moved[i] = inputs[i].clone();
    Tensor numeric = at::empty_like(moved[i]);
    for (int64_t entry = 0; entry < moved[i].numel(); ++entry) {
      double& x = moved[i].data_ptr<double>()[entry];
      const double original = x;
      x = original + kStep;
      const double above = value(moved);
      x = original - kStep;
      const double below = value(moved);
      x = original;
      numeric.data_ptr<double>()[entry] = (above - below) / (2 * kStep);
    }
    const ::testing::AssertionResult result = close(analytic[i], numeric, tolerance);
    if (!result) return ::testing::AssertionFailure() << "input " << i << ": " << result.message();
  }
  return ::testing::AssertionSuccess();
}

// Functions that the operators' test files register under names, from namespace scope.
template <class Function>
class Define {
 public:
  Define(const char* name, Function function) {
    const bool is_new = registered().emplace(name, function).second;
    BASED_ASSERT(is_new);
  }
  static const std::map<std::string, Function>& all() { return registered(); }

 private:
  static std::map<std::string, Function>& registered() {
    static std::map<std::string, Function> functions;
    return functions;
  }
};

// Arguments of an operator in the order of its schema. schema_test.cpp checks the operator's shape function and schema with them.
struct SchemaCase {
  const char* name;
  torch::jit::Stack arguments;
};
using DefineSchemaCases = Define<std::vector<SchemaCase> (*)()>;

// Calls of operators, which device tests record in graphs and run on two streams and on a second GPU: a function makes their arguments on a
// device and returns the calls. These run without gradients, more than once, and return all outputs and copies of the written tensors.
using Calls = std::function<std::vector<Tensor>()>;
using DefineCalls = Define<Calls (*)(at::Device)>;

// The names of this library's operators that are called during `call`, without their namespace.
inline std::set<std::string> operators_called_by(const std::function<void()>& call) {
  static std::set<std::string> called;
  called.clear();
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
                                   const std::string name = function.name();
                                   if (name.starts_with(operators::kPrefix)) called.insert(name.substr(operators::kPrefix.size()));
                                   return nullptr;
                                 }).scopes({at::RecordScope::FUNCTION}));
  call();
  at::removeCallback(handle);
  return called;
}

// `operation` on a device in fp32 and bf16 against `reference` in double, values and gradients; errors are relative to at least `floor`.
inline void expect_like_reference(at::DeviceType device, const Function& operation, const Function& reference,
                                  const std::vector<Tensor>& inputs, double floor = 1e-3) {
  const Function op = on_device(operation, device);
  const NanFilledMemory nan_filled;
  std::vector<Tensor> exact;  // what bf16 can represent
  for (const Tensor& t : inputs) exact.push_back(t.to(at::kBFloat16).to(at::kDouble));
  const auto expected = reference(exact);
  const std::vector<Tensor> cotangents = random_like(expected);
  const auto expected_gradients = gradients(reference, exact, cotangents);
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
    std::vector<Tensor> typed;
    for (const Tensor& t : exact) typed.push_back(t.to(type));
    const auto actual = op(typed);
    std::vector<Tensor> typed_cotangents;
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(close(actual[i], expected[i], tolerance)) << type << ", output " << i << " of " << inputs[0].sizes();
      typed_cotangents.push_back(cotangents[i].to(actual[i].scalar_type()));
    }
    const auto actual_gradients = gradients(op, typed, typed_cotangents);
    for (size_t i = 0; i < inputs.size(); ++i)
      EXPECT_TRUE(close(actual_gradients[i], expected_gradients[i], tolerance, floor))
          << type << ", gradient " << i << " of " << inputs[0].sizes();
  }
}

// The operators that callers use by name, without their forward and backward parts and references.
inline std::vector<std::string> operators_called_by_name() {
  std::vector<std::string> names;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!op.name.starts_with(operators::kPrefix)) continue;
    const std::string name = op.name.substr(operators::kPrefix.size());
    const auto ends = [&](const char* suffix) { return name.ends_with(suffix); };
    if (ends("_forward") || ends("_backward") || ends("_backward_") || ends("_reference") || ends("_quadratic") || ends("_features"))
      continue;
    names.push_back(name);
  }
  return names;
}

// Inputs of schema cases: two rows of lengths 3 and 2, five slots, fp32.
inline Tensor two_rows() { return offsets({3, 2}); }
inline Tensor five_slots() { return torch::tensor({2, 0, 4, 1, 3}, at::kLong); }
inline Tensor small_random(at::IntArrayRef sizes) { return random(sizes, at::kFloat, 0.5); }

// The message of the Error that `call` throws, or "" where it throws none.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace based::ops::testing
