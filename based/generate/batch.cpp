#include "based/generate/batch.h"

#include <charconv>
#include <chrono>
#include <map>

#include "based/core/config.h"
#include "based/core/files.h"
#include "based/core/hash.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/progress.h"
#include "based/core/random.h"
#include "based/generate/batch_results.h"
#include "based/models/finite.h"

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

// {"<token id>": number, …}, as in OpenAI's API.
std::vector<std::pair<int64_t, double>> biases_of(const Json& value, const std::string& where) {
  if (!value.is_object()) throw Error(where + " must be an object {\"<token id>\": number}, got " + dump_json(value));
  std::vector<std::pair<int64_t, double>> biases;
  biases.reserve(value.size());
  for (const auto& [key, number] : value.items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) throw Error(where + ": the key '" + key + "' is no token id");
    biases.emplace_back(id, number_of(number, where + " of " + key));
  }
  return biases;
}

class Batch {
 public:
  Batch(Engine& engine, const Tokenizer& tokenizer, const PromptsFile& prompts, const PromptDefaults& defaults, const BatchOutput& output)
      : engine_(engine),
        tokenizer_(tokenizer),
        generator_(engine, tokenizer),
        prompts_(prompts),
        defaults_(defaults),
        results_(output, prompts) {}

  // An error that ends the run early also says which results are kept.
  BatchReport run() {
    try {
      return generate();
    } catch (const Error& error) {
      const std::string kept = results_.leave();
      throw Error(error.what() + (kept.empty() ? "" : "; " + kept));
    } catch (...) {
      if (const std::string kept = results_.leave(); !kept.empty()) log_warning(kept);
      throw;
    }
  }

 private:
  BatchReport generate() {
    const InterruptScope interrupts;
    report_.prompts = prompts_.size();
    report_.kept = results_.kept();
    report_.kept_failed = results_.kept_failed();
    Progress progress("generate", prompts_.size(), {}, report_.kept);
    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    while (!interrupted()) {
      feed();
      if (generator_.idle()) break;
      generator_.step({}, [&](int64_t sequence, GeneratedText text) { take(sequence, std::move(text)); });
      progress.update(results_.size(), figures(seconds()));
    }
    report_.seconds = seconds();
    report_.interrupted = results_.size() < prompts_.size();
    progress.finish();
    results_.finish();
    return report_;
  }

  // The figures of this run. Prompt tokens are among them because reading a prompt of a million tokens takes minutes.
  Progress::Fields figures(double seconds) const {
    const auto count = [](int64_t number) { return format_count(static_cast<double>(number)); };
    return {{"prompt tokens", count(engine_.tokens_read()) + " of " + count(to_read_)},
            {"tokens", count(generator_.tokens())},
            {"tokens/s", format_count(static_cast<double>(generator_.tokens()) / seconds)}};
  }

  // Keeps up to 2 x slots sequences in the engine, so that a slot that becomes free finds a waiting sequence.
  void feed() {
    for (; next_ < prompts_.size() && static_cast<int64_t>(generator_.size()) < 2 * engine_.slots(); ++next_) {
      if (results_.has(next_)) continue;
      try {
        Json id;
        TextRequest request = prompts_.request(next_, tokenizer_, defaults_, &id);
        const int64_t seed = request.options.sampling.seed;
        request.options.keep_state = request.options.max_tokens == 0;  // only the state then shows whether the model's logits are finite
        const int64_t sequence = generator_.add(std::move(request));
        begun_[sequence] = {next_, seed, id};
        to_read_ += static_cast<int64_t>(engine_.text(sequence).size()) - 1;
      } catch (const Error& error) {
        fail(head(next_, prompts_.id(next_)), next_, error.what());
      }
    }
  }

  struct Begun {
    int64_t index = 0, seed = 0;
    Json id;
  };

  void fail(Json result, int64_t index, const std::string& what) {
    const std::string place = prompts_.place(index);
    result["error"] = what.starts_with(place) ? what : place + ": " + what;
    results_.add(index, result);
    ++report_.failed;
  }

  // Whether the model's logits after the last token of a finished sequence are finite.
  bool is_finite(int64_t sequence, const GeneratedText& text) {
    if (text.finish_reason == "not_finite") return false;
    if (!text.ids.empty() || text.finish_reason != "length") return true;
    try {
      require_finite_logits(engine_.model(), engine_.snapshot(sequence));
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  static Json head(int64_t index, const Json& id) {
    Json result{{"index", index}};
    if (!id.is_null()) result["id"] = id;
    return result;
  }

  void take(int64_t sequence, GeneratedText text) {
    const Begun begun = begun_.at(sequence);
    const int64_t index = begun.index;
    begun_.erase(sequence);
    const bool finite = is_finite(sequence, text);
    engine_.remove(sequence);
    Json result = head(index, begun.id);
    result["text"] = std::move(text.text), result["ids"] = text.ids;
    result["prompt_tokens"] = text.prompt_tokens, result["finish_reason"] = text.finish_reason;
    result["seed"] = begun.seed;
    if (!text.log_probabilities.empty()) result["log_probabilities"] = text.log_probabilities;
    report_.tokens += static_cast<int64_t>(text.ids.size());
    report_.prompt_tokens += text.prompt_tokens;
    if (!finite) return fail(std::move(result), index, kLogitsNotFinite);
    ++report_.finished;
    results_.add(index, result);
  }

  Engine& engine_;
  const Tokenizer& tokenizer_;
  TextGenerator generator_;
  const PromptsFile& prompts_;
  const PromptDefaults& defaults_;
  BatchResults results_;
  BatchReport report_;
  int64_t next_ = 0, to_read_ = 0;
  std::map<int64_t, Begun> begun_;  // the engine's number of a sequence -> its prompt
};

}  // namespace

// Each line has a Philox stream of its own, so that lines are as independent as two seeds. The seed has 53 bits because every JSON reader
// keeps these exactly.
int64_t seed_of_line(int64_t seed, int64_t index) {
  return static_cast<int64_t>(Random(static_cast<uint64_t>(seed), static_cast<uint64_t>(index)).next64() >> 11);
}

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
      {"presence_penalty", [&](const Json& v, const std::string& w) { sampling.presence_penalty = number_of(v, w); }},
      {"frequency_penalty", [&](const Json& v, const std::string& w) { sampling.frequency_penalty = number_of(v, w); }},
      {"logit_bias", [&](const Json& v, const std::string& w) { sampling.logit_bias = biases_of(v, w); }},
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
  if (!json.contains("seed")) sampling.seed = seed_of_line(defaults.options.sampling.seed, index);
  if (request.options.max_tokens < 0) throw Error(place(index) + ": 'max_tokens' must not be negative");
  return request;
}

int64_t PromptsFile::longest(const Tokenizer& tokenizer, const PromptDefaults& defaults) const {
  int64_t most = 1;
  for (int64_t i = 0; i < size(); ++i) {
    try {
      const TextRequest one = request(i, tokenizer, defaults);
      const auto prompt = static_cast<int64_t>(one.ids.size());
      most = std::max(most, prompt + std::min(one.options.max_tokens, INT64_MAX - prompt));
    } catch (const Error&) {  // generate_batch() reports it
    }
  }
  return most;
}

BatchReport generate_batch(Engine& engine, const Tokenizer& tokenizer, const PromptsFile& prompts, const PromptDefaults& defaults,
                           const BatchOutput& output) {
  return Batch(engine, tokenizer, prompts, defaults, output).run();
}

}  // namespace based
