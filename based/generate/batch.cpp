#include "based/generate/batch.h"

#include <chrono>
#include <filesystem>
#include <map>

#include "based/core/config.h"
#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/core/hash.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/progress.h"

namespace based {
namespace {

double number_of(const Json& value, const std::string& where) {
  if (!value.is_number()) throw Error(where + " must be a number, got " + dump_json(value));
  return value.get<double>();
}

int64_t integer_of(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX))
    throw Error(where + " must be an integer, got " + dump_json(value));
  return value.get<int64_t>();
}

std::string string_of(const Json& value, const std::string& where) {
  if (!value.is_string()) throw Error(where + " must be a text, got " + dump_json(value));
  return value.get<std::string>();
}

template <class T>
std::vector<T> list_of(const Json& value, const std::string& where, T (*element)(const Json&, const std::string&)) {
  if (!value.is_array()) throw Error(where + " must be a list, got " + dump_json(value));
  std::vector<T> list;
  for (const Json& one : value) list.push_back(element(one, where));
  return list;
}

// The results so far: in memory, and in a file that a killed run leaves.
class Results {
 public:
  Results(const BatchOutput& output, const PromptsFile& prompts) : output_(output), total_(prompts.size()) {
    if (output.out.empty()) return;
    lock_.emplace(output.out);
    partial_ = output.out + ".partial";
    const std::string head = dump_json({{"prompts", prompts.hash()}, {"run", output.run}}) + "\n";
    const bool there = path_exists(partial_);
    if (path_exists(output.out))
      throw UsageError(output.out + ": is there already" + (output.resume ? ": nothing is left to do" : "; name another file"));
    if (there && !output.resume)
      throw UsageError(partial_ + ": holds what an earlier run has finished; --resume does the rest, another --out begins anew");
    uint64_t keep = 0;
    if (there) keep = read_partial(head);
    file_ = std::make_unique<AppendFile>(partial_, keep);
    if (keep == 0) file_->append(head);
  }

  bool has(int64_t index) const { return lines_.contains(index); }
  int64_t size() const { return static_cast<int64_t>(lines_.size()); }

  void add(int64_t index, const Json& result) {
    std::string line = dump_json(result);
    if (file_ && !file_->append(line + "\n") && !warned_) {
      warned_ = true;
      log_warning(partial_ + ": no room for what has been finished; it is kept in memory");
    }
    lines_.emplace(index, std::move(line));
    while (!file_ && next_ < total_ && has(next_)) print(next_++);
  }

  void finish() {
    if (!file_) {
      for (const auto& [index, line] : lines_)
        if (index >= next_) print(index);
      return;
    }
    if (size() < total_) return file_->sync();
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

 private:
  void print(int64_t index) {
    output_.print(lines_.at(index));
    lines_[index].clear();  // it is out
  }

  // The bytes of its whole lines.
  uint64_t read_partial(const std::string& head) {
    const std::string text = read_file(partial_);
    size_t begin = text.find('\n');
    if (begin == std::string::npos) return 0;
    if (text.compare(0, ++begin, head) != 0)
      throw UsageError(partial_ + ": was begun with other prompts, another model or other options; put them back, or name another --out");
    for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string line = text.substr(begin, end - begin);
      const Json result = parse_json(line, partial_);
      const int64_t index = integer_of(result.value("index", Json()), partial_ + ": index");
      if (index < 0 || index >= total_)
        throw Error(partial_ + ": a result of prompt " + std::to_string(index) + ", of which there is none");
      lines_[index] = line;
    }
    return begin;
  }

  const BatchOutput& output_;
  int64_t total_, next_ = 0;
  std::optional<FileLock> lock_;  // of the output: no other run looks at what is there, or adds to it
  std::string partial_;
  std::unique_ptr<AppendFile> file_;
  std::map<int64_t, std::string> lines_;
  bool warned_ = false;
};

class Batch {
 public:
  Batch(Engine& engine, const Tokenizer& tokenizer, const PromptsFile& prompts, const PromptDefaults& defaults, const BatchOutput& output)
      : engine_(engine),
        tokenizer_(tokenizer),
        generator_(engine, tokenizer),
        prompts_(prompts),
        defaults_(defaults),
        results_(output, prompts) {}

  BatchReport run() {
    const InterruptScope interrupts;
    report_.prompts = prompts_.size();
    report_.kept = results_.size();
    Progress progress("generate", prompts_.size(), {}, report_.kept);
    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    while (!interrupted()) {
      feed();
      if (generator_.idle()) break;
      generator_.step({}, [&](int64_t sequence, GeneratedText text) { take(sequence, std::move(text)); });
      progress.update(results_.size(), {{"tokens/s", format_count(static_cast<double>(report_.tokens) / seconds())}});
    }
    report_.seconds = seconds();
    report_.interrupted = results_.size() < prompts_.size();
    progress.finish();
    results_.finish();
    return report_;
  }

 private:
  // As many as there are slots wait behind those that go on, so that none stays empty.
  void feed() {
    for (; next_ < prompts_.size() && static_cast<int64_t>(generator_.size()) < 2 * engine_.slots(); ++next_) {
      if (results_.has(next_)) continue;
      try {
        Json id;
        const int64_t sequence = generator_.add(prompts_.request(next_, tokenizer_, defaults_, &id));
        begun_[sequence] = {next_, id};
      } catch (const Error& error) {
        const std::string place = prompts_.place(next_), what = error.what();
        Json result = head(next_, prompts_.id(next_));
        result["error"] = what.starts_with(place) ? what : place + ": " + what;
        results_.add(next_, result);
        ++report_.failed;
      }
    }
  }

  struct Begun {
    int64_t index = 0;
    Json id;
  };

