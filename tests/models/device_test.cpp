#include "based/models/device.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/core/error.h"

namespace based {
namespace device_test {

std::string refusal(const std::string& text) {
  try {
    parse_device(text, "--device");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(ParseDevice, TakesWhatIsThereAndNamesWhatIsNot) {
  EXPECT_TRUE(parse_device("cpu", "--device").is_cpu());
  for (const char* text : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:99999999999999999999", "CPU"})
    EXPECT_EQ(refusal(text), std::string("--device must be cpu, cuda or cuda:N, got '") + text + "'");
  if (torch::cuda::is_available()) {
    EXPECT_EQ(parse_device("cuda", "--device"), torch::Device(torch::kCUDA, 0));
    EXPECT_EQ(refusal("cuda:99").rfind("--device = cuda:99: devices 0..", 0), 0U) << refusal("cuda:99");
  } else {
    for (const char* text : {"cuda", "cuda:1"}) EXPECT_NE(refusal(text).find("BASED_WITH_CUDA"), std::string::npos) << text;
  }
}

}  // namespace device_test
}  // namespace based
