#include "based/experiments/language_table.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "based/core/text.h"
#include "based/core/text_table.h"
#include "based/experiments/experiment.h"

namespace based {
namespace {

constexpr double kResolvedErrors = 2;  // a difference of more standard errors is resolved
constexpr int kNatsDigits = 4, kPerplexityDigits = 2;

// A point that has results: those of its best learning rate, one for each seed.
struct LanguagePoint {
  const PointResult* point = nullptr;
  std::vector<LanguageOutcome> outcomes;  // in the order of point->best

  double mean(const std::function<double(const LanguageOutcome&)>& figure) const {
    double sum = 0;
    for (const LanguageOutcome& outcome : outcomes) sum += figure(outcome);
    return sum / static_cast<double>(outcomes.size());
  }
  std::map<int64_t, double> by_seed(const std::function<double(const LanguageOutcome&)>& figure) const {
    std::map<int64_t, double> values;
    for (size_t i = 0; i < outcomes.size(); ++i) values[point->best[i]->seed] = figure(outcomes[i]);
    return values;
  }
  std::set<std::string> cards() const {
    std::set<std::string> names;
    for (const LanguageOutcome& outcome : outcomes) names.insert(outcome.cost.cards.begin(), outcome.cost.cards.end());
    return names;
  }
  std::string name() const { return point_name(point->series, point->label); }
};

std::vector<LanguagePoint> language_points(const std::vector<PointResult>& points) {
  std::vector<LanguagePoint> found;
  for (const PointResult& point : points) {
    LanguagePoint& one = found.emplace_back();
    one.point = &point;
    for (const StoredRun* run : point.best) one.outcomes.push_back(read_stored([&] { return read_config<LanguageOutcome>(run->outcome); }));
  }
  return found;
}

std::string joined(const std::set<std::string>& names, const char* separator) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : separator) + name;
  return all;
}

double loss_of(const LanguageOutcome& outcome) { return outcome.loss; }

std::string perplexity_text(double nats) { return std::isfinite(nats) ? format_number(std::exp(nats), kPerplexityDigits) : "-"; }

std::string signed_number(double value) { return (value < 0 ? "" : "+") + format_number(value, kNatsDigits); }

std::string difference_text(const PairedDifference& difference) {
  if (difference.pairs == 0) return "-";
  if (difference.pairs == 1) return signed_number(difference.mean) + " (one seed)";
  return signed_number(difference.mean) + " ± " + format_number(difference.error, kNatsDigits) +
         (difference.is_resolved() ? "" : ", not resolved");
}

const LanguagePoint* base_of(const LanguageSummary& summary, const std::vector<LanguagePoint>& points) {
  for (const LanguagePoint& each : points)
    if (!summary.base.empty() && each.point->series == summary.base && !each.outcomes.empty()) return &each;
  return nullptr;
}

// The thresholds whose slices have a column, as indices: those with AR tokens in a held-out set. A text of 4 bases has none, for example,
// since all of its pairs are frequent.
std::vector<size_t> printed_slices(const LanguageSummary& summary, const std::vector<LanguagePoint>& points) {
  const bool none_is_done = std::all_of(points.begin(), points.end(), [](const LanguagePoint& each) { return each.outcomes.empty(); });
  std::vector<size_t> slices;
  for (size_t i = 0; i < summary.thresholds.size(); ++i) {
    const auto has_tokens = [i](const LanguageOutcome& outcome) { return outcome.ar_share(i) > 0; };
    const bool any = std::any_of(points.begin(), points.end(), [&](const LanguagePoint& each) {
      return std::any_of(each.outcomes.begin(), each.outcomes.end(), has_tokens);
    });
    if (none_is_done || any) slices.push_back(i);
  }
  return slices;
}

std::string at_most(int64_t threshold) { return " (≤ " + std::to_string(threshold) + ")"; }

class MainTable {
 public:
  MainTable(const LanguageSummary& summary, const std::vector<LanguagePoint>& points)
      : summary_(summary), base_(base_of(summary, points)), slices_(printed_slices(summary, points)) {
    for (const LanguagePoint& each : points) cards_.merge(each.cards());
    const auto base_paper = summary.paper.find(summary.base);
    if (base_paper != summary.paper.end()) base_all_ = base_paper->second.all;
    add_head();
    for (const LanguagePoint& each : points) add_row(each);
  }
  const TextTable& table() const { return table_; }

