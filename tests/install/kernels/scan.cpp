// Mamba's selective scan by the installed kernels, compared with its equation in double. BY_table calls the CPU's table of launchers,
// BY_cpu the functions of namespace cpu.
#include <based/kernels/common/launchers.h>
#include <based/kernels/scan/scan.h>

#include <cmath>
#include <cstdio>
#include <vector>

using namespace based::kernels;

namespace {

constexpr int64_t kTokens = 37, kChannels = 3, kStates = 4;

std::vector<float> waves(int64_t count, double step) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(std::sin(step * static_cast<double>(i + 1))));
  return values;
}

Status forward(const SelectiveScan& scan) {
#ifdef BY_table
  const auto* table = launchers<SelectiveScanLaunchers>(Device::cpu);
  if (table == nullptr) return {"the CPU has no table: the library is not loaded"};
  std::vector<char> scratch(static_cast<size_t>(table->forward_scratch(scan)));
  return table->forward(scan, scratch.data(), Queue{});
#else
  return cpu::selective_scan_forward(scan);
#endif
}

}  // namespace

int main() {
  const std::vector<float> x = waves(kTokens * kChannels, 0.7), dt = waves(kTokens * kChannels, 0.3),
                           a_log = waves(kChannels * kStates, 1.1), b = waves(kTokens * kStates, 0.9), c = waves(kTokens * kStates, 0.5),
                           d = waves(kChannels, 2.0);
  std::vector<float> y(x.size());
  const std::vector<int64_t> row_start{0, kTokens};
  SelectiveScan scan;
  scan.x = x.data(), scan.dt = dt.data(), scan.A_log = a_log.data(), scan.B = b.data(), scan.C = c.data(), scan.D = d.data();
  scan.y = y.data(), scan.row_start = row_start.data();
  scan.tokens = kTokens, scan.rows = 1, scan.channels = kChannels, scan.state_size = kStates;
  scan.x_stride = scan.dt_stride = scan.y_stride = kChannels;
  scan.b_stride = scan.c_stride = kStates;
  if (const Status status = forward(scan); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.what);
    return 1;
  }

  double worst = 0;
  std::vector<double> state(kChannels * kStates);
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t i = 0; i < kChannels; ++i) {
      const double delta = std::log1p(std::exp(dt[t * kChannels + i])), input = x[t * kChannels + i];
      double wanted = d[i] * input;
      for (int64_t n = 0; n < kStates; ++n) {
        double& h = state[i * kStates + n];
        h = std::exp(-delta * std::exp(a_log[i * kStates + n])) * h + delta * b[t * kStates + n] * input;
        wanted += c[t * kStates + n] * h;
      }
      worst = std::max(worst, std::abs(wanted - y[t * kChannels + i]));
    }
  std::printf("largest error %.2g\n", worst);
  return worst < 1e-5 ? 0 : 1;
}
