// Requests of the HTTP interface: any body is a request within the limits, or an ApiError with a status of 400 to 499.
#include "based/serve/protocol/chat_messages.h"
#include "based/serve/protocol/completion_request.h"
#include "based/serve/protocol/response_messages.h"
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

}  // namespace

void fuzz_one(std::span<const std::byte> input) {
  static const ByteTokenizer tokenizer;
  const RequestLimits limits;
  const ModelFacts model{.name = "m", .vocab_size = 257};
  accept_or_refuse([&] {
    const Json json = parse_json(as_text(input), "the body");
    accept_or_reply([&] {
      const CompletionRequest request = parse_completion_request(json, limits, model);
      require(request.parts() >= 1 && request.parts() <= limits.batch, "the batch is within its limit");
      require(request.n >= 1 && request.n * request.parts() <= limits.choices, "the choices are within their limit");
      require(static_cast<int64_t>(request.generation.stops.size()) <= limits.stops, "the stops are within their limit");
      for (const Prompt& prompt : request.prompts) {
        const auto* ids = std::get_if<std::vector<int64_t>>(&prompt);
        for (size_t i = 0; ids && i < ids->size(); ++i)
          require((*ids)[i] >= 0 && (*ids)[i] < model.vocab_size, "ids are of the vocabulary");
      }
    });
    accept_or_reply([&] { require(parse_chat_request(json, limits, model).messages.is_array(), "messages are a list"); });
    accept_or_reply([&] { parse_response_request(json, limits, model); });
    accept_or_reply([&] { tokenize_reply(json, tokenizer, model, 0); });
    accept_or_reply([&] { detokenize_reply(json, tokenizer, model); });
  });
}

}  // namespace based
