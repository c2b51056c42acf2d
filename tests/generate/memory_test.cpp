// Estimates of memory, without a device.
#include "based/generate/memory.h"

#include <gtest/gtest.h>

#include "based/models/config.h"

namespace based::memory_test {

// int8 weights save memory on a GPU only where no step needs full ones beside them.
TEST(EngineBytes, FullWeightsAreCountedOnlyWhereAnEngineMakesThem) {
  const torch::Device gpu(torch::kCUDA, 0);
  const ModelPlace full{find_preset("based-360m"), torch::kBFloat16, gpu}, int8{full.config, full.dtype, gpu, /*quantised=*/true};
  const double parameters = static_cast<double>(parameter_count(full.config));
  const double of_full = engine_bytes(full, {.slots = 1}).fixed;
  EXPECT_LT(engine_bytes(int8, {.slots = 1}).fixed, of_full - 0.5 * parameters);
  EXPECT_GT(engine_bytes(int8, {.slots = 2}).fixed, of_full + 0.9 * parameters);
  EngineOptions invariant{.slots = 1};
  invariant.decode.invariant = true;
  EXPECT_GT(engine_bytes(int8, invariant).fixed, of_full + 0.9 * parameters) << "its steps have several rows";
  EXPECT_EQ(engine_bytes(full, {.slots = 2}).fixed, of_full);
  EXPECT_FALSE(needs_full_weights({.slots = 2}, torch::kCPU));
}

}  // namespace based::memory_test
