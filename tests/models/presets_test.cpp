#include <gtest/gtest.h>

#include "based/models/config.h"

namespace based {
namespace {

std::vector<size_t> layers_of(const std::string& preset, const std::string& kind) {
  std::vector<size_t> at;
  const auto& layers = find_preset(preset).layers;
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i] == kind) at.push_back(i);
  return at;
}

// The layers of the authors' published models; counts of parameters alone do not tell them.
TEST(Presets, HybridsHaveTheAuthorsLayers) {
  EXPECT_EQ(layers_of("based-360m", "linear"), (std::vector<size_t>{1, 6, 11, 16, 21}));
  EXPECT_EQ(layers_of("based-360m", "window"), (std::vector<size_t>{2, 7, 12, 17, 22}));
  EXPECT_EQ(layers_of("based-1.4b", "linear"), (std::vector<size_t>{1, 6, 11, 16, 21, 27, 33}));
  EXPECT_EQ(layers_of("based-1.4b", "window"), (std::vector<size_t>{2, 7, 12, 17, 22, 28, 34}));
}

}  // namespace
}  // namespace based
