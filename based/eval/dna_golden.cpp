#include "based/eval/dna_golden.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "based/core/files.h"
#include "based/core/json.h"
#include "based/data/bed.h"
#include "based/data/class_metrics.h"
#include "based/data/dna.h"
#include "based/data/labels.h"

namespace based {
namespace {

constexpr double kDnaTolerance = 1e-12;  // allows for rounding of divisions and roots
constexpr int64_t kMostClasses = 1000;   // a bound for labels in the file
constexpr int64_t kMostBases = int64_t{1} << 32;

using Ids = std::vector<int32_t>;

// A case of the file: typed access to its members, and the comparison with computed values.
class DnaCase {
 public:
  DnaCase(const Json& value, std::string where, GoldenResult& result) : value_(value), where_(std::move(where)), result_(result) {
    if (!value.is_object()) throw Error(where_ + ": must be an object");
  }

  bool has(const char* key) const { return value_.contains(key); }
  const Json& at(const char* key) const {
    if (!has(key)) throw Error(where_ + ": needs '" + key + "'");
    return value_.at(key);
  }
  DnaCase object(const char* key) const { return {at(key), where_ + ": '" + key + "'", result_}; }

  std::string text(const char* key) const {
    if (!at(key).is_string()) refuse(key, "a string");
    return at(key).get<std::string>();
  }
  int64_t integer(const char* key, int64_t least, int64_t most) const {
    const Json& value = at(key);
    if (!value.is_number_integer() || value.get<int64_t>() < least || value.get<int64_t>() > most)
      refuse(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
    return value.get<int64_t>();
  }
  std::vector<int64_t> integers(const char* key) const {
    if (!at(key).is_array()) refuse(key, "a list");
    std::vector<int64_t> list;
    for (const Json& each : at(key)) {
      if (!each.is_number_integer()) refuse(key, "a list of integers");
      list.push_back(each.get<int64_t>());
    }
    return list;
  }

  void same_ids(const char* key, const Ids& computed) const {
    if (has(key)) same(key, integers(key) == std::vector<int64_t>(computed.begin(), computed.end()));
  }
  void same(const char* key, bool equal) const { add(key, equal ? 0 : std::numeric_limits<double>::infinity()); }
  void close(const char* key, double computed) const {
    if (!has(key)) return;
    if (!at(key).is_number()) refuse(key, "a number");
    add(key, std::abs(computed - at(key).get<double>()));
  }

  [[noreturn]] void refuse(const char* key, const std::string& wanted) const { throw Error(where_ + ": '" + key + "' must be " + wanted); }

 private:
  void add(const char* key, double error) const {
    if (error <= result_.output_error) return;
    result_.output_error = error;
    result_.worst = where_ + ": '" + key + "'";
  }

  const Json& value_;
  std::string where_;
  GoldenResult& result_;
};

Ids encoded(const std::string& letters) { return DnaTokenizer().encode(letters); }

Ids inputs_of(const Ids& row) { return {row.begin(), row.end() - 1}; }
Ids targets_of(const Ids& row) { return {row.begin() + 1, row.end()}; }

void check_token_case(const DnaCase& one) {
  const std::string sequence = one.text("sequence"), reversed = reverse_complement(sequence);
  const int64_t length = one.integer("length", 1, kMostBases);
  one.same_ids("letters", encoded(sequence));
  if (one.has("reverse_complement")) one.same("reverse_complement", one.text("reverse_complement") == reversed);
  one.same_ids("reverse_complement_letters", encoded(reversed));
  if (one.has("upper")) {
    Ids row = dna_row(sequence, length);
    hide_dna_gaps(row);
    Ids labels = targets_of(row);
    std::replace(labels.begin(), labels.end(), int32_t{kDnaPad}, kNoLabel);
    const DnaCase expected = one.object("upper");
    expected.same_ids("ids", row);
    expected.same_ids("input", inputs_of(row));
    expected.same_ids("target", targets_of(row));
    expected.same_ids("labels", labels);
  }
  if (one.has("as_written")) {
    const Ids row = hyenadna_row(sequence, length);
    const DnaCase expected = one.object("as_written");
    expected.same_ids("ids", row);
    expected.same_ids("input", inputs_of(row));
    expected.same_ids("target", targets_of(row));
  }
}

void check_interval_case(const DnaCase& one) {
  const int64_t sequence = one.integer("chromosome", 1, kMostBases), length = one.integer("length", 1, kMostBases);
  const int64_t start = one.integer("start", 0, sequence - 1);
  const RowForm form = row_form(one.text("form"));
  const BaseRange range = form == RowForm::caduceus ? caduceus_range(start, length, one.integer("piece", 0, kMostBases / length), sequence)
                                                    : hyenadna_range({start, one.integer("end", start + 1, kMostBases)}, length, sequence);
  one.same("expected", one.integers("expected") == std::vector<int64_t>{range.start, range.end});
}

void check_metric_case(const DnaCase& one) {
  const std::vector<int64_t> labels = one.integers("labels"), predictions = one.integers("predictions");
  int64_t most = 0;
  for (const auto* list : {&labels, &predictions})
    for (const int64_t each : *list) most = each < 0 || each >= kMostClasses ? kMostClasses : std::max(most, each);
  if (labels.empty() || labels.size() != predictions.size() || most >= kMostClasses)
    one.refuse("predictions", "a list as long as 'labels', both of numbers from 0 to " + std::to_string(kMostClasses - 1));
  ConfusionMatrix confusion(most + 1);
  for (size_t i = 0; i < labels.size(); ++i) confusion.add(labels[i], predictions[i]);
  one.close("accuracy", confusion.accuracy());
  one.close("mcc", confusion.mcc());
  one.close("f1", confusion.macro_f1());
}

struct DnaGoldenKind {
  const char* name;
  const char* key;  // a key that all cases of the kind have, and no other kind's
  void (*check)(const DnaCase&);
};
constexpr DnaGoldenKind kDnaGoldens[] = {{"dna tokens", "letters", check_token_case},
                                         {"dna intervals", "form", check_interval_case},
                                         {"dna metrics", "predictions", check_metric_case}};

// Null if the content is of no kind.
const DnaGoldenKind* kind_of(const Json& content) {
  if (!content.is_object() || !content.contains("cases") || !content["cases"].is_array() || content["cases"].empty()) return nullptr;
  const Json& first = content["cases"][0];
  for (const DnaGoldenKind& kind : kDnaGoldens)
    if (first.is_object() && first.contains(kind.key)) return &kind;
  return nullptr;
}

void check_dna_vocabulary(const Json& content, const std::string& path, GoldenResult& result) {
  if (!content.contains("vocabulary")) return;
  const DnaTokenizer tokenizer;
  const DnaCase vocabulary(content["vocabulary"], path + ": 'vocabulary'", result);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string name(tokenizer.token_bytes(id));
    vocabulary.same(name.c_str(), vocabulary.integer(name.c_str(), 0, tokenizer.vocab_size() - 1) == id);
  }
}

}  // namespace

bool is_dna_golden(const std::string& path) {
  if (!path.ends_with(".json")) return false;
  try {
    return kind_of(parse_json(read_regular_file(path), path)) != nullptr;
  } catch (const Error&) {  // the other readers name the reason
    return false;
  }
}

GoldenResult check_dna_golden(const std::string& path) {
  const Json content = parse_json(read_regular_file(path), path);
  const DnaGoldenKind* kind = kind_of(content);
  if (!kind) throw Error(path + ": 'cases' must be a list of cases of tokens, intervals or metrics of DNA");
  GoldenResult result;
  result.file = path;
  result.mixer = kind->name;
  result.tolerance = kDnaTolerance;
  check_dna_vocabulary(content, path, result);
  size_t index = 0;
  for (const Json& each : content["cases"]) {
    const std::string where = path + ": cases[" + std::to_string(index++) + "]";
    try {
      kind->check(DnaCase(each, where, result));
    } catch (const UsageError& error) {
      throw Error(where + ": " + error.what());
    }
  }
  result.pass = result.output_error <= kDnaTolerance;
  return result;
}

}  // namespace based
