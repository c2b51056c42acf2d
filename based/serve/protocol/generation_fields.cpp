#include "based/serve/protocol/generation_fields.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "based/core/text.h"

namespace based {
namespace {

// The ranges of check_sampling_options.
constexpr double kMaxTemperature = 1e3, kMaxPenalty = 1e3, kMaxAdditivePenalty = 2, kMaxBias = 100;
constexpr int64_t kMaxTtlSeconds = int64_t{10} * 365 * 86400;

SamplingOptions parse_sampling(const RequestFields& fields) {
  SamplingOptions sampling;
  sampling.temperature = fields.number("temperature", 1, 0, kMaxTemperature);
  sampling.top_k = fields.integer("top_k", 0, -1, INT64_MAX);  // −1 means all, as for vLLM
  if (sampling.top_k < 0) sampling.top_k = 0;
  sampling.top_p = fields.number("top_p", 1, 0, 1);
  if (sampling.top_p == 0) fields.fail("top_p", "must be above 0; temperature 0 chooses the most likely token");
  sampling.min_p = fields.number("min_p", 0, 0, 1);
  sampling.repetition_penalty = fields.number("repetition_penalty", 1, 1 / kMaxPenalty, kMaxPenalty);
  sampling.presence_penalty = fields.number("presence_penalty", 0, -kMaxAdditivePenalty, kMaxAdditivePenalty);
  sampling.frequency_penalty = fields.number("frequency_penalty", 0, -kMaxAdditivePenalty, kMaxAdditivePenalty);
  return sampling;
}

std::vector<std::string> parse_stops(const RequestFields& fields, const RequestLimits& limits) {
  std::vector<std::string> stops = fields.texts("stop", limits.stops);
  for (const std::string& stop : stops) {
    if (stop.empty()) fields.fail("stop", "a stop string must not be empty");
    if (static_cast<int64_t>(stop.size()) > limits.stop_bytes)
      fields.fail("stop", "a stop string has " + std::to_string(stop.size()) + " bytes, at most " + std::to_string(limits.stop_bytes) +
                              " are allowed");
  }
  return stops;
}

void set_constraint(ConstraintFields& constraint, const RequestFields& fields, const std::string& path, const char* choice,
                    const char* regex) {
  const auto take = [&](const char* name) {
    if (!constraint.empty()) fields.fail(name, "must not be given together with " + constraint.field);
    constraint.field = path + name;
  };
  if (fields.has(choice)) {
    take(choice);
    constraint.choices = fields.texts(choice, INT64_MAX);  // the constraint has limits of its own
    if (constraint.choices.empty()) fields.fail(choice, "must have at least one string");
  }
  if (fields.has(regex)) {
    take(regex);
    constraint.regex = fields.text(regex);
    if (constraint.regex.empty()) fields.fail(regex, "must not be empty");
  }
}

ConstraintFields parse_constraint(const RequestFields& fields) {
  ConstraintFields constraint;
  set_constraint(constraint, fields, "", "guided_choice", "guided_regex");
  if (const Json* const outputs = fields.find("structured_outputs")) {
    const RequestFields inner(*outputs, "structured_outputs.");
    for (const char* name : {"json", "grammar", "json_object", "structural_tag"})
      if (inner.has(name))
        throw ApiError::unsupported("structured_outputs." + std::string(name),
                                    "structured_outputs." + std::string(name) + ": is not supported; use choice or regex");
    set_constraint(constraint, inner, "structured_outputs.", "choice", "regex");
    if (constraint.empty()) fields.fail("structured_outputs", "must have choice or regex");
  }
  return constraint;
}

StoreFields parse_store(const RequestFields& fields, bool absent) {
  StoreFields store;
  const bool keep = fields.boolean("store", absent);
  if (!keep) {
    for (const char* name : {"state_at", "state_ttl"})
      if (fields.has(name)) fields.fail(name, "needs \"store\": true");
    return store;
  }
  const std::vector<std::string> places = fields.has("state_at") ? fields.texts("state_at", 2) : std::vector<std::string>{"end"};
  for (const std::string& place : places) {
    if (place != "prompt" && place != "end") fields.fail("state_at", "must be a list of \"prompt\" and \"end\", got " + in_quotes(place));
    (place == "end" ? store.at_end : store.at_prompt) = true;
  }
  if (!store.any()) fields.fail("state_at", "must name \"prompt\", \"end\" or both");
  if (fields.has("state_ttl")) store.ttl_seconds = fields.integer("state_ttl", 0, 1, kMaxTtlSeconds);
  return store;
}

}  // namespace

GenerationFields parse_generation_fields(const RequestFields& fields, const RequestLimits& limits, const ModelFacts& model,
                                         const char* max_tokens, int64_t absent_max_tokens, bool absent_store) {
  GenerationFields out;
  out.sampling = parse_sampling(fields);
  if (const Json* const bias = fields.find("logit_bias")) out.sampling.logit_bias = parse_logit_bias(*bias, limits, model.vocab_size);
  if (fields.has("seed")) out.seed = fields.integer("seed", 0, INT64_MIN, INT64_MAX);
  out.max_tokens = fields.integer(max_tokens, std::min(absent_max_tokens, limits.max_tokens), 0, limits.max_tokens);
  out.stops = parse_stops(fields, limits);
  out.stop_tokens = fields.token_ids("stop_token_ids", limits.stops, model.vocab_size);
  out.ignore_end_of_text = fields.boolean("ignore_eos", false);
  out.constraint = parse_constraint(fields);
  if (out.ignore_end_of_text && !out.constraint.empty())
    fields.fail("ignore_eos", "must not be true together with " + out.constraint.field + ", whose texts end with the end-of-text token");
  out.stream = fields.boolean("stream", false);
  if (const Json* const options = fields.find("stream_options")) {
    const RequestFields inner(*options, "stream_options.");
    if (!out.stream) fields.fail("stream_options", "needs \"stream\": true");
    out.include_usage = inner.boolean("include_usage", false);
  }
  out.states = fields.texts("state", limits.batch);
  out.states_are_list = fields.has("state") && fields.find("state")->is_array();
  if (out.states_are_list && out.states.empty()) fields.fail("state", "must not be an empty list");
  out.store = parse_store(fields, absent_store);
  return out;
}

std::vector<std::pair<int64_t, double>> parse_logit_bias(const Json& value, const RequestLimits& limits, int64_t vocab_size) {
  const char* const name = "logit_bias";
  const auto fail = [&](const std::string& message) { throw ApiError::invalid(name, std::string(name) + ": " + message); };
  if (!value.is_object()) fail("must be an object of token ids and numbers");
  if (static_cast<int64_t>(value.size()) > limits.logit_bias)
    fail("has " + std::to_string(value.size()) + " tokens, at most " + std::to_string(limits.logit_bias) + " are allowed");
  std::vector<std::pair<int64_t, double>> out;
  out.reserve(value.size());
  for (const auto& [key, bias] : value.items()) {
    const bool digits =
        !key.empty() && key.size() <= 18 && std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    const int64_t id = digits ? std::strtoll(key.c_str(), nullptr, 10) : -1;
    if (id < 0 || id >= vocab_size) fail("the key " + in_quotes(key) + " must be a token id from 0 to " + std::to_string(vocab_size - 1));
    const double number = bias.is_number() ? bias.get<double>() : kMaxBias + 1;
    if (!(number >= -kMaxBias && number <= kMaxBias)) fail("the value of " + in_quotes(key) + " must be a number from -100 to 100");
    out.emplace_back(id, number);
  }
  std::sort(out.begin(), out.end());
  for (size_t i = 1; i < out.size(); ++i)
    if (out[i].first == out[i - 1].first) fail("token " + std::to_string(out[i].first) + " occurs twice");
  return out;
}

void reject_unsupported_fields(const RequestFields& fields) {
  struct Unsupported {
    const char* name;
    Json neutral;  // a value that changes nothing
    const char* reason;
  };
  static const std::vector<Unsupported> kUnsupported = {
      {"suffix", "", "text cannot be inserted between a prompt and a suffix: the models are causal"},
      {"use_beam_search", false, "beam search is not supported; n choices are sampled"},
      {"length_penalty", 1, "beam search is not supported"},
      {"early_stopping", false, "beam search is not supported"},
      {"min_tokens", 0, "a smallest length is not supported"},
      {"typical_p", 1, "this sampler is not supported; use top_p or min_p"},
      {"typ_p", 1, "this sampler is not supported; use top_p or min_p"},
      {"tfs_z", 1, "this sampler is not supported; use top_p or min_p"},
      {"top_a", 0, "this sampler is not supported; use top_p or min_p"},
      {"mirostat", 0, "this sampler is not supported; use top_p or min_p"},
      {"mirostat_mode", 0, "this sampler is not supported; use top_p or min_p"},
      {"dry_multiplier", 0, "this penalty is not supported; use frequency_penalty"},
      {"xtc_probability", 0, "this sampler is not supported; use top_p or min_p"},
      {"dynatemp_range", 0, "this sampler is not supported; use temperature"},
      {"top_n_sigma", -1, "this sampler is not supported; use top_p or min_p"},
      {"grammar", "", "grammars are not supported; use guided_choice or guided_regex"},
      {"guided_grammar", "", "grammars are not supported; use guided_choice or guided_regex"},
      {"guided_json", Json(), "JSON schemas are not supported; use guided_choice or guided_regex"},
      {"json_schema", Json(), "JSON schemas are not supported; use guided_choice or guided_regex"},
      {"bad_words", Json::array(), "banned words are not supported; use logit_bias"},
      {"allowed_token_ids", Json(), "a list of allowed tokens is not supported; use guided_choice or logit_bias"},
      {"logits_processors", Json::array(), "logits processors are not supported"},
      {"tools", Json::array(), "tools are not supported"},
      {"functions", Json::array(), "functions are not supported"},
      {"tool_choice", "none", "tools are not supported"},
      {"function_call", "none", "functions are not supported"},
      {"lora_request", Json(), "adapters are not supported"},
      {"prompt_embeds", Json(), "embeddings as a prompt are not supported"},
      {"image", Json(), "images are not supported"},
      {"audio", Json(), "audio is not supported"},
      {"add_special_tokens", false, "a prompt never gets tokens that the request does not name"},
      {"truncate_prompt_tokens", Json(), "prompts are not cut; send the tokens that are to be read"},
      {"return_token_ids", false, "token ids are not part of the reply; use POST /tokenize"},
      {"return_tokens", false, "token ids are not part of the reply; use POST /tokenize"},
      {"repeat_penalty", 1, "its name here is repetition_penalty"},
      {"encoder_repetition_penalty", 1, "this penalty is not supported; use repetition_penalty"},
      {"no_repeat_ngram_size", 0, "repeated n-grams are not forbidden; use repetition_penalty"},
      {"n_predict", Json(), "its name here is max_tokens"},
      {"n_probs", 0, "its name here is logprobs"},
      {"logprob_token_ids", Json::array(), "the log-probabilities of chosen tokens are not supported; use logprobs"},
      {"include_stop_str_in_output", false, "a text ends before its stop string"},
      {"min_keep", 0, "a smallest number of candidates is not supported"},
      {"samplers", Json(), "the order of the samplers cannot be chosen"},
      {"epsilon_cutoff", 0, "this sampler is not supported; use top_p or min_p"},
      {"eta_cutoff", 0, "this sampler is not supported; use top_p or min_p"},
      {"cache_salt", "", "cached prefixes are kept apart by API key"},
      {"lora", Json::array(), "adapters are not supported"},
      {"images", Json::array(), "images are not supported"},
      {"image_data", Json::array(), "images are not supported"},
      {"modalities", Json::array({"text"}), "only text is supported"},
      {"documents", Json::array(), "documents are not supported; put them into the prompt"},
      {"web_search_options", Json(), "tools are not supported"},
  };
  for (const Unsupported& field : kUnsupported) {
    const Json* const value = fields.find(field.name);
    if (value == nullptr || *value == field.neutral) continue;
    throw ApiError::unsupported(field.name, std::string(field.name) + ": " + field.reason);
  }
  // Clients of llama.cpp send repeat_last_n with every request; it means nothing without a penalty.
  if (const Json* const last = fields.find("repeat_last_n");
      last != nullptr && *last != -1 && fields.number("repetition_penalty", 1, 0, HUGE_VAL) != 1)
    throw ApiError::unsupported("repeat_last_n", "repeat_last_n: repetition_penalty counts all tokens");
  if (const Json* const format = fields.find("response_format")) {
    const RequestFields inner(*format, "response_format.");
    if (inner.text("type", "text") != "text")
      throw ApiError::unsupported("response_format",
                                  "response_format: only {\"type\": \"text\"} is supported; use guided_choice or guided_regex");
  }
}

void check_model_name(const RequestFields& fields, const ModelFacts& model) {
  const std::string name = fields.text("model");
  if (name.empty() || name == model.name) return;
  throw ApiError::not_found("model", "model: this server has no model " + in_quotes(name) + "; its model is " + in_quotes(model.name));
}

}  // namespace based
