// The tables of downstream evaluations in the Based paper (Arora et al., "Simple linear attention language models balance the
// recall-throughput tradeoff", arXiv:2402.18668), so that reports can print the paper's figure beside a measured one.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace based {

struct PaperColumn {
  std::string task, metric;  // a name of tasks.def and a metric of its aggregate; other columns have the paper's names
  double scale = 0.01;       // the printed number times `scale` is in the metric's unit: 0.01 for percentages
  bool averaged = false;     // part of the table's average
};

struct PaperResult {
  std::string model;                           // "Based", "Transformer++", …
  std::string parameters, tokens;              // "363m", "10b"; "" if the table does not state them
  int64_t shots = 0;                           // few-shot examples
  std::vector<std::optional<double>> printed;  // one a column; none where the paper has a dash
  std::optional<double> average;               // printed average in percent
};

struct PaperTable {
  std::string label;  // \label in the paper's source
  std::string title;
  std::vector<PaperColumn> columns;
  std::vector<PaperResult> rows;
};

// main-quality (recall tasks and the average), lm-eval-harness, super-glue, ablations (recall tasks), dna-quality, genomics_benchmarks.
const std::vector<PaperTable>& paper_tables();
const PaperTable& paper_table(const std::string& label);  // `label` must be one of the above

// The value of a cell in the metric's unit; none if the table has no such column or the row a dash.
std::optional<double> paper_figure(const PaperTable& table, const PaperResult& row, const std::string& task, const std::string& metric);

// The table's average of other figures, such as measured ones: first over the metrics of a task, then over the tasks. `figure` returns a
// task's metric in its own unit. None if one of the averaged figures is missing.
using FigureSource = std::function<std::optional<double>(const std::string& task, const std::string& metric)>;
std::optional<double> paper_average(const PaperTable& table, const FigureSource& figure);

}  // namespace based
