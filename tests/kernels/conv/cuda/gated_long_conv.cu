#include "based/kernels/conv/gated_long_conv.h"

#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;
using Numbers = std::vector<double>;

struct Case {
  int64_t rows, length, channels, taps;
  int32_t head_dim = 1;
  bool single_tf32 = false;
  int64_t padding = 0;  // elements between tokens
  bool plain = false;   // without q and v
  int64_t tokens() const { return rows * length; }
  int64_t stride() const { return channels + padding; }
  int64_t y_stride() const { return head_dim > 2 ? channels : stride(); }  // y and its gradient
  int64_t heads() const { return channels / head_dim; }
};

struct Solution {
  Numbers y, q, k, v, filter;  // q, k, v and filter are gradients
};

// Reference by the formula, pair by pair, for tensors without padding.
Solution solve(const Case& c, const Numbers& q, const Numbers& k, const Numbers& v, const Numbers& filter, const Numbers& g) {
  const Numbers zeros(c.tokens() * c.channels);
  Solution out{zeros, zeros, zeros, zeros, Numbers(c.heads() * c.taps)};
  for (int64_t row = 0; row < c.rows; ++row)
    for (int64_t head = 0; head < c.heads(); ++head)
      for (int64_t t = 0; t < c.length; ++t)
        for (int64_t s = std::max<int64_t>(0, t - c.taps + 1); s <= t; ++s) {
          const int64_t at_t = (row * c.length + t) * c.channels + head * c.head_dim;
          const int64_t at_s = (row * c.length + s) * c.channels + head * c.head_dim;
          const double tap = filter[head * c.taps + t - s];
          double qk = 0, gv = 0;
          for (int64_t i = 0; i < c.head_dim; ++i) qk += q[at_t + i] * k[at_s + i], gv += g[at_t + i] * v[at_s + i];
          for (int64_t i = 0; i < c.head_dim; ++i) {
            out.y[at_t + i] += tap * qk * v[at_s + i];
            out.q[at_t + i] += tap * gv * k[at_s + i];
            out.k[at_s + i] += tap * gv * q[at_t + i];
            out.v[at_s + i] += tap * qk * g[at_t + i];
          }
          out.filter[head * c.taps + t - s] += qk * gv;
        }
  return out;
}

Numbers columns_of(const Buffer& from, const Case& c, int64_t stride) {
  const Numbers all = download(from.as(), DType::f32, c.tokens() * stride);
  Numbers out;
  for (int64_t r = 0; r < c.tokens(); ++r) out.insert(out.end(), all.begin() + r * stride, all.begin() + r * stride + c.channels);
  return out;
}
Numbers columns_of(const Buffer& from, const Case& c) { return columns_of(from, c, c.stride()); }

struct Memory {
  Buffer q, k, v, g, filter, y, of_q, of_k, of_v, of_filter;
  explicit Memory(const Case& c)
      : q(random_buffer(c.tokens() * c.stride(), DType::f32, 1, 1)),
        k(random_buffer(c.tokens() * c.stride(), DType::f32, 1, 2)),
        v(random_buffer(c.tokens() * c.stride(), DType::f32, 1, 3)),
        g(random_buffer(c.tokens() * c.stride(), DType::f32, 1, 4)),
        filter(random_buffer(c.heads() * c.taps, DType::f32, 1, 5)),
        y(c.tokens() * c.stride() * 4),
        of_q(y.bytes()),
        of_k(y.bytes()),
        of_v(y.bytes()),
        of_filter(c.heads() * c.taps * 4) {}

  kernels::GatedLongConvBackward arguments(const Case& c) const {
    kernels::GatedLongConvBackward b;
    kernels::GatedLongConv& p = b.forward;
    p.q = q.as<float>(), p.k = k.as<float>(), p.v = v.as<float>(), p.filter = filter.as<float>(), p.y = y.as<float>();
    p.rows = c.rows, p.length = c.length, p.channels = c.channels, p.taps = c.taps, p.head_dim = c.head_dim;
    p.q_stride = p.k_stride = p.v_stride = c.stride(), p.y_stride = c.y_stride(), p.single_tf32 = c.single_tf32;
    b.grad_y = g.as<float>(), b.grad_q = of_q.as<float>(), b.grad_k = of_k.as<float>(), b.grad_v = of_v.as<float>();
    b.grad_filter = of_filter.as<float>();
    b.grad_q_stride = b.grad_k_stride = b.grad_v_stride = c.stride(), b.grad_y_stride = c.y_stride();
    if (c.plain) p.q = p.v = nullptr, b.grad_q = b.grad_v = nullptr;
    return b;
  }
};

