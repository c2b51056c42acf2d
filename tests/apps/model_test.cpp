// The commands' handling of a model's folder: they refuse inconsistent, too large and unreadable files with a one-line message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "based/core/json.h"
#include "based/core/safetensors.h"
#include "tests/apps/small_model.h"

namespace based {
namespace model_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kSmallMemory = "ulimit -v 6000000; ";  // KiB: far more than the program needs, far less than the files ask for

class Model : public SmallModel {
 protected:
  static void SetUpTestSuite() {
    train_model(R"([model]
d_model = 8
layers = ["attention"]
mlp_width = 8
[model.mixers.attention]
type = "attention"
heads = 1
[train]
steps = 1
batch = 1
length = 8
evaluate_batches = 1
[data]
bpe_vocab_size = 300
)");
    const Ran positions = run("train " + shared("run.toml") + " --set model.max_positions=8 --out " + shared("positions"));
    ASSERT_EQ(positions.code, 0) << positions.err;
  }
  // A copy of the model that a test may damage.
  std::string model(const std::string& name = "m") {
    fs::copy(shared(name), file(name), fs::copy_options::recursive);
    return file(name);
  }
  // Replaces the folder's tokenizer by one that was trained on another text.
  void exchange_tokenizer(const std::string& folder, int vocab_size) {
    std::ofstream(file("other.txt")) << "an entirely different text, which gives different merges; different, entirely\n"
                                     << "quick brown foxes jump over lazy dogs and quick brown dogs jump over lazy foxes\n"
                                     << "quick brown foxes jump over lazy dogs and quick brown dogs jump over lazy foxes\n";
    const std::string other = file("other-tokenizer");
    const Ran ran =
        run("tokenize train " + file("other.txt") + " --overwrite --vocab-size " + std::to_string(vocab_size) + " --out " + other);
    ASSERT_EQ(ran.code, 0) << ran.err;
    for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt"})
      fs::copy_file(other + "/" + name, folder + "/" + name, fs::copy_options::overwrite_existing);
  }
  void expect_refused(const std::string& arguments, const testing::Matcher<std::string>& says, const std::string& before = "") {
    const Ran ran = run(arguments, before);
    EXPECT_EQ(ran.code, 1) << arguments << "\n" << ran.err;
    EXPECT_THAT(ran.out, IsEmpty()) << arguments;
    EXPECT_THAT(ran.err, says) << arguments;
    EXPECT_THAT(ran.err, Not(HasSubstr("frame #"))) << arguments;
  }
  // All commands that convert between text and ids.
  std::vector<std::string> commands(const std::string& folder) {
    return {"generate --prompt cat --max-tokens 2 --model " + folder, "perplexity --data " + shared("text.txt") + " --model " + folder,
            "state save " + file("new.state") + " --prompt cat --model " + folder, "state load " + file("a.state") + " --model " + folder};
  }
};

// A model with a mixer without a recurrent form can be trained, and its recall measured. Commands that need a state refuse it by its layer.
TEST_F(Model, WithoutARecurrentFormIsRefusedByItsLayer) {
  const std::string m = file("parallel");
  const Ran learnt = run("train " + shared("run.toml") + " --set 'model.layers=[\"attention\", \"sparse\"]'" +
                         " --set model.mixers.sparse.type=nystromformer --out " + m);
  ASSERT_EQ(learnt.code, 0) << learnt.err;
  ASSERT_EQ(run("state save " + file("a.state") + " --prompt 'the cat' --model " + shared("m")).code, 0);
  for (const std::string& command : commands(m))
    expect_refused(command, AllOf(HasSubstr("layer 1"), HasSubstr("'sparse'"), HasSubstr("without a recurrent form")));
  expect_refused("inspect " + m + " --plan --device h200", HasSubstr("'sparse'"));
  const Ran sizes = run("inspect " + m);
  EXPECT_EQ(sizes.code, 0) << sizes.err;
  const Ran recall = run("mqar eval --length 32 --examples 20 --model " + m);
  EXPECT_EQ(recall.code, 0) << recall.err;
}

// A plan needs no GPU. If the user names no device and there is no GPU, the message suggests --device h200.
TEST_F(Model, WithoutAGpuAPlanForOneIsSuggested) {
  for (const char* device : {"", " --device cuda", " --device cuda:3"}) {
    const Ran ran = run("inspect " + shared("m") + " --plan" + device, "export CUDA_VISIBLE_DEVICES=; ");
    EXPECT_EQ(ran.code, 2) << device;
    EXPECT_THAT(ran.out, IsEmpty());
    EXPECT_THAT(ran.err, HasSubstr("; --device h200 plans for an H200, which need not be present")) << device;
  }
  for (const std::string& named : {shared("m"), std::string("h3-360m"), std::string("rwkv5-360m")}) {
    const Ran ran = run("inspect " + named + " --plan --device h200");
    EXPECT_EQ(ran.code, 0) << named << ": " << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("based::linear")) << named;
  }
  expect_refused("inspect hyena-360m --plan --device h200", AllOf(HasSubstr("layer 'mixer' (mixer hyena)"), Not(HasSubstr("aten::"))));
}

