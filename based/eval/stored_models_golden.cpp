#include "based/eval/stored_models_golden.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>

#include "based/core/files.h"
#include "based/eval/request_tokens.h"
#include "based/models/published/published.h"

namespace based {
namespace {

constexpr double kStoredModelTolerance = 1e-10;
constexpr int64_t kStoredModelLength = 64;  // max_length; rolling requests state their own

// Log-probabilities of a continuation's tokens over all columns of the logits, and their sum over the vocabulary alone.
struct StoredScore {
  std::vector<double> tokens;
  double over_all = 0, over_vocabulary = 0;
  bool greedy = false;
  int64_t input = 0;  // tokens that the model read
};

double sum_of(const std::vector<double>& numbers) {
  double sum = 0;
  for (const double number : numbers) sum += number;
  return sum;
}

std::vector<double> numbers_of(const Tensor& tensor) {
  const Tensor dense = tensor.to(torch::kFloat64).contiguous();
  return {dense.const_data_ptr<double>(), dense.const_data_ptr<double>() + dense.numel()};
}

// The last max_length tokens before each predicted one are read; of `tokens`, all but the last are inputs.
StoredScore stored_score(LanguageModel& model, const RequestTokens& tokens, int64_t max_length) {
  std::vector<int64_t> ids = tokens.context;
  ids.insert(ids.end(), tokens.continuation.begin(), tokens.continuation.end());
  for (int64_t& id : ids) id %= model.config().vocab_size;
  if (static_cast<int64_t>(ids.size()) > max_length + 1) ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(max_length + 1));
  const auto predicted = static_cast<int64_t>(tokens.continuation.size()), input = static_cast<int64_t>(ids.size()) - 1;
  if (predicted < 1 || predicted > input)
    throw Error("a request predicts " + std::to_string(predicted) + " of " + std::to_string(input) + " tokens");
  const torch::NoGradGuard no_gradients;
  const Tensor all = torch::tensor(ids, torch::kInt64);
  const Tensor hidden =
      model.forward(all.narrow(0, 0, input), Sequences::equal(1, input, torch::kCPU)).narrow(0, input - predicted, predicted);
  const Tensor targets = all.narrow(0, input + 1 - predicted, predicted);
  StoredScore score;
  score.tokens = numbers_of(model.token_log_probabilities(hidden, targets, /*padded_columns=*/true));
  score.over_all = sum_of(score.tokens);
  score.over_vocabulary = sum_of(numbers_of(model.token_log_probabilities(hidden, targets)));
  score.greedy = torch::equal(model.most_likely(hidden, /*padded_columns=*/true), targets);
  score.input = input;
  return score;
}

class StoredModelComparison {
 public:
  StoredModelComparison(std::string folder, const Tokenizer& tokenizer) : folder_(std::move(folder)), tokenizer_(&tokenizer) {}

  void compare(const Json& line, const std::string& where) {
    LanguageModel& model = model_of(line);
    if (line.contains("windows")) return compare_windows(model, line, where);
    RequestTokens tokens;
    if (line.contains("context_ids")) {
      tokens.context = line.at("context_ids").get<std::vector<int64_t>>();
      tokens.continuation = line.at("continuation_ids").get<std::vector<int64_t>>();
    } else {
      tokens = encode_pair(*tokenizer_, line.at("context").get<std::string>(), line.at("continuation").get<std::string>());
    }
    const StoredScore score = stored_score(model, tokens, kStoredModelLength);
    same_tokens(score, line, where);
    number(score.over_all, line.at("ll").get<double>(), where + ": ll");
    if (score.greedy != line.at("greedy").get<bool>()) differs(where + ": greedy");
    if (line.contains("ll_without_padded_columns"))
      number(score.over_vocabulary, line.at("ll_without_padded_columns").get<double>(), where + ": ll_without_padded_columns");
    const auto read = static_cast<int64_t>(tokens.context.size() + tokens.continuation.size()) - 1;
    if (line.contains("dropped") && read - score.input != line.at("dropped").get<int64_t>()) differs(where + ": dropped");
  }

  double error() const { return error_; }
  const std::string& worst() const { return worst_; }

 private:
  LanguageModel& model_of(const Json& line) {
    std::shared_ptr<LanguageModel>& model = models_[line.at("model").get<std::string>()];
    if (!model) model = PublishedModel(stored_model_folder(folder_, line)).load(torch::kFloat64);
    return *model;
  }

  void compare_windows(LanguageModel& model, const Json& line, const std::string& where) {
    const std::vector<int32_t> encoded = tokenizer_->encode(line.at("text").get<std::string>(), Specials::recognised);
    const std::vector<int64_t> ids(encoded.begin(), encoded.end());
    const auto max_length = line.at("max_length").get<int64_t>();
    const std::vector<RollingWindow> windows = rolling_windows(static_cast<int64_t>(ids.size()), max_length);
    const Json& expected = line.at("windows");
    if (windows.size() != expected.size()) return differs(where + ": the number of windows");
    double sum = 0;
    for (size_t i = 0; i < windows.size(); ++i) {
      const StoredScore score = stored_score(model, window_tokens(windows[i], ids, prefix_token(*tokenizer_)), max_length);
      same_tokens(score, expected[i], where + ": windows[" + std::to_string(i) + "]");
      sum += score.over_all;
    }
    number(sum, line.at("ll").get<double>(), where + ": ll");
  }

  void same_tokens(const StoredScore& score, const Json& expected, const std::string& where) {
    if (expected.contains("input") && score.input != expected.at("input").get<int64_t>()) differs(where + ": input");
    const auto tokens = expected.at("token_logprobs").get<std::vector<double>>();
    if (tokens.size() != score.tokens.size()) return differs(where + ": the number of token_logprobs");
    for (size_t i = 0; i < tokens.size(); ++i) number(score.tokens[i], tokens[i], where + ": token_logprobs[" + std::to_string(i) + "]");
  }

  void differs(const std::string& where) { number(std::numeric_limits<double>::infinity(), 0, where); }
  void number(double actual, double expected, const std::string& where) {
    const double difference = std::abs(actual - expected);
    const double error = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    if (error <= error_) return;
    error_ = error;
    worst_ = where;
  }

  std::string folder_;
  const Tokenizer* tokenizer_;
  std::map<std::string, std::shared_ptr<LanguageModel>> models_;
  double error_ = 0;
  std::string worst_;
};

}  // namespace

std::string stored_model_folder(const std::string& requests_folder, const Json& line) {
  const std::filesystem::path folder = std::filesystem::path(requests_folder).lexically_normal();
  const std::filesystem::path named = folder.has_filename() ? folder : folder.parent_path();
  return (named / ".." / ".." / "checkpoints" / line.at("model").get<std::string>()).lexically_normal().string();
}

GoldenResult check_stored_models(const std::string& folder, const std::vector<Json>& lines, const Tokenizer& tokenizer) {
  StoredModelComparison comparison(folder, tokenizer);
  const std::string path = path_in(folder, "requests.jsonl");
  for (size_t i = 0; i < lines.size(); ++i) comparison.compare(lines[i], path + ":" + std::to_string(i + 1));
  GoldenResult result;
  result.file = folder;
  result.mixer = "evaluation";
  result.tolerance = kStoredModelTolerance;
  result.output_error = comparison.error();
  result.worst = comparison.worst();
  result.pass = comparison.error() <= kStoredModelTolerance;
  return result;
}

}  // namespace based
