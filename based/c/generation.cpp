#include <deque>

#include "based/c/handles.h"

namespace based::c {

// The prompts of a generation, in an engine. Steps and results are translated to events.
class Generation {
 public:
  Generation(std::shared_ptr<Loaded> loaded, std::vector<TextRequest> requests, const based_generation_options& options)
      : loaded_(std::move(loaded)),
        keeps_states_(options.keep_states != 0),
        engine_(*loaded_, engine_options(requests.size(), options), most_tokens(requests, options)),
        generator_(*engine_, *loaded_->text.tokenizer) {
    prompts_.reserve(requests.size());
    for (TextRequest& request : requests) {
      const int64_t sequence = generator_.add(std::move(request));
      number_[sequence] = prompts_.size();
      prompts_.push_back({sequence, static_cast<int64_t>(engine_->text(sequence).size()), std::nullopt});
    }
  }

  Loaded& loaded() const { return *loaded_; }
  const std::shared_ptr<Loaded>& shared() const { return loaded_; }

  void next(based_event& event) {
    if (events_.empty() && !generator_.idle()) step();
    event = {generator_.idle() ? BASED_EVENT_DONE : BASED_EVENT_STEP, 0, "", 0};
    if (events_.empty()) return;
    current_ = std::move(events_.front());
    events_.pop_front();
    event = {current_.kind, current_.prompt, current_.text.c_str(), current_.text.size()};
  }

  void stop(size_t number) {
    if (number == SIZE_MAX) {
      for (size_t i = 0; i < prompts_.size(); ++i) stop_one(i);
    } else {
      require_prompt(number);
      stop_one(number);
    }
  }

  void describe(size_t number, based_generation_result& value) const {
    const Prompt& prompt = require_prompt(number);
    value.prompt_tokens = prompt.tokens;
    if (!prompt.result) return;
    const GeneratedText& result = *prompt.result;
    value.finish_reason = result.finish_reason.c_str();
    value.text = result.text.c_str();
    value.bytes = result.text.size();
    value.ids = result.ids.data();
    value.log_probabilities = result.log_probabilities.empty() ? nullptr : result.log_probabilities.data();
    value.count = result.ids.size();
  }

  SequenceState state(size_t number) {
    const Prompt& prompt = require_prompt(number);
    if (prompt.result && !keeps_states_)
      throw UsageError("based_generation_state: the prompt has ended, and keep_states of based_generation_options was not set");
    return engine_->snapshot(prompt.sequence);
  }

  // Returns the engine to the model, unless a step has failed.
  void close() {
    if (failed_) return;
    for (const Prompt& prompt : prompts_)
      if (!prompt.result || keeps_states_) engine_->remove(prompt.sequence);
    engine_.give_back();
  }

 private:
  struct Prompt {
    int64_t sequence = 0, tokens = 0;  // the engine's number, and the tokens before the first sampled one
    std::optional<GeneratedText> result;
  };
  struct Event {
    based_event_kind kind = BASED_EVENT_STEP;
    size_t prompt = 0;
    std::string text;
  };

  EngineOptions engine_options(size_t prompts, const based_generation_options& options) const {
    EngineOptions engine;
    const int64_t slots = options.slots > 0 ? options.slots : loaded_->model().device().is_cpu() ? 8 : 128;
    engine.slots = std::min(slots, static_cast<int64_t>(prompts));
    engine.cache_tokens = options.cache_tokens;
    engine.decode.log_probabilities = options.log_probabilities != 0;
    return engine;
  }

  // The most tokens of all slots together; at most 2^50, which no cache holds.
  int64_t most_tokens(const std::vector<TextRequest>& requests, const based_generation_options& options) const {
    size_t longest = 0;
    for (const TextRequest& request : requests)
      longest = std::max(longest, request.ids.size() + (request.state ? request.state->ids.size() : 0));
    constexpr int64_t kMost = int64_t{1} << 50;
    const int64_t each = std::min(static_cast<int64_t>(longest) + std::min(options.max_tokens, kMost), kMost);
    const int64_t slots = engine_options(requests.size(), options).slots;
    return each > kMost / slots ? kMost : each * slots;
  }

  const Prompt& require_prompt(size_t number) const {
    if (number < prompts_.size()) return prompts_[number];
    throw UsageError("the generation has " + std::to_string(prompts_.size()) + " prompts, and no number " + std::to_string(number));
  }

  TextGenerator::Piece on_piece() {
    return [this](int64_t sequence, const std::string& text) { events_.push_back({BASED_EVENT_TEXT, number_.at(sequence), text}); };
  }

  void end(size_t number, GeneratedText text) {
    Prompt& prompt = prompts_[number];
    prompt.result = std::move(text);
    if (!keeps_states_) engine_->remove(prompt.sequence);
    events_.push_back({BASED_EVENT_END, number, ""});
  }

  void step() {
    if (failed_) throw Error("the generation has failed before");
    failed_ = true;  // unless the step returns
    generator_.step(on_piece(), [this](int64_t sequence, GeneratedText text) { end(number_.at(sequence), std::move(text)); });
    failed_ = false;
  }

  void stop_one(size_t number) {
    if (!prompts_[number].result) end(number, generator_.break_off(prompts_[number].sequence, on_piece()));
  }

