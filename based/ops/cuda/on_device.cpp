#include "based/ops/cuda/on_device.h"

#include <mutex>

#include "based/core/log.h"
#include "based/kernels/device_code.h"

namespace based::ops {

void warn_of_missing_code() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (const char* what = kernels::cuda::missing_code()) log_warning(what);
  });
}

}  // namespace based::ops
