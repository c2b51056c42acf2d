#include "based/kernels/training/gradient_norm.h"

#include <limits>

#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

constexpr double kClip = 2.5;

// With odd sizes most tensors are not aligned. Both types are mixed, and there are more tensors than a launch can have.
std::vector<int64_t> odd_sizes() {
  std::vector<int64_t> counts{4096, 16, 3 * 4096 + 16, 0, 8, 4097, 1, 200001};
  for (int64_t i = 0; i < 700; ++i) counts.push_back(i * 37 % 301);
  return counts;
}

struct Gradients {
  std::vector<Buffer> memory;
  std::vector<kernels::GradientNormTensor> tensors;
  double norm = 0;

  Gradients(const std::vector<int64_t>& counts, double scale) {
    double squares = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const DType dtype = i % 3 == 1 ? DType::bf16 : DType::f32;
      const int64_t odd = i % 5 == 4 ? 1 : 0;
      memory.push_back(random_buffer(counts[i] + odd, dtype, scale, i + 1));
      const char* from = memory.back().as<char>() + odd * kernels::dtype_size(dtype);
      tensors.push_back({from, counts[i], dtype});
      if (counts[i] == 0) continue;
      for (const double x : download(from, dtype, counts[i])) squares += x * x;
    }
    norm = std::sqrt(squares);
  }
};

struct Found {
  double loss, norm, update_enabled, scale;
};

Found run(const std::vector<kernels::GradientNormTensor>& tensors, double loss, bool wide, const float* enabled, double clip) {
  const Buffer narrow_loss = upload_floats({static_cast<float>(loss)}), loss_f64(8), loss_and_norm(16), numbers(8);
  check(cudaMemcpy(loss_f64.as(), &loss, 8, cudaMemcpyHostToDevice), "loss");
  kernels::GradientNorm p;
  p.tensors = tensors.data(), p.tensor_count = static_cast<int64_t>(tensors.size());
  p.loss = wide ? nullptr : narrow_loss.as<float>();
  p.loss_f64 = wide ? loss_f64.as<double>() : nullptr;
  p.enabled = enabled, p.clip = clip;
  p.loss_and_norm = loss_and_norm.as<double>(), p.update_enabled = numbers.as<float>(), p.scale = numbers.as<float>() + 1;
  const Buffer scratch(gpu::gradient_norm_scratch(p));
  check(gpu::gradient_norm(p, scratch.as(), {}));
  check(cudaDeviceSynchronize(), "gradient_norm");
  double host[2];
  check(cudaMemcpy(host, loss_and_norm.as(), 16, cudaMemcpyDeviceToHost), "loss_and_norm");
  const std::vector<double> others = download(numbers.as(), DType::f32, 2);
  return {host[0], host[1], others[0], others[1]};
}

void verify_gradient_norm(Report& report) {
  const auto expect = [&](const std::string& name, double found, double wanted, double limit) {
    report.expect("gradient_norm: " + name, std::abs(found - wanted) / std::max(std::abs(wanted), 1e-30), limit);
  };
  const Buffer off = upload_floats({0}), on = upload_floats({1});
  const Gradients large(odd_sizes(), 0.3), small({4096, 5}, 1e-3);
  const Found first = run(large.tensors, 0.75, false, nullptr, kClip);
  expect("loss", first.loss, 0.75, 0), expect("norm", first.norm, large.norm, 1e-6), expect("update_enabled", first.update_enabled, 1, 0);
  expect("scale", first.scale, kClip / (large.norm + 1e-6), 1e-6);
  const Found again = run(large.tensors, 1.0 / 3, true, on.as<float>(), kClip);
  expect("loss in double", again.loss, 1.0 / 3, 0), expect("norm again", again.norm, first.norm, 0),
      expect("enabled", again.update_enabled, 1, 0);
  expect("not enabled", run(large.tensors, 1, false, off.as<float>(), kClip).update_enabled, 0, 0);
  const Found below = run(small.tensors, 1, false, nullptr, kClip);
  expect("a small norm", below.norm, small.norm, 1e-6), expect("its scale", below.scale, 1, 0);
  expect("scale without clip", run(large.tensors, 1, false, nullptr, 0).scale, 1, 0);
  const Found none = run({}, 2, false, nullptr, kClip);
  expect("norm of none", none.norm, 0, 0), expect("update_enabled without gradients", none.update_enabled, 1, 0);
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double loss : {infinite, std::nan("")})
    expect("update_enabled, a loss not finite", run(large.tensors, loss, true, nullptr, kClip).update_enabled, 0, 0);
  const Gradients wrong({4097, 300}, 0.3);
  const Buffer bad = upload_floats({static_cast<float>(std::nan(""))});
  std::vector<kernels::GradientNormTensor> tensors = wrong.tensors;
  tensors.push_back({bad.as(), 1, DType::f32});
  const Found nan = run(tensors, 1, false, on.as<float>(), kClip);
  report.expect("gradient_norm: a gradient not a number", std::isnan(nan.norm) && nan.update_enabled == 0 ? 0 : 1, 0);
}

const DefineFamily<Report> kGradientNorm("gradient_norm", verify_gradient_norm);

}  // namespace
}  // namespace based::tests
