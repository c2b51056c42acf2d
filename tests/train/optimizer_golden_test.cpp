// Some steps of a small language model as torch.optim.AdamW does them: loss, gradient norm and rate of each, and the weights at the end.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "based/core/error.h"
#include "based/core/files.h"
#include "based/core/safetensors.h"
#include "based/train/golden.h"
#include "tests/data/goldens.h"

namespace based {
namespace optimizer_golden_test {

namespace fs = std::filesystem;

class OptimizerGolden : public testing::Test {
 protected:
  void SetUp() override { BASED_NEEDS_FILE(path_); }

  // A copy of the file in which the first number of this tensor is multiplied.
  std::string with(const std::string& name, double factor) const {
    const std::string copy = (fs::path(testing::TempDir()) / "optimizer_golden.safetensors").string();
    fs::copy_file(path_, copy, fs::copy_options::overwrite_existing);
    fs::permissions(copy, fs::perms::owner_write, fs::perm_options::add);
    const SafetensorsFile file(path_);
    const TensorView& view = file.at(name);
    double value = 0;
    std::memcpy(&value, view.bytes.data(), sizeof(value));
    value *= factor;
    const auto at = static_cast<std::streamoff>(fs::file_size(path_)) - from_end(file, view);
    std::fstream out(copy, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(at);
    out.write(reinterpret_cast<const char*>(&value), sizeof(value));
    return copy;
  }

  const std::string path_ = test::golden("optim/adamw_attention_lm.safetensors");

 private:
  // The data ends with the file.
  static std::streamoff from_end(const SafetensorsFile& file, const TensorView& view) {
    const std::byte* end = nullptr;
    for (const TensorView& one : file.tensors()) end = std::max(end, one.bytes.data() + one.bytes.size());
    return end - view.bytes.data();
  }
};

TEST_F(OptimizerGolden, TwentyStepsAgree) {
  EXPECT_TRUE(is_optimizer_golden(path_));
  const GoldenResult result = check_optimizer_golden(path_);
  EXPECT_EQ(result.skipped, "");
  EXPECT_TRUE(result.pass) << result.worst << ", figures " << result.output_error << ", weights " << result.gradient_error << ", float32 "
                           << result.output_error_float32;
  EXPECT_GT(result.output_error_float32, 0);
}

TEST_F(OptimizerGolden, FailsWhereAnythingDiffers) {
  for (const auto& [name, worst] : {std::pair{"loss", "loss of step 0 in float64"},
                                    {"grad_norm", "grad_norm of step 0 in float64"},
                                    {"lr", "lr of step 0 in float64"},
                                    {"param.transformer.ln_f.weight", "param.transformer.ln_f.weight in float64"}}) {
    const GoldenResult result = check_optimizer_golden(with(name, 1 + 1e-6));
    EXPECT_FALSE(result.pass) << name;
    EXPECT_EQ(result.worst, worst);
  }
}

TEST(OptimizerGoldens, AreToldFromOthers) {
  EXPECT_FALSE(is_optimizer_golden(std::string(BASED_SOURCE_DIR) + "/tests/goldens/based/mha_rot_L37.safetensors"));
}

}  // namespace optimizer_golden_test
}  // namespace based
