// The replies of POST /v1/completions, whole and as chunks of a stream.
#pragma once
#include <string>
#include <vector>

#include "based/serve/protocol/reply_text.h"
#include "based/serve/protocol/utf8_text.h"

namespace based {

// The object `logprobs` of a choice: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, four lists of one entry a token. The
// entry of a token without a log-probability is null in the second and third list; no other entry is null or empty. A token that is the
// most likely one has the largest number in top_logprobs, written with the same digits as in token_logprobs. Tokens of equal text share the
// key, with the larger of their numbers.
class CompletionLogprobs {
 public:
  // `most`: entries of the most likely tokens at each position; the token itself is always among the entries.
  CompletionLogprobs(const Tokenizer& tokenizer, int64_t most) : tokenizer_(tokenizer), most_(most) {}

  void add(const ScoredToken& token);
  bool empty() const { return tokens_.empty(); }
  std::string take();  // the object for the tokens that were added since the last call

 private:
  void append_top(const ScoredToken& token, const std::string& text);

  const Tokenizer& tokenizer_;
  int64_t most_;
  CharacterCounter characters_;
  std::string tokens_, values_, top_, offsets_;  // the elements of the lists, separated by commas
};

// The list `prompt_logprobs` of a choice, as vLLM has it: null for a token without a log-probability, otherwise
// {"<id>": {"logprob": -1.5, "decoded_token": " a"}, …} for the token and the `most` most likely ones.
std::string prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<ScoredToken>& tokens, int64_t most);

struct CompletionChoice {
  int64_t index = 0;
  std::string text;                 // well-formed
  std::string logprobs;             // JSON; empty: null
  std::string prompt_logprobs;      // JSON; empty: the member is left out
  std::string finish_reason;        // "stop" or "length"; empty: null
  std::string state, prompt_state;  // ids of stored states; empty: the members are left out
};
void append_completion_choice(const CompletionChoice& choice, std::string& out);

// The whole reply. The choices are in ascending order of their index.
std::string completion_reply(const ReplyHead& head, const std::vector<CompletionChoice>& choices, const Usage& usage);
// An event of a stream with one choice. `usage_null`: the member "usage" is null, as OpenAI's chunks have it if the last one has the usage.
std::string completion_chunk(const ReplyHead& head, const CompletionChoice& choice, bool usage_null);
// The event with the usage, which has no choices.
std::string completion_usage_chunk(const ReplyHead& head, const Usage& usage);

}  // namespace based