 private:
  void add_head() {
    std::vector<std::string>& head = table_.head;
    head = {"model", "parameters", "state bytes", "rate", "seeds", "All"};
    for (const size_t i : slices_) {
      head.push_back("AR" + at_most(summary_.thresholds[i]));
      head.push_back("Other" + at_most(summary_.thresholds[i]));
    }
    if (!summary_.base.empty()) {
      head.push_back("All - " + summary_.base + ", nats");
      for (const size_t i : slices_) head.push_back("AR" + at_most(summary_.thresholds[i]) + " - " + summary_.base + ", nats");
    }
    if (!summary_.paper.empty()) {
      head.emplace_back("paper: All / AR / Other");
      if (base_all_ > 0) head.push_back("paper: All - " + summary_.base + ", nats");
    }
    head.emplace_back("tokens/s");
    if (summary_.mixed_cards) head.emplace_back("card");
  }

  void add_row(const LanguagePoint& each) {
    std::vector<std::string> row{each.name(), std::to_string(each.point->planned->parameters)};
    const bool done = !each.outcomes.empty();
    const auto add = [&](const std::function<std::string()>& cell) { row.push_back(done ? cell() : "-"); };
    const auto add_difference = [&](const std::function<double(const LanguageOutcome&)>& figure) {
      if (summary_.base.empty()) return;
      if (&each == base_) return row.emplace_back("base"), void();
      add([&] {
        return base_ == nullptr ? std::string("-") : difference_text(paired_difference(each.by_seed(figure), base_->by_seed(figure)));
      });
    };
    add([&] { return std::to_string(each.outcomes.front().state_bytes); });
    add([&] { return Config(each.point->learning_rate).to_json(-1); });
    add([&] { return std::to_string(each.outcomes.size()); });
    add([&] { return perplexity_text(each.mean(loss_of)); });
    for (const size_t i : slices_) {
      add([&] { return perplexity_text(each.mean([i](const LanguageOutcome& one) { return one.ar_loss(i); })); });
      add([&] { return perplexity_text(each.mean([i](const LanguageOutcome& one) { return one.other_loss(i); })); });
    }
    add_difference(loss_of);
    for (const size_t i : slices_) add_difference([i](const LanguageOutcome& outcome) { return outcome.ar_loss(i); });
    add_paper(each, row);
    add([&] { return rates_text(each); });
    if (summary_.mixed_cards) add([&] { return joined(each.cards(), " + "); });
    table_.rows.push_back(std::move(row));
  }

  // The mean of the seeds, of each card by itself where the table has several.
  std::string rates_text(const LanguagePoint& each) const {
    if (cards_.size() <= 1) return format_number(each.mean([](const LanguageOutcome& one) { return one.cost.tokens_per_second; }), 0);
    std::map<std::string, std::vector<double>> rates;
    for (const LanguageOutcome& outcome : each.outcomes)
      rates[joined({outcome.cost.cards.begin(), outcome.cost.cards.end()}, " + ")].push_back(outcome.cost.tokens_per_second);
    std::string text;
    for (const auto& [card, values] : rates) {
      const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
      text += (text.empty() ? "" : ", ") + format_number(mean, 0) + " (" + card + ")";
    }
    return text;
  }

  void add_paper(const LanguagePoint& each, std::vector<std::string>& row) const {
    if (summary_.paper.empty()) return;
    const auto found = summary_.paper.find(each.point->series);
    const bool printed = found != summary_.paper.end() && found->second.all > 0;
    const auto number = [](double value) { return value > 0 ? format_number(value, kPerplexityDigits) : std::string("-"); };
    row.push_back(printed ? number(found->second.all) + " / " + number(found->second.ar) + " / " + number(found->second.other) : "-");
    if (base_all_ > 0) row.push_back(printed ? signed_number(std::log(found->second.all / base_all_)) : "-");
  }

