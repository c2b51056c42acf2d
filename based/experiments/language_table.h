// The figures and tables of an experiment on language models.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "based/experiments/kind.h"
#include "based/experiments/language_run.h"

namespace based {

// Perplexities that a paper prints for a row; 0: none.
struct PaperRow {
  double all = 0, ar = 0, other = 0;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("all", all, "perplexity of all tokens");
    field("ar", ar, "perplexity of the slice AR");
    field("other", other, "perplexity of the slice Other");
  }
};

struct LanguageSummary {
  std::string title, base, setting;  // base: the series that the others are compared with; empty: none. setting: data, batch, steps
  std::vector<int64_t> thresholds;
  int64_t step_tokens = 0;  // tokens of a training step
  bool mixed_cards = false;
  std::map<std::string, PaperRow> paper;     // by series
  std::map<std::string, std::string> notes;  // by series
};

// The mean of paired differences and its standard error s/√n; NaN for fewer than two pairs.
struct PairedDifference {
  double mean = 0, error = 0;
  size_t pairs = 0;

  bool is_resolved() const;  // whether |mean| is more than two standard errors
};
// `row` and `base`: loss by seed. Only seeds in both count.
PairedDifference paired_difference(const std::map<int64_t, double>& row, const std::map<int64_t, double>& base);

// Throws Error if the runs of a seed were trained on different cards, unless summary.mixed_cards is set, or scored on different held-out
// sets.
std::string language_table(const LanguageSummary& summary, const std::vector<PointResult>& points);
std::string language_latex_table(const LanguageSummary& summary, const std::vector<PointResult>& points);
// Perplexity against bytes of state, and the losses during training.
std::vector<Figure> language_figures(const LanguageSummary& summary, const std::vector<PointResult>& points);

}  // namespace based
