// The fixture of suites that run the program on a small trained model.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "tests/apps/program.h"

namespace based {

// The [model] of a config: a layer of Taylor attention and one of a window, small enough to train in a test.
inline const std::string kTwoLayers = R"([model]
d_model = 16
layers = ["linear", "window"]
mlp_width = 16
[model.mixers.linear]
type = "taylor_attention"
heads = 1
feature_dim = 4
[model.mixers.window]
type = "sliding_window"
heads = 1
window = 4
)";

// A suite calls train_model() in its SetUpTestSuite. Its tests share a folder with text.txt, run.toml and the trained model m. Each test
// also has an empty folder of its own.
class SmallModel : public testing::Test {
 protected:
  // Trains a model on a text of `lines` lines. `config` is the TOML config without data.train; its last table must be [data].
  static void train_model(const std::string& config, int lines = 300) {
    shared_ = new TemporaryFolder;
    std::string text;
    for (int i = 0; i < lines; ++i) text += "the cat number " + std::to_string(i * 37 % 101) + " sat on the mat\n";
    write_file_atomic(shared("text.txt"), text);
    write_file_atomic(shared("run.toml"), config + "train = \"" + shared("text.txt") + "\"\n");
    const Ran trained = run("train " + shared("run.toml") + " --out " + shared("m"));
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }

  static std::string shared(const std::string& name) { return shared_->file(name); }
  std::string file(const std::string& name) const { return folder_.file(name); }

  TemporaryFolder folder_;

 private:
  static inline TemporaryFolder* shared_ = nullptr;  // suites of one process run one after another
};

}  // namespace based
