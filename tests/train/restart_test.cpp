// --resume-from with windows that are left out, and checkpoints whose files contradict one another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "based/core/json.h"
#include "based/core/manifest.h"
#include "based/core/safetensors.h"
#include "based/train/run_state.h"
#include "tests/train/results.h"
#include "tests/train/small_run.h"

namespace based {
namespace restart_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TextRun run_of_twelve(const TemporaryFolder& folder) {
  TextRun run = small_run(folder);
  run.train.steps = 12;
  run.train.log_every = 1;
  run.train.evaluate_every = 0;
  run.checkpoint.every = 4;
  run.checkpoint.keep = 100;
  return run;
}

std::string hash_at(const std::string& out, int64_t step) {
  return load_run_state(out + "/checkpoints/step-" + std::to_string(step)).data.order_hash;
}

TEST(Restart, LeavesTheWindowsOutAndKeepsLaterCheckpointsAside) {
  const TemporaryFolder folder;
  const TextRun run = run_of_twelve(folder);
  const std::string out = folder.file("out"), checkpoints = out + "/checkpoints/";
  run_text_training(run, out);
  const std::string before = hash_at(out, 8), weights = read_file(checkpoints + "step-8/model.safetensors");
  // Steps 1 to 4 have used the places 0 to 15.
  const TextRunResult result = run_text_training(run, out, {.resume_from = 4, .skip = {{19, 20}, {24, 28}}});
  EXPECT_EQ(result.resumed_from, 4);
  EXPECT_EQ(result.loop.state.step, 12);
  EXPECT_TRUE(read_file(checkpoints + "aside-step-8/model.safetensors") == weights);
  EXPECT_TRUE(fs::is_directory(checkpoints + "aside-step-12"));
  EXPECT_NE(hash_at(out, 8), before);
  const RunState state = load_run_state(checkpoints + "step-12");
  EXPECT_EQ(state.data.window, 12 * 4 + 5);
  ASSERT_EQ(state.restarts.size(), 2U);
  EXPECT_EQ(state.restarts[1].step, 4);
  EXPECT_EQ(state.restarts[1].first, 24);
  EXPECT_EQ(state.restarts[1].last, 28);
  const std::string metrics = read_file(out + "/metrics.jsonl");
  EXPECT_THAT(metrics, HasSubstr(R"({"step":4,"restarted":true,"skip_windows":[[19,20],[24,28]]})"));
  // The ranges are part of the run: a plain resume, also of the step that the run returned to, has the same windows.
  const auto results = results_of(out);
  for (const int64_t step : {8, 4}) {
    take_back_to(out, step);
    EXPECT_EQ(run_text_training(run, out, {.resume = true}).resumed_from, step);
    EXPECT_EQ(results_of(out), results) << step;
  }
}

TEST(Restart, AReturnToBeforeARestartSaysWhatItDrops) {
  const TemporaryFolder folder;
  const TextRun run = run_of_twelve(folder);
  const std::string out = folder.file("out");
  run_text_training(run, out);
  run_text_training(run, out, {.resume_from = 8, .skip = {{33, 35}, {40, 41}}});
  const auto warning = [&](const TextRunOptions& options) {
    testing::internal::CaptureStderr();
    run_text_training(run, out, options);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warning({.resume_from = 8}), testing::Not(HasSubstr("--skip-windows"))) << "step 8 was saved again with them";
  EXPECT_THAT(warning({.resume_from = 4, .skip = {{33, 35}}}), HasSubstr("left out windows at a later step (--skip-windows 40..41)"));
}

TEST(Restart, WhatCannotBeIsRefusedAndChangesNothing) {
  const TemporaryFolder folder;
  const TextRun run = run_of_twelve(folder);
  const std::string out = folder.file("out");
  run_text_training(run, out);
  const auto before = results_of(out);
  const auto refusal = [&](const TextRunOptions& options) { return message_of<UsageError>([&] { run_text_training(run, out, options); }); };
  EXPECT_THAT(refusal({.resume_from = 5}), HasSubstr("has no checkpoint of step 5; there are those of steps 4, 8, 12"));
  EXPECT_THAT(refusal({.resume_from = 4, .skip = {{12, 20}}}), HasSubstr("step 4 was saved after 16 windows"));
  EXPECT_THAT(refusal({.resume_from = 4, .skip = {{40, 49}}}), HasSubstr("--skip-windows 40..49: the whole run"));
  EXPECT_THAT(refusal({.resume_from = 4, .skip = {{20, 20}}}), HasSubstr("must be A..B with 0 <= A < B"));
  EXPECT_THAT(refusal({.resume = true, .skip = {{20, 24}}}), HasSubstr("--skip-windows needs --resume-from"));
  EXPECT_EQ(results_of(out), before);
}

// A checkpoint of two steps, whose files a test replaces together with their manifest.
class DoctoredCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    run_.train.steps = 2;
    run_text_training(run_, out_);
  }

  void write(const std::string& name, const std::string& content) {
    write_file_atomic(step_ + "/" + name, content);
    write_manifest(step_);
  }
  void replace(const std::string& text, const std::string& by) {
    std::string state = read_file(step_ + "/trainer.json");
    ASSERT_THAT(state, HasSubstr(text));
    write("trainer.json", state.replace(state.find(text), text.size(), by));
  }
  // Rewrites the optimizer's file with the changed list of its tensors.
  void change_tensors(const std::function<void(std::vector<TensorView>& views)>& change) {
    const std::string path = step_ + "/optimizer.safetensors", copy = folder_.file("copy");
    write_file_atomic(copy, read_file(path));
    const SafetensorsFile file(copy);
    std::vector<TensorView> views = file.tensors();
    change(views);
    write_safetensors(path, views);
    write_manifest(step_);
  }
  void zero(const std::string& name) {
    change_tensors([&](std::vector<TensorView>& views) {
      for (TensorView& view : views)
        if (view.name == name) zeros_.resize(view.bytes.size()), view.bytes = zeros_;
    });
  }
  std::string refusal() {
    return message_of<Error>([&] { run_text_training(run_, out_, {.resume = true}); });
  }

  TemporaryFolder folder_;
  TextRun run_ = small_run(folder_);
  std::string out_ = folder_.file("out"), step_ = out_ + "/checkpoints/step-2";
  std::vector<std::byte> zeros_;
};

