// The functions of lm-eval whose inputs and results a golden file lists.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/temporaries.h"
#include "based/data/class_metrics.h"
#include "based/eval/eval_golden_compare.h"
#include "based/eval/request_tokens.h"
#include "based/eval/tasks/contains.h"
#include "based/eval/tasks/hellaswag.h"
#include "based/eval/tasks/multiple_choice.h"
#include "based/eval/tasks/python_random.h"
#include "based/eval/tasks/python_text.h"
#include "based/eval/tasks/statistics.h"
#include "based/eval/tasks/wikitext.h"

namespace based {
namespace {

// The functions receive an input with its results, and return this library's results under the same keys.
using EvalCase = std::function<Json(const Json& input, const Tokenizer& tokenizer)>;

std::string text_in(const Json& input, const char* key) { return input.at(key).get<std::string>(); }
std::vector<double> numbers_in(const Json& input, const char* key) { return input.at(key).get<std::vector<double>>(); }
Json error_json(const std::optional<double>& error) { return error ? Json(*error) : Json("N/A"); }

// --- metrics

Json multiple_choice_case(const Json& input, const Tokenizer&) {
  const auto choices = input.at("choices").get<std::vector<std::string>>();
  std::vector<EvalAnswer> answers;
  std::vector<double> values, by_length;
  for (size_t i = 0; i < choices.size(); ++i) {
    values.push_back(input.at("lls").at(i).get<double>());
    by_length.push_back(values.back() / static_cast<double>(count_characters(choices[i])));
    answers.push_back({.log_likelihood = values.back(), .greedy = input.at("greedy").at(i).get<bool>()});
  }
  Json result = measure_choices(choices, input.at("gold").get<int64_t>(), answers, {"acc", "acc_norm", "acc_bytes", "exact_match"});
  result.erase("further");
  return {{"result", result}, {"argmax", first_largest(values)}, {"argmax_norm", first_largest(by_length)}};
}

Json cb_f1_case(const Json& input, const Tokenizer&) {
  return {{"value", macro_f1(input.at("gold_pred").get<std::vector<GoldAndPrediction>>(), 3)}};
}

Json f1_mcc_case(const Json& input, const Tokenizer&) {
  const auto pairs = input.at("gold_pred").get<std::vector<GoldAndPrediction>>();
  ConfusionMatrix confusion(2);
  for (const auto& [gold, prediction] : pairs) confusion.add(gold, prediction);
  return {{"f1", class_f1(pairs, 1)}, {"mcc", confusion.mcc()}};
}

Json aggregate_case(const Json& input, const Tokenizer&) {
  const std::vector<double> items = numbers_in(input, "items"), zero_one = numbers_in(input, "zero_one");
  return {{"mean", mean(items)},
          {"mean_stderr", error_json(mean_standard_error(items))},
          {"perplexity", perplexity_of(items)},
          {"perplexity_stderr", error_json(bootstrap_standard_error(items, perplexity_of, input.at("bootstrap_iters").get<int64_t>()))},
          {"zero_one_mean", mean(zero_one)},
          {"zero_one_stderr", error_json(mean_standard_error(zero_one))}};
}

Json weighted_case(const Json& input, const Tokenizer&) {
  std::vector<WeightedLikelihood> documents;
  for (const Json& pair : input.at("ll_weight")) documents.push_back({pair.at(0).get<double>(), pair.at(1).get<int64_t>()});
  return {{"weighted_perplexity", weighted_perplexity(documents)}, {"bits_per_byte", bits_per_byte(documents)}};
}

Json group_case(const Json& input, const Tokenizer&) {
  std::vector<SizedFigure> sized;
  std::vector<EvalFigure> figures;
  for (size_t i = 0; i < input.at("sizes").size(); ++i) {
    figures.push_back({input.at("metrics").at(i).get<double>(), input.at("stderrs").at(i).get<double>()});
    sized.push_back({figures.back(), input.at("sizes").at(i).get<int64_t>()});
  }
  const EvalFigure pooled = pooled_average(sized);
  return {
      {"weighted", pooled.value}, {"unweighted", unweighted_average(figures).value}, {"pooled_stderr", error_json(pooled.standard_error)}};
}

Json squad_case(const Json& input, const Tokenizer&) {
  const std::string gold = text_in(input, "gold"), prediction = text_in(input, "pred");
  return {{"exact", squad_exact(prediction, gold) ? 1 : 0}, {"f1", squad_f1(prediction, gold)}};
}

Json contains_case(const Json& input, const Tokenizer&) {
  return {{"contains", contains_ignoring_case(text_in(input, "prediction"), text_in(input, "label")) ? 1 : 0}};
}

// --- requests

Json stop_case(const Json& input, const Tokenizer&) {
  return {{"text", cut_at_stops(text_in(input, "raw"), input.at("stop").get<std::vector<std::string>>())}};
}

Json stop_list_case(const Json& input, const Tokenizer&) {
  const Json& until = input.at("until");
  return {{"stop", stop_strings(until.is_null() ? std::vector<std::string>() : until.get<std::vector<std::string>>())}};
}

Json encode_pair_case(const Json& input, const Tokenizer& tokenizer) {
  const RequestTokens tokens = encode_pair(tokenizer, text_in(input, "context"), text_in(input, "continuation"));
  return {{"context_ids", tokens.context}, {"continuation_ids", tokens.continuation}, {"moved_characters", tokens.moved}};
}

// Windows as [first token of the context, its tokens, first predicted token, predicted tokens].
Json window_lists(int64_t tokens, int64_t max_length) {
  Json windows = Json::array();
  for (const RollingWindow& window : rolling_windows(tokens, max_length)) {
    const Json begin = window.begins_text() ? Json("prefix") : Json(window.first - window.context);
    windows.push_back({begin, window.context, window.first, window.predicted});
  }
  return windows;
}

Json rolling_case(const Json& input, const Tokenizer&) {
  return {{"windows", window_lists(input.at("tokens").get<int64_t>(), input.value("max_length", int64_t{2048}))}};
}

// --- preprocessing of text

Json hellaswag_case(const Json& input, const Tokenizer&) {
  std::vector<std::string> choices;
  for (const Json& ending : input.at("endings")) choices.push_back(hellaswag_preprocessed(ending.get<std::string>()));
  return {{"query", hellaswag_context(text_in(input, "activity_label"), text_in(input, "ctx_a"), text_in(input, "ctx_b"))},
          {"choices", choices}};
}

Json wikitext_case(const Json& input, const Tokenizer&) {
  const std::string page = text_in(input, "page");
  return {{"target", wikitext_detokenized(page)}, {"words", count_split_pieces(page)}, {"bytes", page.size()}};
}

// --- tasks

// A data set of one document in a temporary folder.
class OneDocumentSet {
 public:
  OneDocumentSet(const std::string& file, const Json& document) : folder_(temporary_folder() + "/based-golden-XXXXXX") {
    if (mkdtemp(folder_.data()) == nullptr) throw Error(temporary_folder() + ": no folder can be made there; set TMPDIR to another");
    const std::string path = path_in(folder_, file);
    make_folder(folder_of(path));
    write_file_atomic(path, dump_json(document) + "\n");
  }
  ~OneDocumentSet() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  OneDocumentSet(const OneDocumentSet&) = delete;
  OneDocumentSet& operator=(const OneDocumentSet&) = delete;

