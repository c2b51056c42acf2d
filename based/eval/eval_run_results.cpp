#include "based/eval/eval_run_results.h"

#include <algorithm>

namespace based {
namespace {

Json answer_json(const EvalRequest& request, const EvalAnswer& answer) {
  Json json;
  switch (request.kind) {
    case EvalRequest::Kind::score: json = {{"ll", answer.log_likelihood}, {"greedy", answer.greedy}}; break;
    case EvalRequest::Kind::rolling: json = {{"ll", answer.log_likelihood}}; break;
    case EvalRequest::Kind::generate: json = {{"text", answer.text}}; break;
  }
  if (answer.tokens_cut > 0) json["tokens_cut"] = answer.tokens_cut;
  return json;
}

EvalAnswer stored_answer(const EvalRequest& request, const Json& json) {
  const bool text = request.kind == EvalRequest::Kind::generate;
  const auto needs = [&](const char* key, bool right) {
    if (!right) throw Error(std::string("each of its answers needs '") + key + "'");
  };
  needs(text ? "text" : "ll", json.is_object() && json.contains(text ? "text" : "ll"));
  EvalAnswer answer;
  if (json.contains("tokens_cut")) {
    needs("tokens_cut", json.at("tokens_cut").is_number_integer());
    answer.tokens_cut = json.at("tokens_cut").get<int64_t>();
  }
  if (text) {
    needs("text", json.at("text").is_string());
    answer.text = json.at("text").get<std::string>();
    return answer;
  }
  needs("ll", json.at("ll").is_number());
  answer.log_likelihood = json.at("ll").get<double>();
  if (request.kind == EvalRequest::Kind::score) {
    needs("greedy", json.contains("greedy") && json.at("greedy").is_boolean());
    answer.greedy = json.at("greedy").get<bool>();
  }
  return answer;
}

// The first value in which two runs differ, as "options.limit is 8, and was 4"; empty: none.
std::string run_difference(const Json& before, const Json& now, const std::string& name) {
  if (before == now) return "";
  if (before.is_object() && now.is_object()) {
    for (const Json* run : {&now, &before}) {
      for (const auto& item : run->items()) {
        const std::string& key = item.key();
        const auto value_in = [&key](const Json& object) { return object.contains(key) ? object.at(key) : Json(); };
        const std::string found = run_difference(value_in(before), value_in(now), name.empty() ? key : name + "." + key);
        if (!found.empty()) return found;
      }
    }
  }
  return name + " is " + dump_json(now) + ", and was " + dump_json(before);
}

}  // namespace

EvalResultsFile::EvalResultsFile(const std::string& path, const Json& run, std::vector<EvalTaskRun>& tasks,
                                 const std::vector<size_t>& block_ends)
    : path_(path), lock_(path) {
  const std::string head = dump_json(run) + "\n", text = path_exists(path) ? read_regular_file(path) : "";
  const size_t end = text.find('\n');
  if (end == std::string::npos) {  // new, or killed before the first line was whole
    if (!head.starts_with(text)) throw UsageError(path + ": holds no results of an evaluation; name another --out");
    file_ = std::make_unique<AppendFile>(path, 0);
    file_->append(head);
    file_->sync();
    return;
  }
  require_same_run(text.substr(0, end), run);
  load(text, end + 1, tasks);
  size_t keep = 0;
  for (const size_t block : block_ends)
    if (block <= line_ends_.size()) keep = std::max(keep, block);
  documents_ = keep;
  size_t left = keep;
  for (EvalTaskRun& task : tasks) {
    const size_t kept = std::min(left, task.answers.size());
    task.answers.resize(kept);
    task.measured.resize(kept);
    left -= kept;
  }
  file_ = std::make_unique<AppendFile>(path, keep > 0 ? line_ends_[keep - 1] : end + 1);
}

void EvalResultsFile::require_same_run(const std::string& line, const Json& run) const {
  Json before;
  try {
    before = parse_json(line, path_ + ":1");
    if (!before.is_object() || !before.contains("tasks")) throw Error(path_ + ":1: is not the description of an evaluation");
  } catch (const Error& error) {
    throw UsageError(std::string(error.what()) + "; name another --out");
  }
  const std::string what = run_difference(before, run, "");
  if (!what.empty())
    throw UsageError(path_ + ": holds the results of another model, other tasks or other options (" + what +
                     "); repeat that run's, or name another --out");
}

// Reads the whole lines from byte `begin` on. The last line is left out if it is torn.
void EvalResultsFile::load(const std::string& text, size_t begin, std::vector<EvalTaskRun>& tasks) {
  size_t task = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    try {
      while (task < tasks.size() && tasks[task].finished()) ++task;
      if (task == tasks.size()) throw Error("there are more results than documents");
      EvalTaskRun& now = tasks[task];
      const EvalDocument& document = now.documents[now.measured.size()];
      const Json json = parse_json(std::string_view(text).substr(begin, end - begin), "the line");
      const auto is = [&json](const char* key, const Json& value) {
        return json.is_object() && json.contains(key) && json.at(key) == value;
      };
      if (!is("task", now.kind.name) || !is("doc", document.index))
        throw Error("is not the result of document " + std::to_string(document.index) + " of task '" + now.kind.name + "'");
      if (!json.contains("metrics") || !json.at("metrics").is_object()) throw Error("needs 'metrics'");
      if (!json.contains("answers") || json.at("answers").size() != document.requests.size())
        throw Error("needs one of 'answers' for each of " + std::to_string(document.requests.size()) + " requests");
      std::vector<EvalAnswer> answers;
      for (size_t i = 0; i < document.requests.size(); ++i)
        answers.push_back(stored_answer(document.requests[i], json.at("answers").at(i)));
      now.answers.push_back(std::move(answers));
      now.measured.push_back(json.at("metrics"));
      line_ends_.push_back(end + 1);
    } catch (const Error& error) {
      throw Error(path_ + ":" + std::to_string(line_ends_.size() + 2) + ": " + error.what() +
                  "; remove the lines from there on, and the same command answers their documents again");
    }
  }
}

std::string EvalResultsFile::line_of(const EvalTaskRun& task, size_t index) {
  const EvalDocument& document = task.documents[index];
  Json answers = Json::array();
  for (size_t i = 0; i < document.requests.size(); ++i) answers.push_back(answer_json(document.requests[i], task.answers[index][i]));
  return dump_json({{"task", task.kind.name}, {"doc", document.index}, {"answers", answers}, {"metrics", task.measured[index]}}) + "\n";
}

void EvalResultsFile::add_block(const EvalTaskRun& task, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) file_->append(line_of(task, i));
  file_->sync();
  documents_ += end - begin;
}

}  // namespace based
