#include "based/eval/tasks/statistics.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "based/core/utf8.h"
#include "based/data/unicode_classes.h"
#include "based/eval/tasks/python_random.h"
#include "based/eval/tasks/python_text.h"

namespace based {
namespace {

double negative_likelihood_per_weight(std::span<const WeightedLikelihood> documents) {
  double log_likelihood = 0;
  int64_t weight = 0;
  for (const WeightedLikelihood& document : documents) {
    log_likelihood += document.log_likelihood;
    weight += document.weight;
  }
  return -log_likelihood / static_cast<double>(weight);
}

bool is_ascii_punctuation(char32_t code) {
  return (code >= 0x21 && code <= 0x2f) || (code >= 0x3a && code <= 0x40) || (code >= 0x5b && code <= 0x60) ||
         (code >= 0x7b && code <= 0x7e);
}

// Replaces a, an and the between word boundaries (letters and digits on one side only) by a space.
std::string without_articles(std::string_view text) {
  std::string out;
  const auto is_word = [](char32_t code) {
    return code != kInvalidUtf8 && (char_classes()[code] == CharClass::letter || char_classes()[code] == CharClass::number);
  };
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size()) {
      const Utf8Char c = utf8_at(text.data() + end, text.data() + text.size());
      if (!is_word(c.code)) break;
      end += static_cast<size_t>(c.size);
    }
    const std::string_view word = text.substr(at, end - at);
    if (word == "a" || word == "an" || word == "the")
      out += ' ';
    else
      out += word;
    if (end < text.size()) out += text[end++];  // the other bytes of a character follow one by one
    at = end;
  }
  return out;
}

std::vector<std::string> squad_words(std::string_view text) {
  std::string plain;
  const std::string lower = python_lower(text);
  std::copy_if(lower.begin(), lower.end(), std::back_inserter(plain),
               [](char byte) { return !is_ascii_punctuation(static_cast<unsigned char>(byte)); });
  const std::string bare = without_articles(plain);
  const std::vector<std::string_view> pieces = python_split(bare);
  return {pieces.begin(), pieces.end()};
}

}  // namespace

double mean(std::span<const double> values) {
  double sum = 0, lost = 0;  // compensated: the bootstrap adds 100,000 values
  for (const double value : values) {
    const double next = sum + value;
    lost += std::fabs(sum) >= std::fabs(value) ? (sum - next) + value : (value - next) + sum;
    sum = next;
  }
  return (std::isfinite(sum) ? sum + lost : sum) / static_cast<double>(values.size());
}

double sample_deviation(std::span<const double> values) {
  const double center = mean(values);
  std::vector<double> squares(values.size());
  std::transform(values.begin(), values.end(), squares.begin(), [center](double value) { return (value - center) * (value - center); });
  const auto count = static_cast<double>(values.size());
  return std::sqrt(mean(squares) * count / (count - 1));
}

std::optional<double> mean_standard_error(std::span<const double> values) {
  if (values.size() < 2) return std::nullopt;
  return sample_deviation(values) / std::sqrt(static_cast<double>(values.size()));
}

double perplexity_of(std::span<const double> log_likelihoods) { return std::exp(-mean(log_likelihoods)); }

std::optional<double> bootstrap_standard_error(std::span<const double> values, double (*statistic)(std::span<const double>),
                                               int64_t resamples) {
  if (values.size() < 2) return std::nullopt;
  const int64_t part = std::min<int64_t>(1000, resamples), generators = resamples / part;
  std::vector<double> statistics(static_cast<size_t>(generators * part));
  const auto count = static_cast<double>(values.size());
#pragma omp parallel for schedule(dynamic)
  for (int64_t seed = 0; seed < generators; ++seed) {
    PythonRandom random(static_cast<uint32_t>(seed));
    std::vector<double> resample(values.size());
    for (int64_t i = 0; i < part; ++i) {
      for (double& value : resample) value = values[static_cast<size_t>(random.random() * count)];
      statistics[static_cast<size_t>(seed * part + i)] = statistic(resample);
    }
  }
  return sample_deviation(statistics);
}

