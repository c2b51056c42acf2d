#include <cmath>

#include "based/kernels/norm/rms_norm.h"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

// The backward alone, then with a gradient of the residual stream, whose memory is overwritten by the rounded sum of both gradients.
void verify_rms_norm(Report& report, int64_t rows, int64_t width, DType x_dtype, DType dtype) {
  const Buffer x = random_buffer(rows * width, x_dtype, 2, 1), add = random_buffer(rows * width, dtype, 1, 2),
               weight = random_buffer(width, dtype, 1, 3), g = random_buffer(rows * width, dtype, 1, 4);
  Buffer sum(rows * width * 4), y(rows * width * 4), rms(rows * 4), gx(rows * width * 4), gw(width * 4);
  kernels::RmsNorm p{x.as(), add.as(), sum.as(), weight.as(), y.as(), rms.as<float>(), rows, width, 1e-5F, x_dtype, dtype};
  check(gpu::rms_norm_forward(p, {}));
  kernels::RmsNormBackward b{p, g.as(), nullptr, gx.as(), nullptr, gw.as<float>()};
  b.forward.x = sum.as(), b.forward.add = nullptr;
  Buffer scratch(gpu::rms_norm_backward_scratch(b));
  check(gpu::rms_norm_backward(b, scratch.as(), {}));
  const Buffer other = random_buffer(rows * width, dtype, 1, 5), gx_again(rows * width * 4), ga = copy_of(other), gw_again(width * 4);
  b.grad_sum = b.grad_add = ga.as(), b.grad_x = gx_again.as(), b.grad_weight = gw_again.as<float>();
  scratch.poison();
  check(gpu::rms_norm_backward(b, scratch.as(), {}));
  const auto hx = download(x.as(), x_dtype, rows * width), ha = download(add.as(), dtype, rows * width),
             hw = download(weight.as(), dtype, width), hg = download(g.as(), dtype, rows * width),
             kept = download(sum.as(), x_dtype, rows * width), hs = download(other.as(), dtype, rows * width);
  std::vector<double> s(hx.size()), out(hx.size()), grad(hx.size()), grad_weight(width);
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0, kept_squares = 0, dot = 0;
    for (int64_t i = r * width; i < (r + 1) * width; ++i) s[i] = hx[i] + ha[i], squares += s[i] * s[i], kept_squares += kept[i] * kept[i];
    const double scale = 1 / std::sqrt(squares / width + 1e-5), kept_scale = 1 / std::sqrt(kept_squares / width + 1e-5);
    for (int64_t c = 0, i = r * width; c < width; ++c, ++i) {
      out[i] = s[i] * scale * hw[c];
      grad_weight[c] += hg[i] * kept[i] * kept_scale;
      dot += hg[i] * hw[c] * kept[i] * kept_scale / width;
    }
    for (int64_t c = 0, i = r * width; c < width; ++c, ++i) grad[i] = kept_scale * (hg[i] * hw[c] - kept[i] * kept_scale * dot);
  }
  const std::string name = "rms_norm " + std::to_string(rows) + "x" + std::to_string(width) + type_name(x_dtype) + type_name(dtype);
  report.expect(name + ": sum", relative_error(kept, s), allowed(x_dtype));
  report.expect(name + ": y", relative_error(download(y.as(), dtype, rows * width), out), allowed(dtype));
  report.expect(name + ": grad x", relative_error(download(gx.as(), x_dtype, rows * width), grad), allowed(x_dtype));
  const double weight_limit = x_dtype == DType::bf16 ? 1e-4 : 2e-6;
  report.expect(name + ": grad weight", relative_error(download(gw.as(), DType::f32, width), grad_weight), weight_limit);
  for (size_t i = 0; i < grad.size(); ++i) grad[i] += hs[i];
  report.expect(name + ": grad x with grad sum", relative_error(download(gx_again.as(), x_dtype, rows * width), grad), allowed(x_dtype));
  report.expect(name + ": grad add", relative_error(download(ga.as(), dtype, rows * width), grad), allowed(dtype));
  report.expect(name + ": grad weight with grad sum", relative_error(download(gw_again.as(), DType::f32, width), grad_weight),
                weight_limit);
}

// Alone and with a gate; a warp handles several short rows.
void verify_gated(Report& report, int64_t rows, int64_t width, DType x_dtype, DType dtype) {
  const Buffer x = random_buffer(rows * width, x_dtype, 2, 1), weight = random_buffer(width, dtype, 1, 2),
               gate = random_buffer(rows * width, dtype, 1, 3);
  const Buffer y(rows * width * 4), gated(rows * width * 4), rms(rows * 4);
  kernels::RmsNorm p{x.as(), nullptr, nullptr, weight.as(), y.as(), rms.as<float>(), rows, width, 1e-5F, x_dtype, dtype};
  check(gpu::rms_norm_forward(p, {}));
  p.gate = gate.as(), p.y = gated.as();
  check(gpu::rms_norm_forward(p, {}));
  const auto hx = download(x.as(), x_dtype, rows * width), hw = download(weight.as(), dtype, width),
             hg = download(gate.as(), dtype, rows * width);
  std::vector<double> plain(hx.size()), with_gate(hx.size()), inverse(rows);
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = r * width; i < (r + 1) * width; ++i) squares += hx[i] * hx[i];
    inverse[r] = 1 / std::sqrt(squares / width + 1e-5);
    for (int64_t c = 0, i = r * width; c < width; ++c, ++i) {
      plain[i] = hx[i] * inverse[r] * hw[c];
      with_gate[i] = plain[i] * hg[i] * sigmoid(hg[i]);
    }
  }
  const std::string name = "rms_norm of " + std::to_string(rows) + "x" + std::to_string(width) + type_name(x_dtype) + type_name(dtype);
  report.expect(name + ": y", relative_error(download(y.as(), dtype, rows * width), plain), allowed(dtype));
  report.expect(name + ": inverse rms", relative_error(download(rms.as(), DType::f32, rows), inverse), 1e-6);
  report.expect(name + ": gated", relative_error(download(gated.as(), dtype, rows * width), with_gate), allowed(dtype));
}

void verify_rms_norm(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  verify_rms_norm(report, 37, 1024, fp, bf);
  verify_rms_norm(report, 5, 1792, bf, bf);
  verify_rms_norm(report, 600, 48, fp, fp);
  verify_rms_norm(report, 7, 333, fp, fp);
  verify_rms_norm(report, 3, 8000, fp, bf);
  for (const int64_t width : {64, 128, 256, 512, 100, 3000})
    for (const int64_t rows : {1, 37, 300}) verify_gated(report, rows, width, bf, bf), verify_gated(report, rows, width, fp, bf);
  verify_gated(report, 33, 128, bf, fp);
  verify_gated(report, 33, 256, fp, fp);
}

const DefineFamily<Report> kRmsNorm("rms_norm", verify_rms_norm);

}  // namespace
}  // namespace based::tests
