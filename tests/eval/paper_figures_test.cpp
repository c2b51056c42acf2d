// The paper's tables against their own averages.
#include "based/eval/paper_figures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace based {
namespace paper_figures_test {

std::optional<double> average_of_row(const PaperTable& table, const PaperResult& row) {
  return paper_average(table, [&](const std::string& task, const std::string& metric) { return paper_figure(table, row, task, metric); });
}

TEST(PaperFigures, RowsHaveOneValueAColumn) {
  for (const PaperTable& table : paper_tables()) {
    ASSERT_FALSE(table.rows.empty()) << table.label;
    for (const PaperResult& row : table.rows) EXPECT_EQ(row.printed.size(), table.columns.size()) << table.label << " " << row.model;
  }
}

// A misread digit moves an average. Values of super-glue have one decimal, those of lm-eval-harness two.
TEST(PaperFigures, AveragesAreThoseOfTheRows) {
  for (const PaperResult& row : paper_table("super-glue").rows)
    EXPECT_NEAR(average_of_row(paper_table("super-glue"), row).value() * 100, row.average.value(), 0.0501) << row.model << " " << row.shots;
  const std::set<double> misprinted{53.81, 53.50, 42.08, 45.62};  // the paper's own sums differ in these four
  for (const PaperResult& row : paper_table("lm-eval-harness").rows) {
    if (misprinted.contains(row.average.value())) continue;
    EXPECT_NEAR(average_of_row(paper_table("lm-eval-harness"), row).value() * 100, row.average.value(), 0.00501) << row.model << row.tokens;
  }
}

// CB and ReCoRD have two metrics each, which count as one task.
TEST(PaperFigures, MetricsOfATaskAreAveragedFirst) {
  const PaperTable& table = paper_table("super-glue");
  const auto one_for_cb = [](const std::string& task, const std::string&) -> std::optional<double> { return task == "cb" ? 1 : 0; };
  EXPECT_DOUBLE_EQ(paper_average(table, one_for_cb).value(), 1.0 / 8);
  const auto one_for_f1 = [](const std::string&, const std::string& metric) -> std::optional<double> { return metric == "f1" ? 1 : 0; };
  EXPECT_DOUBLE_EQ(paper_average(table, one_for_f1).value(), 1.0 / 8);
}

TEST(PaperFigures, AMissingFigureLeavesNoAverage) {
  const auto without_wic = [](const std::string& task, const std::string&) {
    return task == "wic" ? std::nullopt : std::optional<double>(0.5);
  };
  EXPECT_FALSE(paper_average(paper_table("super-glue"), without_wic).has_value());
  EXPECT_FALSE(paper_average(paper_table("dna-quality"), without_wic).has_value());
}

TEST(PaperFigures, ValuesAreInTheUnitOfTheMetric) {
  const PaperTable& table = paper_table("lm-eval-harness");
  const PaperResult& based = table.rows.at(8);
  ASSERT_EQ(based.model + " " + based.parameters + "/" + based.tokens, "Based 363m/10b");
  EXPECT_DOUBLE_EQ(paper_figure(table, based, "lambada_openai", "perplexity").value(), 21.80);
  EXPECT_NEAR(paper_figure(table, based, "arc_challenge", "acc_norm").value(), 0.2466, 1e-12);
  EXPECT_FALSE(paper_figure(table, based, "arc_challenge", "acc").has_value());
  const PaperTable& genomics = paper_table("genomics_benchmarks");
  EXPECT_FALSE(paper_figure(genomics, genomics.rows.at(5), "human_ocr_ensembl", "acc").has_value()) << "a dash in the row of Mamba";
}

}  // namespace paper_figures_test
}  // namespace based
