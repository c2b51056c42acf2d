// Agreement with other implementations: always for the files in tests/goldens, and for the whole collection if it is there.
#include "based/models/golden.h"
#include "based/runtime/torch.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "based/core/error.h"
#include "based/core/safetensors.h"
#include "based/models/tensor_view.h"

namespace based {
namespace golden_test {

namespace fs = std::filesystem;
using torch::Tensor;

std::vector<std::string> golden_files(const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(fs::relative(entry.path(), folder).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

fs::path committed_folder() { return fs::path(BASED_SOURCE_DIR) / "tests" / "goldens"; }

// The folders of the collection with mixers and models of this build.
bool of_this_build(const std::string& file) {
  for (const char* start : {
           "based/",
           "decay/",
           "checkpoints/",
           "feature_maps/",
           "linear_attention/",
           "lm/",
           "recurrence/delta",
           "recurrence/gated_delta",
           "recurrence/gla",
           "recurrence/selective_scan",
           "recurrence/taylor",
           "recurrence/wkv5",
           "zoology/base_conv",
           "zoology/bigbird",
           "zoology/delta_net",
           "zoology/gated_delta_net",
           "zoology/gla",
           "zoology/h3",
           "zoology/hyena",
           "zoology/mamba",
           "zoology/mha",
           "zoology/nystromformer",
           "zoology/rwkv5",
           "zoology/scatterbrain",
           "zoology/sliding",
           "zoology_lm/mqar_attention",
           "zoology_lm/mqar_based",
           "zoology_lm/mqar_h3",
           "zoology_lm/mqar_hyena",
           "zoology_lm/mqar_mamba",
           "zoology_lm/mqar_sliding",
       }) {
    if (file.rfind(start, 0) == 0) return true;
  }
  return false;
}

// Files whose reference deviates from the definition, with the reason.
const std::map<std::string, std::string> kSkipped = {
    {"zoology/base_conv_long_explicit_L37.safetensors", "wraps around"},
    {"linear_attention/taylor_exp_d8_noncausal.safetensors", "not causal"},
    {"recurrence/taylor_fla.safetensors", "eps"},
    {"zoology/scatterbrain_L37.safetensors", "sum to more than one"},
    {"zoology/nystromformer_m8_L37.safetensors", "see the future"},
};

void expect_agreement(const fs::path& folder, const std::string& file, torch::Device device = torch::kCPU) {
  const GoldenResult result = check_golden((folder / file).string(), device);
  const auto skipped = kSkipped.find(file);
  if (skipped != kSkipped.end()) {
    EXPECT_NE(result.skipped.find(skipped->second), std::string::npos) << file << ": " << result.skipped;
    return;
  }
  EXPECT_EQ(result.skipped, "") << file;
  EXPECT_TRUE(result.pass) << file << ": worst is " << result.worst << "; float64 output " << result.output_error << ", gradient "
                           << result.gradient_error << ", allowed " << result.tolerance << "; float32 output "
                           << result.output_error_float32 << ", gradient " << result.gradient_error_float32 << ", allowed "
                           << result.tolerance_float32;
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, Agrees) { expect_agreement(committed_folder(), GetParam()); }

TEST_P(Golden, AgreesOnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  expect_agreement(committed_folder(), GetParam(), torch::kCUDA);
}

std::vector<std::string> committed_mixers() {
  std::vector<std::string> files = golden_files(committed_folder());
  std::erase_if(files, [](const std::string& file) { return !of_this_build(file); });
  return files;
}

INSTANTIATE_TEST_SUITE_P(Committed, Golden, testing::ValuesIn(committed_mixers()), [](const testing::TestParamInfo<std::string>& file) {
  std::string name = file.param.substr(0, file.param.rfind('.'));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

TEST(GoldenCollection, AgreesOrSaysWhyNot) {
  const char* given = std::getenv("BASED_GOLDENS");
  const fs::path folder = given != nullptr ? fs::path(given) : fs::path(BASED_SOURCE_DIR) / ".." / "shared" / "goldens";
  if (!fs::is_directory(folder)) GTEST_SKIP() << "no collection of golden files at $BASED_GOLDENS or " << folder.string();
  int64_t compared = 0;
  for (const std::string& file : golden_files(folder)) {
    if (of_this_build(file)) {
      expect_agreement(folder, file);
      ++compared;
    } else {
      try {
        const GoldenResult result = check_golden((folder / file).string());
        EXPECT_TRUE(result.pass || !result.skipped.empty()) << file << ": worst is " << result.worst;
      } catch (const Error& error) {  // the file has a part that this library does not have
        EXPECT_NE(std::string(error.what()).find(file), std::string::npos) << error.what();
      }
    }
  }
  EXPECT_GT(compared, 0);
}

// A golden file that the test writes, computed by the formula y = Σ w v / Σ w, w = 1 + s + s²/2, s = q·k/√d'.
class MadeGolden : public testing::Test {
 protected:
  void SetUp() override {
    torch::manual_seed(1);
    const auto options = torch::dtype(torch::kFloat64);
    const int64_t rows = 3, length = 11, d_model = 20, heads = 5, feature_dim = 3, head_dim = 6;
    add("x", torch::randn({rows, length, d_model}, options));
    add("g", torch::randn({rows, length, d_model}, options));
    add("param.proj_q.weight", torch::randn({heads * feature_dim, d_model}, options));
    add("param.proj_k.weight", torch::randn({heads * feature_dim, d_model}, options));
    add("param.proj_v.weight", torch::randn({heads * head_dim, d_model}, options));
    add("param.proj_o.weight", torch::randn({d_model, heads * head_dim}, options));
    for (auto& [name, tensor] : tensors_) tensor = tensor.to(torch::kFloat32).to(torch::kFloat64);
    std::vector<std::string> names = {"x", "param.proj_q.weight", "param.proj_k.weight", "param.proj_v.weight", "param.proj_o.weight"};
    std::vector<Tensor> inputs;
    for (const auto& name : names) inputs.push_back(tensors_[name].requires_grad_(true));
    const auto split = [&](const Tensor& weight, int64_t size) {
      return torch::matmul(inputs[0], weight.t()).view({rows, length, heads, size}).transpose(1, 2);
    };
    const Tensor q = split(inputs[1], feature_dim), k = split(inputs[2], feature_dim), v = split(inputs[3], head_dim);
    const Tensor s = torch::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(feature_dim));
    const Tensor w = torch::tril(1 + s + s * s / 2);
    const Tensor mixed = torch::matmul(w, v) / w.sum(-1, true);
    const Tensor y = torch::matmul(mixed.transpose(1, 2).reshape({rows, length, heads * head_dim}), inputs[4].t());
    const auto gradients = torch::autograd::grad({(y * tensors_["g"]).sum()}, inputs);
    add("y", y.detach());
    for (size_t i = 0; i < names.size(); ++i) add("grad." + names[i].substr(names[i] == "x" ? 0 : 6), gradients[i]);
    for (auto& [name, tensor] : tensors_) tensor = tensor.detach().contiguous();
    metadata_ = {{"mixer", "linear_attention/taylor_exp"},
                 {"config", R"({"d_model": 20, "num_heads": 5, "feature_dim": 3})"},
                 {"tolerance", "1e-11 in float64, 5e-5 in float32"}};
  }

  void add(const std::string& name, const Tensor& tensor) { tensors_[name] = tensor; }

  std::string write() const {
    const std::string path = (fs::path(testing::TempDir()) / "made_golden.safetensors").string();
    std::vector<TensorView> views;
    for (const auto& [name, tensor] : tensors_) views.push_back(view_of(name, tensor));
    write_safetensors(path, views, metadata_);
    return path;
  }

  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

TEST_F(MadeGolden, OfOddSizesPasses) {
  const GoldenResult result = check_golden(write());
  EXPECT_TRUE(result.pass) << result.worst;
  EXPECT_LE(result.output_error, 1e-11);
  EXPECT_GT(result.output_error_float32, 0);
}

TEST_F(MadeGolden, FailsWhereTheOutputDiffers) {
  tensors_["y"][1][4][7] += 1e-8;
  const GoldenResult result = check_golden(write());
  EXPECT_FALSE(result.pass);
  EXPECT_EQ(result.worst, "y in float64");
}

TEST_F(MadeGolden, FailsWhereOneGradientDiffers) {
  tensors_["grad.proj_k.weight"][0][0] += 1e-6;
  const GoldenResult result = check_golden(write());
  EXPECT_FALSE(result.pass);
  EXPECT_EQ(result.worst, "grad.proj_k.weight in float64");
}

TEST_F(MadeGolden, FailsWhereOnlyFloat32Differs) {
  metadata_["tolerance"] = "1e-3 in float64, 1e-9 in float32";
  const GoldenResult result = check_golden(write());
  EXPECT_FALSE(result.pass);
  EXPECT_NE(result.worst.find("in float32"), std::string::npos);
}

TEST_F(MadeGolden, ComparesInFloat64AloneWhereTheToleranceSaysSo) {
  metadata_["tolerance"] = "float64 only, relative to the largest entry of each tensor: 1e-8";
  tensors_["y"][1][4][7] += 1e-9;
  const GoldenResult result = check_golden(write());
  EXPECT_TRUE(result.pass) << result.worst;
  EXPECT_EQ(result.tolerance, 1e-8);
  EXPECT_EQ(result.tolerance_float32, 0);
}

TEST_F(MadeGolden, RefusesWhatIsIncomplete) {
  const auto message = [this] {
    try {
      check_golden(write());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto tensors = tensors_;
  tensors_.erase("param.proj_q.weight");
  EXPECT_NE(message().find("proj_q"), std::string::npos);
  tensors_ = tensors;
  add("param.proj_z.weight", torch::zeros({2, 2}, torch::kFloat64));
  EXPECT_NE(message().find("'param.proj_z.weight' has no counterpart"), std::string::npos);
  tensors_ = tensors;
  add("grad.proj_q.weight", torch::zeros({2, 2}, torch::kFloat64));
  EXPECT_NE(message().find("grad.proj_q.weight"), std::string::npos);
  tensors_ = tensors;
  metadata_["config"] = R"({"d_model": 20, "num_heads": 4})";
  EXPECT_NE(message().find("is not a multiple of 4"), std::string::npos);
  metadata_["config"] = R"({"d_model": 20, "num_heads": "five"})";
  EXPECT_NE(message().find("'num_heads' has the wrong type"), std::string::npos);
  metadata_["config"] = R"({"num_heads": 5})";
  metadata_["tolerance"] = "small";
  EXPECT_NE(message().find("in float64"), std::string::npos);
}

TEST_F(MadeGolden, SkipsOtherMixersByName) {
  metadata_["mixer"] = "nonesuch";
  EXPECT_EQ(check_golden(write()).skipped, "mixer 'nonesuch' is not in this build");
  for (const char* mixer : {"linear_attention/nonesuch", "feature_map/nonesuch"}) {
    metadata_["mixer"] = mixer;
    EXPECT_EQ(check_golden(write()).skipped, "feature map 'nonesuch' is not in this build");
  }
}

}  // namespace golden_test
}  // namespace based
