// Norms of a decode step of several sequences that are fused into the layers before and after: compared with double precision, and checked
// for reproducible bits.
#include <cmath>

#include "based/kernels/common/device_code.h"
#include "based/kernels/linear/linear_step.h"
#include "based/kernels/norm/rms_norm.h"
#include "tests/kernels/common/cuda/testing.cuh"
#include "tests/kernels/linear/cuda/linear_reference.cuh"

namespace based::tests {
namespace {

using kernels::DType;
using kernels::Linear;
using kernels::on_stream;
namespace gpu = kernels::cuda;
using Values = std::vector<double>;

constexpr float kEps = 1e-5F;

// The chain layer -> norm -> two layers that read it -> next norm.
struct Chain {
  int64_t rows, in, width, out;
  bool with_bias, swiglu;
  Buffer x, residual, weight, bias, norm_weight, reader_weight, reader_bias, other_weight;
  Buffer y, normalised, read, other, closing, between, squares;

  Chain(int64_t of_rows, int64_t of_width, bool of_bias, bool of_swiglu)
      : rows(of_rows), in(2 * of_width), width(of_width), out(of_swiglu ? 2 * of_width : 264), with_bias(of_bias), swiglu(of_swiglu) {
    const double scale = 1 / std::sqrt(double(in));
    x = random_buffer(rows * in, DType::bf16, 1, 1), residual = random_buffer(rows * width, DType::f32, 3, 2);
    weight = random_buffer(width * in, DType::bf16, scale, 3), bias = random_buffer(width, DType::bf16, 1, 4);
    norm_weight = random_buffer(width, DType::bf16, 1, 5), reader_weight = random_buffer(out * width, DType::bf16, scale, 6);
    reader_bias = random_buffer(out, DType::bf16, 1, 7), other_weight = random_buffer(64 * width, DType::bf16, scale, 8);
    y = Buffer(rows * width * 2), normalised = Buffer(rows * width * 2), read = Buffer(rows * out * 2), other = Buffer(rows * 64 * 2);
    closing = Buffer(rows * width * 2);
    between = Buffer(rows * width * 2), squares = Buffer(kernels::joined_norm_squares(rows, width) * 4);
  }
  int64_t read_width() const { return swiglu ? out / 2 : out; }
  Linear layer(const Buffer& from, const Buffer& by, const Buffer* added, const Buffer& to, int64_t ins, int64_t outs) const {
    return {from.as(), by.as(),     with_bias && added != nullptr ? added->as() : nullptr,
            to.as(),   rows,        ins,
            outs,      ins,         ins,
            outs,      DType::bf16, DType::bf16,
            false,     true};
  }
  Linear first() const { return layer(x, weight, &bias, y, in, width); }
  Linear reader() const {
    Linear p = layer(normalised, reader_weight, &reader_bias, read, width, out);
    p.y_stride = read_width();
    return p;
  }
  Linear second_reader() const { return layer(normalised, other_weight, nullptr, other, width, 64); }
  void launch(kernels::Queue stream) const {
    check(gpu::linear(first(), stream));
    check(gpu::rms_norm_forward(
        {residual.as(), y.as(), residual.as(), norm_weight.as(), normalised.as(), nullptr, rows, width, kEps, DType::f32, DType::bf16},
        stream));
    check(swiglu ? gpu::linear_swiglu(reader(), stream) : gpu::linear(reader(), stream));
    check(gpu::linear(second_reader(), stream));
    check(gpu::rms_norm_forward(
        {residual.as(), nullptr, nullptr, norm_weight.as(), closing.as(), nullptr, rows, width, kEps, DType::f32, DType::bf16}, stream));
  }
  // The norm fused into the layers before and after; layers of the same kind in one launch.
  void launch_joined(kernels::Queue stream) const {
    const kernels::NormAfter after{residual.as<const float>(), residual.as<float>(), norm_weight.as(), between.as(), squares.as<float>()};
    const kernels::NormBefore before{squares.as<float>(), kernels::joined_norm_parts(width), kEps};
    check(gpu::linear_before_norm(first(), after, stream));
    Linear one = reader(), two = second_reader();
    one.x = two.x = between.as();
    if (!swiglu) return check(gpu::linears_after_norm(std::vector<Linear>{one, two}, before, stream));
    check(gpu::linear_swiglu_after_norm(one, before, stream));
    check(gpu::linears_after_norm(std::vector<Linear>{two}, before, stream));
  }
};

struct Exact {
  Values residual, read, other;
};
Exact exact(const Chain& c, int64_t rows) {
  Exact to;
  const auto outputs = [rows](const Values& x, Linear p) { return p.rows = rows, exact_outputs(x, p); };
  to.residual = outputs(download(c.x.as(), DType::bf16, rows * c.in), c.first());
  const Values before = download(c.residual.as(), DType::f32, rows * c.width), scale = download(c.norm_weight.as(), DType::bf16, c.width);
  Values normalised;
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = r * c.width; i < (r + 1) * c.width; ++i) to.residual[i] += before[i], squares += to.residual[i] * to.residual[i];
    for (int64_t i = 0; i < c.width; ++i)
      normalised.push_back(to.residual[r * c.width + i] * scale[i] / std::sqrt(squares / double(c.width) + kEps));
  }
  const Values h = outputs(normalised, c.reader());
  to.read = c.swiglu ? exact_swiglu(h, c.read_width()) : h;
  to.other = outputs(normalised, c.second_reader());
  return to;
}