  static Json head(int64_t index, const Json& id) {
    Json result{{"index", index}};
    if (!id.is_null()) result["id"] = id;
    return result;
  }

  void take(int64_t sequence, GeneratedText text) {
    const Begun begun = begun_.at(sequence);
    const int64_t index = begun.index;
    begun_.erase(sequence);
    engine_.remove(sequence);
    Json result = head(index, begun.id);
    result["text"] = std::move(text.text), result["ids"] = text.ids;
    result["prompt_tokens"] = text.prompt_tokens, result["finish_reason"] = text.finish_reason;
    if (!text.log_probabilities.empty()) result["log_probabilities"] = text.log_probabilities;
    report_.tokens += static_cast<int64_t>(text.ids.size());
    report_.prompt_tokens += text.prompt_tokens;
    ++report_.finished;
    results_.add(index, result);
  }

  Engine& engine_;
  const Tokenizer& tokenizer_;
  TextGenerator generator_;
  const PromptsFile& prompts_;
  const PromptDefaults& defaults_;
  Results results_;
  BatchReport report_;
  int64_t next_ = 0;
  std::map<int64_t, Begun> begun_;  // by the engine's numbers
};

}  // namespace

PromptsFile::PromptsFile(const std::string& path) : path_(path), text_(read_file(path)) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text_.size();) {
    const size_t end = std::min(text_.find('\n', begin), text_.size());
    ++number;
    if (text_.find_first_not_of(" \t\r", begin) < end) lines_.push_back({begin, end - begin, number});
    begin = end + 1;
  }
  if (lines_.empty()) throw Error(path + ": holds no prompts; it is JSON lines: {\"prompt\": \"…\"}");
}

std::string PromptsFile::place(int64_t index) const { return path_ + ":" + std::to_string(lines_[static_cast<size_t>(index)].number); }

std::string PromptsFile::hash() const { return xxh3_128(std::as_bytes(std::span(text_))).hex(); }

Json PromptsFile::parse(int64_t index) const {
  const Line& line = lines_[static_cast<size_t>(index)];
  Json json = parse_json(std::string_view(text_).substr(line.begin, line.length), place(index));
  if (!json.is_object()) throw Error(place(index) + ": must be an object: {\"prompt\": \"…\"}");
  return json;
}

Json PromptsFile::id(int64_t index) const {
  try {
    return parse(index).value("id", Json());
  } catch (const Error&) {
    return {};
  }
}

TextRequest PromptsFile::request(int64_t index, const Tokenizer& tokenizer, const PromptDefaults& defaults, Json* id) const {
  const Json json = parse(index);
  TextRequest request{{}, {}, defaults.options, defaults.stops};
  SamplingOptions& sampling = request.options.sampling;
  using Read = std::function<void(const Json&, const std::string&)>;
  const std::map<std::string, Read> fields{
      {"id",
       [&](const Json& v, const std::string&) {
         if (id != nullptr) *id = v;
       }},
      {"prompt", [&](const Json& v, const std::string& w) { request.ids = encode_ids(tokenizer, string_of(v, w)); }},
      {"ids", [&](const Json& v, const std::string& w) { request.ids = list_of(v, w, integer_of); }},
      {"max_tokens", [&](const Json& v, const std::string& w) { request.options.max_tokens = integer_of(v, w); }},
      {"temperature", [&](const Json& v, const std::string& w) { sampling.temperature = number_of(v, w); }},
      {"top_k", [&](const Json& v, const std::string& w) { sampling.top_k = integer_of(v, w); }},
      {"top_p", [&](const Json& v, const std::string& w) { sampling.top_p = number_of(v, w); }},
      {"min_p", [&](const Json& v, const std::string& w) { sampling.min_p = number_of(v, w); }},
      {"repetition_penalty", [&](const Json& v, const std::string& w) { sampling.repetition_penalty = number_of(v, w); }},
      {"seed", [&](const Json& v, const std::string& w) { sampling.seed = integer_of(v, w); }},
      {"stop", [&](const Json& v, const std::string& w) {
         request.stops = v.is_string() ? std::vector{v.get<std::string>()} : list_of(v, w, string_of);
       }}};
  for (const auto& [key, value] : json.items()) {
    const auto field = fields.find(key);
    if (field != fields.end()) {
      field->second(value, place(index) + ": '" + key + "'");
      continue;
    }
    std::vector<std::string> known;
    known.reserve(fields.size());
    for (const auto& entry : fields) known.push_back(entry.first);
    const std::string close = nearest(key, known);
    throw Error(place(index) + ": unknown key '" + key + "'" + (close.empty() ? "" : ", did you mean '" + close + "'?"));
  }
  if (json.contains("prompt") == json.contains("ids")) throw Error(place(index) + ": needs either 'prompt' or 'ids'");
  if (request.ids.empty()) throw Error(place(index) + ": the prompt is empty; generation needs at least one token");
  if (request.options.max_tokens < 0) throw Error(place(index) + ": 'max_tokens' must not be negative");
  return request;
}

int64_t PromptsFile::longest(const Tokenizer& tokenizer, const PromptDefaults& defaults) const {
  int64_t most = 1;
  for (int64_t i = 0; i < size(); ++i) {
    try {
      const TextRequest one = request(i, tokenizer, defaults);
      most = std::max(most, static_cast<int64_t>(one.ids.size()) + one.options.max_tokens);
    } catch (const Error&) {  // told when its turn comes
    }
  }
  return most;
}

BatchReport generate_batch(Engine& engine, const Tokenizer& tokenizer, const PromptsFile& prompts, const PromptDefaults& defaults,
                           const BatchOutput& output) {
  return Batch(engine, tokenizer, prompts, defaults, output).run();
}

}  // namespace based