std::string name_of(const Case& c) {
  return "gated_long_conv " + std::to_string(c.rows) + "x" + std::to_string(c.length) + " channels " + std::to_string(c.channels) +
         " taps " + std::to_string(c.taps) + " head " + std::to_string(c.head_dim) + (c.padding > 0 ? " padded" : "") +
         (c.plain ? " plain" : "") + (c.single_tf32 ? " tf32" : " fp32");
}

void verify(Report& report, const Case& c) {
  const Memory m(c);
  const kernels::GatedLongConvBackward b = m.arguments(c);
  if (!gpu::gated_long_conv_backward_takes(b.forward)) return report.no_kernel(name_of(c));
  check(gpu::gated_long_conv_forward(b.forward, {}));
  const Buffer scratch(gpu::gated_long_conv_backward_scratch(b));
  check(gpu::gated_long_conv_backward(b, scratch.as(), {}));
  const Numbers ones(c.tokens() * c.channels, 1);
  const auto taken = [&](const Buffer& from) { return download(from.as(), DType::f32, c.heads() * c.taps); };
  const Numbers of_filter = taken(m.of_filter);
  const Solution right = solve(c, c.plain ? ones : columns_of(m.q, c), columns_of(m.k, c), c.plain ? ones : columns_of(m.v, c),
                               taken(m.filter), columns_of(m.g, c, c.y_stride()));
  const std::string name = name_of(c);
  const double limit = c.single_tf32 ? 2e-3 : 5e-6;
  report.expect(name + ": y", relative_error(columns_of(m.y, c, c.y_stride()), right.y), limit);
  if (!c.plain) report.expect(name + ": grad q", relative_error(columns_of(m.of_q, c), right.q), limit);
  report.expect(name + ": grad k", relative_error(columns_of(m.of_k, c), right.k), limit);
  if (!c.plain) report.expect(name + ": grad v", relative_error(columns_of(m.of_v, c), right.v), limit);
  report.expect(name + ": grad filter", relative_error(of_filter, right.filter), limit);
  check(gpu::gated_long_conv_backward(b, scratch.as(), {}));
  report.expect(name + ": grad filter again", relative_error(taken(m.of_filter), of_filter), 0);
}

void verify_gated_long_conv(Report& report) {
  for (const bool single_tf32 : {false, true})
    for (const int32_t head_dim : {1, 2}) {
      // Lengths at, before and after multiples of 8, 16, 64 and 256; fewer and more taps than tokens.
      for (const int64_t length : {1, 7, 17, 64, 65, 255, 256, 273}) verify(report, {5, length, 16, length, head_dim, single_tf32, 4});
      verify(report, {37, 70, 8, 70, head_dim, single_tf32});
      verify(report, {3, 100, 24, 30, head_dim, single_tf32, 8});
      verify(report, {3, 50, 24, 90, head_dim, single_tf32});
      verify(report, {2, 700, 8, 700, head_dim, single_tf32});
    }
  // Heads of many channels: lengths at, before and after multiples of 16, 32 and 64; columns that are not loaded in fours.
  for (const bool single_tf32 : {false, true}) {
    for (const int64_t length : {1, 15, 16, 17, 33, 64, 65, 130}) verify(report, {3, length, 16, length, 8, single_tf32, 4});
    verify(report, {2, 300, 128, 300, 64, single_tf32});
    verify(report, {2, 300, 128, 70, 64, single_tf32, 8});
    verify(report, {3, 50, 72, 90, 24, single_tf32, 1});
    verify(report, {2, 200, 128, 200, 128, single_tf32});
  }
  for (const bool single_tf32 : {false, true})
    for (const auto& [length, taps] : {std::pair<int64_t, int64_t>{256, 64}, {70, 70}, {600, 16}, {600, 257}, {530, 263}})
      verify(report, {5, length, 16, taps, 1, single_tf32, 0, true});
}

const DefineFamily<Report> kGatedLongConv("gated_long_conv", verify_gated_long_conv);

}  // namespace
}  // namespace based::tests
