#include "based/eval/selftest.h"

#include <c10/core/DeviceGuard.h>

#include <chrono>

#include "based/eval/selftest_models.h"
#include "based/eval/selftest_operators.h"
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/device_code.h"
#include "based/runtime/card.h"

namespace based {
namespace {

using kernels::cpu::Isa;
using Report = std::function<void(const SelfTestResult&)>;

void check(SelfTestResult result, const std::function<double()>& measure, const Report& report) {
  try {
    result.error = measure();
    result.pass = result.error <= result.tolerance;
  } catch (const std::exception& error) {
    result.message = error.what();
  }
  report(result);
}

// Returns the seconds that the checks took.
double check_operators(torch::Device device, const std::string& where, const Report& report) {
  const auto start = std::chrono::steady_clock::now();
  torch::manual_seed(20);
  for (const OperatorCheck& one : operator_checks())
    for (const auto type : {torch::kFloat32, torch::kBFloat16})
      check(
          {one.name, where + (type == torch::kFloat32 ? " fp32" : " bf16"), 0, type == torch::kFloat32 ? 1e-4 : 3e-2, false, ""},
          [&] { return operator_error(one, device, type); }, report);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::optional<GpuKernels> gpu_kernels_of(torch::Device device) {
  const kernels::DeviceLaunchers* table = kernels::launchers<kernels::DeviceLaunchers>(kernels::Device::cuda);
  if (device.is_cpu() || table == nullptr) return std::nullopt;
  const c10::DeviceGuard guard(device);
  const kernels::Gpu gpu = table->current_gpu();
  return GpuKernels{runtime::card_name(device), gpu.runs_hopper_code, gpu.block_shared_bytes, table->compiles_at_start()};
}

SelfTestSummary run_selftest(torch::Device device, const Report& report) {
  SelfTestSummary summary;
  const Report count = [&](const SelfTestResult& result) {
    ++(result.pass ? summary.passed : summary.failed);
    report(result);
  };
  if (device.is_cpu()) {
    const Isa best = kernels::cpu::best_isa();
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16})
      if (kernels::cpu::set_isa(isa)) check_operators(device, isa_name(isa), count);
    kernels::cpu::set_isa(best);
  } else {
    const std::optional<GpuKernels> gpu = gpu_kernels_of(device);
    const bool compiles = gpu && gpu->compiles_at_start;
    const double first = compiles ? check_operators(device, device.str(), [](const SelfTestResult&) {}) : 0;
    const double later = check_operators(device, device.str(), count);
    if (compiles) summary.compile_seconds = first - later;
  }
  for (const ModelCheck& one : model_checks(device)) check({one.mixer, one.variant, 0, one.tolerance, false, ""}, one.measure, count);
  return summary;
}

}  // namespace based
