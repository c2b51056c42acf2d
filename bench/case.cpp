#include "bench/case.h"

#include <torch/cuda.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "based/core/error.h"
#include "based/kernels/common/cpu/parallel.h"

namespace based::bench {

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
#define BASED_BENCH(name) case_##name,
#include "bench/cases.def"
#undef BASED_BENCH
  };
  return all;
}

bool Context::measures(const std::string& preset) const {
  return presets.empty() || std::find(presets.begin(), presets.end(), preset) != presets.end();
}

bool Context::measures_beginning(const std::string& name) const {
  return presets.empty() ||
         std::any_of(presets.begin(), presets.end(), [&](const std::string& preset) { return name.starts_with(preset); });
}

void Context::add(Result result) {
  results.push_back(std::move(result));
  if (report) report(results.back());
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median_seconds(const std::function<void()>& body, int repeats, const std::function<void()>& prepare) {
  if (prepare) prepare();
  body();
  std::vector<double> seconds;
  seconds.reserve(static_cast<size_t>(repeats));
  for (int i = 0; i < repeats; ++i) {
    if (prepare) prepare();
    seconds.push_back(seconds_of(body));
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

double relative_difference(const torch::Tensor& value, const torch::Tensor& reference) {
  const torch::Tensor difference = (value.to(torch::kDouble) - reference.to(torch::kDouble)).abs();
  return difference.numel() == 0 ? 0 : difference.max().item<double>() / std::max(reference.abs().max().item<double>(), 1e-30);
}

double verify(const torch::Tensor& value, const torch::Tensor& reference, double tolerance, const std::string& what) {
  const double error = relative_difference(value, reference);
  if (!(error <= tolerance))
    throw Error("bench: " + what + " is wrong (error " + std::to_string(error) + ", allowed " + std::to_string(tolerance) + "); not timed");
  return error;
}

namespace {

constexpr int64_t cpu_buffer_bytes(bool quick) { return int64_t{1} << (quick ? 25 : 29); }  // 2^29 is beyond every cache
constexpr int64_t gpu_buffer_bytes = int64_t{1} << 32;
constexpr int ceiling_repeats = 7;

// The best of several measurements, because a ceiling is the machine's peak rate, not its average.
double best_seconds(const std::function<void()>& body) {
  double best = 1e30;
  for (int i = 0; i < ceiling_repeats; ++i) best = std::min(best, seconds_of(body));
  return best;
}

}  // namespace

double Ceilings::read_gb_s() {
  if (read_ == 0) {
    const int64_t buffer_bytes = cpu_buffer_bytes(quick);
    const torch::Tensor buffer = torch::ones({buffer_bytes / 4}, torch::kInt32);
    const int32_t* data = buffer.const_data_ptr<int32_t>();
    std::vector<int64_t> sums(256);
    read_ = static_cast<double>(buffer_bytes) / 1e9 / best_seconds([&] {
              kernels::cpu::parallel_for(256, 1, [&](int64_t begin, int64_t end) {
                const int64_t part = buffer_bytes / 4 / 256;
                for (int64_t block = begin; block < end; ++block) {
                  // Integer sums, which the compiler turns into plain vector loads and adds.
                  int32_t sum = 0;
                  for (int64_t i = block * part; i < (block + 1) * part; ++i) sum += data[i];
                  sums[static_cast<size_t>(block)] = sum;
                }
              });
            });
    BASED_ASSERT(sums[0] == buffer_bytes / 4 / 256);
  }
  return read_;
}

double Ceilings::copy_gb_s() {
  if (copy_ == 0 && device.is_cuda()) {
    const torch::Tensor from = torch::ones({gpu_buffer_bytes / 4}, device);
    torch::Tensor to = torch::zeros_like(from);
    copy_ = 2.0 * static_cast<double>(gpu_buffer_bytes) / 1e9 / best_seconds([&] {
              to.copy_(from);
              torch::cuda::synchronize();
            });
  }
  if (copy_ == 0) {
    const int64_t buffer_bytes = cpu_buffer_bytes(quick);
    const torch::Tensor from = torch::ones({buffer_bytes / 4}), to = torch::zeros({buffer_bytes / 4});
    const char* source = static_cast<const char*>(from.const_data_ptr());
    char* target = static_cast<char*>(to.mutable_data_ptr());
    copy_ = 2.0 * static_cast<double>(buffer_bytes) / 1e9 / best_seconds([&] {
              kernels::cpu::parallel_for(256, 1, [&](int64_t begin, int64_t end) {
                const int64_t part = buffer_bytes / 256;
                std::memcpy(target + begin * part, source + begin * part, static_cast<size_t>((end - begin) * part));
              });
            });
  }
  return copy_;
}

double Ceilings::product_gflops() {
  const double bf16 = gemm_gflops(torch::kBFloat16);
  return device.is_cuda() ? bf16 : std::max(bf16, gemm_gflops(torch::kFloat));
}

void Ceilings::measure() {
  copy_gb_s();
  if (!device.is_cuda()) read_gb_s();
  product_gflops();
}

double Ceilings::gemm_gflops(torch::Dtype dtype) {
  double& rate = gemm_[dtype];
  if (rate == 0) {
    const torch::NoGradGuard no_grad;
    const auto options = torch::dtype(dtype).device(device);
    for (const int64_t n : device.is_cuda() ? std::array{4096, 8192} : quick ? std::array{128, 256} : std::array{1024, 2048}) {
      const torch::Tensor a = torch::randn({n, n}, options), b = torch::randn({n, n}, options);
      torch::Tensor c = torch::empty({n, n}, options);
      rate = std::max(rate, 2.0 * static_cast<double>(n * n * n) / 1e9 / best_seconds([&] {
                              torch::mm_out(c, a, b.t());
                              if (device.is_cuda()) torch::cuda::synchronize();
                            }));
    }
  }
  return rate;
}

}  // namespace based::bench
