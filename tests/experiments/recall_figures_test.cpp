#include "based/experiments/recall_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "based/experiments/experiment.h"

namespace based {
namespace {

struct Finished {
  std::string series;
  double bytes, recall;
};

// The figures of points of four runs each; of GLA two are done.
std::vector<Figure> figures_of(const std::vector<Finished>& all) {
  std::deque<StoredRun> runs;
  std::vector<PointResult> points;
  for (const Finished& of : all) {
    StoredRun& run = runs.emplace_back();
    const Config of_segments(Config::Array{Config(of.recall), Config(of.recall)});
    run.outcome = Config(Config::Table{
        {"state_bytes", Config(of.bytes)}, {"segments", of_segments}, {"by_epoch", Config(Config::Array{of_segments, of_segments})}});
    PointResult& point = points.emplace_back();
    point.series = of.series, point.score = of.recall, point.best = {&run};
    point.runs = 4, point.done = of.series == "GLA" ? 2 : 4;
  }
  points.emplace_back().series = "not done";
  RecallShown shown;
  shown.task.test = {{64, 4, 10}, {128, 8, 10}};
  shown.training.epochs = 2;
  return recall_figures(shown, points);
}

std::vector<std::string> labels_of(const Figure& figure) {
  std::vector<std::string> labels;
  for (const PlotSeries& series : figure.plot.series) labels.push_back(series.label);
  return labels;
}

// Of a series with points from no more bytes than the common ones the best of these counts, of another one its smallest.
TEST(RecallFigures, CurvesAreOfModelsOfAboutEqualBytes) {
  const std::vector<Figure> figures = figures_of({{"Based", 10 * 1024, 0.5},
                                                  {"Based", 40 * 1024, 0.9},
                                                  {"window", 20 * 1024, 0.6},
                                                  {"window", 1024 * 1024, 1.0},
                                                  {"attention", 4096 * 1024, 1.0},
                                                  {"attention", 2048 * 1024, 0.9},
                                                  {"GLA", 12 * 1024, 0.7}});
  ASSERT_EQ(figures.size(), 3);
  EXPECT_THAT(figures[0].plot.footer, testing::HasSubstr("; at 1 point not all rates yet"));
  for (const Figure& figure : {figures[1], figures[2]}) {
    SCOPED_TRACE(figure.name);
    EXPECT_THAT(labels_of(figure), testing::ElementsAre("Based, 40.0 KiB", "window, 20.0 KiB", "attention, 2.0 MiB", "GLA, 12.0 KiB"));
    EXPECT_THAT(figure.plot.subtitle, testing::HasSubstr("the best from 40.0 KiB of state"));
    EXPECT_EQ(figure.plot.series[0].points.size(), 2);
    EXPECT_EQ(figure.plot.series[0].points.back().second, 0.9);
  }
}

// The median is GLA's 33 KiB, from which two of three series have much less.
TEST(RecallFigures, CurvesAreOfThePointsThatLieClosest) {
  const std::vector<Figure> figures = figures_of({{"Based", 12 * 1024, 0.5},
                                                  {"Based", 40 * 1024, 0.9},
                                                  {"Mamba-2", 10 * 1024, 0.6},
                                                  {"Mamba-2", 39 * 1024, 0.8},
                                                  {"GLA", 33 * 1024, 0.7}});
  ASSERT_EQ(figures.size(), 3);
  EXPECT_THAT(labels_of(figures[2]), testing::ElementsAre("Based, 40.0 KiB", "Mamba-2, 39.0 KiB", "GLA, 33.0 KiB"));
}

TEST(RecallFigures, ScoreOfTheLastSegmentAgainstParameters) {
  const Config epoch(Config::Array{Config(1.0), Config(0.25)});
  StoredRun run;
  run.outcome = Config(Config::Table{{"accuracy", Config(0.625)},
                                     {"state_bytes", Config(4096.0)},
                                     {"segments", epoch},
                                     {"by_epoch", Config(Config::Array{epoch, epoch})}});
  EXPECT_EQ(score_of(run, false), 0.625);
  EXPECT_EQ(score_of(run, true), 0.25);
  EXPECT_TRUE(std::isnan(score_of(StoredRun{}, true)));

  PlannedRate planned;
  planned.parameters = 1000;
  PointResult point;
  point.series = "Based", point.score = score_of(run, true), point.best = {&run}, point.planned = &planned;
  RecallShown shown;
  shown.task.test = {{64, 4, 10}, {128, 8, 30}};
  shown.training.epochs = 2;
  shown.last_segment = shown.against_parameters = true;
  const std::vector<Figure> figures = recall_figures(shown, {point});
  ASSERT_EQ(figures.size(), 4);
  EXPECT_THAT(figures[0].plot.y.label, testing::HasSubstr("8 pairs in 128"));
  EXPECT_EQ(figures[3].plot.y.label, "recall") << "of each number of pairs";
  EXPECT_EQ(figures[1].name, "parameters");
  EXPECT_THAT(figures[1].plot.series[0].points, testing::ElementsAre(std::pair(1000.0, 0.25)));
  EXPECT_EQ(figures[2].plot.series[0].points.back().second, 0.25);
}

// A name's characters that Markdown would read as its own are escaped, and a table keeps its columns.
TEST(RecallTable, NamesStayTextInMarkdown) {
  EXPECT_EQ(markdown("Based, feature_dim=4 (1/2)"), "Based, feature_dim=4 (1/2)");
  EXPECT_EQ(markdown("a|b\\|c"), "a\\|b\\\\\\|c");
  EXPECT_EQ(markdown("*a* _b_ `c` [d](e) <f> ~g~ &amp; $h$ # i"), "\\*a\\* \\_b\\_ \\`c\\` \\[d\\](e) \\<f> \\~g\\~ \\&amp; \\$h\\$ \\# i");
  EXPECT_EQ(markdown("a\nb\tc"), "a b c");
  RecallShown shown;
  shown.title = "one|two";
  shown.task.test = {{64, 4, 10}};
  PointResult point;
  point.series = "x|y", point.label = "type=*|";
  const std::string table = recall_table(shown, {point});
  EXPECT_THAT(table, testing::StartsWith("# one\\|two\n"));
  EXPECT_THAT(table, testing::HasSubstr("\n| x\\|y | type=\\*\\| | - | "));
}

}  // namespace
}  // namespace based