TEST_F(DoctoredCheckpoint, AMomentThatIsZeroOrMissingIsNamed) {
  const std::string whole = read_file(step_ + "/optimizer.safetensors");
  for (const std::string name : {"first_moment.norm.weight", "second_moment.embedding"}) {
    zero(name);
    EXPECT_THAT(refusal(),
                HasSubstr("optimizer.safetensors: tensor '" + name + "' is all zero, and was not when the checkpoint was saved"));
    write("optimizer.safetensors", whole);
  }
  change_tensors([](std::vector<TensorView>& views) {
    std::erase_if(views, [](const TensorView& view) { return view.name == "second_moment.norm.weight"; });
  });
  EXPECT_THAT(refusal(), HasSubstr("has no tensor 'second_moment.norm.weight'"));
  change_tensors([this](std::vector<TensorView>& views) {  // no parameter was ever updated
    for (TensorView& view : views)
      if (view.name.starts_with("steps.")) zeros_.resize(view.bytes.size()), view.bytes = zeros_;
    views.push_back(views.front());
    views.back().name = "second_moment.norm.weight";
    for (const TensorView& view : views)
      if (view.name == "first_moment.norm.weight") views.back().bytes = view.bytes, views.back().shape = view.shape;
  });
  EXPECT_THAT(refusal(), HasSubstr("updated 0 times, but trainer.json has 2 updates"));
  write("optimizer.safetensors", whole);
  EXPECT_EQ(refusal(), "");
}

