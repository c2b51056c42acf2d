#include "based/eval/slices_golden.h"

#include <cmath>
#include <limits>

#include "based/core/json.h"
#include "based/data/slices.h"

namespace based {
namespace {

constexpr double kSlicesTolerance = 1e-12;  // allows for rounding of exp and of divisions
constexpr int64_t kLargestId = std::numeric_limits<int32_t>::max();

// A value in the file and its place, for messages.
struct Entry {
  const Json& value;
  std::string where;

  [[noreturn]] void refuse(const std::string& wanted) const { throw Error(where + " must be " + wanted); }
  bool has(const char* key) const { return value.contains(key); }
  Entry at(const char* key) const {
    if (!value.is_object() || !value.contains(key)) throw Error(where + ": needs '" + key + "'");
    return {value.at(key), where + ": '" + key + "'"};
  }
  Entry at(size_t index) const { return {value.at(index), where + "[" + std::to_string(index) + "]"}; }
  size_t size() const {
    if (!value.is_array()) refuse("a list");
    return value.size();
  }
  void require_size(size_t wanted) const {
    if (size() != wanted) refuse("a list of " + std::to_string(wanted) + ", has " + std::to_string(size()));
  }
  int64_t integer(int64_t least, int64_t most = std::numeric_limits<int64_t>::max()) const {
    const bool wraps = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
    if (!value.is_number_integer() || wraps || value.get<int64_t>() < least || value.get<int64_t>() > most)
      refuse("an integer from " + std::to_string(least) + " to " + std::to_string(most));
    return value.get<int64_t>();
  }
  double number() const {
    if (!value.is_number()) refuse("a number");
    return value.get<double>();
  }
  std::vector<int32_t> ids(int64_t least) const {
    std::vector<int32_t> list;
    for (size_t i = 0; i < size(); ++i) list.push_back(static_cast<int32_t>(at(i).integer(least, kLargestId)));
    return list;
  }
};

struct SlicesWindow {
  std::vector<int32_t> tokens, next, labels;
  std::vector<int64_t> context_starts;
  std::vector<double> nats;
  std::vector<int64_t> mask;  // expected

  TokenPairs pairs() const { return {tokens, next, context_starts}; }
};

SlicesWindow read_window(const Entry& file, size_t number, size_t length) {
  SlicesWindow window;
  const Entry tokens = file.at("windows").at(number), labels = file.at("labels").at(number), nats = file.at("nats").at(number),
              mask = file.at("expected").at("mask").at(number);
  tokens.require_size(length + 1);
  for (const Entry& each : {labels, nats, mask}) each.require_size(length);
  const std::vector<int32_t> ids = tokens.ids(0);
  window.tokens.assign(ids.begin(), ids.end() - 1);
  window.next.assign(ids.begin() + 1, ids.end());
  window.labels = labels.ids(kNoLabel);
  for (size_t i = 0; i < length; ++i) {
    if (window.labels[i] != kNoLabel && window.labels[i] != window.next[i])
      labels.at(i).refuse("the next token, " + std::to_string(window.next[i]) + ", or " + std::to_string(kNoLabel));
    window.nats.push_back(nats.at(i).number());
    window.mask.push_back(mask.at(i).integer(0, 1));
  }
  if (!file.has("context_starts")) return window;
  const Entry starts = file.at("context_starts").at(number);
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t least = i == 0 ? 0 : window.context_starts.back() + 1;
    window.context_starts.push_back(starts.at(i).integer(least, static_cast<int64_t>(length) - 1));
  }
  return window;
}

std::vector<SlicesWindow> read_windows(const Entry& file) {
  const auto length = static_cast<size_t>(file.at("length").integer(1));
  const size_t windows = file.at("windows").size();
  for (const Entry& each : {file.at("labels"), file.at("nats"), file.at("expected").at("mask")}) each.require_size(windows);
  if (file.has("context_starts")) file.at("context_starts").require_size(windows);
  std::vector<SlicesWindow> read;
  for (size_t i = 0; i < windows; ++i) read.push_back(read_window(file, i, length));
  return read;
}

// Slices whose counts are the file's 'train_bigrams'.
Slices listed_counts(const Entry& file, Slices slices) {
  const Entry pairs = file.at("train_bigrams");
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Entry pair = pairs.at(i);
    pair.require_size(3);
    slices.add_count(static_cast<int32_t>(pair.at(size_t{0}).integer(0, kLargestId)),
                     static_cast<int32_t>(pair.at(size_t{1}).integer(0, kLargestId)), pair.at(size_t{2}).integer(0));
  }
  return slices;
}

