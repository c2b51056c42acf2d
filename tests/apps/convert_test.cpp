// `based convert` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "based/core/folders.h"
#include "based/core/torch_file.h"
#include "tests/apps/program.h"
#include "tests/apps/published_mamba.h"

namespace based {
namespace convert_test {

using ::testing::HasSubstr;

class Convert : public testing::Test {
 protected:
  void SetUp() override { write_published_mamba(file("published")); }
  std::string file(const std::string& name) const { return folder_.file(name); }
  TemporaryFolder folder_;
};

TEST_F(Convert, GivesAModelThatGenerates) {
  const Ran ran = run("convert " + file("published") + " --out " + file("m") + " --tokenizer bytes");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("the model (mamba, "));
  EXPECT_EQ(run("generate --model " + file("m") + " --prompt hello --max-tokens 2").code, 0);
  EXPECT_THAT(run("convert " + file("published") + " --out " + file("m")).err, HasSubstr("--out"));
}

TEST_F(Convert, ComesBackAsBin) {
  ASSERT_EQ(run("convert " + file("published") + " --out " + file("m")).code, 0);
  const Ran back = run("convert " + file("m") + " --back --format bin --out " + file("back"));
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(TorchFile(file("back/pytorch_model.bin")).tensors().size(), 12U);
  EXPECT_EQ(read_file(file("back/config.json")), read_file(file("published/config.json")));
}

// Weights of zero give logits of zero.
TEST_F(Convert, WritesNothingWhereTheLogitsDiffer) {
  const std::array<int64_t, 3> ids{1, 2, 256};
  std::vector<double> logits(3 * 264);
  const auto convert = [&](const std::string& more) {
    write_safetensors(file("e.safetensors"), {{"ids", DType::I64, {1, 3}, std::as_bytes(std::span(ids))},
                                              {"logits", DType::F64, {1, 3, 264}, std::as_bytes(std::span(logits))}});
    return run("convert " + file("published") + " --expect " + file("e.safetensors") + more);
  };
  const Ran good = convert(" --out " + file("good"));
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr("largest difference of the logits in fp64: 0 of the largest logit (tolerance 1e-11)"));
  EXPECT_THAT(convert(" --dtype fp32 --out " + file("fp32")).out, HasSubstr("in fp32: 0 of the largest logit (tolerance 5e-05)"));
  logits[7] = 1;
  const Ran bad = convert(" --out " + file("bad"));
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.out, HasSubstr(": 1 of the largest logit"));
  EXPECT_THAT(bad.err, HasSubstr("logits differ by more than the tolerance"));
  EXPECT_FALSE(path_exists(file("bad")));
}

TEST_F(Convert, SaysWhatIsWrong) {
  const auto error = [&](const std::string& arguments) { return run("convert " + arguments + " --out " + file("x")).err; };
  EXPECT_THAT(error(file("published") + " --dtype fp32"), HasSubstr("give --expect too"));
  EXPECT_THAT(error(file("published") + " --format bin"), HasSubstr("--format needs --back"));
  EXPECT_THAT(error(file("published") + " --back"), HasSubstr("holds no source.safetensors"));
  write_file_atomic(file("published/config.json"), R"({"d_model": 8, "n_layer": 2, "vocab_size": 257, "ssm_cfg": {}})");
  const std::string missing = error(file("published"));
  EXPECT_THAT(missing, HasSubstr("model.safetensors: does not fit "));
  EXPECT_THAT(missing, HasSubstr("missing: backbone.layers.1.mixer.A_log [16, 16]"));
  EXPECT_FALSE(path_exists(file("x")));
}

class ConvertWeights : public Convert {
 protected:
  void SetUp() override {
    Convert::SetUp();
    ASSERT_EQ(run("convert " + file("published") + " --out " + file("full") + " --tokenizer bytes").code, 0);
    write_file_atomic(file("text"), "a short text for the comparison\n");
  }
};

TEST_F(ConvertWeights, GivesAQuantisedModelThatGenerates) {
  const Ran ran = run("convert " + file("full") + " --weights int8 --gate-text " + file("text") + " --out " + file("q"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("linear layers in int8, the embedding in int8: "));
  EXPECT_THAT(ran.out, HasSubstr("(at most +0.5 %)"));
  EXPECT_THAT(ran.out, HasSubstr("recall: not applicable"));
  EXPECT_EQ(run("generate --model " + file("q") + " --prompt hello --max-tokens 2").code, 0);
  EXPECT_THAT(run("inspect " + file("q")).out, HasSubstr("weights: linear layers in int8"));
}

TEST_F(ConvertWeights, TakesAPublishedFolder) {
  const Ran ran = run("convert " + file("published") + " --tokenizer bytes --weights int8 --no-gate --out " + file("q"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_FALSE(path_exists(file("q/full")));
  EXPECT_EQ(run("generate --model " + file("q") + " --prompt hello --max-tokens 2").code, 0);
}

TEST_F(ConvertWeights, SaysWhatIsWrong) {
  const auto error = [&](const std::string& arguments) { return run("convert " + arguments + " --out " + file("x")).err; };
  EXPECT_THAT(error(file("full")), HasSubstr("--weights int8 or int4 quantises it"));
  EXPECT_THAT(error(file("full") + " --weights int8"), HasSubstr("--weights needs a comparison"));
  EXPECT_THAT(error(file("full") + " --weights int5 --no-gate"), HasSubstr("--weights must be int8 or int4"));
  EXPECT_THAT(error(file("full") + " --no-gate"), HasSubstr("need --weights"));
  EXPECT_FALSE(path_exists(file("x")));
}

TEST_F(ConvertWeights, GoesToTransformersAndBack) {
  const Ran there = run("convert " + file("full") + " --hf --out " + file("hf"));
  ASSERT_EQ(there.code, 0) << there.err;
  EXPECT_THAT(there.out, HasSubstr("the model for transformers is in "));
  for (const char* name : {"modeling_based.py", "configuration_based.py", "generation_config.json", "tokenizer.json"})
    EXPECT_TRUE(path_exists(file(std::string("hf/") + name))) << name;
  EXPECT_THAT(read_file(file("hf/tokenizer_config.json")), HasSubstr("<|endoftext|>"));
  const Ran back = run("convert " + file("hf") + " --out " + file("back"));
  ASSERT_EQ(back.code, 0) << back.err;
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
    EXPECT_EQ(read_file(file(std::string("back/") + name)), read_file(file(std::string("full/") + name))) << name;
}

TEST_F(ConvertWeights, SaysWhatIsWrongWithTransformers) {
  const auto error = [&](const std::string& arguments) { return run("convert " + arguments + " --out " + file("x")).err; };
  EXPECT_THAT(error(file("published") + " --hf"), HasSubstr("--hf converts a model's folder of this library"));
  EXPECT_THAT(error(file("full") + " --hf --back"), HasSubstr("have no meaning with --hf"));
  EXPECT_THAT(error(file("full") + " --hf --tokenizer dna"), HasSubstr("dna: has "));
  EXPECT_FALSE(path_exists(file("x")));
}

}  // namespace convert_test
}  // namespace based
