#include <cmath>

#include "based/kernels/attention/rotary.h"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

void verify_rotary(Report& report, int32_t head_dim, int32_t dim, bool interleaved, DType dtype) {
  const std::vector<int64_t> positions{0, 1, 77, 4095, 1000003, (1LL << 33) + 5};
  const int32_t heads = 3;
  const int64_t tokens = static_cast<int64_t>(positions.size()), stride = heads * head_dim + 16, count = tokens * stride;
  const Buffer x = random_buffer(count, dtype, 1, 1), position = upload(positions);
  Buffer y(count * 4);
  kernels::Rotary p{x.as(), y.as(), position.as<int64_t>(), tokens, stride, heads * head_dim, heads, head_dim, dim, 10000, interleaved,
                    false,  dtype};
  check(gpu::rotary(p, {}));
  const auto hx = download(x.as(), dtype, count);
  std::vector<double> out(tokens * heads * head_dim);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const double* input = &hx[t * stride + h * head_dim];
      double* output = &out[(t * heads + h) * head_dim];
      for (int d = dim; d < head_dim; ++d) output[d] = input[d];
      for (int i = 0; i < dim / 2; ++i) {
        const double angle = std::fmod(static_cast<double>(positions[t]) * std::pow(10000.0, -2.0 * i / dim), 2 * M_PI);
        const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + dim / 2;
        output[a] = input[a] * std::cos(angle) - input[b] * std::sin(angle);
        output[b] = input[a] * std::sin(angle) + input[b] * std::cos(angle);
      }
    }
  }
  report.expect(
      "rotary d" + std::to_string(head_dim) + " dim " + std::to_string(dim) + (interleaved ? " interleaved" : "") + type_name(dtype),
      relative_error(download(y.as(), dtype, tokens * heads * head_dim), out), dtype == DType::bf16 ? 2.5e-3 : 3e-6);
}

void verify_rotary(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  verify_rotary(report, 64, 64, false, bf);
  verify_rotary(report, 64, 64, false, fp);
  verify_rotary(report, 112, 56, true, fp);
}

const DefineFamily<Report> kRotary("rotary", verify_rotary);

}  // namespace
}  // namespace based::tests
