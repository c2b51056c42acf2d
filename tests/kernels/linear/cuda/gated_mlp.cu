#include <algorithm>
#include <cmath>

#include "based/kernels/linear/gated_mlp.h"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

// Returns a·b [rows, columns], with a [rows, depth] and b [depth, columns] if columns_contiguous, else b stored as [columns, depth].
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, int64_t rows, int64_t columns, int64_t depth,
                            bool columns_contiguous) {
  std::vector<double> d(rows * columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += a[r * depth + k] * b[columns_contiguous ? k * columns + c : c * depth + k];
      d[r * columns + c] = sum;
    }
  }
  return d;
}

void verify(Report& report, int64_t rows, int64_t in, int64_t width) {
  const DType bf = DType::bf16;
  const std::string name = "gated_hidden " + std::to_string(rows) + "x" + std::to_string(in) + "x" + std::to_string(width);
  const double scale = 1 / std::sqrt(static_cast<double>(in));
  const Buffer x = random_buffer(rows * in, bf, 1, 1), weight = random_buffer(2 * width * in, bf, scale, 2);
  const Buffer h(rows * width * 4), y(rows * width * 2), alone(rows * width * 2), grad_h(rows * width * 4);
  kernels::GatedHidden p{x.as(), weight.as(), h.as(), y.as(), rows, in, width};
  if (!gpu::gated_hidden_supports(p)) return report.no_kernel(name);
  check(gpu::gated_hidden(p, {}));
  p.h = nullptr, p.y = alone.as();
  check(gpu::gated_hidden(p, {}));
  const std::vector<double> all_x = download(x.as(), bf, rows * in), all_h = download(h.as(), bf, rows * 2 * width);
  report.expect(name + ": h", relative_error(all_h, product(all_x, download(weight.as(), bf, 2 * width * in), rows, 2 * width, in, false)),
                4e-3);
  std::vector<double> exact(rows * width);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const double gate = all_h[(2 * r + 1) * width + c];
      exact[r * width + c] = all_h[2 * r * width + c] * gate * sigmoid(gate);
    }
  }
  report.expect(name + ": y", relative_error(download(y.as(), bf, rows * width), exact), 4e-3);
  report.expect(name + ": y without h", relative_error(download(alone.as(), bf, rows * width), download(y.as(), bf, rows * width)), 0);
  if (width % 256 != 0) return;
  // Reuses the weight's memory as the weight of the second layer, [in, width].
  check(gpu::gated_hidden_backward({x.as(), weight.as(), h.as(), grad_h.as(), rows, in, width}, {}));
  const std::vector<double> g = product(all_x, download(weight.as(), bf, in * width), rows, width, in, true);
  std::vector<double> gradient(rows * 2 * width);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const double u = all_h[2 * r * width + c], gate = all_h[(2 * r + 1) * width + c], s = sigmoid(gate), grad_y = g[r * width + c];
      gradient[2 * r * width + c] = grad_y * gate * s, gradient[(2 * r + 1) * width + c] = grad_y * u * (s + gate * s * (1 - s));
    }
  }
  report.expect(name + ": grad h", relative_error(download(grad_h.as(), bf, rows * 2 * width), gradient), 4e-3);
}

// Gates of large magnitude and NaN gates must affect only their own outputs.
void verify_extremes(Report& report) {
  const int64_t rows = 256, in = 64, width = 256;
  const float gates[] = {-1e30F, -200.0F, -60.0F, -43.5F, 60.0F, 1e30F, NAN};
  std::vector<float> weights(2 * width * in), ones(rows * in);
  for (int64_t r = 0; r < rows; ++r) ones[r * in] = 1;
  for (int64_t c = 0; c < width; ++c) weights[c * in] = 1, weights[(width + c) * in] = gates[c % 7];
  const auto rounded = [](const std::vector<float>& values) {
    std::vector<__nv_bfloat16> result(values.size());
    std::transform(values.begin(), values.end(), result.begin(), [](float v) { return __float2bfloat16(v); });
    Buffer memory(static_cast<int64_t>(result.size() * 2));
    check(cudaMemcpy(memory.as(), result.data(), result.size() * 2, cudaMemcpyHostToDevice), "copy");
    return memory;
  };
  const Buffer x = rounded(ones), weight = rounded(weights), y(rows * width * 2);
  const kernels::GatedHidden p{x.as(), weight.as(), nullptr, y.as(), rows, in, width};
  if (!gpu::gated_hidden_supports(p)) return report.no_kernel("gated_hidden, gates far out");
  check(gpu::gated_hidden(p, {}));
  const std::vector<double> found = download(y.as(), DType::bf16, rows * width);
  double worst = 0;
  for (int64_t i = 0; i < rows * width; ++i) {
    const int64_t gate = i % width % 7;
    if (gate == 6) {
      worst = std::isnan(found[i]) ? worst : 1;
      continue;
    }
    // For a gate of −1e30 the kernel's clamped sigmoid is 2e-19, not exp(−1e30), so its product with the gate is not compared.
    const double exact = gates[gate] * sigmoid(gates[gate]), error = std::abs(found[i] - exact) / std::max(1.0, std::abs(exact));
    if (gates[gate] > -1e3F) worst = std::max(worst, std::isnan(error) ? 1 : error);
  }
  report.expect("gated_hidden, gates far out", worst, 4e-3);
}

void verify_gated_mlp(Report& report) {
  verify(report, 130, 64, 256);
  verify(report, 300, 200, 256);
  verify(report, 1, 8, 128);
  verify(report, 700, 72, 640);
  verify(report, 257, 328, 512);
  verify_extremes(report);
}

const DefineFamily<Report> kGatedMlp("gated_mlp", verify_gated_mlp);

}  // namespace
}  // namespace based::tests
