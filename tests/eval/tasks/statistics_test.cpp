// Metrics and standard errors, by values computed by hand or by Python.
#include "based/eval/tasks/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace based {
namespace statistics_test {

TEST(EvalStatistics, StandardErrorOfAMean) {
  const std::vector<double> values{1, 0, 0, 1, 1};
  EXPECT_DOUBLE_EQ(mean(values), 0.6);
  EXPECT_NEAR(mean_standard_error(values).value(), std::sqrt(0.3 / 5), 1e-15);
  EXPECT_FALSE(mean_standard_error(std::vector<double>{1}).has_value());
}

TEST(EvalStatistics, MeanKeepsSmallTermsBesideLargeOnes) { EXPECT_EQ(mean(std::vector<double>{1, 1e17, 1, -1e17}), 0.5); }

TEST(EvalStatistics, BootstrapDrawsAsPythonDoes) {
  // random.Random(0) and random.Random(1), 1,000 resamples each by choices(xs, k = 3); exp(−mean) of each; sample deviation.
  const std::vector<double> values{-1, -2, -4};
  EXPECT_NEAR(bootstrap_standard_error(values, perplexity_of, 2000).value(), 10.812725662708926, 1e-11);
  EXPECT_FALSE(bootstrap_standard_error(std::vector<double>{-1}, perplexity_of).has_value());
}

TEST(EvalStatistics, WeightedPerplexities) {
  const std::vector<WeightedLikelihood> pages{{-3, 2}, {-5, 6}};
  EXPECT_DOUBLE_EQ(weighted_perplexity(pages), std::exp(1.0));
  EXPECT_DOUBLE_EQ(bits_per_byte(pages), 1 / std::log(2.0));
}

TEST(EvalStatistics, F1OfAClassWithoutTruePositivesIsZero) {
  const std::vector<GoldAndPrediction> pairs{{0, 0}, {0, 1}, {1, 0}, {2, 1}};
  EXPECT_DOUBLE_EQ(class_f1(pairs, 0), 0.5);
  EXPECT_EQ(class_f1(pairs, 1), 0);
  EXPECT_DOUBLE_EQ(macro_f1(pairs, 3), 0.5 / 3);
}

TEST(EvalStatistics, SquadNormalisation) {
  EXPECT_EQ(squad_normalized("The  cat, an U.S.\u00a0theatre's A-side!"), "cat us theatres aside");
  EXPECT_EQ(squad_normalized("été a\u0301 _the_"), "été \u0301");  // marks are no word characters: "a" before one is an article
  EXPECT_TRUE(squad_exact("a", "the"));
  EXPECT_DOUBLE_EQ(squad_f1("red red car", "the red bus"), 0.4);  // one of three words, one of two
  EXPECT_EQ(squad_f1("", "car"), 0);
  EXPECT_EQ(squad_f1("the", "!"), 1);
}

TEST(EvalStatistics, MeansOfTheNumbersOfDocuments) {
  const std::vector<Json> measured{parse_json(R"({"acc": 1, "f1": [0, 1], "further": {"acc_norm": 0}})", "a"),
                                   parse_json(R"({"acc": 0, "f1": [1, 1], "further": {"acc_norm": 0}})", "b")};
  const EvalFigures figures = mean_figures(measured);
  ASSERT_EQ(figures.metrics.size(), 1u);
  EXPECT_EQ(figures.metrics.at("acc").value, 0.5);
  EXPECT_DOUBLE_EQ(figures.metrics.at("acc").standard_error.value(), 0.5);
  EXPECT_EQ(figures.further.at("acc_norm").value, 0);
}

TEST(EvalStatistics, Averages) {
  const std::vector<EvalFigure> figures{{0.2, 0.03}, {0.4, 0.04}};
  EXPECT_DOUBLE_EQ(unweighted_average(figures).value, 0.3);
  EXPECT_DOUBLE_EQ(unweighted_average(figures).standard_error.value(), 0.025);
  const std::vector<EvalFigure> unknown{{0.2, 0.03}, {0.4, std::nullopt}};
  EXPECT_FALSE(unweighted_average(unknown).standard_error.has_value());
  const std::vector<SizedFigure> sized{{{0.2, 0.03}, 30}, {{0.4, 0.04}, 10}};
  EXPECT_DOUBLE_EQ(pooled_average(sized).value, 0.25);
  EXPECT_DOUBLE_EQ(pooled_average(sized).standard_error.value(), std::sqrt((29 * 30 * 0.0009 + 9 * 10 * 0.0016) / 38 / 40));
}

}  // namespace statistics_test
}  // namespace based
