// One request to the engine: a prompt, which is read once, and the choices that continue it.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "based/generate/sequence.h"
#include "based/serve/protocol/api_error.h"

namespace based {

// A token, its log-probability under the model's softmax, and the most likely tokens in its place.
struct TokenScore {
  int64_t id = 0;
  float log_probability = 0;                   // 0 unless the job asks for log-probabilities
  std::vector<std::pair<int64_t, float>> top;  // id and log-probability, most likely first; GenerationJob::top_log_probabilities of them
};

// The prompt has been read.
struct PromptRead {
  int64_t prompt_tokens = 0;  // with those of GenerationJob::start
  int64_t cached_tokens = 0;  // the part of prompt_tokens that a state had read before
  // For GenerationJob::prompt_log_probabilities: one for each token of GenerationJob::ids from `first_scored` on. The first token of a
  // sequence has none.
  std::vector<TokenScore> scores;
  int64_t first_scored = 0;                    // an index of GenerationJob::ids
  std::shared_ptr<const SequenceState> state;  // for GenerationJob::keep_prompt_state
};

// New tokens of one choice, and text that later tokens cannot change. Bytes that may belong to a stop string or an incomplete character are
// held back, so that `text` may be shorter than the tokens' or empty.
struct ChoicePiece {
  int64_t choice = 0;
  std::string text;
  std::vector<TokenScore> tokens;  // sampled ones, also those of a stop string and the end-of-text token
};

struct ChoiceEnd {
  int64_t choice = 0;
  std::string text;           // the rest of the text that was held back
  std::string finish_reason;  // length, stop (a stop string), end_of_text (or a stop token), cache_full, positions, not_finite
  int64_t tokens = 0;         // sampled
  // For GenerationJob::keep_end_state: its ids are the prompt's and those of the returned text, without a stop string or the end-of-text
  // token.
  std::shared_ptr<const SequenceState> state;
};

// Called on the engine's thread; they must return soon. In this order: prompt_read once, then pieces and ends of the choices, then `done`.
// `failed` may come in place of all that is missing. Exactly one of `done` and `failed` is called.
struct JobEvents {
  std::function<void(PromptRead)> prompt_read;
  std::function<void(ChoicePiece)> piece;
  std::function<void(ChoiceEnd)> choice_ended;
  std::function<void()> done;
  // 400: the engine refuses the job; 499: cancel(); 503: the service ends; 504: the deadline has passed; 500: an internal error.
  std::function<void(const ApiError&)> failed;
};

struct GenerationJob {
  std::string owner;       // HttpRequest::owner; the prefix cache's keys are per owner
  std::string client;      // slots are shared equally between clients (service/fair_queue.h)
  std::string request_id;  // for logs
  // The sequence that the prompt continues, or null. It is shared, never changed.
  std::shared_ptr<const SequenceState> start;
  std::vector<int64_t> ids;  // appended to it; may be empty only if there is a start
  // Numbers of tokens of `ids` after which other prompts may diverge, for example the end of a system message: the prefix cache keeps
  // states there from the first prompt on.
  std::vector<int64_t> boundaries = {};
  SamplingOptions sampling;  // choice 0 draws with its seed, choice c with choice_seed(seed, c)
  int64_t max_tokens = 16;
  std::vector<int64_t> stop_tokens;  // beside the tokenizer's end of text
  bool ignore_end_of_text = false;   // the end-of-text token does not end a choice
  std::vector<std::string> stops;    // a choice's text ends before one of these
  AllowedTokens allowed = {};        // restricts the generated tokens (SequenceOptions::allowed); each choice has a copy
  int64_t choices = 1;
  bool prompt_log_probabilities = false;
  bool log_probabilities = false;     // report those of the generated tokens; the two fields below imply it
  int64_t top_log_probabilities = 0;  // at most kMostTopLogProbabilities
  bool keep_prompt_state = false, keep_end_state = false;
  bool use_prefixes = true;  // false: the prefix cache is neither read nor filled
  std::optional<std::chrono::steady_clock::time_point> deadline;
  JobEvents events;
};

int64_t choice_seed(int64_t seed, int64_t choice);

}  // namespace based
