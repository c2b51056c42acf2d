#include "based/models/device.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/resource.h>
#include <torch/cuda.h>

#include <fstream>
#include <limits>

#include "based/core/error.h"

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
  if (index >= found) throw UsageError(what + " = " + text + ": devices 0.." + std::to_string(found - 1) + " are there");
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

OwnStream::OwnStream(torch::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl streams(device.type());
  streams.getStream(device).synchronize();  // what was filled there is used on this one
  guard_.emplace(streams.getStreamFromGlobalPool(device));
}

OwnStream::~OwnStream() {
  if (guard_) guard_->current_stream().synchronize();
}

void synchronize(torch::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

int64_t peak_memory(torch::Device device) {
  if (device.is_cuda()) {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes.at(kAll).peak;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

int64_t available_memory(torch::Device device) {
  if (device.is_cuda()) return static_cast<int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first);
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("MemAvailable:")) return int64_t{1024} * std::stoll(line.substr(13));
  return std::numeric_limits<int64_t>::max();  // no Linux: not known
}

void reset_peak_memory(torch::Device device) {
  if (device.is_cuda()) c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

}  // namespace based
