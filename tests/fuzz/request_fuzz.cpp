// Bodies of all endpoints: any of them is a request within the limits, or an ApiError with a status of 400 to 499.
#include "based/serve/protocol/chat_messages.h"
#include "based/serve/protocol/completion_request.h"
#include "based/serve/protocol/response_messages.h"
#include "based/serve/protocol/state_request.h"
#include "based/serve/protocol/tokenizer_messages.h"
#include "tests/fuzz/fuzz.h"

namespace based {
namespace {

template <class Parse>
void accept_or_reply(const Parse& parse) {
  try {
    parse();
  } catch (const ApiError& error) {
    require(error.status() >= 400 && error.status() < 500, "a refused request has a status of the client's errors");
    require(error.to_json().at("error").at("message").is_string(), "the error has a message");
  }
}

constexpr ModelFacts facts() { return {.name = "m", .vocab_size = 257}; }

void check_prompt(const Prompt& prompt) {
  const auto* const ids = std::get_if<std::vector<int64_t>>(&prompt);
  for (size_t i = 0; ids && i < ids->size(); ++i) require((*ids)[i] >= 0 && (*ids)[i] < facts().vocab_size, "ids are of the vocabulary");
}

void check_generation(const GenerationFields& fields, const RequestLimits& limits) {
  require(fields.max_tokens >= 0 && fields.max_tokens <= limits.max_tokens, "max_tokens is within its limit");
  require(static_cast<int64_t>(fields.stops.size()) <= limits.stops, "the stops are within their limit");
  for (const std::string& stop : fields.stops)
    require(!stop.empty() && static_cast<int64_t>(stop.size()) <= limits.stop_bytes, "a stop string is within its limit");
  require(static_cast<int64_t>(fields.sampling.logit_bias.size()) <= limits.logit_bias, "the biases are within their limit");
}

void check_completion(const Json& json, const RequestLimits& limits) {
  const CompletionRequest request = parse_completion_request(json, limits, facts());
  require(request.parts() >= 1 && request.parts() <= limits.batch, "the batch is within its limit");
  require(request.n >= 1 && request.n * request.parts() <= limits.choices, "the choices are within their limit");
  require(request.logprobs <= limits.logprobs && request.prompt_logprobs <= limits.logprobs, "the lists are within their limit");
  check_generation(request.generation, limits);
  for (const Prompt& prompt : request.prompts) check_prompt(prompt);
}

void check_chat(const Json& json, const RequestLimits& limits) {
  const ChatRequest request = parse_chat_request(json, limits, facts());
  require(request.messages.is_array() && !request.messages.empty(), "messages are a list");
  for (const Json& message : request.messages)
    require(message.at("role").is_string() && message.at("content").is_string(), "a message has a role and a content");
  require(request.n >= 1 && request.n <= limits.choices && request.top_logprobs <= limits.logprobs, "the choices are within their limit");
  check_generation(request.generation, limits);
}

// A request that is accepted becomes the object and the events of a response.
void check_response(const Json& json, const RequestLimits& limits) {
  ResponseObject response;
  response.request = parse_response_request(json, limits, facts());
  require(response.request.sealed.empty() || response.request.previous.empty(), "a response continues one state");
  check_generation(response.request.generation, limits);
  response.text = response.request.text;
  response.has_text = true;
  response.usage = Usage{};
  ResponseEvents events;
  const std::string all = events.begin(response) + events.delta(response, response.text) + events.end(response);
  require(all.find("event: response.completed") != std::string::npos, "a stream ends");
  require(parse_json(dump_json(response.to_json()), "the reply").at("output").is_array(), "the object is JSON");
}

void check_state(const Json& json, const RequestLimits& limits) {
  const StateRequest request = parse_state_request(json, limits, facts());
  check_prompt(request.prompt);
  require(!request.ttl_seconds || (*request.ttl_seconds >= 0 && *request.ttl_seconds <= kMostStateTtl), "the time is within its limit");
}

}  // namespace

void fuzz_one(std::span<const std::byte> input) {
  static const ByteTokenizer tokenizer;
  const RequestLimits limits;
  accept_or_refuse([&] {
    const Json json = parse_json(as_text(input), "the body");
    accept_or_reply([&] { check_completion(json, limits); });
    accept_or_reply([&] { check_chat(json, limits); });
    accept_or_reply([&] { check_response(json, limits); });
    accept_or_reply([&] { check_state(json, limits); });
    accept_or_reply([&] { tokenize_reply(json, tokenizer, facts(), 0); });
    accept_or_reply([&] { detokenize_reply(json, tokenizer, facts()); });
  });
}

}  // namespace based