  const LanguageSummary& summary_;
  const LanguagePoint* base_;
  std::vector<size_t> slices_;
  std::set<std::string> cards_;
  double base_all_ = 0;  // the paper's perplexity of the base row; 0: none
  TextTable table_;
};

// For each card a set of names: of the rows that were trained on it, or of the seeds.
using ByCard = std::map<std::string, std::set<std::string>>;

std::map<int64_t, ByCard> rows_by_seed_and_card(const std::vector<LanguagePoint>& points) {
  std::map<int64_t, ByCard> rows;
  for (const LanguagePoint& each : points)
    for (size_t i = 0; i < each.outcomes.size(); ++i)
      for (const std::string& card : each.outcomes[i].cost.cards) rows[each.point->best[i]->seed][card].insert(each.name());
  return rows;
}

// A difference is one of two runs with one seed, so the seeds may differ in their card.
void require_one_card_a_seed(const LanguageSummary& summary, const std::vector<LanguagePoint>& points) {
  if (summary.mixed_cards) return;
  for (const auto& [seed, rows] : rows_by_seed_and_card(points)) {
    if (rows.size() <= 1) continue;
    std::string text;
    for (const auto& [card, names] : rows) text += (text.empty() ? "" : "; ") + card + ": " + joined(names, ", ");
    throw Error("the runs of a seed must be of one card model, and those of seed " + std::to_string(seed) + " are of " +
                std::to_string(rows.size()) + " (" + text +
                "): repeat the runs of one of them, or set mixed_cards = true, which adds a column with the cards");
  }
}

void require_same_held_out(const std::vector<LanguagePoint>& points) {
  const LanguageOutcome* first = nullptr;
  for (const LanguagePoint& each : points)
    for (const LanguageOutcome& outcome : each.outcomes) {
      if (first == nullptr) first = &outcome;
      if (outcome.held_out_hashes != first->held_out_hashes)
        throw Error(each.name() + " was scored on other held-out text than the rows before it: the files have changed; repeat its runs");
    }
}

// Which tokens the rows were trained on: one hash for each seed, if they are the same.
std::string order_text(const std::vector<LanguagePoint>& points) {
  std::map<int64_t, std::map<std::string, std::set<std::string>>> rows;  // seed -> hash -> names
  for (const LanguagePoint& each : points)
    for (const auto& [seed, unused] : each.by_seed(loss_of))
      for (size_t i = 0; i < each.outcomes.size(); ++i)
        if (each.point->best[i]->seed == seed) rows[seed][each.outcomes[i].order_hash].insert(each.name());
  const bool same = std::all_of(rows.begin(), rows.end(), [](const auto& seed) { return seed.second.size() == 1; });
  std::string text = same ? "All models saw the same tokens in the same order; hash of data and order:"
                          : "Not all models saw the same tokens in the same order; hashes of data and order:";
  for (const auto& [seed, hashes] : rows)
    for (const auto& [hash, names] : hashes)
      text += (text.ends_with(':') ? " " : ", ") + ("seed " + std::to_string(seed)) + " " + hash +
              (same ? "" : " (" + joined(names, ", ") + ")");
  return text + ".";
}

const LanguageOutcome* first_outcome(const std::vector<LanguagePoint>& points) {
  for (const LanguagePoint& each : points)
    if (!each.outcomes.empty()) return &each.outcomes.front();
  return nullptr;
}

std::string slices_text(const LanguageSummary& summary, const LanguageOutcome& outcome, const std::vector<size_t>& slices) {
  if (slices.empty()) return "All is a perplexity, exp of the mean nats per token";
  std::string text = "AR are tokens that end a pair which occurred before in their window, and";
  for (const size_t i : slices)
    text += (i == slices.front() ? " at most " : ", or at most ") + std::to_string(summary.thresholds[i]) +
            " times in the training data (" + format_number(100 * outcome.ar_share(i), 1) + " % of the tokens)";
  return text + "; all other tokens are Other.\nAll, AR and Other are perplexities, exp of the mean nats per token";
}