// Models of every type load from their folder, including rwkv5, whose token shift has a buffer of the weights' type.
TEST_F(Model, EveryTypeOfRwkvIsReadAndResumed) {
  for (const char* mixer : {"rwkv5", "rwkv5_channel_mix"})
    for (const char* precision : {"fp32", "bf16"}) {
      const std::string m = file(std::string(mixer) + precision);
      const std::string options = " --set model.mixers.attention='{type = \"" + std::string(mixer) +
                                  "\"}' --set model.d_model=64 --set train.precision=" + precision;
      const auto train = [&](const std::string& more) { return run("train " + shared("run.toml") + options + more + " --out " + m); };
      Ran ran = train("");
      ASSERT_EQ(ran.code, 0) << ran.err;
      ran = train(" --resume");
      EXPECT_EQ(ran.code, 0) << ran.err;
      for (const char* dtype : {"", " --dtype fp32", " --dtype bf16", " --dtype fp64"}) {
        ran = run("state save " + file("a.state") + " --prompt 'the cat' --model " + m + dtype);
        EXPECT_EQ(ran.code, 0) << ran.err;
        for (std::string command : commands(m)) {
          ran = run(command + dtype);
          EXPECT_EQ(ran.code, 0) << command << dtype << "\n" << ran.err;
        }
      }
    }
}

TEST_F(Model, AnotherTokenizerIsRefused) {
  const std::string m = model();
  ASSERT_EQ(run("state save " + file("a.state") + " --prompt 'the cat' --model " + m).code, 0);
  for (const std::string& command : commands(m)) EXPECT_EQ(run(command).code, 0) << command << "\n" << run(command).err;
  exchange_tokenizer(m, 300);
  for (const std::string& command : commands(m))
    expect_refused(command,
                   AllOf(HasSubstr(m + "/tokenizer.json: is not the tokenizer of " + m + "/model.safetensors"), HasSubstr("back")));
  for (const int size : {299, 301}) {
    exchange_tokenizer(m, size);
    for (const std::string& command : commands(m))
      expect_refused(command,
                     HasSubstr(m + "/tokenizer.json: has " + std::to_string(size) + " tokens, the model of " + m + "/config.json 300"));
  }
}

// Other programs and earlier versions write such weights.
TEST_F(Model, WeightsThatRecordNoTokenizerLoadWithAWarningAndTheirStatesNeedTheSameTokenizer) {
  const std::string m = model(), weights = m + "/model.safetensors";
  {
    const SafetensorsFile file(weights);
    write_safetensors(weights, file.tensors(), {{"format", "pt"}});
  }
  ASSERT_EQ(run("state save " + file("a.state") + " --prompt 'the cat' --model " + m).code, 0);
  for (const std::string& command : commands(m)) {
    const Ran ran = run(command);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(weights + ": does not record its tokenizer")) << command;
  }
  exchange_tokenizer(m, 300);
  expect_refused(commands(m).back(), HasSubstr("a.state: made by model "));
}

TEST_F(Model, MorePositionsThanLearntAreRefusedBeforeAnythingRuns) {
  const std::string m = shared("positions"), prompt = " --prompt 'qqqqq' --model " + m;  // one token per letter
  const std::string says = "(max_positions)";
  EXPECT_EQ(run("generate --max-tokens 4" + prompt).code, 0);
  expect_refused("generate --max-tokens 5" + prompt, AllOf(HasSubstr("9 positions are needed"), HasSubstr(says)));
  expect_refused("generate --stream --max-tokens 9223372036854775807" + prompt, HasSubstr(says));
  expect_refused("state save " + file("a.state") + " --prompt qqqqqqqqqq --model " + m, HasSubstr(says));
  EXPECT_FALSE(fs::exists(file("a.state")));
  EXPECT_EQ(run("perplexity --context 8 --data " + shared("text.txt") + " --model " + m).code, 0);
  for (const char* context : {"0", "9"})
    expect_refused("perplexity --data " + shared("text.txt") + " --model " + m + " --context " + context, HasSubstr(says));
}

TEST_F(Model, ThePathOfTheStateIsCheckedFirst) {
  const std::string nowhere = file("none/a.state");
  for (const std::string& place : {nowhere, folder_.path().string()}) {
    expect_refused("generate --stream --prompt cat --model " + shared("m") + " --save-state " + place, HasSubstr(place + ": cannot"));
    expect_refused("state save " + place + " --prompt cat --model " + shared("m"), HasSubstr(place + ": cannot"));
  }
}

