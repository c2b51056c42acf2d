#include "based/serve/protocol/completion_reply.h"

#include <algorithm>
#include <string_view>

namespace based {
namespace {

constexpr const char* kCompletionObject = "text_completion";

void append_separator(std::string& list) {
  if (!list.empty()) list += ',';
}

// The token's own number. If the token is one of the most likely ones, both places have the number of the latter.
double own_log_probability(const ScoredToken& token) {
  for (const auto& [id, value] : token.top)
    if (id == token.id) return value;
  return token.log_probability;
}

}  // namespace

void CompletionLogprobs::append_top(const ScoredToken& token, const std::string& text) {
  top_ += '{';
  std::vector<std::string> keys;
  const auto add = [&](std::string key, double value) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) return;  // the first one has the larger number
    if (!keys.empty()) top_ += ',';
    append_json(key, top_);
    top_ += ':';
    append_log_probability(value, top_);
    keys.push_back(std::move(key));
  };
  const size_t count = std::min(token.top.size(), static_cast<size_t>(most_));
  for (size_t i = 0; i < count; ++i) add(token_text(tokenizer_, token.top[i].first), token.top[i].second);
  add(text, own_log_probability(token));
  top_ += '}';
}

void CompletionLogprobs::add(const ScoredToken& token) {
  const std::string text = token_text(tokenizer_, token.id);
  for (std::string* list : {&tokens_, &values_, &top_, &offsets_}) append_separator(*list);
  append_json(text, tokens_);
  offsets_ += std::to_string(characters_.push(tokenizer_.token_bytes(static_cast<int32_t>(token.id))));
  if (!token.has_log_probability) {
    values_ += "null";
    top_ += "null";
    return;
  }
  append_log_probability(own_log_probability(token), values_);
  append_top(token, text);
}

std::string CompletionLogprobs::take() {
  std::string out = "{\"tokens\":[" + tokens_ + "],\"token_logprobs\":[" + values_ + "],\"top_logprobs\":[" + top_ + "],\"text_offset\":[" +
                    offsets_ + "]}";
  for (std::string* list : {&tokens_, &values_, &top_, &offsets_}) list->clear();
  return out;
}

std::string prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<ScoredToken>& tokens, int64_t most) {
  std::string out = "[";
  for (const ScoredToken& token : tokens) {
    if (out.size() > 1) out += ',';
    if (!token.has_log_probability) {
      out += "null";
      continue;
    }
    bool has_token = false;
    const auto add = [&](int64_t id, double value) {
      out += (out.back() == '{' ? "\"" : ",\"") + std::to_string(id) + "\":{\"logprob\":";
      append_log_probability(value, out);
      out += ",\"decoded_token\":";
      append_json(token_text(tokenizer, id), out);
      out += '}';
      has_token = has_token || id == token.id;
    };
    out += '{';
    const size_t count = std::min(token.top.size(), static_cast<size_t>(most));
    for (size_t i = 0; i < count; ++i) add(token.top[i].first, token.top[i].second);
    if (!has_token) add(token.id, own_log_probability(token));
    out += '}';
  }
  return out + "]";
}

void append_completion_choice(const CompletionChoice& choice, std::string& out) {
  out += "{\"index\":" + std::to_string(choice.index) + ",\"text\":";
  append_json(choice.text, out);
  out += ",\"logprobs\":";
  out += choice.logprobs.empty() ? "null" : choice.logprobs;
  if (!choice.prompt_logprobs.empty()) out += ",\"prompt_logprobs\":" + choice.prompt_logprobs;
  out += ",\"finish_reason\":";
  out += choice.finish_reason.empty() ? "null" : "\"" + choice.finish_reason + "\"";
  if (!choice.state.empty()) out += ",\"state\":\"" + choice.state + "\"";
  if (!choice.prompt_state.empty()) out += ",\"prompt_state\":\"" + choice.prompt_state + "\"";
  out += '}';
}

std::string completion_reply(const ReplyHead& head, const std::vector<CompletionChoice>& choices, const Usage& usage) {
  std::string out;
  append_reply_head(head, kCompletionObject, out);
  for (const CompletionChoice& choice : choices) {
    if (out.back() != '[') out += ',';
    append_completion_choice(choice, out);
  }
  out += "],\"usage\":";
  append_usage(usage, out);
  return out + "}";
}

std::string completion_chunk(const ReplyHead& head, const CompletionChoice& choice, bool usage_null) {
  std::string out;
  append_reply_head(head, kCompletionObject, out);
  append_completion_choice(choice, out);
  out += usage_null ? "],\"usage\":null}" : "]}";
  return sse_event(out);
}

std::string completion_usage_chunk(const ReplyHead& head, const Usage& usage) {
  std::string out;
  append_reply_head(head, kCompletionObject, out);
  out += "],\"usage\":";
  append_usage(usage, out);
  return sse_event(out + "}");
}

}  // namespace based
