#include "based/experiments/recall_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "based/core/text_table.h"
#include "based/experiments/experiment.h"

namespace based {
namespace recall_figures_test {

struct Finished {
  std::string series;
  double bytes, recall;
};

// The figures of points with four runs each; GLA has two finished runs.
std::vector<Figure> figures_of(const std::vector<Finished>& all) {
  std::deque<StoredRun> runs;
  std::vector<PointResult> points;
  for (const Finished& finished : all) {
    StoredRun& run = runs.emplace_back();
    const Config segments(Config::Array{Config(finished.recall), Config(finished.recall)});
    run.outcome = Config(Config::Table{
        {"state_bytes", Config(finished.bytes)}, {"segments", segments}, {"by_epoch", Config(Config::Array{segments, segments})}});
    PointResult& point = points.emplace_back();
    point.series = finished.series, point.score = finished.recall, point.best = {&run};
    point.runs = 4, point.done = finished.series == "GLA" ? 2 : 4;
  }
  points.emplace_back().series = "not done";
  RecallSummary summary;
  summary.task.test = {{64, 4, 10}, {128, 8, 10}};
  summary.training.epochs = 2;
  return recall_figures(summary, points);
}

std::vector<std::string> labels_of(const Figure& figure) {
  std::vector<std::string> labels;
  for (const PlotSeries& series : figure.plot.series) labels.push_back(series.label);
  return labels;
}

// A series is shown by its best point of at most the common number of bytes, or by its smallest point if all have more.
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

// The median is GLA's 33 KiB; two of the three series have much less.
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
  RecallSummary summary;
  summary.task.test = {{64, 4, 10}, {128, 8, 30}};
  summary.training.epochs = 2;
  summary.last_segment = summary.against_parameters = true;
  const std::vector<Figure> figures = recall_figures(summary, {point});
  ASSERT_EQ(figures.size(), 4);
  EXPECT_THAT(figures[0].plot.y.label, testing::HasSubstr("8 pairs in 128"));
  EXPECT_EQ(figures[3].plot.y.label, "recall") << "of each number of pairs";
  EXPECT_EQ(figures[1].name, "parameters");
  EXPECT_THAT(figures[1].plot.series[0].points, testing::ElementsAre(std::pair(1000.0, 0.25)));
  EXPECT_EQ(figures[2].plot.series[0].points.back().second, 0.25);
}

// Markdown's special characters in names are escaped, so that the table keeps its columns.
TEST(RecallTable, NamesStayTextInMarkdown) {
  EXPECT_EQ(markdown("Based, feature_dim=4 (1/2)"), "Based, feature_dim=4 (1/2)");
  EXPECT_EQ(markdown("a|b\\|c"), "a\\|b\\\\\\|c");
  EXPECT_EQ(markdown("*a* _b_ `c` [d](e) <f> ~g~ &amp; $h$ # i"), "\\*a\\* \\_b\\_ \\`c\\` \\[d\\](e) \\<f> \\~g\\~ \\&amp; \\$h\\$ \\# i");
  EXPECT_EQ(markdown("a\nb\tc"), "a b c");
  RecallSummary summary;
  summary.title = "one|two";
  summary.task.test = {{64, 4, 10}};
  PointResult point;
  point.series = "x|y", point.label = "type=*|";
  const std::string table = recall_table(summary, {point});
  EXPECT_THAT(table, testing::StartsWith("# one\\|two\n"));
  EXPECT_THAT(table, testing::HasSubstr("\n| x\\|y | type=\\*\\| | - | "));
}

}  // namespace recall_figures_test
}  // namespace based
