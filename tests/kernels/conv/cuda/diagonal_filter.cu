#include "based/kernels/conv/diagonal_filter.h"

#include <complex>

#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;
using Numbers = std::vector<double>;
using Complex = std::complex<double>;

struct Case {
  int64_t groups, poles, taps;
};
struct Parameters {
  Numbers log_dt, log_decay, frequency, B, C, D;
  std::vector<Numbers*> all() { return {&log_dt, &log_decay, &frequency, &B, &C, &D}; }
};
const std::vector<std::string> kNames{"log_dt", "log_decay", "frequency", "B", "C", "D"};

// Reference: computes a^t by repeated multiplication.
Numbers filter_of(const Case& c, const Parameters& p) {
  Numbers filter(c.groups * c.taps);
  for (int64_t group = 0; group < c.groups; ++group) {
    for (int64_t pole = 0; pole < c.poles; ++pole) {
      const int64_t at = group * c.poles + pole;
      const double dt = std::exp(p.log_dt[group]);
      const Complex h = Complex(-std::exp(p.log_decay[at]), p.frequency[at]) * dt / 2.0, a = (1.0 + h) / (1.0 - h);
      Complex power = 2.0 * Complex(p.C[2 * at], p.C[2 * at + 1]) * Complex(p.B[2 * at], p.B[2 * at + 1]) * dt / (1.0 - h);
      for (int64_t t = 0; t < c.taps; ++t) filter[group * c.taps + t] += power.real(), power *= a;
    }
    filter[group * c.taps] += p.D[group];
  }
  return filter;
}

// Reference gradients by finite differences of the loss Σ filter · g.
std::vector<Numbers> slopes(const Case& c, Parameters p, const Numbers& g) {
  std::vector<Numbers> found;
  constexpr double kStep = 1e-5;
  const auto loss = [&] {
    const Numbers filter = filter_of(c, p);
    double sum = 0;
    for (size_t i = 0; i < filter.size(); ++i) sum += filter[i] * g[i];
    return sum;
  };
  for (Numbers* numbers : p.all()) {
    found.emplace_back();
    for (double& x : *numbers) {
      const double before = x;
      x = before + kStep;
      const double above = loss();
      x = before - kStep;
      found.back().push_back((above - loss()) / (2 * kStep));
      x = before;
    }
  }
  return found;
}

void verify(Report& report, const Case& c) {
  // Initial values as in H3: steps from 0.001 to 0.1, frequencies that are multiples of π.
  const auto drawn = [](int64_t count, double scale, double around, uint64_t seed) {
    const Numbers normal = download(random_buffer(count, DType::f32, scale, seed).as(), DType::f32, count);
    std::vector<float> numbers;
    for (const double x : normal) numbers.push_back(static_cast<float>(around + x));
    return numbers;
  };
  const int64_t all = c.groups * c.poles;
  std::vector<std::vector<float>> drawn_of{drawn(c.groups, 1, -4.6, 1), drawn(all, 0.3, -0.7, 2),  drawn(all, 0, 0, 3),
                                           drawn(2 * all, 1, 0, 4),     drawn(2 * all, 0.7, 0, 5), drawn(c.groups, 1, 0, 6)};
  for (int64_t i = 0; i < all; ++i) drawn_of[2][i] = static_cast<float>(3.14159265 * static_cast<double>(i % c.poles));
  Parameters parameters;
  std::vector<Buffer> memory, gradients;
  for (size_t i = 0; i < drawn_of.size(); ++i) {
    parameters.all()[i]->assign(drawn_of[i].begin(), drawn_of[i].end());
    memory.push_back(upload_floats(drawn_of[i]));
    gradients.emplace_back(memory.back().bytes());
  }
  const Buffer filter(c.groups * c.taps * 4), g = random_buffer(c.groups * c.taps, DType::f32, 1, 7);
  kernels::DiagonalFilterBackward b;
  b.forward = {memory[0].as<float>(),
               memory[1].as<float>(),
               memory[2].as<float>(),
               memory[3].as<float>(),
               memory[4].as<float>(),
               memory[5].as<float>(),
               filter.as<float>(),
               c.groups,
               c.poles,
               c.taps};
  b.grad_filter = g.as<float>(), b.grad_log_dt = gradients[0].as<float>(), b.grad_log_decay = gradients[1].as<float>();
  b.grad_frequency = gradients[2].as<float>(), b.grad_B = gradients[3].as<float>(), b.grad_C = gradients[4].as<float>();
  b.grad_D = gradients[5].as<float>();
  check(gpu::diagonal_filter_forward(b.forward, {}));
  check(gpu::diagonal_filter_backward(b, {}));
  const std::string name =
      "diagonal_filter groups " + std::to_string(c.groups) + " poles " + std::to_string(c.poles) + " taps " + std::to_string(c.taps);
  report.expect(name, relative_error(download(filter.as(), DType::f32, c.groups * c.taps), filter_of(c, parameters)), 1e-6);
  const std::vector<Numbers> right = slopes(c, parameters, download(g.as(), DType::f32, c.groups * c.taps));
  for (size_t i = 0; i < right.size(); ++i) {
    const Numbers found = download(gradients[i].as(), DType::f32, gradients[i].bytes() / 4);
    report.expect(name + ": grad " + kNames[i], relative_error(found, right[i]), 1e-5);
  }
}

void verify_diagonal_filter(Report& report) {
  for (const Case& c : {Case{3, 4, 50}, {2, 33, 300}, {1, 1, 1}, {5, 8, 7}}) verify(report, c);
}

const DefineFamily<Report> kDiagonalFilter("diagonal_filter", verify_diagonal_filter);

}  // namespace
}  // namespace based::tests