double weighted_perplexity(std::span<const WeightedLikelihood> documents) { return std::exp(negative_likelihood_per_weight(documents)); }

double bits_per_byte(std::span<const WeightedLikelihood> documents) {
  return negative_likelihood_per_weight(documents) / std::numbers::ln2;
}

double class_f1(std::span<const GoldAndPrediction> pairs, int64_t label) {
  double right = 0, gold = 0, predicted = 0;
  for (const auto& [expected, prediction] : pairs) {
    right += expected == label && prediction == label;
    gold += expected == label;
    predicted += prediction == label;
  }
  return right > 0 ? 2 * right / (gold + predicted) : 0;
}

double macro_f1(std::span<const GoldAndPrediction> pairs, int64_t classes) {
  double sum = 0;
  for (int64_t label = 0; label < classes; ++label) sum += class_f1(pairs, label);
  return sum / static_cast<double>(classes);
}

std::string squad_normalized(std::string_view text) {
  std::string joined;
  for (const std::string& word : squad_words(text)) joined += (joined.empty() ? "" : " ") + word;
  return joined;
}

bool squad_exact(std::string_view prediction, std::string_view gold) { return squad_normalized(prediction) == squad_normalized(gold); }

double squad_f1(std::string_view prediction, std::string_view gold) {
  std::vector<std::string> predicted = squad_words(prediction), expected = squad_words(gold);
  if (predicted.empty() || expected.empty()) return predicted == expected ? 1 : 0;
  std::sort(predicted.begin(), predicted.end());
  std::sort(expected.begin(), expected.end());
  std::vector<std::string> common;
  std::set_intersection(predicted.begin(), predicted.end(), expected.begin(), expected.end(), std::back_inserter(common));
  if (common.empty()) return 0;
  const auto same = static_cast<double>(common.size());
  const double precision = same / static_cast<double>(predicted.size()), recall = same / static_cast<double>(expected.size());
  return 2 * precision * recall / (precision + recall);
}

EvalFigures mean_figures(std::span<const Json> measured) {
  EvalFigures figures;
  BASED_ASSERT(!measured.empty());
  const auto average = [](std::span<const Json> documents, std::map<std::string, EvalFigure>& out) {
    for (const auto& [name, first] : documents[0].items()) {
      if (!first.is_number()) continue;
      std::vector<double> values;
      for (const Json& document : documents) values.push_back(document.at(name).get<double>());
      out[name] = {mean(values), mean_standard_error(values)};
    }
  };
  average(measured, figures.metrics);
  if (measured[0].contains("further")) {
    std::vector<Json> further;
    for (const Json& document : measured) further.push_back(document.at("further"));
    average(further, figures.further);
  }
  return figures;
}

EvalFigure unweighted_average(std::span<const EvalFigure> figures) {
  std::vector<double> values;
  double variance = 0;
  bool known = true;
  for (const EvalFigure& figure : figures) {
    values.push_back(figure.value);
    known = known && figure.standard_error;
    if (known) variance += *figure.standard_error * *figure.standard_error;
  }
  EvalFigure average{mean(values), std::nullopt};
  if (known) average.standard_error = std::sqrt(variance) / static_cast<double>(figures.size());
  return average;
}

EvalFigure pooled_average(std::span<const SizedFigure> figures) {
  double weighted = 0, squares = 0, documents = 0;
  bool known = true;
  for (const SizedFigure& task : figures) {
    const auto size = static_cast<double>(task.documents);
    weighted += task.figure.value * size;
    documents += size;
    known = known && task.figure.standard_error;
    if (known) squares += (size - 1) * *task.figure.standard_error * *task.figure.standard_error * size;
  }
  EvalFigure pooled{weighted / documents, std::nullopt};
  if (known) pooled.standard_error = std::sqrt(squares / (documents - static_cast<double>(figures.size())) / documents);
  return pooled;
}

}  // namespace based
