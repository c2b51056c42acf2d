#include <gtest/gtest.h>

#include "based/models/config.h"
#include "based/models/language_model.h"

namespace based {
namespace presets_test {

std::vector<size_t> layers_of(const std::string& preset, const std::string& kind) {
  std::vector<size_t> at;
  const auto& layers = find_preset(preset).layers;
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i] == kind) at.push_back(i);
  return at;
}

// The layers of the authors' published models, which parameter counts alone do not determine.
TEST(Presets, HybridsHaveTheAuthorsLayers) {
  EXPECT_EQ(layers_of("based-360m", "linear"), (std::vector<size_t>{1, 6, 11, 16, 21}));
  EXPECT_EQ(layers_of("based-360m", "window"), (std::vector<size_t>{2, 7, 12, 17, 22}));
  EXPECT_EQ(layers_of("based-1.4b", "linear"), (std::vector<size_t>{1, 6, 11, 16, 21, 27, 33}));
  EXPECT_EQ(layers_of("based-1.4b", "window"), (std::vector<size_t>{2, 7, 12, 17, 22, 28, 34}));
}

// The paper's table and the released weights differ in the windows; the released model has the parameters of the authors' code.
TEST(Presets, ThePapersAndTheReleasedModelDifferInTheirWindows) {
  const ModelConfig &paper = find_preset("based-1.4b"), &released = find_preset("based-1b-50b");
  EXPECT_EQ(paper.layers, released.layers);
  EXPECT_EQ(paper.mixers.at("window").find("window")->to_json(), "16");
  EXPECT_EQ(released.mixers.at("window").find("window")->to_json(), "129");
  EXPECT_EQ(parameter_count(released), 1349453056);
  EXPECT_EQ(parameter_count(paper) - parameter_count(released), 22 * 3584) << "the biases of 22 convolutions";
}

// The smaller model has the parameters of the authors' code, name by name. The larger one has the paper's sizes and its 1.32B parameters.
TEST(Presets, MambasHaveTheAuthorsParameters) {
  EXPECT_EQ(parameter_count(find_preset("mamba-360m")), 358190080);
  EXPECT_EQ(parameter_count(find_preset("mamba-1.3b")), 1319311360);
  EXPECT_EQ(find_preset("mamba-360m").padded_vocab(), 50288);
}

// The paper states 360M, 362M, 362M, 362M and 356M. There RWKV and GLA have an untied output head, 51.5M more, and Pythia has 2.1M learned
// positions.
TEST(Presets, OthersHaveThePapersSizes) {
  EXPECT_EQ(parameter_count(find_preset("hyena-360m")), 358451904);
  EXPECT_EQ(parameter_count(find_preset("h3-360m")), 357026560);
  EXPECT_EQ(parameter_count(find_preset("rwkv5-360m")) + 50264 * 1024, 362213376);
  EXPECT_EQ(parameter_count(find_preset("gla-360m")) + 50264 * 1024, 355257344);
  EXPECT_EQ(parameter_count(find_preset("pythia-360m")) + 2048 * 1024, 355878912);
}

}  // namespace presets_test
}  // namespace based