  std::unique_ptr<EvalTask> task(const std::string& name, const Tokenizer& tokenizer) const {
    return find_eval_task(name).make({.data = folder_, .tokenizer = &tokenizer});
  }
  EvalDocument document(const std::string& name, const Tokenizer& tokenizer) const {
    return task(name, tokenizer)->documents(0, 1).front();
  }

 private:
  std::string folder_;
};

Json request_pairs(const EvalDocument& document) {
  Json pairs = Json::array();
  for (const EvalRequest& request : document.requests) pairs.push_back({document.contexts.at(request.context), request.continuation});
  return pairs;
}

Json lambada_case(const Json& input, const Tokenizer& tokenizer) {
  const OneDocumentSet set("lambada/lambada_test.jsonl", {{"text", input.at("text")}});
  const EvalDocument document = set.document("lambada_openai", tokenizer);
  return {{"context", document.contexts.at(0)}, {"continuation", document.requests.at(0).continuation}};
}

Json winogrande_case(const Json& input, const Tokenizer& tokenizer) {
  const OneDocumentSet set("winogrande/dev.jsonl", input);
  const EvalDocument document = set.document("winogrande", tokenizer);
  return {{"requests", request_pairs(document)}, {"gold", document.gold}};
}

Json copa_case(const Json& input, const Tokenizer& tokenizer) {
  const EvalDocument document = OneDocumentSet("superglue/COPA/val.jsonl", input).document("copa", tokenizer);
  return {{"requests", request_pairs(document)}, {"label", document.gold}};
}

// The paragraph is "P. " and the question "Q?".
Json multirc_case(const Json& input, const Tokenizer& tokenizer) {
  const Json answer{{"text", input.at("answer")}, {"idx", 0}, {"label", input.at("label")}};
  const Json question{{"question", "Q?"}, {"idx", 0}, {"answers", Json::array({answer})}};
  const Json passage{{"text", "P. "}, {"questions", Json::array({question})}};
  const OneDocumentSet set("superglue/MultiRC/val.jsonl", {{"idx", 0}, {"passage", passage}});
  const EvalDocument document = set.document("multirc", tokenizer);
  std::vector<std::string> choices;
  for (const EvalRequest& request : document.requests) choices.push_back(request.continuation.substr(1));
  return {{"context", document.contexts.at(0)}, {"choices", choices}};
}

Json wsc_case(const Json& input, const Tokenizer& tokenizer) {
  Json target;
  for (const char* key : {"span1_text", "span1_index", "span2_text", "span2_index"}) target[key] = input.at(key);
  const OneDocumentSet set("superglue/WSC/val.jsonl", {{"text", input.at("text")}, {"target", target}, {"idx", 0}, {"label", false}});
  return {{"context", set.document("wsc", tokenizer).contexts.at(0)}};
}

Json acc_all_case(const Json& input, const Tokenizer& tokenizer) {
  const Json answer{{"text", "A"}, {"idx", 0}, {"label", 0}};
  const Json question{{"question", "Q?"}, {"idx", 0}, {"answers", Json::array({answer})}};
  const Json passage{{"text", "P"}, {"questions", Json::array({question})}};
  const OneDocumentSet set("superglue/MultiRC/val.jsonl", {{"idx", 0}, {"passage", passage}});
  std::vector<EvalDocument> documents;
  std::vector<Json> measured;
  const EvalDocument one = set.document("multirc", tokenizer);
  for (const Json& item : input.at("items")) {
    documents.push_back(one);
    documents.back().source["paragraph"] = item.at("paragraph");
    documents.back().source["question"] = item.at("question");
    const bool right = item.at("pred").get<bool>() == (item.at("label").get<int64_t>() == 1);
    measured.push_back({{"acc", right ? 1.0 : 0.0}, {"further", Json::object()}});
  }
  const EvalFigure all = set.task("multirc", tokenizer)->aggregate(documents, measured).further.at("acc_all");
  return {{"value", all.value}, {"stderr", error_json(all.standard_error)}};
}

// --- random numbers

Json random_case(const Json& input, const Tokenizer&) {
  PythonRandom random(input.at("seed").get<uint32_t>());
  std::vector<double> numbers;
  for (size_t i = 0; i < input.at("random").size(); ++i) numbers.push_back(random.random());
  return {{"random", numbers}};
}

Json random_sample_case(const Json& input, const Tokenizer&) {
  PythonRandom random(input.at("seed").get<uint32_t>());
  Json draws = Json::array();
  for (size_t i = 0; i < input.at("draws").size(); ++i)
    draws.push_back(random.sample(input.at("n").get<int64_t>(), input.at("k").get<int64_t>()));
  return {{"draws", draws}};
}

Json random_choices_case(const Json& input, const Tokenizer&) {
  PythonRandom random(input.at("seed").get<uint32_t>());
  Json draws = Json::array();
  for (const Json& draw : input.at("draws")) {
    std::vector<int64_t> indices;
    for (size_t i = 0; i < draw.size(); ++i) indices.push_back(static_cast<int64_t>(random.random() * input.at("n").get<double>()));
    draws.push_back(indices);
  }
  return {{"draws", draws}};
}

const std::map<std::string, EvalCase>& eval_case_functions() {
  static const std::map<std::string, EvalCase> functions{{"multiple_choice", multiple_choice_case},
                                                         {"cb_f1", cb_f1_case},
                                                         {"f1_mcc", f1_mcc_case},
                                                         {"aggregate", aggregate_case},
                                                         {"weighted", weighted_case},
                                                         {"group", group_case},
                                                         {"acc_all", acc_all_case},
                                                         {"squad", squad_case},
                                                         {"contains", contains_case},
                                                         {"stop", stop_case},
                                                         {"stop_list", stop_list_case},
                                                         {"encode_pair", encode_pair_case},
                                                         {"rolling", rolling_case},
                                                         {"rolling_empty", rolling_case},
                                                         {"hellaswag", hellaswag_case},
                                                         {"wikitext", wikitext_case},
                                                         {"lambada", lambada_case},
                                                         {"multirc", multirc_case},
                                                         {"winogrande", winogrande_case},
                                                         {"copa", copa_case},
                                                         {"wsc", wsc_case},
                                                         {"random", random_case},
                                                         {"random_sample", random_sample_case},
                                                         {"random_choices", random_choices_case}};
  return functions;
}

}  // namespace

bool is_eval_case(const std::string& name) { return eval_case_functions().contains(name); }

void compare_eval_cases(const Json& cases, const Tokenizer& tokenizer, const std::string& path, EvalComparison& comparison) {
  for (const auto& [name, inputs] : cases.items()) {
    const auto function = eval_case_functions().find(name);
    if (function == eval_case_functions().end()) throw Error(path + ": there is no function '" + name + "' to compare");
    const bool one = inputs.is_object();
    for (size_t i = 0; i < (one ? size_t{1} : inputs.size()); ++i) {
      const Json& input = one ? inputs : inputs.at(i);
      const std::string where = path + ": " + name + (one ? "" : "[" + std::to_string(i) + "]");
      bool compared = false;
      const Json results = function->second(input, tokenizer);
      for (const auto& [key, value] : results.items()) {
        if (!input.contains(key)) continue;  // a file may leave out results
        comparison.same(value, input.at(key), where + "." + key);
        compared = true;
      }
      if (!compared) throw Error(where + ": has no result");
    }
  }
}

}  // namespace based
