#include "based/serve/protocol/completion_request.h"

#include <algorithm>

namespace based {
namespace {

constexpr const char* kPromptForms = "must be a string, a list of strings, a list of token ids, or a list of lists of token ids";

bool is_empty(const Prompt& prompt) {
  return std::visit([](const auto& value) { return value.empty(); }, prompt);
}

void check_batch(size_t size, const RequestLimits& limits) {
  if (static_cast<int64_t>(size) <= limits.batch) return;
  throw ApiError::invalid("prompt",
                          "prompt: has " + std::to_string(size) + " prompts, at most " + std::to_string(limits.batch) + " are allowed");
}

// The number of most likely tokens, or −1 for an absent field.
int64_t parse_logprobs(const RequestFields& fields, const char* name, const RequestLimits& limits) {
  const Json* const value = fields.find(name);
  if (value == nullptr) return -1;
  if (value->is_boolean()) fields.fail(name, "must be an integer: the number of most likely tokens; true belongs to chats");
  return fields.integer(name, -1, 0, limits.logprobs);
}

void check_parts(const CompletionRequest& request, const RequestLimits& limits) {
  const GenerationFields& generation = request.generation;
  if (generation.states.size() > 1 && request.prompts.size() > 1)
    throw ApiError::invalid("state", "state: a list of states needs one prompt, and a list of prompts one state; the request has " +
                                         std::to_string(generation.states.size()) + " states and " +
                                         std::to_string(request.prompts.size()) + " prompts");
  if (generation.states.empty()) {
    for (const Prompt& prompt : request.prompts)
      if (is_empty(prompt)) throw ApiError::invalid("prompt", "prompt: must not be empty unless the request continues a state");
  }
  if (request.parts() * request.n > limits.choices)
    throw ApiError::invalid("n", "n: the request has " + std::to_string(request.parts()) + " prompts with " + std::to_string(request.n) +
                                     " choices each, at most " + std::to_string(limits.choices) + " choices are allowed");
  if (generation.max_tokens == 0 && !request.echo && request.prompt_logprobs < 0 && !generation.store.any())
    throw ApiError::invalid("max_tokens", "max_tokens: 0 needs \"echo\": true, \"prompt_logprobs\" or \"store\": true");
  if (generation.max_tokens == 0 && request.n > 1) throw ApiError::invalid("n", "n: must be 1 where max_tokens is 0");
}

}  // namespace

int64_t CompletionRequest::parts() const { return static_cast<int64_t>(std::max(prompts.size(), generation.states.size())); }

std::string CompletionRequest::state(int64_t part) const {
  const std::vector<std::string>& states = generation.states;
  if (states.empty()) return "";
  return states.size() == 1 ? states[0] : states[static_cast<size_t>(part)];
}

std::vector<Prompt> parse_prompts(const Json* value, const RequestLimits& limits, int64_t vocab_size) {
  if (value == nullptr) return {std::string()};
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) throw ApiError::invalid("prompt", std::string("prompt: ") + kPromptForms);
  if (value->empty() || value->front().is_number()) return {parse_token_ids(*value, "prompt", limits.prompt_tokens, vocab_size)};
  check_batch(value->size(), limits);
  std::vector<Prompt> prompts;
  prompts.reserve(value->size());
  const bool of_ids = value->front().is_array();
  for (const Json& item : *value) {
    if (of_ids ? !item.is_array() : !item.is_string()) throw ApiError::invalid("prompt", std::string("prompt: ") + kPromptForms);
    if (of_ids) {
      prompts.emplace_back(parse_token_ids(item, "prompt[" + std::to_string(prompts.size()) + "]", limits.prompt_tokens, vocab_size));
    } else {
      prompts.emplace_back(item.get<std::string>());
    }
  }
  return prompts;
}

CompletionRequest parse_completion_request(const Json& json, const RequestLimits& limits, const ModelFacts& model) {
  const RequestFields fields(json);
  check_model_name(fields, model);
  reject_unsupported_fields(fields);
  if (fields.has("max_completion_tokens"))
    throw ApiError::unsupported("max_completion_tokens", "max_completion_tokens: belongs to /v1/chat/completions; use max_tokens");
  CompletionRequest request;
  request.generation = parse_generation_fields(fields, limits, model, "max_tokens", kDefaultCompletionTokens);
  request.prompts = parse_prompts(fields.find("prompt"), limits, model.vocab_size);
  request.n = fields.integer("n", 1, 1, limits.n);
  if (const int64_t best_of = fields.integer("best_of", request.n, 0, INT64_MAX); best_of != request.n)
    throw ApiError::unsupported("best_of", "best_of: choices are not ranked; best_of must equal n, which is " + std::to_string(request.n));
  request.echo = fields.boolean("echo", false);
  request.logprobs = parse_logprobs(fields, "logprobs", limits);
  request.prompt_logprobs = parse_logprobs(fields, "prompt_logprobs", limits);
  check_parts(request, limits);
  return request;
}

}  // namespace based