TEST_F(Model, TheTextIsPrintedEvenIfTheStateCannotBeSaved) {
  const std::string command = "generate --prompt cat --max-tokens 40 --model " + shared("m") + " --save-state " + file("a.state");
  const std::string text = run(command).out;
  ASSERT_THAT(text, testing::StartsWith("cat"));
  fs::remove(file("a.state"));
  const Ran full = run(command, "ulimit -f 1; ");
  EXPECT_EQ(full.code, 1);
  EXPECT_EQ(full.out, text);
  EXPECT_THAT(full.err, HasSubstr("a.state: cannot write: File too large"));
  EXPECT_FALSE(fs::exists(file("a.state")));
}

TEST_F(Model, OutOfMemoryMessagesNameTheRequestedBytes) {
  const Ran ran = run("train " + shared("run.toml") +
                          " --set model.mlp_width=1048576 --set model.d_model=65536 --set model.mixers.attention.heads=256 "
                          "--set model.layers='[\"gated_conv\"]' --out " +
                          file("out"),
                      kSmallMemory);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("based: out of memory: 68719476736 bytes were asked for at once; a smaller model"));
  EXPECT_THAT(ran.err, Not(HasSubstr("Exception raised from")));
}

TEST_F(Model, EndlessFilesAndPipesWithoutAWriterAreRefused) {
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    const std::string m = model(), path = m + "/" + name;
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect_refused(commands(m).front(), HasSubstr(path + ": not a regular file"), "timeout 60 ");
    fs::remove(path);
    fs::create_symlink("/dev/zero", path);
    expect_refused(commands(m).front(), HasSubstr(path + ": not a regular file"), kSmallMemory);
    fs::remove_all(m);
  }
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  expect_refused("state info " + file("pipe"), HasSubstr("pipe: not a regular file"), "timeout 60 ");
  expect_refused("inspect " + file("pipe"), HasSubstr("pipe: not a regular file"), "timeout 60 ");
  expect_refused("train /dev/zero --out " + file("out"), HasSubstr("/dev/zero: longer than the 16777216 bytes"), kSmallMemory);
}

TEST_F(Model, ConfigsAndTextsMayBePipes) {
  const Ran config = run("train /dev/stdin --out " + file("out"), "cat " + shared("run.toml") + " | ");
  EXPECT_EQ(config.code, 0) << config.err;
  const Ran text = run("perplexity --data /dev/stdin --model " + shared("m"), "cat " + shared("text.txt") + " | ");
  EXPECT_EQ(text.out, run("perplexity --data " + shared("text.txt") + " --model " + shared("m")).out);
  EXPECT_EQ(text.code, 0) << text.err;
}

// Sizes of models that no machine could hold are computed without allocating them.
TEST_F(Model, SizesAreComputedWithoutAllocation) {
  fs::create_directory(file("huge"));
  const std::string config =
      R"({"d_model": 65536, "layers": ["x", "attention"], "mixers": {"x": {"type": "taylor_attention", "heads": 256, "feature_dim": 64, "head_dim": 65536},
    "attention": {"type": "attention", "heads": 256}}})";
  write_file_atomic(file("huge/config.json"), config);
  const Ran inspect = run("inspect --json " + file("huge"), kSmallMemory);
  ASSERT_EQ(inspect.code, 0) << inspect.err;
  const int64_t fixed = int64_t{256} * 2145 * 65537 * 4 + 8;
  EXPECT_EQ(parse_json(inspect.out, "stdout")["state_bytes_100000"], fixed + int64_t{2} * 65536 * 4 * 100'000);
  const Ran mixers = run("mixers --json --tokens 3000000 --d-model 4096", kSmallMemory);
  ASSERT_EQ(mixers.code, 0) << mixers.err;
  const Json list = parse_json(mixers.out, "stdout")["mixers"];
  Json attention = element_named(list, "attention");
  EXPECT_EQ(attention["state_bytes"], int64_t{2} * 4096 * 4 * 3'000'000);
  EXPECT_EQ(attention["state_formula"], "2 · 4 · tokens · kv_heads · d_model / heads");
  for (const auto& mixer : list) EXPECT_EQ(mixer["state_formula_bytes"], mixer["state_bytes"]) << mixer["name"];
  const Ran implicit = run("mixers --set kernel_size=-1 --set implicit=true --set l_max=16777216 --set d_emb=129", kSmallMemory);
  EXPECT_EQ(implicit.code, 2);
  EXPECT_THAT(implicit.err, HasSubstr("make one of them smaller"));
  for (const char* wrong : {"--tokens 0", "--tokens 4611686018427387904", "--d-model 0", "--d-model 1000000000"})
    EXPECT_EQ(run(std::string("mixers ") + wrong).code, 2) << wrong;
}

}  // namespace model_test
}  // namespace based
