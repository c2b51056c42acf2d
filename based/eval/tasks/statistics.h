// Metrics and standard errors of lm-eval 0.4.13.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "based/eval/task.h"

namespace based {

double mean(std::span<const double> values);
// sqrt(Σ (x − mean)² / (n − 1)); values must be at least two.
double sample_deviation(std::span<const double> values);
// The sample deviation by √n; none for fewer than two values, as in lm-eval.
std::optional<double> mean_standard_error(std::span<const double> values);
double perplexity_of(std::span<const double> log_likelihoods);  // exp(−mean)

// The sample deviation of `statistic` over resamples with replacement: lm-eval's bootstrap, whose generators, seeded 0, 1, …, make 1,000
// resamples each. Runs on all cores; the result does not depend on their number. None for fewer than two values.
std::optional<double> bootstrap_standard_error(std::span<const double> values, double (*statistic)(std::span<const double>),
                                               int64_t resamples = 100000);

// Log-likelihoods in nats, and the words or bytes that each covers.
struct WeightedLikelihood {
  double log_likelihood = 0;
  int64_t weight = 0;
};
double weighted_perplexity(std::span<const WeightedLikelihood> documents);  // exp(−Σ log-likelihoods / Σ weights)
double bits_per_byte(std::span<const WeightedLikelihood> documents);        // −Σ log-likelihoods / Σ weights / ln 2

using GoldAndPrediction = std::pair<int64_t, int64_t>;
// 2PR/(P + R) of one class against all others; 0 if no prediction of the class is right.
double class_f1(std::span<const GoldAndPrediction> pairs, int64_t label);
double macro_f1(std::span<const GoldAndPrediction> pairs, int64_t classes);  // the mean of class_f1 over labels 0 … classes − 1

// SQuAD's normalisation: lower case, without ASCII punctuation and the words a, an, the; one space between words.
std::string squad_normalized(std::string_view text);
bool squad_exact(std::string_view prediction, std::string_view gold);  // whether both are equal after normalisation
double squad_f1(std::string_view prediction, std::string_view gold);   // F1 of the normalised words, each as often as it occurs

// The means and standard errors of the metrics that are numbers in the first document's measure(), and in its "further". Lists are left to
// the caller.
EvalFigures mean_figures(std::span<const Json> measured);

struct SizedFigure {
  EvalFigure figure;
  int64_t documents = 0;
};
// Every figure counts once, as in the paper's averages over tasks. The standard error takes the tasks to be independent; none if one figure
// has none.
EvalFigure unweighted_average(std::span<const EvalFigure> figures);
// lm-eval's figure of a group: the mean over all documents, with the pooled standard error.
EvalFigure pooled_average(std::span<const SizedFigure> figures);

}  // namespace based
