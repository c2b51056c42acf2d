#include "based/ops/framework/on_device.h"

#include <mutex>

#include "based/core/log.h"
#include "based/kernels/common/device_code.h"

namespace based::ops {

void warn_of_missing_code() {
  static std::once_flag once;
  std::call_once(once, [] {
    const kernels::DeviceLaunchers* table = kernels::launchers<kernels::DeviceLaunchers>(kernels::Device::cuda);
    if (const char* what = table != nullptr ? table->missing_code() : nullptr) log_warning(what);
  });
}

}  // namespace based::ops