// The errors of a file; `worst` names the first value that is wrong, or else the one with the largest error.
class SlicesComparison {
 public:
  void equal(const std::string& name, bool same) { add(name, same ? 0 : std::numeric_limits<double>::infinity()); }

  void close(const Entry& expected, const std::optional<double>& actual) {
    if (expected.value.is_null() || !actual) return equal(expected.where, expected.value.is_null() && !actual);
    const double wanted = expected.number(), difference = std::abs(*actual - wanted);
    add(expected.where, difference == 0 ? 0 : difference / std::abs(wanted));
  }

  void sum(const Entry& expected, const SliceSum& actual) {
    const Entry tokens = expected.at("tokens"), nats = expected.at("nats");
    equal(tokens.where, tokens.integer(0) == actual.tokens);
    equal(nats.where, nats.number() == actual.nats);
    close(expected.at("perplexity"), actual.perplexity());
  }

  double error = -1;
  std::string worst;

 private:
  void add(const std::string& name, double new_error) {
    if (new_error <= error) return;
    error = new_error;
    worst = name;
  }
};

}  // namespace

bool is_slices_golden(const std::string& path) { return path.ends_with(".json"); }

GoldenResult check_slices_golden(const std::string& path) {
  const Json content = parse_json(read_regular_file(path), path);
  const Entry file{content, path};
  const std::vector<SlicesWindow> windows = read_windows(file);
  Slices collected;
  for (const SlicesWindow& window : windows) collected.collect(window.pairs());

  SlicesComparison comparison;
  Slices slices = file.has("train_bigrams") || !file.has("train") ? listed_counts(file, collected) : collected;
  if (file.has("train")) {
    collected.count(file.at("train").ids(0));
    for (size_t i = 0; i < windows.size(); ++i) {
      comparison.equal(
          path + ": counts of 'train' for the pairs of window " + std::to_string(i),
          !file.has("train_bigrams") || collected.training_counts(windows[i].pairs()) == slices.training_counts(windows[i].pairs()));
    }
    slices = std::move(collected);
  }

  SliceFigures figures{.threshold = file.at("threshold").integer(0)};
  for (size_t w = 0; w < windows.size(); ++w) {
    const SlicesWindow& window = windows[w];
    const std::vector<int64_t> counts = slices.training_counts(window.pairs());
    for (size_t i = 0; i < counts.size(); ++i) {
      const bool labelled = window.labels[i] != kNoLabel;
      if (labelled) figures.add(window.nats[i], counts[i]);
      comparison.equal(file.at("expected").at("mask").at(w).at(i).where, window.mask[i] == (labelled && figures.is_ar(counts[i])));
    }
  }
  const Entry expected = file.at("expected");
  comparison.sum(expected.at("all"), figures.all);
  comparison.sum(expected.at("ar"), figures.ar);
  comparison.sum(expected.at("other"), figures.other);
  comparison.close(expected.at("ar_share"), figures.ar_share());

  GoldenResult result;
  result.file = path;
  result.mixer = "slices";
  result.tolerance = kSlicesTolerance;
  result.output_error = comparison.error;
  result.worst = comparison.worst;
  result.pass = comparison.error <= kSlicesTolerance;
  return result;
}

}  // namespace based
