#include "card.h"

#include <array>
#include <atomic>

#include "based/kernels/common/device_code.h"
#include "loaded.h"
#include "stable.h"

namespace based::python {
namespace {

constexpr const char* kVersion = BASED_VERSION;
constexpr const char* kCuda = BASED_CUDA_VERSION;  // the version of the CUDA runtime in the wheel; empty without CUDA
constexpr int kLeastCapability = 8;

std::string version_text(int cuda) { return std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10); }

int attribute_of(int device, int attribute) {
  using GetAttribute = int(int*, int, int);
  static GetAttribute* const get = loaded_function<GetAttribute>("libcuda.so.1", "cuDeviceGetAttribute");
  int value = 0;
  return get != nullptr && get(&value, attribute, device) == 0 ? value : 0;
}

void require_fit(int32_t index) {
  if (kernels::launchers<kernels::DeviceLaunchers>(kernels::Device::cuda) == nullptr) return;  // the wheel has no kernels for GPUs
  const Card card = card_of(index);
  if (card.major == 0) return;
  const int needed = std::atoi(kCuda);
  require(card.major >= kLeastCapability && card.driver / 1000 >= needed, "based", "no kernel of ", wheel_text(), " runs on ",
          card_text(card), ": a card of compute capability ", kLeastCapability, ".0 or later and a driver for CUDA ", needed,
          " are needed");
}

}  // namespace

std::string wheel_text() {
  const std::string cuda(kCuda);
  return std::string("the wheel based-cpp ") + kVersion +
         (cuda.empty() ? " (CPU only)"
                       : " (CUDA " + cuda + ", for compute capability " + std::to_string(kLeastCapability) + ".0 and later)");
}

Card card_of(int32_t index) {
  Card card{"GPU " + std::to_string(index)};
  using GetName = int(char*, int, int);
  using GetVersion = int(int*);
  static GetName* const get_name = loaded_function<GetName>("libcuda.so.1", "cuDeviceGetName");
  static GetVersion* const get_version = loaded_function<GetVersion>("libcuda.so.1", "cuDriverGetVersion");
  std::array<char, 128> name{};
  if (get_name != nullptr && get_name(name.data(), static_cast<int>(name.size()), index) == 0) card.name = name.data();
  if (get_version != nullptr && get_version(&card.driver) != 0) card.driver = 0;
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
  card.major = attribute_of(index, kMajor);
  card.minor = attribute_of(index, kMinor);
  return card;
}

std::string card_text(const Card& card) {
  return card.name + " (compute capability " + std::to_string(card.major) + "." + std::to_string(card.minor) +
         "), whose driver supports CUDA " + version_text(card.driver);
}

namespace detail {

void require_card(int32_t index) {
  static std::array<std::atomic<bool>, 64> checked;
  const auto at = static_cast<size_t>(index);
  if (at < checked.size() && checked[at]) return;
  require_fit(index);
  if (at < checked.size()) checked[at] = true;
}

}  // namespace detail
}  // namespace based::python
