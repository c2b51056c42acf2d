// The request and the replies of POST /v1/chat/completions.
#pragma once
#include <string>
#include <vector>

#include "based/serve/protocol/generation_fields.h"
#include "based/serve/protocol/reply_text.h"

namespace based {

struct ChatRequest {
  Json messages;                             // a list of objects with "role" and "content", both strings
  Json template_variables = Json::object();  // from "chat_template_kwargs"
  bool add_generation_prompt = true;
  GenerationFields generation;
  int64_t n = 1;
  bool logprobs = false;
  int64_t top_logprobs = 0;
};

// Without "max_tokens" and "max_completion_tokens", an answer may have RequestLimits::max_tokens tokens. Content that is a list of parts of
// type "text" becomes one string. Throws ApiError.
ChatRequest parse_chat_request(const Json& request, const RequestLimits& limits, const ModelFacts& model);

// The elements of `logprobs.content`: [{"token", "bytes", "logprob", "top_logprobs"}, …], separated by commas. `most`: entries of the most
// likely tokens.
class ChatLogprobs {
 public:
  ChatLogprobs(const Tokenizer& tokenizer, int64_t most) : tokenizer_(tokenizer), most_(most) {}
  void add(const ScoredToken& token);
  bool empty() const { return content_.empty(); }
  std::string take();  // {"content": […], "refusal": null} for the tokens since the last call

 private:
  const Tokenizer& tokenizer_;
  int64_t most_;
  std::string content_;
};

struct ChatChoice {
  int64_t index = 0;
  std::string text;
  std::string logprobs;             // JSON; empty: null
  std::string finish_reason;        // empty: null
  std::string state, prompt_state;  // ids of stored states; empty: the members are left out
};

std::string chat_reply(const ReplyHead& head, const std::vector<ChatChoice>& choices, const Usage& usage);
// An event of a stream with one choice. `first`: the delta has the role.
std::string chat_chunk(const ReplyHead& head, const ChatChoice& choice, bool first, bool usage_null);
std::string chat_usage_chunk(const ReplyHead& head, const Usage& usage);

}  // namespace based
