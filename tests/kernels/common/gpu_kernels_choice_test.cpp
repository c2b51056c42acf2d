#include <gtest/gtest.h>

#include <string_view>

#include "based/kernels/common/gpu_kernels_choice.h"

namespace based::kernels {
namespace {

TEST(GpuKernelsChoice, IsUnrestrictedWithoutTheVariable) {
  for (const char* value : {static_cast<const char*>(nullptr), ""}) {
    const GpuKernelsChoice choice = parse_gpu_kernels(value);
    EXPECT_TRUE(choice.hopper_code);
    EXPECT_EQ(choice.block_shared_bytes, 0);
    EXPECT_EQ(choice.error, nullptr);
  }
}

TEST(GpuKernelsChoice, RestrictsCodeAndSharedMemory) {
  EXPECT_FALSE(parse_gpu_kernels("portable").hopper_code);
  EXPECT_EQ(parse_gpu_kernels("portable").block_shared_bytes, 0);
  EXPECT_FALSE(parse_gpu_kernels("portable-99k").hopper_code);
  EXPECT_EQ(parse_gpu_kernels("portable-99k").block_shared_bytes, 101376);
}

TEST(GpuKernelsChoice, RefusesOtherValues) {
  for (const char* value : {"hopper", "portable ", "PORTABLE", "99k"}) {
    ASSERT_NE(parse_gpu_kernels(value).error, nullptr) << value;
    EXPECT_NE(std::string_view(parse_gpu_kernels(value).error).find("BASED_GPU_KERNELS"), std::string_view::npos);
  }
}

}  // namespace
}  // namespace based::kernels
