#include <cmath>

#include "bench/kernels/training/problems/adamw.cuh"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

// With odd sizes most tensors are not aligned, but the first ones are. There are more tensors than a launch can have.
std::vector<int64_t> odd_sizes() {
  std::vector<int64_t> counts{8192, 16, 3 * 8192 + 16, 0, 8, 8193, 1, 20001};
  for (int64_t i = 0; i < 900; ++i) counts.push_back(i * 37 % 301);
  return counts;
}

void verify_update(Report& report, DType dtype, bool update_enabled) {
  const float rate = 0.125F, scale = 0.75F;
  const AdamwParameters p(dtype, odd_sizes(), {rate, scale, update_enabled ? 1.0F : 0.0F}, false);
  std::vector<double> master = download(p.master.as(), DType::f32, p.all), first = download(p.first.as(), DType::f32, p.all),
                      second = download(p.second.as(), DType::f32, p.all), rounded = download(p.rounded.as(), DType::bf16, p.all);
  const std::vector<double> gradient = download(p.gradient.as(), dtype, p.all);
  const kernels::Adamw a = p.arguments();
  check(gpu::adamw(a, {}));
  check(cudaDeviceSynchronize(), "adamw");
  const double b1 = a.beta1, b2 = a.beta2;
  int64_t i = 0;
  for (size_t tensor = 0; update_enabled && tensor < p.counts.size(); ++tensor) {
    const double t = p.step_values[tensor];
    for (const int64_t end = i + p.counts[tensor]; i < end; ++i) {
      const double g = scale * gradient[i];
      master[i] -= rate * a.decay * master[i];
      first[i] = b1 * first[i] + (1 - b1) * g, second[i] = b2 * second[i] + (1 - b2) * g * g;
      master[i] -= rate * (first[i] / (1 - std::pow(b1, t))) / (std::sqrt(second[i] / (1 - std::pow(b2, t))) + a.eps);
    }
  }
  const std::string name =
      std::string("adamw, gradients ") + (dtype == DType::bf16 ? "bf16" : "fp32") + (update_enabled ? "" : ", update disabled, no change");
  const double limit = update_enabled ? 1e-6 : 0;
  const std::vector<double> found = download(p.master.as(), DType::f32, p.all);
  report.expect(name + ": master", relative_error(found, master), limit);
  report.expect(name + ": first moment", relative_error(download(p.first.as(), DType::f32, p.all), first), limit);
  report.expect(name + ": second moment", relative_error(download(p.second.as(), DType::f32, p.all), second), limit);
  const std::vector<double> half = download(p.rounded.as(), DType::bf16, p.all);
  int64_t wrong = 0;  // each must be the bf16 nearest to the master or, without an update, the NaN of its initial value
  for (int64_t k = 0; k < p.all; ++k)
    wrong += update_enabled ? half[k] != static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(found[k]))))
                            : !std::isnan(half[k]);
  report.expect(name + ": wrong in bf16", static_cast<double>(wrong), 0);
}

void verify_adamw(Report& report) {
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const bool update_enabled : {true, false}) verify_update(report, dtype, update_enabled);
}

const DefineFamily<Report> kAdamw("adamw", verify_adamw);

}  // namespace
}  // namespace based::tests
