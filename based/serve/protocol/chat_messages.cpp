#include "based/serve/protocol/chat_messages.h"

#include <algorithm>

#include "based/core/text.h"

namespace based {
namespace {

constexpr const char* kChatObject = "chat.completion";
constexpr const char* kChatChunkObject = "chat.completion.chunk";

std::string chat_content_text(const RequestFields& message, const std::string& path) {
  const Json* const content = message.find("content");
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) throw ApiError::invalid(path + "content", path + "content: must be a string or a list of parts");
  std::string text;
  for (const Json& part : *content) {
    const RequestFields fields(part, path + "content[].");
    const std::string type = fields.text("type");
    if (type != "text" && type != "input_text")
      throw ApiError::unsupported(path + "content", path + "content: only parts of type \"text\" are supported, got " + in_quotes(type));
    text += fields.text("text");
  }
  return text;
}

Json parse_messages(const RequestFields& fields) {
  const Json* const messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) fields.fail("messages", "must be a list of at least one message");
  Json out = Json::array();
  for (const Json& message : *messages) {
    const std::string path = "messages[" + std::to_string(out.size()) + "].";
    const RequestFields inner(message, path);
    if (!inner.has("role")) inner.fail("role", "is missing");
    for (const char* name : {"tool_calls", "function_call", "tool_call_id"})
      if (inner.has(name)) throw ApiError::unsupported(path + name, path + name + ": tools are not supported");
    Json parsed = Json::object();
    parsed["role"] = inner.text("role");
    parsed["content"] = chat_content_text(inner, path);
    if (inner.has("name")) parsed["name"] = inner.text("name");
    out.push_back(std::move(parsed));
  }
  return out;
}

void append_chat_token(const Tokenizer& tokenizer, int64_t id, double log_probability, std::string& out) {
  out += "{\"token\":";
  append_json(token_text(tokenizer, id), out);
  out += ",\"bytes\":[";
  for (const char c : tokenizer.token_bytes(static_cast<int32_t>(id))) {
    if (out.back() != '[') out += ',';
    out += std::to_string(static_cast<int>(static_cast<unsigned char>(c)));
  }
  out += "],\"logprob\":";
  append_log_probability(log_probability, out);
}

void append_chat_end(const ChatChoice& choice, std::string& out) {
  out += ",\"logprobs\":";
  out += choice.logprobs.empty() ? "null" : choice.logprobs;
  out += ",\"finish_reason\":";
  out += choice.finish_reason.empty() ? "null" : "\"" + choice.finish_reason + "\"";
  if (!choice.state.empty()) out += ",\"state\":\"" + choice.state + "\"";
  if (!choice.prompt_state.empty()) out += ",\"prompt_state\":\"" + choice.prompt_state + "\"";
  out += '}';
}

}  // namespace

ChatRequest parse_chat_request(const Json& json, const RequestLimits& limits, const ModelFacts& model) {
  const RequestFields fields(json);
  check_model_name(fields, model);
  reject_unsupported_fields(fields);
  for (const char* name : {"prompt", "echo", "best_of", "prompt_logprobs"})
    if (fields.has(name)) throw ApiError::unsupported(name, std::string(name) + ": belongs to /v1/completions");
  if (fields.has("chat_template"))
    throw ApiError::unsupported("chat_template",
                                "chat_template: the server's own template is used; name its file when the server is started");
  if (fields.boolean("continue_final_message", false))
    throw ApiError::unsupported("continue_final_message", "continue_final_message: is not supported; use /v1/completions");
  ChatRequest request;
  request.messages = parse_messages(fields);
  if (const Json* const variables = fields.find("chat_template_kwargs")) {
    const RequestFields object(*variables, "chat_template_kwargs.");
    request.template_variables = *variables;
  }
  request.add_generation_prompt = fields.boolean("add_generation_prompt", true);
  const char* const length = fields.has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  request.generation = parse_generation_fields(fields, limits, model, length, limits.max_tokens);
  if (request.generation.max_tokens == 0 && !request.generation.store.any()) fields.fail(length, "must be at least 1");
  if (request.generation.states.size() > 1) fields.fail("state", "a chat continues one state");
  request.n = fields.integer("n", 1, 1, std::min(limits.n, limits.choices));
  if (request.generation.max_tokens == 0 && request.n > 1) fields.fail("n", "must be 1 where max_tokens is 0");
  request.logprobs = fields.boolean("logprobs", false);
  if (fields.has("top_logprobs") && !request.logprobs) fields.fail("top_logprobs", "needs \"logprobs\": true");
  request.top_logprobs = fields.integer("top_logprobs", 0, 0, limits.logprobs);
  return request;
}

void ChatLogprobs::add(const ScoredToken& token) {
  if (!content_.empty()) content_ += ',';
  double own = token.log_probability;
  for (const auto& [id, value] : token.top)
    if (id == token.id) own = value;
  append_chat_token(tokenizer_, token.id, own, content_);
  content_ += ",\"top_logprobs\":[";
  const size_t count = std::min(token.top.size(), static_cast<size_t>(most_));
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) content_ += ',';
    append_chat_token(tokenizer_, token.top[i].first, token.top[i].second, content_);
    content_ += '}';
  }
  content_ += "]}";
}

std::string ChatLogprobs::take() {
  std::string out = "{\"content\":[" + content_ + "],\"refusal\":null}";
  content_.clear();
  return out;
}

std::string chat_reply(const ReplyHead& head, const std::vector<ChatChoice>& choices, const Usage& usage) {
  std::string out;
  append_reply_head(head, kChatObject, out);
  for (const ChatChoice& choice : choices) {
    if (out.back() != '[') out += ',';
    out += "{\"index\":" + std::to_string(choice.index) + ",\"message\":{\"role\":\"assistant\",\"content\":";
    append_json(choice.text, out);
    out += ",\"refusal\":null}";
    append_chat_end(choice, out);
  }
  out += "],\"usage\":";
  append_usage(usage, out);
  return out + "}";
}

std::string chat_chunk(const ReplyHead& head, const ChatChoice& choice, bool first, bool usage_null) {
  std::string out;
  append_reply_head(head, kChatChunkObject, out);
  out += "{\"index\":" + std::to_string(choice.index) + ",\"delta\":{";
  if (first) out += "\"role\":\"assistant\"";
  if (first || !choice.text.empty()) {
    out += first ? ",\"content\":" : "\"content\":";
    append_json(choice.text, out);
  }
  out += '}';
  append_chat_end(choice, out);
  out += usage_null ? "],\"usage\":null}" : "]}";
  return sse_event(out);
}

std::string chat_usage_chunk(const ReplyHead& head, const Usage& usage) {
  std::string out;
  append_reply_head(head, kChatChunkObject, out);
  out += "],\"usage\":";
  append_usage(usage, out);
  return sse_event(out + "}");
}

}  // namespace based