void verify_chain(Report& report, int64_t rows, int64_t width, bool with_bias, bool swiglu) {
  const std::string name =
      "norm in layers " + std::to_string(rows) + " x " + std::to_string(width) + (with_bias ? " bias" : "") + (swiglu ? " swiglu" : "");
  if (!gpu::runs_hopper_code()) return report.no_kernel(name);
  const Chain chain(rows, width, with_bias, swiglu);
  const int64_t compared = std::min<int64_t>(rows, 3);  // the first rows here, the last rows below
  const Exact expected = exact(chain, compared);
  const Values start = download(chain.residual.as(), DType::f32, rows * width);
  chain.launch_joined({});
  check(cudaDeviceSynchronize(), name.c_str());
  const auto values = [&](const Buffer& b, DType dtype, int64_t columns) { return download(b.as(), dtype, rows * columns); };
  const auto head = [&](Values v, const Values& like) { return v.resize(like.size()), v; };
  const Values residual = values(chain.residual, DType::f32, width), read = values(chain.read, DType::bf16, chain.read_width());
  report.expect(name + ", stream", relative_error(head(residual, expected.residual), expected.residual), 1e-3);
  report.expect(name + ", layer", relative_error(head(read, expected.read), expected.read), 5e-3);
  report.expect(name + ", other", relative_error(head(values(chain.other, DType::bf16, 64), expected.other), expected.other), 5e-3);
  // All rows, compared with separate kernels. A row must not depend on the contents of other rows, and runs must be reproducible.
  const auto restore = [&](int64_t first_row) {
    std::vector<float> x(start.begin(), start.end());
    for (int64_t i = first_row * width; i < rows * width; ++i) x[static_cast<size_t>(i)] *= -2;
    check(cudaMemcpy(chain.residual.as(), x.data(), x.size() * 4, cudaMemcpyHostToDevice), "copy");
  };
  restore(rows), chain.launch({}), check(cudaDeviceSynchronize(), "a chain");
  report.expect(name + ", as kernels", relative_error(read, values(chain.read, DType::bf16, chain.read_width())), 5e-3);
  report.expect(name + ", stream as kernels", relative_error(residual, values(chain.residual, DType::f32, width)), 1e-6);
  restore(rows), chain.launch_joined({}), check(cudaDeviceSynchronize(), "a chain");
  if (values(chain.read, DType::bf16, chain.read_width()) != read) report.fail(name + ": two runs differ");
  restore(1), chain.launch_joined({}), check(cudaDeviceSynchronize(), "a chain");
  Values changed = values(chain.read, DType::bf16, chain.read_width());
  changed.resize(static_cast<size_t>(chain.read_width()));
  if (changed != Values(read.begin(), read.begin() + chain.read_width())) report.fail(name + ": a row depends on others");
}

void verify_step_norms(Report& report) {
  for (const int64_t rows : {2, 5, 16, 33, 64, 128, 130, 256, 400}) {
    for (const int64_t width : {1024, 1792}) verify_chain(report, rows, width, true, false), verify_chain(report, rows, width, false, true);
  }
  verify_chain(report, 20, 4296, true, true), verify_chain(report, 128, 4296, true, false);  // partial tiles; rows in several batches
  verify_chain(report, 500, 3584, true, true);                                               // tiles of 128 outputs and 256 rows
}

const DefineFamily<Report> kStepNorms("step_norms", verify_step_norms);

}  // namespace
}  // namespace based::tests
