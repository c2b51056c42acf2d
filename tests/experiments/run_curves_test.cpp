// The curves of `based train` runs: reading them from the runs' folders, and the errors for damaged files.
#include "based/experiments/run_curves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace run_curves_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class RunCurvesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file_atomic(folder_.file("run.json"), R"({"train": {"batch": 4, "length": 32}})");
    write_file_atomic(
        folder_.file("metrics.jsonl"),
        "{\"step\":10,\"loss\":5.5}\n{\"step\":20,\"loss\":5.0}\n{\"step\":20,\"eval_loss\":5.25}\n{\"step\":22,\"eval_loss\":null}\n"
        "{\"step\":25,\"skipped\":\"the loss is not finite\"}\n{\"step\":30,\"loss\":4.5}\n{\"step\":40,\"lo");
    write_file_atomic(folder_.file("timing.jsonl"),
                      "{\"step\":10,\"seconds\":1.0,\"devices\":2}\n{\"step\":20,\"seconds\":2.0,\"devices\":2}\n"
                      "{\"step\":20,\"seconds\":0.5,\"devices\":1}\n{\"step\":30,\"seconds\":0.4,\"devices\":2}\n");
  }
  RunCurves read() { return read_run_curves(folder_.path().string()); }
  std::string error_of_reading() {
    return message_of<Error>([&] { read(); });
  }

  TemporaryFolder folder_;
};

TEST_F(RunCurvesTest, ReadsLossesAndWhereTheRunWasResumed) {
  const RunCurves curves = read();
  EXPECT_EQ(curves.step_tokens, 4 * 32);
  EXPECT_THAT(curves.train, ElementsAre(Pair(10, 5.5), Pair(20, 5.0), Pair(30, 4.5)));
  EXPECT_THAT(curves.held_out, ElementsAre(Pair(20, 5.25)));
  ASSERT_EQ(curves.resumptions.size(), 2U);
  EXPECT_EQ(curves.resumptions[0].step, 20);
  EXPECT_TRUE(curves.resumptions[0].repeated);
  EXPECT_EQ(curves.resumptions[0].devices, 1);
  EXPECT_EQ(curves.resumptions[1].step, 30);
  EXPECT_FALSE(curves.resumptions[1].repeated);
}

TEST_F(RunCurvesTest, MarksResumptionsInTheFigures) {
  const std::vector<Figure> figures = curve_figures({read()}, "A run");
  ASSERT_EQ(figures.size(), 2U);
  EXPECT_EQ(figures[0].name, "training-loss");
  const Plot& plot = figures[0].plot;
  EXPECT_EQ(plot.title, "A run: training loss");
  ASSERT_EQ(plot.series.size(), 3U);
  EXPECT_THAT(plot.series[0].points, ElementsAre(Pair(1280.0, 5.5), Pair(2560.0, 5.0), Pair(3840.0, 4.5)));
  EXPECT_EQ(plot.series[1].label, "after a crash: 1 device");
  EXPECT_THAT(plot.series[1].points, ElementsAre(Pair(2560.0, 5.0)));
  EXPECT_EQ(plot.series[2].label, "after a stop: 2 devices");
  EXPECT_THAT(plot.series[2].points, ElementsAre(Pair(3840.0, 4.5)));
}

TEST_F(RunCurvesTest, FindsAResumptionOfAShortRun) {
  write_file_atomic(folder_.file("timing.jsonl"),
                    "{\"step\":10,\"seconds\":1.0}\n{\"step\":10,\"seconds\":1.5}\n{\"step\":20,\"seconds\":2.5}\n");
  const RunCurves curves = read();
  ASSERT_EQ(curves.resumptions.size(), 1U);
  EXPECT_TRUE(curves.resumptions[0].repeated);
  EXPECT_EQ(curves.resumptions[0].devices, 0);
}

TEST_F(RunCurvesTest, NamesFileLineAndFieldOfDamage) {
  write_file_atomic(folder_.file("metrics.jsonl"), "{\"step\":10,\"loss\":5.5}\n{\"loss\":5.0}\n");
  EXPECT_THAT(error_of_reading(), HasSubstr("metrics.jsonl, line 2: has no number step"));
  write_file_atomic(folder_.file("metrics.jsonl"), "{\"step\":10,\"loss\":5.5}\n[1]\n");
  EXPECT_THAT(error_of_reading(), HasSubstr("metrics.jsonl, line 2: is not a JSON object"));
  write_file_atomic(folder_.file("metrics.jsonl"), "{\"step\":1e300,\"loss\":5.5}\n");
  EXPECT_THAT(error_of_reading(), HasSubstr("metrics.jsonl, line 1: step is not a whole number from 0 to 1e15"));
  write_file_atomic(folder_.file("run.json"), "{}");
  EXPECT_THAT(error_of_reading(), HasSubstr("run.json: has no object train"));
  write_file_atomic(folder_.file("run.json"), "");
  EXPECT_THAT(error_of_reading(), HasSubstr("run.json: not valid JSON: the text is empty"));
}

TEST(RunCurves, AFolderOfNoRunIsNamed) {
  EXPECT_THAT(message_of<Error>([] { read_run_curves("no/such/run/"); }), HasSubstr("no/such/run/run.json: there is no such file"));
}

TEST(LossCurve, HasTheMeansOfAtMostSixtyGroups) {
  LossCurve curve;
  for (int64_t step = 1; step <= 120; ++step) curve.emplace_back(step, static_cast<double>(2 * step));
  const LossCurve means = grouped(curve);
  ASSERT_EQ(means.size(), 60U);
  EXPECT_THAT(means.front(), Pair(2, 3.0));  // steps 1 and 2
  EXPECT_THAT(grouped({}), ElementsAre());
}

}  // namespace run_curves_test
}  // namespace based
