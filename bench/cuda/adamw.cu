#include "bench/cuda/adamw.cuh"

#include <cmath>
#include <numeric>

#include "based/kernels/adamw.h"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::Stream;
namespace gpu = kernels::cuda;

// Tensors one after another in one memory for each kind.
struct Parameters {
  DType gradient_dtype;
  std::vector<int64_t> counts;
  std::vector<float> step_values;  // one a tensor
  int64_t all;
  Buffer master, first, second, gradient, rounded, steps, numbers;  // numbers: rate, scale, usable
  std::vector<kernels::AdamwTensor> tensors;

  Parameters(DType dtype, std::vector<int64_t> sizes, const std::vector<float>& settings, bool start_at_zero)
      : gradient_dtype(dtype), counts(std::move(sizes)), all(std::accumulate(counts.begin(), counts.end(), int64_t{0})) {
    master = random_buffer(all, DType::f32, 1, 1), gradient = random_buffer(all, dtype, 0.3, 2);
    first = start_at_zero ? zeros(all * 4) : random_buffer(all, DType::f32, 0.1, 3);
    second = zeros(all * 4);
    if (!start_at_zero) {  // the gradient's squares are positive moments
      std::vector<float> squares(all);
      const std::vector<double> from = download(gradient.as(), dtype, all);
      for (int64_t i = 0; i < all; ++i) squares[i] = static_cast<float>(from[i] * from[i] + 0.01);
      second = upload_floats(squares);
    }
    rounded = Buffer(all * 2);
    for (size_t i = 0; i < counts.size(); ++i) step_values.push_back(static_cast<float>(i % 9 + 1));
    steps = upload_floats(step_values), numbers = upload_floats(settings);
    int64_t at = 0;
    for (size_t i = 0; i < counts.size(); at += counts[i++])
      tensors.push_back({master.as<float>() + at, rounded.as<char>() + at * 2, gradient.as<char>() + at * kernels::dtype_size(dtype),
                         first.as<float>() + at, second.as<float>() + at, steps.as<float>() + i, counts[i], dtype});
  }

  kernels::Adamw arguments() const {
    const auto* number = numbers.as<float>();
    return {tensors.data(), static_cast<int64_t>(tensors.size()), number, number + 1, number + 2, 0.9F, 0.95F, 1e-8F, 0.1F};
  }
};

// Odd sizes leave most tensors without alignment; the first ones have it, and there are more than a launch takes.
std::vector<int64_t> odd_sizes() {
  std::vector<int64_t> counts{8192, 16, 3 * 8192 + 16, 0, 8, 8193, 1, 20001};
  for (int64_t i = 0; i < 900; ++i) counts.push_back(i * 37 % 301);
  return counts;
}

void verify_update(Report& report, DType dtype, bool usable) {
  const float rate = 0.125F, scale = 0.75F;
  const Parameters p(dtype, odd_sizes(), {rate, scale, usable ? 1.0F : 0.0F}, false);
  std::vector<double> master = download(p.master.as(), DType::f32, p.all), first = download(p.first.as(), DType::f32, p.all),
                      second = download(p.second.as(), DType::f32, p.all), rounded = download(p.rounded.as(), DType::bf16, p.all);
  const std::vector<double> gradient = download(p.gradient.as(), dtype, p.all);
  const kernels::Adamw a = p.arguments();
  check(gpu::adamw(a, {}));
  check(cudaDeviceSynchronize(), "adamw");
  const double b1 = a.beta1, b2 = a.beta2;
  int64_t i = 0;
  for (size_t tensor = 0; usable && tensor < p.counts.size(); ++tensor) {
    const double t = p.step_values[tensor];
    for (const int64_t end = i + p.counts[tensor]; i < end; ++i) {
      const double g = scale * gradient[i];
      master[i] -= rate * a.decay * master[i];
      first[i] = b1 * first[i] + (1 - b1) * g, second[i] = b2 * second[i] + (1 - b2) * g * g;
      master[i] -= rate * (first[i] / (1 - std::pow(b1, t))) / (std::sqrt(second[i] / (1 - std::pow(b2, t))) + a.eps);
    }
  }
  const std::string name =
      std::string("adamw, gradients ") + (dtype == DType::bf16 ? "bf16" : "fp32") + (usable ? "" : ", not usable, no change");
  const double limit = usable ? 1e-6 : 0;
  const std::vector<double> found = download(p.master.as(), DType::f32, p.all);
  report.expect(name + ": master", relative_error(found, master), limit);
  report.expect(name + ": first moment", relative_error(download(p.first.as(), DType::f32, p.all), first), limit);
  report.expect(name + ": second moment", relative_error(download(p.second.as(), DType::f32, p.all), second), limit);
  const std::vector<double> half = download(p.rounded.as(), DType::bf16, p.all);
  int64_t wrong = 0;  // each the nearest bf16 to the master; never written where not usable: still the NaN it began as
  for (int64_t k = 0; k < p.all; ++k)
    wrong +=
        usable ? half[k] != static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(found[k])))) : !std::isnan(half[k]);
  report.expect(name + ": wrong in bf16", static_cast<double>(wrong), 0);
}

// The parameters of a model of 363M: an embedding, matrices of two sizes, norms.
std::vector<int64_t> model_sizes() {
  std::vector<int64_t> counts{50304 * 1024};
  for (int layer = 0; layer < 24; ++layer) {
    for (int i = 0; i < 4; ++i) counts.push_back(1024 * 1024);
    for (int i = 0; i < 2; ++i) counts.push_back(1024), counts.push_back(4096 * 1024);
  }
  for (int i = 0; i < 9; ++i) counts.push_back(1024 * 1024);
  return counts;
}

}  // namespace

void verify_adamw(Report& report) {
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const bool usable : {true, false}) verify_update(report, dtype, usable);
}

void time_adamw(Report& report) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Parameters p(dtype, model_sizes(), {1e-3F, 0.5F, 1.0F}, true);
    const std::string name = "adamw 363M, gradients " + std::string(dtype == DType::bf16 ? "bf16" : "fp32");
    report.time(name, p.all * (26 + kernels::dtype_size(dtype)), 1,
                [&](int, cudaStream_t stream) { check(gpu::adamw(p.arguments(), Stream{stream})); });
  }
}

}  // namespace based::bench
