// The index problem with trained models: the receiver has only the message.
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "based/data/index_problem.h"
#include "based/experiments/experiment.h"
#include "based/experiments/message.h"
#include "based/models/language_model.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace index_test {

const std::string small = R"(
kind = "index"
[task]
bits = 4
train = [{told = 1, examples = 4000}, {told = 2, examples = 8000}, {told = 4, examples = 8000}]
test = 64
bits_each = [32, 16, 8, 2]
[training]
shuffle = true
batch = 32
epochs = 2
learning_rates = [1e-2]
[model]
d_model = 16
norm = "layer_norm"
mlp = "none"
layers = ["conv", "mixer"]
mixers.conv = {type = "base_conv", kernel_size = 2}
[[series]]
name = "attention"
model.mixers.mixer = {type = "attention", heads = 1, rotary_dim = 0}
)";

class IndexExperiment : public testing::Test {
 protected:
  ExperimentFile read(const std::vector<std::string>& set = {}) {
    write_file_atomic(folder_.file("e.toml"), small);
    return read_experiment(folder_.file("e.toml"), "", set);
  }
  TemporaryFolder folder_;
};

TEST_F(IndexExperiment, AMessageOfAllBitsOfTheStateAnswersAsTheModelDoes) {
  const ExperimentFile file = read();
  const auto data = file.experiment->load(torch::kCPU);
  const auto outcome = file.experiment->run(0, *data, {});
  ASSERT_TRUE(outcome.has_value());
  StoredRun run;
  run.outcome = *outcome;
  const std::vector<double> bits = figures_of(run, "message_bits"), recall = figures_of(run, "message_recall");
  ASSERT_EQ(bits.size(), 4U);
  // The convolution's 16 inputs, and keys and values of 16 numbers for 8 tokens; three tensors have three scales.
  const double numbers = 16 + 8 * 2 * 16;
  EXPECT_EQ(bits, (std::vector<double>{32 * numbers, 16 * numbers, 8 * numbers + 96, 2 * numbers + 96}));
  EXPECT_GT(figure_of(run, "accuracy"), 0.95);
  EXPECT_EQ(recall[0], figure_of(run, "accuracy"));
  EXPECT_NEAR(recall[1], recall[0], 0.02);
  for (size_t i = 0; i < bits.size(); ++i) EXPECT_LE(recall[i], most_recall(bits[i], 4) + 0.05);
}

TEST_F(IndexExperiment, RefusesWhatCannotBe) {
  EXPECT_THROW(read({"task.bits=3"}), UsageError);
  EXPECT_THROW(read({"task.bits_each=[12]"}), UsageError);
  EXPECT_THROW(read({"task.bits_each=[]"}), UsageError);
  EXPECT_THROW(read({"task.test=0"}), UsageError);
  EXPECT_THROW(read({"against_parameters=true"}), UsageError);
}

ModelState some_state(LanguageModel& model) {
  ModelState state = model.make_state(1);
  const torch::NoGradGuard no_grad;
  model.prefill(torch::arange(7), Sequences::equal(1, 7), state, torch::zeros({1}, torch::kLong));
  return state;
}

TEST(StateMessage, GivesTheNumbersBackAsFinelyAsTheyWereSent) {
  const ModelConfig config = find_preset("based-tiny");
  const auto model = make_model(config, 5);
  const ModelState state = some_state(*model);
  for (const int bits : {32, 16, 8, 5, 2}) {
    const StateMessage message = write_message(state, bits);
    EXPECT_EQ(static_cast<int64_t>(message.bytes.size()), (message.bits + 7) / 8);
    const ModelState back = read_message(message, model->make_state(1), bits);
    for (size_t layer = 0; layer < state.layers().size(); ++layer)
      for (size_t i = 0; i < state.layers()[layer].tensors().size(); ++i) {
        const torch::Tensor sent = state.layers()[layer].tensors()[i].value, got = back.layers()[layer].tensors()[i].value;
        const double largest = sent.abs().max().item<double>();
        const double step = bits == 32 ? 0 : bits == 16 ? 1.0 / 256 : 0.5 / ((1 << (bits - 1)) - 1);
        EXPECT_LE((sent - got).abs().max().item<double>(), step * largest * (1 + 1e-5)) << bits << " bits";
      }
  }
}

TEST(StateMessage, OfAnotherLengthIsRefused) {
  const auto model = make_model(find_preset("based-tiny"), 5);
  StateMessage message = write_message(some_state(*model), 8);
  message.bits -= 8;
  EXPECT_THROW(read_message(message, model->make_state(1), 8), Error);
  message.bits += 16;
  message.bytes.resize(message.bytes.size() + 1);
  EXPECT_THROW(read_message(message, model->make_state(1), 8), Error);
}

}  // namespace index_test
}  // namespace based