  std::shared_ptr<Loaded> loaded_;
  bool keeps_states_, failed_ = false;
  EngineLease engine_;
  TextGenerator generator_;
  std::vector<Prompt> prompts_;
  std::map<int64_t, size_t> number_;  // the engine's number of a sequence -> the prompt's
  std::deque<Event> events_;
  Event current_;  // its text belongs to the caller until the next call
};

namespace {

void require_within(int64_t value, int64_t least, const char* name) {
  if (value < least)
    throw UsageError("based_generation_options." + std::string(name) + " must be at least " + std::to_string(least) + ", got " +
                     std::to_string(value));
}

SamplingOptions sampling_of(const based_generation_options& options) {
  SamplingOptions sampling;
  sampling.temperature = options.temperature;
  sampling.top_k = options.top_k;
  sampling.top_p = options.top_p;
  sampling.min_p = options.min_p;
  sampling.repetition_penalty = options.repetition_penalty;
  sampling.presence_penalty = options.presence_penalty;
  sampling.frequency_penalty = options.frequency_penalty;
  sampling.seed = options.seed;
  if (options.bias_count > 0) {
    require(options.bias_ids, "based_generation_options.bias_ids");
    require(options.bias_values, "based_generation_options.bias_values");
  }
  sampling.logit_bias.reserve(options.bias_count);
  for (size_t i = 0; i < options.bias_count; ++i) sampling.logit_bias.emplace_back(options.bias_ids[i], options.bias_values[i]);
  check_sampling_options(sampling);
  return sampling;
}

std::vector<std::string> stops_of(const based_generation_options& options) {
  if (options.stop_count > 0) require(options.stops, "based_generation_options.stops");
  std::vector<std::string> stops;
  stops.reserve(options.stop_count);
  for (size_t i = 0; i < options.stop_count; ++i) {
    require(options.stops[i], "a string of based_generation_options.stops");
    stops.emplace_back(options.stops[i]);
    if (stops.back().empty()) throw UsageError("a string of based_generation_options.stops is empty");
  }
  return stops;
}

std::vector<TextRequest> requests_of(const Loaded& loaded, const based_prompt* prompts, size_t count,
                                     const based_generation_options& options) {
  require_within(options.max_tokens, 0, "max_tokens");
  require_within(options.slots, 0, "slots");
  require_within(options.cache_tokens, 0, "cache_tokens");
  if (count == 0) throw UsageError("based_generation_start: there is no prompt");
  const SamplingOptions sampling = sampling_of(options);
  for (const auto& [id, bias] : sampling.logit_bias) require_ids(loaded.model(), {id}, "based_generation_options.bias_ids");
  const std::vector<std::string> stops = stops_of(options);
  std::vector<TextRequest> requests;
  requests.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    TextRequest& request = requests.emplace_back(request_of(loaded, prompts[i], "based_generation_start"));
    request.options.sampling = sampling;
    request.options.sampling.seed = static_cast<int64_t>(static_cast<uint64_t>(sampling.seed) + i);
    request.options.max_tokens = options.max_tokens;
    request.options.keep_state = options.keep_states != 0;
    request.stops = stops;
  }
  return requests;
}

}  // namespace
}  // namespace based::c

using namespace based::c;

struct based_generation {
  Generation generation;
};

void based_generation_options_init(based_generation_options* options) {
  if (options == nullptr) return;
  const based::SamplingOptions sampling;
  *options = {};
  options->size = sizeof *options;
  options->max_tokens = 128;
  options->temperature = sampling.temperature;
  options->top_k = sampling.top_k;
  options->top_p = sampling.top_p;
  options->min_p = sampling.min_p;
  options->repetition_penalty = sampling.repetition_penalty;
  options->presence_penalty = sampling.presence_penalty;
  options->frequency_penalty = sampling.frequency_penalty;
  options->seed = sampling.seed;
}

based_status based_generation_start(based_model* model, const based_prompt* prompts, size_t count, const based_generation_options* options,
                                    based_generation** generation) {
  return guarded([&] {
    require(model, "based_generation_start: model");
    require(prompts, "based_generation_start: prompts");
    require(generation, "based_generation_start: generation");
    const auto with = complete(options, based_generation_options_init, "based_generation_options");
    const ModelCall call(*model->loaded);
    *generation = new based_generation{Generation(model->loaded, requests_of(*model->loaded, prompts, count, with), with)};
  });
}

based_status based_generation_next(based_generation* generation, based_event* event) {
  return guarded([&] {
    require(generation, "based_generation_next: generation");
    require(event, "based_generation_next: event");
    const ModelCall call(generation->generation.loaded());
    generation->generation.next(*event);
  });
}

based_status based_generation_stop(based_generation* generation, size_t prompt) {
  return guarded([&] {
    require(generation, "based_generation_stop: generation");
    const ModelCall call(generation->generation.loaded());
    generation->generation.stop(prompt);
  });
}

based_status based_generation_describe(based_generation* generation, size_t prompt, based_generation_result* result) {
  return guarded([&] {
    require(generation, "based_generation_describe: generation");
    require(result, "based_generation_describe: result");
    const ModelCall call(generation->generation.loaded());
    based_generation_result value{};
    generation->generation.describe(prompt, value);
    copy_out(value, result, "based_generation_result");
  });
}

based_status based_generation_state(based_generation* generation, size_t prompt, based_state** state) {
  return guarded([&] {
    require(generation, "based_generation_state: generation");
    require(state, "based_generation_state: state");
    const ModelCall call(generation->generation.loaded());
    auto sequence = std::make_shared<const based::SequenceState>(generation->generation.state(prompt));
    *state = new based_state{generation->generation.shared(), std::move(sequence)};
  });
}

void based_generation_free(based_generation* generation) {
  if (generation == nullptr) return;
  const std::shared_ptr<Loaded> loaded = generation->generation.shared();  // outlives the lock
  guarded([&] {
    const ModelCall call(*loaded);
    const std::unique_ptr<based_generation> owner(generation);
    owner->generation.close();
  });
}
