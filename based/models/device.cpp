#include "based/models/device.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/resource.h>
#include <torch/cuda.h>

#include <fstream>
#include <limits>
#include <mutex>
#include <set>

#include "based/core/error.h"
#include "based/kernels/common/gpu_kernels_choice.h"

namespace based {

torch::Device parse_device(const std::string& text, const std::string& what) {
  if (text == "cpu") return torch::kCPU;
  const bool numbered = text.rfind("cuda:", 0) == 0;
  const std::string number = numbered ? text.substr(5) : "0";
  const bool digits = !number.empty() && number.size() <= 3 && number.find_first_not_of("0123456789") == std::string::npos;
  if ((text != "cuda" && !numbered) || !digits) throw UsageError(what + " must be cpu, cuda or cuda:N, got '" + text + "'");
  const int index = std::stoi(number);
  const auto found = static_cast<int>(torch::cuda::is_available() ? torch::cuda::device_count() : 0);
  if (found == 0)
    throw UsageError(what + " = " + text +
                     ": no CUDA device can be used; this needs a build with -DBASED_WITH_CUDA=ON, a GPU and its driver");
  if (const char* error = kernels::gpu_kernels_choice().error) throw UsageError(error);
  if (index >= found) throw UsageError(what + " = " + text + ": devices 0.." + std::to_string(found - 1) + " are there");
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

namespace {

// torch returns streams from a small pool in a round-robin fashion. Streams that another OwnStream still uses are skipped.
struct OwnedStreams {
  std::mutex mutex;
  std::set<std::pair<c10::DeviceIndex, c10::StreamId>> taken;
};
OwnedStreams& owned_streams() {
  static OwnedStreams all;
  return all;
}
constexpr int kMostOwnStreams = 32;  // the size of the pool of a device

// The field, in kB, of a file of /proc; nullopt if there is none.
std::optional<int64_t> bytes_in(const char* file, const std::string& field) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(field)) return int64_t{1024} * std::stoll(line.substr(field.size()));
  return std::nullopt;
}

}  // namespace

OwnStream::OwnStream(torch::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl streams(device.type());
  streams.getStream(device).synchronize();  // tensors written on the previous stream are read on the new one
  OwnedStreams& all = owned_streams();
  const std::lock_guard lock(all.mutex);
  for (int tries = 0; tries < 4 * kMostOwnStreams && !guard_; ++tries) {
    const c10::Stream stream = streams.getStreamFromGlobalPool(device);
    if (all.taken.emplace(stream.device_index(), stream.id()).second) guard_.emplace(stream);
  }
  if (!guard_) throw Error("no more than " + std::to_string(kMostOwnStreams) + " runs at once can share a GPU");
}

OwnStream::~OwnStream() {
  if (!guard_) return;
  const c10::Stream stream = guard_->current_stream();
  stream.synchronize();
  OwnedStreams& all = owned_streams();
  const std::lock_guard lock(all.mutex);
  all.taken.erase({stream.device_index(), stream.id()});
  release_cached_memory(stream.device());
}

void synchronize(torch::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

int64_t peak_memory(torch::Device device) {
  if (device.is_cuda()) {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes.at(kAll).peak;
  }
  // ru_maxrss would count a program that became this one by exec, such as the Python of torchrun.
  if (const auto bytes = bytes_in("/proc/self/status", "VmHWM:")) return *bytes;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

int64_t available_memory(torch::Device device) {
  if (device.is_cuda()) return static_cast<int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first);
  return bytes_in("/proc/meminfo", "MemAvailable:").value_or(std::numeric_limits<int64_t>::max());  // unknown on other systems than Linux
}

void reset_peak_memory(torch::Device device) {
  if (device.is_cuda()) c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

void release_cached_memory(torch::Device device) {
  if (device.is_cuda()) c10::getDeviceAllocator(device.type())->emptyCache();
}

}  // namespace based
