// The request of POST /v1/completions.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "based/serve/protocol/generation_fields.h"

namespace based {

// Text that is still to be encoded, or token ids of the vocabulary.
using Prompt = std::variant<std::string, std::vector<int64_t>>;

struct CompletionRequest {
  std::vector<Prompt> prompts;  // at least one; empty prompts only together with a state
  GenerationFields generation;
  int64_t n = 1;                 // choices for each prompt
  bool echo = false;             // the reply's text begins with the prompt
  int64_t logprobs = -1;         // most likely tokens that are reported at each position; −1: no log-probabilities
  int64_t prompt_logprobs = -1;  // the same for the field prompt_logprobs

  // Parts of the request: a prompt each, or a state each where one text is scored against a list of states.
  int64_t parts() const;
  const Prompt& prompt(int64_t part) const { return prompts.size() == 1 ? prompts[0] : prompts[static_cast<size_t>(part)]; }
  std::string state(int64_t part) const;  // "" if the request has no state
  // Whether the log-probabilities of the prompt's tokens are needed.
  bool scores_prompt() const { return prompt_logprobs >= 0 || (echo && logprobs >= 0); }
};

inline constexpr int64_t kDefaultCompletionTokens = 16;  // as OpenAI's

// Throws ApiError.
CompletionRequest parse_completion_request(const Json& request, const RequestLimits& limits, const ModelFacts& model);

// The prompt or prompts of "prompt": a string, a list of strings, a list of token ids, or a list of lists of token ids. Absent: one empty
// string. Throws ApiError 400.
std::vector<Prompt> parse_prompts(const Json* value, const RequestLimits& limits, int64_t vocab_size);

}  // namespace based