TEST_F(DoctoredCheckpoint, ChangedMomentsAndStepCountsAreRefused) {
  const std::string whole = read_file(step_ + "/optimizer.safetensors");
  std::vector<std::byte> changed;
  const auto change = [&](const std::string& name, const std::function<void(std::span<float> values)>& edit) {
    change_tensors([&](std::vector<TensorView>& views) {
      for (TensorView& view : views) {
        if (view.name != name) continue;
        changed.assign(view.bytes.begin(), view.bytes.end());
        edit({reinterpret_cast<float*>(changed.data()), changed.size() / sizeof(float)});
        view.bytes = changed;
      }
    });
  };
  const auto half = [](std::span<float> values) {
    std::fill(values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end(), 0.0F);
  };
  const std::string moment = "second_moment.embedding";
  change(moment, half);
  EXPECT_THAT(refusal(), HasSubstr("optimizer.safetensors: its tensors are not those that were saved with trainer.json"));
  write("optimizer.safetensors", whole);
  change(moment, [](std::span<float> values) { values[1] = std::nanf(""); });
  EXPECT_THAT(refusal(), HasSubstr("tensor '" + moment + "' has a value that is not finite"));
  write("optimizer.safetensors", whole);
  change(moment, [](std::span<float> values) { values[1] = -1; });
  EXPECT_THAT(refusal(), HasSubstr("tensor '" + moment + "', a mean of squares, has a value below 0"));
  write("optimizer.safetensors", whole);
  change_tensors([](std::vector<TensorView>& views) {
    for (TensorView& view : views)
      if (view.name == "steps.embedding") view.bytes = {}, view.shape = {0};
  });
  EXPECT_THAT(refusal(), HasSubstr("optimizer.safetensors: the optimizer's state has another shape or type for steps.embedding"));
  write("optimizer.safetensors", whole);
  change_tensors([this](std::vector<TensorView>& views) {  // all that is known of one parameter
    zeros_.resize(1 << 20);
    for (TensorView& view : views)
      if (view.name.ends_with(".embedding")) view.bytes = std::span(zeros_).first(view.bytes.size());
  });
  EXPECT_THAT(refusal(), HasSubstr("tensor 'steps.embedding' is 0, but trainer.json has 2 updates"));
  write("optimizer.safetensors", whole);
  EXPECT_EQ(refusal(), "");
}

TEST_F(DoctoredCheckpoint, AnotherOrderOfTheDataIsRefused) {
  const std::string hash = hash_at(out_, 2);
  replace(hash, "0123456789abcdef");
  EXPECT_THAT(refusal(),
              HasSubstr("was saved with order_hash = '" + hash + "', but trainer.json has data.order_hash = '0123456789abcdef'"));
}

// Checkpoints of earlier versions have no hashes, and still resume where those versions accepted them.
TEST_F(DoctoredCheckpoint, OfAnEarlierVersionResumes) {
  change_tensors([](std::vector<TensorView>&) {});
  Json state = parse_json(read_file(step_ + "/trainer.json"), "trainer.json");
  for (const char* key : {"optimizer_hash", "other_steps"}) EXPECT_EQ(state.erase(key), 1U) << key;
  write("trainer.json", state.dump());
  EXPECT_EQ(refusal(), "");
}

TEST_F(DoctoredCheckpoint, PositionsThatContradictOneAnotherAreNamed) {
  const std::string whole = read_file(step_ + "/trainer.json");
  replace("\"window\": 8", "\"window\": 12");
  EXPECT_THAT(refusal(), HasSubstr("trainer.json: data.window is 12, of which 12 windows were trained on, but 2 steps of 4 rows use 8"));
  write("trainer.json", whole);
  replace("\"step\": 2", "\"step\": 3");
  replace("\"window\": 8", "\"window\": 12");
  EXPECT_THAT(refusal(), HasSubstr("is the state of step 3, not of the folder's step 2"));
  write("trainer.json", whole);
  EXPECT_EQ(refusal(), "");
}

// A weight whose gradient is always 0 has moments of 0 all the time.
TEST(RunStateMoments, ThatWereZeroBeforeAreNoDamage) {
  const TemporaryFolder folder;
  const auto model = make_model(find_preset("based-tiny"), 1);
  AdamW optimizer(*model, {}), other(*model, {});
  for (AdamW::Slot& slot : optimizer.slots()) {
    slot.steps.fill_(3);
    if (slot.name != "norm.weight") slot.first_moment.fill_(1), slot.second_moment.fill_(2);
  }
  RunState state;
  state.loop.step = 4, state.loop.skipped = 1, state.devices = 1;
  state.run = Config(Config::Table{});
  save_run_state(folder.path().string(), state, optimizer);
  EXPECT_THAT(load_run_state(folder.path().string()).zero_moments,
              testing::ElementsAre("first_moment.norm.weight", "second_moment.norm.weight"));
  EXPECT_TRUE(load_run_state(folder.path().string()).other_steps.empty());
  EXPECT_EQ(message_of<Error>([&] { load_optimizer(folder.path().string(), other); }), "");
  EXPECT_TRUE(torch::equal(other.slots()[0].first_moment, optimizer.slots()[0].first_moment));
}

}  // namespace restart_test
}  // namespace based
