// `based convert` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>

#include "based/core/folders.h"
#include "based/core/torch_file.h"
#include "tests/apps/program.h"
#include "tests/apps/published_mamba.h"

namespace based {
namespace convert_test {

using ::testing::HasSubstr;
using ::testing::Not;

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

// The tolerance of the file counts, in each of its forms.
TEST_F(Convert, ComparesByTheTolerance) {
  const std::array<int64_t, 2> ids{1, 2};
  std::vector<double> logits(2 * 264);
  logits[7] = 1;  // the largest difference is 1
  const auto convert = [&](const std::string& tolerance, const std::string& more = "") {
    write_safetensors(
        file("e.safetensors"),
        {{"ids", DType::I64, {1, 2}, std::as_bytes(std::span(ids))}, {"logits", DType::F64, {1, 2, 264}, std::as_bytes(std::span(logits))}},
        {{"tolerance", tolerance}});
    remove_tree(file("out"));
    return run("convert " + file("published") + " --expect " + file("e.safetensors") + " --out " + file("out") + more);
  };
  EXPECT_EQ(convert("1").code, 0);
  EXPECT_EQ(convert("1.0", " --dtype bf16").code, 0);
  EXPECT_EQ(convert("1e0 in float64, 1e-3 in float32").code, 0);
  EXPECT_THAT(convert("1 in float64, 1e-3 in float32", " --dtype fp32").out, HasSubstr("(tolerance 0.001)"));
  EXPECT_THAT(convert("1 in float64", " --dtype fp32").out, HasSubstr("(tolerance 5e-05)"));
  EXPECT_THAT(convert("1e-13").out, HasSubstr("(tolerance 1e-13)"));
  for (const char* text : {"exact", "-1", "nan", "inf", "", "much in float64", "much in float64, 1 in float32"}) {
    const Ran ran = convert(text);
    EXPECT_EQ(ran.code, 1) << text;
    EXPECT_THAT(ran.err, HasSubstr("e.safetensors: metadata tolerance is '" + std::string(text) + "'; it must be a positive number"))
        << text;
  }
}

TEST_F(Convert, RunsWeightsInFp16) {
  write_published_mamba(file("half"), DType::F16);
  ASSERT_EQ(run("convert " + file("half") + " --out " + file("m") + " --tokenizer bytes").code, 0);
  const Ran ran = run("generate --model " + file("m") + " --prompt hello --max-tokens 2");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("model.safetensors: the weights are fp16; the model runs in fp32"));
  EXPECT_EQ(run("generate --model " + file("m") + " --prompt hello --max-tokens 2 --draft " + file("m")).code, 0);
  EXPECT_THAT(run("generate --model " + file("m") + " --prompt hello --max-tokens 2 --dtype bf16").err, Not(HasSubstr("fp16")));
  write_file_atomic(file("text"), "a short text for the comparison\n");
  EXPECT_EQ(run("perplexity --model " + file("m") + " --data " + file("text")).code, 0);
  EXPECT_EQ(run("mqar eval --model " + file("m") + " --length 16 --pairs 2 --examples 2").code, 0);
  const Ran quantised = run("convert " + file("m") + " --weights int8 --gate-text " + file("text") + " --out " + file("q"));
  EXPECT_EQ(quantised.code, 0) << quantised.err;
  EXPECT_EQ(run("generate --model " + file("q") + " --prompt hello --max-tokens 2").code, 0);
}

TEST_F(Convert, GivesAModelThatIsTrainedFurtherAndComesBack) {
  ASSERT_EQ(run("convert " + file("published") + " --out " + file("m") + " --tokenizer bytes").code, 0);
  write_file_atomic(file("text.txt"), std::string(2000, 'a') + "\n");
  write_file_atomic(file("run.toml"), "[data]\ntrain = \"" + file("text.txt") + "\"\ntokenizer = \"" + file("m") +
                                          "\"\n[train]\nstart = \"" + file("m") + "\"\nsteps = 2\nbatch = 2\nlength = 16\n");
  const Ran trained = run("train " + file("run.toml") + " --out " + file("t"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  for (const char* name : {"/source_config.json", "/source.safetensors"}) std::filesystem::copy_file(file("m") + name, file("t") + name);
  const Ran back = run("convert " + file("t") + " --back --out " + file("back"));
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(SafetensorsFile(file("back/model.safetensors")).tensors().size(),
            SafetensorsFile(file("published/model.safetensors")).tensors().size());
}

TEST_F(Convert, WarnsOfNumbersThatAreNotFinite) {
  const SafetensorsFile weights(file("published/model.safetensors"));
  std::vector<TensorView> tensors = weights.tensors();
  const std::vector<float> damaged{0, 0, NAN, 0, -INFINITY, 0, 0, 0};
  for (TensorView& tensor : tensors)
    if (tensor.name == "backbone.norm_f.weight") tensor.bytes = std::as_bytes(std::span(damaged));
  std::filesystem::create_directories(file("nan"));
  write_file_atomic(file("nan/config.json"), read_file(file("published/config.json")));
  write_safetensors(file("nan/model.safetensors"), tensors);
  const Ran ran = run("convert " + file("nan") + " --out " + file("m"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("nan/model.safetensors: tensor 'backbone.norm_f.weight': 2 of 8 numbers are not finite"));
  EXPECT_THAT(run("convert " + file("m") + " --weights int8 --no-gate --out " + file("q")).err,
              HasSubstr("m/model.safetensors: tensor 'norm.weight': 2 of 8 numbers are not finite"));
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
  EXPECT_THAT(error(file("published/config.json")),
              HasSubstr("published/config.json: is no folder; name the folder with config.json and the weights"));
  const Ran unconverted = run("generate --model " + file("published") + " --prompt a");
  EXPECT_EQ(unconverted.code, 1);
  EXPECT_THAT(unconverted.err, HasSubstr("`based convert"));
  write_file_atomic(file("published/model.safetensors.index.json"), "{}");
  EXPECT_THAT(error(file("published")), HasSubstr("put all tensors into one dict and save it as model.safetensors"));
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

// Weights of zero recall nothing.
TEST_F(ConvertWeights, SaysThatNoRecallWasCompared) {
  const Ran ran = run("convert " + file("full") + " --weights int8 --gate-mqar --gate-length 16 --gate-pairs 2 --out " + file("q"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("the full model recalls nothing, as a guess among the 129 values would: --gate-mqar compared nothing"));
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
  for (const std::string& gate : {std::string("--no-gate"), std::string("--gate-mqar"), "--gate-text " + file("text")})
    EXPECT_THAT(error(file("full") + " " + gate), HasSubstr(" requires --weights"));
  const std::string gated = file("full") + " --weights int8 --gate-text " + file("text");
  EXPECT_THAT(error(gated + " --gate-length 128"), HasSubstr("--gate-length requires --gate-mqar"));
  EXPECT_THAT(error(gated + " --gate-pairs 4"), HasSubstr("--gate-pairs requires --gate-mqar"));
  EXPECT_THAT(error(gated + " --gate-mqar --gate-length 3"), HasSubstr("--gate-length and --gate-pairs: mqar: length must be from 4"));
  EXPECT_THAT(error(gated + " --gate-mqar --gate-pairs 300"), HasSubstr("--gate-pairs: mqar: pairs must be from 1 to a quarter"));
  const Ran many = run("convert " + gated + " --gate-mqar --gate-length 2048 --gate-pairs 300 --out " + file("x"));
  EXPECT_EQ(many.code, 2);
  EXPECT_THAT(many.err, HasSubstr("--gate-pairs: mqar: pairs must be at most the 127 keys"));
  EXPECT_THAT(many.out, Not(HasSubstr("linear layers")));
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
