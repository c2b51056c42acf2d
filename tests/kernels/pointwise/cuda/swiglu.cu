#include "based/kernels/pointwise/swiglu.h"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

void verify_swiglu(Report& report, int64_t rows, int64_t width, DType dtype) {
  const Buffer h = random_buffer(rows * 2 * width, dtype, 2, 1), g = random_buffer(rows * width, dtype, 1, 2);
  Buffer y(rows * width * 4), gh(rows * width * 8);
  const kernels::Swiglu p{h.as(), y.as(), rows, width, dtype};
  check(gpu::swiglu_forward(p, {}));
  check(gpu::swiglu_backward({p, g.as(), gh.as()}, {}));
  const auto hh = download(h.as(), dtype, rows * 2 * width), hg = download(g.as(), dtype, rows * width);
  std::vector<double> out(rows * width), grad(hh.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const int64_t at = r * 2 * width + c, i = r * width + c;
      const double a = hh[at], b = hh[at + width], s = sigmoid(b);
      out[i] = a * b * s, grad[at] = hg[i] * b * s, grad[at + width] = hg[i] * a * s * (1 + b * (1 - s));
    }
  }
  const std::string name = "swiglu " + std::to_string(rows) + "x" + std::to_string(width) + type_name(dtype);
  report.expect(name + ": y", relative_error(download(y.as(), dtype, rows * width), out), allowed(dtype));
  report.expect(name + ": grad h", relative_error(download(gh.as(), dtype, rows * 2 * width), grad), allowed(dtype));
}

void verify_swiglu(Report& report) {
  verify_swiglu(report, 33, 256, DType::bf16);
  verify_swiglu(report, 3, 37, DType::f32);
}

const DefineFamily<Report> kSwiglu("swiglu", verify_swiglu);

}  // namespace
}  // namespace based::tests
