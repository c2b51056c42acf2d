#include "based/train/run_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "based/core/safetensors.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace run_saver_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct SavedTrial {
  TemporaryFolder folder;
  std::shared_ptr<LanguageModel> model = make_model(find_preset("based-tiny"), 1);
  AdamW optimizer{*model, {}};
  Metrics metrics{folder.path().string(), std::nullopt};
  Checkpoints checkpoints{folder.file("checkpoints"), 100};

  RunSaver saver(std::function<void(const std::string& folder)> before_write) {
    return RunSaver({model, &optimizer, std::make_shared<ByteTokenizer>(), make_single_rank(), &metrics, &checkpoints, false},
                    std::move(before_write));
  }
  RunState state(int64_t step) const {
    RunState saved;
    saved.loop.step = step;
    saved.run = Config(Config::Table{});
    return saved;
  }
};

// Everything is overwritten before the first byte is written: the file has the values at begin().
TEST(RunSaver, WritesTheValuesAtItsBeginning) {
  SavedTrial trial;
  std::promise<void> overwritten;
  const std::shared_future<void> wait_for = overwritten.get_future().share();
  RunSaver saver = trial.saver([&](const std::string&) { wait_for.wait(); });
  std::vector<Tensor> before;
  for (const auto& [name, tensor] : named_weights(*trial.model)) before.push_back(tensor.clone());
  saver.begin(trial.state(1), -1);
  {
    const torch::NoGradGuard no_grad;
    for (Tensor& weight : trial.model->parameters()) weight.fill_(7);
    for (AdamW::Slot& slot : trial.optimizer.slots()) slot.first_moment.fill_(8);
  }
  EXPECT_TRUE(trial.checkpoints.steps().empty()) << "nothing has been written yet";
  overwritten.set_value();
  saver.finish();
  EXPECT_EQ(saver.take_failure(), std::nullopt);
  EXPECT_EQ(saver.newest(), trial.checkpoints.path(1));
  const NamedTensors saved = named_weights(*load_model(trial.checkpoints.path(1)).model);
  for (size_t i = 0; i < saved.size(); ++i) EXPECT_TRUE(torch::equal(saved[i].second, before[i])) << saved[i].first;
  const SafetensorsFile file(path_in(trial.checkpoints.path(1), "optimizer.safetensors"));
  for (const TensorView& view : file.tensors())
    EXPECT_TRUE(std::all_of(view.bytes.begin(), view.bytes.end(), [](std::byte byte) { return byte == std::byte{0}; })) << view.name;
}

// Each begin() waits for the save before, so the copies are never overwritten while they are written.
TEST(RunSaver, RunsOneSaveAtATime) {
  SavedTrial trial;
  std::atomic<int> running{0}, most{0}, saves{0};
  RunSaver saver = trial.saver([&](const std::string&) {
    most = std::max(most.load(), ++running);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    --running, ++saves;
  });
  for (int64_t step = 1; step <= 6; ++step) saver.begin(trial.state(step), -1);
  saver.finish();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(saves, 6);
  EXPECT_THAT(trial.checkpoints.steps(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_GT(saver.seconds(), 0);
}

TEST(RunSaver, ReportsEachFailureOnce) {
  SavedTrial trial;
  RunSaver saver = trial.saver([](const std::string& path) {
    if (!path.ends_with("step-2.tmp")) throw Error(path + ": the disk is full");
  });
  for (int64_t step = 1; step <= 3; ++step) saver.begin(trial.state(step), -1);
  saver.finish();
  for (const int64_t step : {1, 3}) {
    const std::optional<FailedSave> failed = saver.take_failure();
    ASSERT_TRUE(failed.has_value());
    EXPECT_EQ(failed->step, step);
    EXPECT_THAT(failed->reason, HasSubstr("the disk is full"));
  }
  EXPECT_EQ(saver.take_failure(), std::nullopt);
  EXPECT_EQ(saver.newest(), trial.checkpoints.path(2));
  EXPECT_THAT(trial.checkpoints.steps(), ElementsAre(2));
}

TEST(HostCopies, ReuseTheirMemory) {
  HostCopies copies;
  const Tensor values = torch::arange(6).view({2, 3});
  const NamedTensors first = copies.copy({{"values", values}});
  const void* memory = first[0].second.const_data_ptr();
  values.add_(1);
  EXPECT_EQ(first[0].second[1][2].item<int64_t>(), 5) << "a copy";
  const NamedTensors second = copies.copy({{"values", values}});
  EXPECT_EQ(second[0].second.const_data_ptr(), memory);
  EXPECT_TRUE(torch::equal(second[0].second, values));
}

}  // namespace run_saver_test
}  // namespace based
