#include "based/models/device.h"

#include <torch/cuda.h>

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

}  // namespace based