TextTable set_table(const std::vector<LanguagePoint>& points, const LanguageOutcome& first) {
  TextTable table;
  table.head = {"held-out set"};
  for (const LanguagePoint& each : points)
    if (!each.outcomes.empty()) table.head.push_back(each.name());
  for (size_t set = 0; set < first.sets.size(); ++set) {
    std::vector<std::string> row{first.sets[set] + ", " + std::to_string(first.tokens[set]) + " tokens"};
    for (const LanguagePoint& each : points)
      if (!each.outcomes.empty())
        row.push_back(perplexity_text(
            each.mean([set](const LanguageOutcome& one) { return one.nats.at(set) / static_cast<double>(one.tokens.at(set)); })));
    table.rows.push_back(std::move(row));
  }
  return table;
}

// "NVIDIA H200", or with the seeds of each where there are several: "NVIDIA H100 (seed 0), NVIDIA H200 (seeds 1, 2)".
std::string cards_text(const std::vector<LanguagePoint>& points) {
  ByCard seeds;
  for (const auto& [seed, rows] : rows_by_seed_and_card(points))
    for (const auto& [card, unused] : rows) seeds[card].insert(std::to_string(seed));
  std::string text;
  for (const auto& [card, numbers] : seeds)
    text += (text.empty() ? "" : ", ") + card +
            (seeds.size() == 1 ? "" : (numbers.size() == 1 ? " (seed " : " (seeds ") + joined(numbers, ", ") + ")");
  return text;
}

std::string provenance_text(const std::vector<LanguagePoint>& points) {
  std::set<std::string> commits;
  bool unknown = false;
  for (const LanguagePoint& each : points)
    for (const LanguageOutcome& outcome : each.outcomes) {
      commits.insert(outcome.cost.commits.begin(), outcome.cost.commits.end());
      unknown = unknown || outcome.cost.commits.empty();
    }
  if (unknown) commits.insert("not recorded");
  return "Card: " + cards_text(points) + ". Commit: " + joined(commits, ", ") + ".";
}

}  // namespace

bool PairedDifference::is_resolved() const { return pairs >= 2 && std::abs(mean) > kResolvedErrors * error; }

PairedDifference paired_difference(const std::map<int64_t, double>& row, const std::map<int64_t, double>& base) {
  std::vector<double> differences;
  for (const auto& [seed, loss] : row)
    if (const auto found = base.find(seed); found != base.end()) differences.push_back(loss - found->second);
  PairedDifference result{0, NAN, differences.size()};
  if (differences.empty()) return result;
  const auto count = static_cast<double>(differences.size());
  for (const double difference : differences) result.mean += difference / count;
  if (differences.size() < 2) return result;
  double squares = 0;
  for (const double difference : differences) squares += (difference - result.mean) * (difference - result.mean);
  result.error = std::sqrt(squares / (count - 1) / count);
  return result;
}

std::string language_table(const LanguageSummary& summary, const std::vector<PointResult>& results) {
  const std::vector<LanguagePoint> points = language_points(results);
  require_one_card_a_seed(summary, points);
  require_same_held_out(points);
  std::string text = "# " + markdown(summary.title) + "\n\n" + markdown(summary.setting) + "\n\n";
  const LanguageOutcome* first = first_outcome(points);
  if (first != nullptr) {
    text += order_text(points) + "\n\n" + slices_text(summary, *first, printed_slices(summary, points));
    text += summary.base.empty() ? ".\n\n"
                                 : ". A difference is the mean over the seeds that both rows have, ± its standard error; it is not "
                                   "resolved if it is at most two of them.\n\n";
  }
  text += MainTable(summary, points).table().to_markdown();
  for (const auto& [series, note] : summary.notes) text += "\n" + markdown(series) + ": " + markdown(note) + "\n";
  if (first != nullptr)
    text += "\nPerplexity by held-out set:\n\n" + set_table(points, *first).to_markdown() + "\n" + provenance_text(points) + "\n";
  return text;
}

std::string language_latex_table(const LanguageSummary& summary, const std::vector<PointResult>& results) {
  const std::vector<LanguagePoint> points = language_points(results);
  require_one_card_a_seed(summary, points);
  require_same_held_out(points);
  return "% made by `based experiment plot`\n" + MainTable(summary, points).table().to_latex(LatexRules::hline);
}

}  // namespace based
