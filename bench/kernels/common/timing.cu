#include "bench/kernels/common/timing.cuh"

#include <algorithm>
#include <ctime>

#include "based/kernels/common/gpu_kernels_choice.h"

namespace based::bench {
namespace {

bool once_only = false;

// A copy by a kernel: on an H200 a memory copy node in a graph reached 2.7 TB/s, ATen's copy kernel 4.25.
constexpr int kCopyThreads = 256, kCopyEach = 4;
__global__ void __launch_bounds__(kCopyThreads) copy_bytes(const uint4* from, uint4* to) {
  const int64_t first = blockIdx.x * int64_t{kCopyThreads * kCopyEach} + threadIdx.x;
  uint4 values[kCopyEach];
#pragma unroll
  for (int i = 0; i < kCopyEach; ++i) values[i] = from[first + i * kCopyThreads];
#pragma unroll
  for (int i = 0; i < kCopyEach; ++i) to[first + i * kCopyThreads] = values[i];
}

}  // namespace

int working_sets(int64_t bytes) { return static_cast<int>(std::clamp<int64_t>((256LL << 20) / std::max<int64_t>(bytes, 1) + 1, 2, 64)); }

void call_once_only() { once_only = true; }

double median_ms(int sets, const std::function<void(int, cudaStream_t)>& call) {
  if (once_only) {
    call(0, nullptr);
    check(cudaDeviceSynchronize(), "call");
    return 0;
  }
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaEvent_t before = nullptr, after = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  check(cudaEventCreate(&before), "cudaEventCreate");
  check(cudaEventCreate(&after), "cudaEventCreate");
  for (int i = 0; i < 2; ++i) call(i % sets, stream);
  check(cudaStreamSynchronize(stream), "warm-up");
  const int calls = std::max(sets, 20) / sets * sets;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) call(i % sets, stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  std::vector<double> times;
  for (int i = 0; i < 25; ++i) {
    check(cudaEventRecord(before, stream), "event");
    check(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    check(cudaEventRecord(after, stream), "event");
    check(cudaEventSynchronize(after), "replay");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, before, after), "event");
    if (i >= 5) times.push_back(ms / calls);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(before);
  cudaEventDestroy(after);
  cudaStreamDestroy(stream);
  return times[times.size() / 2];
}

double bytes_per_ms() {
  static const double rate = [] {
    constexpr int64_t kBytes = int64_t{1} << 30;
    const Buffer from(kBytes), to(kBytes);
    const auto copy = [&](int, cudaStream_t stream) {
      copy_bytes<<<kBytes / (kCopyThreads * kCopyEach * 16), kCopyThreads, 0, stream>>>(from.as<const uint4>(), to.as<uint4>());
      check(cudaGetLastError(), "copy");
    };
    return once_only ? 1.0 : 2 * static_cast<double>(kBytes) / median_ms(1, copy);
  }();
  return rate;
}

void Report::add(const Result& result) {
  results_.push_back(result);
  std::printf("%-44s %10.4f %-6s", result.name.c_str(), result.value, result.unit.c_str());
  if (result.floor > 0) std::printf("  floor %8.4f (%.2f)", result.floor, result.floor / result.value);
  if (result.error >= 0) std::printf("  error %.2e", result.error);
  std::printf("\n");
  std::fflush(stdout);
}

void Report::time(const std::string& name, int64_t bytes, int sets, const std::function<void(int, cudaStream_t)>& call) {
  add({"", name, median_ms(sets, call), "ms", static_cast<double>(bytes) / bytes_per_ms()});
}

void Report::write(const std::string& path, const std::string& commit) const {
  cudaDeviceProp device{};
  int driver = 0, memory_khz = 0, sm_khz = 0;
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaDeviceGetAttribute(&sm_khz, cudaDevAttrClockRate, 0), "clock");
  check(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, 0), "clock");
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "%s: cannot be written\n", path.c_str());
    std::exit(2);
  }
  std::fprintf(file, "{\n  \"device\": \"%s\",\n  \"driver\": \"CUDA %d.%d\",\n  \"commit\": \"%s\",\n  \"date\": \"%s\",\n", device.name,
               driver / 1000, driver % 1000 / 10, commit.c_str(), date);
  if (const std::string kernels = kernels::gpu_kernels_choice().name; !kernels.empty())
    std::fprintf(file, "  \"kernels\": \"%s\",\n", kernels.c_str());
  std::fprintf(file, "  \"clocks_mhz\": {\"sm\": %d, \"memory\": %d},\n  \"results\": [", sm_khz / 1000, memory_khz / 1000);
  for (size_t i = 0; i < results_.size(); ++i) {
    const Result& r = results_[i];
    std::fprintf(file, "%s\n    {\"headline\": \"%s\", \"name\": \"%s\", \"value\": %.5g, \"unit\": \"%s\"", i == 0 ? "" : ",",
                 r.headline.c_str(), r.name.c_str(), r.value, r.unit.c_str());
    if (r.floor > 0) std::fprintf(file, ", \"floor\": %.5g, \"floor_fraction\": %.3g", r.floor, r.floor / r.value);
    if (r.error >= 0) std::fprintf(file, ", \"error\": %.3g", r.error);
    std::fprintf(file, "}");
  }
  std::fprintf(file, "\n  ]\n}\n");
  std::fclose(file);
}

}  // namespace based::bench
