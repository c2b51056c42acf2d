#include "based/generate/batch_results.h"

#include <algorithm>
#include <filesystem>

namespace based {
namespace {

// Checks a line of the partial file: a resumed run repeats no prompt that has a valid line.
class ResultLine {
 public:
  ResultLine(const Json& json, bool log_probabilities) : json_(json) {
    if (!json.is_object()) throw Error("must be an object");
    failed_ = json.contains("error");
    if (failed_) {
      require("error", json.at("error").is_string(), "a text");
      return;
    }
    require("text", member("text").is_string(), "a text");
    require("finish_reason", member("finish_reason").is_string(), "a text");
    require("prompt_tokens", is_count(member("prompt_tokens")), "a count");
    const Json& ids = member("ids");
    require("ids", ids.is_array() && std::all_of(ids.begin(), ids.end(), is_count), "a list of token ids");
    if (!log_probabilities || ids.empty()) return;
    const Json& given = member("log_probabilities");
    const auto is_value = [](const Json& one) { return one.is_number() || one.is_null(); };  // null: not finite
    require("log_probabilities", given.is_array() && given.size() == ids.size() && std::all_of(given.begin(), given.end(), is_value),
            "a list of a number a token");
  }

  bool failed() const { return failed_; }
  // The prompt's index, below `count`.
  int64_t index(int64_t count) const {
    const Json& value = member("index");
    require("index", is_count(value), "a count");
    const auto index = value.get<int64_t>();
    if (index >= count) throw Error("a result of prompt " + std::to_string(index) + ", of which there is none");
    return index;
  }
  void require_id(const Json& id) const {
    const auto found = json_.find("id");
    if (found == json_.end() ? !id.is_null() : *found != id) throw Error("its 'id' is not that of the prompt");
  }

 private:
  static bool is_count(const Json& value) { return value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX; }
  static void require(const std::string& key, bool right, const std::string& what) {
    if (!right) throw Error("'" + key + "' must be " + what);
  }
  const Json& member(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) throw Error("has no '" + std::string(key) + "'");
    return *found;
  }

  const Json& json_;
  bool failed_ = false;
};

// The first option in which two runs differ; empty: none.
std::string difference(const Json& before, const Json& now) {
  const auto value = [](const Json& run, const std::string& key) { return run.contains(key) ? dump_json(run.at(key)) : "absent"; };
  for (const Json* run : {&now, &before})
    for (const auto& [key, unused] : run->items())
      if (const std::string was = value(before, key), is = value(now, key); was != is) return key + " is " + is + ", and was " + was;
  return "";
}

}  // namespace

BatchResults::BatchResults(const BatchOutput& output, const PromptsFile& prompts) : output_(output), prompts_(prompts) {
  if (output.out.empty()) return;
  lock_.emplace(output.out);
  partial_ = output.out + ".partial";
  const bool there = path_exists(partial_);
  if (path_exists(output.out))
    throw UsageError(output.out + ": is there already" + (output.resume ? ": nothing is left to do" : "; name another file"));
  if (there && !output.resume)
    throw UsageError(partial_ + ": holds what an earlier run has finished; --resume does the rest, another --out begins anew");
  const uint64_t keep = there ? read_partial() : 0;
  file_ = std::make_unique<AppendFile>(partial_, keep);
  kept_ = size();
  if (keep > 0 || file_->append(head())) return;
  try {
    file_->sync();  // throws the reason
  } catch (const Error&) {
    leave();
    throw;
  }
}

std::string BatchResults::head() const { return dump_json({{"prompts", prompts_.hash()}, {"run", output_.run}}) + "\n"; }

// Loads the results of the partial file. Returns the number of bytes in its complete lines.
uint64_t BatchResults::read_partial() {
  const std::string text = read_file(partial_);
  size_t begin = text.find('\n');
  if (begin == std::string::npos) {  // a run was killed before it had written the first line
    if (head().starts_with(text)) return 0;
    throw UsageError(partial_ + ": is no file of results that a run has left; move it away, or name another --out");
  }
  require_same_run(text.substr(0, begin++));
  int64_t number = 2;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    keep_line(text.substr(begin, end - begin), partial_ + ":" + std::to_string(number++));
  return begin;
}

void BatchResults::require_same_run(const std::string& line) const {
  if (line + "\n" == head()) return;
  std::string what;
  try {
    const Json before = parse_json(line, partial_ + ":1");
    if (!before.is_object() || !before.contains("prompts") || !before.contains("run") || !before.at("run").is_object())
      throw Error(partial_ + ":1: must say what the run was begun with");
    what = before.at("prompts") == prompts_.hash() ? difference(before.at("run"), output_.run) : "the prompts are not the same";
  } catch (const Error& error) {
    throw Error(std::string(error.what()) + ": the file is damaged; move it away, or name another --out");
  }
  if (what.empty()) return;  // the same, written in another order
  throw UsageError(partial_ + ": was begun with other prompts, another model or other options (" + what +
                   "); put them back, or name another --out");
}

void BatchResults::keep_line(const std::string& line, const std::string& place) {
  try {
    const Json json = parse_json(line, "the line");
    const auto logprobs = output_.run.find("logprobs");
    const ResultLine result(json, logprobs != output_.run.end() && *logprobs == true);
    const int64_t index = result.index(prompts_.size());
    result.require_id(prompts_.id(index));
    if (!lines_.emplace(index, line).second) throw Error("prompt " + std::to_string(index) + " has a result before");
    kept_failed_ += result.failed();
  } catch (const Error& error) {
    throw Error(place + ": is damaged: " + error.what() + "; remove the line, and --resume does its prompt again");
  }
}

void BatchResults::add(int64_t index, const Json& result) {
  std::string line = dump_json(result);
  if (file_ && !file_->append(line + "\n")) file_->sync();  // throws the reason
  lines_.emplace(index, std::move(line));
  while (!file_ && next_ < prompts_.size() && has(next_)) print(next_++);
}

void BatchResults::print(int64_t index) {
  output_.print(lines_.at(index));
  lines_[index].clear();  // it has been printed
}

void BatchResults::finish() {
  if (!file_) {
    for (const auto& [index, line] : lines_)
      if (index >= next_) print(index);
    return;
  }
  file_->sync();
  if (size() < prompts_.size()) return;
  AtomicFile all(output_.out);
  for (const auto& [index, line] : lines_) {
    all.write(std::as_bytes(std::span(line)));
    all.write(std::as_bytes(std::span("\n", 1)));
  }
  all.commit();
  file_.reset();
  std::error_code gone;
  std::filesystem::remove(partial_, gone);
}

std::string BatchResults::leave() {
  if (!file_) return "";
  file_.reset();
  if (size() > 0)
    return std::to_string(size()) + " of " + std::to_string(prompts_.size()) + " results are kept in " + partial_ +
           ", and the same command with --resume does the rest";
  std::error_code gone;
  std::filesystem::remove(partial_, gone);
  return "no result was finished; the same command begins anew";
}

}  // namespace based
