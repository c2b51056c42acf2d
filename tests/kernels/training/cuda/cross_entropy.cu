#include "based/kernels/training/cross_entropy.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

void verify_cross_entropy(Report& report, int64_t rows, int64_t vocab, DType dtype) {
  const int64_t count = rows * vocab;
  const double scale = 0.25;
  const Buffer logits = random_buffer(count, dtype, 3, 1);
  std::vector<int64_t> labels;
  for (int64_t r = 0; r < rows; ++r) labels.push_back(r == 0 ? vocab - 1 : r * 7919 % vocab);
  const std::vector<double> x = download(logits.as(), dtype, count);
  std::vector<double> losses, gradient(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = x.data() + r * vocab;
    const double top = *std::max_element(row, row + vocab);
    double sum = 0;
    for (int64_t w = 0; w < vocab; ++w) sum += std::exp(row[w] - top);
    losses.push_back(std::log(sum) + top - row[labels[r]]);
    for (int64_t w = 0; w < vocab; ++w) gradient[r * vocab + w] = (std::exp(row[w] - top) / sum - (w == labels[r] ? 1 : 0)) * scale;
  }
  const Buffer label = upload(labels), loss(rows * 4), again(rows * 4);
  kernels::CrossEntropy p;
  p.logits = logits.as(), p.label = label.as<int64_t>(), p.loss = loss.as<float>();
  p.rows = rows, p.vocab = vocab, p.scale = static_cast<float>(scale), p.dtype = dtype;
  check(gpu::cross_entropy(p, {}));
  const std::string name = "cross_entropy " + std::to_string(rows) + "x" + std::to_string(vocab) + type_name(dtype);
  p.gradient = true, p.loss = again.as<float>();
  if (dtype == DType::f32) {
    const Buffer half(count * 2);
    p.half_gradient = half.as();
    check(gpu::cross_entropy(p, {}));
    std::vector<__half> found(count);
    check(cudaMemcpy(found.data(), half.as(), count * 2, cudaMemcpyDeviceToHost), "gradient in fp16");
    std::vector<double> values;
    for (const __half x : found) values.push_back(__half2float(x));
    report.expect(name + ": gradient in fp16", relative_error(values, gradient), 5e-4);
    report.expect(name + ": loss beside it", relative_error(download(again.as(), DType::f32, rows), losses), 2e-6);
    report.expect(name + ": logits beside it", relative_error(download(logits.as(), dtype, count), x), 0);
    p.half_gradient = nullptr;
  }
  check(gpu::cross_entropy(p, {}));
  report.expect(name + ": loss alone", relative_error(download(loss.as(), DType::f32, rows), losses), 2e-6);
  report.expect(name + ": loss", relative_error(download(again.as(), DType::f32, rows), losses), 2e-6);
  report.expect(name + ": gradient", relative_error(download(logits.as(), dtype, count), gradient), allowed(dtype));
}

// Rows that fit into shared memory, rows that are too long for it, and rows of odd lengths.
void verify_cross_entropy(Report& report) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    verify_cross_entropy(report, 37, 8192, dtype);
    verify_cross_entropy(report, 3, 60000, dtype);
    verify_cross_entropy(report, 9, 1009, dtype);
  }
}

const DefineFamily<Report> kCrossEntropy("cross_entropy", verify_cross_entropy);

}  // namespace
}  // namespace based::tests
