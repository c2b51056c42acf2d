// Shared by the operators' tests: random cases, relative errors, a gradient check by finite differences, NaN-filled fresh memory.
#pragma once
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "based/core/error.h"
#include "based/ops/torch.h"

namespace based::ops::testing {

using torch::Tensor;

// While one lives, memory that ATen hands out uninitialised is filled with NaN (integers: their largest value).
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

// What a test runs on: a suite with a device among its parameters runs once on each, and skips, saying so, where there is none.
inline const std::vector<at::DeviceType> kDevices{at::kCPU, at::kCUDA};
#define BASED_NEEDS(device) \
  if ((device) == at::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device"

class OnEveryDevice : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override { BASED_NEEDS(GetParam()); }
};
inline std::string device_name(const ::testing::TestParamInfo<at::DeviceType>& info) { return info.param == at::kCPU ? "cpu" : "cuda"; }
// Of Combine(cases, devices).
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

// Largest absolute difference over the largest absolute entry of `expected`, or over `floor` where that is larger (where the truth is 0,
// rounding is all there is); infinite where either is not finite.
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

// `function` on another device: inputs go there, outputs come back; gradients flow both ways.
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

// Arguments of an operator in the order of its schema, by which schema_test.cpp checks its shape function and what its schema declares. An
// operator's test file has schema_cases_of_<name>(), and schema_cases.def the name.
struct SchemaCase {
  const char* name;
  torch::jit::Stack arguments;
};

// The operators of ours that a call comes to, without "based::".
inline std::set<std::string> operators_called_by(const std::function<void()>& call) {
  static std::set<std::string> called;
  called.clear();
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& of) -> std::unique_ptr<at::ObserverContext> {
                                   const std::string name = of.name();
                                   if (name.starts_with("based::")) called.insert(name.substr(7));
                                   return nullptr;
                                 }).scopes({at::RecordScope::FUNCTION}));
  call();
  at::removeCallback(handle);
  return called;
}

// Operators whose gradients, parts and references are called by others: those that somebody calls by name.
inline std::vector<std::string> operators_called_by_name() {
  std::vector<std::string> names;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!op.name.starts_with("based::")) continue;
    const std::string name = op.name.substr(7);
    const auto ends = [&](const char* suffix) { return name.ends_with(suffix); };
    if (ends("_forward") || ends("_backward") || ends("_backward_") || ends("_reference") || ends("_quadratic") || ends("_features"))
      continue;
    names.push_back(name);
  }
  return names;
}

// Two rows of lengths 3 and 2, five slots, fp32: what the cases are made of.
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
